"""Requests of clients and brokers, as a controller executes them.

Rules of this file:
* Only the active controller executes requests; the others say NOT_EXECUTED, so that they can be
  sent on.
* A decision that clients wait for is answered when every running broker has applied it, so nobody
  sees a topic that its leader does not know yet (or a deleted one that is still served).
* Who ceases to be active in the middle of a request answers NOT_CONTROLLER.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import NamedTuple

from shmbroker.apis import table
from shmbroker.apis.refusals import not_controller
from shmbroker.controller.decisions.parts import joined, parts_of
from shmbroker.controller.raft.voter import NotControllerFault
from shmbroker.errors import StorageFault
from shmbroker.ipc.operation_adapter import Answer, Call, Executor, Handler, Steps
from shmbroker.log.faults import DiskFullFault
from shmbroker.shm.counters import METADATA_END_OFFSET_WORD
from shmbroker.wire.api_keys import TELL_LOG_ENDS
from shmbroker.wire.error_codes import NOT_CONTROLLER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from shmbroker.controller.active_controller import ActiveController
    from shmbroker.controller.controller import Controller
    from shmbroker.ipc.peer import Peer
    from shmbroker.metadata.image import BrokerImage

logger = logging.getLogger("shmbroker")

APPLY_WAIT_S = 60.0
"""How long an answer waits for brokers that do not apply a decision."""

ALTER_PARTITION = 56
BROKER_REGISTRATION = 62
BROKER_HEARTBEAT = 63
ALLOCATE_PRODUCER_IDS = 67
AUTO_CREATE = b"auto-create"
"""Client id of a CreateTopics that a network worker sends because somebody uses the topics."""


class Parked(NamedTuple):
    """An answer that waits for the brokers."""

    offset: int
    """One past what they have to apply."""
    deadline: float
    call: Call
    answer: dict[str, Any]


class Requests:
    """What is asked of a controller, from the rings to the answer."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._clock = controller.clock
        self._executor = Executor(
            {row[0]: (row[1], self._guarded(self.on_call)) for row in table.IN_CONTROLLER}
            | {
                BROKER_REGISTRATION: ("BrokerRegistration", self._guarded(self.on_registration)),
                BROKER_HEARTBEAT: ("BrokerHeartbeat", self._guarded(self.on_shutdown)),
                ALTER_PARTITION: ("AlterPartition", self._guarded(self.on_alter_partition)),
                TELL_LOG_ENDS: ("TellLogEnds", self._guarded(self.on_log_ends)),
                ALLOCATE_PRODUCER_IDS: (
                    "AllocateProducerIds",
                    self._guarded(self.on_producer_ids),
                ),
            }
        )
        self._parked: list[Parked] = []
        self._has_said_full = False

    def take(self, peers: Iterable[Peer]) -> bool:
        """Execute what the rings hold, and a step of what takes several; True if there was any."""
        had_work = self._executor.take(peers)
        if self._executor.unfinished:
            self._executor.advance()
            return True
        return had_work

    def drop_parts(self, slot: int) -> None:
        """The process that asked is dead: the rest of its request will not come."""
        self._executor.drop_parts(slot)

    def answer_applied(self, now: float) -> None:
        """Answer what every running broker has applied that doesn't hang, or has had its time
        for."""
        if not self._parked:
            return
        applied = self._controller.brokers.applied()
        waiting = []
        for parked in self._parked:
            if applied >= parked.offset or now > parked.deadline:
                parked.call.reply(parked.answer)
            else:
                waiting.append(parked)
        self._parked = waiting

    def _guarded(self, handler: Handler) -> Handler:
        """The handler, for the active controller; the turn raises the fault of the disk that it
        ended with."""

        def guarded(call: Call, body: dict[str, Any]) -> Answer | Steps:
            if self._controller.active is None:
                call.refuse()
                return None
            try:
                answer = handler(call, body)
            except NotControllerFault:
                return not_controller(call.api_name, call.api_version, body)
            except StorageFault as fault:
                self._note(fault)
                raise
            return guarded_steps(call, body, answer) if isinstance(answer, Generator) else answer

        def guarded_steps(call: Call, body: dict[str, Any], steps: Steps) -> Steps:
            try:
                return (yield from steps)
            except NotControllerFault:
                return not_controller(call.api_name, call.api_version, body)
            except StorageFault as fault:
                self._note(fault)
                raise

        return guarded

    def _note(self, fault: StorageFault) -> None:
        if not isinstance(fault, DiskFullFault):
            self._controller.fault = fault

    def _active(self) -> ActiveController:
        active = self._controller.active
        assert active is not None, "requests come to the active controller alone"
        return active

    # ── of clients ──────────────────────────────────────────────────────────────────────────────

    def on_call(self, call: Call, body: dict[str, Any]) -> Answer | Steps:
        """Decide, commit, and answer when the brokers have applied it."""
        active, now_ms = self._active(), self._clock.now_ms()
        if call.client_id == AUTO_CREATE:
            active.create_topics_auto([topic["name"] for topic in body["topics"]], now_ms)
            answer: dict[str, Any] = {"topics": []}
        else:
            split = parts_of(call.api_name, body, active.image, active.config)
            if split is not None:
                return self.decide_in_parts(call, body, split)
            answer = active.handle(call.api_name, call.api_version, body, now_ms)
        return self.answer_when_applied(call, answer)

    def decide_in_parts(
        self, call: Call, body: dict[str, Any], split: list[dict[str, Any]]
    ) -> Steps:
        """Each part is a decision like any other, and somebody else's may come between two."""
        controller = self._controller
        answers: list[dict[str, Any]] = []
        for part in split:
            if answers:
                yield
            if controller.active is None:
                raise NotControllerFault
            now_ms = self._clock.now_ms()
            answers.append(controller.active.handle(call.api_name, call.api_version, part, now_ms))
            controller.publish_committed()
        yield
        self.park(call, joined(call.api_name, body, answers))
        return None

    def answer_when_applied(self, call: Call, answer: dict[str, Any]) -> Answer:
        """The answer, or None where it is sent when the brokers have applied what is new."""
        committed = self._controller.voter.committed_offset
        if committed != self._controller.words[METADATA_END_OFFSET_WORD]:
            self._controller.publish_committed()
            self.park(call, answer)
            return None
        return answer

    def park(self, call: Call, answer: dict[str, Any]) -> None:
        """Answer when the brokers have applied what is committed now."""
        deadline = self._clock.monotonic() + APPLY_WAIT_S
        committed = self._controller.voter.committed_offset
        self._parked.append(Parked(committed, deadline, call, answer))

    # ── of brokers ──────────────────────────────────────────────────────────────────────────────

    def on_registration(self, call: Call, body: dict[str, Any]) -> dict[str, Any]:
        """A broker starts: clients may be sent there as soon as it serves."""
        controller = self._controller
        listener = body["listeners"][0]
        active, brokers = self._active(), controller.brokers
        known = active.image.brokers.get(body["broker_id"])
        now_ms = self._clock.now_ms()
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
                brokers.pending(),
            )
            if is_clean:
                active.unfence_broker(body["broker_id"], now_ms, brokers.pending())
            controller.settle(active)
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
        controller.publish_committed()
        return {"broker_epoch": broker_epoch}

    def was_clean(self, body: dict[str, Any], known: BrokerImage | None) -> bool:
        """Whether a broker that registers has all that it ever had: it stopped cleanly, or died
        alone, and the page cache with what it wrote lives. `known`: its registration before."""
        if known is None or self._controller.brokers.has_served(body["broker_id"]):
            return True
        return bool(body["previous_broker_epoch"] == known.broker_epoch)

    def on_log_ends(self, call: Call, body: dict[str, Any]) -> dict[str, Any]:
        """A broker says where its logs end, or that one lacks what it should have."""
        active = self._active()
        answer = active.log_ends(body, self._clock.now_ms())
        self._controller.settle(active)
        self._controller.publish_committed()
        return answer

    def on_alter_partition(self, call: Call, body: dict[str, Any]) -> dict[str, Any]:
        """A leader changes who is in sync: answered when it is committed."""
        now_ms = self._clock.now_ms()
        answer = self._active().handle(call.api_name, call.api_version, body, now_ms)
        self._controller.publish_committed()
        return answer

    def on_shutdown(self, call: Call, body: dict[str, Any]) -> None:
        """A broker wants to stop, and may when the others have taken over: signs of life are left
        in shared memory, so this is all that BrokerHeartbeat is for."""
        now_ms = self._clock.now_ms()
        error = self._active().begin_shutdown(body["broker_id"], body["broker_epoch"], now_ms)
        self._controller.publish_committed()
        self.park(call, {"error_code": error, "is_caught_up": True, "should_shut_down": not error})

    def on_producer_ids(self, call: Call, body: dict[str, Any]) -> dict[str, Any]:
        """A block of producer ids that nobody else gets."""
        error, start, count = self._active().allocate_producer_ids(
            body["broker_id"], body["broker_epoch"], self._clock.now_ms()
        )
        self._controller.publish_committed()
        return {"error_code": error, "producer_id_start": start, "producer_id_len": count}
