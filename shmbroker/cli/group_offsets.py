"""Committed offsets of a group: read, changed, and the words that say of which partitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from shmbroker.cli.client import ASK_S, CHANGE_S, TargetCluster, metadata, settled, waited
from shmbroker.cli.offsets import Partition
from shmbroker.cli.outcome import CommandFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


def target_options(function: Any) -> Any:
    """The options of a command that say of which partitions; see `targets_of`."""
    for option in (
        click.option(
            "--all-topics", is_flag=True, help="All partitions that have a committed offset."
        ),
        click.option(
            "--topic",
            "topics",
            metavar="TOPIC[:P,P…]",
            multiple=True,
            help="All partitions of this topic, or these; repeatable.",
        ),
    ):
        function = option(function)
    return function


def targets_of(
    cluster: TargetCluster,
    admin: AdminClient,
    committed: dict[Partition, int],
    topics: tuple[str, ...],
    all_topics: bool,
) -> list[Partition]:
    """The partitions that --topic and --all-topics mean, in order. click.UsageError where they say
    nothing, or each something else; CommandFault where one isn't there."""
    if bool(topics) == all_topics:
        raise click.UsageError("Say which partitions: --topic TOPIC[:P,P…] or --all-topics.")
    if all_topics:
        return sorted(committed)
    known = metadata(admin, cluster).topics
    found = set()
    for word in topics:
        topic, colon, numbers = word.partition(":")
        if topic not in known:
            raise CommandFault(
                f"there is no topic {topic}; `shmbroker topic list` shows what is there"
            )
        there = set(known[topic].partitions)
        try:
            wanted = {int(number) for number in numbers.split(",")} if colon else there
        except ValueError:
            raise click.UsageError(f"--topic takes TOPIC or TOPIC:0,1,2, not {word!r}.") from None
        if missing := wanted - there:
            raise CommandFault(f"{topic} has no partition {min(missing)}")
        found |= {(topic, partition) for partition in wanted}
    return sorted(found)


def committed_offsets(admin: AdminClient, group: str) -> dict[Partition, int]:
    """{(topic, partition): committed offset}; CommandFault if the group's coordinator refuses."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    asked = [ConsumerGroupTopicPartitions(group)]
    future = settled(lambda: admin.list_consumer_group_offsets(asked, request_timeout=ASK_S)[group])
    found = waited(future, f"group {group}")
    return {
        (entry.topic, entry.partition): entry.offset
        for entry in found.topic_partitions
        if entry.offset >= 0
    }


def existing(
    cluster: TargetCluster, admin: AdminClient, partitions: Iterable[Partition]
) -> list[Partition]:
    """Drop the partitions that are gone: a topic may be deleted, and its offsets stay."""
    known = metadata(admin, cluster).topics
    return [
        (topic, partition)
        for topic, partition in partitions
        if topic in known and partition in known[topic].partitions
    ]


def commit_offsets(admin: AdminClient, group: str, offsets: dict[Partition, int]) -> None:
    """Commit offsets for a group without members; CommandFault at the first that is refused."""
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    wanted = ConsumerGroupTopicPartitions(
        group, [TopicPartition(*key, offset) for key, offset in offsets.items()]
    )
    future = settled(
        lambda: admin.alter_consumer_group_offsets([wanted], request_timeout=CHANGE_S)[group]
    )
    done = waited(future, f"group {group}")
    for entry in done.topic_partitions:
        if entry.error is not None:
            raise CommandFault(f"{entry.topic}-{entry.partition}: {entry.error.str()}")
