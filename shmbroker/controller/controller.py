"""A controller: a voter of the metadata log; the one that leads takes every decision.

A turn:
  1  serve the other voters; become the active controller, or cease to be
  2  execute requests from the rings, and one step of those that take several
  3  answer what the brokers have applied by now
  4  ten times a second: look at the brokers and their disks, elect, follow the log, snapshots

Rules of this file:
* Clock, rings, voter and what it is linked by are arguments: who runs a controller builds them,
  and sleeps. Only `Voter.append` waits within a turn.
* Commit (a majority has it on disk), then publish the committed offset in the shared word and ring
  every doorbell; the others read the leader's log files, never beyond that word.
* The words of the metadata log are stored by the active controller. One that was stopped and wakes
  up may think for a moment that it still is: it stores nothing over a higher epoch, readers ignore
  what falls, and the active one looks at them again and again.
* A voter that is told to stop goes when the others have what it has: so that each directory alone
  holds all that was decided.
* A fault of the disk ends this controller: `turn` raises it, as nobody knows any more what is on
  the disk; a successor recovers. A full disk ends nothing: there the log is as it was.
* A broker that dies is fenced at once; one that gives no sign of life, after a time, until it does.
  Where no partition has a second replica neither takes anything away, so nothing is done.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from shmbroker import logs, signs
from shmbroker.controller.active_controller import ActiveController
from shmbroker.controller.broker_watch import BrokerWatch
from shmbroker.controller.raft.snapshots import SnapshotSchedule
from shmbroker.controller.raft.voter import NotControllerFault, Voter
from shmbroker.controller.requests import Requests
from shmbroker.errors import StorageFault
from shmbroker.ids import random_uuid
from shmbroker.ipc.member import BACKLOG_RETRY_S, FamilyMember
from shmbroker.log.faults import DiskFullFault
from shmbroker.metadata.follower import MetadataFollower
from shmbroker.metadata.log_reader import MetadataLogReader
from shmbroker.shm.counters import (
    INCARNATION,
    METADATA_END_OFFSET_WORD,
    STATE,
    STATE_RUNNING,
    STATE_STOPPING,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shmbroker.clock import Clock
    from shmbroker.controller.raft.quorum_description import Replica
    from shmbroker.ipc.peer import Peer
    from shmbroker.settings.broker_config import BrokerConfig
    from shmbroker.shm.doorbell import Doorbell

logger = logging.getLogger(__name__)

LOOK_S = 0.1
"""The least time between two looks at the brokers' signs of life."""

REST_S = 0.5
"""The longest rest between two turns."""

STOP_WAIT_S = 2.0
"""How long a voter that stops waits for the others to have what it has."""

STOP_LOOK_S = 0.05
"""The time between two looks at how far the others are."""

ABSENT_WAIT_S = 10.0
"""How long those who may have lost records wait for brokers that do not register at all, before it
is decided without them who leads. One that starts registers within a second."""


class ControllerPeers(NamedTuple):
    """The processes that a controller has to do with."""

    brokers: Mapping[int, int]
    """Slots of the I/O workers, by broker id."""
    voters: Mapping[int, int]
    """Slots of the other controllers, by id."""
    doorbells: Sequence[Doorbell]
    """The doorbells of everyone who follows the metadata log."""


class Controller:
    """The turns of a controller."""

    def __init__(
        self,
        clock: Clock,
        member: FamilyMember,
        config: BrokerConfig,
        voter: Voter,
        cluster_id: str,
        family: ControllerPeers,
        new_uuid: Callable[[], bytes] = random_uuid,
        on_log_levels: Callable[[Mapping[str, str | None]], None] = lambda _changes: None,
    ) -> None:
        """`voter`: with the same clock, not started. `on_log_levels`: stores changed levels of
        loggers, None for those that are taken back."""
        self.clock = clock
        self.member = member
        self.words = member.words
        self.counters = counters = member.counters
        self.config = config
        self.voter = voter
        self.number = voter.node_id
        self.must_stop = False
        """Set by who runs this: execute no more requests, and go when the others have all."""
        self.is_over = False
        self.active: ActiveController | None = None
        self.active_epoch = 0
        """The epoch in which `active` was made."""
        self.fault: StorageFault | None = None
        """A fault of the disk; the turn ends with it."""
        self.follower = MetadataFollower(MetadataLogReader(voter.directory), cluster_id)
        self.brokers = BrokerWatch(
            counters, family.brokers, config["broker.session.timeout.ms"] / 1000
        )
        self.requests = Requests(self)
        voter.on_wait = self._on_wait
        self._snapshots = SnapshotSchedule(voter.log, config)
        self._new_uuid = new_uuid
        self._on_log_levels = on_log_levels
        self._slots = {slot: number for number, slot in family.brokers.items()}
        """Broker ids, by slot."""
        self._voters = {number: (slot, 1) for number, slot in family.voters.items()}
        """The other controllers: slot, and the incarnation that was seen last."""
        self._doorbells = family.doorbells
        self._active_since = 0.0
        self._next_look = 0.0
        self._stop_deadline: float | None = None

    # ── turns ───────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> None:
        """Vote, and be seen; before the first turn. StorageFault."""
        self.voter.start()
        self._disown_leadership()
        self._look_at_voters()
        self._take_role()
        self.member.say_running()

    def turn(self) -> float:
        """One pass: for how many seconds nothing is due after it. StorageFault: the disk failed."""
        if self.must_stop:
            return self._stop()
        member = self.member
        member.look_at_announcements(self)
        had_work = self._turn_voter()
        had_work |= self.requests.take(member.peers)
        now = self.clock.monotonic()
        self.requests.answer_applied(now)
        if now >= self._next_look:
            self._next_look = now + LOOK_S
            if self.active is not None:
                self._look_at_brokers()
                self._look_at_disks()
                self._elect_due()
                self.publish_committed()
            self._keep_up()
        if self.fault is not None:
            raise self.fault
        member.publish()
        member.sign(now)
        if had_work:
            return 0.0
        return BACKLOG_RETRY_S if member.has_backlog() else self._rest_s()

    def has_news(self) -> bool:
        """Whether something came for which nobody rings, as this was awake: to be asked after
        `Doorbell.say_sleeping`. One that stops takes nothing from rings."""
        return not self.must_stop and self.member.has_news()

    def close(self) -> None:
        """End cleanly."""
        self.follower.reader.close()
        self.voter.close()

    def _rest_s(self) -> float:
        if self.voter.links is not None and self.voter.links.has_news:
            return 0.0
        return min(REST_S, self.voter.rest_s())

    def _stop(self) -> float:
        """What the leader has, the others that stop shall have too."""
        now = self.clock.monotonic()
        if self._stop_deadline is None:
            self._stop_deadline = now + STOP_WAIT_S
            self.member.say_stopping()
            signs.at_work(signs.CATCHING_UP)
        else:
            self._look_at_voters()
            self.voter.turn()
            self.member.sign(now)
        if self.voter.links is None or now >= self._stop_deadline or self._may_go():
            self.is_over = True
            return 0.0
        return 0.0 if self.voter.links.has_news else STOP_LOOK_S

    def _may_go(self) -> bool:
        """Whether the others have all that was decided; a leader that may go leads no more."""
        quorum = self.voter.quorum
        if quorum.leading is None:
            return quorum.following is None
        at = self.counters.at
        alive = [
            number
            for number, (slot, _) in self._voters.items()
            if self.words[at(slot, STATE)] in (STATE_RUNNING, STATE_STOPPING)
        ]
        end_offset = self.voter.log_end_offset
        if any(quorum.leading.progress[number].end_offset < end_offset for number in alive):
            return False
        self.voter.resign()
        return True

    # ── a voter among others ────────────────────────────────────────────────────────────────────

    def _turn_voter(self) -> bool:
        """Serve the other voters; become active, or cease to be."""
        self._look_at_voters()
        had_work = self.voter.turn()
        self._take_role()
        return had_work

    def _look_at_voters(self) -> None:
        """Stop waiting for each voter whose process has died since the last look."""
        for number, (slot, known) in self._voters.items():
            incarnation = self.words[self.counters.at(slot, INCARNATION)]
            if incarnation != known:
                self._voters[number] = slot, incarnation
                self.voter.on_voter_lost(number)

    def _on_wait(self) -> None:
        """While a majority is waited for."""
        self.member.sign(self.clock.monotonic())
        self._look_at_voters()

    def _take_role(self) -> None:
        """Be the active controller while the voter leads, and in no other epoch."""
        active, voter = self.active, self.voter
        if active is not None and not (voter.is_leading and voter.epoch == self.active_epoch):
            logger.warning("no longer the active controller, epoch %d", self.active_epoch)
            self.active = None
            self._disown_leadership()
        if self.active is None and voter.is_leading:
            try:
                self.active_epoch = voter.epoch
                self._active_since = self.clock.monotonic()
                self.active = ActiveController.activate(
                    voter,
                    self.follower,
                    self.config,
                    self.clock.now_ms(),
                    new_uuid=self._new_uuid,
                )
                self.active.observers = self._observers
                self.active.on_log_levels = self._on_log_levels
                self.publish_committed()
                self._take_over_brokers(self.active)
            except NotControllerFault:
                self.active = None
                return
            if voter.links is not None:
                logger.info("the active controller, epoch %d", voter.epoch)

    def _disown_leadership(self) -> None:
        """Let nobody be sent here any more as to the active controller."""
        epoch, controller_id, is_active = self.counters.metadata_leader()
        if controller_id == self.number and is_active:
            self.counters.store_metadata_leader(epoch, controller_id, is_active=False)

    def _keep_up(self) -> None:
        """Follow what is committed also while another leads, a step at each look, and write a
        snapshot when it is time: the next leader begins the sooner."""
        self.follower.advance(self.voter.committed_offset)
        steady_ms = int(self.clock.monotonic() * 1000)
        self._snapshots.maybe_write(self.follower, self.clock.now_ms(), steady_ms)

    def publish_committed(self) -> None:
        """Everyone may read up to here."""
        words = self.words
        told = self.active_epoch, self.number, True
        committed = self.voter.committed_offset
        leader = self.counters.metadata_leader()
        if leader == told and words[METADATA_END_OFFSET_WORD] == committed:
            return
        if leader[0] > self.active_epoch:
            return  # somebody else leads; the voter will hear of it
        if leader != told:
            self.counters.store_metadata_leader(self.active_epoch, self.number)
        words[METADATA_END_OFFSET_WORD] = committed
        for doorbell in self._doorbells:
            doorbell.ring_if_sleeping()

    # ── brokers that die and hang ───────────────────────────────────────────────────────────────

    def on_peer_lost(self, peer: Peer) -> None:
        """Forget the half of a request that it had sent; a broker is fenced."""
        self.requests.drop_parts(peer.slot)
        broker_id = self._slots.get(peer.slot)
        if broker_id is not None and self.active is not None:
            self.brokers.hanging.discard(broker_id)
            self._set_fenced(broker_id, True)

    def on_peer_running(self, peer: Peer) -> None:
        """Do nothing: a peer asks when it wants something."""

    def _take_over_brokers(self, active: ActiveController) -> None:
        """Fence those that died while there was no controller; know those that the predecessor has
        fenced because they gave no sign of life."""
        for broker_id in self.brokers.running():
            broker = active.image.brokers.get(broker_id)
            if broker is not None and broker.is_fenced:
                self.brokers.hanging.add(broker_id)
        self._fence_dead()

    def _fence_dead(self) -> None:
        for broker_id in filter(self._serves, self.brokers.died()):
            self._set_fenced(broker_id, True)

    def _look_at_brokers(self) -> None:
        """Fence who runs but gives no sign of life, and who died while the disk was full; unfence
        who gives a sign again."""
        self._fence_dead()
        hanging = self.brokers.hanging
        silent, back = self.brokers.changed_silence(self.clock.monotonic())
        for broker_id in silent:
            if self._set_fenced(broker_id, True):
                logger.warning("broker %d gives no sign of life: fenced", broker_id)
                hanging.add(broker_id)
        for broker_id in back:
            self._set_fenced(broker_id, False)
            if self._serves(broker_id):  # else the disk is full, and it is tried again
                logger.warning("broker %d gives signs of life again", broker_id)
                hanging.discard(broker_id)

    def _serves(self, broker_id: int) -> bool:
        """Whether a broker is registered, and not fenced."""
        broker = self.follower.image.brokers.get(broker_id)
        return broker is not None and not broker.is_fenced

    def _look_at_disks(self) -> None:
        """Have others lead what brokers lead that have no room, and the reverse."""
        active, now = self.active, self.clock.monotonic()
        short = self.brokers.short_of_room(now)
        if active is not None and short is not None:
            self._decide(lambda: active.due.look_at_room(*short, now, self.clock.now_ms()))

    def _elect_due(self) -> None:
        """Do what nobody asks for, when its time has come: elections, the end of tokens."""
        if (active := self.active) is not None:
            clock = self.clock
            self._decide(lambda: active.due.elect(clock.monotonic(), clock.now_ms()))
            self._decide(lambda: self.settle(active))
            self._decide(lambda: active.due.sweep_tokens(clock.monotonic(), clock.now_ms()))

    def settle(self, active: ActiveController) -> None:
        """Decide who leads after unclean ends, once all is known."""
        is_waiting = self.clock.monotonic() < self._active_since + ABSENT_WAIT_S
        active.membership.settle(self.clock.now_ms(), self.brokers.pending(), is_waiting)

    def _set_fenced(self, broker_id: int, is_fenced: bool) -> bool:
        """Fence a broker or end that; False if nothing has changed."""
        active = self.active
        if active is None or (is_fenced and not active.image.is_replicated):
            return False
        brokers = active.membership
        change = brokers.fence_broker if is_fenced else brokers.unfence_broker
        return self._decide(lambda: change(broker_id, self.clock.now_ms()))

    def _decide(self, decision: Callable[[], None]) -> bool:
        """Decide something that nobody waits for, and let everybody know; False if nothing has
        changed. A full disk leaves things as they are."""
        try:
            decision()
        except DiskFullFault as fault:
            what = "a decision could not be stored"
            logger.error("%s: %s", what, fault, extra=logs.seldom(what))
        except NotControllerFault:
            return False
        except StorageFault as fault:
            self.fault = fault
            return False
        if self.voter.committed_offset == self.words[METADATA_END_OFFSET_WORD]:
            return False
        self.publish_committed()
        return True

    def _observers(self, now_ms: int) -> list[Replica]:
        voter = self.voter
        now = self.clock.monotonic()
        return self.brokers.observers(voter.quorum.voters, voter.committed_offset, now, now_ms)
