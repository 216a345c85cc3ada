"""The watchdog: which child has given no sign of life for too long, and what is done about it.

   silent for    what happens
   warn_s        one line that names it, and what the kernel says that it does
   kill_s        SIGKILL, which ends a stopped process, too; it is replaced as after any death
   kill_s + n·STUCK_LINE_S   a line: the kernel does not let it end before its disk answers

Pure, but for `standing_of`, which is handed in: what the signs are, and when, are arguments.

* Silence counts from when the one that looks has been awake without a break: after a standstill of
  the machine, or of the whole family, nobody is to blame (`attention`).
* Not killed: who said that it waits for a disk (`signs.waiting_for_disk`), unless it is stopped, as
  its successor would wait as well; and who is held by a debugger.
* A child that goes on before it is killed is told of, too.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from shmbroker.ipc.attention import Attention
from shmbroker.signs import WAITS_FOR_DISK, describe

LOOK_S = 1.0
"""The time between two looks. Idle children sign once a second, so it would be no use to look more
often."""
AWAY_S = 2.5
"""A watchdog that did not look for so long was not let run."""
STUCK_LINE_S = 10.0

STOPPED = "T"
TRACED = "t"
_STATES = {
    "R": "it runs without an end to its turn",
    "S": "it sleeps",
    "D": "it waits for a disk",
    STOPPED: "it is stopped by a signal",
    TRACED: "a debugger holds it",
}


class Watched(NamedTuple):
    """One that lives, as its counters and the supervisor know it."""

    title: str
    pid: int
    signed: float
    """The last sign of life, or the fork if that is later; monotonic seconds."""
    work: int
    """The child's word of `signs`."""


class ProcessState(NamedTuple):
    """What the kernel says of a process."""

    state: str
    """The letter in /proc/PID/stat."""
    waits_in: str
    """The kernel's function that it sleeps in, where that may be known."""


class Silence(NamedTuple):
    """A line to log, and whether the child is to be killed."""

    pid: int
    line: str
    is_kill: bool = False


class Watchdog:
    """`look` once a second; 0 switches a half of it off.

    awake_since: when the one that looks began to do so without a break.
    """

    def __init__(
        self, warn_ms: int, kill_ms: int, standing_of: Callable[[int], ProcessState | None]
    ) -> None:
        self.set_limits(warn_ms, kill_ms)
        self._standing_of = standing_of
        self._attention = Attention(0.0, AWAY_S)
        self._named: dict[int, float] = {}
        """Pid to the last sign of those that a line was written about."""
        self._killed: dict[int, float] = {}
        """Pid of those that do not end, to when the next line about that is due."""
        self.next_look = self.awake_since = 0.0
        self.is_well = True
        """Whether no child was silent at the last look that a kill might help: what a service
        manager's own watchdog may hear. Always so where nobody is to be killed."""

    def set_limits(self, warn_ms: int, kill_ms: int) -> None:
        """Set after how long a silent child is named, and killed; 0 is never."""
        self._warn_s = warn_ms / 1000 or float("inf")
        self._kill_s = kill_ms / 1000 or float("inf")
        self._least_s = min(self._warn_s, self._kill_s)

    def look(self, now: float, children: Iterable[Watched]) -> list[Silence]:
        """What is to be said and done now."""
        if now < self.next_look:
            return []
        self.next_look = now + LOOK_S
        self.awake_since = self._attention.awake_since(now)
        children = list(children)
        pids = {child.pid for child in children}
        self._named = {pid: signed for pid, signed in self._named.items() if pid in pids}
        self._killed = {pid: due for pid, due in self._killed.items() if pid in pids}
        findings: list[Silence] = []
        self.is_well = True
        for child in children:
            silent_s = now - max(child.signed, self.awake_since)
            if silent_s >= self._least_s and self._kill_s != float("inf"):
                self.is_well &= not may_kill(self._standing_of(child.pid), child.work)
            findings += self._judge(now, child, silent_s)
        return findings

    def _judge(self, now: float, child: Watched, silent_s: float) -> Iterator[Silence]:
        """Judge a child. One that is killed was named before, or is now: a look may come late."""
        title, pid = child.title, child.pid
        if silent_s < self._least_s:
            if pid in self._named and child.signed > self._named[pid]:
                silent_s = child.signed - self._named.pop(pid)
                yield Silence(
                    pid, f"{title} (pid {pid}) gives signs of life again, after {silent_s:.0f} s"
                )
            return
        if pid in self._killed:
            if now >= self._killed[pid]:
                self._killed[pid] = now + STUCK_LINE_S
                why = _what(self._standing_of(pid), child.work)
                yield Silence(pid, f"{title} (pid {pid}) is killed, but does not end: {why}")
            return
        standing = self._standing_of(pid)
        why = _what(standing, child.work)
        silence = f"{title} (pid {pid}) gives no sign of life for {silent_s:.0f} s"
        is_kill = silent_s >= self._kill_s and may_kill(standing, child.work)
        if pid not in self._named and (silent_s >= self._warn_s or not is_kill):
            self._named[pid] = child.signed
            yield Silence(pid, f"{silence}: {why}")
        if is_kill:
            self._killed[pid] = now + STUCK_LINE_S
            yield Silence(pid, f"{silence}: killed; {why}", is_kill=True)


def may_kill(standing: ProcessState | None, work: int) -> bool:
    """Whether killing such a silent process may help."""
    state = standing.state if standing is not None else ""
    return state != TRACED and (state == STOPPED or not work & WAITS_FOR_DISK)


def standing_of(pid: int) -> ProcessState | None:
    """What /proc says of a process; None if it says nothing."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            state = stat.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None
    try:
        with open(f"/proc/{pid}/wchan") as wchan:
            waits_in = wchan.read().strip().strip("0")
    except OSError:
        waits_in = ""
    return ProcessState(state, waits_in)


def _what(standing: ProcessState | None, work: int) -> str:
    if standing is None:
        return "nothing is known of what it does"
    what = _STATES.get(standing.state, f"its state is {standing.state}")
    if standing.waits_in and standing.state in "SD":
        what += f" in {standing.waits_in}"
    if work & WAITS_FOR_DISK:
        what += ", to have something on the disk"
    doing = describe(work)
    return f"{what}, {doing}" if doing else what
