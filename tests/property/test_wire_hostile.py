"""Bytes that no honest peer sends: parsed, or refused by ProtocolFault; nothing else."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_wire_messages import NAMES, few, random_message, seeds, versions

from shmbroker.errors import ProtocolFault
from shmbroker.wire import (
    api_keys,
    codec,
    coordinator_records,
    frame,
    metadata_records,
    primitives,
    schema,
)

pytestmark = pytest.mark.thorough

CUTS_MAX = 200
LYING_LENGTHS = (
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xfe",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff",
    b"\x7f\xff",
    b"\xff\xfe",
    b"\x00",
    b"\xc3\x28",  # not UTF-8
)


def decode_or_fault(decode, *arguments):
    try:
        decode(*arguments)
    except ProtocolFault:
        pass


@pytest.mark.parametrize("name", NAMES)
def test_message_cut_anywhere_is_refused(name):
    for version in versions(name):
        encoded = codec.encode(name, version, random_message(name, version, 7))
        cuts = range(len(encoded))
        if len(cuts) > CUTS_MAX:
            cuts = random.Random(name).sample(cuts, CUTS_MAX)
        for cut in cuts:
            with pytest.raises(ProtocolFault):
                codec.decode(name, version, encoded[:cut])


@pytest.mark.parametrize("name", NAMES)
@few
@given(seeds)
def test_damaged_message_is_parsed_or_refused(name, seed):
    rng = random.Random(seed)
    for version in versions(name):
        encoded = codec.encode(name, version, random_message(name, version, seed))
        for _ in range(8):
            position = rng.randrange(len(encoded) + 1)
            damage = rng.choice((*LYING_LENGTHS, rng.randbytes(1), rng.randbytes(4)))
            damaged = encoded[:position] + damage + encoded[position + len(damage) :]
            decode_or_fault(codec.decode_all, name, version, memoryview(damaged))


@pytest.mark.parametrize("name", NAMES)
@few
@given(st.binary(max_size=64))
def test_random_bytes_are_parsed_or_refused(name, garbage):
    for version in versions(name):
        decode_or_fault(codec.decode, name, version, garbage)


@pytest.mark.parametrize("name", NAMES)
def test_unknown_tagged_fields_are_skipped(name):
    for version in versions(name):
        if not schema.is_within(version, schema.message(name).flexible):
            continue
        known = codec.encode(name, version, {})
        assert known[-1] == 0  # no tagged fields
        two_unknown = b"\x02" + b"\xf0\x01\x03abc" + b"\xf1\x01\x00"
        decoded = codec.decode_all(name, version, known[:-1] + two_unknown)
        assert decoded == codec.decode_all(name, version, known)


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_random_bytes_as_anything_else_are_parsed_or_refused(garbage):
    view = memoryview(garbage)
    decode_or_fault(frame.parse_request_header, view, 0, len(garbage))
    decode_or_fault(frame.parse_response_header, api_keys.FETCH, 12, view)
    decode_or_fault(metadata_records.decode_metadata_record, view)
    for log in (coordinator_records.GROUP, coordinator_records.TRANSACTION):
        decode_or_fault(coordinator_records.decode_key, log, view)
        decode_or_fault(coordinator_records.decode_value, log, 0, view)
    for read in (
        primitives.read_uvarint,
        primitives.read_string,
        primitives.read_compact_string,
        primitives.read_bytes,
        primitives.skip_tagged_fields,
    ):
        decode_or_fault(read, view, 0)
