"""How `produce` cuts its input, and what it makes of JSON."""

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmbroker.cli import produce
from shmbroker.cli.outcome import CommandFault


class Idle:
    """A delivery that is asked for nothing but its poll."""

    class producer:
        @staticmethod
        def poll(_seconds: float) -> int:
            return 0


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


@settings(max_examples=60, deadline=None)
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
    b'{"key":null}': {"value": None},
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
    assert produce.from_json(line) == record


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"1",
        b"[]",
        b'"a"',
        b"\xff",
        b'{"value_base64":"%"}',
        b'{"value":"a","headers":[1]}',
        b'{"value":"a","headers":7}',
        b'{"value":"a","partition":"x"}',
        b"[" * 100_000,
    ],
    ids=lambda line: repr(line[:30]),
)
def test_json_that_is_no_record_is_refused(line: bytes) -> None:
    with pytest.raises(CommandFault, match="describes no record"):
        produce.from_json(line)
