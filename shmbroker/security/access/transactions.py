"""Rights on transactional ids, and on what transactions touch."""

from __future__ import annotations

from shmbroker.security.access.asker import (
    Asker,
    Message,
    Outcome,
    Partly,
    Refused,
    partly,
    seen,
)
from shmbroker.security.access.topics import refused_topic
from shmbroker.security.acls import (
    CLUSTER_ACTION,
    DESCRIBE,
    IDEMPOTENT_WRITE,
    READ,
    TOPIC,
    WRITE,
)
from shmbroker.wire.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    GROUP_AUTHORIZATION_FAILED,
    OPERATION_NOT_ATTEMPTED,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
)

REFUSED_ID = {"error_code": TRANSACTIONAL_ID_AUTHORIZATION_FAILED}


def init_producer_id(asker: Asker, version: int, body: Message) -> Outcome:
    """WRITE of the transactional id; without one IDEMPOTENT_WRITE, or WRITE of any topic."""
    nobody = {"producer_id": -1, "producer_epoch": -1}
    if body["transactional_id"] is not None:
        if asker.may_transact(WRITE, body["transactional_id"]):
            return None
        return Refused(REFUSED_ID | nobody)
    if asker.may_cluster(IDEMPOTENT_WRITE) or asker.authorizer.allows_some(
        asker.principal, asker.host, WRITE, TOPIC
    ):
        return None
    return Refused({"error_code": CLUSTER_AUTHORIZATION_FAILED} | nobody)


def end_txn(asker: Asker, version: int, body: Message) -> Outcome:
    """WRITE of the transactional id."""
    if asker.may_transact(WRITE, body["transactional_id"]):
        return None
    return Refused(REFUSED_ID)


def add_offsets_to_txn(asker: Asker, version: int, body: Message) -> Outcome:
    """WRITE of the transactional id, READ of the group."""
    if not asker.may_transact(WRITE, body["transactional_id"]):
        return Refused(REFUSED_ID)
    if not asker.may_group(READ, body["group_id"]):
        return Refused({"error_code": GROUP_AUTHORIZATION_FAILED})
    return None


def add_partitions_to_txn(asker: Asker, version: int, body: Message) -> Outcome:
    """WRITE of the transactional id and of every topic: one that is forbidden spoils the rest.

    From version 4 on only brokers ask: CLUSTER_ACTION first.
    """
    if version < 4:
        error = _judge_added(
            asker, body["v3_and_below_transactional_id"], body["v3_and_below_topics"]
        )
        rows = _added(body["v3_and_below_topics"], asker, error)
        return Refused({"results_by_topic_v3_and_below": rows}) if error else None
    if not asker.may_cluster(CLUSTER_ACTION):
        return Refused({"error_code": CLUSTER_AUTHORIZATION_FAILED, "results_by_transaction": []})
    refused = []
    allowed = []
    for one in body["transactions"]:
        error = _judge_added(asker, one["transactional_id"], one["topics"])
        if error:
            rows = _added(one["topics"], asker, error)
            refused.append({"transactional_id": one["transactional_id"], "topic_results": rows})
        else:
            allowed.append(one)
    if not refused:
        return None
    if not allowed:
        return Refused({"results_by_transaction": refused})

    def after(answer: Message) -> Message:
        answer["results_by_transaction"] = [*answer["results_by_transaction"], *refused]
        return answer

    return Partly(body | {"transactions": allowed}, after)


def _judge_added(asker: Asker, transactional_id: str, topics: list[Message]) -> int:
    if not asker.may_transact(WRITE, transactional_id):
        return TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not all(asker.may_topic(WRITE, topic["name"]) for topic in topics):
        return TOPIC_AUTHORIZATION_FAILED
    return 0


def _added(topics: list[Message], asker: Asker, error: int) -> list[Message]:
    """The rows of an answer in which nothing was added."""

    def code(name: str) -> int:
        if error == TOPIC_AUTHORIZATION_FAILED and asker.may_topic(WRITE, name):
            is_there = name in asker.image.topics_by_name
            return OPERATION_NOT_ATTEMPTED if is_there else UNKNOWN_TOPIC_OR_PARTITION
        return error

    return [
        {
            "name": topic["name"],
            "results_by_partition": [
                {"partition_index": index, "partition_error_code": code(topic["name"])}
                for index in topic["partitions"]
            ],
        }
        for topic in topics
    ]


def txn_offset_commit(asker: Asker, version: int, body: Message) -> Outcome:
    """WRITE of the transactional id, READ of the group and of each topic."""

    error = 0
    if not asker.may_transact(WRITE, body["transactional_id"]):
        error = TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not asker.may_group(READ, body["group_id"]):
        error = GROUP_AUTHORIZATION_FAILED
    if error:
        return Refused({"topics": [refused_topic(topic, error) for topic in body["topics"]]})
    return partly(
        body,
        "topics",
        lambda topic: asker.may_topic(READ, topic["name"]),
        refused_topic,
    )


def describe_transactions(asker: Asker, version: int, body: Message) -> Outcome:
    """DESCRIBE of each transactional id; of its topics those are shown that may be."""
    allowed = [one for one in body["transactional_ids"] if asker.may_transact(DESCRIBE, one)]
    refused = [
        REFUSED_ID | {"transactional_id": one}
        for one in body["transactional_ids"]
        if not asker.may_transact(DESCRIBE, one)
    ]
    if refused and not allowed:
        return Refused({"transaction_states": refused})

    def after(answer: Message) -> Message:
        for row in answer["transaction_states"]:
            row["topics"] = [
                topic for topic in row["topics"] if asker.may_topic(DESCRIBE, topic["topic"])
            ]
        answer["transaction_states"] = [*answer["transaction_states"], *refused]
        return answer

    return Partly(body | {"transactional_ids": allowed} if refused else None, after)


def list_transactions(asker: Asker, version: int, body: Message) -> Outcome:
    """Show the transactions that may be described."""
    return seen(
        "transaction_states", lambda row: asker.may_transact(DESCRIBE, row["transactional_id"])
    )
