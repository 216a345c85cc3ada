"""The installed service: it starts, is confined, replaces what hangs, restarts, fails plainly."""

import os
import pwd
import re
import signal
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.support.acknowledged_load import batch_now, read_values
from tests.support.raw_client import RawClient
from tests.support.systemd_machine import (
    COMMAND,
    CONFIG,
    DATA,
    PREFIX,
    SERVICE,
    SOCKET,
    Journal,
    Machine,
    make_environment,
    newer,
    run,
)
from tests.support.waiting import wait_until

TOPIC = "served"
EXPOSURE_MAX = 1.4


def test_starts_ready_and_confined(machine: Machine) -> None:
    journal = Journal()
    machine.begin()
    assert machine.show("ActiveState") == "active"
    assert machine.show("StatusText") == f"ready on {machine.address} (broker 1)"
    assert "ready on" in journal.text()
    user = pwd.getpwnam("shmbroker")
    assert {os.stat(f"/proc/{pid}").st_uid for pid in machine.children().values()} == {user.pw_uid}
    mode = DATA.stat()
    assert (stat.S_IMODE(mode.st_mode), mode.st_uid, mode.st_gid) == (
        0o750,
        user.pw_uid,
        user.pw_gid,
    )
    with RawClient(machine.address) as client:
        client.create_topic(TOPIC)
        assert client.produce(TOPIC, batch_now(b"1"))["error_code"] == 0
        assert read_values(client, TOPIC, 0) == [b"1"]
    worker = machine.children()["io-worker-1"]
    if len(os.sched_getaffinity(0)) > 1:  # its sandbox lets it share a core
        wait_until(lambda: len(os.sched_getaffinity(worker)) == 1, "a quiet worker on one core")


@pytest.mark.parametrize(
    "unit", [SERVICE, "shmbroker-ingest@any.service", "shmbroker-pipeline@any.service"]
)
def test_exposure_is_small(installed: Machine, unit: str) -> None:
    said = run("systemd-analyze", "security", "--no-pager", unit).stdout
    found = re.search(r"Overall exposure level for .*: (\d+\.\d+)", said)
    assert found is not None, said
    assert float(found[1]) <= EXPOSURE_MAX, said


def test_units_have_no_word_that_systemd_does_not_know(installed: Machine) -> None:
    written = re.findall(r"^write (\S+\.(?:service|socket))$", installed.installed, re.MULTILINE)
    assert len(written) == 4
    done = run(
        "systemd-analyze", "verify", "--man=no", *(path for path in written if "@" not in path)
    )
    assert done.stderr == ""


def test_reload_takes_what_may_change_names_the_rest_and_refuses_what_is_wrong(
    machine: Machine,
) -> None:
    machine.begin()
    main = machine.show("MainPID")
    journal = Journal()
    machine.set({"log.retention.ms": "700000", "shmbroker.disk.reserve.bytes": "1"})
    run("systemctl", "reload", SERVICE)
    journal.wait_for(
        "settings read again: log.retention.ms changed; shmbroker.disk.reserve.bytes takes a"
    )
    wait_until(lambda: machine.show("ActiveState") == "active", "the end of the reload")
    machine.set({"log.retention.hours": "soon"})
    run("systemctl", "reload", SERVICE)
    journal.wait_for("the settings stay as they are: Invalid value soon for configuration")
    wait_until(lambda: machine.show("ActiveState") == "active", "the end of the reload")
    assert machine.show("MainPID") == main
    assert _serves(machine.address)


@pytest.mark.parametrize("brokers", [1, 3])
def test_process_that_hangs_is_named_killed_and_replaced(machine: Machine, brokers: int) -> None:
    machine.begin(brokers, {"shmbroker.replicas": str(brokers)})
    roles = machine.children()
    main = machine.show("MainPID")
    assert len(roles) == 1 + brokers + 2
    journal = Journal()
    for pid in roles.values():
        os.kill(pid, signal.SIGSTOP)
    for title, pid in roles.items():
        journal.wait_for(f"{title} (pid {pid}) gives no sign of life for", 2)
    wait_until(
        lambda: (
            set(after := machine.children()) == set(roles)
            and not set(after.values()) & set(roles.values())
        ),
        "their successors",
    )
    wait_until(lambda: _serves(machine.address), "the service")
    assert machine.show("MainPID") == main, "the service itself was not restarted"
    assert machine.show("NRestarts") == "0"


def test_supervisor_that_hangs_is_replaced_with_its_family(machine: Machine) -> None:
    machine.drop_in(SERVICE, "watchdog", "Service", "WatchdogSec=13")
    try:
        machine.begin()
        with RawClient(machine.address) as client:
            client.create_topic(TOPIC)
            assert client.produce(TOPIC, batch_now(b"kept"))["error_code"] == 0
        main = int(machine.show("MainPID"))
        journal = Journal()
        os.kill(main, signal.SIGSTOP)
        journal.wait_for("Watchdog timeout (limit 13s)")
        journal.wait_for("ready on")
        with RawClient(machine.address) as client:
            assert read_values(client, TOPIC, 0) == [b"kept"]
        assert machine.show("NRestarts") == "1"
    finally:
        machine.end()
        machine.drop_in(SERVICE, "watchdog", "Service")


def test_family_that_is_killed_whole_is_started_again(machine: Machine) -> None:
    machine.begin()
    journal = Journal()
    os.kill(int(machine.show("MainPID")), signal.SIGKILL)
    journal.wait_for("ready on")
    assert _serves(machine.address)


@pytest.mark.parametrize("brokers", [1, 3])
def test_no_connection_is_refused_and_no_record_lost_over_restarts(
    machine: Machine, brokers: int
) -> None:
    machine.begin(brokers, {"shmbroker.replicas": str(brokers)})
    with RawClient(machine.address) as client:
        client.create_topic(TOPIC)
    ports = range(machine.port, machine.port + brokers)
    with _connecting(ports) as refused, _producing(machine.address) as sent:
        for _ in range(3):
            count = len(sent)
            run("systemctl", "restart", SERVICE)
            wait_until(lambda count=count: len(sent) > count + 100, "more records")
    assert refused == []
    found: list[bytes] = []
    for port in ports:
        with RawClient(f"127.0.0.1:{port}") as client:
            (topic,) = client.ask("Metadata", 9, {"topics": [{"name": TOPIC}]})["topics"]
            if topic["partitions"][0]["leader_id"] == port - machine.port + 1:
                found = read_values(client, TOPIC, 0)
    assert [int(value) for value in found] == list(range(len(sent)))


def test_first_connection_starts_a_service_that_is_not_running(machine: Machine) -> None:
    machine.begin()
    run("systemctl", "stop", SERVICE)
    assert machine.show("ActiveState") == "inactive"
    assert _serves(machine.address)
    wait_until(lambda: machine.show("ActiveState") == "active", "the end of the start")


def test_another_version_takes_over_at_a_restart(machine: Machine, tmp_path: Path) -> None:
    machine.begin()
    with RawClient(machine.address) as client:
        client.create_topic(TOPIC)
        assert client.produce(TOPIC, batch_now(b"old"))["error_code"] == 0
    before = run(COMMAND, "--version").stdout
    CONFIG.write_text(CONFIG.read_text() + "# mine\n")
    make_environment(PREFIX, newer("9.9.9", tmp_path))
    try:
        assert run(COMMAND, "--version").stdout.split()[-1] == "9.9.9"
        said = run(COMMAND, "systemd", "install").stdout
        assert f"keep  {CONFIG}" in said
        assert CONFIG.read_text().endswith("# mine\n")
        run("systemctl", "restart", SERVICE)
        with RawClient(machine.address) as client:
            assert read_values(client, TOPIC, 0) == [b"old"]
            assert client.produce(TOPIC, batch_now(b"new"))["error_code"] == 0
    finally:
        make_environment(PREFIX, newer(before.split()[-1], tmp_path))
    run("systemctl", "restart", SERVICE)  # and back
    with RawClient(machine.address) as client:
        assert read_values(client, TOPIC, 0) == [b"old", b"new"]


def test_broken_setting_fails_with_its_sentence_and_is_not_tried_again(machine: Machine) -> None:
    machine.end()
    machine.set({"log.retention.hours": "soon"})
    journal = Journal()
    assert run("systemctl", "start", SERVICE, check=False).returncode != 0
    assert machine.show("Result") == "exit-code"
    assert machine.show("ExecMainStatus") == "2"
    said = journal.text()
    assert f"Not a number of type INT, in {CONFIG}." in said
    assert machine.show("ActiveState") == "failed"
    machine.begin()
    assert _serves(machine.address)


def test_port_of_somebody_else_fails_the_start_instead_of_another_port(machine: Machine) -> None:
    machine.end()
    with socket.create_server(("127.0.0.1", machine.port)):
        done = run("systemctl", "start", SERVICE, check=False)
        assert done.returncode != 0 and "dependency" in done.stderr
        assert machine.show("ActiveState") == "inactive"
    machine.begin()
    assert _serves(machine.address)


def test_directory_that_another_family_has_is_not_fought_for(machine: Machine) -> None:
    machine.begin()
    done = run(
        *("runuser", "-u", "shmbroker", "--"),
        *(COMMAND, "serve", "--data", DATA, "--port", "0"),
        check=False,
    )
    assert done.returncode == 3
    assert _serves(machine.address)


def test_stop_is_clean_and_uninstall_keeps_the_data(machine: Machine) -> None:
    machine.begin()
    with RawClient(machine.address) as client:
        client.create_topic(TOPIC)
        assert client.produce(TOPIC, batch_now(b"1"))["error_code"] == 0
    run("systemctl", "enable", SERVICE)
    run("systemctl", "stop", SOCKET, SERVICE)
    assert machine.show("Result") == "success"
    assert machine.show("ExecMainStatus") == "0"
    with pytest.raises(ConnectionRefusedError):
        RawClient(machine.address)
    said = run(COMMAND, "systemd", "uninstall").stdout
    assert f"Kept: {CONFIG}" in said
    assert machine.show("LoadState") == "not-found"
    assert (DATA / "node-1" / f"{TOPIC}-0").is_dir()
    assert not list(Path("/etc/systemd/system").glob("shmbroker*.service"))
    run(COMMAND, "systemd", "install")
    run("systemctl", "start", SOCKET, SERVICE)
    with RawClient(machine.address) as client:
        assert read_values(client, TOPIC, 0) == [b"1"]


def test_unit_of_somebody_else_is_not_overwritten(machine: Machine) -> None:
    path = Path("/etc/systemd/system/shmbroker.service")
    mine = path.read_text()
    path.write_text("[Service]\nExecStart=/bin/true\n")
    done = run(COMMAND, "systemd", "install", check=False)
    path.write_text(mine)
    assert done.returncode == 1
    assert f"{path} is there, and this command did not write it" in done.stderr


def _serves(address: str) -> bool:
    try:
        with RawClient(address) as client:
            return bool(client.ask("Metadata", 9, {"topics": []})["brokers"])
    except OSError:
        return False


@contextmanager
def _connecting(ports: range) -> Iterator[list[str]]:
    """Somebody who opens connections all the time; those that were refused."""
    refused: list[str] = []
    is_over = threading.Event()

    def connect() -> None:
        while not is_over.wait(0.001):
            for port in ports:
                try:
                    socket.create_connection(("127.0.0.1", port), 5).close()
                except OSError as fault:
                    refused.append(f"{port}: {fault}")

    thread = threading.Thread(target=connect)
    thread.start()
    try:
        yield refused
    finally:
        is_over.set()
        thread.join()


@contextmanager
def _producing(address: str) -> Iterator[list[int]]:
    """An idempotent producer that sends numbers all the time; those that were acknowledged."""
    sent: list[int] = []
    failed: list[str] = []
    is_over = threading.Event()
    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "message.timeout.ms": 60_000,
        }
    )

    def produce() -> None:
        number = 0
        while not is_over.wait(0.001):

            def told(error: object, _message: object, number: int = number) -> None:
                if error:
                    failed.append(str(error))
                else:
                    sent.append(number)

            producer.produce(TOPIC, str(number), partition=0, on_delivery=told)
            producer.poll(0)
            number += 1
        assert producer.flush(60) == 0

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield sent
    finally:
        is_over.set()
        thread.join()
    assert failed == []
