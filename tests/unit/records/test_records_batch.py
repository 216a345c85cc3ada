"""Judging a Produce's batch by its bytes, and looking inside batches."""

import struct

import pytest
from crc32c import crc32c

from shmbroker.errors import ProtocolFault
from shmbroker.records.batch import (
    batch_of_one,
    check_batch,
    control_batch,
    control_type,
    encode_batch,
    iterate_batches,
    iterate_records,
    open_batch,
    split_frame,
)
from shmbroker.records.batch_layout import (
    BATCH_HEADER,
    CONTROL_BIT,
    CONTROL_COMMIT,
    H_ATTRIBUTES,
    TRANSACTIONAL_BIT,
)
from shmbroker.wire.error_codes import (
    CORRUPT_MESSAGE,
    INVALID_RECORD,
    MESSAGE_TOO_LARGE,
    NONE,
    UNKNOWN_SERVER_ERROR,
)

RECORDS = [(1000, b"k", b"v", [(b"h", b"x")]), (999, None, None, []), (1001, b"", b"", [])]


def patched(batch, position, form, *values, is_crc_kept=False):
    """`batch` with other bytes at `position` and, unless told otherwise, the right CRC for them."""
    data = bytearray(batch)
    struct.pack_into(form, data, position, *values)
    if not is_crc_kept:
        struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return bytes(data)


def judged(data, message_bytes_max=1 << 20):
    return check_batch(memoryview(data), 0, len(data), message_bytes_max)[0]


BATCH = encode_batch(RECORDS)


def test_example_of_the_layout_holds():
    batch = encode_batch([(1000, None, b"hi", [])], base_offset=7, leader_epoch=3)
    expected = """
        00 00 00 00 00 00 00 07  00 00 00 3a  00 00 00 03  02  23 3d ad 44  00 00  00 00 00 00
        00 00 00 00 00 00 03 e8  00 00 00 00 00 00 03 e8  ff ff ff ff ff ff ff ff  ff ff
        ff ff ff ff  00 00 00 01  10 00 00 00 01 04 68 69 00
    """
    assert batch.hex(" ") == " ".join(expected.split())


def test_good_batch_passes_with_its_header():
    error, header = check_batch(memoryview(b"--" + BATCH), 2, 2 + len(BATCH))
    assert error == NONE
    assert header == BATCH_HEADER.unpack_from(BATCH)
    assert header[6:9] == (2, 1000, 1001)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", INVALID_RECORD),
        (BATCH[:11], INVALID_RECORD),
        (BATCH[:16], INVALID_RECORD),
        (BATCH[:60], INVALID_RECORD),
        (BATCH[:-1], INVALID_RECORD),
        (BATCH + BATCH, INVALID_RECORD),
        (BATCH + bytes(12), CORRUPT_MESSAGE),
        (BATCH + bytes(11), NONE),
        (BATCH + BATCH[:-1], NONE),
        (patched(BATCH, 8, ">i", 13), CORRUPT_MESSAGE),
        (patched(BATCH, 8, ">i", -1), CORRUPT_MESSAGE),
        (patched(BATCH, 8, ">i", 2**31 - 1), INVALID_RECORD),
        (patched(BATCH, 8, ">i", len(BATCH) - 13), NONE),
        (patched(BATCH, 8, ">i", 20), CORRUPT_MESSAGE),  # by what then follows it
        (patched(BATCH, 16, ">b", 3), CORRUPT_MESSAGE),
        (patched(BATCH, 16, ">b", -1), CORRUPT_MESSAGE),
        (patched(BATCH, 16, ">b", 1), INVALID_RECORD),
        (patched(BATCH, 16, ">b", 0), INVALID_RECORD),
    ],
)
def test_frame_is_judged_as_kafka_does(data, error):
    assert split_frame(memoryview(data), 0, len(data))[0] == error


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", INVALID_RECORD),
        (BATCH[:60], INVALID_RECORD),
        (BATCH[:-1], INVALID_RECORD),
        (BATCH + BATCH, INVALID_RECORD),
        (BATCH + b"12345678901", NONE),
        (patched(BATCH, 8, ">i", 20), CORRUPT_MESSAGE),
        (patched(BATCH, 16, ">b", 1), INVALID_RECORD),
        (patched(BATCH, 0, ">q", 1), INVALID_RECORD),
        (patched(BATCH, len(BATCH) - 1, ">b", 9, is_crc_kept=True), CORRUPT_MESSAGE),
        (patched(BATCH, 21, ">h", 8, is_crc_kept=True), CORRUPT_MESSAGE),
        (patched(BATCH, 21, ">h", 5), UNKNOWN_SERVER_ERROR),
        (patched(BATCH, 21, ">h", 7), UNKNOWN_SERVER_ERROR),
        (patched(BATCH, 57, ">i", 0), INVALID_RECORD),
        (patched(BATCH, 57, ">i", -1), INVALID_RECORD),
        (patched(BATCH, 57, ">i", 2), INVALID_RECORD),
        (patched(BATCH, 23, ">i", 3), INVALID_RECORD),
        (patched(patched(BATCH, 23, ">i", 99), 57, ">i", 100), INVALID_RECORD),
        (patched(BATCH, 21, ">h", 0x20), INVALID_RECORD),
        (patched(patched(BATCH, 57, ">i", 0), 23, ">i", -1), INVALID_RECORD),
        (patched(BATCH, 43, ">q", 0), INVALID_RECORD),
        (patched(BATCH, 43, ">q", 5), INVALID_RECORD),
        (patched(patched(BATCH, 43, ">q", 5), 53, ">i", 0), NONE),
        (patched(BATCH, 12, ">i", 77), NONE),
        (patched(BATCH, 21, ">h", 0x80), NONE),
    ],
)
def test_batch_is_judged_as_kafka_does(data, error):
    assert judged(data) == error


def test_a_control_batch_is_none_of_a_clients_business():
    for producer_id in (-1, 9):
        batch = control_batch(CONTROL_COMMIT, b"", timestamp=3, producer_id=producer_id)
        assert judged(patched(batch, 53, ">i", 0)) == INVALID_RECORD


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_many_small_records_that_are_compressed_are_not_too_many_for_their_bytes(codec):
    batch = encode_batch([(0, None, None, [])] * 5000, codec=codec)
    assert len(batch) < 5000 * 7
    assert judged(batch) == NONE


def test_as_many_records_as_the_bytes_have_room_for_pass():
    batch = encode_batch([(0, None, None, [])] * 50)
    assert len(batch) == 61 + 50 * 7
    assert judged(batch) == NONE
    one_more = patched(patched(batch, 57, ">i", 51), 23, ">i", 50)
    assert judged(one_more) == INVALID_RECORD


def test_batch_above_the_limit_is_too_large_before_its_crc_counts():
    broken = patched(BATCH, len(BATCH) - 1, ">b", 9, is_crc_kept=True)
    assert judged(BATCH, len(BATCH)) == NONE
    assert judged(broken, len(BATCH) - 1) == MESSAGE_TOO_LARGE


def test_every_flipped_bit_behind_the_crc_is_found():
    for position in range(17, len(BATCH)):
        for bit in range(8):
            data = bytearray(BATCH)
            data[position] ^= 1 << bit
            assert judged(bytes(data)) == CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", range(5))
def test_records_read_back(codec):
    batch = encode_batch(RECORDS, base_offset=40, codec=codec)
    assert list(iterate_records(batch)) == [
        (40 + number, *record) for number, record in enumerate(RECORDS)
    ]


def test_log_append_time_counts_for_all_records():
    batch = encode_batch(RECORDS, log_append_time=5555)
    assert [record[1] for record in iterate_records(batch)] == [5555] * 3
    assert judged(batch) == NONE


def test_control_batch_carries_its_type():
    batch = control_batch(CONTROL_COMMIT, b"\0\0\0\0\0\7", timestamp=3, producer_id=9)
    ((_, _, key, value, _),) = iterate_records(batch)
    assert control_type(key) == CONTROL_COMMIT
    assert value == b"\0\0\0\0\0\7"
    assert key == b"\0\0\0\1"  # Kafka reads the version, then the type
    assert BATCH_HEADER.unpack_from(batch)[H_ATTRIBUTES] == TRANSACTIONAL_BIT | CONTROL_BIT
    nobodys = control_batch(CONTROL_COMMIT, b"", timestamp=3)
    assert BATCH_HEADER.unpack_from(nobodys)[H_ATTRIBUTES] == CONTROL_BIT
    with pytest.raises(ProtocolFault):
        control_type(b"\0\0\0")


def test_iterate_batches_stops_before_a_cut_one():
    data = BATCH + encode_batch(RECORDS[:1], base_offset=3) + BATCH[:-1]
    assert [position for position, _ in iterate_batches(data)] == [0, len(BATCH)]
    for broken in (bytes(100), patched(BATCH, 8, ">i", 40), patched(BATCH, 16, ">b", 1)):
        with pytest.raises(ProtocolFault):
            list(iterate_batches(BATCH + broken))
    with pytest.raises(ProtocolFault):
        list(iterate_batches(BATCH + patched(BATCH, 8, ">i", 48)))


@pytest.mark.parametrize(
    "broken",
    [
        BATCH[:60],
        BATCH[:-1],
        patched(BATCH, 8, ">i", 48),
        patched(BATCH, 8, ">i", -13),
        patched(BATCH, 8, ">i", len(BATCH) - 11),
        patched(BATCH, 16, ">b", 1),
    ],
)
def test_what_is_no_whole_batch_is_not_opened(broken):
    for before in (b"", bytes(500)):
        with pytest.raises(ProtocolFault):
            open_batch(before + broken, len(before))
    with pytest.raises(ProtocolFault):
        open_batch(memoryview(broken + bytes(40))[: len(broken)])


def test_a_batch_amid_others_is_opened_as_one_alone():
    header, block = open_batch(bytes(500) + BATCH + BATCH, 500)
    assert (header, block) == (BATCH_HEADER.unpack_from(BATCH), BATCH[61:])
    assert isinstance(block, bytes)


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (61, 0x7F),  # record length -64
        (61, 0x7E),  # record length 63
        (61, 0x80),  # a varint that never ends
        (65, 0x7E),  # key length
        (65, 0x03),  # key length -2
        (67, 0x7E),  # value length
        (69, 0x7E),  # more headers than bytes
        (69, 0x01),  # -1 headers
        (70, 0x01),  # a header without a key
        (57 + 3, 2),  # fewer records than there are
        (57 + 3, 9),  # more
    ],
)
def test_malformed_records_are_one_fault(position, value):
    with pytest.raises(ProtocolFault):
        list(iterate_records(patched(BATCH, position, ">B", value)))


def test_batch_without_records_cannot_be_made():
    with pytest.raises(ValueError, match="at least one"):
        encode_batch([])


@pytest.mark.parametrize("value", (None, b"", b"v", b"v" * 63, b"v" * 64, b"v" * 70_000))
@pytest.mark.parametrize("key", (None, b"key"))
def test_batch_of_one_is_encoded_as_any(key: bytes | None, value: bytes | None) -> None:
    assert batch_of_one(1234, key, value) == encode_batch([(1234, key, value, ())])
