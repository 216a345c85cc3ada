"""A controller: the metadata log, and every decision that goes into it.

Rules of this file:
* Append, flush, then publish the committed offset in the shared word and ring every doorbell; the
  others read the log file, never beyond that word.
* A fault of the disk ends this process, as nobody knows any more what is on it; its successor
  recovers. A full disk ends nothing: there the log is as it was.
* A broker that dies is fenced at once; one that gives no sign of life, after a time, until it does.
  Where no partition has a second replica neither takes anything away, so nothing is done.
* A decision that clients wait for is answered when every running broker has applied it, so nobody
  sees a topic that its leader does not know yet (or a deleted one that is still served).
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shmbroker import clock
from shmbroker.apis import table
from shmbroker.controller.active_controller import ActiveController
from shmbroker.errors import StorageFault
from shmbroker.ipc.operation_adapter import Call, Executor, Handler
from shmbroker.ipc.peer import Peer
from shmbroker.log.faults import DiskFullFault
from shmbroker.processes.child import BACKLOG_RETRY_S, SleepingChild
from shmbroker.processes.shared_resources import IO_WORKER, SharedResources, Slot
from shmbroker.shm.counters import (
    INCARNATION,
    LIVENESS_NS,
    METADATA_APPLIED,
    METADATA_END_OFFSET_WORD,
    STATE,
    STATE_NONE,
    STATE_RUNNING,
)

logger = logging.getLogger("shmbroker")

LOOK_S = 0.1
"""Between two looks at the brokers' signs of life, at least."""

APPLY_WAIT_S = 60.0
"""How long an answer waits for brokers that do not apply a decision."""

ALTER_PARTITION = 56
BROKER_REGISTRATION = 62
ALLOCATE_PRODUCER_IDS = 67
AUTO_CREATE = b"auto-create"
"""Client id of a CreateTopics that a network worker sends because somebody uses the topics."""


class ControllerProcess(SleepingChild):
    """The main loop around `controller.ActiveController`."""

    def __init__(
        self,
        shared: SharedResources,
        slot: Slot,
        config: Any,
        data_directory: Path,
        cluster_id: str,
    ) -> None:
        super().__init__(shared, slot)
        self.active = ActiveController.open(
            config.node_directory(str(data_directory), slot.number),
            slot.number,
            cluster_id,
            config,
            clock.now_ms(),
        )
        self.executor = Executor(
            {row[0]: (row[1], self._noting_faults(self.on_call)) for row in table.IN_CONTROLLER}
            | {
                BROKER_REGISTRATION: (
                    "BrokerRegistration",
                    self._noting_faults(self.on_registration),
                ),
                ALTER_PARTITION: (
                    "AlterPartition",
                    self._noting_faults(self.on_alter_partition),
                ),
                ALLOCATE_PRODUCER_IDS: (
                    "AllocateProducerIds",
                    self._noting_faults(self.on_producer_ids),
                ),
            }
        )
        self.fault: StorageFault | None = None
        self.parked: list[tuple[int, float, Call, dict[str, Any]]] = []
        self._brokers = [
            (self.counters.at(other.index, STATE), self.counters.at(other.index, METADATA_APPLIED))
            for other in shared.of_role(IO_WORKER)
        ]
        self.session_timeout_s = config["broker.session.timeout.ms"] / 1000
        self._next_look = 0.0
        self.hanging: set[int] = set()
        """Brokers that were fenced because they gave no sign of life."""

    def _noting_faults(self, handler: Handler) -> Handler:
        """The handler; `run` raises the fault of the disk that it ended with."""

        def noting(call: Call, body: dict[str, Any]) -> dict[str, Any] | None:
            try:
                return handler(call, body)
            except DiskFullFault:
                raise
            except StorageFault as fault:
                self.fault = fault
                raise

        return noting

    def run(self) -> None:
        """Serve until asked to stop."""
        self.publish_committed()
        self.fence_dead()
        self.say_running()
        while not self.must_stop:
            self.check_control()
            had_work = self.execute_waiting(self.executor)
            if self.fault is not None:
                raise self.fault
            now = clock.monotonic()
            if self.parked:
                self.answer_parked(now)
            if now >= self._next_look:
                self._next_look = now + LOOK_S
                self.look_at_brokers()
                self.decide(lambda: self.active.elect_due(clock.monotonic(), clock.now_ms()))
            self.publish()
            self.sign(now)
            if not had_work:
                self.sleep(BACKLOG_RETRY_S if self.has_backlog() else 0.5)
        self.say_stopping()
        self.active.close()

    def on_peer_lost(self, peer: Peer) -> None:
        """Forget the half of a request that it had sent; a broker is fenced."""
        self.executor.drop_parts(peer.slot)
        if peer.role == IO_WORKER:
            self.hanging.discard(peer.number)
            self.set_fenced(peer.number, True)

    # ── brokers that die and hang ───────────────────────────────────────────────────────────────

    def fence_dead(self) -> None:
        """Brokers that died while there was no controller."""
        for slot in self.shared.of_role(IO_WORKER):
            is_dead = self.words[self.counters.at(slot.index, STATE)] == STATE_NONE
            if is_dead and self.words[self.counters.at(slot.index, INCARNATION)] > 1:
                self.set_fenced(slot.number, True)

    def look_at_brokers(self) -> None:
        """Fence who runs but gives no sign of life; unfence who gives one again."""
        words, at = self.words, self.counters.at
        silent_since = clock.monotonic_ns() - int(self.session_timeout_s * 1e9)
        for slot in self.shared.of_role(IO_WORKER):
            if words[at(slot.index, STATE)] != STATE_RUNNING:
                continue
            is_silent = words[at(slot.index, LIVENESS_NS)] < silent_since
            if is_silent and slot.number not in self.hanging:
                if self.set_fenced(slot.number, True):
                    logger.warning("broker %d gives no sign of life: fenced", slot.number)
                    self.hanging.add(slot.number)
            elif not is_silent and slot.number in self.hanging:
                logger.warning("broker %d gives signs of life again", slot.number)
                self.hanging.discard(slot.number)
                self.set_fenced(slot.number, False)

    def set_fenced(self, broker_id: int, is_fenced: bool) -> bool:
        """Fence a broker or end that; False if nothing has changed."""
        if is_fenced and not self.active.is_replicated:
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
        except StorageFault as fault:
            self.fault = fault
            return False
        if self.active.committed_offset == self.words[METADATA_END_OFFSET_WORD]:
            return False
        self.publish_committed()
        return True

    # ── requests ────────────────────────────────────────────────────────────────────────────────

    def on_call(self, call: Call, body: dict[str, Any]) -> dict[str, Any] | None:
        """Decide, commit, and answer when the brokers have applied it."""
        now_ms = clock.now_ms()
        if call.client_id == AUTO_CREATE:
            self.active.create_topics_auto([topic["name"] for topic in body["topics"]], now_ms)
            answer: dict[str, Any] = {"topics": []}
        else:
            answer = self.active.handle(call.api_name, call.api_version, body, now_ms)
        committed = self.active.committed_offset
        if committed != self.words[METADATA_END_OFFSET_WORD]:
            self.publish_committed()
            self.parked.append((committed, clock.monotonic() + APPLY_WAIT_S, call, answer))
            return None
        return answer

    def on_registration(self, call: Call, body: dict[str, Any]) -> dict[str, Any]:
        """A broker starts: clients may be sent there as soon as it serves."""
        listener = body["listeners"][0]
        known = self.active.image.brokers.get(body["broker_id"])
        now_ms = clock.now_ms()
        try:
            broker_epoch = self.active.register_broker(
                body["broker_id"],
                listener["host"],
                listener["port"],
                body["incarnation_id"],
                body["log_dirs"],
                now_ms,
            )
            self.active.unfence_broker(body["broker_id"], now_ms)
            self.active.note_shutdown(body["broker_id"], self.was_clean(body, known), now_ms)
        except DiskFullFault as fault:
            if known is None:
                raise
            # It is the same directory at the same address: it may serve what it has.
            logger.warning("%s; broker %d keeps its registration", fault, body["broker_id"])
            broker_epoch = known.broker_epoch
        self.publish_committed()
        return {"broker_epoch": broker_epoch}

    def was_clean(self, body: dict[str, Any], known: Any) -> bool:
        """Whether a broker that registers has all that it ever had: it stopped cleanly, or died
        alone, and the page cache with what it wrote lives. `known`: its registration before."""
        (slot,) = (s for s in self.shared.of_role(IO_WORKER) if s.number == body["broker_id"])
        if self.words[self.counters.at(slot.index, INCARNATION)] > 1 or known is None:
            return True
        return bool(body["previous_broker_epoch"] == known.broker_epoch)

    def on_alter_partition(self, call: Call, body: dict[str, Any]) -> dict[str, Any]:
        """A leader changes who is in sync: answered when it is committed."""
        answer = self.active.handle(call.api_name, call.api_version, body, clock.now_ms())
        self.publish_committed()
        return answer

    def on_producer_ids(self, call: Call, body: dict[str, Any]) -> dict[str, Any]:
        """A block of producer ids that nobody else gets."""
        error, start, count = self.active.allocate_producer_ids(
            body["broker_id"], body["broker_epoch"], clock.now_ms()
        )
        self.publish_committed()
        return {"error_code": error, "producer_id_start": start, "producer_id_len": count}

    def publish_committed(self) -> None:
        """Everyone may read up to here."""
        self.counters.store_metadata_leader(self.active.epoch, self.slot.number)
        self.words[METADATA_END_OFFSET_WORD] = self.active.committed_offset
        for doorbell in self.shared.doorbells[1:]:
            doorbell.ring_if_sleeping()

    def answer_parked(self, now: float) -> None:
        """Answer what every running broker has applied, or has had its time for."""
        words = self.words
        applied = min(
            (
                words[offset_index]
                for state_index, offset_index in self._brokers
                if words[state_index] == STATE_RUNNING
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
