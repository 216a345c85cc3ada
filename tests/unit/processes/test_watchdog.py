"""Who is named, killed, let be: tables over signs, time and what the kernel says."""

import os
import signal

import pytest

from shmbroker.processes.watchdog import (
    AWAY_S,
    LOOK_S,
    STUCK_LINE_S,
    ProcessState,
    Silence,
    Watchdog,
    Watched,
    may_kill,
    standing_of,
)
from shmbroker.signs import FLUSHING, LEFT_SHIFT, WAITS_FOR_DISK

WARN_S, KILL_S = 5.0, 10.0
BEGAN = 1000.0


class Family:
    """Children with their last signs, looked at once a second; what was found, and when."""

    def __init__(self, warn_s: float = WARN_S, kill_s: float = KILL_S) -> None:
        self.states: dict[int, str] = {}
        self.signed: dict[int, float] = {}
        self.work: dict[int, int] = {}
        self.watchdog = Watchdog(int(warn_s * 1000), int(kill_s * 1000), self.standing_of)
        self.now = BEGAN
        self.found: list[tuple[float, Silence]] = []

    def standing_of(self, pid: int) -> ProcessState:
        return ProcessState(self.states.get(pid, "S"), "")

    def look(self, *signing: int) -> None:
        for pid in signing:
            self.signed[pid] = self.now
        children = [
            Watched(f"child-{pid}", pid, signed, self.work.get(pid, 0))
            for pid, signed in self.signed.items()
        ]
        self.found += [(self.now, one) for one in self.watchdog.look(self.now, children)]

    def go_on(self, seconds: float, *signing: int) -> None:
        for _ in range(round(seconds / LOOK_S)):
            self.now += LOOK_S
            self.look(*signing)

    def events(self) -> list[tuple[float, int, str]]:
        """(seconds since the beginning, pid, what)."""
        words = {"killed;": "kill", "again": "back", "does not end": "stuck"}
        return [
            (
                now - BEGAN,
                one.pid,
                next((word for part, word in words.items() if part in one.line), "name"),
            )
            for now, one in self.found
        ]


def test_who_signs_is_left_alone() -> None:
    family = Family()
    family.look(1, 2)
    family.go_on(60, 1, 2)
    assert family.found == []


@pytest.mark.parametrize("state", ["T", "R", "S", "D"])
def test_silent_child_is_named_once_then_killed(state: str) -> None:
    family = Family()
    family.look(1, 2)
    family.states[1] = state
    family.go_on(KILL_S, 2)
    assert family.events() == [(WARN_S, 1, "name"), (KILL_S, 1, "kill")]
    assert [one.is_kill for _, one in family.found] == [False, True]


def test_line_says_role_pid_how_long_and_what_it_does() -> None:
    family = Family()
    family.look(7)
    family.states[7] = "T"
    family.work[7] = FLUSHING | 12 << LEFT_SHIFT
    family.go_on(WARN_S)
    assert family.found[0][1].line == (
        "child-7 (pid 7) gives no sign of life for 5 s: it is stopped by a signal, "
        "making logs durable, 12 left"
    )


def test_child_that_goes_on_in_time_is_told_of_and_judged_anew() -> None:
    family = Family()
    family.look(1)
    family.go_on(7)
    family.go_on(1, 1)
    family.go_on(KILL_S)
    assert family.events() == [
        (5.0, 1, "name"),
        (8.0, 1, "back"),
        (8.0 + WARN_S, 1, "name"),
        (8.0 + KILL_S, 1, "kill"),
    ]
    assert "after 8 s" in family.found[1][1].line


@pytest.mark.parametrize("since_s", [0.0, 3.0, 7.0])
def test_after_a_standstill_of_all_everybody_gets_the_time_again(since_s: float) -> None:
    family = Family()
    family.look(1)
    family.go_on(since_s)
    named = len(family.found)
    family.now += 3600  # nobody ran, and nobody looked
    family.look()
    family.go_on(WARN_S - LOOK_S)
    assert len(family.found) == named
    family.go_on(LOOK_S, 1)
    assert not any(one.is_kill for _, one in family.found)


def test_who_hangs_after_a_standstill_is_killed_all_the_same() -> None:
    family = Family()
    family.look(1, 2)
    family.now += AWAY_S + 1
    family.look(2)
    family.go_on(KILL_S, 2)
    assert family.events()[-1] == (AWAY_S + 1 + KILL_S, 1, "kill")


def test_child_that_was_forked_just_now_has_its_time() -> None:
    family = Family()
    family.look(1)
    family.go_on(KILL_S - LOOK_S, 1)
    family.signed[2] = family.now  # its fork
    family.go_on(WARN_S - LOOK_S, 1)
    assert family.found == []


def test_killed_child_that_does_not_end_is_named_and_not_killed_again() -> None:
    family = Family()
    family.look(1)
    family.states[1] = "D"
    family.go_on(KILL_S + STUCK_LINE_S)
    assert family.events()[1:] == [(KILL_S, 1, "kill"), (KILL_S + STUCK_LINE_S, 1, "stuck")]
    del family.signed[1]
    family.go_on(KILL_S)
    assert len(family.found) == 3


@pytest.mark.parametrize(
    ("state", "work", "expected"),
    [
        ("R", 0, True),
        ("S", FLUSHING, True),
        ("D", 0, True),
        ("D", WAITS_FOR_DISK, False),
        ("S", WAITS_FOR_DISK | FLUSHING, False),
        ("T", WAITS_FOR_DISK, True),
        ("t", 0, False),
        ("t", WAITS_FOR_DISK, False),
    ],
)
def test_who_may_be_killed(state: str, work: int, expected: bool) -> None:
    assert may_kill(ProcessState(state, ""), work) is expected


def test_who_waits_for_the_disk_is_named_once_and_lives() -> None:
    family = Family()
    family.look(1)
    family.states[1], family.work[1] = "D", WAITS_FOR_DISK
    family.go_on(60)
    assert family.events() == [(WARN_S, 1, "name")]
    assert "something on the disk" in family.found[0][1].line


@pytest.mark.parametrize(
    ("warn_s", "kill_s", "expected"),
    [
        (0, 0, []),
        (5, 0, [(5.0, 1, "name")]),
        (0, 10, [(10.0, 1, "kill")]),
        (12, 10, [(10.0, 1, "kill")]),
    ],
)
def test_each_half_can_be_switched_off(
    warn_s: int, kill_s: int, expected: list[tuple[float, int, str]]
) -> None:
    family = Family(warn_s, kill_s)
    family.look(1)
    family.go_on(KILL_S)
    assert family.events() == expected


def test_kernel_says_who_is_stopped_and_nothing_of_nobody() -> None:
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    try:
        os.waitpid(pid, os.WUNTRACED)
        standing = standing_of(pid)
        assert standing is not None
        assert standing.state == "T"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert standing_of(pid) is None


def test_who_is_killed_by_a_late_look_is_named_by_the_same() -> None:
    family = Family(2.0, 3.0)
    family.look(1, 9)
    family.signed[1] += 0.0015
    for seconds in (1.0, 2.001, 3.002):  # the second of these comes just before it would be named
        family.now = BEGAN + seconds
        family.look(9)
    assert family.events() == [(pytest.approx(3.002), 1, what) for what in ("name", "kill")]


@pytest.mark.parametrize(
    ("kill_s", "state", "work", "is_well"),
    [
        (KILL_S, "T", 0, False),
        (KILL_S, "R", 0, False),
        (KILL_S, "D", WAITS_FOR_DISK, True),
        (KILL_S, "t", 0, True),
        (0.0, "T", 0, True),
    ],
)
def test_family_is_well_unless_a_kill_might_help(
    kill_s: float, state: str, work: int, is_well: bool
) -> None:
    family = Family(kill_s=kill_s)
    family.look(1, 2)
    family.states[1] = state
    family.work[1] = work
    family.go_on(WARN_S - 1, 2)
    assert family.watchdog.is_well
    family.go_on(1, 2)
    assert family.watchdog.is_well == is_well
    del family.signed[1]
    family.go_on(1, 2)
    assert family.watchdog.is_well, "it is gone, and its successor not there yet"
