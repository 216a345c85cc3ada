"""Fields of records as JSON: any bytes, whole or cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmbroker.console.shown import FIELD_BYTES_LEAST, HEADERS_MAX, AnswerRoom, field, record


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (None, {"kind": "null"}),
        (b"", {"kind": "text", "text": "", "bytes": 0}),
        (b"a\tb\n", {"kind": "text", "text": "a\tb\n", "bytes": 4}),
        ("ü<script>".encode(), {"kind": "text", "text": "ü<script>", "bytes": 10}),
        (b"\x00ab", {"kind": "bytes", "hex": "006162", "bytes": 3}),
        (b"\x1b[31m", {"kind": "bytes", "hex": "1b5b33316d", "bytes": 5}),
        (b"\xff", {"kind": "bytes", "hex": "ff", "bytes": 1}),
        (b"\xed\xa0\x80", {"kind": "bytes", "hex": "eda080", "bytes": 3}),
    ],
)
def test_field_is_text_or_bytes(data: bytes | None, shown: dict[str, object]) -> None:
    assert field(data, AnswerRoom(100)) == shown


def test_long_field_is_cut_between_characters_and_says_so() -> None:
    assert field("aü".encode(), AnswerRoom(100), 2) == {
        "kind": "text",
        "text": "a",
        "bytes": 3,
        "is_cut": True,
    }


def test_every_field_gets_something_though_there_is_no_room() -> None:
    room = AnswerRoom(1000)
    fields = [field(b"x" * 900, room) for _ in range(10)]
    assert [len(str(each["text"])) for each in fields] == [900] + 9 * [FIELD_BYTES_LEAST]
    assert all(each["is_cut"] for each in fields[1:])


@given(st.binary(max_size=300), st.integers(0, 100))
def test_any_bytes_are_json_and_within_bounds(data: bytes, most: int) -> None:
    shown = field(data, AnswerRoom(50), most)
    json.dumps(shown)
    assert shown["bytes"] == len(data)
    assert len(str(shown.get("text", ""))) <= most
    if not shown.get("is_cut"):
        told = str(shown["text"]).encode() if "text" in shown else bytes.fromhex(str(shown["hex"]))
        assert told == data


def test_headers_are_bounded() -> None:
    shown = record(3, (7, 1, None, b"v", [(b"h", b"1")] * 80), AnswerRoom(10_000))
    assert isinstance(shown, dict)
    assert (shown["partition"], shown["offset"], shown["headers_left_out"]) == (3, 7, 30)
    assert len(shown["headers"]) == HEADERS_MAX
