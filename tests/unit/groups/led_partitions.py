"""Partitions of an internal topic, with real logs, led by the only broker."""

import itertools
from pathlib import Path

from shmbroker.log.config import LogConfig
from shmbroker.log.partition_log import PartitionLog
from shmbroker.replica.partition import Partition
from shmbroker.settings.layers import effective_topic_configs


def led_partitions(directory: Path, topic: str, count: int) -> list[Partition]:
    """So many partitions of this topic, whose logs are below `directory`."""
    made = []
    file_ids = itertools.count(1)
    for index in range(count):
        path = directory / f"{topic}-{index}"
        path.mkdir()
        config = LogConfig(effective_topic_configs({}, ()))
        log = PartitionLog.open(str(path), config, file_ids=file_ids)
        partition = Partition(b"", topic, b"", index, log)
        partition.is_leader = True
        partition.leader_epoch = 1
        partition.replicas = partition.in_sync_replicas = (1,)
        made.append(partition)
    return made
