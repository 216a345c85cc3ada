"""The rights that each API asks for: what of a request goes on, and what is answered instead."""

from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.apis import table
from shmbroker.metadata.security_image import Acl, Token
from shmbroker.security.access.asker import Asker, Outcome, Partly, Refused
from shmbroker.security.access.needs import NEEDS
from shmbroker.security.access.rules import RULES
from shmbroker.security.access.tokens import may_see
from shmbroker.security.access.topics import UNSAID
from shmbroker.security.acls import (
    ALL,
    ALLOW,
    ALTER,
    CLUSTER,
    CLUSTER_ACTION,
    CLUSTER_NAME,
    CREATE,
    CREATE_TOKENS,
    DELEGATION_TOKEN,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    DESCRIBE_TOKENS,
    GROUP,
    IDEMPOTENT_WRITE,
    LITERAL,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    USER,
    WRITE,
)
from shmbroker.security.authorizer import Authorizer
from shmbroker.wire import api_keys as keys
from shmbroker.wire import codec
from shmbroker.wire.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    GROUP_AUTHORIZATION_FAILED,
    INVALID_REQUEST,
    MISMATCHED_ENDPOINT_TYPE,
    OPERATION_NOT_ATTEMPTED,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)

ME, HERE = "User:me", "127.0.0.1"
ID = b"i" * 16
KNOWN = {"mine": SimpleNamespace(name="mine", topic_id=ID)}
IMAGE: Any = SimpleNamespace(topics_by_name=KNOWN, topics_by_id={ID: KNOWN["mine"]})
MAY_ALL = [
    Acl(kind, "*" if kind != CLUSTER else CLUSTER_NAME, LITERAL, ME, "*", ALL, ALLOW)
    for kind in (TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, USER)
]


def may(*rights: tuple[int, str, int]) -> Asker:
    """Somebody with these rights: (resource type, name, operation)."""
    acls = [Acl(kind, name, LITERAL, ME, "*", operation, ALLOW) for kind, name, operation in rights]
    return Asker(ME, HERE, Authorizer(acls), IMAGE)


def judge(asker: Asker, key: int, version: int, body: dict[str, Any]) -> Outcome:
    """A rule's outcome for a request as it comes from the wire."""
    module = next(module for module in table.JUDGED if key == module.API_KEY)
    name = module.NAME + "Request"
    decoded = codec.decode_request(module.NAME, version, codec.encode(name, version, body))
    rule = RULES[key]
    assert rule is not None
    outcome = rule(asker, version, decoded)
    if isinstance(outcome, Refused):
        codec.encode(module.NAME + "Response", version, outcome.answer)  # it fits
    elif outcome is not None and outcome.body is not None:
        codec.encode(name, version, outcome.body)
    return outcome


def test_every_api_has_its_rule() -> None:
    assert {module.API_KEY for module in table.JUDGED} == set(RULES)


def test_every_api_says_what_it_needs() -> None:
    assert NEEDS.keys() == RULES.keys() | {api.API_KEY for api in table.HOT}
    # Tokens are judged before they are described, by who describes them.
    unjudged = {key for key, rule in RULES.items() if rule is None}
    assert {key for key in unjudged if NEEDS[key]} == {keys.DESCRIBE_DELEGATION_TOKEN}


ONE_TOPIC = {"topics": [{"name": "mine", "partitions": [{"partition_index": 0}]}]}
FIRST_ERRORS = [
    # key, version, request, what is needed, the path to the error, the error
    (keys.LIST_OFFSETS, 7, {"replica_id": -1, "isolation_level": 0} | ONE_TOPIC,
     (TOPIC, "mine", DESCRIBE), ("topics", 0, "partitions", 0), TOPIC_AUTHORIZATION_FAILED),
    (keys.DELETE_RECORDS, 2, {"timeout_ms": 1} | {"topics": [{"name": "mine", "partitions": [
        {"partition_index": 0, "offset": 1}]}]},
     (TOPIC, "mine", DELETE), ("topics", 0, "partitions", 0), TOPIC_AUTHORIZATION_FAILED),
    (keys.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": "mine", "partition_indexes": [0]}]},
     (TOPIC, "mine", READ), ("topics", 0, "partitions", 0), TOPIC_AUTHORIZATION_FAILED),
    (keys.CREATE_TOPICS, 7, {"topics": [{"name": "new", "num_partitions": 1}], "timeout_ms": 1},
     (TOPIC, "new", CREATE), ("topics", 0), TOPIC_AUTHORIZATION_FAILED),
    (keys.DELETE_TOPICS, 5, {"topic_names": ["mine"], "timeout_ms": 1},
     (TOPIC, "mine", DELETE), ("responses", 0), TOPIC_AUTHORIZATION_FAILED),
    (keys.DELETE_TOPICS, 6, {"topics": [{"name": None, "topic_id": ID}], "timeout_ms": 1},
     (TOPIC, "mine", DELETE), ("responses", 0), TOPIC_AUTHORIZATION_FAILED),
    (keys.CREATE_PARTITIONS, 3, {"topics": [{"name": "mine", "count": 2, "assignments": None}]},
     (TOPIC, "mine", ALTER), ("results", 0), TOPIC_AUTHORIZATION_FAILED),
    (keys.JOIN_GROUP, 9, {"group_id": "g", "protocol_type": "consumer"},
     (GROUP, "g", READ), (), GROUP_AUTHORIZATION_FAILED),
    (keys.SYNC_GROUP, 5, {"group_id": "g", "protocol_type": "consumer", "protocol_name": "range"},
     (GROUP, "g", READ), (), GROUP_AUTHORIZATION_FAILED),
    (keys.HEARTBEAT, 4, {"group_id": "g"}, (GROUP, "g", READ), (), GROUP_AUTHORIZATION_FAILED),
    (keys.LEAVE_GROUP, 5, {"group_id": "g"}, (GROUP, "g", READ), (), GROUP_AUTHORIZATION_FAILED),
    (keys.CONSUMER_GROUP_HEARTBEAT, 1, {"group_id": "g", "member_id": "m", "member_epoch": 0},
     (GROUP, "g", READ), (), GROUP_AUTHORIZATION_FAILED),
    (keys.DELETE_GROUPS, 2, {"groups_names": ["g"]},
     (GROUP, "g", DELETE), ("results", 0), GROUP_AUTHORIZATION_FAILED),
    (keys.DESCRIBE_GROUPS, 5, {"groups": ["g"]},
     (GROUP, "g", DESCRIBE), ("groups", 0), GROUP_AUTHORIZATION_FAILED),
    (keys.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["g"]},
     (GROUP, "g", DESCRIBE), ("coordinators", 0), GROUP_AUTHORIZATION_FAILED),
    (keys.FIND_COORDINATOR, 3, {"key_type": 1, "key": "x"},
     (TRANSACTIONAL_ID, "x", DESCRIBE), (), TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    (keys.OFFSET_FETCH, 8, {"groups": [{"group_id": "g", "topics": None}]},
     (GROUP, "g", DESCRIBE), ("groups", 0), GROUP_AUTHORIZATION_FAILED),
    (keys.INIT_PRODUCER_ID, 5, {"transactional_id": "x", "transaction_timeout_ms": 1},
     (TRANSACTIONAL_ID, "x", WRITE), (), TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    (keys.INIT_PRODUCER_ID, 5, {"transactional_id": None, "transaction_timeout_ms": 1},
     (CLUSTER, CLUSTER_NAME, IDEMPOTENT_WRITE), (), CLUSTER_AUTHORIZATION_FAILED),
    (keys.INIT_PRODUCER_ID, 5, {"transactional_id": None, "transaction_timeout_ms": 1},
     (TOPIC, "any", WRITE), (), CLUSTER_AUTHORIZATION_FAILED),
    (keys.END_TXN, 4, {"transactional_id": "x", "producer_id": 1, "committed": True},
     (TRANSACTIONAL_ID, "x", WRITE), (), TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    (keys.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["x"]},
     (TRANSACTIONAL_ID, "x", DESCRIBE), ("transaction_states", 0),
     TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    (keys.WRITE_TXN_MARKERS, 1, {"markers": [{"producer_id": 1, "topics": [
        {"name": "mine", "partition_indexes": [0]}]}]},
     (CLUSTER, CLUSTER_NAME, CLUSTER_ACTION), ("markers", 0, "topics", 0, "partitions", 0),
     CLUSTER_AUTHORIZATION_FAILED),
    (keys.DESCRIBE_ACLS, 3, {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1,
                             "permission_type": 1},
     (CLUSTER, CLUSTER_NAME, DESCRIBE), (), CLUSTER_AUTHORIZATION_FAILED),
    (keys.CREATE_ACLS, 3, {"creations": [{"resource_type": 2, "resource_name": "t",
                                          "principal": "User:x", "host": "*", "operation": 3,
                                          "permission_type": 3}]},
     (CLUSTER, CLUSTER_NAME, ALTER), ("results", 0), CLUSTER_AUTHORIZATION_FAILED),
    (keys.DELETE_ACLS, 3, {"filters": [{"resource_type_filter": 1, "operation": 1,
                                        "permission_type": 1}]},
     (CLUSTER, CLUSTER_NAME, ALTER), ("filter_results", 0), CLUSTER_AUTHORIZATION_FAILED),
    (keys.DESCRIBE_CONFIGS, 4, {"resources": [{"resource_type": 2, "resource_name": "mine"}]},
     (TOPIC, "mine", DESCRIBE_CONFIGS), ("results", 0), TOPIC_AUTHORIZATION_FAILED),
    (keys.DESCRIBE_CONFIGS, 4, {"resources": [{"resource_type": 4, "resource_name": "1"}]},
     (CLUSTER, CLUSTER_NAME, DESCRIBE_CONFIGS), ("results", 0), CLUSTER_AUTHORIZATION_FAILED),
    (keys.DESCRIBE_CONFIGS, 4, {"resources": [{"resource_type": 32, "resource_name": "g"}]},
     (GROUP, "g", DESCRIBE_CONFIGS), ("results", 0), GROUP_AUTHORIZATION_FAILED),
    (keys.DESCRIBE_LOG_DIRS, 4, {"topics": None},
     (CLUSTER, CLUSTER_NAME, DESCRIBE), (), CLUSTER_AUTHORIZATION_FAILED),
    (keys.ELECT_LEADERS, 2, {"election_type": 0, "topic_partitions": None, "timeout_ms": 1},
     (CLUSTER, CLUSTER_NAME, ALTER), (), CLUSTER_AUTHORIZATION_FAILED),
    (keys.LIST_PARTITION_REASSIGNMENTS, 0, {"timeout_ms": 1, "topics": None},
     (CLUSTER, CLUSTER_NAME, DESCRIBE), (), CLUSTER_AUTHORIZATION_FAILED),
    (keys.CREATE_DELEGATION_TOKEN, 3, {"owner_principal_type": "User", "renewers": [],
                                       "owner_principal_name": "his", "max_lifetime_ms": -1},
     (USER, "User:his", CREATE_TOKENS), (), DELEGATION_TOKEN_AUTHORIZATION_FAILED),
    (keys.LIST_CONFIG_RESOURCES, 1, {"resource_types": []},
     (CLUSTER, CLUSTER_NAME, DESCRIBE_CONFIGS), (), CLUSTER_AUTHORIZATION_FAILED),
]  # fmt: skip


@pytest.mark.parametrize(("key", "version", "body", "right", "path", "error"), FIRST_ERRORS)
def test_what_is_refused_without_a_right_and_goes_on_with_it(
    key: int,
    version: int,
    body: dict[str, Any],
    right: tuple[int, str, int],
    path: tuple[Any, ...],
    error: int,
) -> None:
    kind, _, operation = right
    assert any(need[:3] == (operation, kind, error) for need in NEEDS[key]) or (
        (key, kind) == (keys.INIT_PRODUCER_ID, TOPIC)  # instead of the cluster's
    )
    refused = judge(may(), key, version, body)
    assert isinstance(refused, Refused)
    row: Any = refused.answer
    for step in path:
        row = row[step]
    assert row["error_code"] == error
    allowed = judge(may(right), key, version, body)
    assert not isinstance(allowed, Refused)
    assert allowed is None or allowed.body is None, "nothing of it is left out"


def test_who_may_do_everything_asks_everything_as_it_is() -> None:
    asker = Asker(ME, HERE, Authorizer(MAY_ALL), IMAGE)
    for key, version, body, *_ in FIRST_ERRORS:
        outcome = judge(asker, key, version, body)
        assert outcome is None or (isinstance(outcome, Partly) and outcome.body is None)


def test_a_part_of_a_request_goes_on_and_the_rest_is_answered_behind_it() -> None:
    topics = [
        {"name": name, "partitions": [{"partition_index": 0}]} for name in ("hers", "mine", "his")
    ]
    body = {"replica_id": -1, "isolation_level": 0, "topics": topics}
    outcome = judge(may((TOPIC, "mine", DESCRIBE)), keys.LIST_OFFSETS, 7, body)
    assert isinstance(outcome, Partly) and outcome.body is not None
    assert [topic["name"] for topic in outcome.body["topics"]] == ["mine"]
    answered = {"topics": [{"name": "mine", "partitions": [{"error_code": 0}]}]}
    answer = outcome.after(answered)
    assert [
        (topic["name"], topic["partitions"][0]["error_code"]) for topic in answer["topics"]
    ] == [("mine", 0), ("hers", TOPIC_AUTHORIZATION_FAILED), ("his", TOPIC_AUTHORIZATION_FAILED)]


def test_metadata_of_all_topics_leaves_out_what_may_not_be_described() -> None:
    outcome = judge(may((TOPIC, "mine", READ)), keys.METADATA, 12, {"topics": None})
    assert isinstance(outcome, Partly) and outcome.body is None
    rows = [{"name": name, "error_code": 0} for name in ("mine", "hers")]
    assert [row["name"] for row in outcome.after({"topics": rows})["topics"]] == ["mine"]


@pytest.mark.parametrize("may_create", [True, False])
def test_a_topic_that_is_not_there_is_made_only_by_who_may(may_create: bool) -> None:
    rights = [(TOPIC, "new", DESCRIBE)] + [(TOPIC, "new", CREATE)] * may_create
    body = {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}
    outcome = judge(may(*rights), keys.METADATA, 12, body)
    assert isinstance(outcome, Partly)
    if may_create:
        assert outcome.body is None
    else:
        assert outcome.body is not None and outcome.body["topics"] == []
        (row,) = outcome.after({"topics": []})["topics"]
        assert (row["name"], row["error_code"]) == ("new", TOPIC_AUTHORIZATION_FAILED)


def test_authorized_operations_are_the_clients_own() -> None:
    asked = {"topics": [{"name": "mine"}], "include_topic_authorized_operations": True}
    outcome = judge(may((TOPIC, "mine", READ)), keys.METADATA, 12, asked)
    assert isinstance(outcome, Partly)
    (row,) = outcome.after({"topics": [{"name": "mine", "error_code": 0}]})["topics"]
    assert row["topic_authorized_operations"] == 1 << READ | 1 << DESCRIBE


def test_what_was_refused_as_a_whole_names_no_operations() -> None:
    asked = {"include_cluster_authorized_operations": True, "endpoint_type": 2}
    outcome = judge(may((CLUSTER, CLUSTER_NAME, DESCRIBE)), keys.DESCRIBE_CLUSTER, 2, asked)
    assert isinstance(outcome, Partly)
    told = {"error_code": MISMATCHED_ENDPOINT_TYPE, "cluster_authorized_operations": UNSAID}
    assert outcome.after(dict(told)) == told
    cursor = {"topic_name": "other", "partition_index": 0}
    asked = {"topics": [{"name": "mine"}], "response_partition_limit": 9, "cursor": cursor}
    outcome = judge(may((TOPIC, "mine", READ)), keys.DESCRIBE_TOPIC_PARTITIONS, 0, asked)
    assert isinstance(outcome, Partly)
    row = {"name": "mine", "error_code": INVALID_REQUEST, "topic_authorized_operations": UNSAID}
    assert outcome.after({"topics": [dict(row)]})["topics"] == [row]


def test_one_forbidden_topic_spoils_what_is_added_to_a_transaction() -> None:
    body = {
        "v3_and_below_transactional_id": "x",
        "v3_and_below_topics": [{"name": name, "partitions": [0]} for name in ("mine", "hers")],
    }
    asker = may((TRANSACTIONAL_ID, "x", WRITE), (TOPIC, "mine", WRITE))
    outcome = judge(asker, keys.ADD_PARTITIONS_TO_TXN, 3, body)
    assert isinstance(outcome, Refused)
    assert [
        topic["results_by_partition"][0]["partition_error_code"]
        for topic in outcome.answer["results_by_topic_v3_and_below"]
    ] == [OPERATION_NOT_ATTEMPTED, TOPIC_AUTHORIZATION_FAILED]


def test_groups_are_listed_that_may_be_described() -> None:
    outcome = judge(may((GROUP, "g", READ)), keys.LIST_GROUPS, 5, {})
    assert isinstance(outcome, Partly)
    groups = [{"group_id": name} for name in ("g", "h")]
    assert outcome.after({"groups": groups})["groups"] == [{"group_id": "g"}]
    everything = may((CLUSTER, CLUSTER_NAME, DESCRIBE))
    assert judge(everything, keys.LIST_GROUPS, 5, {}) is None


def test_offsets_of_topics_that_nobody_named_are_left_out() -> None:
    asker = may((GROUP, "g", READ), (TOPIC, "mine", READ))
    body = {"groups": [{"group_id": "g", "topics": None}]}
    outcome = judge(asker, keys.OFFSET_FETCH, 8, body)
    assert isinstance(outcome, Partly) and outcome.body is None
    answer = {"groups": [{"group_id": "g", "topics": [{"name": "mine"}, {"name": "hers"}]}]}
    assert outcome.after(answer)["groups"][0]["topics"] == [{"name": "mine"}]


@pytest.mark.parametrize(
    ("rights", "error"),
    [
        ([], TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ([(TRANSACTIONAL_ID, "x", WRITE)], GROUP_AUTHORIZATION_FAILED),
        ([(TRANSACTIONAL_ID, "x", WRITE), (GROUP, "g", READ)], TOPIC_AUTHORIZATION_FAILED),
    ],
)
def test_offsets_in_a_transaction(rights: list[tuple[int, str, int]], error: int) -> None:
    body = {
        "transactional_id": "x",
        "group_id": "g",
        "producer_id": 1,
        "topics": [{"name": "mine", "partitions": [{"partition_index": 0}]}],
    }
    outcome = judge(may(*rights), keys.TXN_OFFSET_COMMIT, 3, body)
    assert isinstance(outcome, Refused)
    assert outcome.answer["topics"][0]["partitions"][0]["error_code"] == error


def test_nobody_makes_topics_by_asking_for_those_that_it_may_not_see_in_version_0() -> None:
    outcome = judge(may(), keys.METADATA, 0, {"topics": [{"name": "new"}]})
    assert isinstance(outcome, Partly) and outcome.body is not None
    assert outcome.body["topics"] == [], "all of them are asked for, and not told"
    rows = [{"name": "mine", "error_code": 0}]
    (row,) = outcome.after({"topics": rows})["topics"]
    assert (row["name"], row["error_code"]) == ("new", TOPIC_AUTHORIZATION_FAILED)


def test_elections_are_refused_in_the_form_of_version_0_too() -> None:
    body = {"topic_partitions": [{"topic": "mine", "partitions": [0]}], "timeout_ms": 1}
    for version in (0, 2):
        outcome = judge(may(), keys.ELECT_LEADERS, version, body)
        assert isinstance(outcome, Refused)
        (row,) = outcome.answer["replica_election_results"]
        assert row["partition_result"][0]["error_code"] == CLUSTER_AUTHORIZATION_FAILED


def test_brokers_alone_verify_what_is_in_transactions() -> None:
    one = {"transactional_id": "x", "producer_id": 1, "verify_only": True, "topics": []}
    body = {"transactions": [one]}
    outcome = judge(may((TRANSACTIONAL_ID, "x", WRITE)), keys.ADD_PARTITIONS_TO_TXN, 4, body)
    assert isinstance(outcome, Refused)
    assert outcome.answer["error_code"] == CLUSTER_AUTHORIZATION_FAILED


def test_who_may_delete_with_the_cluster_deletes_any_topic() -> None:
    body = {"topics": [{"name": "mine"}], "timeout_ms": 1}
    assert judge(may((CLUSTER, CLUSTER_NAME, ALL)), keys.DELETE_TOPICS, 6, body) is None


def test_a_group_is_hidden_that_reads_what_may_not_be_described() -> None:
    outcome = judge(may((GROUP, "g", DESCRIBE)), keys.CONSUMER_GROUP_DESCRIBE, 1,
                    {"group_ids": ["g"]})  # fmt: skip
    assert isinstance(outcome, Partly)
    member = {"assignment": {"topic_partitions": [{"topic_name": "mine"}]}}
    row = {"group_id": "g", "group_epoch": 7, "error_code": 0, "members": [member]}
    (told,) = outcome.after({"groups": [row]})["groups"]
    assert told["error_code"] == TOPIC_AUTHORIZATION_FAILED
    assert not told["members"] and "group_epoch" not in told


@pytest.mark.parametrize(("owner", "may_have_tokens"), [("me", True), ("", True), ("his", False)])
def test_a_token_of_ones_own_needs_no_right_and_a_forbidden_one_is_refused_elsewhere(
    owner: str, may_have_tokens: bool
) -> None:
    body = {
        "owner_principal_type": "User",
        "owner_principal_name": owner,
        "renewers": [],
        "max_lifetime_ms": -1,
    }
    asker = may()._replace(may_have_tokens=may_have_tokens)
    assert judge(asker, keys.CREATE_DELEGATION_TOKEN, 3, body) is None


def _token(token_id: str, owner: str, requester: str = "User:x", *renewers: str) -> Token:
    return Token(token_id, owner, requester, renewers, 0, 1, 2)


TOKENS = {
    token.token_id: token
    for token in (
        _token("owned", ME),
        _token("requested", "User:his", ME),
        _token("renewed", "User:her", "User:her", "User:x", ME),
        _token("his", "User:his"),
        _token("hers", "User:her"),
    )
}


@pytest.mark.parametrize(
    ("right", "seen"),
    [
        (None, ["owned", "requested", "renewed"]),
        ((DELEGATION_TOKEN, "hers", DESCRIBE), ["owned", "requested", "renewed", "hers"]),
        ((USER, "User:his", DESCRIBE_TOKENS), ["owned", "requested", "renewed", "his"]),
        ((USER, "his", DESCRIBE_TOKENS), ["owned", "requested", "renewed"]),
        ((USER, "User:his", CREATE_TOKENS), ["owned", "requested", "renewed"]),
    ],
)
def test_tokens_of_others_are_seen_by_who_may(
    right: tuple[int, str, int] | None, seen: list[str]
) -> None:
    asker = may(*([right] if right else []))
    assert [token.token_id for token in TOKENS.values() if may_see(asker, token)] == seen


def test_who_may_do_everything_and_everybody_where_no_acl_closes_it_sees_all_tokens() -> None:
    mine = Acl(TOPIC, "mine", LITERAL, ME, "*", READ, ALLOW)
    for authorizer in (Authorizer([mine], [ME]), Authorizer([mine], [], True)):
        asker = Asker(ME, HERE, authorizer, IMAGE)
        assert all(may_see(asker, token) for token in TOKENS.values())
