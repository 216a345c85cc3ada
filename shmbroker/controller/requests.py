"""Requests of clients and brokers, as a controller executes them.

Rules of this file:
* Only the active controller executes requests; the others say NOT_EXECUTED, so that they can be
  sent on.
* A decision that clients wait for is answered when every running broker has applied it, so nobody
  sees a topic that its leader does not know yet (or a deleted one that is still served).
* Who ceases to be active in the middle of a request answers NOT_CONTROLLER.
* What is asked and answered, the modules of `apis.controller` say; this is their ControllerContext.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import NamedTuple

from shmbroker.apis import table
from shmbroker.controller.decisions.parts import WEIGHT_MAX, Joined, parts_of
from shmbroker.controller.mutation_quotas import UNBOUNDED, MutationQuotas
from shmbroker.controller.raft.voter import NotControllerFault
from shmbroker.errors import StorageFault
from shmbroker.ipc.operation_adapter import Answer, Call, Executor, Handler, Steps
from shmbroker.log.faults import DiskFullFault
from shmbroker.metadata.topic_names import INTERNAL_TOPICS
from shmbroker.shm.counters import METADATA_END_OFFSET_WORD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from shmbroker.apis.contexts import ControllerApi
    from shmbroker.controller.active_controller import ActiveController
    from shmbroker.controller.broker_watch import BrokerWatch
    from shmbroker.controller.controller import Controller
    from shmbroker.controller.mutation_quotas import Mutations
    from shmbroker.ipc.peer import Peer

logger = logging.getLogger(__name__)

APPLY_WAIT_S = 60.0
"""How long an answer waits for brokers that do not apply a decision."""


class Parked(NamedTuple):
    """An answer that waits for the brokers."""

    offset: int
    """One past what they have to apply."""
    deadline: float
    call: Call
    answer: dict[str, Any] | bytes
    """Bytes: it is encoded already."""


class Requests:
    """What is asked of a controller, from the rings to the answer; a `ControllerContext`."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._clock = controller.clock
        self._executor = Executor(
            {
                module.API_KEY: (module.NAME, self._handler_of(module))
                for module in (*table.IN_CONTROLLER, *table.OF_BROKERS)
            }
        )
        self._parked: list[Parked] = []
        config = controller.config
        self._mutation_quotas = MutationQuotas(
            config["controller.quota.window.num"], config["controller.quota.window.size.seconds"]
        )
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
                if isinstance(parked.answer, bytes):
                    parked.call.send(parked.answer)
                else:
                    parked.call.reply(parked.answer)
            else:
                waiting.append(parked)
        self._parked = waiting

    def _handler_of(self, module: ControllerApi) -> Handler:
        """What answers for the active controller with a module of an API, and for others as well;
        the turn raises the fault of the disk that it ended with."""

        def handle(call: Call, body: dict[str, Any]) -> Answer | Steps:
            if self._controller.active is None:
                call.refuse()
                return None
            try:
                answer = module.answer(self, call, body)
            except NotControllerFault:
                return module.not_controller(call.api_version, body)
            except StorageFault as fault:
                self._note(fault)
                raise
            return finish(call, body, answer) if isinstance(answer, Generator) else answer

        def finish(call: Call, body: dict[str, Any], steps: Steps) -> Steps:
            try:
                return (yield from steps)
            except NotControllerFault:
                return module.not_controller(call.api_version, body)
            except StorageFault as fault:
                self._note(fault)
                raise

        return handle

    def _note(self, fault: StorageFault) -> None:
        if not isinstance(fault, DiskFullFault):
            self._controller.fault = fault

    # ── what the API modules ask ────────────────────────────────────────────────────────────────

    @property
    def decisions(self) -> ActiveController:
        active = self._controller.active
        if active is None:  # since the first step of this request
            raise NotControllerFault
        return active

    @property
    def brokers(self) -> BrokerWatch:
        return self._controller.brokers

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def decide(self, call: Call, body: dict[str, Any]) -> Answer:
        """Decide, commit, and answer when the brokers have applied it."""
        answer = self.decisions.handle(
            call.api_name,
            call.api_version,
            body,
            self.now_ms(),
            call.identity,
            self._mutations(call),
        )
        return self.answer_when_applied(call, answer)

    def decide_in_parts(self, call: Call, body: dict[str, Any]) -> Steps:
        """Decide as `decide` does, in several steps where a request is about very many things."""
        active = self.decisions
        split = parts_of(call.api_name, body, active.image, active.config)
        if split is None:
            return self._decide_in_steps(call, body)
        return self._decide_parts(call, body, split)

    def _decide_in_steps(self, call: Call, body: dict[str, Any]) -> Steps:
        """One decision. Somebody else's may come before it, where it takes several steps."""
        answer = yield from self._steps_of(call, body)
        return self.answer_when_applied(call, answer)

    def _decide_parts(self, call: Call, body: dict[str, Any], split: list[dict[str, Any]]) -> Steps:
        """Each part is a decision like any other, and somebody else's may come between two."""
        whole = Joined(call.api_name, call.api_version, body)
        for part in split:
            answer = yield from self._steps_of(call, part)
            self._controller.publish_committed()
            yield
            whole.add(answer)
            yield
        self.park(call, whole.encoded())
        return None

    def create_used(self, call: Call, names: list[str]) -> Steps:
        """Create topics with their defaults, as many in a step as a part of a request may ask for;
        the answer names none. They count for whoever uses them, but for Kafka's own."""
        count = max(1, WEIGHT_MAX // (1 + self.decisions.config["num.partitions"]))
        for at in range(0, len(names), count):
            if at:
                yield
            part = names[at : at + count]
            mutations = UNBOUNDED if INTERNAL_TOPICS.issuperset(part) else self._mutations(call)
            self.decisions.create_topics_auto(part, self.now_ms(), mutations)
            self._controller.publish_committed()
        self.park(call, {"topics": []})
        return None

    def _steps_of(self, call: Call, body: dict[str, Any]) -> Generator[None, None, dict[str, Any]]:
        """The steps of one decision, and what it answers."""
        version, now_ms = call.api_version, self.now_ms()
        answer = yield from self.decisions.handle_in_steps(
            call.api_name, version, body, now_ms, call.identity, self._mutations(call)
        )
        if self._controller.active is None:
            raise NotControllerFault
        return answer

    def _mutations(self, call: Call) -> Mutations:
        """What the client of a call may have changed; of the control socket, everything."""
        identity = call.identity
        if not identity.listener:
            return UNBOUNDED
        return self._mutation_quotas.of(
            self.decisions.image.security.quotas,
            call.api_name,
            call.api_version,
            identity.principal,
            call.client_id,
            self._clock.monotonic(),
        )

    def settle(self) -> None:
        self._controller.settle(self.decisions)

    def publish_committed(self) -> None:
        self._controller.publish_committed()

    def answer_when_applied(self, call: Call, answer: dict[str, Any]) -> Answer:
        """The answer, or None where it is sent when the brokers have applied what is new."""
        committed = self._controller.voter.committed_offset
        if committed != self._controller.words[METADATA_END_OFFSET_WORD]:
            self._controller.publish_committed()
            self.park(call, answer)
            return None
        return answer

    def park(self, call: Call, answer: dict[str, Any] | bytes) -> None:
        """Answer when the brokers have applied what is committed now."""
        deadline = self._clock.monotonic() + APPLY_WAIT_S
        committed = self._controller.voter.committed_offset
        self._parked.append(Parked(committed, deadline, call, answer))

    def say_full(self, line: str) -> None:
        if not self._has_said_full:
            logger.error("%s", line)
        self._has_said_full = True
