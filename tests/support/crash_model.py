"""What is promised of the only log of a topic, as the model of `crash_workload` notes it."""

import random
from types import SimpleNamespace

from shmbroker.log.config import LogConfig

PRODUCERS = 3
TRANSACTIONAL = range(10, 13)
SMALL = {"segment.bytes": "6000", "index.interval.bytes": "400", "file.delete.delay.ms": "500"}
TOPICS = {
    "plain": SMALL | {"retention.ms": "-1"},
    "short": SMALL | {"retention.bytes": "15000", "retention.ms": "-1"},
    "compacted": SMALL
    | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "segment.bytes": "3000"},
    "durable": SMALL | {"shmbroker.ack.durability": "fsync", "retention.ms": "-1"},
}


class Topic:
    """What the metadata image would hold, and the model of the topic's only log."""

    is_internal = False
    partitions = (SimpleNamespace(replicas=(1,)),)

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name = name
        self.topic_id = rng.randbytes(16)
        self.config = LogConfig(TOPICS[name])
        self.config.producer_snapshot_interval = 4
        self.batches: dict[int, tuple[int, bytes, int]] = {}
        """base offset -> (end offset, all from the epoch's position on, epoch); what is there."""
        self.before: dict[int, tuple[int, bytes, int]] | None = None
        """The same before a truncation that is under way."""
        self.end = 0
        self.durable_end = 0
        self.start_least = 0
        """Nothing before is served after a crash: made durable by a checkpoint."""
        self.start_most = 0
        self.start_told = 0
        """Nothing before is served when processes die: DeleteRecords was acknowledged."""
        self.epoch = 0
        self.sequences: dict[int, int] = {}

    @property
    def is_compacted(self) -> bool:
        return self.config.is_compacted
