"""More wire cases: records that are not as they should be, in batches whose header and CRC are.

Rules as in `wire_cases`. Here the topics have `shmbroker.validation=records`, which Kafka refuses
to set and always does.
"""

import struct
from typing import Any

from shmbroker import clock
from shmbroker.crc32c import crc32c
from shmbroker.records import codecs
from shmbroker.records.batch import encode_batch
from tests.processes.wire_cases import TIME, Answers, scenario
from tests.processes.wire_side import Side
from tests.support.raw_client import fetch_body, produce_body

FAR_AHEAD = 9_000_000_000_000
CODECS = (0, 4)
"""Kafka says the same to all compressions, case by case."""


def varint(value: int) -> bytes:
    """Zigzag, as short as can be."""
    value = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def text(content: bytes | None, length: int | None = None) -> bytes:
    """A length, as it is or as told, and the bytes."""
    if length is None:
        length = -1 if content is None else len(content)
    return varint(length) + (content or b"")


def record(
    offset_delta: int | bytes = 0,
    *,
    attributes: int = 0,
    timestamp_delta: int | bytes = 0,
    key: bytes = text(b"k"),
    value: bytes = text(b"value"),
    headers: bytes = b"\0",
    tail: bytes = b"",
    length: int | bytes | None = None,
) -> bytes:
    """A record whose every field may be wrong."""
    body = bytes([attributes])
    for number in (timestamp_delta, offset_delta):
        body += number if isinstance(number, bytes) else varint(number)
    body += key + value + headers + tail
    if length is None:
        length = len(body)
    return (length if isinstance(length, bytes) else varint(length)) + body


def batch(
    *records: bytes,
    codec: int = 0,
    count: int | None = None,
    base_timestamp: int = TIME,
    max_timestamp: int = TIME,
    attributes: int = 0,
    block: bytes | None = None,
) -> bytes:
    """A batch around these bytes, its CRC right; `block` stands for the compressed records."""
    count = len(records) if count is None else count
    if block is None:
        block = codecs.compress(codec, b"".join(records))
    rest = struct.pack(
        ">hiqqqhii", codec | attributes, count - 1, base_timestamp, max_timestamp, -1, -1, -1, count
    )
    rest += block
    return struct.pack(">qiibI", 0, len(rest) + 9, -1, 2, crc32c(rest)) + rest


def framed(*middle: bytes) -> tuple[bytes, ...]:
    """A good record before and after; `middle` is the one at offset delta 1."""
    return record(0), *middle, record(len(middle) + 1)


HEADERS = varint(2) + text(b"name") + text(b"content") + text(b"n") + text(None)
SIZE = len(record(1)) - 1

RECORDS: dict[str, tuple[bytes, ...]] = {
    "good": framed(record(1)),
    "with headers": framed(record(1, headers=HEADERS)),
    "null key and value": framed(record(1, key=text(None), value=text(None))),
    "empty key and value": framed(record(1, key=text(b""), value=text(b""))),
    "attributes set": framed(record(1, attributes=0x7F)),
    "long varints": framed(record(b"\x82\x80\x00", timestamp_delta=b"\x82\x80\x80\x00")),
    "long length": framed(record(1, length=b"\x98\x80\x80\x80\x00")),
    "length 0": framed(b"\0" + record(1)),
    "length -1": framed(record(1, length=-1)),
    "length least": framed(record(1, length=-(2**31))),
    "length one less": framed(record(1, length=SIZE - 1)),
    "length one more": framed(record(1, length=SIZE + 1)),
    "length beyond the end": framed(record(1, length=500)),
    "length most": framed(record(1, length=2**31 - 1)),
    "length of six bytes": framed(record(1, length=b"\x98\x80\x80\x80\x80\x00")),
    "length without an end": (record(0), b"\x98\x80"),
    "last length one more": (record(0), record(1, length=SIZE + 1)),
    "last length one less": (record(0), record(1, length=SIZE - 1)),
    "byte behind the fields": framed(record(1, tail=b"\0")),
    "timestamp delta of eleven bytes": framed(record(1, timestamp_delta=b"\x80" * 10 + b"\0")),
    "timestamp delta of ten bytes": framed(record(1, timestamp_delta=b"\x80" * 9 + b"\0")),
    "offset delta of six bytes": framed(record(b"\x82\x80\x80\x80\x80\x00")),
    "offset delta of five bytes": framed(record(b"\x82\x80\x80\x80\x00")),
    "offset delta over 32 bits": framed(record(b"\x82\x80\x80\x80\x7f")),
    "offset delta too small": framed(record(0)),
    "offset delta too large": framed(record(2)),
    "offset delta negative": framed(record(-1)),
    "offset deltas swapped": (record(1), record(0), record(2)),
    "key length -2": framed(record(1, key=text(b"", -2))),
    "key length beyond the record": framed(record(1, key=text(b"k", 100))),
    "key length into the next record": framed(record(1, key=text(b"k", SIZE))),
    "key length most": framed(record(1, key=text(b"k", 2**31 - 1))),
    "key length of six bytes": framed(record(1, key=b"\x82\x80\x80\x80\x80\x00k")),
    "value length -2": framed(record(1, value=text(b"", -2))),
    "value length beyond the record": framed(record(1, value=text(b"v", 100))),
    "value length one less": framed(record(1, value=text(b"value", 4))),
    "header count -1": framed(record(1, headers=varint(-1))),
    "header count 1, no headers": framed(record(1, headers=varint(1))),
    "header count 1 of 2": framed(record(1, headers=varint(1) + HEADERS[1:])),
    "header count 3 of 2": framed(record(1, headers=varint(3) + HEADERS[1:])),
    "header count most": framed(record(1, headers=varint(2**31 - 1))),
    "header key null": framed(record(1, headers=varint(1) + text(None) + text(b"v"))),
    "header key empty": framed(record(1, headers=varint(1) + text(b"") + text(b"v"))),
    "header key beyond": framed(record(1, headers=varint(1) + text(b"n", 99) + text(b"v"))),
    "header value -2": framed(record(1, headers=varint(1) + text(b"n") + text(b"", -2))),
    "header value beyond": framed(record(1, headers=varint(1) + text(b"n") + text(b"v", 99))),
    "header cut off": framed(record(1, headers=varint(1) + text(b"n"))),
    "nothing but a length": framed(b"\0"),
    "nothing but attributes": framed(b"\x02\0"),
    "byte behind the last": (record(0), record(1), b"\0"),
    "record behind the last": (record(0), record(1), record(2)),
    "last cut off": (record(0), record(1)[:-1]),
}  # fmt: skip

COUNTS = {
    "length without an end": 2, "byte behind the last": 2, "record behind the last": 2,
}  # fmt: skip

BATCHES: dict[str, bytes] = {
    "no records, plain": batch(count=1),
    "no records, gzip": batch(count=1, codec=1),
    "count beyond the bytes, gzip": batch(record(0), count=2**31 - 1, codec=1),
    "one missing, gzip": batch(record(0), count=2, codec=1),
    "gzip of nothing": batch(count=1, codec=1, block=b""),
    "gzip cut off": batch(count=1, codec=1, block=codecs.compress(1, record(0))[:-9]),
    "gzip garbage": batch(count=1, codec=1, block=b"garbage"),
    "snappy garbage": batch(count=1, codec=2, block=b"garbage"),
    "lz4 garbage": batch(count=1, codec=3, block=b"garbage"),
    "zstd garbage": batch(count=1, codec=4, block=b"garbage"),
    "zstd cut off": batch(count=1, codec=4, block=codecs.compress(4, record(0))[:-4]),
    "max timestamp too large": batch(record(0), record(1, timestamp_delta=5), max_timestamp=TIME+9),
    "max timestamp too small": batch(record(0), record(1, timestamp_delta=5), max_timestamp=TIME),
    "max timestamp -1": batch(record(0), max_timestamp=-1),
    "first is the latest": batch(record(0), record(1, timestamp_delta=-5)),
    "no timestamps": batch(record(0), base_timestamp=-1, max_timestamp=-1),
    "one without": batch(record(0), record(1, timestamp_delta=-1 - TIME)),
    "timestamps wrap": batch(
        record(0), record(1, timestamp_delta=2**63 - 1), base_timestamp=TIME, max_timestamp=TIME
    ),
    "one far ahead": batch(record(0), record(1, timestamp_delta=FAR_AHEAD - TIME)),
    "one far ahead, gzip": batch(record(0), record(1, timestamp_delta=FAR_AHEAD - TIME), codec=1),
    "header far ahead": batch(record(0), record(1), max_timestamp=FAR_AHEAD),
    "LogAppendTime flag": batch(record(0), record(1), attributes=8),
    "LogAppendTime flag, far ahead": batch(record(0), attributes=8, max_timestamp=FAR_AHEAD),
    "LogAppendTime flag, gzip": batch(record(0), record(1), attributes=8, codec=1),
}  # fmt: skip


def walked(side: Side, short: str, partitions: int = 1, **configs: str) -> str:
    """A topic whose records are looked at."""
    name = side.topic(short, partitions, **configs)
    entry = {"name": "shmbroker.validation", "config_operation": 0, "value": "records"}
    resource = {"resource_type": 2, "resource_name": name, "configs": [entry]}
    body = {"resources": [resource], "validate_only": False}
    side.ask("IncrementalAlterConfigs", 1, body)  # here it answers when it is in force
    return name


def asked(side: Side, topic: str, data: bytes, index: int = 0) -> dict[str, Any]:
    answer = side.ask("Produce", 9, produce_body(topic, data, index))
    found: dict[str, Any] = answer["responses"][0]["partition_responses"][0]
    found.pop("index", None)
    return found


def stored(side: Side, topic: str, index: int) -> Any:
    found = side.ask("Fetch", 12, fetch_body(topic, 0, index))
    return found["responses"][0]["partitions"][0]["records"]


@scenario
def produce_records(side: Side) -> Answers:
    """Each kind of broken record, plain and compressed."""
    cases = [
        (f"{name}, codec {codec}", batch(*records, codec=codec, count=COUNTS.get(name)))
        for name, records in RECORDS.items()
        for codec in CODECS
    ]
    cases += BATCHES.items()
    topic = walked(side, "records", len(cases))
    for index, (name, data) in enumerate(cases):
        yield name, 9, asked(side, topic, data, index)
        yield f"{name}: stored", "-", stored(side, topic, index)


@scenario
def produce_record_rules(side: Side) -> Answers:
    """Keys and timestamps of single records, in small batches and in large ones."""
    now = clock.now_ms()
    topics = {
        "compacted": walked(side, "keys", cleanup_policy="compact"),
        "before": walked(side, "before-limit", message_timestamp_before_max_ms="3600000"),
        "after": walked(side, "after-limit", message_timestamp_after_max_ms="3600000"),
        "both": walked(
            side, "both-limits", cleanup_policy="compact", message_timestamp_before_max_ms="3600000"
        ),
        "stamped": walked(
            side,
            "stamped-limits",
            message_timestamp_type="LogAppendTime",
            message_timestamp_before_max_ms="1",
        ),
    }
    for size in (5, 300):
        for codec in CODECS:
            old, new = now - 7_200_000, now + 7_200_000
            odd: dict[str, dict[int, tuple[int, bytes | None]]] = {
                "good": {},
                "first without key": {0: (now, None)},
                "middle without key": {3: (now, None)},
                "last two without keys": {size - 2: (now, None), size - 1: (now, None)},
                "first too old": {0: (old, b"k")},
                "middle too old": {3: (old, b"k")},
                "middle too new": {3: (new, b"k")},
                "old, without key, new": {1: (old, b"k"), 2: (now, None), 3: (new, b"k")},
                "old and without key in one": {2: (old, None)},
                "without timestamp": {3: (-1, b"k")},
                "timestamp -2": {3: (-2, b"k")},
            }
            for name, records in odd.items():
                rows = [(*records.get(index, (now, b"k")), b"v", ()) for index in range(size)]
                data = encode_batch(rows, codec=codec)
                for which, topic in topics.items():
                    answer = asked(side, topic, data)
                    answer.pop("base_offset", None)
                    yield f"{which}, {size}, codec {codec}: {name}", 9, answer


TIMES = {
    # name: the timestamps of each batch, in ms after TIME; None stands for no timestamp
    "rising": ((0, 10), (20, 30), (500, 510), (520, 530), (1000, 1010)),
    "late ones": ((0, 10), (900, 10), (500, 20), (30, 40), (1000, 5)),
    "the latest in the middle": ((0, 10), (5000, 700), (600, 4999), (5100, 1), (20,)),
    "the latest twice": ((10, 700, 700), (0, 700), (900, 0), (900,), (1,)),
    "without": ((None, None), (None,), (500, None), (None, None), (900, 7)),
    "falling": ((900, 800, 700), (600, 500), (400,), (300, 299)),
    "none at all": ((None,), (None, None)),
}
"""Segments last 100 ms, so most of these logs have several."""


@scenario
def list_offsets_times(side: Side) -> Answers:
    """By time, in closed segments and in the active one; with the broker's time as well."""
    names = list(TIMES)
    created = walked(side, "times", 2 * len(names), segment_ms="100", retention_ms="-1")
    stamped = walked(side, "stamped-times", message_timestamp_type="LogAppendTime")

    def look_up(topic: str, index: int, timestamp: int) -> Any:
        row = {"partition_index": index, "timestamp": timestamp}
        body = {"replica_id": -1, "topics": [{"name": topic, "partitions": [row]}]}
        found = side.ask("ListOffsets", 7, body)["topics"][0]["partitions"][0]
        found.pop("partition_index", None)
        return found

    for number, name in enumerate(names):
        for codec in (0, 1):
            index = 2 * number + codec
            for times in TIMES[name]:
                rows = [(-1 if ms is None else TIME + ms, b"k", b"v", ()) for ms in times]
                asked(side, created, encode_batch(rows, codec=codec), index)
            told = {ms for times in TIMES[name] for ms in times if ms is not None} | {0}
            for ms in sorted(told | {near + 1 for near in told} | {-1}):
                yield (
                    f"{name}, codec {codec}: {ms}", 7, look_up(created, index, TIME + ms),
                )  # fmt: skip
            yield f"{name}, codec {codec}: 0 since 1970", 7, look_up(created, index, 0)
            yield f"{name}, codec {codec}: latest", 7, look_up(created, index, -3)
    begin = clock.now_ms()
    for ms in (0, 5_000, 1):
        rows = [(TIME + ms, b"k", b"v", ())] * 3
        asked(side, stamped, encode_batch(rows))
    for name, timestamp in (
        ("long ago", TIME), ("before all", begin - 1000), ("after all", begin + 3_600_000),
    ):  # fmt: skip
        yield f"LogAppendTime, {name}", 7, offset_of(look_up(stamped, 0, timestamp))
    latest = look_up(stamped, 0, -3)
    assert latest.pop("timestamp") >= begin
    # Batches of one millisecond may share it: then the first of them has it.
    yield "LogAppendTime, latest", 7, latest.pop("offset", 0) % 3


def offset_of(row: dict[str, Any]) -> Any:
    return row.get("offset", 0)
