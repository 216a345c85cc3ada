"""A controller: the metadata log, and every decision that goes into it.

Rules of this file:
* Append, flush, then publish the committed offset in the shared word and ring every doorbell; the
  others read the log file, never beyond that word.
* A fault of the disk ends this process, as nobody knows any more what is on it; its successor
  recovers. A full disk ends nothing: there the log is as it was.
* A decision that clients wait for is answered when every running broker has applied it, so nobody
  sees a topic that its leader does not know yet (or a deleted one that is still served).
"""

import logging
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
    METADATA_APPLIED,
    METADATA_END_OFFSET_WORD,
    STATE,
    STATE_RUNNING,
)

logger = logging.getLogger("shmbroker")

APPLY_WAIT_S = 60.0
"""How long an answer waits for brokers that do not apply a decision."""

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
            str(data_directory / f"node-{slot.number}"),
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
        self.say_running()
        while not self.must_stop:
            self.check_control()
            had_work = self.execute_waiting(self.executor)
            if self.fault is not None:
                raise self.fault
            now = clock.monotonic()
            if self.parked:
                self.answer_parked(now)
            self.publish()
            self.sign(now)
            if not had_work:
                self.sleep(BACKLOG_RETRY_S if self.has_backlog() else 0.5)
        self.say_stopping()
        self.active.close()

    def on_peer_lost(self, peer: Peer) -> None:
        """Forget the half of a request that it had sent."""
        self.executor.drop_parts(peer.slot)

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
        except DiskFullFault as fault:
            known = self.active.image.brokers.get(body["broker_id"])
            if known is None:
                raise
            # It is the same directory at the same address: it may serve what it has.
            logger.warning("%s; broker %d keeps its registration", fault, body["broker_id"])
            broker_epoch = known.broker_epoch
        self.publish_committed()
        return {"broker_epoch": broker_epoch}

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
