"""The supervisor: makes what is shared, forks the family, watches it, ends it.

Rules of this file:
* One thread, no data. It never waits for a child in a way that another child's death can't end.
* A child that dies is followed by another one in the same slot, in this order: reap; state NONE and
  the next incarnation into the counters, then the control generation, and everyone's doorbell; when
  every living process has acknowledged, fork. A living process that does not acknowledge within
  ACKNOWLEDGE_S hangs and is killed too, or later if it gives signs of life: it works.
* Once a second it looks whether all children give signs of life, also while they stop (`watchdog`).
* Nothing in the data directory changes before everything was judged that can refuse a start
  (`data_directory`).
* A child that can't boot is said, with its reason, and tried again more and more seldom, once a
  minute in the end, while the others serve. The family ends with EXIT_CHILD_BOOT only where too few
  are left (`boots`): in a new directory one is missing; no majority of the controllers, or nobody
  of a role, can boot; once it has served, when nobody of a role is left. READY is told when all the
  others run. For room on the disk a successor waits as ever (EXIT_TRY_AGAIN).
* The cleaner is forked when an I/O worker wants it, the tier process and the ones that show metrics
  and the console once the family serves. One that can't boot ends nothing.
* SIGHUP has the settings read again: `settings.reload` says what holds at once.
* If the supervisor dies, every child does (PR_SET_PDEATHSIG). The lock on the data directory is a
  flock whose descriptor the children keep: no second family while one writer lives.

Exit statuses: 0 after SIGTERM or SIGINT; 1 a child did not stop cleanly; 2 a configuration that
can't be used; 3 the data directory is in use; 4 a child can't boot; 75 the data directory is in use
by what a killed family left, which has not ended yet.
"""

from __future__ import annotations

import fcntl
import gc
import json
import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shmbroker import __version__, clock, logs
from shmbroker.controller.raft.voter_links import socket_name
from shmbroker.errors import ConfigFault, Fault
from shmbroker.gateway.event_loop import Listener
from shmbroker.ipc import control_socket
from shmbroker.observe.about import About
from shmbroker.processes import (
    boots,
    data_access,
    data_directory,
    listening,
    output,
    sd_notify,
)
from shmbroker.processes.child import EXIT_BOOT_FAULT, EXIT_TRY_AGAIN, run_child, set_title
from shmbroker.processes.limits import (
    keep_secrets_out_of_cores,
    network_workers,
    open_files_needed,
    raise_limits,
)
from shmbroker.processes.sd_notify import notify
from shmbroker.processes.shared_resources import (
    CLEANER,
    CONSOLE,
    CONTROLLER,
    IO_WORKER,
    METRICS,
    NETWORK_WORKER,
    PAGES,
    TIER,
    SharedResources,
    Slot,
)
from shmbroker.processes.stopping import MAY_BE_KILLED, Stop, waited_for
from shmbroker.processes.watchdog import LOOK_S, Watchdog, Watched, standing_of
from shmbroker.settings import reload
from shmbroker.settings.table import page_address
from shmbroker.shm.counters import (
    CLEANER_WANTED,
    CONTROL_GENERATION_WORD,
    INCARNATION,
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
from shmbroker.shm.words import require_total_store_order
from shmbroker.tier.object_store import check_store, store_url
from shmbroker.wire import codec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

    from shmbroker.settings.broker_config import BrokerConfig

logger = logging.getLogger(__name__)

EXIT_UNCLEAN = 1
EXIT_CONFIG = 2
EXIT_IN_USE = 3
EXIT_CHILD_BOOT = 4
EXIT_IN_USE_YET = 75
"""Another try may help (EX_TEMPFAIL of sysexits.h)."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

LOCK_WAIT_S = 5.0
"""How long the lock may outlive a dead supervisor: its children end some milliseconds later."""
LOCK_FD_MIN = 512
"""A dying process closes its descriptors in their order. Behind the sockets and the locks of the
log directories, so that whoever gets this lock finds those free."""
ACKNOWLEDGE_S = 5.0
ACKNOWLEDGE_BUSY_S = 60.0
"""For a child that gives signs of life: it reads gigabytes at its boot, say, and would begin
again."""
FORK_RETRY_S = 5.0
BACKOFF_S = (0.0, 0.0, 0.1, 0.5, 1.0, 2.0)
"""Before the n-th restart of a slot in a row; a child that lived STEADY_S starts a new row."""
STEADY_S = 3.0
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
PAGE_BACKLOG = 16
START_EXTENSION_S = 60
"""How much more time for a start that takes half of that the service manager is asked for, again
and again."""
LOCK_FILE = ".supervisor.lock"


class InUse(ConfigFault):
    """Another family works on the data directory."""


class InUseYet(InUse):
    """The family is gone but for processes that the kernel does not let end, for their disk."""


class Running:
    """A slot's process as the supervisor sees it."""

    __slots__ = ("crashes", "failed_boots", "pid", "pidfd", "restarts", "slot", "started", "why")

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.pid = 0
        self.pidfd = -1
        self.started = 0.0
        self.restarts = 0
        self.crashes = 0
        """Before it served, in a row."""
        self.failed_boots = 0
        """Tries in a row that ended as it can't boot."""
        self.why = ""
        """Why it can't boot; "" if it can, or nothing else is known."""


class Supervisor:
    """`run` is the whole life of a family; `on_ready` is called once when it serves."""

    def __init__(
        self,
        config: BrokerConfig,
        directory: Path,
        began: float,
        read_again: Callable[[], BrokerConfig] | None = None,
    ) -> None:
        """`read_again`: what SIGHUP asks for, the settings as they are written now."""
        self.config = config
        self._read_again = read_again
        self._must_reload = False
        self.began = began
        self.data_directory = directory.absolute()
        self.listeners: list[Listener] = []
        self.running: dict[int, Running] = {}
        self.to_fork: dict[int, tuple[float, float]] = {}
        """By slot: not before then; when those who have not acknowledged are looked at."""
        self.patience_ends: dict[int, float] = {}
        """By slot: when they are killed though they give signs of life."""
        self.stopping: Stop | None = None
        self.is_ready = False
        self.exit_status = 0
        self.watchdog_s = 0.0
        """How often the service manager wants to hear that all is well; 0 is never."""
        self.page_sockets: dict[str, socket.socket] = {}
        """By role: where metrics and the console are shown, if they are."""
        self._signals: list[int] = []
        self._status = ""

    @property
    def is_stopping(self) -> bool:
        return self.stopping is not None

    # ── boot ────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> int:
        """Boot, watch, stop; returns the exit status."""
        require_total_store_order()
        if not __debug__:
            raise ConfigFault(
                "Python runs with -O, which leaves out the checks that end a broken process: "
                "start without it (and without PYTHONOPTIMIZE)."
            )
        self._look_at_limits()
        config = self.config
        plan = self._prepare_directory()
        config.nodes, self.cluster_id, self.is_new = plan.nodes, plan.cluster_id, plan.is_new
        if config.is_tier_enabled:
            check_store(store_url(config["shmbroker.tier.store"], str(self.data_directory)))
        self._listen()
        self.shared = SharedResources(
            str(self.data_directory),
            network_workers(config["shmbroker.network.workers"]),
            config.nodes,
            plan.controllers,
            config["shmbroker.ring.data.bytes"],
            config["shmbroker.ring.control.bytes"],
            int(config.is_tier_enabled),
            self.page_sockets,
            config["quota.window.num"],
        )
        self.shared.tell(self._about())
        self.apply_log_settings(config)
        self._write_directory(plan)
        self.words = self.shared.counters.words
        self.pid = os.getpid()
        set_title("supervisor")
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self.poller = select.poll()
        self.poller.register(wake_read, select.POLLIN)
        self.wake_read = wake_read
        self.doorbell_fd = self.shared.doorbells[0].eventfd
        self.poller.register(self.doorbell_fd, select.POLLIN)
        words = self.words
        counters = self.shared.counters
        children = self.shared.slots[1:]
        for slot in children:
            words[counters.at(slot.index, INCARNATION)] = 1
        for slot in children:
            for other in children:
                words[counters.acknowledgement(slot.index, other.index)] = 1
        for role in (CONTROLLER, IO_WORKER, NETWORK_WORKER):
            for slot in self.shared.of_role(role):
                self.running[slot.index] = Running(slot)
                try:
                    self._fork(self.running[slot.index])
                except OSError as fault:
                    raise ConfigFault(
                        f"{slot.title} can't be started: {fault.strerror}; allow more processes "
                        "(ulimit -u; TasksMax= in a unit; --pids-limit for a container)."
                    ) from fault
            if role == CONTROLLER:
                # While it boots, and before all the others are forked.
                for name, version in READ_AT_BOOT:
                    codec.decoder(name, version)
        while True:
            if self._turn():
                return self.exit_status

    def _about(self) -> About:
        shared = self.shared
        return About(
            __version__,
            self.cluster_id,
            str(self.data_directory),
            clock.now_ms(),
            os.getpid(),
            shared.places,
            shared.ring_places,
            dict(self.config.nodes),
            self.ports,
            self.config.static.get("min.insync.replicas"),
        )

    def apply_log_settings(self, config: BrokerConfig) -> None:
        """Tell every process to log as these settings say (`shmbroker.logger.*`), and to look for
        others that were read again. What clients have changed since goes before them."""
        levels = logs.parse_levels(config["shmbroker.logger.levels"])
        self.shared.log_levels.configure(levels, config["shmbroker.logger.format"])
        self.shared.log_levels.apply()
        self.shared.counters.words[CONTROL_GENERATION_WORD] += 1
        self._ring_all()

    def _look_at_limits(self) -> None:
        """Before anything is opened."""
        config = self.config
        self.watchdog = Watchdog(
            config["shmbroker.watchdog.warn.ms"], config["shmbroker.watchdog.kill.ms"], standing_of
        )
        open_files = open_files_needed(
            network_workers(config["shmbroker.network.workers"]),
            config["shmbroker.io.workers"],
            config["shmbroker.controllers"],
        )
        raise_limits(open_files, config["log.segment.bytes"])
        if config.has_secrets:
            keep_secrets_out_of_cores()
        self.watchdog_s = sd_notify.watchdog_s()
        complaint = sd_notify.watchdog_complaint(
            self.watchdog_s, config["shmbroker.watchdog.kill.ms"]
        )
        if complaint:
            logger.warning("%s", complaint)

    def _prepare_directory(self) -> data_directory.DirectoryPlan:
        """Make and lock the data directory, and judge what is in it: nothing else is written."""
        config, directory = self.config, self.data_directory
        data_access.begin(config["shmbroker.data.access"])
        places = config.places(str(directory))
        data_directory.refuse_log_directory(str(directory), places)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock(directory)
            return data_directory.judge(
                data_directory.Wanted(
                    places,
                    config["shmbroker.node.id"],
                    "shmbroker.node.id" in config.static,
                    config["shmbroker.controllers"],
                ),
                [data_directory.find(place) for place in places],
                data_directory.find_others(str(directory), places),
            )
        except OSError as fault:
            raise _unusable(directory, fault) from fault

    def _write_directory(self, plan: data_directory.DirectoryPlan) -> None:
        """Carry out the plan: the last that can refuse the start has agreed."""
        try:
            data_directory.carry_out(plan)
            data_access.settle(
                self.config["shmbroker.data.access"],
                str(self.data_directory),
                [directory for directory in plan.nodes.values() if os.path.isdir(directory)],
            )
        except OSError as fault:
            raise _unusable(self.data_directory, fault) from fault

    def _lock(self, directory: Path) -> None:
        """Take the directory's lock and write our pid into it."""
        lock_fd = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
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
        self.lock_fd = fcntl.fcntl(lock_fd, fcntl.F_DUPFD_CLOEXEC, LOCK_FD_MIN)
        os.close(lock_fd)

    def _listen(self) -> None:
        """Bind every listener of every broker, in a row from its configured port; 0 takes free
        ones."""
        config = self.config
        self.listeners = listening.open_all(config)
        self.ports: dict[int, tuple[str, int]] = {}
        for listener in self.listeners:
            self.ports.setdefault(listener.broker_id, listener.told())
        try:
            mode = data_access.socket_mode(config["shmbroker.data.access"])
            control = _bind_control_socket(self.data_directory, mode)
        except OSError as fault:
            raise _unusable(self.data_directory, fault) from fault
        self.listeners.append(Listener(control, -1, True))
        if config["shmbroker.metrics"] and find_spec("prometheus_client") is None:
            raise ConfigFault(
                "--metrics needs the package prometheus_client: install it (pip install "
                "prometheus_client), or start without --metrics."
            )
        for role in PAGES:
            if config[f"shmbroker.{role}"]:
                host, port = page_address(config[f"shmbroker.{role}"])
                self.page_sockets[role] = listening.listen_on(host, port, PAGE_BACKLOG, f"--{role}")

    # ── forking ─────────────────────────────────────────────────────────────────────────────────

    def _fork(self, running: Running) -> None:
        slot = running.slot
        counters = self.shared.counters
        self.words[counters.at(slot.index, STARTED_MS)] = clock.now_ms()
        make = self._maker(slot.role)
        # What the role needs is imported here, once for all that will ever be forked, and frozen:
        # a collection in a child would write to pages that all of them share.
        gc.freeze()
        output.flush()
        # A signal between the fork and the child's own handlers would be noted by a copy of ours.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                self._become(slot, make)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        try:
            running.pidfd = os.pidfd_open(pid)
        except OSError:  # nobody would see its end, and another one would be forked beside it
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self.words[counters.at(slot.index, PID)] = pid
        running.pid = pid
        running.started = clock.monotonic()
        self.poller.register(running.pidfd, select.POLLIN)

    def _become(self, slot: Slot, make: Callable[[SharedResources, Slot], Any]) -> None:
        """In the child: drop what is the supervisor's alone, then be the role. Never returns."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        if slot.role not in (NETWORK_WORKER, IO_WORKER):
            for listener in self.listeners:
                listener.socket.close()
        for role, page_socket in self.page_sockets.items():
            if role != slot.role:
                page_socket.close()
        run_child(self.shared, slot, self.pid, make)

    def _maker(self, role: str) -> Callable[[SharedResources, Slot], Any]:
        config, directory = self.config, self.data_directory
        if role == NETWORK_WORKER:
            from shmbroker.processes.network_worker import NetworkWorker

            return lambda shared, slot: NetworkWorker(
                shared, slot, config, self.cluster_id, self.listeners
            )
        if role == IO_WORKER:
            from shmbroker.processes.io_worker import IoWorker

            return lambda shared, slot: IoWorker(
                shared, slot, config, directory, self.cluster_id, self.ports, self.listeners
            )
        if role == CLEANER:
            from shmbroker.processes.cleaner import Cleaner

            return Cleaner
        if role == TIER:
            from shmbroker.processes.tier import Tier

            return lambda shared, slot: Tier(shared, slot, config, directory, self.cluster_id)
        if role == METRICS:
            return self._make_metrics
        if role == CONSOLE:
            return self._make_console
        from shmbroker.processes.controller import ControllerProcess

        return lambda shared, slot: ControllerProcess(
            shared, slot, config, directory, self.cluster_id
        )

    def _make_metrics(self, shared: SharedResources, slot: Slot) -> Any:
        # In the child: what it needs is no part of any other process.
        from shmbroker.processes.metrics import MetricsProcess

        return MetricsProcess(shared, slot, self.page_sockets[METRICS])

    def _make_console(self, shared: SharedResources, slot: Slot) -> Any:
        from shmbroker.processes.console import ConsoleProcess

        return ConsoleProcess(shared, slot, self.config, self.page_sockets[CONSOLE])

    # ── watching ────────────────────────────────────────────────────────────────────────────────

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)

    def _turn(self) -> bool:
        """Wait for a death, a signal or a doorbell, and act on it; True when all is over."""
        for fd, _ in self.poller.poll(self._timeout_ms()):
            if fd == self.wake_read:
                os.read(fd, 512)
            elif fd == self.doorbell_fd:
                os.eventfd_read(fd)
                self._on_doorbell()
            else:
                self._on_death(fd)
        self._watch()
        while self._signals:
            number = self._signals.pop(0)
            if number == signal.SIGHUP:
                self._must_reload = True
            elif not self.is_stopping:
                logger.info("stopping")
                self._stop(0)
            elif number == signal.SIGINT:
                self._kill_all()
        if self._must_reload and self.is_ready and not self.is_stopping:
            self._must_reload = False
            self._reload()
        if self.to_fork:
            self._fork_successors()
        return self.stopping is not None and self._go_on_stopping(self.stopping)

    def _reload(self) -> None:
        """Read the settings again; what may change while the family runs holds at once."""
        sd_notify.reloading()
        try:
            if self._read_again is not None:
                found = reload.judge(self.config, self._read_again())
                take_tls = listening.tls_again(found.config, self.listeners)
                self._take_over(found)
                take_tls()
                logger.info("%s", found)
        except Fault as fault:
            logger.error("the settings stay as they are: %s", fault)
        notify("READY=1")

    def _take_over(self, found: reload.Reload) -> None:
        """Have every process go by the settings that were read."""
        try:
            self.shared.settings.post(json.dumps(found.config.given))
        except ValueError as fault:
            raise ConfigFault(f"They take too much room: {fault}.") from fault
        self.config.adopt(found.config)
        self.watchdog.set_limits(
            self.config["shmbroker.watchdog.warn.ms"], self.config["shmbroker.watchdog.kill.ms"]
        )
        self.apply_log_settings(self.config)  # which tells everybody

    def _timeout_ms(self) -> float:
        """Until something is due by its time alone; everything else rings."""
        deadlines = [
            max(dates) if self._late(index) else dates[0] for index, dates in self.to_fork.items()
        ]
        deadlines.append(self.watchdog.next_look)
        if self.stopping is not None:
            deadlines.append(self.stopping.rest())
        return max(0.0, min(deadlines) - clock.monotonic()) * 1000 + 1

    def _watch(self) -> None:
        """Name who hangs, and kill it: what follows is what follows any death."""
        now = clock.monotonic()
        if now < self.watchdog.next_look:
            return
        children = [
            Watched(
                running.slot.title, running.pid, self._signed(running), self._work_of(running.slot)
            )
            for running in self.running.values()
            if running.pid
        ]
        for finding in self.watchdog.look(now, children):
            level = logging.ERROR if finding.is_kill else logging.WARNING
            logger.log(level, "%s", finding.line, extra=logs.fields(child_pid=finding.pid))
            if finding.is_kill:
                os.kill(finding.pid, signal.SIGKILL)
        if self.watchdog.is_well:
            self._feed_service_manager()

    def _feed_service_manager(self) -> None:
        """Everybody gives signs of life; what takes long at a start is no fault then, either."""
        began_s = clock.monotonic() - self.began
        if not self.is_ready and not self.is_stopping and began_s > START_EXTENSION_S / 2:
            notify(f"EXTEND_TIMEOUT_USEC={START_EXTENSION_S * 1_000_000}")
        if self.watchdog_s:
            notify("WATCHDOG=1")

    def _signed(self, running: Running) -> float:
        """Its last sign of life; its fork is the first."""
        liveness_ns = self.words[self.shared.counters.at(running.slot.index, LIVENESS_NS)]
        return max(running.started, liveness_ns / 1e9)

    def _work_of(self, slot: Slot) -> int:
        return self.words[self.shared.counters.at(slot.index, WORK)]

    def _on_doorbell(self) -> None:
        """Some child changed its state, acknowledged a death, wants the cleaner, or has stored
        levels of loggers."""
        self.shared.log_levels.apply()
        words = self.words
        at = self.shared.counters.at
        for running in self.running.values():
            if running.why and words[at(running.slot.index, STATE)] == STATE_RUNNING:
                running.why = ""
                logger.warning("%s could boot now", running.slot.title)
        words[CONTROL_GENERATION_WORD] += 1
        self._ring_all()
        self._maybe_say_ready()
        self._maybe_fork_helpers()

    def _maybe_say_ready(self) -> None:
        """The family serves when all run that can boot."""
        words = self.words
        at = self.shared.counters.at
        if self.is_stopping or not all(
            running.why or words[at(running.slot.index, STATE)] == STATE_RUNNING
            for running in self.running.values()
        ):
            return
        if not self.is_ready:
            self.is_ready = True
            self._say_ready()
        self._say_status(f"ready on {self._addresses()}{self._lacking()}")

    def _maybe_fork_helpers(self) -> None:
        """The tier process, and who shows metrics or the console, once the family serves; the
        cleaner when an I/O worker wants it."""
        if self.is_stopping or not self.is_ready:
            return
        at = self.shared.counters.at
        wanted = [slot for role in (TIER, *PAGES) for slot in self.shared.of_role(role)]
        if any(self.words[at(io.index, CLEANER_WANTED)] for io in self.shared.of_role(IO_WORKER)):
            wanted += self.shared.of_role(CLEANER)
        for slot in wanted:
            if slot.index not in self.running:
                self.running[slot.index] = Running(slot)
                self._fork_or_later(self.running[slot.index])

    def _fork_or_later(self, running: Running) -> None:
        """Fork, and again later where the kernel has no process or no memory for it."""
        try:
            self._fork(running)
        except OSError as fault:
            index, now = running.slot.index, clock.monotonic()
            logger.error("%s can't be started: %s; tried again", running.slot.title, fault.strerror)
            self.to_fork[index] = (now + FORK_RETRY_S, now)

    def _ring_all(self) -> None:
        for doorbell in self.shared.doorbells[1:]:
            doorbell.ring()

    def _addresses(self) -> str:
        unable = {
            r.slot.number for r in self.running.values() if r.why and r.slot.role == IO_WORKER
        }
        return ", ".join(
            listening.shown(listener)
            for listener in self.listeners
            if not listener.is_control and listener.broker_id not in unable
        )

    def _lacking(self) -> str:
        """Who can't boot and why, as the end of a sentence."""
        unable = [running for running in self.running.values() if running.why]
        return "".join(f"; without {each.slot.title}: {each.why}" for each in unable)

    def _say_status(self, status: str) -> None:
        """Tell systemd what is new."""
        if status != self._status:
            self._status = status
            notify(f"STATUS={status}")

    def _say_ready(self) -> None:
        took = clock.monotonic() - self.began
        started = datetime.now().astimezone().isoformat(timespec="seconds")
        output.say(
            f"shmbroker: ready on {self._addresses()} pid {self.pid}, "
            f"started {started} in {took:.2f} s, data in {self.data_directory}{self._lacking()}",
            sys.stdout,
        )
        notify("READY=1", f"MAINPID={self.pid}")

    def _on_death(self, pidfd: int) -> None:
        running = next(running for running in self.running.values() if running.pidfd == pidfd)
        _, status = os.waitpid(running.pid, 0)
        self.poller.unregister(pidfd)
        os.close(pidfd)
        slot = running.slot
        pid, running.pid, running.pidfd = running.pid, 0, -1
        words = self.words
        counters = self.shared.counters
        unserving = (STATE_NONE, STATE_STARTING, STATE_UNABLE)
        has_served = words[counters.at(slot.index, STATE)] not in unserving
        words[counters.at(slot.index, STATE)] = STATE_NONE
        words[counters.at(slot.index, PID)] = 0
        code = os.waitstatus_to_exitcode(status)
        if self.is_stopping:
            is_excused = running.why or slot.role in MAY_BE_KILLED
            if code not in (0, -signal.SIGTERM) and not is_excused:
                logger.error("%s did not stop cleanly: it ended with %s", slot.title, _how(code))
                self.exit_status = self.exit_status or EXIT_UNCLEAN
            return
        last_words = self.shared.last_words(slot.index)
        if has_served:
            running.crashes = running.failed_boots = 0
        elif code > 0 and code != EXIT_TRY_AGAIN and slot.role in boots.NEEDED:
            running.crashes += 1
        if (
            code == EXIT_BOOT_FAULT
            or running.crashes >= boots.CRASHES_MAX
            or (running.crashes and not self.is_ready)
        ):
            if not self._go_on_without(running, last_words or _how(code)):
                return
            delay = boots.retry_s(running.failed_boots)
        else:
            if code == EXIT_TRY_AGAIN:
                logger.error("%s waits: %s", slot.title, last_words)
            lived = clock.monotonic() - running.started
            running.restarts = 0 if lived > STEADY_S else running.restarts + 1
            delay = BACKOFF_S[min(running.restarts, len(BACKOFF_S) - 1)]
            when = f" in {delay} s" if delay else ""
            logger.warning(
                "%s (pid %d) ended with %s, starting another%s",
                *(slot.title, pid, _how(code), when),
                extra=logs.fields(child=slot.title, child_pid=pid, ended=_how(code)),
            )
            self._say_status(f"restarting {slot.title}")
        self._succeed(slot, delay)

    def _succeed(self, slot: Slot, delay: float) -> None:
        """Let everybody know of a death, and have another one forked after `delay`, from when on
        those that still have not acknowledged it have their time."""
        self.words[self.shared.counters.at(slot.index, INCARNATION)] += 1
        self.words[CONTROL_GENERATION_WORD] += 1
        self._ring_all()
        not_before = clock.monotonic() + delay
        self.to_fork[slot.index] = (not_before, not_before + ACKNOWLEDGE_S)

    def _go_on_without(self, running: Running, why: str) -> bool:
        """Say that a process can't boot, and go on without it, or stop where too few are left."""
        slot = running.slot
        running.why = why
        running.failed_boots += 1
        able = {
            role: [
                not (other := self.running.get(each.index)) or not other.why
                for each in self.shared.of_role(role)
            ]
            for role in boots.NEEDED
        }
        if slot.role in boots.NEEDED and not boots.can_go_on(able, self.is_ready, self.is_new):
            logger.error("%s can't boot: %s", slot.title, why)
            self._stop(EXIT_CHILD_BOOT)
            return False
        delay = boots.retry_s(running.failed_boots)
        logger.error("%s can't boot, next try in %.0f s: %s", slot.title, delay, why)
        self.words[self.shared.counters.at(slot.index, STATE)] = STATE_UNABLE
        if self.is_ready:
            self._say_status(f"ready on {self._addresses()}{self._lacking()}")
        else:
            self._say_status(f"starting{self._lacking()}")
            self._maybe_say_ready()
        return True

    def _fork_successors(self) -> None:
        """Fork those whose death every living process has acknowledged."""
        words = self.words
        counters = self.shared.counters
        now = clock.monotonic()
        for index, (not_before, deadline) in list(self.to_fork.items()):
            if now < not_before or self.is_stopping:
                continue
            late = self._late(index)
            if late and now < deadline:
                continue
            patience_ends = self.patience_ends.setdefault(index, now + ACKNOWLEDGE_BUSY_S)
            next_look = now + LOOK_S
            for other in late:
                signed = max(self._signed(other), self.watchdog.awake_since)
                if now - signed >= ACKNOWLEDGE_S or now >= patience_ends:
                    next_look = now + ACKNOWLEDGE_S
                    logger.error("%s does not answer: killed", other.slot.title)
                    os.kill(other.pid, signal.SIGKILL)
            if late:
                self.to_fork[index] = (not_before, next_look)
                continue
            del self.to_fork[index], self.patience_ends[index]
            # A successor starts with rings that everyone has reset.
            for other in self.running.values():
                words[counters.acknowledgement(index, other.slot.index)] = (
                    words[counters.at(other.slot.index, INCARNATION)]
                    if other.pid
                    else words[counters.acknowledgement(index, other.slot.index)]
                )
            self._fork_or_later(self.running[index])

    def _late(self, index: int) -> list[Running]:
        """Living processes that have not acknowledged the death of the one in this slot."""
        words = self.words
        counters = self.shared.counters
        incarnation = words[counters.at(index, INCARNATION)]
        return [
            other
            for other in self.running.values()
            if other.pid
            and self.shared.talk(other.slot.index, index)
            and words[counters.acknowledgement(other.slot.index, index)] != incarnation
        ]

    # ── stopping ────────────────────────────────────────────────────────────────────────────────

    def _stop(self, status: int) -> None:
        """Begin to stop."""
        self.exit_status = status
        self.to_fork.clear()
        notify("STOPPING=1", "STATUS=stopping")
        self.stopping = Stop(clock.monotonic())
        self._signal_next_role(self.stopping)

    def _signal_next_role(self, stop: Stop) -> None:
        role = stop.next_role(clock.monotonic())
        for running in self.running.values():
            if running.slot.role == role and running.pid:
                os.kill(running.pid, signal.SIGTERM)
                self.shared.doorbells[running.slot.index].ring()

    def _go_on_stopping(self, stop: Stop) -> bool:
        alive = [running for running in self.running.values() if running.pid]
        if not alive:
            notify("STATUS=stopped")
            (self.data_directory / control_socket.NAME).unlink(missing_ok=True)
            for listener in self.listeners:
                if listener.config.is_unix:
                    Path(listener.bound()[0]).unlink(missing_ok=True)
            for slot in self.shared.of_role(CONTROLLER):
                (self.data_directory / socket_name(slot.number)).unlink(missing_ok=True)
            return True
        # The next role's turn comes when those before it are gone; some may have none alive.
        while stop.is_turn_over(running.slot.role for running in alive):
            self._signal_next_role(stop)
        now = clock.monotonic()
        late = [running for running in alive if stop.was_told(running.slot.role)]
        line = waited_for((running.slot.title, self._work_of(running.slot)) for running in late)
        if stop.is_over(now):
            for running in late:
                if running.slot.role not in MAY_BE_KILLED:
                    what = waited_for([(running.slot.title, self._work_of(running.slot))])
                    logger.error("the stop has no more time for %s: killed", what)
                os.kill(running.pid, signal.SIGKILL)
        elif stop.is_line_due(now):
            logger.info("stopping: waiting for %s", line)
            notify(f"STATUS=stopping: waiting for {line}")
        return False

    def _kill_all(self) -> None:
        for running in self.running.values():
            if running.pid:
                os.kill(running.pid, signal.SIGKILL)


def _unusable(directory: Path, fault: OSError) -> ConfigFault:
    return ConfigFault(
        f"The data directory {directory} can't be used: {fault.strerror}; "
        "name another one with --data."
    )


def _bind_control_socket(directory: Path, mode: int) -> socket.socket:
    path = directory / control_socket.NAME
    path.unlink(missing_ok=True)
    control = control_socket.bind(directory)
    os.chmod(path, mode)
    control.listen(64)
    return control


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"status {code}"


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
