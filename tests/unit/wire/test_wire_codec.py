"""What the compiled functions promise, case by case; every message is in tests/property."""

import pytest

from shmbroker.errors import ProtocolFault
from shmbroker.wire import codec
from tests.support.unknown_keys import unknown_keys


def test_metadata_request_has_the_bytes_of_the_format():
    message = {"topics": [{"name": "ab"}], "allow_auto_topic_creation": True}
    assert codec.encode("MetadataRequest", 4, message) == bytes.fromhex("00000001 0002 6162 01")
    v12 = bytes.fromhex("02" + "00" * 16 + "03 6162 00  01 00 00")
    assert codec.encode("MetadataRequest", 12, message) == v12


def test_decoded_message_has_the_fields_of_other_versions_by_default():
    assert codec.decode_all("MetadataRequest", 0, bytes(4)) == {
        "topics": [],
        "allow_auto_topic_creation": True,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    fetch = codec.decode_all("FetchRequest", 4, codec.encode("FetchRequest", 4, {}))
    assert fetch["replica_state"] == {"replica_id": -1, "replica_epoch": -1}
    assert fetch["max_bytes"] == 0x7FFFFFFF


def test_defaults_of_two_messages_are_not_the_same_object():
    encoded = codec.encode("FetchRequest", 4, {})
    first = codec.decode_all("FetchRequest", 4, encoded)
    first["forgotten_topics_data"].append("mine")
    first["replica_state"]["replica_id"] = 7
    second = codec.decode_all("FetchRequest", 4, encoded)
    assert second["forgotten_topics_data"] == []
    assert second["replica_state"]["replica_id"] == -1


def test_null_is_kept_apart_from_empty():
    for version in (1, 12):
        for topics in (None, []):
            encoded = codec.encode("MetadataRequest", version, {"topics": topics})
            assert codec.decode_all("MetadataRequest", version, encoded)["topics"] == topics


def test_null_where_the_version_has_none_is_refused():
    with pytest.raises(ProtocolFault):
        codec.decode("MetadataRequest", 0, b"\xff\xff\xff\xff")
    with pytest.raises(ProtocolFault):
        codec.encode("MetadataRequest", 0, {"topics": None})
    with pytest.raises(ProtocolFault):
        codec.decode("FindCoordinatorRequest", 4, b"\x00\x00\x00")


def test_null_struct_has_one_byte():
    empty = codec.encode("DescribeTopicPartitionsRequest", 0, {"cursor": None})
    assert empty == bytes.fromhex("01 000007d0 ff 00")
    cursor = {"topic_name": "a", "partition_index": 3}
    full = codec.encode("DescribeTopicPartitionsRequest", 0, {"cursor": cursor})
    assert full == bytes.fromhex("01 000007d0 01 02 61 00000003 00 00")
    assert codec.decode_all("DescribeTopicPartitionsRequest", 0, full)["cursor"] == cursor


def test_negative_length_is_refused():
    for encoded in ("fffffffe", "80000000"):
        with pytest.raises(ProtocolFault):
            codec.decode("MetadataRequest", 1, bytes.fromhex(encoded + "00"))
    with pytest.raises(ProtocolFault):
        codec.decode("MetadataRequest", 0, bytes.fromhex("00000001 fffe 61"))


def test_array_longer_than_the_bytes_left_is_refused():
    for encoded, version in (("7fffffff", 1), ("ffffffff0f", 12)):
        with pytest.raises(ProtocolFault, match="more elements"):
            codec.decode("MetadataRequest", version, bytes.fromhex(encoded) + bytes(50))


def test_text_that_is_not_utf8_is_refused():
    with pytest.raises(ProtocolFault):
        codec.decode("MetadataRequest", 0, bytes.fromhex("00000001 0002 c328"))


def test_compact_string_over_32767_bytes_is_refused():
    longest = {"topics": [{"name": "x" * 32767}]}
    encoded = codec.encode("MetadataRequest", 9, longest)
    assert codec.decode_all("MetadataRequest", 9, encoded)["topics"][0]["name"] == "x" * 32767
    for version in (1, 9):
        with pytest.raises(ProtocolFault):
            codec.encode("MetadataRequest", version, {"topics": [{"name": "x" * 32768}]})
    with pytest.raises(ProtocolFault):
        codec.decode("MetadataRequest", 9, b"\x02\x81\x80\x02" + b"x" * 32768 + bytes(5))


def test_bytes_left_over_are_refused_where_the_whole_is_wanted():
    encoded = codec.encode("HeartbeatRequest", 4, {"group_id": "g"})
    assert codec.decode("HeartbeatRequest", 4, encoded + b"more")[1] == len(encoded)
    with pytest.raises(ProtocolFault, match="4 bytes left"):
        codec.decode_all("HeartbeatRequest", 4, encoded + b"more")


def test_records_are_a_view_and_everything_else_a_copy():
    message = {
        "transactional_id": "t",
        "topic_data": [{"name": "a", "partition_data": [{"index": 1, "records": b"batch"}]}],
    }
    for version in (3, 9):
        buffer = bytearray(codec.encode("ProduceRequest", version, message))
        decoded = codec.decode_all("ProduceRequest", version, memoryview(buffer))
        records = decoded["topic_data"][0]["partition_data"][0].pop("records")
        buffer[buffer.index(b"batch")] = ord("B")
        assert bytes(records) == b"Batch"
        del records
        buffer.clear()  # BufferError while a view of it lives
        assert decoded["topic_data"][0]["name"] == "a"


def test_bytes_and_uuids_are_copies():
    for version in (0, 2):
        message = {"auth_bytes": b"secret"}
        buffer = bytearray(codec.encode("SaslAuthenticateRequest", version, message))
        decoded = codec.decode_all("SaslAuthenticateRequest", version, memoryview(buffer))
        buffer.clear()  # BufferError while a view of it lives
        assert type(decoded["auth_bytes"]) is bytes
    directories = {"offline_log_dirs": [b"d" * 16]}
    buffer = bytearray(codec.encode("BrokerHeartbeatRequest", 1, directories))
    decoded = codec.decode_all("BrokerHeartbeatRequest", 1, memoryview(buffer))
    assert type(decoded["offline_log_dirs"][0]) is bytes


def test_null_records_are_none():
    message = {"topic_data": [{"name": "a", "partition_data": [{"index": 1, "records": None}]}]}
    encoded = codec.encode("ProduceRequest", 9, message)
    decoded = codec.decode_all("ProduceRequest", 9, encoded)
    assert decoded["topic_data"][0]["partition_data"][0]["records"] is None


def test_unknown_tagged_fields_of_nested_structs_are_skipped():
    unknown = "01 f001 03 616263"
    encoded = bytes.fromhex(f"02 {'00' * 16} 03 6162 {unknown}  01 00 {unknown}")
    decoded = codec.decode_all("MetadataRequest", 12, encoded)
    assert decoded["topics"] == [{"topic_id": bytes(16), "name": "ab"}]


def test_unknown_tagged_fields_beside_known_ones_are_skipped():
    known = codec.encode("FetchRequest", 16, {"cluster_id": "c"})
    assert known[-5:] == bytes.fromhex("01 00 02 02 63")
    encoded = known[:-5] + bytes.fromhex("03  00 02 02 63  63 01 00  f001 00")
    decoded = codec.decode_all("FetchRequest", 16, encoded)
    assert decoded == codec.decode_all("FetchRequest", 16, known)


def test_known_tagged_field_of_another_size_than_it_says_is_refused():
    known = codec.encode("FetchRequest", 16, {"cluster_id": "c"})
    for size in (b"\x01", b"\x03", b"\x7f"):
        with pytest.raises(ProtocolFault):
            codec.decode_all("FetchRequest", 16, known[:-3] + size + known[-2:])


def test_tagged_field_with_its_default_is_not_written():
    without = codec.encode("FetchRequest", 16, {})
    default = {"cluster_id": None, "replica_state": {"replica_id": -1}}
    assert codec.encode("FetchRequest", 16, default) == without
    leader = {"replica_state": {"replica_id": 2}}
    assert len(codec.encode("FetchRequest", 16, leader)) == len(without) + 15


def test_field_that_the_version_lacks_is_refused_or_dropped():
    member = {"group_id": "g", "group_instance_id": "i"}
    with pytest.raises(ProtocolFault, match="group_instance_id is not in this version"):
        codec.encode("HeartbeatRequest", 2, member)
    assert codec.encode("HeartbeatRequest", 2, {**member, "group_instance_id": None})
    throttled = {"throttle_time_ms": 9}  # ignorable
    assert codec.encode("HeartbeatResponse", 0, throttled) == b"\x00\x00"


@pytest.mark.parametrize(
    "message",
    [
        {"throttle_time_ms": 2**31},
        {"throttle_time_ms": "1"},
        {"error_code": None},
        {"error_code": 40000},
        {"responses": 5},
        {"responses": [None]},
        {"responses": [{"topic": 5}]},
        {"responses": [{"topic": "\ud800"}]},
        {"responses": [{"partitions": [{"records": "text"}]}]},
    ],
)
def test_value_that_does_not_fit_its_field_is_refused(message):
    with pytest.raises(ProtocolFault):
        codec.encode("FetchResponse", 7, message)


def test_uuid_of_another_size_is_refused():
    for topic_id in (b"", bytes(15), bytes(17)):
        with pytest.raises(ProtocolFault):
            codec.encode("MetadataRequest", 12, {"topics": [{"topic_id": topic_id}]})
        with pytest.raises(ProtocolFault):
            codec.encode("BrokerHeartbeatRequest", 1, {"offline_log_dirs": [topic_id]})


def test_unknown_name_or_version_is_refused():
    with pytest.raises(KeyError):
        codec.decoder("NoSuchRequest", 0)
    for version in (-1, 14):
        with pytest.raises(ProtocolFault):
            codec.decoder("MetadataRequest", version)
        with pytest.raises(ProtocolFault):
            codec.encoder("MetadataRequest", version)


def test_compiled_functions_are_kept():
    assert codec.decoder("MetadataRequest", 3) is codec.decoder("MetadataRequest", 3)
    assert codec.encoder("MetadataRequest", 3) is codec.encoder("MetadataRequest", 3)


def test_unknown_keys_are_found_at_every_depth():
    message = {
        "brokers": [{"node_id": 1, "nodeid": 1}],
        "topics": [{"partitions": [{"leader": 1}]}],
        "cluster": "c",
    }
    assert sorted(unknown_keys("MetadataResponse", message)) == [
        "MetadataResponse.brokers.nodeid",
        "MetadataResponse.cluster",
        "MetadataResponse.topics.partitions.leader",
    ]
    assert unknown_keys("FetchRequest", {"replica_state": {"replica": 1}}) == [
        "FetchRequest.replica_state.replica"
    ]


def test_list_segments_is_served_by_the_same_codec():
    segment = {"file_name": "00000000000000000000.log", "inode": 7, "end_offset": 10}
    partition = {"topic_id": b"t" * 16, "partition": 1, "segments": [segment]}
    encoded = codec.encode("ListSegmentsResponse", 0, {"partitions": [partition]})
    decoded = codec.decode_all("ListSegmentsResponse", 0, encoded)
    assert decoded["partitions"][0]["segments"][0]["inode"] == 7
