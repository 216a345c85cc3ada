"""What words on the command line mean: record formats, offsets, moments, delimiters. Pure.

Format of a record (`-f`), as in kcat:

   %t topic   %p partition   %o offset   %T timestamp, ms   %h headers, name=value,…
   %k key     %K its length, -1: null    %s value           %S its length, -1: null
   %R value's length as 4 bytes, big-endian                 %% a percent sign
   \\n \\r \\t \\0 \\\\ \\xHH

Offset (`-o`):

   earliest, beginning, start    the first there is        N     that offset
   latest, end                   only what comes           -N    the last N of each partition
   @T, s@T                       from that moment          e@T   stop before that moment

T is in milliseconds since 1970, or an ISO date and time ("2026-11-21T10:00", UTC unless it says
otherwise). No record is older than 1970: an earlier moment is the beginning of that year.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

EARLIEST = "earliest"
LATEST = "latest"
OFFSET = "offset"
TAIL = "tail"
SINCE = "since"
UNTIL = "until"

_NAMES = {
    "earliest": EARLIEST,
    "beginning": EARLIEST,
    "start": EARLIEST,
    "latest": LATEST,
    "end": LATEST,
}
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.|$)", re.DOTALL)
_NUMBER = re.compile(r"\d{1,18}")


class Place(NamedTuple):
    """What `-o` says: `kind` (EARLIEST …), and the offset, count or moment (ms) of it."""

    kind: str
    number: int = 0


def parse_place(text: str) -> Place:
    """The place that an `-o` names; ValueError with a sentence if it names none."""
    if text in _NAMES:
        return Place(_NAMES[text])
    if text[:2] == "e@":
        return Place(UNTIL, parse_moment(text[2:]))
    if text[:1] == "@" or text[:2] == "s@":
        return Place(SINCE, parse_moment(text.partition("@")[2]))
    if _NUMBER.fullmatch(text):
        return Place(OFFSET, int(text))
    if text[:1] == "-" and _NUMBER.fullmatch(text[1:]):
        return Place(TAIL, int(text[1:]))
    raise ValueError(f"{text!r} is none of earliest, latest, N, -N, @TIME, e@TIME")


def parse_moment(text: str) -> int:
    """Milliseconds since 1970 of a number, or of an ISO date and time; ValueError if it's none."""
    if _NUMBER.fullmatch(text):
        return int(text)
    from datetime import UTC, datetime, timedelta

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no moment: milliseconds since 1970, or a date like 2026-11-21T10:00"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # Brokers take negative numbers for places, such as the end.
    return max(0, (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1))


DATES_END_MS = 253_402_300_800_000
"""The year 10000, of which `datetime` knows nothing."""

_SPAN = re.compile(r"(\d{1,9})(ms|s|m|h|d)")
_SPAN_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_span(text: str) -> int:
    """Milliseconds of "90s", "15m", "12h", "7d" or "500ms"; ValueError if it's none."""
    match = _SPAN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no time: a number with ms, s, m, h or d, such as 12h")
    return int(match[1]) * _SPAN_MS[match[2]]


_DURATION = re.compile(
    r"P(?=.)(?:(\d{1,9})D)?"
    r"(?:T(?=.)(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9})(?:[.,](\d{1,9}))?S)?)?",
    re.IGNORECASE,
)


def parse_duration(text: str) -> int:
    """Milliseconds of an ISO 8601 duration as Kafka's tools take it, PnDTnHnMnS, or of what
    `parse_span` reads; ValueError if it's neither."""
    match = _DURATION.fullmatch(text)
    if match is None:
        try:
            return parse_span(text)
        except ValueError:
            raise ValueError(f"{text!r} is no duration, such as P1DT12H or 36h") from None
    days, hours, minutes, seconds = (int(each or 0) for each in match.groups()[:4])
    milliseconds = int((match[5] or "").ljust(3, "0")[:3])
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + milliseconds


def moment_text(moment_ms: int) -> str:
    """Milliseconds since 1970 as a date and time, 2026-11-21T10:00:00Z; the number where it is no
    date."""
    from datetime import UTC, datetime

    if not 0 <= moment_ms < DATES_END_MS:
        return str(moment_ms)
    moment = datetime.fromtimestamp(moment_ms // 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_moment_of(text: str) -> tuple[str, int | None, str | int]:
    """(topic, partition or None for all, EARLIEST, LATEST or ms) of a "TOPIC:PARTITION:TIME", as
    `kcat -Q -t` has it; ValueError if it is none. A missing PARTITION ("TOPIC::TIME") is all."""
    topic, _, rest = text.partition(":")
    number, _, moment = rest.partition(":")
    if not topic or not moment or not (number.isdecimal() or not number):
        raise ValueError(f"{text!r} is no TOPIC:PARTITION:TIME")
    partition = int(number) if number else None
    if moment in ("-1", *(name for name, kind in _NAMES.items() if kind == LATEST)):
        return topic, partition, LATEST
    if moment == "-2" or moment in _NAMES:
        return topic, partition, EARLIEST
    return topic, partition, parse_moment(moment)


INTERNAL = "^__"
"""Internal topics, as a regular expression."""


def hides_internal(words: Iterable[str]) -> bool:
    """Whether internal topics are out of these patterns' reach: none begins like their names."""
    return not any(word.lstrip("^").startswith("_") for word in words)


def to_posix(pattern: str) -> str:
    r"""A shell glob or a regular expression ("^…") as librdkafka reads it, by POSIX's rules.

    ValueError for what Python's expressions have and POSIX's lack and take for something else.
    """
    if pattern.startswith("^"):
        if found := re.search(r"\\[dDAZ]|\(\?|[*+?}]\?", pattern):
            raise ValueError(
                f"{pattern} has {found[0]}, which expressions of group members lack; "
                r"[0-9] stands for \d"
            )
        return pattern
    words = []
    for piece in re.split(r"(\[!?\]?[^\]]*\]|.)", pattern):
        if len(piece) > 1:
            words.append("[^" + piece[2:] if piece[1] == "!" else piece)
        else:
            words.append({"*": ".*", "?": "."}.get(piece, re.escape(piece)))
    return f"^{''.join(words)}$"


def unescape(text: str) -> str:
    r"""Text with \n, \t, \xHH … replaced; ValueError for an escape that isn't one."""

    def one(match: re.Match[str]) -> str:
        word = match[1]
        if len(word) == 3:
            return chr(int(word[1:], 16))
        if word not in _ESCAPES:
            raise ValueError(f"{match[0]} is none of \\n \\r \\t \\0 \\\\ \\xHH")
        return _ESCAPES[word]

    return _ESCAPE.sub(one, text)


def delimiter(text: str) -> bytes:
    r"""The bytes of a delimiter such as ":" or "\0"; ValueError if it is empty."""
    found = _bytes(unescape(text))
    if not found:
        raise ValueError("a delimiter has at least one character")
    return found


def _bytes(text: str) -> bytes:
    # \xHH means that byte, whatever stands beside it is UTF-8.
    return b"".join(bytes([ord(c)]) if 128 <= ord(c) < 256 else c.encode() for c in text)


def compile_format(text: str, null: bytes = b"") -> Callable[[Any], bytes]:
    """A function that writes a message (the client library's) as `text` says.

    `null` stands where a key or value is null. ValueError for a %-letter that means nothing.
    """
    literal: list[str] = []
    parts: list[bytes | Callable[[Any], bytes]] = []
    for piece in re.split(r"(%.|%$)", text, flags=re.DOTALL):
        if piece == "%%":
            literal.append("%")
        elif piece[:1] == "%":
            parts.append(_bytes(unescape("".join(literal))))
            literal.clear()
            parts.append(_part(piece[1:], null))
        else:
            literal.append(piece)
    parts.append(_bytes(unescape("".join(literal))))
    template = b"".join(
        part.replace(b"%", b"%%") if isinstance(part, bytes) else b"%b" for part in parts
    )
    arguments = [part for part in parts if not isinstance(part, bytes)]
    if len(arguments) == 1:
        only = arguments[0]
        return lambda message: template % only(message)
    return lambda message: template % tuple([argument(message) for argument in arguments])


def _part(letter: str, null: bytes) -> Callable[[Any], bytes]:
    def length(content: bytes | None) -> int:
        return -1 if content is None else len(content)

    def either(content: bytes | None) -> bytes:
        return null if content is None else content

    def headers(message: Any) -> bytes:
        return b",".join(
            b"%b=%b" % (name.encode(), either(content)) for name, content in message.headers() or ()
        )

    writers: dict[str, Callable[[Any], bytes]] = {
        "t": lambda message: message.topic().encode(),
        "p": lambda message: b"%d" % message.partition(),
        "o": lambda message: b"%d" % message.offset(),
        "T": lambda message: b"%d" % message.timestamp()[1],
        "h": headers,
        "k": lambda message: either(message.key()),
        "K": lambda message: b"%d" % length(message.key()),
        "s": lambda message: either(message.value()),
        "S": lambda message: b"%d" % length(message.value()),
        "R": lambda message: (length(message.value()) & 0xFFFFFFFF).to_bytes(4, "big"),
    }
    if letter not in writers:
        raise ValueError(f"%{letter} is none of %{' %'.join(writers)} %%")
    return writers[letter]
