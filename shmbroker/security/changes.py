"""What a request changes, and how that went: of its bytes and of its answer's, for the audit log.

Each row of a change is (what was changed, the error it was answered with, 0: none). Values are left
out where they may be secret: of settings, users and tokens there are names alone.
"""

from __future__ import annotations

from shmbroker.security.acls import ALLOW, LITERAL, name_of_operation, name_of_resource
from shmbroker.wire import api_keys as keys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shmbroker.security.access.asker import Message

    Row = tuple[str, int]

_CONFIG_TYPES = {
    2: "topic",
    4: "broker",
    8: "logger of broker",
    16: "client metrics subscription",
    32: "group",
}


def _named(rows: str, name: str, kind: str) -> Callable[[Message, Message], Iterator[Row]]:
    """Changes whose answer has a row for each, with its name and error."""

    def found(_request: Message, answer: Message) -> Iterator[Row]:
        for row in answer[rows]:
            yield f"{kind} {shown(row[name])}", row["error_code"]

    return found


def _at_once(what: Callable[[Message], str]) -> Callable[[Message, Message], Iterator[Row]]:
    """Changes that are answered by one error."""

    def found(request: Message, answer: Message) -> Iterator[Row]:
        yield what(request), answer["error_code"]

    return found


def _of_partitions(
    kind: str, rows: str, name: str = "name", partitions: str = "partitions",
    index: str = "partition_index",
) -> Callable[[Message, Message], Iterator[Row]]:  # fmt: skip
    """Changes whose answer has a row for each partition, or one error for all."""

    def found(request: Message, answer: Message) -> Iterator[Row]:
        whose = f" of group {shown(request['group_id'])}" if "group_id" in request else ""
        if answer.get("error_code"):
            yield f"{kind}{whose}", answer["error_code"]
        for topic in answer[rows]:
            for row in topic[partitions]:
                yield f"{kind} {shown(topic[name])}-{row[index]}{whose}", row["error_code"]

    return found


def _topics_deleted(request: Message, answer: Message) -> Iterator[Row]:
    for row in answer["responses"]:
        yield f"topic {shown(row['name'] or row['topic_id'].hex())}", row["error_code"]


def _configs(request: Message, answer: Message) -> Iterator[Row]:
    names = {
        (row["resource_type"], row["resource_name"]): ", ".join(
            shown(each["name"]) for each in row["configs"] or []
        )
        for row in request["resources"]
    }
    for row in answer["responses"]:
        type_, name = row["resource_type"], row["resource_name"]
        whose = f"{_CONFIG_TYPES.get(type_, type_)} {shown(name) if name else 'default'}"
        yield f"settings {names.get((type_, name), '')} of {whose}", row["error_code"]


def _acls_created(request: Message, answer: Message) -> Iterator[Row]:
    for row, told in zip(request["creations"], answer["results"], strict=False):
        yield _acl(row, row["resource_pattern_type"]), told["error_code"]


def _acls_deleted(_request: Message, answer: Message) -> Iterator[Row]:
    for found in answer["filter_results"]:
        if found["error_code"]:
            yield "acls of a filter", found["error_code"]
        for row in found["matching_acls"]:
            yield _acl(row, row["pattern_type"]), row["error_code"]


def _acl(row: Message, pattern_type: int) -> str:
    verb = "allow" if row["permission_type"] == ALLOW else "deny"
    pattern = "" if pattern_type == LITERAL else " (prefix)"
    return (
        f"acl {verb} {shown(row['principal'])} from {shown(row['host'])} "
        f"{name_of_operation(row['operation'])} on {name_of_resource(row['resource_type'])} "
        f"{shown(row['resource_name'])}{pattern}"
    )


def _quotas(request: Message, answer: Message) -> Iterator[Row]:
    keys_of = [", ".join(shown(op["key"]) for op in row["ops"]) for row in request["entries"]]
    for names, row in zip(keys_of, answer["entries"], strict=False):
        entity = ", ".join(
            f"{each['entity_type']} {shown(each['entity_name'] or '(default)')}"
            for each in row["entity"]
        )
        yield f"quota {names} of {entity}", row["error_code"]


def _token_created(_request: Message, answer: Message) -> Iterator[Row]:
    owner = f"{answer['principal_type']}:{answer['principal_name']}"
    yield f"token {shown(answer['token_id'])} of {shown(owner)}", answer["error_code"]


def _markers(request: Message, answer: Message) -> Iterator[Row]:
    ends = {row["producer_id"]: row["transaction_result"] for row in request["markers"]}
    for marker in answer["markers"]:
        producer = marker["producer_id"]
        verb = "commit" if ends.get(producer) else "abort"
        for topic in marker["topics"]:
            for row in topic["partitions"]:
                where = f"{shown(topic['name'])}-{row['partition_index']}"
                yield f"{verb} of producer {producer} in {where}", row["error_code"]


CHANGES: dict[int, Callable[[Message, Message], Iterator[Row]]] = {
    keys.CREATE_TOPICS: _named("topics", "name", "topic"),
    keys.DELETE_TOPICS: _topics_deleted,
    keys.DELETE_RECORDS: _of_partitions("records of", "topics"),
    keys.WRITE_TXN_MARKERS: _markers,
    keys.CREATE_ACLS: _acls_created,
    keys.DELETE_ACLS: _acls_deleted,
    keys.ALTER_CONFIGS: _configs,
    keys.ALTER_REPLICA_LOG_DIRS: _of_partitions("log directory of", "results", "topic_name"),
    keys.CREATE_PARTITIONS: _named("results", "name", "partitions of topic"),
    keys.CREATE_DELEGATION_TOKEN: _token_created,
    keys.RENEW_DELEGATION_TOKEN: _at_once(lambda _: "time of a token"),
    keys.EXPIRE_DELEGATION_TOKEN: _at_once(lambda _: "end of a token"),
    keys.DELETE_GROUPS: _named("results", "group_id", "group"),
    keys.ELECT_LEADERS: _of_partitions(
        "leader of", "replica_election_results", "topic", "partition_result", "partition_id"
    ),
    keys.INCREMENTAL_ALTER_CONFIGS: _configs,
    keys.ALTER_PARTITION_REASSIGNMENTS: _of_partitions("replicas of", "responses"),
    keys.OFFSET_DELETE: _of_partitions("offset in", "topics"),
    keys.ALTER_CLIENT_QUOTAS: _quotas,
    keys.ALTER_USER_SCRAM_CREDENTIALS: _named("results", "user", "password of user"),
    keys.UPDATE_FEATURES: _at_once(
        lambda body: (
            "feature " + ", ".join(shown(row["feature"]) for row in body["feature_updates"])
        )
    ),
    keys.UNREGISTER_BROKER: _at_once(lambda body: f"broker {body['broker_id']}"),
    keys.ADD_RAFT_VOTER: _at_once(lambda body: f"voter {body['voter_id']}"),
    keys.REMOVE_RAFT_VOTER: _at_once(lambda body: f"voter {body['voter_id']}"),
}
"""The function that gives the rows of a decoded request and its decoded answer, by API key."""

MAKE = frozenset(
    (
        keys.CREATE_TOPICS,
        keys.CREATE_ACLS,
        keys.CREATE_PARTITIONS,
        keys.CREATE_DELEGATION_TOKEN,
        keys.ADD_RAFT_VOTER,
    )
)
REMOVE = frozenset(
    (
        keys.DELETE_TOPICS,
        keys.DELETE_RECORDS,
        keys.DELETE_ACLS,
        keys.DELETE_GROUPS,
        keys.OFFSET_DELETE,
        keys.EXPIRE_DELEGATION_TOKEN,
        keys.UNREGISTER_BROKER,
        keys.REMOVE_RAFT_VOTER,
    )
)


def operation_of(api_key: int) -> str:
    """What an API in CHANGES does with what it names."""
    return "create" if api_key in MAKE else "delete" if api_key in REMOVE else "alter"


def by_error(rows: Iterable[Row]) -> dict[int, list[str]]:
    """What was changed by the error that it was answered with; 0: none."""
    found: dict[int, list[str]] = {}
    for what, error in rows:
        found.setdefault(error, []).append(what)
    return found


def shown(name: str) -> str:
    """A name that a client has chosen, so that nobody takes it for more than one."""
    if name and all(each.isalnum() or each in "._-:@=*/" for each in name):
        return name
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
