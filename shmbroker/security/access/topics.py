"""Rights on topics: what is read of them, and what is done with them.

There is a function for each API, which takes the asker, the version and the decoded request, and
whose docstring names the rights that it asks for. (Produce and Fetch are judged where they are
decoded: see `rules`.)

Rules of this file:
* Pure: what is there comes with the asker's image.
* Rows are judged one by one. Those that are refused are taken out of the request, and put into the
  answer with the error that Kafka gives them, in the fields that it gives.
* Who may not DESCRIBE a topic does not learn of it: where all topics were asked for it is left out
  without a word, and where it was asked for by its id its name is not told.
* What is wrong with a request whoever asks (a name twice, an id in a version without them) is left
  to whoever answers, and so is a topic that is not there.

Source: Kafka's KafkaApis and ControllerApis; `needs` has what it was seen to answer.
"""

from __future__ import annotations

from collections import Counter

from shmbroker.ids import ZERO_UUID
from shmbroker.metadata.topic_names import METADATA_TOPIC
from shmbroker.security.access.asker import (
    Asker,
    Message,
    Outcome,
    Partly,
    Refused,
    partly,
    without,
)
from shmbroker.security.acls import (
    ALTER,
    CLUSTER,
    CLUSTER_ACTION,
    CLUSTER_NAME,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    READ,
    TOPIC,
)
from shmbroker.wire.error_codes import (
    INVALID_REQUEST,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
)

REFUSED = {"error_code": TOPIC_AUTHORIZATION_FAILED}
NOT_AUTHORIZED = "Authorization failed."
TOPIC_FAILED = "Topic authorization failed."
UNSAID = -(2**31)
"""Authorized operations that nobody asked for (KIP-430)."""


def refused_topic(topic: Message, error: int = TOPIC_AUTHORIZATION_FAILED) -> Message:
    """A topic of a request, by its name or id, with the error for each of its partitions."""
    partitions = [
        {"partition_index": one["partition_index"], "error_code": error}
        for one in topic["partitions"]
    ]
    named = {key: topic[key] for key in ("name", "topic_id") if key in topic}
    return named | {"partitions": partitions}


def list_offsets(asker: Asker, version: int, body: Message) -> Outcome:
    """DESCRIBE of each topic."""
    return partly(
        body,
        "topics",
        lambda topic: asker.may_topic(DESCRIBE, topic["name"]),
        refused_topic,
    )


def offset_for_leader_epoch(asker: Asker, version: int, body: Message) -> Outcome:
    """CLUSTER_ACTION, as brokers have it, or DESCRIBE of each topic."""
    if asker.may_cluster(CLUSTER_ACTION):
        return None
    return partly(
        body,
        "topics",
        lambda topic: asker.may_topic(DESCRIBE, topic["topic"]),
        lambda topic: {
            "topic": topic["topic"],
            "partitions": [
                {"partition": one["partition"], "leader_epoch": -1, "end_offset": -1} | REFUSED
                for one in topic["partitions"]
            ],
        },
    )


def delete_records(asker: Asker, version: int, body: Message) -> Outcome:
    """DELETE of each topic."""
    return partly(
        body,
        "topics",
        lambda topic: asker.may_topic(DELETE, topic["name"]),
        lambda topic: {
            "name": topic["name"],
            "partitions": [
                {"partition_index": one["partition_index"], "low_watermark": -1} | REFUSED
                for one in topic["partitions"]
            ],
        },
    )


def describe_producers(asker: Asker, version: int, body: Message) -> Outcome:
    """READ of each topic."""
    return partly(
        body,
        "topics",
        lambda topic: asker.may_topic(READ, topic["name"]),
        lambda topic: {
            "name": topic["name"],
            "partitions": [
                {"partition_index": index, "error_message": TOPIC_FAILED} | REFUSED
                for index in topic["partition_indexes"]
            ],
        },
    )


def create_topics(asker: Asker, version: int, body: Message) -> Outcome:
    """CREATE of the cluster, or of each topic; its settings are told to who may describe them.
    What is wrong with a name in any case comes first."""
    may_create_all = asker.may_cluster(CREATE)
    times = Counter(topic["name"] for topic in body["topics"])
    outcome = partly(
        body,
        "topics",
        lambda topic: (
            may_create_all
            or topic["name"] == METADATA_TOPIC
            or times[topic["name"]] > 1
            or asker.may_topic(CREATE, topic["name"])
        ),
        lambda topic: {"name": topic["name"], "error_message": NOT_AUTHORIZED} | REFUSED,
    )
    if isinstance(outcome, Refused):
        return outcome
    hidden = {
        topic["name"]
        for topic in body["topics"]
        if not asker.may_topic(DESCRIBE_CONFIGS, topic["name"])
    }
    if version < 5 or not hidden:
        return outcome
    first = outcome.after if outcome is not None else lambda answer: answer

    def after(answer: Message) -> Message:
        for row in answer["topics"]:
            if row["name"] in hidden and row["error_code"] == 0:
                row["topic_config_error_code"] = TOPIC_AUTHORIZATION_FAILED
                row["num_partitions"] = row["replication_factor"] = -1
                row["configs"] = []
        return first(answer)

    return Partly(outcome.body if outcome is not None else None, after)


def delete_topics(asker: Asker, version: int, body: Message) -> Outcome:
    """DELETE of the cluster, or of each topic. What may not even be described is not named when it
    was asked for by its id."""
    if asker.may_cluster(DELETE):
        return None

    def is_allowed(row: Message) -> bool:
        return asker.may_row(DELETE, row)

    def refused_row(row: Message) -> Message:
        name = asker.name_of(row) or ""
        by_id = not row.get("name")
        may_know = not by_id or asker.may_topic(DESCRIBE, name)
        return {
            "name": name if may_know else None,
            "topic_id": row.get("topic_id", b"\0" * 16),
            "error_message": TOPIC_FAILED,
        } | REFUSED

    if version >= 6:
        return partly(body, "topics", is_allowed, refused_row, "responses")
    return partly(
        body,
        "topic_names",
        lambda name: is_allowed({"name": name}),
        lambda name: refused_row({"name": name}),
        "responses",
    )


def create_partitions(asker: Asker, version: int, body: Message) -> Outcome:
    """ALTER of each topic."""
    return partly(
        body,
        "topics",
        lambda topic: asker.may_topic(ALTER, topic["name"]),
        lambda topic: {"name": topic["name"], "error_message": None} | REFUSED,
        "results",
    )


def metadata(asker: Asker, version: int, body: Message) -> Outcome:
    """DESCRIBE of each topic; those that nobody named are left out without a word. A topic that is
    not there is made if it may be created."""
    named = body["topics"]
    if 10 <= version < 12 and any(
        topic["name"] is None or topic["topic_id"] != ZERO_UUID for topic in named or ()
    ):
        return None  # refused, whoever asks: ids are for later versions
    refused: list[Message] = []
    wanted: list[Message] = []
    may_create_all = asker.may_cluster(CREATE)
    for topic in named or []:
        name = asker.name_of(topic)
        by_id = not topic.get("name")
        if name is None:
            wanted.append(topic)
        elif not asker.may_topic(DESCRIBE, name):
            found = asker.image.topics_by_name.get(name) if by_id else None
            refused.append(
                {
                    "name": None if by_id else name,
                    "topic_id": found.topic_id if found is not None else b"\0" * 16,
                    "topic_authorized_operations": UNSAID,
                }
                | REFUSED
            )
        elif (
            name not in asker.image.topics_by_name
            and body.get("allow_auto_topic_creation", True)
            and not may_create_all
            and not asker.may_topic(CREATE, name)
        ):
            refused.append({"name": name, "topic_authorized_operations": UNSAID} | REFUSED)
        else:
            wanted.append(topic)

    def after(answer: Message) -> Message:
        rows = answer["topics"]
        if not named:
            rows = [row for row in rows if asker.may_topic(DESCRIBE, row["name"])]
        for row in rows:
            if body.get("include_topic_authorized_operations") and row["name"]:
                row["topic_authorized_operations"] = asker.operations(TOPIC, row["name"])
        if body.get("include_cluster_authorized_operations") and 8 <= version <= 10:
            may_describe = asker.may_cluster(DESCRIBE)
            answer["cluster_authorized_operations"] = (
                asker.operations(CLUSTER, CLUSTER_NAME) if may_describe else 0
            )
        answer["topics"] = [*rows, *refused]
        return answer

    if refused and not wanted and version == 0:
        # An empty list would ask for all of them; so all are asked for, and left out.
        return Partly(body | {"topics": []}, lambda answer: after(answer | {"topics": []}))
    return Partly(body | {"topics": wanted} if refused else None, after)


def describe_topic_partitions(asker: Asker, version: int, body: Message) -> Outcome:
    """DESCRIBE of each topic; those that nobody named are left out without a word."""
    named = body["topics"]
    wanted, forbidden = without(named or [], lambda row: asker.may_topic(DESCRIBE, row["name"]))

    def after(answer: Message) -> Message:
        rows = [
            row
            for row in answer["topics"]
            if row["error_code"] == UNKNOWN_TOPIC_OR_PARTITION
            or asker.may_topic(DESCRIBE, row["name"])
        ]
        for row in rows:
            if row["error_code"] != INVALID_REQUEST:  # the cursor's, and then of every row
                row["topic_authorized_operations"] = asker.operations(TOPIC, row["name"])
        refused = [
            {"name": row["name"], "topic_authorized_operations": UNSAID} | REFUSED
            for row in forbidden
        ]
        answer["topics"] = sorted([*rows, *refused], key=lambda row: str(row["name"]))
        return answer

    if forbidden and not wanted:
        refused = [
            {"name": row["name"], "topic_authorized_operations": UNSAID} | REFUSED
            for row in forbidden
        ]
        return Refused({"topics": refused})
    return Partly(body | {"topics": wanted} if forbidden else None, after)
