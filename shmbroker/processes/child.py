"""What every child process of the family does alike: title, signals, peers, signs of life.

Rules of this file:
* A child ends when the supervisor does: PR_SET_PDEATHSIG, and a look at getppid afterwards, as the
  supervisor may have died before the call.
* A child talks only to peers that are running (`ipc.member`).
* Signal handlers only leave a note.
* Exit statuses: 0 asked to stop; 3 boot fault (`boots` says what becomes of it); 75 a successor
  that finds the disk full (retried for as long as that lasts); anything else is a crash.
* A child that can't boot leaves its reason in shared memory, and the supervisor says it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import select
import signal
import sys
from collections.abc import Callable

from shmbroker import clock, logs, signs
from shmbroker.errors import Fault, plain
from shmbroker.ipc.member import BACKLOG_RETRY_S, FamilyMember
from shmbroker.ipc.peer import Peer
from shmbroker.ipc.slots import CLEANER, PAGES, TIER, Slot
from shmbroker.log.faults import DiskFullFault
from shmbroker.log.meta_properties import FIX_RIGHTS
from shmbroker.processes import output
from shmbroker.processes.shared_core import SharedCore, shared_core
from shmbroker.processes.shared_resources import SharedResources
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.shm.counters import (
    INCARNATION,
    STARTED_MS,
    STATE,
    STATE_STARTING,
    WORK,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

    from shmbroker.ipc.operation_adapter import Executor

EXIT_BOOT_FAULT = 3
EXIT_TRY_AGAIN = 75

REST_S = 0.5
"""How long a helper that has nothing to do sleeps, at most."""

PR_SET_PDEATHSIG = 1

OOM_SCORE_ADJ_CHILD = 100
OOM_SCORE_ADJ = dict.fromkeys((CLEANER, TIER, *PAGES), 300)
"""Thousandths of the memory that there is: the kernel counts a process as that much larger."""

logger = logging.getLogger(__name__)


class Child(FamilyMember):
    """A member that is a process, with a title and signals. Sub-classes are the roles' mains."""

    def __init__(self, shared: SharedResources, slot: Slot, *peers: Peer) -> None:
        """peers: those that it has besides the family's."""
        super().__init__(
            slot.index,
            shared.counters,
            shared.doorbells[slot.index],
            shared.doorbells[0],
            [*shared.peers_of(slot.index), *peers],
        )
        self.shared = shared
        self.slot = slot
        self.must_stop = False
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signs.attach(lambda: self.sign(clock.monotonic()), self._store_work)
        self.follows: BrokerConfig | None = None
        """The settings of a role that has some."""
        self.shared_core: SharedCore | None = None
        """What is told when this sleeps and wakes, if there is one."""

    def on_announcement(self) -> None:
        """Levels of loggers may have changed, settings may have been read again."""
        self.shared.log_levels.apply()
        text = self.shared.settings.news()
        if text is not None and self.follows is not None:
            self.follows.adopt(BrokerConfig(json.loads(text)))
            self.on_settings()

    def on_settings(self) -> None:
        """Settings have other values: take over what was made of those before."""

    def _store_work(self, word: int) -> None:
        self.words[self.counters.at(self.slot.index, WORK)] = word

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.must_stop = True

    def say_running(self) -> None:
        """Say that it runs, as a member does; how long the boot took is shown."""
        started_ms = self.words[self.counters.at(self.slot.index, STARTED_MS)]
        self.tally.set("boot_ms", clock.now_ms() - started_ms)
        super().say_running()

    def on_peer_lost(self, peer: Peer) -> None:
        """The process behind `peer` is dead: fail what is pending with it."""

    def on_peer_running(self, peer: Peer) -> None:
        """The process behind `peer` may be sent to."""

    def run(self) -> None:
        """The role's main loop; returns when it was asked to stop and is done."""
        raise NotImplementedError


class SleepingChild(Child):
    """A child that waits on its doorbell alone: its work comes from rings and from timers."""

    def __init__(self, shared: SharedResources, slot: Slot, *peers: Peer) -> None:
        super().__init__(shared, slot, *peers)
        self.epoll = select.epoll()
        self.epoll.register(self.doorbell.eventfd, select.EPOLLIN | select.EPOLLET)

    def sleep(self, timeout: float) -> list[tuple[int, int]]:
        """Sleep until the doorbell rings, a signal comes or `timeout` seconds are over: what the
        poller has returned."""
        doorbell = self.doorbell
        events: list[tuple[int, int]] = []
        doorbell.say_sleeping()
        if self.has_news():
            doorbell.awake()
            return events
        core = self.shared_core
        if core is not None:
            core.sleeps()
        if not self.must_stop:
            events = self.epoll.poll(timeout)
        doorbell.awake()
        if core is not None:
            core.woke()
        return events


class Helper(SleepingChild):
    """A child that answers what its peers ask. `step` is what else it does in a turn."""

    executor: Executor

    def step(self, now: float) -> bool:
        """Do what is due at `now`, monotonic seconds; True if there was anything."""
        return False

    def run(self) -> None:
        """Serve until asked to stop."""
        self.say_running()
        while not self.must_stop:
            self.look_at_announcements(self)
            had_work = self.step(clock.monotonic())
            had_work |= self.executor.take(self.peers)
            self.publish()
            logs.flush()
            self.sign(clock.monotonic())
            if not had_work:
                self.sleep(BACKLOG_RETRY_S if self.has_backlog() else REST_S)
        self.say_stopping()

    def on_peer_lost(self, peer: Peer) -> None:
        """Forget what the dead have asked for in parts."""
        self.executor.drop_parts(peer.slot)


def run_child(
    shared: SharedResources,
    slot: Slot,
    supervisor_pid: int,
    begin: Callable[[], None],
    make: Callable[[SharedResources, Slot], Child],
) -> None:
    """The whole life of a forked child; never returns, whatever fails: what is above it on the
    stack is the supervisor's. begin: drops what is the supervisor's alone."""
    status = 1
    child = None
    try:
        begin()
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor_pid:
            sys.exit(0)
        set_title(slot.role, slot.number)
        shared.log_levels.apply()
        go_before_supervisor(slot.role)
        words = shared.counters.words
        words[shared.counters.at(slot.index, WORK)] = signs.NOTHING
        words[shared.counters.at(slot.index, STATE)] = STATE_STARTING
        child = make(shared, slot)
        if child.follows is not None:
            child.shared_core = shared_core(slot, shared, child.follows)
        gc.collect()
        gc.freeze()
        # A cycle that has lived for long waits for 200 rounds of the youngest: half an hour or so.
        gc.set_threshold(50_000, 20, 10)
        child.run()
        status = 0
    except Fault as fault:
        if child is not None and child.has_served:
            logger.error("%s", fault)
        else:
            shared.leave_last_words(slot.index, _why(fault))
            is_successor = shared.counters.words[shared.counters.at(slot.index, INCARNATION)] > 1
            can_wait = is_successor and isinstance(fault, DiskFullFault)
            status = EXIT_TRY_AGAIN if can_wait else EXIT_BOOT_FAULT
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException as failure:
        logger.exception("%s failed", slot.title)
        if child is None or not child.has_served:
            shared.leave_last_words(slot.index, f"{type(failure).__name__}: {failure}")
        status = 1
    finally:
        try:
            logging.shutdown()
            output.flush()
        finally:
            os._exit(status)


def _why(fault: Fault) -> str:
    """A fault's words, and what to do where a right is missing: to the disk itself, whichever file
    it was."""
    words = plain(str(fault))
    if isinstance(fault.__cause__, PermissionError) and FIX_RIGHTS not in words:
        words += f"; {FIX_RIGHTS}"
    return words


def go_before_supervisor(role: str) -> None:
    """Where memory runs out, the kernel shall end a child, which is replaced, and not the one whose
    end is everybody's; best of all a helper. As much above the supervisor as OOM_SCORE_ADJ says."""
    try:
        with open("/proc/self/oom_score_adj", "r+") as file:
            inherited = int(file.read())
            file.seek(0)
            file.write(str(min(1000, inherited + OOM_SCORE_ADJ.get(role, OOM_SCORE_ADJ_CHILD))))
    except (OSError, ValueError):
        pass  # a /proc that can't be written: then it goes by size alone


def set_title(role: str, number: int | None = None) -> None:
    """Role and number as `ps`, `top` and the logs show them; None: there is one of the role."""
    import setproctitle

    setproctitle.setproctitle(
        f"shmbroker: {role}" if number is None else f"shmbroker: {role}-{number}"
    )
    logs.say_who(role, number)
