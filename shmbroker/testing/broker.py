"""A real broker in a temporary directory, for tests: `with Broker() as broker: broker.address`.

It is `shmbroker serve` as a subprocess, with its own process group; nothing of it survives `stop`.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

READY = re.compile(r"ready on (\S+) \(broker \d+\)")
START_S = 30.0
STOP_S = 20.0
_FLAGS_OF_BROKERS = ("--io-workers", "--replicas")


def free_ports(count: int) -> int:
    """The first of `count` free ports in a row.

    A broker that is started again needs the port it had, and several need them in a row; so they
    stay below those that the kernel hands out to everybody's connections.
    """
    while True:
        first = 20_000 + int.from_bytes(os.urandom(2), "little") % 12_000
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


class Broker:
    """Starts at once. `address`: of the first broker that serves; `data`: its directory; `log`:
    what it printed."""

    def __init__(self, *flags: str, data: Path | None = None, port: int = 0) -> None:
        self._owns_data = data is None
        self.data = data or Path(tempfile.mkdtemp(prefix="shmbroker-test-"))
        self.flags = flags
        counts = [flags[at + 1] for at, flag in enumerate(flags) if flag in _FLAGS_OF_BROKERS]
        workers = max(map(int, counts), default=1)
        self.port = port or free_ports(workers)
        while True:
            try:
                self.start()
                return
            except RuntimeError:
                if port or "Address already in use" not in self.log:
                    raise
            self.port = free_ports(workers)  # somebody took one of them in between

    def start(self) -> None:
        """Start `serve` and wait for its ready line; RuntimeError with its output if it ends."""
        self.launch()
        self._ready.wait(START_S)
        if not self.address:
            self.kill()
            raise RuntimeError("the broker did not start:\n" + self.log)

    def launch(self) -> None:
        """Start `serve` and wait for nothing."""
        words = ["serve", "--data", str(self.data), "--port", str(self.port), *self.flags]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shmbroker", *words],
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
        """Of one start: its last lines may come when the next has begun."""
        for line in process.stdout or ():
            lines.append(line)
            found = READY.search(line)
            if found:
                self.address = found[1]
                self.port = self.port or int(found[1].rsplit(":", 1)[1])
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

    def kill(self) -> None:
        """kill -9 of the whole family at once."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self._reader.join(5)

    def __enter__(self) -> "Broker":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._owns_data:
            shutil.rmtree(self.data, ignore_errors=True)
