"""What -o, -f, dates and delimiters mean."""

import fnmatch
import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmbroker.cli import words
from shmbroker.cli.words import (
    Place,
    compile_format,
    delimiter,
    hides_internal,
    moment_text,
    parse_duration,
    parse_moment,
    parse_moment_of,
    parse_place,
    parse_span,
    to_posix,
    unescape,
)

PLACES = {
    "earliest": Place("earliest"),
    "beginning": Place("earliest"),
    "start": Place("earliest"),
    "latest": Place("latest"),
    "end": Place("latest"),
    "0": Place("offset", 0),
    "42": Place("offset", 42),
    "-5": Place("tail", 5),
    "@1500": Place("since", 1500),
    "s@1500": Place("since", 1500),
    "e@1500": Place("until", 1500),
    "@1970-01-01T00:00:01": Place("since", 1000),
    "e@1970-01-02": Place("until", 86_400_000),
}
MOMENTS = {
    "0": 0,
    "1795301662292": 1_795_301_662_292,
    "1970-01-01": 0,
    "1970-01-01T00:00:00.001": 1,
    "1970-01-01 01:00:00+01:00": 0,
    "1970-01-01T00:00:01Z": 1000,
    "1969-12-31T23:59:59": 0,
    "2026-11-21T10:00": 1_795_255_200_000,
}


@pytest.mark.parametrize(("text", "place"), PLACES.items(), ids=list(PLACES))
def test_place_is_read(text: str, place: Place) -> None:
    assert parse_place(text) == place


@pytest.mark.parametrize("text", ["", "-", "+1", "1.5", "first", "@", "@soon", "e@", "s@x", "--1"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        parse_place(text)


@pytest.mark.parametrize(("text", "moment"), MOMENTS.items(), ids=list(MOMENTS))
def test_moment_is_read(text: str, moment: int) -> None:
    assert parse_moment(text) == moment


@given(st.integers(0, 10**15))
def test_every_number_is_a_moment_and_an_offset(number: int) -> None:
    assert parse_moment(str(number)) == number
    assert parse_place(str(number)) == Place(words.OFFSET, number)


@given(st.text())
def test_any_text_is_a_place_or_a_value_error(text: str) -> None:
    try:
        parse_place(text)
    except ValueError as refusal:
        assert str(refusal)


MOMENTS_OF: dict[str, tuple[str, int | None, str | int]] = {
    "t:0:1500": ("t", 0, 1500),
    "t:12:1970-01-01T00:00:01": ("t", 12, 1000),
    "t::5": ("t", None, 5),
    "t:0:-1": ("t", 0, "latest"),
    "t:0:end": ("t", 0, "latest"),
    "t:0:-2": ("t", 0, "earliest"),
    "t:0:beginning": ("t", 0, "earliest"),
}


@pytest.mark.parametrize(("text", "found"), MOMENTS_OF.items(), ids=list(MOMENTS_OF))
def test_moment_of_a_partition_is_read(text: str, found: tuple[str, int | None, str | int]) -> None:
    assert parse_moment_of(text) == found


@pytest.mark.parametrize("text", ["", "t", "t:0", "t:0:", ":0:5", "t:x:5", "t:-1:5", "t:0:soon"])
def test_what_is_no_moment_of_a_partition_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        parse_moment_of(text)


GLOBS = st.text("ab.-_*?", max_size=6) | st.sampled_from(["[ab]*", "[!a]?", "x[", "a]"])


@given(GLOBS, st.text("ab.-_x[]", max_size=6))
def test_globs_find_the_same_names_with_and_without_a_group(glob: str, name: str) -> None:
    expected = re.fullmatch(fnmatch.translate(glob), name)
    assert bool(re.search(to_posix(glob), name)) == bool(expected)


def test_regular_expressions_of_groups() -> None:
    assert to_posix("^a.*[0-9]+$") == "^a.*[0-9]+$"
    for pattern in (r"^a\d", "^(?:a)", "^a+?", r"^a\Z"):
        with pytest.raises(ValueError, match="which expressions of group members lack"):
            to_posix(pattern)


def test_patterns_reach_internal_topics_only_by_their_first_letter() -> None:
    assert hides_internal(["^.*", "a*", "b"])
    assert not hides_internal(["a*", "__consumer_offsets"])
    assert not hides_internal(["^__.*"])


def test_escapes() -> None:
    assert unescape(r"a\tb\n\r\0\\\x41") == "a\tb\n\r\0\\A"
    for wrong in ("\\q", "\\", "\\x4"):
        with pytest.raises(ValueError, match="none of"):
            unescape(wrong)


def test_delimiters() -> None:
    assert delimiter(r"\0") == b"\0"
    assert delimiter("::") == b"::"
    assert delimiter(r"\xff") == b"\xff"
    assert delimiter("→") == "→".encode()
    with pytest.raises(ValueError, match="at least one"):
        delimiter("")


def message(**fields: Any) -> Any:
    """A message as the client library gives it."""
    known = {
        "topic": "t",
        "partition": 1,
        "offset": 7,
        "timestamp": (1, 1500),
        "key": b"k",
        "value": b"value",
        "headers": [("a", b"1"), ("b", None)],
    } | fields
    return SimpleNamespace(**{name: lambda value=value: value for name, value in known.items()})


FORMATS = {
    "%s": b"value",
    r"%t %p:%o\n": b"t 1:7\n",
    "%k=%s": b"k=value",
    "%K %S": b"1 5",
    "%T %h": b"1500 a=1,b=",
    "100%% %s": b"100% value",
    "%%s": b"%s",
    "%%": b"%",
    r"\x25s %o": b"%s 7",
    "plain": b"plain",
    "": b"",
    "%R%s": b"\0\0\0\x05value",
    "→%s": "→value".encode(),
}


@pytest.mark.parametrize(("text", "expected"), FORMATS.items(), ids=list(FORMATS))
def test_format_writes(text: str, expected: bytes) -> None:
    assert compile_format(text)(message()) == expected


def test_format_of_null() -> None:
    assert compile_format("%k|%s|%K|%S")(message(key=None, value=None)) == b"||-1|-1"
    assert compile_format("%k|%s", b"NULL")(message(key=None, value=b"")) == b"NULL|"
    assert compile_format("%h")(message(headers=None)) == b""
    assert compile_format("%R")(message(value=None)) == b"\xff\xff\xff\xff"


@pytest.mark.parametrize("text", ["%q", "%", "a%", "%-5s", "\\q%s"])
def test_format_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="none of"):
        compile_format(text)


@pytest.mark.parametrize(
    ("text", "span_ms"),
    [("500ms", 500), ("90s", 90_000), ("15m", 900_000), ("12h", 43_200_000), ("7d", 604_800_000)],
)
def test_spans(text: str, span_ms: int) -> None:
    assert parse_span(text) == span_ms


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "1.5h", "7 d", "7dd", "7w", "9999999999s"])
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(ValueError, match="is no time"):
        parse_span(text)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("P1D", 86_400_000),
        ("PT1H30M", 5_400_000),
        ("P7DT0H0M0S", 604_800_000),
        ("pt0.5s", 500),
        ("PT1,25S", 1250),
        ("PT0.0019S", 1),
        ("36h", 129_600_000),
    ],
)
def test_durations(text: str, duration_ms: int) -> None:
    assert parse_duration(text) == duration_ms


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "P1H", "PT1D", "P1W", "-P1D", "soon"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration, such as P1DT12H or 36h"):
        parse_duration(text)


def test_a_moment_is_read_as_it_is_shown() -> None:
    assert moment_text(1_700_000_000_999) == "2023-11-14T22:13:20Z"
    assert parse_moment("2023-11-14T22:13:20+00:00") == 1_700_000_000_000


@pytest.mark.parametrize("number", [-1, 253_402_300_800_000, (1 << 63) - 1])
def test_a_moment_that_no_calendar_has_is_shown_as_its_number(number: int) -> None:
    assert moment_text(number) == str(number)
