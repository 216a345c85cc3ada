"""Offsets of partitions, asked of their leaders all at once."""

from collections.abc import Iterable
from typing import Any

from shmbroker.cli.client import ASK_S, Cluster, waited
from shmbroker.cli.words import EARLIEST, LATEST

Partition = tuple[str, int]


def list_offsets(
    cluster: Cluster, partitions: Iterable[Partition], at: str | int, admin: Any = None
) -> dict[Partition, int]:
    """{(topic, partition): offset} at EARLIEST, LATEST (the high watermark), or a moment in ms.

    -1 where no record is as new as that moment. CommandFault if a leader doesn't answer.
    """
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec

    kinds: Any = OffsetSpec
    if at == EARLIEST:
        spec = kinds.earliest()
    elif at == LATEST:
        spec = kinds.latest()
    else:
        spec = kinds.for_timestamp(int(at))
    asked = {TopicPartition(*partition): spec for partition in partitions}
    if not asked:
        return {}
    admin = admin or cluster.admin()
    futures = admin.list_offsets(asked, request_timeout=ASK_S)
    return {
        (key.topic, key.partition): waited(future, f"{key.topic}-{key.partition}").offset
        for key, future in futures.items()
    }
