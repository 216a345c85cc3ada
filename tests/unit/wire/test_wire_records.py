"""The frames around records of the metadata log and of the coordinators."""

import pytest

from shmbroker.errors import ProtocolFault
from shmbroker.wire import coordinator_records, metadata_records
from shmbroker.wire.coordinator_records import GROUP, OFFSET_COMMIT, TRANSACTION, TRANSACTION_LOG

TOPIC_ID = bytes(range(16))


def test_metadata_record_has_the_bytes_of_the_format():
    assert metadata_records.encode_metadata_record("NoOpRecord", 0, {}).hex() == "01140000"
    topic = {"name": "ab", "topic_id": TOPIC_ID}
    encoded = metadata_records.encode_metadata_record("TopicRecord", 0, topic)
    assert encoded == bytes.fromhex("01 02 00 03 6162") + TOPIC_ID + b"\x00"
    assert metadata_records.decode_metadata_record(encoded) == ("TopicRecord", 0, topic)


@pytest.mark.parametrize(
    "encoded",
    [
        "",
        "01",
        "01 14",
        "02 14 00 00",  # frame version
        "01 06 00 00",  # no such record
        "01 14 01 00",  # no such version
        "01 14 00 00 00",  # left over
    ],
)
def test_bad_metadata_record_is_refused(encoded):
    with pytest.raises(ProtocolFault):
        metadata_records.decode_metadata_record(bytes.fromhex(encoded))


def test_offset_commit_has_the_bytes_of_the_format():
    key = {"group": "g", "topic": "t", "partition": 1}
    encoded_key = coordinator_records.encode_key(GROUP, OFFSET_COMMIT, key)
    assert encoded_key.hex(" ") == "00 01 00 01 67 00 01 74 00 00 00 01"
    assert coordinator_records.decode_key(GROUP, encoded_key) == (OFFSET_COMMIT, key)

    value = {"offset": 5, "leader_epoch": 2, "metadata": "m", "commit_timestamp": 9}
    encoded = coordinator_records.encode_value(GROUP, OFFSET_COMMIT, 3, value)
    assert encoded.hex() == "000300000000000000050000000200016d0000000000000009"
    version, message = coordinator_records.decode_value(GROUP, OFFSET_COMMIT, encoded)
    assert version == 3
    assert message == {**value, "expire_timestamp": -1, "topic_id": bytes(16)}


def test_transaction_records_have_their_own_types():
    key = coordinator_records.encode_key(TRANSACTION, TRANSACTION_LOG, {"transactional_id": "x"})
    assert key.hex(" ") == "00 00 00 01 78"
    assert coordinator_records.decode_key(TRANSACTION, key) == (0, {"transactional_id": "x"})
    encoded = coordinator_records.encode_value(TRANSACTION, TRANSACTION_LOG, 1, {"producer_id": 7})
    version, message = coordinator_records.decode_value(TRANSACTION, TRANSACTION_LOG, encoded)
    assert (version, message["producer_id"]) == (1, 7)


def test_key_of_an_unknown_type_has_no_message():
    assert coordinator_records.decode_key(GROUP, b"\x03\xe7anything") == (999, None)


@pytest.mark.parametrize("encoded", ["", "00", "0063 00", "0003 00"])
def test_bad_coordinator_value_is_refused(encoded):
    with pytest.raises(ProtocolFault):
        coordinator_records.decode_value(GROUP, OFFSET_COMMIT, bytes.fromhex(encoded))


def test_bad_coordinator_key_is_refused():
    for encoded in ("", "00", "0001", "0001 0001 67", "0002 0001 67 00"):
        with pytest.raises(ProtocolFault):
            coordinator_records.decode_key(GROUP, bytes.fromhex(encoded))
