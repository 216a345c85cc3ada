"""The children of a family: which process is in which slot, how one is forked, how its end is seen.

Rules of this file:
* Nothing else forks. A child whose end nobody would see does not live on.
* All here is the supervisor's; in the child run `_let_go` alone and `child.run_child`, which never
  returns.
* What is known of a child comes from its pidfd and its words in shared memory. It is not asked.
* What follows from a death is decided elsewhere: `deaths`, `boots`, `successors`.
"""

from __future__ import annotations

import gc
import os
import select
import signal
from functools import partial
from typing import NamedTuple

from shmbroker import clock
from shmbroker.errors import ConfigFault
from shmbroker.ipc.slots import CLEANER, CONTROLLER, IO_WORKER, NETWORK_WORKER, PAGES, TIER
from shmbroker.processes import boots, output
from shmbroker.processes.acknowledgements import Acknowledgements
from shmbroker.processes.child import run_child
from shmbroker.processes.deaths import Tries
from shmbroker.shm.counters import (
    ANNOUNCEMENTS_WORD,
    CLEANER_WANTED,
    LIVENESS_NS,
    PID,
    STARTED_MS,
    STATE,
    STATE_NONE,
    STATE_RUNNING,
    STATE_STARTING,
    STATE_UNABLE,
    WORK,
)
from shmbroker.wire import codec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.ipc.slots import Slot
    from shmbroker.processes.roles import Roles
    from shmbroker.processes.shared_resources import SharedResources

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What the supervisor has handlers for."""
READ_AT_BOOT = (
    ("BeginTransactionRecord", 0),
    ("EndTransactionRecord", 0),
    ("FeatureLevelRecord", 0),
    ("ConfigRecord", 0),
    ("RegisterBrokerRecord", 3),
    ("BrokerRegistrationChangeRecord", 0),
    ("ProducerIdsRecord", 0),
    ("TopicRecord", 0),
    ("PartitionRecord", 2),
)
"""Metadata records that every child reads: their decoders are compiled once, before the fork."""


class Running:
    """A slot's process as the supervisor sees it."""

    __slots__ = ("pid", "pidfd", "slot", "started", "tries", "why")

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.pid = 0
        self.pidfd = -1
        self.started = 0.0
        self.tries = Tries()
        self.why = ""
        """Why it can't boot; "" if it can, or nothing else is known."""


class Death(NamedTuple):
    """A child's end. Its slot is empty by now."""

    running: Running
    pid: int
    code: int
    """The exit status; below 0 the signal that ended it."""
    has_served: bool
    by_kernel: bool = False
    """Whether the kernel ended it as memory ran out."""

    @property
    def how(self) -> str:
        """The end in words."""
        if self.by_kernel:
            return f"signal {-self.code} (the kernel's OOM killer: memory ran out)"
        return f"signal {-self.code}" if self.code < 0 else f"status {self.code}"


class Children:
    """The children, by slot, that were forked at least once. poller: it has the pidfd of each that
    lives."""

    def __init__(self, shared: SharedResources, roles: Roles, poller: select.poll) -> None:
        self.shared = shared
        self._roles = roles
        self._poller = poller
        self._words = shared.counters.words
        self._pid = os.getpid()
        self.running: dict[int, Running] = {}

    # ── forking ─────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Fork all that a family needs, controllers first. ConfigFault: the kernel refuses one."""
        Acknowledgements(self.shared).start([slot.index for slot in self.shared.slots[1:]])
        for role in (CONTROLLER, IO_WORKER, NETWORK_WORKER):
            for slot in self.shared.of_role(role):
                try:
                    self.fork(self.add(slot))
                except OSError as fault:
                    raise ConfigFault(
                        f"{slot.title} can't be started: {fault.strerror}; allow more processes "
                        "(ulimit -u; TasksMax= in a unit; --pids-limit for a container)."
                    ) from fault
            if role == CONTROLLER:
                # While it boots, and before all the others are forked.
                for name, version in READ_AT_BOOT:
                    codec.decoder(name, version)

    def add(self, slot: Slot) -> Running:
        """Know of a slot, whose process is to be forked."""
        running = self.running[slot.index] = Running(slot)
        return running

    def wanted_helpers(self) -> list[Slot]:
        """Slots of the tier process and of who shows metrics or the console; the cleaner's when an
        I/O worker wants it. Only those that nothing was forked for."""
        shared = self.shared
        wanted = [slot for role in (TIER, *PAGES) for slot in shared.of_role(role)]
        if any(self._word(slot, CLEANER_WANTED) for slot in shared.of_role(IO_WORKER)):
            wanted += shared.of_role(CLEANER)
        return [slot for slot in wanted if slot.index not in self.running]

    def fork(self, running: Running) -> None:
        """Fork a slot's process. OSError: the kernel has none, or no memory for it."""
        slot = running.slot
        counters = self.shared.counters
        self._words[counters.at(slot.index, STARTED_MS)] = clock.now_ms()
        make = self._roles.maker(slot.role)
        # What was imported for that is frozen: a collection in a child would write to pages that
        # all of them share.
        gc.freeze()
        output.flush()
        # A signal between the fork and the child's own handlers would be noted by a copy of ours.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                run_child(self.shared, slot, self._pid, partial(self._let_go, slot), make)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        try:
            running.pidfd = os.pidfd_open(pid)
        except OSError:  # nobody would see its end, and another one would be forked beside it
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._words[counters.at(slot.index, PID)] = pid
        running.pid = pid
        running.started = clock.monotonic()
        self._poller.register(running.pidfd, select.POLLIN)

    def _let_go(self, slot: Slot) -> None:
        """Drop, in the child, what is the supervisor's alone."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        self._roles.sockets.keep_for(slot.role)

    # ── what is known of them ───────────────────────────────────────────────────────────────────

    def alive(self) -> list[Running]:
        return [running for running in self.running.values() if running.pid]

    def unable(self) -> list[Running]:
        """The children that can't boot."""
        return [running for running in self.running.values() if running.why]

    def able(self) -> dict[str, list[bool]]:
        """Tell of each process that a family needs whether it can boot, or nothing else is known
        yet; by role."""
        unable = {running.slot.index for running in self.unable()}
        return {
            role: [slot.index not in unable for slot in self.shared.of_role(role)]
            for role in boots.NEEDED
        }

    def are_all_up(self) -> bool:
        """Whether all run that can boot."""
        return all(
            running.why or self._word(running.slot, STATE) == STATE_RUNNING
            for running in self.running.values()
        )

    def lacking(self) -> str:
        """The processes that can't boot and why, as the end of a sentence."""
        return "".join(f"; without {each.slot.title}: {each.why}" for each in self.unable())

    def signed(self, running: Running) -> float:
        """The time of a child's last sign of life; its fork is the first."""
        return max(running.started, self._word(running.slot, LIVENESS_NS) / 1e9)

    def work_of(self, slot: Slot) -> int:
        """The word of `signs` that a slot has."""
        return self._word(slot, WORK)

    def _word(self, slot: Slot, word: int) -> int:
        return self._words[self.shared.counters.at(slot.index, word)]

    # ── what becomes of them ────────────────────────────────────────────────────────────────────

    def bury(self, pidfd: int) -> Death:
        """Reap the child whose end this pidfd tells."""
        running = next(running for running in self.running.values() if running.pidfd == pidfd)
        _, status = os.waitpid(running.pid, 0)
        self._poller.unregister(pidfd)
        os.close(pidfd)
        slot = running.slot
        pid, running.pid, running.pidfd = running.pid, 0, -1
        state = self._word(slot, STATE)
        self._words[self.shared.counters.at(slot.index, STATE)] = STATE_NONE
        self._words[self.shared.counters.at(slot.index, PID)] = 0
        has_served = state not in (STATE_NONE, STATE_STARTING, STATE_UNABLE)
        return Death(running, pid, os.waitstatus_to_exitcode(status), has_served)

    def mark_unable(self, running: Running) -> None:
        """Show everybody that one can't boot, until its next try."""
        self._words[self.shared.counters.at(running.slot.index, STATE)] = STATE_UNABLE

    def take_recovered(self) -> list[Slot]:
        """Take the slots that run and could not boot before; each is told once."""
        recovered = [
            running for running in self.unable() if self._word(running.slot, STATE) == STATE_RUNNING
        ]
        for running in recovered:
            running.why = ""
        return [running.slot for running in recovered]

    def announce(self) -> None:
        """Have every process look at what the supervisor has stored for all."""
        self._words[ANNOUNCEMENTS_WORD] += 1
        for doorbell in self.shared.doorbells[1:]:
            doorbell.ring()

    def tell_to_stop(self, role: str) -> None:
        """SIGTERM to all that live of a role."""
        for running in self.alive():
            if running.slot.role == role:
                os.kill(running.pid, signal.SIGTERM)
                self.shared.doorbells[running.slot.index].ring()

    def kill(self, pid: int) -> None:
        """End one at once: what follows is what follows any death."""
        os.kill(pid, signal.SIGKILL)

    def kill_all(self) -> None:
        for running in self.alive():
            self.kill(running.pid)
