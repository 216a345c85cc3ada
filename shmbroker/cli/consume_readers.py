"""The two ways of `shmbroker consume` to its partitions: from a place, or as a member of a group.

PartitionReader finds out where partitions begin and end, and assigns them to itself. GroupReader
subscribes, is given partitions, and commits what has been written to stdout. Both say on stderr
what a user has to know: that an offset is not in the log, what a group waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

from shmbroker.cli.client import TargetCluster, is_pattern, matching, metadata
from shmbroker.cli.consume_loop import READ_COMMITTED, Consuming
from shmbroker.cli.offsets import Partition, list_offsets
from shmbroker.cli.outcome import CommandFault
from shmbroker.cli.words import (
    EARLIEST,
    INTERNAL,
    LATEST,
    OFFSET,
    SINCE,
    TAIL,
    Place,
    hides_internal,
    to_posix,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from confluent_kafka import Consumer

RANGES_MAX = 3
"""The most partitions that are named; more are counted."""
QUIET_POLLS = 3
"""How many empty polls pass before it is said what a group waits for."""


class PartitionReader(Consuming):
    """Partitions from a place, nothing remembered."""

    def __init__(
        self,
        cluster: TargetCluster,
        topics: tuple[str, ...],
        partitions: tuple[int, ...],
        start: Place,
        *rest: Any,
    ) -> None:
        super().__init__(cluster, *rest)
        self.topics = topics
        self.partitions = partitions
        self.start = start

    def run(self) -> None:
        from confluent_kafka import TopicPartition

        # The library wants the name of a group; nothing is ever committed to it.
        self.make(
            group_id="shmbroker-consume", enable_auto_commit=False, auto_offset_reset=EARLIEST
        )
        known = metadata(self.consumer, self.cluster).topics
        wanted = [
            partition
            for topic in matching(self.topics, known, "topic")
            for partition in partitions_of(known, topic, self.partitions)
        ]
        firsts = list_offsets(self.cluster, wanted, EARLIEST)
        is_committed = self.isolation == READ_COMMITTED
        lasts = list_offsets(self.cluster, wanted, LATEST, is_committed=is_committed)
        starts = self._starts(wanted, firsts, lasts)
        if self.start.kind == OFFSET:
            for text in outside(self.start.number, firsts, lasts, self.is_ending):
                self.notes.tell(text)
        if self.is_ending:
            self.ends = lasts
            starts = {key: offset for key, offset in starts.items() if offset < lasts[key]}
        self.open = set(starts)
        self.consumer.assign([TopicPartition(*key, offset) for key, offset in starts.items()])
        self.loop()

    def _starts(
        self, wanted: list[Partition], firsts: dict[Partition, int], lasts: dict[Partition, int]
    ) -> dict[Partition, int]:
        kind, number = self.start
        if kind == EARLIEST:
            return firsts
        if kind == LATEST:
            return lasts
        if kind == TAIL:
            return {key: max(firsts[key], lasts[key] - number) for key in wanted}
        if kind == OFFSET:
            return {key: min(max(firsts[key], number), lasts[key]) for key in wanted}
        assert kind == SINCE
        found = list_offsets(self.cluster, wanted, number)
        return {key: found[key] if found[key] >= 0 else lasts[key] for key in wanted}


class GroupReader(Consuming):
    """A member of a group; what was written is committed."""

    def __init__(
        self, cluster: TargetCluster, topics: tuple[str, ...], group: str, reset: str, *rest: Any
    ) -> None:
        super().__init__(cluster, *rest)
        self.topics = list(topics)
        self.group = group
        self.reset = reset
        self.is_assigned = False
        self.quiet_polls = 0

    def run(self) -> None:
        settings = {"topic_blacklist": INTERNAL} if hides_internal(self.topics) else {}
        if any(map(is_pattern, self.topics)):
            settings["topic_metadata_refresh_interval_ms"] = "10000"
        self.make(
            group_id=self.group,
            auto_offset_reset=self.reset,
            enable_auto_commit=True,
            enable_auto_offset_store=False,
            **settings,
        )
        try:
            subscription = self._subscription()
        except BaseException:
            self.consumer.close()
            raise
        self.consumer.subscribe(subscription, on_assign=self._assigned, on_revoke=self._revoked)
        self.loop()

    def _subscription(self) -> list[str]:
        """The topics as librdkafka takes them: names, and regular expressions ("^…").

        CommandFault for a name that isn't there, and for a pattern without a topic if that would
        never end.
        """
        known = metadata(self.consumer, self.cluster).topics
        subscription = []
        for word in self.topics:
            try:
                subscription.append(to_posix(word) if is_pattern(word) else word)
            except ValueError as refusal:
                raise click.UsageError(f"{refusal}.") from None
            try:
                matching([word], known, "topic")
            except CommandFault:
                if self.is_ending or not is_pattern(word):
                    raise
                self.notes.tell(f"no topic matches {word} yet; waiting for one")
        return subscription

    def idle(self) -> None:
        self.quiet_polls += 1
        if self.quiet_polls == QUIET_POLLS and not self.is_assigned:
            self.notes.explain(
                f"waiting for group {self.group} to share out partitions: its broker gives other "
                "members group.initial.rebalance.delay.ms to join, 3 s by default "
                "(-X group.protocol=consumer does without)"
            )

    def is_done(self) -> bool:
        if self.left == 0:
            return True
        return self.is_assigned and not self.open and (self.is_ending or self.stop_ms is not None)

    def _assigned(self, _consumer: Consumer, partitions: list[Any]) -> None:
        self.is_assigned = True
        names = [f"{entry.topic}-{entry.partition}" for entry in partitions]
        self.notes.explain(
            f"group {self.group} gave us {', '.join(names) or 'no partition: others have them'}"
        )
        self.open.update((partition.topic, partition.partition) for partition in partitions)

    def _revoked(self, _consumer: Consumer, partitions: list[Any]) -> None:
        self.open.difference_update((entry.topic, entry.partition) for entry in partitions)
        self.is_assigned = bool(self.open)

    def written(self, messages: list[Any]) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        ends = {(message.topic(), message.partition()): message.offset() for message in messages}
        for (topic, partition), offset in ends.items():
            try:
                self.consumer.store_offsets(offsets=[TopicPartition(topic, partition, offset + 1)])
            except KafkaException:
                pass  # taken away meanwhile: its next owner reads it again


def partitions_of(
    known: Mapping[str, Any], topic: str, numbers: Iterable[int] = ()
) -> list[Partition]:
    """These partitions of a topic, or all of them; CommandFault for one that isn't there."""
    if topic not in known:
        raise CommandFault(f"there is no topic {topic}; `shmbroker topic list` shows what is there")
    there = sorted(known[topic].partitions)
    for number in numbers:
        if number not in there:
            raise CommandFault(f"{topic} has no partition {number}, only 0 to {len(there) - 1}")
    return [(topic, number) for number in numbers or there]


def outside(
    number: int, firsts: Mapping[Partition, int], lasts: Mapping[Partition, int], is_ending: bool
) -> Iterator[str]:
    """What to say where an offset to begin at is not in the log: behind its end, before its start.

    The end itself is the place of the next record, and nothing is said of it.
    """
    beyond = [key for key in lasts if number > lasts[key]]
    before = [key for key in firsts if number < firsts[key]]
    if beyond:
        then = "nothing to read there" if is_ending else "waiting for new records"
        yield f"offset {number} is beyond the end of {_ranges(beyond, firsts, lasts)}: {then}"
    if before:
        yield (
            f"offset {number} is not in {_ranges(before, firsts, lasts)} any more: "
            "beginning at the first that is"
        )


def _ranges(
    keys: list[Partition], firsts: Mapping[Partition, int], lasts: Mapping[Partition, int]
) -> str:
    """ "t-0 (offsets 0 to 4)", the first of these, and how many more there are."""
    shown = []
    for key in sorted(keys)[:RANGES_MAX]:
        first, last = firsts[key], lasts[key]
        held = f"offsets {first} to {last - 1}" if first < last else f"empty, next offset {last}"
        shown.append(f"{key[0]}-{key[1]} ({held})")
    if len(keys) > RANGES_MAX:
        shown.append(f"{len(keys) - RANGES_MAX} more")
    return ", ".join(shown[:-1]) + " and " + shown[-1] if len(shown) > 1 else shown[0]
