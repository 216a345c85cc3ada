"""The data directory of a family: its lock, what is judged and written at a start, its sockets.

    prepare (makes and locks it, judges) ──► DirectoryPlan ──► write (carries the plan out)

Rules of this file:
* Between the two, everything else that can refuse the start has its say. Until `write` nothing in
  the directory changes but that it is there, and that its lock is taken.
* The lock is a flock whose descriptor the children keep: no second family while one writer lives.
* Each log directory is locked so, too: another family may reach it by --log-dir. Who holds Kafka's
  kind of lock there, an Apache Kafka or an I/O worker, is asked before anything is written.
* What the kernel refuses is one sentence with the fix, a ConfigFault.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from shmbroker import clock, unix
from shmbroker.controller.raft.voter_links import socket_name
from shmbroker.errors import ConfigFault
from shmbroker.ipc import control_socket
from shmbroker.log.directory_lock import LOCK, lock_holder
from shmbroker.log.file_names import SUPERVISOR_LOCK
from shmbroker.log.meta_properties import FIX_RIGHTS
from shmbroker.processes import data_access, data_directory, earlier_places

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

    from shmbroker.settings.broker_config import BrokerConfig

LOCK_WAIT_S = 5.0
"""How long the lock may outlive a dead supervisor: its children end some milliseconds later."""
LOCK_FD_MIN = 512
"""A dying process closes its descriptors in their order. Behind the sockets and the locks of the
log directories, so that the next to get this lock finds those free."""
CONTROL_BACKLOG = 64

_FIXES = {
    errno.EACCES: f"{FIX_RIGHTS}, or ",
    errno.EPERM: f"{FIX_RIGHTS}, or ",
    errno.EROFS: "mount it for writing (ReadWritePaths= in a unit), or ",
    errno.ENOSPC: "make room, or ",
}
"""What else helps than another directory."""


class InUse(ConfigFault):
    """Another family works on the data directory."""


class InUseYet(InUse):
    """The family is gone but for processes that the kernel does not let end, for their disk."""


class HeldDirectory:
    """The directory at `path`, of the family with these settings."""

    def __init__(self, config: BrokerConfig, path: Path) -> None:
        self.path = path
        self._config = config
        self._access: str = config["shmbroker.data.access"]
        self._held: dict[str, int] = {}
        """Descriptors that hold log directories, by their real paths."""

    def prepare(self) -> data_directory.DirectoryPlan:
        """Make and lock the data directory, and judge what is in it: nothing else is written."""
        config, path = self._config, str(self.path)
        data_access.begin(self._access)
        places = config.places(path)
        try:
            data_directory.refuse_log_directory(path, places)
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock_fd = lock(self.path)
            for place in places:
                self._hold(place)
            found = [data_directory.find(place) for place in places]
            plan = data_directory.judge(
                data_directory.WantedNodes(
                    places,
                    config["shmbroker.node.id"],
                    "shmbroker.node.id" in config.static,
                    config["shmbroker.controllers"],
                ),
                found,
                data_directory.find_others(path, places),
            )
            earlier_places.refuse_left_out(path, found, plan)
            return plan
        except OSError as fault:
            raise self._unusable(fault) from fault

    def write(self, plan: data_directory.DirectoryPlan) -> None:
        """Carry out the plan: the last that can refuse the start has agreed."""
        try:
            earlier_places.say_lost(str(self.path), plan)
            data_directory.carry_out(plan)
            earlier_places.remember(str(self.path), list(plan.nodes.values()))
            for directory in plan.nodes.values():
                self._hold(directory)
            data_access.settle(
                self._access,
                str(self.path),
                [directory for directory in plan.nodes.values() if os.path.isdir(directory)],
            )
        except OSError as fault:
            raise self._unusable(fault) from fault

    def bind_control_socket(self) -> socket.socket:
        """Where tools on this host ask the family."""
        path = self.path / unix.CONTROL_SOCKET
        try:
            path.unlink(missing_ok=True)
            control = control_socket.bind(self.path)
            os.chmod(path, data_access.socket_mode(self._access))
            control.listen(CONTROL_BACKLOG)
        except OSError as fault:
            raise self._unusable(fault) from fault
        return control

    def remove_sockets(self, controllers: Iterable[int]) -> None:
        """Remove the control socket, and those of these controllers, who are gone."""
        for name in (unix.CONTROL_SOCKET, *map(socket_name, controllers)):
            unix.remove(self.path / name)

    def _hold(self, log_directory: str) -> None:
        """Take a log directory, if it is there and can be read; InUse if somebody works on it."""
        place = os.path.realpath(log_directory)
        if place in self._held:
            return
        refusal = (
            f"The log directory {log_directory} is in use by {{}}: stop that one, or name another "
            "directory."
        )
        try:
            holder = lock_holder(f"{place}/{LOCK}")
        except OSError:
            holder = 0
        if holder:
            who = f"the process with pid {holder}" if holder > 0 else "another process"
            raise InUse(refusal.format(who))
        try:
            fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise InUse(refusal.format("another broker")) from None
        except OSError:
            pass  # A network file system may lock no directories.
        self._held[place] = fd

    def _unusable(self, fault: OSError) -> ConfigFault:
        is_file = isinstance(fault, FileExistsError | NotADirectoryError)
        reason = "it is no directory" if is_file else fault.strerror
        if isinstance(fault.filename, str) and not is_file and fault.filename != str(self.path):
            reason = f"{reason}: {fault.filename}"
        fix = _FIXES.get(fault.errno or 0, "")
        return ConfigFault(
            f"The data directory {self.path} can't be used: {reason}; {fix}name another one with "
            "--data."
        )


def lock(directory: Path) -> int:
    """Take the directory's lock and write our pid into it; the descriptor that holds it. Waits for
    what a dead family left; InUse, InUseYet: it can't be had."""
    lock_fd = os.open(directory / SUPERVISOR_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = clock.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            owner = os.pread(lock_fd, 32, 0).decode(errors="replace").strip()
            if clock.monotonic() > deadline:
                raise InUseYet(
                    f"The data directory {directory} is in use by processes of the broker with "
                    f"pid {owner}, which has ended: they wait for a disk; try again."
                ) from None
            if _is_alive(owner):
                raise InUse(
                    f"The data directory {directory} is in use by the broker with pid {owner}: "
                    "stop that one, or name another directory with --data."
                ) from None
            clock.sleep(0.002)
    os.ftruncate(lock_fd, 0)
    os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)
    held = fcntl.fcntl(lock_fd, fcntl.F_DUPFD_CLOEXEC, LOCK_FD_MIN)
    os.close(lock_fd)
    return held


def _is_alive(owner: str) -> bool:
    """Whether the pid that a lock file names runs; an unreadable one counts as dead."""
    try:
        try:
            os.kill(int(owner), 0)
        except PermissionError:
            return True  # of another user
        with open(f"/proc/{int(owner)}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (ValueError, OSError):
        return False
