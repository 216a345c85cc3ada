"""The coordinators of a broker: of the groups, and of the transactional ids, whose partitions of
`__consumer_offsets` and `__transaction_state` it leads.

Rules of this file:
* They append to the broker's own logs, and are told what the in-sync replicas have of that.
* What is due of them is done in the broker's turns: `wake_ms` says when that is.
"""

from __future__ import annotations

from shmbroker.groups.coordinator import GroupCoordinator
from shmbroker.groups.transactions.coordinator import TransactionCoordinator
from shmbroker.ids import new_member_id
from shmbroker.metadata.features import TRANSACTION_VERSION
from shmbroker.metadata.topic_names import OFFSETS_TOPIC

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.broker.append import Appender
    from shmbroker.broker.producer_ids import ProducerIds
    from shmbroker.broker.transaction_exchange import TransactionExchange
    from shmbroker.metadata.followed import Followed
    from shmbroker.replica.partition import Partition
    from shmbroker.settings.broker_config import BrokerConfig
    from shmbroker.shm.standing import StandingAnswers


class Coordinators:
    """Both of them, and the exchange with those of other brokers."""

    def __init__(
        self,
        config: BrokerConfig,
        appender: Appender,
        exchange: TransactionExchange,
        producer_ids: ProducerIds,
        standing: StandingAnswers,
        metadata: Followed,
    ) -> None:
        self._metadata = metadata
        now_ms, steady_ms, on_stored = appender.now_ms, appender.steady_ms, appender.acks.on_stored
        self.groups = GroupCoordinator(
            config, now_ms, steady_ms, new_member_id, on_stored, standing
        )
        self.transactions = TransactionCoordinator(
            config,
            now_ms,
            steady_ms,
            producer_ids.take,
            self._transaction_version,
            on_stored,
            exchange.send,
        )
        self.exchange = exchange
        exchange.on_marked = self.transactions.endings.on_marked
        for coordinator in (self.groups, self.transactions):
            coordinator.on_unread = appender.on_storage_fault

    def _transaction_version(self) -> int:
        """The level of `transaction.version`."""
        return self._metadata.image.features.get(TRANSACTION_VERSION, 0)

    @property
    def wake_ms(self) -> float:
        """Steady milliseconds at which something is due."""
        return min(self.groups.wake_ms, self.transactions.wake_ms, self.exchange.next_ms)

    def run_due(self, steady_ms: int) -> bool:
        """What is due of groups and transactions; True if there was anything."""
        had_work = False
        if self.groups.wake_ms <= steady_ms:
            self.groups.run_due()
            had_work = True
        if self.transactions.wake_ms <= steady_ms:
            self.transactions.run_due()
            had_work = True
        if self.exchange.to_verify:
            self.exchange.ask_coordinators()
        return had_work

    def on_high_watermark(self, partition: Partition) -> None:
        """What a coordinator waited for in a log of its own may be with the in-sync replicas."""
        if partition.topic == OFFSETS_TOPIC:
            self.groups.on_high_watermark(partition)
        else:
            self.transactions.on_high_watermark(partition)
