"""What a broker does once a second: what is retried, too old or worth less, and what it shows."""

from __future__ import annotations

from shmbroker import logs
from shmbroker.metadata.topic_names import TRANSACTION_TOPIC

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.broker.broker import Broker


class Housekeeping:
    """The rounds of one broker. Its clock was looked at just before."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def run(self) -> None:
        """Try again what failed, look at the disk and the replicas, roll, retain, compact, mend."""
        broker, now_ms = self._broker, self._broker.now_ms()
        logs.flush()
        broker.placement.open_unopened()
        broker.groups.load_again()
        broker.transactions.load_again()
        broker.disk_watch.look()
        if not broker.replication.is_alone:
            broker.replication.look_at_all(broker.image)
        broker.damage.restore_removed(broker.upkeep.run(now_ms))
        broker.compaction.run(now_ms)
        broker.damage.run(now_ms)
        broker.tiering.run()
        broker.drop_passed_files()
        broker.publish()
        self._show()

    def _show(self) -> None:
        """Let others see what the broker did and has."""
        broker = self._broker
        shown = broker.shown
        shown.work(
            broker.turns, broker.appender, broker.reader, broker.purgatory, broker.replication
        )
        shown.disk(broker.store, broker.flusher, broker.reader)
        shown.groups(broker.groups)
        if TRANSACTION_TOPIC in broker.image.topics_by_name:  # else nobody has had any
            shown.transactions(broker.store, broker.transactions, broker.now_ms())
        shown.latencies()
