"""Rights in a gateway: what is recognised by its bytes is judged anew when the ACLs change."""

from collections.abc import Iterator
from typing import Any

import pytest

from shmbroker.ipc.operation_layout import APPEND_HEAD, APPENDED, APPENDED_HEAD
from shmbroker.metadata.security_image import Acl, acl_record
from shmbroker.security.acls import ALLOW, ANONYMOUS, LITERAL, READ, TOPIC, WRITE
from shmbroker.settings.table import STANDARD_AUTHORIZER
from shmbroker.wire.error_codes import NONE, TOPIC_AUTHORIZATION_FAILED
from tests.support.family_memory import TOPIC as NAME
from tests.support.gateway_family import GatewayFamily, gateway_family
from tests.support.record_batches import batch

MAY_WRITE = b"w" * 16
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


def test_without_an_authorizer_nothing_is_asked() -> None:
    with gateway_family() as made:
        assert made.gateway.guard is None
        assert produce(made) == NONE
