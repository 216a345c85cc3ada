"""Settings that have changed while a broker runs, taken over by the parts of it that use them."""

from __future__ import annotations

from collections.abc import Hashable

from shmbroker.shm.counters import CLEANER_RATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.broker.append import Appender
    from shmbroker.broker.compaction import Compaction
    from shmbroker.broker.live_settings import LiveSettings
    from shmbroker.broker.partition_store import PartitionStore
    from shmbroker.broker.read import Reader
    from shmbroker.broker.replication.replication import Replication
    from shmbroker.broker.tier_port import Tier
    from shmbroker.broker.transaction_exchange import TransactionExchange
    from shmbroker.ipc.member import FamilyMember
    from shmbroker.log.config import LogConfig


class AppliedSettings:
    """The settings that one broker has applied."""

    def __init__(
        self,
        settings: LiveSettings,
        member: FamilyMember,
        store: PartitionStore,
        appender: Appender,
        reader: Reader,
        exchange: TransactionExchange,
        replication: Replication,
        compaction: Compaction,
        tiering: Tier,
    ) -> None:
        self.settings = settings
        self.words = member.words
        self.store = store
        self.appender = appender
        self.reader = reader
        self.exchange = exchange
        self.replication = replication
        self.compaction = compaction
        self.tiering = tiering
        self._cleaner_rate_index = member.counters.at(member.index, CLEANER_RATE)

    def apply(self, topics: set[str]) -> None:
        """The settings of these topics have changed; "" is the broker's own, so all topics."""
        if "" in topics:
            self.apply_to_broker()
        settings = self.settings
        made: dict[Hashable, LogConfig] = {}
        for partition in self.store.partitions.values():
            if partition.topic in topics or "" in topics:
                # One takes a quarter of a millisecond, and most topics set the same: nothing.
                key = settings.key_of(partition.topic)
                config = made.get(key)
                if config is None:
                    config = made[key] = settings.of_topic(partition.topic)
                partition.log.set_config(config)
                partition.on_config(config)
                if partition.advance_high_watermark():  # min.insync.replicas may hold it no more
                    self.appender.acks.moved.add(partition)
                self.tiering.on_partition(partition)

    def apply_to_broker(self) -> None:
        """Take the settings of the broker itself, as they are now."""
        of_broker = self.settings.of_broker
        (rate,) = of_broker("log.cleaner.io.max.bytes.per.second")
        self.words[self._cleaner_rate_index] = int(min(max(rate, 1), 1e18))
        backoff_ms, map_bytes = of_broker(
            "log.cleaner.backoff.ms", "log.cleaner.dedupe.buffer.size"
        )
        self.compaction.on_config(backoff_ms, map_bytes)
        self.replication.set_rates(
            *of_broker("leader.replication.throttled.rate", "follower.replication.throttled.rate")
        )
        (self.exchange.is_verifying,) = of_broker("transaction.partition.verification.enable")
        self.reader.tier_wait_ms, self.tiering.find_timeout_ms = of_broker(
            "remote.fetch.max.wait.ms", "remote.list.offsets.request.timeout.ms"
        )
        copied, fetched = of_broker(
            "remote.log.manager.copy.max.bytes.per.second",
            "remote.log.manager.fetch.max.bytes.per.second",
        )
        self.tiering.copied.set_rate(copied)
        self.tiering.fetched.set_rate(fetched)
