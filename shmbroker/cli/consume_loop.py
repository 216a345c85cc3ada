"""The loop of `shmbroker consume`: poll, leave out what lies behind the ends, write to stdout.

Each batch that arrives is written at once: line by line where records trickle, in large pieces
where they don't. `-e` stops at what was the end when the command began. The loop ends, too, when
nobody reads stdout any more. Errors that the client library gets over by itself are waited out.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from shmbroker import clock
from shmbroker.cli.client import TargetCluster
from shmbroker.cli.offsets import Partition
from shmbroker.cli.outcome import CommandFault, binary, say, sentence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from confluent_kafka import KafkaError

POLL_S = 0.2
"""The longest that Ctrl-C waits."""
BATCH_MAX = 10_000

READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"


class Bounds(NamedTuple):
    """When to stop, and what of transactions is read."""

    is_ending: bool
    """Stop at what is the end when the command begins."""
    count_max: int | None
    """Stop after so many records."""
    stop_ms: int | None
    """Stop before the first record that is as new."""
    isolation: str
    idle_ms_max: int | None = None
    """Stop when no record has come for so long."""


class Notes(NamedTuple):
    """What may be said on stderr beside errors."""

    is_wanted: bool
    """What changes what comes out."""
    is_talkative: bool
    """What is waited for."""

    def tell(self, text: str) -> None:
        """Say what a user has to know."""
        if self.is_wanted:
            say(text)

    def explain(self, text: str) -> None:
        """Say why nothing comes."""
        if self.is_talkative:
            say(text)


def has_left(descriptor: int) -> bool:
    """Whether nobody reads the pipe or socket any more; an idle writer doesn't notice otherwise."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return bool(poll.poll(0))


def is_awaited(message: Any) -> bool:
    """Whether an error only says that no topic matches a pattern yet."""
    is_unknown = message.error().name() == "UNKNOWN_TOPIC_OR_PART"
    return is_unknown and str(message.topic()).startswith("^")


class Consuming:
    """The loop that both ways share: poll, drop what lies behind the ends, write."""

    def __init__(
        self,
        cluster: TargetCluster,
        bounds: Bounds,
        write: Callable[[list[Any]], bytes],
        notes: Notes,
    ) -> None:
        self.cluster = cluster
        self.is_ending = bounds.is_ending
        self.left = bounds.count_max
        """Records still to be written; None: no bound."""
        self.stop_ms = bounds.stop_ms
        self.isolation = bounds.isolation
        self.idle_s_max = None if bounds.idle_ms_max is None else bounds.idle_ms_max / 1000
        self.write = write
        self.notes = notes
        self.ends: dict[Partition, int] = {}
        """Where partitions end, exclusive; one that isn't in it has no end."""
        self.open: set[Partition] = set()
        """Partitions that are read and have not come to their end."""
        self.is_lost = False
        """The cluster can't be reached, and that was said."""
        self.fatal: Any = None
        """An error that the library doesn't get over, such as a group protocol not served."""
        self.consumer: Any = None

    def make(self, **settings: Any) -> None:
        """Make the consumer."""
        self.consumer = self.cluster.consumer(
            enable_partition_eof=True,
            isolation_level=self.isolation,
            fetch_wait_max_ms="100",
            # By default a full queue is left alone for a second: 120,000 records a second at most.
            fetch_queue_backoff_ms="5",
            on_error=self._on_error,
            **settings,
        )

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.fatal = error
        elif error.name() == "_ALL_BROKERS_DOWN" and not self.is_lost:
            say(f"cannot reach {self.cluster.servers} any more; trying again")
            self.is_lost = True

    def is_done(self) -> bool:
        return self.left == 0 or not self.open

    def loop(self) -> None:
        """Consume until it is done; the consumer is closed, whatever happens."""
        from confluent_kafka import KafkaError

        eof = KafkaError._PARTITION_EOF
        consumer, out = self.consumer, binary(sys.stdout)
        is_bounded = self.is_ending or self.stop_ms is not None
        poll_s = POLL_S if self.idle_s_max is None else min(POLL_S, self.idle_s_max)
        came_s = clock.monotonic()
        try:
            while not self.is_done():
                if self.idle_s_max is not None and clock.monotonic() - came_s >= self.idle_s_max:
                    return
                first = consumer.poll(poll_s)
                if self.fatal is not None:
                    raise CommandFault(sentence(self.fatal))
                if first is None:
                    if has_left(out.fileno()):
                        raise BrokenPipeError
                    self.idle()
                    continue
                batch = [first, *consumer.consume(BATCH_MAX, 0)]
                self.is_lost = False
                messages = [message for message in batch if message.error() is None]
                if messages:
                    came_s = clock.monotonic()
                if is_bounded and messages:
                    messages = [message for message in messages if self._is_wanted(message)]
                if self.left is not None:
                    del messages[self.left :]
                    self.left -= len(messages)
                if messages:
                    out.write(self.write(messages))
                    out.flush()
                    self.written(messages)
                for message in batch:
                    error = message.error()
                    if error is None:
                        continue
                    if error.code() == eof:
                        if self.is_ending:
                            self.open.discard((message.topic(), message.partition()))
                    elif not error.retriable() and not is_awaited(message):
                        raise CommandFault(f"{message.topic() or 'consume'}: {sentence(error)}")
        finally:
            consumer.close()

    def _is_wanted(self, message: Any) -> bool:
        partition = message.topic(), message.partition()
        offset = message.offset()
        end = self.ends.get(partition)
        if end is not None and offset >= end - 1:
            self.open.discard(partition)
        if self.stop_ms is not None and message.timestamp()[1] >= self.stop_ms:
            self.ends[partition] = min(offset, self.ends.get(partition, offset))
            self.open.discard(partition)
        return partition in self.open or offset < self.ends.get(partition, 0)

    def written(self, messages: list[Any]) -> None:
        """Take note of what has reached stdout."""

    def idle(self) -> None:
        """Take note that nothing came for POLL_S."""
