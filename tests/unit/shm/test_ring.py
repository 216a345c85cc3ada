"""Both ends of a ring in one process: bytes, padding, room, successors, broken content."""

import pytest

from shmbroker.shm.ring import RingReader, RingWriter
from shmbroker.shm.ring_layout import (
    DATA_WORD,
    HEAD_WORD,
    HEADER_BYTES,
    INCARNATION_WORD,
    TAIL_WORD,
    create_ring,
    parts_of_ring,
    payload_bytes_max,
    ring_bytes,
)


def make_ring(capacity_bytes=256):
    view = memoryview(bytearray(ring_bytes(capacity_bytes)))
    create_ring(view)
    return view, RingWriter(*parts_of_ring(view)), RingReader(*parts_of_ring(view))


def put(writer, operation, payload):
    index = writer.claim(operation, len(payload))
    assert index >= 0
    writer.data[index : index + len(payload)] = payload


def take(reader):
    """Every entry that is there, released."""
    taken = []
    reader.poll()
    while entry := reader.next():
        operation, index, length = entry
        taken.append((operation, bytes(reader.data[index : index + length])))
    reader.release()
    return taken


def test_the_example_of_the_layout():
    view, writer, reader = make_ring()
    put(writer, 1, b"hello")
    assert not reader.poll()
    writer.publish()
    assert bytes(view[:8]) == b"SHMRING1"
    assert view[0x1000:0x100D].hex(" ") == "05 00 00 00 01 00 00 00 68 65 6c 6c 6f"
    assert int.from_bytes(view[0x80:0x88], "little") == 16
    assert take(reader) == [(1, b"hello")]
    assert int.from_bytes(view[0x100:0x108], "little") == 16


def test_one_publish_shows_all_claims_and_one_release_frees_them():
    _, writer, reader = make_ring()
    for number in range(1, 5):
        put(writer, number, bytes([number] * number))
    assert take(reader) == []
    writer.publish()
    assert reader.poll()
    assert writer.free_bytes() == 256 - 4 * 16
    assert [reader.next()[0] for _ in range(4)] == [1, 2, 3, 4]
    assert reader.next() is None
    assert writer.free_bytes() == 256 - 4 * 16
    reader.release()
    assert writer.free_bytes() == 256


def test_next_stays_within_its_poll():
    _, writer, reader = make_ring()
    put(writer, 1, b"")
    writer.publish()
    assert reader.poll()
    put(writer, 2, b"")
    writer.publish()
    assert reader.next()[0] == 1
    assert reader.next() is None
    assert reader.poll()
    assert reader.next()[0] == 2


def test_an_entry_that_would_wrap_goes_behind_padding():
    view, writer, reader = make_ring(64)
    for _ in range(3):
        put(writer, 1, b"12345678")
        writer.publish()
        take(reader)
    put(writer, 2, b"")  # at 48: 8 bytes are left before the end
    put(writer, 3, b"abcdefgh")
    writer.publish()
    words, _ = parts_of_ring(view)
    assert words[DATA_WORD + 7] == 0  # padding of 8: length 0, operation 0
    assert words[TAIL_WORD] == 64 + 16
    assert take(reader) == [(2, b""), (3, b"abcdefgh")]


def test_an_entry_that_ends_with_the_lap_needs_no_padding():
    view, writer, reader = make_ring(64)
    for number in range(1, 9):
        put(writer, number, b"12345678")
        writer.publish()
        assert take(reader) == [(number, b"12345678")]
    assert parts_of_ring(view)[0][HEAD_WORD] == 128


def test_an_empty_payload_fits_into_the_last_word():
    _, writer, reader = make_ring(32)
    for lap in range(3):
        for number in range(1, 5):
            put(writer, number, b"")
        assert writer.claim(9, 0) == -1
        writer.publish()
        assert take(reader) == [(number, b"") for number in range(1, 5)], lap


def test_a_full_ring_answers_minus_one_until_a_release():
    _, writer, reader = make_ring(64)
    for _ in range(4):
        put(writer, 1, b"12345678")
    assert writer.claim(1, 0) == -1
    writer.publish()
    assert reader.poll() and reader.next()
    assert writer.claim(1, 0) == -1  # taken, but not released
    reader.release()
    assert writer.claim(1, 8) == 8
    assert writer.claim(1, 0) == -1


def test_no_room_behind_the_padding_leaves_the_ring_as_it_was():
    _, writer, reader = make_ring(64)
    put(writer, 1, b"12345678")
    put(writer, 2, b"12345678")
    put(writer, 3, b"12345678")
    put(writer, 4, b"")
    writer.publish()
    assert writer.claim(5, 8) == -1
    put(writer, 6, b"")  # smaller: fits before the end
    writer.publish()
    assert [operation for operation, _ in take(reader)] == [1, 2, 3, 4, 6]


def test_abort_drops_claims_and_their_padding():
    view, writer, reader = make_ring(64)
    for _ in range(3):
        put(writer, 1, b"12345678")
        writer.publish()
        take(reader)
    put(writer, 2, b"")
    put(writer, 3, b"abcdefgh")
    writer.abort()
    writer.publish()
    assert parts_of_ring(view)[0][TAIL_WORD] == 48
    assert take(reader) == []
    put(writer, 4, b"")
    put(writer, 5, b"ABCDEFGH")  # padding again
    writer.publish()
    assert take(reader) == [(4, b""), (5, b"ABCDEFGH")]


@pytest.mark.parametrize("used", range(0, 64, 8))
def test_the_largest_entry_always_fits_into_an_empty_ring(used):
    _, writer, reader = make_ring(64)
    for _ in range(used // 8):
        put(writer, 1, b"")
    writer.publish()
    take(reader)
    put(writer, 2, b"12345678")
    writer.publish()
    assert take(reader) == [(2, b"12345678")]


def test_an_entry_larger_than_a_quarter_is_a_broken_invariant():
    _, writer, _ = make_ring(256)
    assert payload_bytes_max(256) == writer.payload_bytes_max == 56
    assert writer.claim(1, 56) == 8
    for _ in range(2):  # with and without a look at the head
        with pytest.raises(AssertionError, match="larger"):
            writer.claim(1, 57)


def test_new_ends_go_on_where_the_old_ones_were():
    view, writer, reader = make_ring()
    put(writer, 1, b"one")
    put(writer, 2, b"two")
    writer.publish()
    assert reader.poll() and reader.next()
    reader.release()
    put(writer, 3, b"never published")
    writer, reader = RingWriter(*parts_of_ring(view)), RingReader(*parts_of_ring(view))
    put(writer, 4, b"four")
    writer.publish()
    assert take(reader) == [(2, b"two"), (4, b"four")]


@pytest.mark.parametrize("dead_side", ["writer", "reader"])
def test_after_a_reset_a_successor_starts_from_an_empty_ring(dead_side):
    view, writer, reader = make_ring(64)
    for number in range(1, 4):
        put(writer, number, b"12345678")
    writer.publish()
    assert reader.poll() and reader.next()
    reader.release()
    if dead_side == "writer":
        reader.reset()
        writer = RingWriter(*parts_of_ring(view))
    else:
        writer.reset()
        reader = RingReader(*parts_of_ring(view))
    assert parts_of_ring(view)[0][INCARNATION_WORD] == 1
    assert writer.free_bytes() == 64
    assert take(reader) == []
    put(writer, 9, b"again")
    writer.publish()
    assert take(reader) == [(9, b"again")]


@pytest.mark.parametrize("length", [17, 1000, 0xFFFFFFFF])
@pytest.mark.parametrize("operation", [0, 1])
def test_an_entry_beyond_what_was_published_is_a_broken_invariant(operation, length):
    view, writer, reader = make_ring()
    put(writer, 1, b"0123456789abcdef")
    writer.publish()
    parts_of_ring(view)[0][DATA_WORD] = operation << 32 | length
    assert reader.poll()
    with pytest.raises(AssertionError, match="broken ring"):
        reader.next()


def test_an_entry_across_the_end_of_the_ring_is_a_broken_invariant():
    view, writer, reader = make_ring(64)
    for _ in range(3):
        put(writer, 1, b"12345678")
    writer.publish()
    take(reader)
    put(writer, 1, b"")
    put(writer, 2, b"")
    put(writer, 3, b"")
    writer.publish()
    words, _ = parts_of_ring(view)
    words[DATA_WORD + 6] = 1 << 32 | 16  # at 48, up to 72
    assert reader.poll()
    with pytest.raises(AssertionError, match="broken ring"):
        reader.next()


def test_a_head_ahead_of_the_tail_is_a_broken_invariant():
    view, writer, _ = make_ring(64)
    parts_of_ring(view)[0][HEAD_WORD] = 8
    with pytest.raises(AssertionError, match="broken ring"):
        writer.claim(1, 0)


def test_a_ring_is_made_only_of_a_power_of_two_and_opened_only_when_made():
    with pytest.raises(AssertionError, match="power of two"):
        create_ring(memoryview(bytearray(HEADER_BYTES + 96)))
    with pytest.raises(AssertionError, match="too small"):
        create_ring(memoryview(bytearray(HEADER_BYTES + 16)))
    view = memoryview(bytearray(ring_bytes(64)))
    for end in (RingWriter, RingReader):
        with pytest.raises(AssertionError, match="not a ring"):
            end(*parts_of_ring(view))
