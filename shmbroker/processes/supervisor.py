"""The supervisor: makes what is shared, forks the family, watches it, ends it.

It owns the loop, and hands over to one object for each matter:

    held_directory   the data directory: its lock, what is judged and written at a start
    open_sockets     what the family listens on
    children         which process is in which slot, how one is forked, how its end is seen
    roles            what makes the process of a role
    consequences     what follows from a death (`deaths`, `boots`): another one, and how soon, or
                     the end of all
    successors       when the next one is forked, and who is killed for its sake
    watchdog         who gives no sign of life
    oom_kills        whether the kernel ended one as memory ran out
    readiness        what a service manager hears
    reloading        settings that were read again
    ending           the stop, in its order

Rules of this file:
* One thread, no data. It never waits for a child in a way that another child's death can't end.
* A child that dies is followed by another one in the same slot, in this order: reap; state NONE and
  the next incarnation into the counters, then the announcements, and everyone's doorbell; when
  every living process has acknowledged, fork (`successors`).
* Once a second it looks whether all children give signs of life, also while they stop (`watchdog`).
* Nothing in the data directory changes before everything was judged that can refuse a start
  (`held_directory`).
* A child that can't boot is said, with its reason, and tried again more and more seldom, once a
  minute in the end, while the others serve. The family ends with EXIT_CHILD_BOOT only where too few
  are left (`boots`): in a new directory one is missing; no majority of the controllers, or nobody
  of a role, can boot; once it has served, when nobody of a role is left. READY is told when all the
  others run. For room on the disk a successor waits as ever (EXIT_TRY_AGAIN).
* The cleaner is forked when an I/O worker wants it, the tier process and the ones that show metrics
  and the console once the family serves. One that can't boot ends nothing.
* SIGHUP has the settings read again: `settings.reload` says what holds at once.
* If the supervisor dies, every child does (PR_SET_PDEATHSIG).

Exit statuses: 0 after SIGTERM or SIGINT; 1 a child did not stop cleanly; 2 a configuration that
can't be used; 3 the data directory is in use; 4 a child can't boot; 75 the data directory is in use
by what a killed family left, which has not ended yet.
"""

from __future__ import annotations

import logging
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path

from shmbroker import __version__, clock, logs
from shmbroker.errors import ConfigFault, Fault
from shmbroker.ipc.slots import CONTROLLER, SUPERVISOR
from shmbroker.observe.about import About
from shmbroker.processes import limits, sd_notify
from shmbroker.processes.child import set_title
from shmbroker.processes.children import SIGNALS, Children
from shmbroker.processes.consequences import Consequences
from shmbroker.processes.ending import Ending
from shmbroker.processes.held_directory import HeldDirectory
from shmbroker.processes.oom_kills import OomKills
from shmbroker.processes.open_sockets import open_sockets
from shmbroker.processes.readiness import Readiness
from shmbroker.processes.reloading import Reloading
from shmbroker.processes.roles import Roles
from shmbroker.processes.shared_resources import SharedResources
from shmbroker.processes.successors import Successors
from shmbroker.processes.watchdog import Watchdog, Watched, standing_of
from shmbroker.shm.words import require_total_store_order
from shmbroker.tier.object_store import check_store, store_url

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

    from shmbroker.processes.data_directory import DirectoryPlan
    from shmbroker.settings.broker_config import BrokerConfig

logger = logging.getLogger(__name__)

EXIT_UNCLEAN = 1
EXIT_CONFIG = 2
EXIT_IN_USE = 3
EXIT_CHILD_BOOT = 4
EXIT_IN_USE_YET = 75
"""Another try may help (EX_TEMPFAIL of sysexits.h)."""


class Supervisor:
    """`run` is the whole life of a family."""

    def __init__(
        self,
        config: BrokerConfig,
        directory: Path,
        began: float,
        read_again: Callable[[], BrokerConfig] | None = None,
    ) -> None:
        """`read_again`: what SIGHUP asks for, the settings as they are written now."""
        self.config = config
        self.began = began
        self.data_directory = directory.absolute()
        self._read_again = read_again
        self._must_reload = False
        self.poller = select.poll()
        self.ending: Ending | None = None
        """The stop, once it has begun."""
        self.exit_status = 0
        self._signals: list[int] = []

    def run(self) -> int:
        """Boot, watch, stop; returns the exit status."""
        self._look_at_host()
        self._boot()
        while not self._turn():
            pass
        return self.exit_status

    # ── boot ────────────────────────────────────────────────────────────────────────────────────

    def _look_at_host(self) -> None:
        """Refuse what a family can't run on, before anything is opened."""
        require_total_store_order()
        if not __debug__:
            raise ConfigFault(
                "Python runs with -O, which leaves out the checks that end a broken process: "
                "start without it (and without PYTHONOPTIMIZE)."
            )
        limits.adjust(self.config)
        complaint = sd_notify.watchdog_complaint(
            sd_notify.watchdog_s(), self.config["shmbroker.watchdog.kill.ms"]
        )
        if complaint:
            logger.warning("%s", complaint)

    def _boot(self) -> None:
        """Make everything that is shared, and fork those who serve."""
        config = self.config
        self.directory = HeldDirectory(config, self.data_directory)
        plan = self.directory.prepare()
        config.nodes, self.is_new = plan.nodes, plan.is_new
        if config.is_tier_enabled:
            check_store(store_url(config["shmbroker.tier.store"], str(self.data_directory)))
        self.sockets = open_sockets(config, self.directory)
        self.shared = self._share(plan)
        self._compose(Roles(config, self.data_directory, plan.cluster_id, self.sockets))
        self.reloading.apply_log_settings()
        self.directory.write(plan)
        set_title(SUPERVISOR)
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        self.wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self.poller.register(self.wake_read, select.POLLIN)
        self.doorbell_fd = self.shared.doorbells[0].eventfd
        self.poller.register(self.doorbell_fd, select.POLLIN)
        self.children.start()

    def _share(self, plan: DirectoryPlan) -> SharedResources:
        """All shared memory, and what it says of the family to those who attach from outside."""
        config = self.config
        shared = SharedResources(
            str(self.data_directory),
            limits.network_workers(config["shmbroker.network.workers"]),
            config.nodes,
            plan.controllers,
            config["shmbroker.ring.data.bytes"],
            config["shmbroker.ring.control.bytes"],
            int(config.is_tier_enabled),
            self.sockets.pages,
            config["quota.window.num"],
        )
        shared.tell(
            About(
                __version__,
                plan.cluster_id,
                str(self.data_directory),
                clock.now_ms(),
                clock.monotonic(),
                os.getpid(),
                shared.places,
                shared.ring_places,
                dict(config.nodes),
                self.sockets.ports,
                config.static.get("min.insync.replicas"),
            )
        )
        return shared

    def _compose(self, roles: Roles) -> None:
        """Make the parts that the loop hands over to."""
        config = self.config
        self.watchdog = Watchdog(
            config["shmbroker.watchdog.warn.ms"], config["shmbroker.watchdog.kill.ms"], standing_of
        )
        self.oom_kills = OomKills()
        self.children = Children(self.shared, roles, self.poller)
        self.successors = Successors(self.children, self.watchdog, logger)
        self.readiness = Readiness(self.children, self.sockets, self.data_directory, self.began)
        self.consequences = Consequences(self.children, self.readiness, self.is_new, logger)
        self.reloading = Reloading(config, self.children, self.sockets.listeners, self.watchdog)

    # ── the loop ────────────────────────────────────────────────────────────────────────────────

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
            self._obey(self._signals.pop(0))
        if self._must_reload and self.readiness.is_ready and self.ending is None:
            self._must_reload = False
            self._reload()
        if self.ending is None:
            self.successors.fork_due()
        return self.ending is not None and self._go_on_ending(self.ending)

    def _timeout_ms(self) -> float:
        """The time until something is due by its time alone; everything else rings."""
        deadlines = [*self.successors.deadlines(), self.watchdog.next_look]
        if self.ending is not None:
            deadlines.append(self.ending.rest())
        return max(0.0, min(deadlines) - clock.monotonic()) * 1000 + 1

    def _watch(self) -> None:
        """Name who hangs, and kill it: what follows is what follows any death."""
        now = clock.monotonic()
        if now < self.watchdog.next_look:
            return
        self.oom_kills.look()
        children = self.children
        watched = [
            Watched(
                running.slot.title,
                running.pid,
                children.signed(running),
                children.work_of(running.slot),
            )
            for running in children.alive()
        ]
        for finding in self.watchdog.look(now, watched):
            level = logging.ERROR if finding.is_kill else logging.WARNING
            logger.log(level, "%s", finding.line, extra=logs.fields(child_pid=finding.pid))
            if finding.is_kill:
                children.kill(finding.pid)
        if self.watchdog.is_well:
            self.readiness.feed(is_stopping=self.ending is not None)

    def _on_doorbell(self) -> None:
        """Look which child changed its state, acknowledged a death, wants the cleaner, or has
        stored levels of loggers."""
        self.shared.log_levels.apply()
        for slot in self.children.take_recovered():
            logger.warning("%s could boot now", slot.title)
        self.children.announce()
        if self.ending is not None:
            return
        self.readiness.maybe_say_ready()
        if self.readiness.is_ready:
            for slot in self.children.wanted_helpers():
                self.successors.fork_or_later(self.children.add(slot))

    # ── deaths ──────────────────────────────────────────────────────────────────────────────────

    def _on_death(self, pidfd: int) -> None:
        """Have another one follow, stop, or count it for the stop that goes on."""
        death = self.children.bury(pidfd)
        if death.code == -signal.SIGKILL and self.oom_kills.have_grown():
            death = death._replace(by_kernel=True)
        if self.ending is not None:
            if not self.ending.is_clean(death):
                self.exit_status = self.exit_status or EXIT_UNCLEAN
            return
        delay = self.consequences.of(death)
        if delay is None:
            self._stop(EXIT_CHILD_BOOT)
        else:
            self.successors.succeed(death.running.slot, delay)

    # ── what it is told ─────────────────────────────────────────────────────────────────────────

    def _obey(self, number: int) -> None:
        """Act on a signal. A second SIGINT has no patience."""
        if number == signal.SIGHUP:
            self._must_reload = True
        elif self.ending is None:
            logger.info("stopping")
            self._stop(0)
        elif number == signal.SIGINT:
            self.children.kill_all()

    def _reload(self) -> None:
        """Read the settings again; what may change while the family runs holds at once."""
        sd_notify.reloading()
        try:
            if self._read_again is not None:
                logger.info("%s", self.reloading.take_over(self._read_again))
        except Fault as fault:
            logger.error("the settings stay as they are: %s", fault)
        sd_notify.notify("READY=1")

    def _stop(self, status: int) -> None:
        """Begin to stop."""
        self.exit_status = status
        self.successors.give_up()
        self.ending = Ending(self.children, logger)

    def _go_on_ending(self, ending: Ending) -> bool:
        """True when nobody is left, and nothing that they came by."""
        if not ending.go_on():
            return False
        self.directory.remove_sockets(slot.number for slot in self.shared.of_role(CONTROLLER))
        self.sockets.remove_paths()
        return True
