"""AlterReplicaLogDirs (key 34): moving a replica between the log directories of its broker.

Versions: 1-2.
Where: the network worker: a broker has one log directory, so there is nowhere to move to.
Version notes: 2 flexible.
"""

from __future__ import annotations

from typing import Any

from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.apis.contexts import GatewayContext, Request

API_KEY = 34
NAME = "AlterReplicaLogDirs"
VERSION_MIN = 1
VERSION_MAX = 2
VERSION_MIN_ADVERTISED = 1

PARTITION_NAME_MAX = 255 - 40
"""A directory that is on its way is named after its partition, ".", an id and "-future"."""


def answer(gateway: GatewayContext, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """No error for what is in that directory already. A replica of another broker is not available
    here, which tools take as a reason to ask again; a partition that is nowhere is unknown."""
    broker_id = request.connection.listener.broker_id
    if broker_id < 0:
        broker_id = min(gateway.ports)
    here = gateway.identity_of(broker_id)["log.dirs"]
    results = []
    held_of: dict[str, dict[int, bool]] = {}
    for directory in body["dirs"]:
        for topic in directory["topics"]:
            name = topic["name"]
            if name not in held_of:
                known = gateway.image.topics_by_name.get(name)
                held_of[name] = {
                    partition.partition: broker_id in partition.replicas
                    for partition in (known.partitions if known is not None else ())
                }
            held = held_of[name]
            rows = []
            for index in topic["partitions"]:
                code = error_codes.NONE
                if len(f"{name}-{index}") > PARTITION_NAME_MAX:
                    code = error_codes.INVALID_TOPIC_EXCEPTION
                elif directory["path"] != here:
                    code = error_codes.LOG_DIR_NOT_FOUND
                elif index not in held:
                    code = error_codes.UNKNOWN_TOPIC_OR_PARTITION
                elif not held[index]:
                    code = error_codes.REPLICA_NOT_AVAILABLE
                rows.append({"partition_index": index, "error_code": code})
            if rows:
                results.append({"topic_name": name, "partitions": rows})
    return {"results": results}
