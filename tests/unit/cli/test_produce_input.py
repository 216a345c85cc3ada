"""How `produce` cuts its input, and what it makes of keys and of JSON."""

import json
import os
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmbroker.cli import produce
from shmbroker.cli.outcome import CommandFault
from shmbroker.cli.record_json import from_json, to_json, to_kcat_json
from tests.support.examples import examples


class Idle:
    """A delivery that is asked for nothing but its poll."""

    @staticmethod
    def poll(_seconds: float) -> None:
        pass


def lines_of(pieces: list[bytes], end: bytes) -> list[bytes]:
    """What is made of these pieces, each of which is there when the one before was taken."""
    reading, writing = os.pipe()
    with open(reading, "rb") as source:
        os.write(writing, pieces[0]) if pieces else None
        rest = iter(pieces[1:])
        found: list[bytes] = []
        real = source.raw.read

        class Raw:
            @staticmethod
            def read(size: int) -> bytes:
                piece = real(size)
                following = next(rest, None)
                if following is not None:
                    os.write(writing, following)
                elif piece:
                    os.close(writing)
                return piece

        class Source:
            raw = Raw

            @staticmethod
            def fileno() -> int:
                return reading

        if not pieces:
            os.close(writing)
        for lines in produce._pieces(Source, end, Idle):  # type: ignore[arg-type]
            found += lines
        return found


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.binary(min_size=1, max_size=6).map(lambda b: b.replace(b"\n", b"::")), max_size=6),
    st.sampled_from([b"\n", b"::", b":::", b"\0"]),
)
def test_lines_are_cut_at_the_delimiter_wherever_pieces_end(
    pieces: list[bytes], end: bytes
) -> None:
    whole = b"".join(pieces)
    expected = whole.split(end)
    if expected[-1] == b"":
        expected.pop()
    assert lines_of(pieces, end) == expected


RECORDS: dict[bytes, dict[str, Any]] = {
    b'{"value":"a"}': {"value": b"a"},
    b'{"value":null,"key":"k"}': {"value": None, "key": b"k"},
    b'{"key":null,"value":null}': {"value": None},
    b'{"payload":"a","ts":5,"headers":["h","1","n",null]}': {
        "value": b"a",
        "timestamp": 5,
        "headers": [("h", b"1"), ("n", None)],
    },
    b'{"payload_base64":"//8="}': {"value": b"\xff\xff"},
    b'{"value":{"a":[1,"\xc3\xa9"]}}': {"value": '{"a":[1,"é"]}'.encode()},
    b'{"value":1.5}': {"value": b"1.5"},
    b'{"value_base64":"//8="}': {"value": b"\xff\xff"},
    b'{"value":"a","partition":3,"timestamp":5}': {"value": b"a", "partition": 3, "timestamp": 5},
    b'{"value":"a","headers":{"h":"1","n":null}}': {
        "value": b"a",
        "headers": [("h", b"1"), ("n", None)],
    },
    b'{"value":"a","headers":[{"key":"h","value_base64":"/w=="},{"key":"h","value":"2"}]}': {
        "value": b"a",
        "headers": [("h", b"\xff"), ("h", b"2")],
    },
    b'{"topic":"t","offset":7,"value":"a","headers":[]}': {"value": b"a"},
    b"  ": {},
}


@pytest.mark.parametrize(("line", "record"), RECORDS.items(), ids=lambda value: str(value)[:40])
def test_json_becomes_a_record(line: bytes, record: dict[str, Any]) -> None:
    assert from_json(line) == record


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"1",
        b"[]",
        b'"a"',
        b"\xff",
        b'{"value_base64":"%"}',
        b'{"key":"k"}',
        b'{"vlaue":"a"}',
        b'{"payload":"a","headers":["h"]}',
        b'{"value":"a","headers":[1]}',
        b'{"value":"a","headers":7}',
        b'{"value":"a","partition":"x"}',
        b'{"value":"a","partition":-2}',
        b'{"value":"a","partition":2147483648}',
        b'{"value":"a","partition":1e999}',
        b'{"value":"a","timestamp":9223372036854775808}',
        b'{"value":"a","headers":{"\\ud800":"b"}}',
        b"[" * 100_000,
    ],
    ids=lambda line: repr(line[:30]),
)
def test_json_that_is_no_record_is_refused(line: bytes) -> None:
    with pytest.raises(CommandFault, match="describes no record"):
        from_json(line)


def message(**fields: Any) -> Any:
    """A message as the client library gives it."""
    known = {"topic": "t", "partition": 1, "offset": 7, "timestamp": (1, 1500)}
    known |= {"headers": [("a", b"1"), ("b", None)], "key": b"k", "value": b"v"} | fields
    return SimpleNamespace(**{name: lambda value=value: value for name, value in known.items()})


def test_kcat_finds_its_own_names() -> None:
    assert json.loads(to_kcat_json(message())) == {
        "topic": "t",
        "partition": 1,
        "offset": 7,
        "tstype": "create",
        "ts": 1500,
        "headers": ["a", "1", "b", None],
        "key": "k",
        "payload": "v",
    }
    bare = message(timestamp=(0, -1), headers=None, key=None, value=b"\xff")
    assert to_kcat_json(bare).endswith(
        b'{"topic":"t","partition":1,"offset":7,"key":null,"payload_base64":"/w=="}\n'
    )
    assert json.loads(to_kcat_json(message(timestamp=(2, 5))))["tstype"] == "logappend"


@pytest.mark.parametrize("to_line", [to_json, to_kcat_json])
@pytest.mark.parametrize("value", [b"v", b"", b"\xff", None], ids=repr)
def test_what_consume_writes_produce_reads(to_line: Any, value: bytes | None) -> None:
    assert from_json(to_line(message(value=value))) == {
        "value": value,
        "key": b"k",
        "partition": 1,
        "timestamp": 1500,
        "headers": [("a", b"1"), ("b", None)],
    }


def test_key_and_headers_are_the_bytes_that_were_typed() -> None:
    additions = produce._Additions(os.fsdecode(b"\xff"), {"a": os.fsdecode(b"\xfe")}, False)
    assert additions.to([{"value": b"v"}]) == [
        {"value": b"v", "key": b"\xff", "headers": [("a", b"\xfe")]}
    ]


def test_line_without_its_delimiter_ends_the_reading() -> None:
    reading = produce._Reading(is_json=False, key_end=b":", takes_keyless=False)
    assert reading.records([b"a:1"]) == [{"key": b"a", "value": b"1"}]
    assert reading.records([b"b:2:3", b"c", b"d:4"]) == [{"key": b"b", "value": b"2:3"}]
    assert str(reading.fault).startswith("line 3 has no ':' to end its key; what stands before")
    assert "--keyless" in str(reading.fault)


def test_lines_without_their_delimiter_are_counted() -> None:
    reading = produce._Reading(is_json=False, key_end=b"::", takes_keyless=True)
    assert reading.records([b"a::1", b"b:2"]) == [{"key": b"a", "value": b"1"}, {"value": b"b:2"}]
    assert reading.records([b"c", b"d::"]) == [{"value": b"c"}, {"key": b"d", "value": b""}]
    assert reading.fault is None
    assert reading.keyless_sentence() == (
        "2 of 4 lines had no '::' and became values without keys; the first is line 2"
    )


@given(st.lists(st.lists(st.binary(max_size=4), max_size=5), max_size=5), st.integers(1, 9))
def test_no_more_than_a_count_of_lines_is_taken(pieces: list[list[bytes]], count: int) -> None:
    taken: list[bytes] = []
    asked = 0

    def source(*_: Any) -> Any:
        nonlocal asked
        for piece in pieces:
            asked += 1
            yield list(piece)

    real, produce._all_pieces = produce._all_pieces, source
    try:
        for lines in produce._pieces(None, b"", None, count):  # type: ignore[arg-type]
            taken += lines
    finally:
        produce._all_pieces = real
    assert taken == [line for piece in pieces for line in piece][:count]
    needed = [n for n in range(len(pieces)) if sum(map(len, pieces[: n + 1])) >= count]
    assert asked == (needed[0] + 1 if needed else len(pieces)), "no piece is waited for in vain"


def test_places_are_summed_up() -> None:
    places = produce.Places("t", is_printing=False)
    assert places.summary() == "0 records delivered"
    for partition, offset in ((1, 5), (0, 9), (1, 6), (1, 4)):
        places.add(partition, offset)
    assert places.summary() == (
        "4 records delivered: 1 to t-0, offsets 9 to 9; 3 to t-1, offsets 4 to 6"
    )
