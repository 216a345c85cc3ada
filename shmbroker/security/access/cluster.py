"""Rights on the cluster: its settings, its brokers, its ACLs, its users.

    one right opens all of it    `needs_cluster`, with the answer of those who lack it (`_per_…`)
    each resource by itself      settings: of topics and groups by their rights, else the cluster's
    one of two rights            WriteTxnMarkers

Rules of this file:
* Pure.
* A refusal has the shape that Kafka gives it: an error for all, or one in a row for each thing
  that was asked for.
* Whether a thing is there is not told to whoever is refused.

Source: Kafka's KafkaApis and ControllerApis; `needs` has what it was seen to answer.
"""

from __future__ import annotations

from shmbroker.metadata.image import BROKER_LOGGER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE
from shmbroker.security.access.asker import (
    Asker,
    Message,
    Outcome,
    Partly,
    Refused,
    needs_cluster,
    partly,
)
from shmbroker.security.acls import (
    ALTER,
    ALTER_CONFIGS,
    CLUSTER,
    CLUSTER_ACTION,
    CLUSTER_NAME,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    TOPIC,
)
from shmbroker.wire.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    GROUP_AUTHORIZATION_FAILED,
    TOPIC_AUTHORIZATION_FAILED,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CLUSTER_FAILED = "Cluster authorization failed."


def _all_in_one(version: int, body: Message, error: int) -> Message:
    return {"error_code": error, "error_message": CLUSTER_FAILED}


def _per_acl(version: int, body: Message, error: int) -> Message:
    row = {"error_code": error, "error_message": CLUSTER_FAILED}
    return {"results": [row for _ in body["creations"]]}


def _per_filter(version: int, body: Message, error: int) -> Message:
    row = {"error_code": error, "error_message": CLUSTER_FAILED, "matching_acls": []}
    return {"filter_results": [row for _ in body["filters"]]}


def _per_user(version: int, body: Message, error: int) -> Message:
    users = dict.fromkeys(row["name"] for row in (*body["deletions"], *body["upsertions"]))
    row = {"error_code": error, "error_message": CLUSTER_FAILED}
    return {"results": [row | {"user": user} for user in users]}


def _per_log(version: int, body: Message, error: int) -> Message:
    topics: dict[str, list[int]] = {}
    for directory in body["dirs"]:
        for topic in directory["topics"]:
            topics.setdefault(topic["name"], []).extend(topic["partitions"])
    return {
        "results": [
            {
                "topic_name": name,
                "partitions": [{"partition_index": at, "error_code": error} for at in partitions],
            }
            for name, partitions in topics.items()
        ]
    }


def _per_named_user(version: int, body: Message, error: int) -> Message:
    row = {"error_code": error, "error_message": None}
    return row | {"results": [row for _ in body["users"] or ()]}  # their names are not said


def _per_entity(version: int, body: Message, error: int) -> Message:
    row = {"error_code": error, "error_message": CLUSTER_FAILED}
    return {"entries": [row | {"entity": entry["entity"]} for entry in body["entries"]]}


def _per_marker(version: int, body: Message, error: int) -> Message:
    return {
        "markers": [
            {
                "producer_id": marker["producer_id"],
                "topics": [
                    {
                        "name": topic["name"],
                        "partitions": [
                            {"partition_index": index, "error_code": error}
                            for index in topic["partition_indexes"]
                        ],
                    }
                    for topic in marker["topics"]
                ],
            }
            for marker in body["markers"]
        ]
    }


def _per_election(version: int, body: Message, error: int) -> Message:
    row = {"error_code": error, "error_message": CLUSTER_FAILED}
    answer: Message = {
        "replica_election_results": [
            {
                "topic": topic["topic"],
                "partition_result": [row | {"partition_id": at} for at in topic["partitions"]],
            }
            for topic in body["topic_partitions"] or ()
        ]
    }
    return answer | ({"error_code": error} if version >= 1 else {})


def _per_move(version: int, body: Message, error: int) -> Message:
    row = {"error_code": error, "error_message": CLUSTER_FAILED}
    responses = [
        {
            "name": topic["name"],
            "partitions": [
                row | {"partition_index": one["partition_index"]} for one in topic["partitions"]
            ],
        }
        for topic in body["topics"]
    ]
    return row | {"responses": responses}


def _moves(version: int, body: Message, error: int) -> Message:
    topics = [
        {
            "name": topic["name"],
            "partitions": [{"partition_index": index} for index in topic["partition_indexes"]],
        }
        for topic in body["topics"] or ()
    ]
    return _all_in_one(version, body, error) | {"topics": topics}


alter = needs_cluster(ALTER, _all_in_one)
elect_leaders = needs_cluster(ALTER, _per_election)
alter_partition_reassignments = needs_cluster(ALTER, _per_move)
list_partition_reassignments = needs_cluster(DESCRIBE, _moves)
describe = needs_cluster(DESCRIBE, _all_in_one)
describe_log_dirs = needs_cluster(
    DESCRIBE, lambda version, body, error: {"error_code": error, "results": []}
)
describe_acls = needs_cluster(
    DESCRIBE,
    lambda version, body, error: _all_in_one(version, body, error) | {"resources": []},
)
create_acls = needs_cluster(ALTER, _per_acl)
delete_acls = needs_cluster(ALTER, _per_filter)
describe_client_quotas = needs_cluster(
    DESCRIBE_CONFIGS,
    lambda version, body, error: {"error_code": error, "error_message": None, "entries": None},
)
alter_client_quotas = needs_cluster(ALTER_CONFIGS, _per_entity)
describe_users = needs_cluster(DESCRIBE, _per_named_user)
alter_users = needs_cluster(ALTER, _per_user)
alter_replica_log_dirs = needs_cluster(ALTER, _per_log)
list_config_resources = needs_cluster(
    DESCRIBE_CONFIGS, lambda version, body, error: {"error_code": error, "config_resources": []}
)


def _may_with_settings(asker: Asker, operation: int, resource: Message) -> bool:
    kind, name = resource["resource_type"], resource["resource_name"]
    if kind == TOPIC_RESOURCE:
        return asker.may(operation, TOPIC, name)
    if kind == GROUP_RESOURCE:
        return asker.may(operation, GROUP, name)
    return asker.may_cluster(operation)


def _refused_resource(resource: Message) -> Message:
    error, message = {
        TOPIC_RESOURCE: (TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed."),
        GROUP_RESOURCE: (GROUP_AUTHORIZATION_FAILED, "Group authorization failed."),
    }.get(resource["resource_type"], (CLUSTER_AUTHORIZATION_FAILED, CLUSTER_FAILED))
    return {
        "error_code": error,
        "error_message": message,
        "resource_type": resource["resource_type"],
        "resource_name": resource["resource_name"],
    }


def describe_configs(asker: Asker, version: int, body: Message) -> Outcome:
    """DESCRIBE_CONFIGS of each topic and group, of the cluster for what else has settings."""
    return partly(
        body,
        "resources",
        lambda one: _may_with_settings(asker, DESCRIBE_CONFIGS, one),
        lambda one: _refused_resource(one) | {"configs": []},
        "results",
    )


def alter_configs(asker: Asker, version: int, body: Message) -> Outcome:
    """ALTER_CONFIGS likewise. Levels of loggers can't be altered so, whoever asks."""
    return _alter_configs(
        asker,
        body,
        lambda one: (
            one["resource_type"] == BROKER_LOGGER_RESOURCE
            or _may_with_settings(asker, ALTER_CONFIGS, one)
        ),
    )


def incremental_alter_configs(asker: Asker, version: int, body: Message) -> Outcome:
    """ALTER_CONFIGS likewise."""
    return _alter_configs(asker, body, lambda one: _may_with_settings(asker, ALTER_CONFIGS, one))


def _alter_configs(asker: Asker, body: Message, is_allowed: Callable[[Message], bool]) -> Outcome:
    def refused(resource: Message) -> Message:
        is_logger = resource["resource_type"] == BROKER_LOGGER_RESOURCE
        return _refused_resource(resource) | ({"error_message": None} if is_logger else {})

    return partly(body, "resources", is_allowed, refused, "responses")


def write_txn_markers(asker: Asker, version: int, body: Message) -> Outcome:
    """ALTER of the cluster, or CLUSTER_ACTION."""
    if asker.may_cluster(ALTER) or asker.may_cluster(CLUSTER_ACTION):
        return None
    return Refused(_per_marker(version, body, CLUSTER_AUTHORIZATION_FAILED))


def describe_cluster(asker: Asker, version: int, body: Message) -> Outcome:
    """Let everybody know of the brokers; what may be done with the cluster, who may describe it."""
    if not body["include_cluster_authorized_operations"]:
        return None

    def after(answer: Message) -> Message:
        if answer.get("error_code"):
            return answer
        may_describe = asker.may_cluster(DESCRIBE)
        answer["cluster_authorized_operations"] = (
            asker.operations(CLUSTER, CLUSTER_NAME) if may_describe else 0
        )
        return answer

    return Partly(None, after)
