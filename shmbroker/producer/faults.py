"""Faults of the producer, beside those of `shmbroker.errors`."""

from shmbroker.errors import Fault


class ClusterFault(Fault):
    """The cluster can't be asked, or refuses; the message says who, and what to do."""


class FencedFault(ClusterFault):
    """Somebody with a later epoch of the same producer id has written."""


class DeliveryFault(Fault):
    """Records could not be delivered; the producer is at its end.

    `topic`, `partition`, `error`: where and why (Kafka's name of the error). `delivered` and
    `not_delivered` count all records that were handed over; `by_partition` has both for each
    (topic, partition). Of those not delivered, `unknown` were sent without an answer that says
    what became of them: they may be in the log.
    """

    def __init__(
        self,
        text: str,
        topic: str,
        partition: int,
        error: str,
        by_partition: dict[tuple[str, int], tuple[int, int]],
        unknown: int,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.error = error
        self.by_partition = by_partition
        self.delivered = sum(delivered for delivered, _ in by_partition.values())
        self.not_delivered = sum(not_delivered for _, not_delivered in by_partition.values())
        self.unknown = unknown
        super().__init__(
            f"{topic}-{partition}: {error}: {text}; {self.delivered} records are delivered,"
            f" {self.not_delivered} are not"
            + (f" ({unknown} of them may be: their answer did not come)" if unknown else "")
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled as Spark and multiprocessing do: by its parts."""
        return _remade, (self.args[0], self.__dict__)


def _remade(text: str, parts: dict[str, object]) -> DeliveryFault:
    fault = DeliveryFault.__new__(DeliveryFault, text)
    fault.__dict__.update(parts)
    return fault
