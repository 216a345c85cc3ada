"""Varints, strings, bytes and tagged fields: their bytes, and the refusal of bad ones."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmbroker.errors import ProtocolFault
from shmbroker.wire import primitives

unhurried = settings(deadline=None)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "80 01"),
        (300, "ac 02"),
        (2**31 - 1, "ff ff ff ff 07"),
        (2**32 - 1, "ff ff ff ff 0f"),
    ],
)
def test_uvarint_has_the_bytes_of_the_format(value, encoded):
    encoded = bytes.fromhex(encoded)
    assert primitives.uvarint(value) == encoded
    assert primitives.read_uvarint(encoded, 0) == (value, len(encoded))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (-3, "05"),
        (63, "7e"),
        (-64, "7f"),
        (64, "80 01"),
        (-65, "81 01"),
        (2**31 - 1, "fe ff ff ff 0f"),
        (-(2**31), "ff ff ff ff 0f"),
    ],
)
def test_varint_has_the_bytes_of_the_format(value, encoded):
    assert primitives.varint(value) == bytes.fromhex(encoded)


def read_64_bits(encoded):
    assert all(byte & 128 for byte in encoded[:-1]) and not encoded[-1] & 128
    return sum((byte & 127) << 7 * place for place, byte in enumerate(encoded))


@unhurried
@given(st.integers(-(2**63), 2**63 - 1))
def test_varint_of_64_bits_comes_back(value):
    zigzag = read_64_bits(primitives.varint(value))
    assert zigzag >> 1 ^ -(zigzag & 1) == value


@unhurried
@given(st.integers(0, 2**64 - 1))
def test_uvarint_of_64_bits_comes_back(value):
    assert read_64_bits(primitives.uvarint(value)) == value


@unhurried
@given(st.integers(0, 2**32 - 1))
def test_uvarint_comes_back(value):
    encoded = primitives.uvarint(value)
    assert primitives.read_uvarint(memoryview(b"\xff" + encoded), 1) == (value, 1 + len(encoded))


@unhurried
@given(st.integers(128, 2**32 - 1))
def test_uvarint_rest_reads_what_read_uvarint_reads(value):
    encoded = primitives.uvarint(value)
    assert primitives.uvarint_rest(encoded, 1, encoded[0]) == (value, len(encoded))


@pytest.mark.parametrize(
    "encoded",
    ["", "80", "ff ff", "ff ff ff ff 10", "ff ff ff ff ff 00", "80 80 80 80 80 00"],
)
def test_bad_uvarint_is_refused(encoded):
    encoded = bytes.fromhex(encoded)
    with pytest.raises(ProtocolFault):
        primitives.read_uvarint(encoded, 0)
    if len(encoded) > 4:
        with pytest.raises(ProtocolFault):
            primitives.uvarint_rest(encoded, 1, encoded[0])


@unhurried
@given(st.none() | st.text(max_size=300))
def test_strings_come_back(value):
    for write, read in (
        (primitives.string, primitives.read_string),
        (primitives.compact_string, primitives.read_compact_string),
    ):
        encoded = write(value)
        assert read(b"*" + encoded, 1) == (value, 1 + len(encoded))


@unhurried
@given(st.none() | st.binary(max_size=300))
def test_bytes_come_back_as_a_copy(value):
    size = -1 if value is None else len(value)
    buffer = bytearray(size.to_bytes(4, "big", signed=True) + (value or b""))
    decoded, end_position = primitives.read_bytes(memoryview(buffer), 0)
    assert end_position == len(buffer)
    buffer[:] = bytes(len(buffer))
    assert decoded == value


def test_strings_have_the_bytes_of_the_format():
    assert primitives.string("ab") == bytes.fromhex("0002 6162")
    assert primitives.string(None) == bytes.fromhex("ffff")
    assert primitives.compact_string("ab") == bytes.fromhex("03 6162")
    assert primitives.compact_string("") == bytes.fromhex("01")
    assert primitives.compact_string(None) == bytes.fromhex("00")


@pytest.mark.parametrize(
    ("read", "encoded"),
    [
        (primitives.read_string, "00"),
        (primitives.read_string, "0002 61"),
        (primitives.read_string, "fffe"),
        (primitives.read_string, "0002 c328"),
        (primitives.read_compact_string, "03 61"),
        (primitives.read_compact_string, "03 c328"),
        (primitives.read_bytes, "000000"),
        (primitives.read_bytes, "7fffffff 61"),
        (primitives.read_bytes, "fffffffe 61"),
        (primitives.skip_tagged_fields, "01 00"),
        (primitives.skip_tagged_fields, "01 00 05 61"),
        (primitives.skip_tagged_fields, "ffffffff0f"),
    ],
)
def test_malformed_bytes_are_refused(read, encoded):
    with pytest.raises(ProtocolFault):
        read(bytes.fromhex(encoded), 0)


def test_position_outside_the_buffer_is_refused():
    for position in (-1, 3):
        for read in (primitives.read_uvarint, primitives.read_string):
            with pytest.raises(ProtocolFault):
                read(b"\x00\x00", position)


def test_string_over_32767_bytes_is_refused():
    longest = "x" * 32767
    assert primitives.read_compact_string(primitives.compact_string(longest), 0)[0] == longest
    for write in (primitives.string, primitives.compact_string):
        with pytest.raises(ProtocolFault):
            write(longest + "x")
    with pytest.raises(ProtocolFault):
        primitives.read_compact_string(primitives.uvarint(32769) + b"x" * 32768, 0)


def test_string_without_utf8_form_is_refused():
    with pytest.raises(ProtocolFault):
        primitives.string("\ud800")


def test_tagged_fields_are_skipped_whole():
    section = bytes.fromhex("02  05 03 616263  f001 00")
    assert primitives.skip_tagged_fields(section + b"next", 0) == len(section)
    assert primitives.skip_tagged_fields(b"\x00", 0) == 1
