"""What readers ask for, and how: names that all of them share. Pure."""

from typing import NamedTuple

from shmbroker.client.profiles import ProfileEntry
from shmbroker.client.security import OPEN, Security
from shmbroker.ids import TopicPartition

Ends = dict[TopicPartition, int]

EARLIEST = -2
LATEST = -1
"""Kafka's own, in ListOffsets: where a log starts, and the end of what may be read."""

OFFSET_MAX = (1 << 63) - 1

HOLD_MS = 10 * 60 * 1000
"""How long the files of a plan stay, though retention drops them, unless the reader says it."""


class Consumer(NamedTuple):
    """How brokers are asked."""

    bootstrap_servers: str
    client_id: str = "shmbroker-client"
    timeout_s: float = 60.0
    """How long a question may take with all its tries; of a fetch, until bytes come."""
    answer_s: float = 30.0
    """How long one answer is waited for, then it is asked again; `timeout_s` at most. These are the
    defaults of Kafka's default.api.timeout.ms and request.timeout.ms: were the first no longer than
    the second, one answer that is lost would be the end."""
    is_read_committed: bool = False
    fetch_bytes: int = 8 << 20
    """Bytes asked for with one fetch; up to two answers are in memory at a time."""
    fetch_wait_ms: int = 500
    security: Security | None = OPEN
    """None: as `entry` leads to, where it is needed."""
    entry: ProfileEntry = ProfileEntry()

    def entering(self) -> Security:
        """How brokers are entered."""
        return self.entry.security() if self.security is None else self.security


def partition_text(topic_partition: TopicPartition) -> str:
    """The partition as messages name it: topic-0."""
    return f"{topic_partition[0]}-{topic_partition[1]}"
