"""What of a batch is found, and how places are written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmbroker.console.messages import Wanted, _matching
from shmbroker.console.record_pages import parse_offsets
from shmbroker.console.topic_reader import FetchedBatch
from shmbroker.console.writes import murmur2
from shmbroker.records.batch import encode_batch, iterate_batches

RECORDS = [
    (1, b"Key-one", b'{"city": "Oslo"}', [(b"trace", b"abc")]),
    (2, None, b"\x00\xffRAW", []),
    (3, b"key-two", None, [(b"empty", None)]),
]
DATA = memoryview(encode_batch(RECORDS, base_offset=10, codec=1))
BATCH = FetchedBatch(next(iterate_batches(DATA))[1], DATA, 0)


@pytest.mark.parametrize(
    ("wanted", "offsets"),
    [
        (Wanted(b"oslo"), [10]),
        (Wanted(b"oslo", is_case_ignored=False), []),
        (Wanted(b"Oslo", is_case_ignored=False), [10]),
        (Wanted(b"key"), [10, 12]),
        (Wanted(b"key", "value"), []),
        (Wanted(b"key", "key"), [10, 12]),
        (Wanted(b"ABC", "header"), [10]),
        (Wanted(b"empty", "header"), [12]),
        (Wanted(b"\xffraw", is_case_ignored=True), [11]),
        (Wanted(b""), [10, 11, 12]),
        (Wanted(b"onecity"), []),
    ],
)
def test_text_is_found_where_it_is_looked_for(wanted: Wanted, offsets: list[int]) -> None:
    needle = wanted.text.lower() if wanted.is_case_ignored else wanted.text
    assert [row[0] for row in _matching(BATCH, 0, 100, needle, wanted)] == offsets


def test_records_outside_of_the_range_are_not_found() -> None:
    assert [row[0] for row in _matching(BATCH, 11, 12, b"", Wanted(b""))] == [11]


def test_places_are_read() -> None:
    assert parse_offsets("0:5") == {0: 5}
    assert parse_offsets(f"0:5,3:{2**63 - 1}") == {0: 5, 3: 2**63 - 1}


@pytest.mark.parametrize("text", ["", "0", "0:", ":1", "0:1,", "a:1", "0:1:2", "²:1", f"0:{2**63}"])
def test_other_places_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="PARTITION:OFFSET"):
        parse_offsets(text)


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5))
def test_keys_go_where_the_producer_puts_them(keys: list[bytes]) -> None:
    pa = pytest.importorskip("pyarrow")
    from shmbroker.client.producer import encoding

    column = encoding.BinaryColumn(pa.array(keys, pa.binary()))
    assert [murmur2(key) for key in keys] == encoding.murmur2(column, len(keys)).tolist()
