"""Rights on groups, and on the topics whose offsets they keep.

There is a function for each API, which takes the asker, the version and the decoded request, and
whose docstring names the rights that it asks for.

Rules of this file:
* Pure: what is there comes with the asker's image.
* A group is refused as a whole, before its topics are looked at. Where the answer has no error for
  the group, each of its rows has it.
* Topics that a client named and may not see are told with an error; those that it did not name
  are left out without a word.
* A group of the consumer protocol whose members read a topic that the asker may not DESCRIBE is
  told as refused, whatever right it has to the group (KIP-848).

Source: Kafka's KafkaApis; `needs` has what it was seen to answer.
"""

from __future__ import annotations

from shmbroker.security.access.asker import (
    Asker,
    Message,
    Outcome,
    Partly,
    Refused,
    Rule,
    partly,
    seen,
    without,
)
from shmbroker.security.access.topics import refused_topic
from shmbroker.security.acls import CLUSTER_ACTION, DELETE, DESCRIBE, GROUP, READ
from shmbroker.wire.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    GROUP_AUTHORIZATION_FAILED,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)

REFUSED_GROUP = {"error_code": GROUP_AUTHORIZATION_FAILED}
_COORDINATOR_OF_GROUP, _COORDINATOR_OF_TRANSACTION, _COORDINATOR_OF_SHARES = range(3)
DENIALS = {
    GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
    CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
}
PROTOCOL_REQUIRED_FROM = 5
"""The first version of SyncGroup that has to name its protocol."""


def needs_group(operation: int, **answer: object) -> Rule:
    """A rule for what is done with one group as a whole."""

    def rule(asker: Asker, version: int, body: Message) -> Outcome:
        if asker.may_group(operation, body["group_id"]):
            return None
        return Refused(REFUSED_GROUP | answer)

    return rule


join_group = needs_group(READ, generation_id=-1, member_id="", members=[])
_sync_group = needs_group(READ, assignment=b"")
heartbeat = needs_group(READ)
leave_group = needs_group(READ, members=[])


def sync_group(asker: Asker, version: int, body: Message) -> Outcome:
    """READ of the group; a request that lacks its protocol is told that first."""
    if version >= PROTOCOL_REQUIRED_FROM and None in (
        body["protocol_type"],
        body["protocol_name"],
    ):
        return None
    return _sync_group(asker, version, body)


def consumer_group_heartbeat(asker: Asker, version: int, body: Message) -> Outcome:
    """READ of the group, DESCRIBE of the topics that are named."""
    if not asker.may_group(READ, body["group_id"]):
        return Refused(REFUSED_GROUP | {"error_message": None})
    for name in body["subscribed_topic_names"] or ():
        if not asker.may_topic(DESCRIBE, name):
            return Refused({"error_code": TOPIC_AUTHORIZATION_FAILED, "error_message": None})
    return None


def offset_commit(asker: Asker, version: int, body: Message) -> Outcome:
    """READ of the group, and of each topic."""

    if not asker.may_group(READ, body["group_id"]):
        rows = [refused_topic(topic, GROUP_AUTHORIZATION_FAILED) for topic in body["topics"]]
        return Refused({"topics": rows})

    return partly(body, "topics", lambda topic: asker.may_row(READ, topic), refused_topic)


def offset_fetch(asker: Asker, version: int, body: Message) -> Outcome:
    """DESCRIBE of each group, and of each topic; topics that nobody named are left out."""
    if version < 8:
        return _offset_fetch_of_one(asker, version, body)
    allowed: list[Message] = []
    refused: list[Message] = []
    hidden: dict[str, list[Message]] = {}
    for group in body["groups"]:
        if not asker.may_group(DESCRIBE, group["group_id"]):
            refused.append({"group_id": group["group_id"], "topics": []} | REFUSED_GROUP)
            continue
        topics, forbidden = without(
            group["topics"] or [], lambda topic: asker.may_row(DESCRIBE, topic)
        )
        if forbidden:
            hidden[group["group_id"]] = [_unknown_offsets(topic) for topic in forbidden]
            group = group | {"topics": topics}
        allowed.append(group)
    if not allowed:
        return Refused({"groups": refused}) if refused else None

    def after(answer: Message) -> Message:
        for group in answer["groups"]:
            group["topics"] = [
                *(topic for topic in group["topics"] if asker.may_row(DESCRIBE, topic)),
                *hidden.get(group["group_id"], ()),
            ]
        answer["groups"] = [*answer["groups"], *refused]
        return answer

    return Partly(body | {"groups": allowed} if refused or hidden else None, after)


def _offset_fetch_of_one(asker: Asker, version: int, body: Message) -> Outcome:
    topics = body["topics"]
    if not asker.may_group(DESCRIBE, body["group_id"]):
        rows = [
            _unknown_offsets(topic, GROUP_AUTHORIZATION_FAILED)
            for topic in (topics or [] if version < 2 else [])
        ]
        return Refused({"topics": rows} | REFUSED_GROUP)
    allowed, forbidden = without(topics or [], lambda topic: asker.may_row(DESCRIBE, topic))
    rows = [_unknown_offsets(topic) for topic in forbidden]

    def after(answer: Message) -> Message:
        shown = [topic for topic in answer["topics"] if asker.may_row(DESCRIBE, topic)]
        answer["topics"] = [*shown, *rows]
        return answer

    return Partly(body | {"topics": allowed} if forbidden else None, after)


def _unknown_offsets(topic: Message, error: int = TOPIC_AUTHORIZATION_FAILED) -> Message:
    partitions = [
        {
            "partition_index": index,
            "committed_offset": -1,
            "committed_leader_epoch": -1,
            "metadata": "",
            "error_code": error,
        }
        for index in topic["partition_indexes"]
    ]
    return {name: topic[name] for name in ("name", "topic_id") if name in topic} | {
        "partitions": partitions
    }


def find_coordinator(asker: Asker, version: int, body: Message) -> Outcome:
    """DESCRIBE of each group or transactional id that is asked for."""
    kind = body.get("key_type", _COORDINATOR_OF_GROUP)

    def error_of(key: str) -> int:
        if kind == _COORDINATOR_OF_GROUP:
            return 0 if asker.may_group(DESCRIBE, key) else GROUP_AUTHORIZATION_FAILED
        if kind == _COORDINATOR_OF_TRANSACTION:
            is_allowed = asker.may_transact(DESCRIBE, key)
            return 0 if is_allowed else TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return 0 if asker.may_cluster(CLUSTER_ACTION) else CLUSTER_AUTHORIZATION_FAILED

    nowhere = {"node_id": -1, "host": "", "port": -1, "error_message": None}
    if version < 4:
        error = error_of(body["key"])
        told = {"error_code": error, "error_message": DENIALS.get(error)}
        return Refused(nowhere | told) if error else None
    if kind == _COORDINATOR_OF_SHARES:
        nowhere["error_message"] = DENIALS[CLUSTER_AUTHORIZATION_FAILED]
    return partly(
        body,
        "coordinator_keys",
        lambda key: not error_of(key),
        lambda key: nowhere | {"key": key, "error_code": error_of(key)},
        "coordinators",
    )


def describe_groups(asker: Asker, version: int, body: Message) -> Outcome:
    """DESCRIBE of each group."""
    return _describe(
        asker, body, "groups", {"group_state": "", "protocol_type": "", "protocol_data": ""}
    )


def consumer_group_describe(asker: Asker, version: int, body: Message) -> Outcome:
    """DESCRIBE of each group, and of the topics that its members read."""
    return _describe(asker, body, "group_ids", {"group_state": "", "assignor_name": ""})


def _describe(asker: Asker, body: Message, key: str, unknown: Message) -> Outcome:
    allowed = [group for group in body[key] if asker.may_group(DESCRIBE, group)]
    refused = [
        REFUSED_GROUP | unknown | {"group_id": group, "authorized_operations": -(2**31)}
        for group in body[key]
        if not asker.may_group(DESCRIBE, group)
    ]
    if refused and not allowed:
        return Refused({"groups": refused})

    def after(answer: Message) -> Message:
        rows = []
        for row in answer["groups"]:
            if body.get("include_authorized_operations") and not row["error_code"]:
                row["authorized_operations"] = asker.operations(GROUP, row["group_id"])
            is_seen = all(asker.may_topic(DESCRIBE, topic) for topic in _topics_of(row))
            rows.append(row if is_seen else _hidden_group(row["group_id"]))
        answer["groups"] = [*rows, *refused]
        return answer

    return Partly(body | {key: allowed} if refused else None, after)


def _hidden_group(group_id: str) -> Message:
    return {
        "error_code": TOPIC_AUTHORIZATION_FAILED,
        "error_message": (
            "The group has described topic(s) that the client is not authorized to describe."
        ),
        "group_id": group_id,
        "group_state": "",
        "assignor_name": "",
        "members": [],
        "authorized_operations": -(2**31),
    }


def _topics_of(row: Message) -> set[str]:
    """The topics that members of a group of the consumer protocol have or shall have."""
    return {
        topic["topic_name"]
        for member in row.get("members", ())
        for name in ("assignment", "target_assignment")
        if name in member
        for topic in member[name]["topic_partitions"]
    }


def list_groups(asker: Asker, version: int, body: Message) -> Outcome:
    """DESCRIBE of the cluster shows all, else of each group."""
    if asker.may_cluster(DESCRIBE):
        return None
    return seen("groups", lambda row: asker.may_group(DESCRIBE, row["group_id"]))


def delete_groups(asker: Asker, version: int, body: Message) -> Outcome:
    """DELETE of each group."""
    return partly(
        body,
        "groups_names",
        lambda name: asker.may_group(DELETE, name),
        lambda name: {"group_id": name} | REFUSED_GROUP,
        "results",
    )


def offset_delete(asker: Asker, version: int, body: Message) -> Outcome:
    """DELETE of the group, READ of each topic."""
    if not asker.may_group(DELETE, body["group_id"]):
        return Refused(REFUSED_GROUP | {"topics": []})
    return partly(
        body,
        "topics",
        lambda topic: asker.may_topic(READ, topic["name"]),
        refused_topic,
    )
