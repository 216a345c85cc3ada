"""Any records survive a batch; any damage to one is an error code or the one fault."""

from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from shmbroker.errors import ProtocolFault
from shmbroker.records.batch import check_batch, encode_batch, iterate_records, split_frame
from shmbroker.wire.error_codes import NONE
from tests.support.examples import examples

optional_bytes = st.none() | st.binary(max_size=200)
records = st.lists(
    st.tuples(
        st.integers(0, 2**45),
        optional_bytes,
        optional_bytes,
        st.lists(st.tuples(st.binary(max_size=20), optional_bytes), max_size=3),
    ),
    min_size=1,
    max_size=20,
)


@settings(deadline=None)
@given(records, st.integers(0, 4), st.integers(0, 2**50))
def test_records_round_trip(records, codec, base_offset):
    batch = encode_batch(records, codec=codec, base_offset=base_offset)
    assert list(iterate_records(batch)) == [
        (base_offset + number, *record) for number, record in enumerate(records)
    ]
    unstamped = memoryview(encode_batch(records, codec=codec))
    error, header = check_batch(unstamped, 0, len(unstamped))
    assert error == NONE
    assert header[8] == max(record[0] for record in records)
    assert header[12] == len(records)


@settings(deadline=None, max_examples=examples(150))
@given(records, st.integers(0, 4), st.data())
def test_damage_never_escapes(records, codec, data):
    batch = bytearray(encode_batch(records, codec=codec))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(batch) - 1))
        batch[position] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del batch[data.draw(st.integers(0, len(batch))) :]
    if len(batch) > 21 and data.draw(st.booleans()):
        batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    view = memoryview(bytes(batch))
    error, end = split_frame(view, 0, len(view))
    assert error != NONE or 0 < end <= len(view)
    check_batch(view, 0, len(view))
    try:
        for number, _ in enumerate(iterate_records(view)):
            assert number < len(batch) * 1000
    except ProtocolFault:
        pass


@given(st.binary(max_size=300))
def test_random_bytes_never_escape(data):
    view = memoryview(data)
    assert check_batch(view, 0, len(view))[0] != NONE
    try:
        list(iterate_records(view))
    except ProtocolFault:
        pass
