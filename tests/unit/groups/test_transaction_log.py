"""Records of `__transaction_state`: the very bytes that Apache Kafka 4.2.1 writes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmbroker.groups.transactions import transaction_log
from shmbroker.groups.transactions.transaction import (
    COMPLETE_COMMIT,
    EMPTY,
    NO_EPOCH,
    NO_ID,
    ONGOING,
    PREPARE_COMMIT,
    STATE_NAMES,
    Transaction,
)
from shmbroker.wire import coordinator_records

KAFKAS = {
    # state, client version: key, value
    (0, 0): (
        "0000000761383234613537",
        "0001000000000000000000000000ea600000000001a20d56fc57ffffffffffffffff00",
    ),
    (1, 2): (
        "0000000761383234613537",
        "0001000000000000000000030000ea6001020874383234613537020000000000000001a20d56fdc6"
        "000001a20d56fdc60102020002",
    ),
    (2, 2): (
        "0000000761383234613537",
        "0001000000000000000000040000ea6002020874383234613537020000000000000001a20d56fdda"
        "000001a20d56fdc60102020002",
    ),
    (3, 2): (
        "0000000761383234613537",
        "0001000000000000000000020000ea600301000001a20d56fc74000001a20d56fc740102020002",
    ),
    (4, 0): (
        "0000000762383234613537",
        "0001000000000000000100000000ea600401000001a20d570063000001a20d57004e00",
    ),
    (5, 2): (
        "0000000761383234613537",
        "0001000000000000000000020000ea600501000001a20d56fc77000001a20d56fc740102020002",
    ),
}


@pytest.mark.parametrize(("state", "version"), KAFKAS)
def test_kafkas_records_are_read_and_written(state: int, version: int) -> None:
    key, value = (bytes.fromhex(each) for each in KAFKAS[state, version])
    found = transaction_log.decode(key, value)
    assert found is not None
    assert (found[1].state, found[1].client_version) == (state, version)
    assert transaction_log.record(*found, 2) == (key, value)


TRANSACTIONS = st.builds(
    Transaction,
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(0, 2**15 - 1),
    previous_producer_id=st.integers(-1, 2**63 - 1),
    next_producer_id=st.integers(-1, 2**63 - 1),
    last_epoch=st.just(NO_EPOCH),
    timeout_ms=st.integers(1, 2**31 - 1),
    state=st.sampled_from(range(6)),
    partitions=st.frozensets(st.tuples(st.sampled_from("abc"), st.integers(0, 9))),
    start_ms=st.integers(-1, 2**63 - 1),
    update_ms=st.integers(0, 2**63 - 1),
    client_version=st.integers(0, 2),
)


@given(name=st.text(max_size=20), known=TRANSACTIONS, version=st.integers(0, 2))
def test_what_is_written_is_read(name: str, known: Transaction, version: int) -> None:
    """Without the fields that version 0 lacks, and without partitions before the first."""
    key, value = transaction_log.record(name, known, version)
    assert value is not None
    expected = known
    if known.state == EMPTY:
        expected = expected._replace(partitions=frozenset())
    if not version:
        expected = expected._replace(
            previous_producer_id=NO_ID, next_producer_id=NO_ID, client_version=0
        )
    assert transaction_log.decode(key, value) == (name, expected)


def test_a_tombstone_is_a_key_alone() -> None:
    assert transaction_log.record("a824a57", None, 2) == (bytes.fromhex(KAFKAS[0, 0][0]), None)


def test_strange_records_are_passed_over() -> None:
    key, value = (bytes.fromhex(each) for each in KAFKAS[0, 0])
    assert transaction_log.decode(key, value[:9]) is None
    assert transaction_log.decode(key[:3], value) is None
    assert transaction_log.decode(b"\0\7" + key[2:], value) is None
    for state in (ONGOING, PREPARE_COMMIT, COMPLETE_COMMIT, 6, 7, 8, -1):
        fields = coordinator_records.decode_value("transaction", 0, value)[1]
        fields["transaction_status"] = state
        found = transaction_log.decode(
            key, coordinator_records.encode_value("transaction", 0, 1, fields)
        )
        assert (found is not None) == (state in range(6)), STATE_NAMES.get(state)
