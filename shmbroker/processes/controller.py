"""A controller: a voter of the metadata log; the one that leads takes every decision.

Rules of this file:
* Commit (a majority has it on disk), then publish the committed offset in the shared word and ring
  every doorbell; the others read the leader's log files, never beyond that word.
* The words of the metadata log are stored by the active controller. One that was stopped and wakes
  up may think for a moment that it still is: it stores nothing over a higher epoch, readers ignore
  what falls, and the active one looks at them again and again.
* Only the active one executes requests; the others say NOT_EXECUTED, so that they can be sent on.
* A voter that is told to stop goes when the others have what it has: so that each directory alone
  holds all that was decided.
* A fault of the disk ends this process, as nobody knows any more what is on it; its successor
  recovers. A full disk ends nothing: there the log is as it was.
* A broker that dies is fenced at once; one that gives no sign of life, after a time, until it does.
  Where no partition has a second replica neither takes anything away, so nothing is done.
* A decision that clients wait for is answered when every running broker has applied it, so nobody
  sees a topic that its leader does not know yet (or a deleted one that is still served).
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from shmbroker import clock, signs
from shmbroker.apis import table
from shmbroker.config import BrokerConfig
from shmbroker.controller.active_controller import ActiveController
from shmbroker.controller.bootstrap import write_bootstrap_checkpoint
from shmbroker.controller.decisions.parts import joined, parts_of
from shmbroker.controller.raft import snapshots
from shmbroker.controller.raft.quorum import FOLLOWER, LEADER, Timeouts
from shmbroker.controller.raft.quorum_state import FILE_NAME as QUORUM_STATE
from shmbroker.controller.raft.voter import NotControllerFault, Voter
from shmbroker.controller.raft.voter_links import VoterLinks
from shmbroker.controller.refusals import not_controller
from shmbroker.errors import StorageFault
from shmbroker.ipc.member import BACKLOG_RETRY_S
from shmbroker.ipc.operation_adapter import Answer, Call, Executor, Handler, Steps
from shmbroker.ipc.peer import Peer
from shmbroker.log.config import LogConfig
from shmbroker.log.faults import DiskFullFault
from shmbroker.log.meta_properties import require_meta_properties
from shmbroker.metadata.follower import MetadataFollower
from shmbroker.metadata.log_reader import MetadataLogReader
from shmbroker.processes.attention import Attention
from shmbroker.processes.child import SleepingChild
from shmbroker.processes.shared_resources import (
    CONTROLLER,
    IO_WORKER,
    SharedResources,
    Slot,
)
from shmbroker.shm.counters import (
    DISK,
    DISK_HAS_FAILED,
    DISK_IS_FULL,
    INCARNATION,
    LIVENESS_NS,
    METADATA_APPLIED,
    METADATA_END_OFFSET_WORD,
    STATE,
    STATE_NONE,
    STATE_RUNNING,
    STATE_STOPPING,
    STATE_UNABLE,
)
from shmbroker.wire.api_keys import TELL_LOG_ENDS
from shmbroker.wire.error_codes import NOT_CONTROLLER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.metadata.image import BrokerImage

logger = logging.getLogger("shmbroker")

AWAY_S = 1.0
"""A controller that has not looked for so long was not let run, and the brokers perhaps neither."""

LOOK_S = 0.1
"""Between two looks at the brokers' signs of life, at least."""

DISK_LOOK_S = 1.0
"""Between two looks at what the brokers say of their disks."""

STOP_WAIT_S = 2.0
"""How long a voter that stops waits for the others to have what it has."""

APPLY_WAIT_S = 60.0
"""How long an answer waits for brokers that do not apply a decision."""

ALTER_PARTITION = 56
BROKER_REGISTRATION = 62
BROKER_HEARTBEAT = 63
ALLOCATE_PRODUCER_IDS = 67
ABSENT_WAIT_S = 10.0
"""How long those who may have lost records wait for brokers that do not register at all, before it
is decided without them who leads. One that starts registers within a second."""
AUTO_CREATE = b"auto-create"
"""Client id of a CreateTopics that a network worker sends because somebody uses the topics."""


class ControllerProcess(SleepingChild):
    """The main loop around `controller.ActiveController`."""

    def __init__(
        self,
        shared: SharedResources,
        slot: Slot,
        config: BrokerConfig,
        data_directory: Path,
        cluster_id: str,
    ) -> None:
        super().__init__(shared, slot)
        self.config = config
        self.active: ActiveController | None = None
        voters = [other.number for other in shared.of_role(CONTROLLER)]
        others = [number for number in voters if number != slot.number]
        node_directory = config.nodes[slot.number]
        require_meta_properties(node_directory, slot.number, cluster_id)
        write_bootstrap_checkpoint(node_directory, clock.now_ms())
        links = None
        if others:
            links = VoterLinks(str(data_directory), slot.number, others, cluster_id)
            self.epoll.register(links.epoll.fileno(), select.EPOLLIN)
        self.voter = Voter.open(
            node_directory,
            slot.number,
            voters,
            links,
            log_config=LogConfig(
                {
                    "segment.bytes": str(config["metadata.log.segment.bytes"]),
                    "segment.ms": str(config["metadata.log.segment.ms"]),
                }
            ),
            timeouts=Timeouts(
                config["controller.quorum.election.timeout.ms"],
                config["controller.quorum.fetch.timeout.ms"],
                config["controller.quorum.request.timeout.ms"],
                config["controller.quorum.election.backoff.max.ms"],
            ),
            # The supervisor gives a family that starts what one has lost (`voter_change`).
            others_have=self.incarnation > 1 and self.have_state(others),
        )
        self.voter.on_wait = self.on_wait
        self.follower = MetadataFollower(MetadataLogReader(self.voter.directory), cluster_id)
        self.snapshots = snapshots.SnapshotSchedule(self.voter.log, config)
        self._incarnations = {
            other.number: (self.counters.at(other.index, INCARNATION), 1)
            for other in shared.of_role(CONTROLLER)
            if other.number in others
        }
        """Of the other controllers: where it stands, and what it was."""
        self.voter.start()
        self.executor = Executor(
            {row[0]: (row[1], self._noting_faults(self.on_call)) for row in table.IN_CONTROLLER}
            | {
                BROKER_REGISTRATION: (
                    "BrokerRegistration",
                    self._noting_faults(self.on_registration),
                ),
                BROKER_HEARTBEAT: ("BrokerHeartbeat", self._noting_faults(self.on_shutdown)),
                ALTER_PARTITION: (
                    "AlterPartition",
                    self._noting_faults(self.on_alter_partition),
                ),
                TELL_LOG_ENDS: ("TellLogEnds", self._noting_faults(self.on_log_ends)),
                ALLOCATE_PRODUCER_IDS: (
                    "AllocateProducerIds",
                    self._noting_faults(self.on_producer_ids),
                ),
            }
        )
        self.active_epoch = 0
        """In which `active` is what it is."""
        self._active_since = 0.0
        self._has_said_full = False
        self.fault: StorageFault | None = None
        self.parked: list[tuple[int, float, Call, dict[str, Any]]] = []
        at = self.counters.at
        self._brokers = [
            (other.number, at(other.index, STATE), at(other.index, METADATA_APPLIED))
            for other in shared.of_role(IO_WORKER)
        ]
        self.session_timeout_s = config["broker.session.timeout.ms"] / 1000
        self._next_look = self._next_disk_look = 0.0
        self._attention = Attention(self.session_timeout_s, AWAY_S)
        self.hanging: set[int] = set()
        """Brokers that were fenced because they gave no sign of life."""

    def have_state(self, voters: list[int]) -> bool:
        """Whether any of these has stored what it is as a voter."""
        directories = [self.config.metadata_directory(number) for number in voters]
        return any(os.path.exists(os.path.join(each, QUORUM_STATE)) for each in directories)

    def _noting_faults(self, handler: Handler) -> Handler:
        """The handler; `turn` raises the fault of the disk that it ended with."""

        def noting(call: Call, body: dict[str, Any]) -> Answer | Steps:
            if self.active is None:
                call.refuse()
                return None
            try:
                answer = handler(call, body)
            except NotControllerFault:
                return not_controller(call.api_name, call.api_version, body)
            except DiskFullFault:
                raise
            except StorageFault as fault:
                self.fault = fault
                raise
            return noting_steps(call, body, answer) if isinstance(answer, Generator) else answer

        def noting_steps(call: Call, body: dict[str, Any], steps: Steps) -> Steps:
            try:
                return (yield from steps)
            except NotControllerFault:
                return not_controller(call.api_name, call.api_version, body)
            except DiskFullFault:
                raise
            except StorageFault as fault:
                self.fault = fault
                raise

        return noting

    def run(self) -> None:
        """Serve until asked to stop."""
        self.disown_leadership()
        self.look_at_voters()
        self.take_role()
        self.say_running()
        while not self.must_stop:
            self.turn()
        self.say_stopping()
        self.let_others_catch_up()
        self.follower.reader.close()
        self.voter.close()

    def turn(self) -> None:
        """One pass; sleeps at its end if there was nothing to do."""
        self.check_control()
        had_work = self.turn_voter()
        had_work |= self.execute_waiting(self.executor)
        if self.executor.unfinished:
            self.executor.advance()
            had_work = True
        now = clock.monotonic()
        if self.parked:
            self.answer_parked(now)
        if now >= self._next_look:
            self._next_look = now + LOOK_S
            if self.active is not None:
                self.look_at_brokers()
                self.look_at_disks()
                self.elect_due()
                self.publish_committed()
            self.keep_up(now)
        if self.fault is not None:
            raise self.fault
        self.publish()
        self.sign(now)
        if not had_work:
            self.sleep(BACKLOG_RETRY_S if self.has_backlog() else self.rest_s())

    def rest_s(self) -> float:
        """How long there is nothing to do unless somebody rings."""
        if self.voter.links is not None and self.voter.links.has_news:
            return 0.0
        return min(0.5, self.voter.rest_s())

    # ── a voter among others ────────────────────────────────────────────────────────────────────

    def turn_voter(self) -> bool:
        """Serve the other voters; become active, or cease to be."""
        self.look_at_voters()
        had_work = self.voter.turn()
        self.take_role()
        return had_work

    def look_at_voters(self) -> None:
        """Whose process has died since the last look: nobody waits for it."""
        for number, (index, known) in self._incarnations.items():
            incarnation = self.words[index]
            if incarnation != known:
                self._incarnations[number] = index, incarnation
                self.voter.on_voter_lost(number)

    def on_wait(self) -> None:
        """While a majority is waited for."""
        self.sign(clock.monotonic())
        self.look_at_voters()

    def take_role(self) -> None:
        """Be the active controller while the voter leads, and in no other epoch."""
        active, voter = self.active, self.voter
        if active is not None and not (voter.is_leading and voter.epoch == self.active_epoch):
            logger.warning("no longer the active controller, epoch %d", self.active_epoch)
            self.active = None
            self.disown_leadership()
        if self.active is None and voter.is_leading:
            try:
                now_ms = clock.now_ms()
                self.active_epoch = voter.epoch
                self._active_since = clock.monotonic()
                self.active = ActiveController.activate(voter, self.follower, self.config, now_ms)
                self.active.observers = self.observers
                self.publish_committed()
                self.take_over_brokers()
            except NotControllerFault:
                self.active = None
                return
            if voter.links is not None:
                logger.info("the active controller, epoch %d", voter.epoch)

    def disown_leadership(self) -> None:
        """Nobody is sent here any more as to the active controller."""
        epoch, controller_id, is_active = self.counters.metadata_leader()
        if controller_id == self.slot.number and is_active:
            self.counters.store_metadata_leader(epoch, controller_id, is_active=False)

    def keep_up(self, now: float) -> None:
        """Follow what is committed also while another leads, and write a snapshot when it is time:
        the next leader begins the sooner."""
        self.follower.catch_up(self.voter.committed_offset)
        self.snapshots.maybe_write(self.follower, clock.now_ms())

    def let_others_catch_up(self) -> None:
        """Before the end: what the leader has, the others that stop shall have too."""
        quorum = self.voter.quorum
        deadline = clock.monotonic() + STOP_WAIT_S
        signs.at_work(signs.CATCHING_UP)
        while self.voter.links is not None and clock.monotonic() < deadline:
            if quorum.state == LEADER:
                alive = [
                    number
                    for number, (index, _) in self._incarnations.items()
                    if self.words[index - INCARNATION + STATE] in (STATE_RUNNING, STATE_STOPPING)
                ]
                end_offset = self.voter.log_end_offset
                if all(quorum.progress[number].end_offset >= end_offset for number in alive):
                    self.voter.resign()
                    return
            elif quorum.state != FOLLOWER:
                return
            self.voter.links.wait(0.05)
            self.look_at_voters()
            self.voter.turn()
            signs.sign()

    def on_peer_lost(self, peer: Peer) -> None:
        """Forget the half of a request that it had sent; a broker is fenced."""
        self.executor.drop_parts(peer.slot)
        if peer.role == IO_WORKER and self.active is not None:
            self.hanging.discard(peer.number)
            self.set_fenced(peer.number, True)

    # ── brokers that die and hang ───────────────────────────────────────────────────────────────

    def take_over_brokers(self) -> None:
        """Fence those that died while there was no controller; know those that the predecessor has
        fenced because they gave no sign of life."""
        for slot in self.shared.of_role(IO_WORKER):
            state = self.words[self.counters.at(slot.index, STATE)]
            broker = self.leading().image.brokers.get(slot.number)
            if broker is not None and broker.is_fenced and state == STATE_RUNNING:
                self.hanging.add(slot.number)
            if (
                state in (STATE_NONE, STATE_UNABLE)
                and self.words[self.counters.at(slot.index, INCARNATION)] > 1
            ):
                self.set_fenced(slot.number, True)

    def look_at_brokers(self) -> None:
        """Fence who runs but gives no sign of life; unfence who gives one again."""
        words, at = self.words, self.counters.at
        now = clock.monotonic()
        may_fence = self._attention.is_enough(now)
        silent_since = int((now - self.session_timeout_s) * 1e9)
        for slot in self.shared.of_role(IO_WORKER):
            if words[at(slot.index, STATE)] != STATE_RUNNING:
                continue
            is_silent = words[at(slot.index, LIVENESS_NS)] < silent_since
            if is_silent and slot.number not in self.hanging:
                if may_fence and self.set_fenced(slot.number, True):
                    logger.warning("broker %d gives no sign of life: fenced", slot.number)
                    self.hanging.add(slot.number)
            elif not is_silent and slot.number in self.hanging:
                logger.warning("broker %d gives signs of life again", slot.number)
                self.hanging.discard(slot.number)
                self.set_fenced(slot.number, False)

    def look_at_disks(self) -> None:
        """Have others lead what brokers lead that have no room, and the reverse."""
        active, words, at = self.active, self.words, self.counters.at
        now = clock.monotonic()
        if active is None or now < self._next_disk_look:
            return
        self._next_disk_look = now + DISK_LOOK_S
        found: dict[int, set[int]] = {DISK_IS_FULL: set(), DISK_HAS_FAILED: set()}
        for slot in self.shared.of_role(IO_WORKER):
            disk = words[at(slot.index, DISK)]
            if disk in found and words[at(slot.index, STATE)] == STATE_RUNNING:
                found[disk].add(slot.number)
        full, failed = found[DISK_IS_FULL], found[DISK_HAS_FAILED]
        self.decide(lambda: active.look_at_room(full, failed, now, clock.now_ms()))

    def elect_due(self) -> None:
        """Elections that nobody asks for, when their time has come."""
        if (active := self.active) is not None:
            self.decide(lambda: active.elect_due(clock.monotonic(), clock.now_ms()))
            self.decide(self.settle)

    def settle(self) -> None:
        """Decide who leads after unclean ends, once all is known."""
        is_waiting = clock.monotonic() < self._active_since + ABSENT_WAIT_S
        self.leading().settle(clock.now_ms(), self.pending(), is_waiting)

    def set_fenced(self, broker_id: int, is_fenced: bool) -> bool:
        """Fence a broker or end that; False if nothing has changed."""
        if self.active is None or (is_fenced and not self.active.is_replicated):
            return False
        change = self.active.fence_broker if is_fenced else self.active.unfence_broker
        return self.decide(lambda: change(broker_id, clock.now_ms()))

    def decide(self, decision: Callable[[], None]) -> bool:
        """Decide something that nobody waits for, and let everybody know; False if nothing has
        changed. A full disk leaves things as they are."""
        try:
            decision()
        except DiskFullFault as fault:
            logger.error("a decision could not be stored: %s", fault)
        except NotControllerFault:
            return False
        except StorageFault as fault:
            self.fault = fault
            return False
        if self.voter.committed_offset == self.words[METADATA_END_OFFSET_WORD]:
            return False
        self.publish_committed()
        return True

    # ── requests ────────────────────────────────────────────────────────────────────────────────

    def leading(self) -> ActiveController:
        """The active controller, which this process is."""
        assert self.active is not None, "requests come to the active controller alone"
        return self.active

    def observers(self, now_ms: int) -> list[tuple[int, int, int, int]]:
        """Brokers that run without a controller beside them: they follow, and have no vote."""
        words, at = self.words, self.counters.at
        voters = self.voter.quorum.voters
        committed, now_ns = self.voter.committed_offset, clock.monotonic_ns()
        rows = []
        for slot in self.shared.of_role(IO_WORKER):
            if slot.number in voters or words[at(slot.index, STATE)] != STATE_RUNNING:
                continue
            applied = words[at(slot.index, METADATA_APPLIED)]
            seen_ms = now_ms - (now_ns - words[at(slot.index, LIVENESS_NS)]) // 1_000_000
            rows.append((slot.number, applied, seen_ms, seen_ms if applied >= committed else -1))
        return rows

    def on_call(self, call: Call, body: dict[str, Any]) -> Answer | Steps:
        """Decide, commit, and answer when the brokers have applied it."""
        active, now_ms = self.leading(), clock.now_ms()
        if call.client_id == AUTO_CREATE:
            active.create_topics_auto([topic["name"] for topic in body["topics"]], now_ms)
            answer: dict[str, Any] = {"topics": []}
        else:
            split = parts_of(call.api_name, body, active.image, self.config)
            if split is not None:
                return self.decide_in_parts(call, body, split)
            answer = active.handle(call.api_name, call.api_version, body, now_ms)
        return self.answer_when_applied(call, answer)

    def decide_in_parts(
        self, call: Call, body: dict[str, Any], split: list[dict[str, Any]]
    ) -> Steps:
        """Each part is a decision like any other, and somebody else's may come between two."""
        answers: list[dict[str, Any]] = []
        for part in split:
            if answers:
                yield
            if self.active is None:
                raise NotControllerFault
            active = self.active
            answers.append(active.handle(call.api_name, call.api_version, part, clock.now_ms()))
            self.publish_committed()
        yield
        answer = joined(call.api_name, body, answers)
        deadline = clock.monotonic() + APPLY_WAIT_S
        self.parked.append((self.voter.committed_offset, deadline, call, answer))
        return None

    def answer_when_applied(self, call: Call, answer: dict[str, Any]) -> Answer:
        """The answer, or None where it is sent when the brokers have applied what is new."""
        active = self.leading()
        committed = active.committed_offset
        if committed != self.words[METADATA_END_OFFSET_WORD]:
            self.publish_committed()
            self.parked.append((committed, clock.monotonic() + APPLY_WAIT_S, call, answer))
            return None
        return answer

    def on_registration(self, call: Call, body: dict[str, Any]) -> dict[str, Any]:
        """A broker starts: clients may be sent there as soon as it serves."""
        listener = body["listeners"][0]
        active = self.leading()
        known = active.image.brokers.get(body["broker_id"])
        now_ms = clock.now_ms()
        is_clean = self.was_clean(body, known) or not active.has_copies(body["broker_id"])
        try:
            broker_epoch = active.register_broker(
                body["broker_id"],
                listener["host"],
                listener["port"],
                body["incarnation_id"],
                body["log_dirs"],
                now_ms,
                is_clean,
                self.pending(),
            )
            if is_clean:
                active.unfence_broker(body["broker_id"], now_ms, self.pending())
            self.settle()
        except DiskFullFault as fault:
            if known is None:
                raise
            is_same = set(known.directories) <= set(body["log_dirs"])
            if not (is_clean and is_same) and active.has_copies(body["broker_id"]):
                # What it may lack has to be on record before it may lead: it asks again.
                if not self._has_said_full:
                    logger.error("%s; broker %d has to wait", fault, body["broker_id"])
                self._has_said_full = True
                return {"error_code": NOT_CONTROLLER}
            # It is the same directory at the same address: it may serve what it has.
            logger.warning("%s; broker %d keeps its registration", fault, body["broker_id"])
            broker_epoch = known.broker_epoch
        self.publish_committed()
        return {"broker_epoch": broker_epoch}

    def was_clean(self, body: dict[str, Any], known: BrokerImage | None) -> bool:
        """Whether a broker that registers has all that it ever had: it stopped cleanly, or died
        alone, and the page cache with what it wrote lives. `known`: its registration before."""
        (has_served,) = (
            self.words[applied] > 0
            for number, _, applied in self._brokers
            if number == body["broker_id"]
        )
        if has_served or known is None:
            return True
        return bool(body["previous_broker_epoch"] == known.broker_epoch)

    def on_log_ends(self, call: Call, body: dict[str, Any]) -> dict[str, Any]:
        """A broker says where its logs end, or that one lacks what it should have."""
        answer = self.leading().log_ends(body, clock.now_ms())
        self.settle()
        self.publish_committed()
        return answer

    def pending(self) -> set[int]:
        """Brokers that may not have registered since the family started, but for those that can't
        boot: nobody knows when they will."""
        words = self.words
        return {
            number
            for number, state, applied in self._brokers
            if words[applied] == 0 and words[state] != STATE_UNABLE
        }

    def on_alter_partition(self, call: Call, body: dict[str, Any]) -> dict[str, Any]:
        """A leader changes who is in sync: answered when it is committed."""
        active = self.leading()
        answer = active.handle(call.api_name, call.api_version, body, clock.now_ms())
        self.publish_committed()
        return answer

    def on_shutdown(self, call: Call, body: dict[str, Any]) -> dict[str, Any] | None:
        """A broker wants to stop, and may when the others have taken over: signs of life are left
        in shared memory, so this is all that BrokerHeartbeat is for."""
        error = self.leading().begin_shutdown(
            body["broker_id"], body["broker_epoch"], clock.now_ms()
        )
        self.publish_committed()
        answer = {"error_code": error, "is_caught_up": True, "should_shut_down": not error}
        deadline = clock.monotonic() + APPLY_WAIT_S
        self.parked.append((self.voter.committed_offset, deadline, call, answer))
        return None

    def on_producer_ids(self, call: Call, body: dict[str, Any]) -> dict[str, Any]:
        """A block of producer ids that nobody else gets."""
        active = self.leading()
        error, start, count = active.allocate_producer_ids(
            body["broker_id"], body["broker_epoch"], clock.now_ms()
        )
        self.publish_committed()
        return {"error_code": error, "producer_id_start": start, "producer_id_len": count}

    def publish_committed(self) -> None:
        """Everyone may read up to here."""
        words = self.words
        told = self.active_epoch, self.slot.number, True
        committed = self.voter.committed_offset
        leader = self.counters.metadata_leader()
        if leader == told and words[METADATA_END_OFFSET_WORD] == committed:
            return
        if leader[0] > self.active_epoch:
            return  # somebody else leads; the voter will hear of it
        if leader != told:
            self.counters.store_metadata_leader(self.active_epoch, self.slot.number)
        words[METADATA_END_OFFSET_WORD] = committed
        for doorbell in self.shared.doorbells[1:]:
            doorbell.ring_if_sleeping()

    def answer_parked(self, now: float) -> None:
        """Answer what every running broker has applied that doesn't hang, or has had its time
        for."""
        words = self.words
        applied = min(
            (
                words[offset_index]
                for number, state_index, offset_index in self._brokers
                if words[state_index] == STATE_RUNNING and number not in self.hanging
            ),
            default=1 << 62,
        )
        waiting = []
        for parked in self.parked:
            offset, deadline, call, answer = parked
            if applied >= offset or now > deadline:
                call.reply(answer)
            else:
                waiting.append(parked)
        self.parked = waiting
