"""Starting: who is refused, with which words and exit status, and who waits; systemd is told."""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmbroker.log.file_names import SUPERVISOR_LOCK
from shmbroker.processes import held_directory
from shmbroker.processes.held_directory import InUseYet
from shmbroker.processes.supervisor import EXIT_CHILD_BOOT, EXIT_CONFIG, EXIT_IN_USE
from shmbroker.testing.broker import Broker, free_ports
from tests.support.acknowledged_load import batch_now, read_values
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

TOPIC = "boots"
PID_OF_NOBODY = 2**22 + 1
"""Above any pid that Linux gives."""


def serve(*words: str | Path, **more: object) -> subprocess.CompletedProcess[str]:
    """`shmbroker serve` with these words, run until it ends by itself."""
    command = [sys.executable, "-m", "shmbroker", "serve", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **more)


def assert_refused(done: subprocess.CompletedProcess[str], status: int, *parts: str) -> None:
    """It ended with this status and one sentence that holds all the parts."""
    assert done.returncode == status, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for part in parts:
        assert part in done.stderr
    assert done.stdout == ""


def written(directory: Path) -> dict[Path, bytes]:
    """All files below a directory, and what is in them."""
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_second_start_is_refused_while_the_first_serves(tmp_path: Path) -> None:
    with Broker(data=tmp_path) as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC)
        done = serve("--data", tmp_path, "--port", "0")
        assert_refused(done, EXIT_IN_USE, str(tmp_path), f"pid {broker.pid}", "--data")
        assert client.produce(TOPIC, batch_now(b"undisturbed"))["error_code"] == 0


def test_start_waits_for_the_children_of_a_dead_supervisor(tmp_path: Path) -> None:
    held = os.open(tmp_path / SUPERVISOR_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    os.write(held, b"%d\n" % PID_OF_NOBODY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with _launched(tmp_path) as broker:
        # It has the file open, so it has found the lock taken.
        lock = str(tmp_path / SUPERVISOR_LOCK)
        wait_until(lambda: lock in _open_files(broker.pid), "the start to reach the lock")
        assert broker.children() == {}
        os.close(held)
        wait_until(lambda: "ready on" in broker.log, "the start")


class Launched(Broker):
    """One that nobody has waited for."""

    def start(self) -> None:
        self.launch()


def _launched(data: Path) -> Broker:
    return Launched(data=data)


def _open_files(pid: int) -> set[str]:
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        except FileNotFoundError:
            pass
    return found


def test_lock_that_is_never_released_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_directory, "LOCK_WAIT_S", 0.01)
    held = os.open(tmp_path / SUPERVISOR_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    os.write(held, b"%d\n" % PID_OF_NOBODY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        with pytest.raises(InUseYet, match=f"pid {PID_OF_NOBODY}, which has ended"):
            held_directory.lock(tmp_path)
    finally:
        os.close(held)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_port_in_use_is_refused(tmp_path: Path, taken_port: int) -> None:
    done = serve("--data", tmp_path, "--port", str(taken_port))
    assert_refused(done, EXIT_CONFIG, f"127.0.0.1:{taken_port}", "in use", "--port")


def test_ports_beyond_the_last_are_refused(tmp_path: Path) -> None:
    done = serve("--data", tmp_path, "--port", "65535", "--io-workers", "2")
    assert_refused(done, EXIT_CONFIG, "65535")


def test_unusable_data_directory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert_refused(serve("--data", file / "below", "--port", "0"), EXIT_CONFIG, str(file), "--data")
    assert_refused(serve("--data", file, "--port", "0"), EXIT_CONFIG, str(file), "--data")
    # Not even root may make a directory there.
    assert_refused(serve("--data", "/proc/x", "--port", "0"), EXIT_CONFIG, "/proc/x", "--data")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--set", "no.such.setting=1"], ["no.such.setting"]),
        (["--set", "log.segment.bytes=many"], ["log.segment.bytes", "many"]),
        (["--set", "log.segment.bytes"], ["log.segment.bytes"]),
        (["--io-workers", "0"], ["--io-workers"]),
        (["--data", ""], ["--data is empty"]),
        (["--log-dir", ""], ["--log-dir is empty"]),
        (["--data", "d" * 300], ["File name too long", "--data"]),
        (["--host", "fe80::1"], ["--host"]),
        (["--port", "70000"], ["--port", "70000"]),
        (["--config", "/no/such/file"], ["/no/such/file"]),
        (["--host", "no.such.host.invalid"], ["no.such.host.invalid"]),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, words: list[str], parts: list[str]) -> None:
    assert_refused(serve("--data", tmp_path, "--port", "0", *words), EXIT_CONFIG, *parts)


def test_fewer_io_workers_than_before_are_refused(tmp_path: Path) -> None:
    with Broker("--io-workers", "2", data=tmp_path) as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC, 2)
    done = serve("--data", tmp_path, "--port", "0")
    assert_refused(done, EXIT_CONFIG, "node-2", "--io-workers 2")


def test_log_directories_are_where_the_flags_say(tmp_path: Path) -> None:
    words = ("--log-dir", str(tmp_path / "a"), "--log-dir", str(tmp_path / "b"))
    with Broker("--replicas", "3", *words, data=tmp_path / "data"):
        nodes = (tmp_path / "a", tmp_path / "b", tmp_path / "data" / "node-3")
        for number, node in enumerate(nodes, 1):
            assert f"node.id={number}\n" in (node / "meta.properties").read_text()
        assert not (tmp_path / "data" / "node-1").exists()


def test_log_directory_of_another_program_is_refused_before_it_is_touched(tmp_path: Path) -> None:
    with Broker(data=tmp_path):
        pass
    before = written(tmp_path / "node-1")
    # Kafka's kind of lock, which says that somebody else writes there.
    with open(tmp_path / "node-1" / ".lock", "r+") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        done = serve("--data", tmp_path, "--port", "0")
    said = f"{tmp_path}/node-1 is in use by the process with pid {os.getpid()}"
    assert_refused(done, EXIT_IN_USE, said)
    assert written(tmp_path / "node-1") == before
    with Broker(data=tmp_path):
        pass  # and nothing is broken


def test_log_directory_of_a_family_is_refused_to_another(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    with Broker(data=mine) as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC)
        log = mine / "node-1" / "__cluster_metadata-0"
        before = written(log)
        words = ("--data", tmp_path / "other", "--log-dir", str(mine / "node-1"), "--port", "0")
        assert_refused(serve(*words), EXIT_IN_USE, f"{mine}/node-1 is in use by the process")
        # While its I/O worker is started again nobody holds Kafka's lock.
        os.remove(mine / "node-1" / ".lock")
        assert_refused(serve(*words), EXIT_IN_USE, f"{mine}/node-1 is in use by another broker")
        # The family goes on writing there: nothing of what there was is gone.
        for path, content in before.items():
            assert path.read_bytes().startswith(content.rstrip(b"\0")), path


def test_data_directory_and_partitions_of_a_family_are_no_place_for_another(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    with Broker(data=mine) as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC)
    partition = mine / "node-1" / f"{TOPIC}-0"
    before = written(mine)
    other = tmp_path / "other"
    for words, said in (
        (("--data", other, "--log-dir", str(mine)), f"{mine} is the data directory of a family"),
        (("--data", other, "--log-dir", str(partition)), f"inside the log directory {mine}/node-1"),
        (("--data", partition), f"inside the log directory {mine}/node-1"),
        (("--data", partition / "x"), f"inside the log directory {mine}/node-1"),
    ):
        assert_refused(serve(*words, "--port", "0"), EXIT_CONFIG, said)
    assert written(mine) == before


def test_log_directory_that_is_left_out_is_not_begun_anew_elsewhere(tmp_path: Path) -> None:
    data, disk = tmp_path / "data", tmp_path / "disk"
    with Broker("--log-dir", str(disk), data=data) as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC)
        assert client.produce(TOPIC, batch_now(b"1"))["error_code"] == 0
    said = f"{disk} is a log directory of the family of {data}, and would not run: start with"
    for words in ((), ("--log-dir", str(tmp_path / "another"))):
        done = serve("--data", data, *words, "--port", "0")
        assert_refused(done, EXIT_CONFIG, said, f"--log-dir {disk}")
    # Moved by its owner, with the data directory: nothing is left out.
    data, disk = data.rename(tmp_path / "data-2"), disk.rename(tmp_path / "disk-2")
    with Broker("--log-dir", str(disk), data=data) as broker, RawClient(broker.address) as client:
        assert read_values(client, TOPIC, 0) == [b"1"]
    # A copy is run instead.
    copy = tmp_path / "copy"
    shutil.copytree(disk, copy)
    with Broker("--log-dir", str(copy), data=data) as broker, RawClient(broker.address) as client:
        assert read_values(client, TOPIC, 0) == [b"1"]


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_note_of_log_directories_that_can_not_be_read_holds_up_no_start(
    tmp_path: Path, content: bytes | None
) -> None:
    note = tmp_path / ".log-dirs"
    if content is None:
        note.mkdir()
    else:
        note.write_bytes(content)
    with Broker(data=tmp_path):
        assert content is None or note.read_text() == "node-1\n"


def test_new_cluster_where_another_was_is_told(tmp_path: Path) -> None:
    with Broker(data=tmp_path) as broker:
        assert "a new cluster begins" not in broker.log
    shutil.rmtree(tmp_path / "node-1")
    with Broker(data=tmp_path) as broker:
        assert f"nothing is left in {tmp_path}/node-1: a new cluster begins" in broker.log


def test_family_goes_on_when_its_metadata_log_is_removed(tmp_path: Path) -> None:
    with Broker(data=tmp_path) as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC)
        shutil.rmtree(tmp_path / "node-1" / "__cluster_metadata-0")
        with contextlib.suppress(AssertionError, OSError):
            client.create_topic("another")  # it may be refused, as the controller is started again
        wait_until(lambda: is_served(broker, "another"), "the topic in every process")
    with Broker(data=tmp_path) as broker:
        assert is_served(broker, TOPIC)
        assert is_served(broker, "another")


def test_directory_of_a_topic_that_is_removed_while_it_is_served_comes_back(tmp_path: Path) -> None:
    """Neither a stop nor, once the log has a line of it, the death of all costs a record."""
    directory = tmp_path / "node-1" / f"{TOPIC}-0"
    line = f"{directory}/{0:020d}.log was removed by somebody; it is there again"
    values = []
    with Broker(data=tmp_path) as broker:
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC)
        for end in (broker.stop, broker.kill):
            values.append(end.__name__.encode())
            with RawClient(broker.address) as client:
                assert client.produce(TOPIC, batch_now(values[-1]))["error_code"] == 0
            shutil.rmtree(directory)
            if end == broker.kill:
                wait_until(lambda: line in broker.log, "a line")
            assert end() in (0, None)
            assert line in broker.log
            broker.start()
            with RawClient(broker.address) as client:
                assert read_values(client, TOPIC, 0) == values


def is_served(broker: Broker, topic: str) -> bool:
    """Whether records can be written to a topic."""
    try:
        with RawClient(broker.address) as client:
            return client.produce(topic, batch_now(b"1"))["error_code"] == 0
    except (AssertionError, KeyError, OSError):
        return False


def test_damaged_metadata_log_ends_the_family_with_its_reason(tmp_path: Path) -> None:
    with Broker(data=tmp_path) as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC)
    log = tmp_path / "node-1" / "__cluster_metadata-0" / f"{0:020d}.log"
    content = bytearray(log.read_bytes())
    content[100] ^= 0xFF  # in the first batch: others follow it
    log.write_bytes(content)
    done = serve("--data", tmp_path, "--port", "0")
    assert done.returncode == EXIT_CHILD_BOOT
    assert "controller-1" in done.stderr
    assert str(log) in done.stderr


def test_restarts_back_off_while_a_child_keeps_dying() -> None:
    with Broker() as broker:
        for count in range(1, 5):
            pid = wait_until(lambda: broker.children().get("network-worker-1"), "the child")
            os.kill(pid, signal.SIGKILL)
            wait_until(
                lambda count=count: broker.log.count("network-worker-1 (pid") == count, "a restart"
            )
        lines = [line for line in broker.log.splitlines() if "network-worker-1 (pid" in line]
        delays = [line.rpartition("starting another")[2].strip() for line in lines]
        assert delays == ["", "in 0.1 s", "in 0.5 s", "in 1.0 s"]
        # Meanwhile the others serve.
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC)
            assert client.produce(TOPIC, batch_now(b"1"))["error_code"] == 0
            assert read_values(client, TOPIC, 0) == [b"1"]


def test_systemd_is_told_of_readiness_restarts_and_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(address))

        def told_until(wanted: str) -> list[str]:
            told: list[str] = []
            while not any(assignment.startswith(wanted) for assignment in told):
                told += manager.recv(4096).decode().split("\n")
            return told

        with Broker(data=tmp_path / "data") as broker:
            told = told_until("STATUS=")
            assert told[0] == "READY=1", "nothing is said before it"
            assert f"MAINPID={broker.pid}" in told
            assert told[-1].startswith(f"STATUS=ready on {broker.address}")
            os.kill(broker.children()["io-worker-1"], signal.SIGKILL)
            assert "STATUS=restarting io-worker-1" in told_until("STATUS=restarting")
            told_until("STATUS=ready on")
            assert broker.stop() == 0
            told = told_until("STATUS=stopped")
            assert told[0] == "STOPPING=1"


def test_python_that_leaves_out_asserts_is_refused(tmp_path: Path) -> None:
    words = ["-O", "-m", "shmbroker", "serve", "--data", str(tmp_path / "data"), "--port", "0"]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2
    assert "-O" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("title", ["controller-1", "io-worker-1", "network-worker-1"])
def test_child_killed_during_the_first_boot_is_replaced(tmp_path: Path, title: str) -> None:
    broker = _launched(tmp_path)
    with broker:
        pid = wait_until(lambda: broker.children().get(title), "the child")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: "ready on" in broker.log, "readiness")
        line = f"{title} (pid {pid}) ended with signal 9"
        wait_until(lambda: line in broker.log, "its line")
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC)
            assert client.produce(TOPIC, batch_now(b"1"))["error_code"] == 0
        assert broker.stop() == 0


def test_port_0_takes_a_free_port_for_each_broker(tmp_path: Path) -> None:
    words = ["-m", "shmbroker", "serve", "--data", str(tmp_path), "--port", "0"]
    with subprocess.Popen(
        [sys.executable, *words, "--io-workers", "2"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            ports = [int(port) for port in re.findall(r"127\.0\.0\.1:(\d+) \(broker", ready)]
            assert len(set(ports)) == 2, ready
            for port in ports:
                with RawClient(f"127.0.0.1:{port}") as client:
                    assert client.ask("ApiVersions", 0, {})["error_code"] == 0
        finally:
            process.terminate()
    assert process.returncode == 0


def test_children_go_before_the_supervisor_where_memory_runs_out(tmp_path: Path) -> None:
    def adjusted(pid: int) -> int:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

    with Broker(data=tmp_path) as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC)
        before = broker.children()
        supervisor = broker.process.pid
        scores = {title: adjusted(pid) for title, pid in before.items()}
        assert all(score >= min(1000, adjusted(supervisor) + 100) for score in scores.values())
        # What the kernel does then, to the one that it counts as the largest.
        victim = max(
            before,
            key=lambda title: int(Path(f"/proc/{before[title]}/oom_score").read_text()),
        )
        assert int(Path(f"/proc/{supervisor}/oom_score").read_text()) <= int(
            Path(f"/proc/{before[victim]}/oom_score").read_text()
        )
        os.kill(before[victim], signal.SIGKILL)
        successor = wait_until(
            lambda: (pid := broker.children().get(victim)) != before[victim] and pid, "another one"
        )
        wait_until(lambda: adjusted(successor) == scores[victim], "it goes before, too")
    with Broker(data=tmp_path) as broker, RawClient(broker.address) as client:
        assert client.produce(TOPIC, batch_now(b"1"))["error_code"] == 0


@pytest.mark.parametrize(
    ("limit", "parts"),
    [
        ("-n 64", ("open files is 64", "at least 10", "ulimit -n")),
        ("-f 4", ("file sizes is 4096", "ulimit -f")),
        ("-v 30000", ("ulimit -v",)),
    ],
)
def test_limits_that_are_too_small_are_refused(
    tmp_path: Path, limit: str, parts: tuple[str, ...]
) -> None:
    words = [sys.executable, "-m", "shmbroker", "serve", "--data", str(tmp_path), "--port", "0"]
    done = subprocess.run(
        ["bash", "-c", f'ulimit {limit}; exec "$@"', "bash", *words],
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},  # it would cut what all others load
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert_refused(done, EXIT_CONFIG, *parts)


@pytest.mark.parametrize(
    "redirection", [">&-", "2>&-", "<&- >&- 2>&-", "2>&1 | true", ">/dev/full"]
)
def test_outputs_that_are_closed_full_or_unread_are_no_matter(
    tmp_path: Path, redirection: str
) -> None:
    port = free_ports(1)
    data, said = tmp_path / "data", tmp_path / "said"
    words = f"serve --data {data} --port {port} & echo $! >{tmp_path}/pid; wait $!"
    script = f"exec 2>{said}; {{ {sys.executable} -m shmbroker {words}; }} {redirection}"
    # Of a pipeline, the status is the broker's.
    with subprocess.Popen(["bash", "-o", "pipefail", "-c", script]) as shell:
        try:
            wait_until(lambda: _answers(f"127.0.0.1:{port}"), "the service")
            pid = int((tmp_path / "pid").read_text())
            children = Path(f"/proc/{pid}/task/{pid}/children")
            before = children.read_text().split()
            os.kill(int(before[-1]), signal.SIGKILL)  # a network worker
            wait_until(lambda: set(children.read_text().split()) - set(before), "its successor")
            wait_until(lambda: _answers(f"127.0.0.1:{port}"), "the service")
            os.kill(pid, signal.SIGTERM)
            assert shell.wait(20) == 0
        finally:
            shell.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert "Traceback" not in said.read_text()


def _answers(address: str) -> bool:
    try:
        with RawClient(address) as client:
            return bool(client.ask("ApiVersions", 0, {})["error_code"] == 0)
    except OSError:
        return False
