"""DescribeLogDirs (key 35): the log directory of a broker, its partitions and their sizes.

Versions: 1-4.
Where: the I/O worker of the connection's port.
Version notes: 2 flexible; 3 top-level error; 4 total and usable bytes (KIP-827).
"""

import os
from typing import Any

from shmbroker.apis.contexts import BrokerContext
from shmbroker.ipc.operation_adapter import Call
from shmbroker.wire.error_codes import KAFKA_STORAGE_ERROR

API_KEY = 35
NAME = "DescribeLogDirs"
VERSION_MIN = 1
VERSION_MAX = 4
VERSION_MIN_ADVERTISED = 1


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> dict[str, Any]:
    """All partitions, or those asked for that are here; null topics means all."""
    if broker.store.is_fenced:
        return {
            "results": [
                {
                    "error_code": KAFKA_STORAGE_ERROR,
                    "log_dir": str(broker.log_directory.path),
                    "topics": [],
                }
            ]
        }
    wanted: dict[str, set[int]] | None = None
    if body["topics"] is not None:
        wanted = {}
        for topic in body["topics"]:
            wanted.setdefault(topic["topic"], set()).update(topic["partitions"])
    topics: dict[str, list[dict[str, Any]]] = {}
    for partition in broker.partitions.values():
        if wanted is not None and partition.partition not in wanted.get(partition.topic, ()):
            continue
        topics.setdefault(partition.topic, []).append(
            {
                "partition_index": partition.partition,
                "partition_size": partition.log.size_bytes,
                "offset_lag": 0,
                "is_future_key": False,
            }
        )
    disk = os.statvfs(broker.log_directory.path)
    return {
        "results": [
            {
                "log_dir": str(broker.log_directory.path),
                "topics": [
                    {"name": name, "partitions": partitions} for name, partitions in topics.items()
                ],
                "total_bytes": disk.f_blocks * disk.f_frsize,
                "usable_bytes": disk.f_bavail * disk.f_frsize,
            }
        ]
    }
