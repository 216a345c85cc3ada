"""Rights in a gateway: what is recognised by its bytes is judged anew when the ACLs change."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from shmbroker.ipc.operation_layout import (
    APPEND_HEAD,
    APPENDED,
    APPENDED_HEAD,
    EXECUTE,
    EXECUTED,
    EXECUTED_HEAD,
    TOKEN,
)
from shmbroker.metadata.security_image import Acl, Token, acl_record, token_record
from shmbroker.security.acls import ALLOW, ANONYMOUS, DELETE, LITERAL, READ, TOPIC, WRITE
from shmbroker.settings.table import STANDARD_AUTHORIZER
from shmbroker.wire import codec
from shmbroker.wire.error_codes import INVALID_RECORD, NONE, TOPIC_AUTHORIZATION_FAILED
from tests.support.family_memory import TOPIC as NAME
from tests.support.gateway_family import GATEWAY, GatewayFamily, gateway_family
from tests.support.record_batches import batch

MAY_WRITE, MAY_DELETE = b"w" * 16, b"d" * 16
PRODUCE, FETCH = 0, 1


@pytest.fixture
def family() -> Iterator[GatewayFamily]:
    with gateway_family(f"authorizer.class.name={STANDARD_AUTHORIZER}") as made:
        yield made


def allow(family: GatewayFamily, acl_id: bytes, operation: int) -> None:
    acl = Acl(TOPIC, NAME, LITERAL, ANONYMOUS, "127.0.0.1", operation, ALLOW)
    family.link.commit(("AccessControlEntryRecord", 0, acl_record(acl_id, acl)))


def produce(family: GatewayFamily) -> int:
    """The error code of a Produce, with a broker that appends what comes to it."""
    records = batch(0, [(0, 1000, None, b"v", ())])
    partition = {"index": 0, "records": records}
    body: dict[str, Any] = {
        "transactional_id": None,
        "acks": -1,
        "timeout_ms": 1000,
        "topic_data": [{"name": NAME, "partition_data": [partition]}],
    }
    family.ask(PRODUCE, 9, "Produce", body)
    for _, payload in family.taken():
        token = APPEND_HEAD.unpack_from(payload)[0]
        family.reply(APPENDED, APPENDED_HEAD.pack(token, 0, 0, 0, 0, -1, 0))
    family.quiet_turn()
    answer = family.answer(PRODUCE, 9, "Produce")
    return int(answer["responses"][0]["partition_responses"][0]["error_code"])


def fetch(family: GatewayFamily) -> int:
    """The error code of a Fetch that nobody may answer but the gateway."""
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    body = {
        "replica_id": -1,
        "max_wait_ms": 0,
        "min_bytes": 0,
        "session_epoch": -1,
        "topics": [{"topic": NAME, "partitions": [partition]}],
    }
    family.ask(FETCH, 11, "Fetch", body)
    if family.taken():
        return NONE
    answer = family.answer(FETCH, 11, "Fetch")
    return int(answer["responses"][0]["partitions"][0]["error_code"])


def test_nobody_may_do_what_no_acl_allows(family: GatewayFamily) -> None:
    assert produce(family) == TOPIC_AUTHORIZATION_FAILED
    assert fetch(family) == TOPIC_AUTHORIZATION_FAILED


def test_a_right_counts_from_its_acl_on_and_ends_with_it(family: GatewayFamily) -> None:
    allow(family, MAY_WRITE, WRITE)
    assert [produce(family) for _ in range(3)] == [NONE] * 3
    connection = next(iter(family.gateway.loop.connections.values()))
    assert connection.fast_produce is not None, "recognised by its bytes"
    family.link.commit(("RemoveAccessControlEntryRecord", 0, {"id": MAY_WRITE}))
    assert produce(family) == TOPIC_AUTHORIZATION_FAILED
    assert fetch(family) == TOPIC_AUTHORIZATION_FAILED


def test_each_right_is_of_its_own(family: GatewayFamily) -> None:
    allow(family, MAY_WRITE, READ)
    assert fetch(family) == NONE


@pytest.mark.parametrize("size", [1, 11, 12, 22, 26, 60])
def test_short_records_of_a_transaction_are_refused(family: GatewayFamily, size: int) -> None:
    """Too short to say whether they are of one."""
    allow(family, MAY_WRITE, WRITE)
    partition = {"index": 0, "records": batch(0, [(0, 1000, None, b"v", ())])[:size]}
    body = {
        "transactional_id": "x",
        "acks": -1,
        "timeout_ms": 1000,
        "topic_data": [{"name": NAME, "partition_data": [partition]}],
    }
    family.ask(PRODUCE, 9, "Produce", body)
    answer = family.answer(PRODUCE, 9, "Produce")
    row = answer["responses"][0]["partition_responses"][0]
    assert row["error_code"] == INVALID_RECORD


def test_without_an_authorizer_nothing_is_asked() -> None:
    with gateway_family() as made:
        assert made.gateway.guard is None
        assert produce(made) == NONE


def test_denials_are_in_the_audit_log(
    family: GatewayFamily, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shmbroker.audit")
    assert produce(family) == fetch(family) == TOPIC_AUTHORIZATION_FAILED
    topics = {"topics": [{"name": NAME}], "allow_auto_topic_creation": False}
    family.ask(3, 12, "Metadata", topics)
    assert family.answer(3, 12, "Metadata")["topics"][0]["error_code"] != NONE
    allow(family, MAY_WRITE, WRITE)
    assert produce(family) == NONE
    host, port = family.client.getsockname()
    whose = f"denied: {ANONYMOUS} from {host}:{port} by listener PLAINTEXT"
    assert [record.getMessage() for record in caplog.records] == [
        f"{whose}, Produce: WRITE on topic {NAME}",
        f"{whose}, Fetch: READ on topic {NAME}",
        f"{whose}, Metadata: CREATE on cluster kafka-cluster",
        f"{whose}, Metadata: DESCRIBE on topic {NAME}",
    ]
    family.quiet_turn()
    assert family.counters.words[family.counters.counter(GATEWAY, "requests_denied")] == 3


DELETION = {"topics": [{"name": NAME, "partitions": [{"partition_index": 0, "offset": 5}]}]}
DELETED = {
    "topics": [{"name": NAME, "partitions": [{"partition_index": 0, "low_watermark": 5}]}],
}


def delete_records(family: GatewayFamily) -> None:
    family.ask(21, 2, "DeleteRecords", DELETION)
    for operation, payload in family.taken():
        assert operation == EXECUTE
        token = TOKEN.unpack_from(payload)[0]
        family.reply(
            EXECUTED,
            EXECUTED_HEAD.pack(token, 0, 0) + codec.encode("DeleteRecordsResponse", 2, DELETED),
        )
    family.quiet_turn()


def test_changes_are_in_the_audit_log_with_their_outcome(
    family: GatewayFamily, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shmbroker.audit")
    delete_records(family)
    denied = family.answer(21, 2, "DeleteRecords")["topics"][0]["partitions"][0]
    assert denied["error_code"] == TOPIC_AUTHORIZATION_FAILED
    allow(family, MAY_DELETE, DELETE)
    delete_records(family)
    assert family.answer(21, 2, "DeleteRecords") == DELETED | {"throttle_time_ms": 0} | {
        "topics": [
            {
                "name": NAME,
                "partitions": [DELETED["topics"][0]["partitions"][0] | {"error_code": 0}],
            }
        ]
    }
    said = [record.getMessage().partition(", ")[2] for record in caplog.records]
    assert said == [
        f"DeleteRecords: DELETE on topic {NAME}",
        f"DeleteRecords: records of {NAME}-0: TOPIC_AUTHORIZATION_FAILED",
        f"DeleteRecords: records of {NAME}-0: done",
    ]


@pytest.mark.parametrize(("setting", "lines"), [("true", 1), ("false", 0)])
def test_without_an_authorizer_changes_are_logged_where_that_is_asked_for(
    setting: str, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shmbroker.audit")
    with gateway_family(f"shmbroker.audit={setting}") as family:
        delete_records(family)
        assert family.answer(21, 2, "DeleteRecords")["topics"]
        assert len(caplog.records) == lines
        is_as_ever = family.gateway.tables.submits == family.gateway.plain.submits | {
            PRODUCE: family.gateway.produce.submit,
            FETCH: family.gateway.fetch.submit,
        }
        assert is_as_ever == (not lines), "who is not audited pays nothing"


def test_decisions_stay_known_when_tokens_come_and_are_dropped_when_acls_do(
    family: GatewayFamily,
) -> None:
    allow(family, MAY_WRITE, WRITE)
    family.quiet_turn()
    guard = family.gateway.guard
    assert guard is not None
    [connection] = family.gateway.loop.connections.values()
    before = guard.asker(connection).authorizer
    token = Token("one", "User:a", "User:a", (), 1, 2, 3)
    family.link.commit(("DelegationTokenRecord", 0, token_record(token)))
    family.quiet_turn()
    asker = guard.asker(connection)
    assert asker.authorizer is before and "one" in asker.image.security.tokens
    allow(family, b"r" * 16, READ)
    family.quiet_turn()
    assert guard.asker(connection).authorizer is not before
