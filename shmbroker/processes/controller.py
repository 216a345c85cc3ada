"""A controller: the metadata log, and every decision that goes into it.

Rules of this file:
* Append, flush, then publish the committed offset in the shared word and ring every doorbell; the
  others read the log file, never beyond that word.
* A decision that clients wait for is answered when every running broker has applied it, so nobody
  sees a topic that its leader does not know yet (or a deleted one that is still served).
"""

import logging
from pathlib import Path
from typing import Any

from shmbroker import clock
from shmbroker.apis import table
from shmbroker.controller.active_controller import ActiveController
from shmbroker.ipc.operation_adapter import Call, Executor
from shmbroker.ipc.operation_layout import EXECUTE
from shmbroker.processes.child import SleepingChild
from shmbroker.processes.shared_resources import IO_WORKER, SharedResources, Slot
from shmbroker.shm.counters import (
    METADATA_APPLIED,
    METADATA_END_OFFSET_WORD,
    STATE,
    STATE_RUNNING,
)

logger = logging.getLogger("shmbroker")

APPLY_WAIT_S = 5.0
"""How long an answer waits for brokers that do not apply a decision."""

FROM_BROKERS = ((62, "BrokerRegistration"), (67, "AllocateProducerIds"))


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
            data_directory / f"node-{slot.number}",
            node_id=slot.number,
            cluster_id=cluster_id,
            config=config,
            now_ms=clock.now_ms(),
        )
        handlers = {row[0]: (row[1], self.on_call) for row in table.IN_CONTROLLER}
        handlers |= {key: (name, self.on_call) for key, name in FROM_BROKERS}
        self.executor = Executor(handlers)
        self.parked: list[tuple[int, float, Call, dict[str, Any]]] = []
        self._brokers = [
            (self.counters.at(other.index, STATE), self.counters.at(other.index, METADATA_APPLIED))
            for other in shared.of_role(IO_WORKER)
        ]

    def run(self) -> None:
        """Serve until asked to stop."""
        self.publish_committed()
        self.say_running()
        while not self.must_stop:
            self.check_control()
            had_work = False
            for peer in self.peers:
                reader = peer.reader
                if not reader.poll():
                    continue
                had_work = True
                while (entry := reader.next()) is not None:
                    operation, index, length = entry
                    assert operation == EXECUTE, operation
                    self.executor.on_execute(peer, reader.data, index, length)
                reader.release()
            now = clock.monotonic()
            if self.parked:
                self.answer_parked(now)
            self.publish()
            self.sign(now)
            if not had_work:
                self.sleep(0.5)
        self.say_stopping()
        self.active.close()

    def on_call(self, call: Call, body: dict[str, Any]) -> dict[str, Any] | None:
        """Decide, commit, and answer when the brokers have applied it."""
        answer = self.active.handle(call.api_name, call.api_version, body, clock.now_ms())
        committed = self.active.committed_offset
        if committed != self.words[METADATA_END_OFFSET_WORD]:
            self.publish_committed()
            if call.api_key not in (62, 67):
                self.parked.append((committed, clock.monotonic() + APPLY_WAIT_S, call, answer))
                return None
        return answer

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
