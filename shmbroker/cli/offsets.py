"""Offsets of partitions, asked of their leaders all at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shmbroker.cli.client import ASK_S, TargetCluster, waited
from shmbroker.cli.words import EARLIEST, LATEST
from shmbroker.ids import TopicPartition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

Partition = TopicPartition
"""The name of confluent_kafka's class is taken in these modules."""


def list_offsets(
    cluster: TargetCluster,
    partitions: Iterable[Partition],
    at: str | int,
    admin: AdminClient | None = None,
    *,
    is_committed: bool = False,
) -> dict[Partition, int]:
    """{(topic, partition): offset} at EARLIEST, LATEST (the high watermark), or a moment in ms.

    is_committed: as readers of committed records see it: the end is the last stable offset. -1
    where no record is as new as that moment. CommandFault if a leader doesn't answer.
    """
    admin = _client(cluster, admin)
    futures = _asked(admin, partitions, at, is_committed)
    return {key: waited(future, f"{key[0]}-{key[1]}").offset for key, future in futures.items()}


def offsets_known(
    cluster: TargetCluster,
    partitions: Iterable[Partition],
    at: str | int,
    admin: AdminClient | None = None,
) -> dict[Partition, int]:
    """`list_offsets`, without the partitions whose leader does not answer."""
    from confluent_kafka import KafkaException

    admin = _client(cluster, admin)
    found = {}
    for key, future in _asked(admin, partitions, at, False).items():
        try:
            found[key] = future.result(2 * ASK_S).offset
        except (KafkaException, TimeoutError):
            continue
    return found


def _client(cluster: TargetCluster, admin: AdminClient | None) -> AdminClient:
    """The client that was given, or one of our own; it is compared with None, as the truth of a
    client is its length, the messages that it holds."""
    return cluster.admin() if admin is None else admin


def _asked(
    admin: AdminClient, partitions: Iterable[Partition], at: str | int, is_committed: bool
) -> dict[Partition, Any]:
    """{partition: future}; they come to nothing once nobody holds the client."""
    from confluent_kafka import IsolationLevel, TopicPartition
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
    levels: Any = IsolationLevel
    level = levels.READ_COMMITTED if is_committed else levels.READ_UNCOMMITTED
    futures = admin.list_offsets(asked, isolation_level=level, request_timeout=ASK_S)
    return {(key.topic, key.partition): future for key, future in futures.items()}
