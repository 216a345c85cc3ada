"""Whom a broker asks for what it does not do itself: the controller, other brokers, the cleaner,
the tier process. Each is False while there is nobody to ask, or no room: it is tried again."""

from __future__ import annotations

from typing import Any

from shmbroker.ipc.operation_adapter import OwnCall
from shmbroker.shm.counters import CLEANER_WANTED
from shmbroker.wire.api_keys import (
    ALLOCATE_PRODUCER_IDS,
    ALTER_PARTITION,
    CLEAN_LOG,
    TELL_LOG_ENDS,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.broker.ports import Peers
    from shmbroker.broker.registration import Registration
    from shmbroker.ipc.asking import Asking, OnAnswer
    from shmbroker.ipc.member import FamilyMember
    from shmbroker.ipc.operation_adapter import Executor

    Body = dict[str, Any]


class Asks:
    """What one broker asks others; `executor` executes what it asks itself."""

    def __init__(
        self,
        broker_id: int,
        asking: Asking,
        registration: Registration,
        peers: Peers,
        member: FamilyMember,
        executor: Executor,
    ) -> None:
        self._broker_id = broker_id
        self._asking = asking
        self._registration = registration
        self._peers = peers
        self._words = member.words
        self._cleaner_wanted = member.counters.at(member.index, CLEANER_WANTED)
        self._executor = executor

    def broker(
        self, broker_id: int, api_key: int, name: str, version: int, body: Body, on_answer: OnAnswer
    ) -> bool:
        """Have a broker answer a request, this one or a sibling."""
        if broker_id == self._broker_id:
            self._executor.execute_own(OwnCall(api_key, name, version, on_answer), body)
            return True
        peer = self._peers.siblings.get(broker_id)
        if peer is None or not peer.incarnation:
            return False
        return self._asking.ask(peer, api_key, name, version, body, on_answer)

    def for_producer_ids(self, on_answer: OnAnswer) -> bool:
        """Have the controller give some."""
        return self._registration.ask(
            ALLOCATE_PRODUCER_IDS, "AllocateProducerIds", 0, {}, on_answer
        )

    def for_in_sync(self, body: Body, on_answer: OnAnswer) -> bool:
        """Have the controller change in-sync replicas."""
        return self._registration.ask(ALTER_PARTITION, "AlterPartition", 3, body, on_answer)

    def tell_log_ends(self, body: Body, on_answer: OnAnswer) -> bool:
        """Tell the controller where logs end."""
        return self._registration.ask(TELL_LOG_ENDS, "TellLogEnds", 0, body, on_answer)

    def cleaner(self, body: Body, on_answer: OnAnswer) -> bool:
        """Have the cleaner compact a log; one is woken while none runs."""
        cleaner = self._peers.cleaner
        if cleaner is None or not cleaner.incarnation:
            self._words[self._cleaner_wanted] = 1  # for the supervisor
            self._peers.wake_cleaner()
            return False
        return self._asking.ask(cleaner, CLEAN_LOG, "CleanLog", 0, body, on_answer)

    def tier(self, api_key: int, name: str, body: Body, on_answer: OnAnswer) -> bool:
        """Have the tier process do something."""
        tier = self._peers.tier
        if tier is None or not tier.incarnation:
            return False
        return self._asking.ask(tier, api_key, name, 0, body, on_answer)
