"""Records as lines of JSON: ours, which `produce --json` reads back, and kcat's. Pure.

   ours   {"topic","partition","offset","timestamp","headers":[{"key","value"}],"key","value"}
   kcat's {"topic","partition","offset","tstype","ts","headers":[name,value,…],"key","payload"}

Bytes that are no UTF-8 are in base64, under `key_base64` and so on, in both; kcat writes them as
they are, which is no JSON. Its `broker` is left out: the client library does not tell.
"""

import json
from typing import Any

from shmbroker.cli.outcome import CommandFault
from shmbroker.cli.output import text_or_base64

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode

TIMESTAMP_TYPES = {1: "create", 2: "logappend"}
"""kcat's words for the client library's numbers; 0: the record has no timestamp."""
_MOST = {"partition": (1 << 31) - 1, "timestamp": (1 << 63) - 1}
_VALUES = ("value", "value_base64", "payload", "payload_base64")


def to_json(message: Any) -> bytes:
    """A message as one line of JSON."""
    kind, timestamp = message.timestamp()
    record = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp if kind else None,
        "headers": [
            {"key": name, **text_or_base64("value", content)}
            for name, content in message.headers() or ()
        ],
        **text_or_base64("key", message.key()),
        **text_or_base64("value", message.value()),
    }
    return _encode(record).encode() + b"\n"


def to_kcat_json(message: Any) -> bytes:
    """A message as one line of JSON, with kcat's names (`kcat -J`)."""
    kind, timestamp = message.timestamp()
    record: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
    }
    if kind in TIMESTAMP_TYPES:
        record |= {"tstype": TIMESTAMP_TYPES[kind], "ts": timestamp}
    if headers := message.headers():
        flat: list[Any] = []
        for name, content in headers:
            flat += (name, *text_or_base64("", content).values())
        record["headers"] = flat
    record |= text_or_base64("key", message.key())
    record |= text_or_base64("payload", message.value())
    return _encode(record).encode() + b"\n"


def from_json(line: bytes) -> dict[str, Any]:
    """A record as the client library takes it; {} of an empty line; CommandFault if it is none."""
    if not line or line.isspace():
        return {}

    try:
        given = json.loads(line.decode())
        if not isinstance(given, dict):
            raise ValueError("no object")
        if given.keys().isdisjoint(_VALUES):
            raise ValueError("it has no value, not even null")
        value = "payload" if given.keys().isdisjoint(_VALUES[:2]) else "value"
        record: dict[str, Any] = {"value": _content(given, value)}
        if (key := _content(given, "key")) is not None:
            record["key"] = key
        if headers := given.get("headers"):
            record["headers"] = [
                (_text(row["key"]), _content(row, "value")) for row in _header_rows(headers)
            ]
        for name, names in (("partition", ("partition",)), ("timestamp", ("timestamp", "ts"))):
            for number in (given.get(word) for word in names):
                if number is not None:
                    record[name] = _number(name, number)
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        shown = line[:60].decode(errors="replace")
        raise CommandFault(f"describes no record: {shown} ({error})") from None
    return record


def _number(name: str, given: Any) -> int:
    """A partition or a timestamp; ValueError for a number that none has."""
    number = int(given)
    if not -1 <= number <= _MOST[name]:
        raise ValueError(f"{name} {number} is none")
    return number


def _text(name: object) -> str:
    """The name of a header; ValueError for one that is no text in UTF-8."""
    text = str(name)
    text.encode()
    return text


def _header_rows(headers: Any) -> list[dict[str, Any]]:
    """[{"key", "value"}] of headers in any of the three forms: ours, {name: value}, kcat's."""
    if isinstance(headers, dict):
        return [{"key": name, "value": text} for name, text in headers.items()]
    if isinstance(headers[0], str):
        pairs = zip(headers[::2], headers[1::2], strict=True)
        return [{"key": name, "value": text} for name, text in pairs]
    return list(headers)


def _content(given: dict[str, Any], name: str) -> bytes | None:
    content = given.get(name)
    if isinstance(content, str):
        return content.encode()
    if (encoded := given.get(f"{name}_base64")) is not None:
        import base64

        return base64.b64decode(encoded, validate=True)
    if content is None:
        return None
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
