"""A real broker in a temporary directory, for tests: `with Broker() as broker: broker.address`.

It is `shmbroker serve` as a subprocess, with its own process group; nothing of it survives `stop`.
Started by a main thread, it does not survive this process either, however that ends.

What can go wrong on purpose:

   kill, pause                        real signals to real processes
   delay, fail_next, disk_full        by a proxy in this process (`proxy`): with `faults=True` only,
                                      and for clients of `address`

Each of the last four, and `pause`, gives a `Trouble`: it lasts until its `end`, or to the end of a
`with`. `calm` ends them all.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from shmbroker import clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.testing.proxy import Proxy

LISTENERS_MAX = 4
"""How many listeners there are ports for."""

READY = re.compile(r"ready on (\S+) \((?:[^,()]+, )?broker \d+")
START_S = 30.0
STOP_S = 20.0
ASK_S = 10.0
QUICK = ("--set", "group.initial.rebalance.delay.ms=0")
"""Flags for a test: a group does not wait for a second member."""
PORTS_FROM, PORT_LOTS, PORTS_IN_LOT = 20_000, 4, 3_000
_FLAGS_OF_BROKERS = ("--io-workers", "--replicas")
_DIES_WITH_US = (
    "import ctypes; ctypes.CDLL(None).prctl(1, 9); "  # PR_SET_PDEATHSIG, SIGKILL
    "from shmbroker.cli import main; main(prog_name='shmbroker')"
)
"""A command of Python: the thread that started it is the one that counts, so only a main thread's
brokers are bound like that."""


def free_ports(count: int) -> int:
    """The first of `count` free ports in a row.

    A broker that is started again needs the port it had, and several need them in a row; so they
    stay below those that the kernel hands out to everybody's connections. A look at a port holds
    it for a moment: workers of pytest-xdist look at ports of their own.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw") or 0)
    least = PORTS_FROM + worker % PORT_LOTS * PORTS_IN_LOT
    while True:
        first = least + int.from_bytes(os.urandom(2), "little") % (PORTS_IN_LOT - count)
        held: list[socket.socket] = []
        try:
            for port in range(first, first + count):
                held.append(socket.socket())
                held[-1].bind(("127.0.0.1", port))
        except OSError:
            continue
        finally:
            for listening in held:
                listening.close()
        return first


class Trouble:
    """Something that goes wrong until `end`, or to the end of a `with`."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end: Callable[[], None] | None = end

    def end(self) -> None:
        """End the trouble; a second time does nothing."""
        end, self._end = self._end, None
        if end is not None:
            end()

    def __enter__(self) -> Trouble:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class Broker:
    """Starts at once. `address`: of the first broker that serves, or the proxy's before it; `data`:
    its directory; `log`: what it printed.

    `flags` are those of `shmbroker serve`; where they name `listeners`, {port1}, {port2} … in them
    stand for free ports. With `faults` clients of `address` go through a proxy,
    which `delay`, `fail_next` and `disk_full` need. With `users` (passwords by name) it lets only
    these in, by SASL/PLAIN; `client_settings` has what a client needs. RuntimeError, with what it
    printed, if it does not start; a directory that was made for it is gone then.
    """

    def __init__(
        self,
        *flags: str,
        data: Path | None = None,
        port: int = 0,
        faults: bool = False,
        users: Mapping[str, str] | None = None,
    ) -> None:
        self._owns_data = data is None
        self.data = data or Path(tempfile.mkdtemp(prefix="shmbroker-test-"))
        self._users = dict(users or {})
        self.address = ""
        self.pid = 0
        self._proxy: Proxy | None = None
        self._troubles: list[Trouble] = []
        try:
            self._begin(flags, port, faults)
        except BaseException:
            if self.pid:
                self.kill()
            self._remove_data()
            raise

    def _begin(self, flags: tuple[str, ...], port: int, faults: bool) -> None:
        if self._users:
            flags = (*flags, *_flags_of_users(self.data, self._users))
        self.flags = flags
        counts = [flags[at + 1] for at, flag in enumerate(flags) if flag in _FLAGS_OF_BROKERS]
        workers = max(map(int, counts), default=1)
        self._workers = workers
        self._listeners = any(flag.startswith("listeners=") for flag in flags)
        if self._listeners:
            workers *= LISTENERS_MAX
        self.port = port or free_ports(workers)
        while True:
            try:
                self.start()
                break
            except RuntimeError:
                if port or "Address already in use" not in self.log:
                    raise
            self.port = free_ports(workers)  # somebody took one of them in between
        if faults:
            from shmbroker.testing.proxy import Proxy

            self._proxy = Proxy(range(self.port, self.port + workers))
            self.address = self._proxy.moved(self.address)

    def client_settings(self, user: str | None = None) -> dict[str, str]:
        """What a client needs to come as one of `users`, the first by default; by Kafka's names."""
        settings = {"bootstrap.servers": self.address}
        if not self._users:
            return settings
        user = user or next(iter(self._users))
        return settings | {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": self._users[user],
        }

    def port_of_listener(self, place: int) -> int:
        """Where a listener, from 0, of the first broker listens: what {port1}, {port2} … in
        `flags` stand for."""
        return self.port + place * self._workers

    def start(self) -> None:
        """Start `serve` and wait for its ready line; RuntimeError with its output if it ends."""
        self.launch()
        self._ready.wait(START_S)
        if not self.address:
            self.kill()
            raise RuntimeError("the broker did not start:\n" + self.log)

    def launch(self) -> None:
        """Start `serve` and wait for nothing."""
        words = ["serve", "--data", str(self.data)]
        if self._listeners:
            ports = {f"port{n + 1}": self.port_of_listener(n) for n in range(LISTENERS_MAX)}
            words += [flag.format(**ports) if "://" in flag else flag for flag in self.flags]
        else:
            words += ["--port", str(self.port), *self.flags]
        is_main = threading.current_thread() is threading.main_thread()
        how = ["-c", _DIES_WITH_US] if is_main else ["-m", "shmbroker"]
        self.process = subprocess.Popen(
            [sys.executable, *how, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        self.pid = self.process.pid
        self.address = ""
        self.lines: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(
            target=self._read, args=(self.process, self.lines, self._ready), daemon=True
        )
        self._reader.start()

    def _read(
        self, process: subprocess.Popen[str], lines: list[str], ready: threading.Event
    ) -> None:
        """Read what one start prints: its last lines may come when the next has begun."""
        for line in process.stdout or ():
            lines.append(line)
            found = READY.search(line)
            if found:
                self.address = self._proxy.moved(found[1]) if self._proxy else found[1]
                ready.set()
        ready.set()

    @property
    def log(self) -> str:
        """What it printed so far."""
        return "".join(self.lines)

    def children(self) -> dict[str, int]:
        """{title: pid} of its processes, as `ps` shows them, without "shmbroker: ".

        A process that was forked a moment ago and has no title of its own yet is left out.
        """
        found = {}
        task = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        for pid in task.read_text().split():
            try:
                title = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
            name = title.removeprefix("shmbroker: ")
            if name not in ("", "supervisor"):
                found[name] = int(pid)
        return found

    def stop(self) -> int:
        """SIGTERM, wait; the exit status."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._reader.join(5)
        return self.process.returncode

    def kill(self, name: str = "") -> None:
        """kill -9 of one process by its name, such as "io-worker-1" (`children` has them all): its
        supervisor starts another one. Without a name, of the whole family at once: `start` brings
        it back, with what it had stored. When it returns, they are gone. LookupError for a name
        that no process has.
        """
        if name:
            pid = self._pid_of(name)
            pidfd = os.pidfd_open(pid)
            try:
                os.kill(pid, signal.SIGKILL)
                select.select([pidfd], [], [], STOP_S)
            finally:
                os.close(pidfd)
            return
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self._reader.join(5)

    def pause(self, name: str = "") -> Trouble:
        """Stop a process, or the whole family, where it is (SIGSTOP): connections stay open, and
        nothing comes. When it returns, they stand still. One process that does so for longer than
        `shmbroker.watchdog.kill.ms` is killed and replaced; a family isn't. LookupError for a name
        that no process has.
        """
        pids = [self._pid_of(name)] if name else [self.pid, *self.children().values()]
        for pid in pids:  # the supervisor first: it would look after the others
            os.kill(pid, signal.SIGSTOP)
            _wait_until_stopped(pid)
        return self._trouble(lambda: _resume(pids))

    def delay(self, api: str | int, ms: float) -> Trouble:
        """Answers of an API ("Produce", or its key) come so much later. The broker has done by then
        what was asked. ValueError for an API that Kafka has not.
        """
        return self._trouble(self._faults().rules.delay(_key_of(api), ms / 1000))

    def fail_next(self, api: str | int, error: str | int | None, times: int = 1) -> None:
        """The next `times` requests of an API get this error ("NOT_LEADER_OR_FOLLOWER", or its
        code) and are not done; None ends their connection instead. ValueError for an API or error
        that Kafka has not.
        """
        self._faults().rules.fail_next(_key_of(api), _code_of(error), times)

    def disk_full(self) -> Trouble:
        """Each Produce gets what a broker without room answers, KAFKA_STORAGE_ERROR, and is not
        done; all else goes on, as it does on a full disk. The disk itself isn't filled.
        """
        rules = self._faults().rules
        return self._trouble(rules.fail(_key_of("Produce"), _code_of("KAFKA_STORAGE_ERROR")))

    def calm(self) -> None:
        """End everything that goes wrong on purpose."""
        while self._troubles:
            self._troubles.pop().end()
        if self._proxy is not None:
            self._proxy.rules.clear()

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Make a topic; "_" stands for "." in the names of its settings (`retention_ms="1000"`).
        It goes to the broker past the proxy. ClusterFault if it refuses.
        """
        from shmbroker.client import admin, faults
        from shmbroker.client.addresses import Addresses
        from shmbroker.client.security import security_of
        from shmbroker.wire.api_keys import CREATE_TOPICS

        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": -1,
            "assignments": [],
            "configs": [
                {"name": key.replace("_", "."), "value": value} for key, value in configs.items()
            ],
        }
        body = {"topics": [topic], "timeout_ms": round(1000 * ASK_S), "validate_only": False}
        settings = self.client_settings()
        settings.pop("bootstrap.servers")
        addresses = Addresses([("127.0.0.1", self.port)], security_of(settings))
        answer = admin.ask(addresses, CREATE_TOPICS, body, version=7)
        (row,) = answer["topics"]
        faults.refuse(row["error_code"], f"topic {name}", row["error_message"])

    def _pid_of(self, name: str) -> int:
        children = self.children()
        if name not in children:
            raise LookupError(f"there is no process {name}; there are {', '.join(children)}")
        return children[name]

    def _faults(self) -> Proxy:
        if self._proxy is None:
            raise RuntimeError("this broker has no proxy for faults: make it with faults=True")
        return self._proxy

    def _trouble(self, end: Callable[[], None]) -> Trouble:
        trouble = Trouble(end)
        self._troubles.append(trouble)
        return trouble

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        self.calm()
        if self._proxy is not None:
            self._proxy.stop()
        self.stop()
        self._remove_data()

    def _remove_data(self) -> None:
        if self._owns_data:
            shutil.rmtree(self.data, ignore_errors=True)


def _flags_of_users(data: Path, users: Mapping[str, str]) -> list[str]:
    """Flags of a listener that lets these in. Their passwords are in files below the data
    directory: whoever lists processes doesn't see them."""
    secrets = data / "test-users"
    secrets.mkdir(mode=0o700, parents=True, exist_ok=True)
    entries = ""
    for number, (name, password) in enumerate(users.items()):
        (secrets / str(number)).write_text(password)
        entries += f' user_{name}="${{dir:{secrets}:{number}}}"'
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:{port1}",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{module}{entries};",
    }
    return [word for pair in settings.items() for word in ("--set", "=".join(pair))]


def _wait_until_stopped(pid: int) -> None:
    """The signal is seen when the process runs next; a bound, as one may wait for a disk."""
    deadline = clock.monotonic() + STOP_S
    while clock.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return  # it ended meanwhile
        if state in "TZ":
            return
        clock.sleep(0.001)


def _resume(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass  # killed meanwhile


def _key_of(api: str | int) -> int:
    from shmbroker.wire.api_keys import TABLE

    keys = {row[0].lower(): key for key, row in TABLE.items()} | {key: key for key in TABLE}
    return _found(api, keys, "API")


def _code_of(error: str | int | None) -> int:
    from shmbroker.testing.proxy import DISCONNECT
    from shmbroker.wire import error_codes

    if error is None:
        return DISCONNECT
    codes = {
        name.lower(): code
        for name, code in vars(error_codes).items()
        if name.isupper() and isinstance(code, int)
    }
    return _found(error, codes | {code: code for code in codes.values() if code}, "error")


def _found(word: str | int, known: Mapping[str | int, int], what: str) -> int:
    found = known.get(word.lower() if isinstance(word, str) else word)
    if found is None:
        from difflib import get_close_matches

        close = get_close_matches(str(word).lower(), [str(each) for each in known], 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"Kafka has no {what} {word}{hint}")
    return found
