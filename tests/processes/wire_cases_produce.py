"""Produce, asked of both brokers: batches, requests, sequences, settings of topics."""

import struct
import zlib
from typing import Any

from shmbroker.crc32c import crc32c
from shmbroker.records.batch import control_batch, encode_batch
from tests.processes.wire_cases import BAD_NAMES, STRANGER, TIME, ZERO, Answers, scenario, versions
from tests.processes.wire_side import Side
from tests.support.raw_client import batch_of, fetch_body, produce_body

# ── Produce ─────────────────────────────────────────────────────────────────────────────────────


def patched(batch: bytes, position: int, form: str, value: int, *, is_summed: bool = True) -> bytes:
    """A batch with another value at a position of its header; its CRC put right, or not."""
    changed = bytearray(batch)
    struct.pack_into(form, changed, position, value)
    if is_summed:
        struct.pack_into(">I", changed, 17, crc32c(changed[21:]))
    return bytes(changed)


def old_message(magic: int) -> bytes:
    """A message of the formats before record batches."""
    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", TIME) if magic else b"")
    body += struct.pack(">i", -1) + struct.pack(">i", 1) + b"x"
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message


def sequenced(first: int, count: int = 1, epoch: int = 0, producer_id: int = 4_000_000) -> bytes:
    """A batch of an idempotent producer."""
    records = [(TIME, None, b"v%d" % (first + which), []) for which in range(count)]
    return encode_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=first)


GOOD = batch_of(b"one", b"two", b"three", timestamp=TIME)

BATCHES: dict[str, bytes | None] = {
    "good": GOOD,
    "null records": None,
    "no bytes": b"",
    "11 bytes": GOOD[:11],
    "12 bytes": GOOD[:12],
    "17 bytes": GOOD[:17],
    "header alone": GOOD[:61],
    "cut off by one": GOOD[:-1],
    "one byte behind": GOOD + b"\0",
    "11 bytes behind": GOOD + GOOD[:11],
    "12 bytes behind": GOOD + GOOD[:12],
    "12 zeros behind": GOOD + bytes(12),
    "17 bytes behind": GOOD + GOOD[:17],
    "61 bytes behind": GOOD + GOOD[:61],
    "two batches": GOOD + GOOD,
    "length 13": patched(GOOD, 8, ">i", 13),
    "length 14": patched(GOOD, 8, ">i", 14),
    "length 48": patched(GOOD, 8, ">i", 48),
    "length 49": patched(GOOD, 8, ">i", 49),
    "length 0": patched(GOOD, 8, ">i", 0),
    "length -1": patched(GOOD, 8, ">i", -1),
    "length too large": patched(GOOD, 8, ">i", 2**31 - 1),
    "length one more": patched(GOOD, 8, ">i", len(GOOD) - 11),
    "magic 3": patched(GOOD, 16, ">b", 3),
    "magic -1": patched(GOOD, 16, ">b", -1),
    "magic 0": old_message(0),
    "magic 1": old_message(1),
    "magic byte 0": patched(GOOD, 16, ">b", 0),
    "magic byte 1": patched(GOOD, 16, ">b", 1),
    "base offset 5": patched(GOOD, 0, ">q", 5),
    "base offset -1": patched(GOOD, 0, ">q", -1),
    "leader epoch 9": patched(GOOD, 12, ">i", 9),
    "bad CRC": patched(GOOD, 17, ">I", 12345, is_summed=False),
    "compression 5": patched(GOOD, 21, ">h", 5),
    "compression 7": patched(GOOD, 21, ">h", 7),
    "control batch": patched(GOOD, 21, ">h", 0x20),
    "whole control batch": control_batch(1, bytes(6), timestamp=TIME, producer_id=9),
    "delete horizon flag": patched(GOOD, 21, ">h", 0x40),
    "reserved bits": patched(GOOD, 21, ">h", 0x7F80),
    "LogAppendTime flag": patched(GOOD, 21, ">h", 0x08),
    "count 0": patched(patched(GOOD, 57, ">i", 0), 23, ">i", -1),
    "count -1": patched(patched(GOOD, 57, ">i", -1), 23, ">i", -2),
    "count 2": patched(GOOD, 57, ">i", 2),
    "count 4": patched(GOOD, 57, ">i", 4),
    "last offset delta 1": patched(GOOD, 23, ">i", 1),
    "last offset delta 3": patched(GOOD, 23, ">i", 3),
    "max timestamp wrong": patched(GOOD, 35, ">q", TIME + 5000),
    "far ahead": batch_of(b"x", timestamp=9_000_000_000_000),
    "second record far ahead": encode_batch(
        [(TIME, None, b"x", []), (9_000_000_000_000, None, b"y", []), (TIME, None, b"z", [])]
    ),
    "timestamp 0": batch_of(b"x", timestamp=0),
    "timestamp -1": batch_of(b"x", timestamp=-1),
    "timestamp -2": batch_of(b"x", timestamp=-2),
    "negative sequence": patched(patched(sequenced(0), 53, ">i", -1), 43, ">q", 5),
    "producer id without epoch": patched(sequenced(0, producer_id=4_000_001), 51, ">h", -1),
    "epoch without producer id": patched(GOOD, 51, ">h", 3),
    "sequence without producer id": patched(GOOD, 53, ">i", 3),
    "gzip": batch_of(b"x" * 100, timestamp=TIME, codec=1),
    "snappy": batch_of(b"x" * 100, timestamp=TIME, codec=2),
    "lz4": batch_of(b"x" * 100, timestamp=TIME, codec=3),
    "zstd": batch_of(b"x" * 100, timestamp=TIME, codec=4),
    "sequence 0 of a new producer": sequenced(0, producer_id=4_000_002),
    "sequence 7 of a new producer": sequenced(7, producer_id=4_000_003),
    "larger than 1 MiB": batch_of(bytes(1_100_000), timestamp=TIME),
    "as large as allowed": batch_of(bytes(1_048_588 - 61 - 13), timestamp=TIME),
}  # fmt: skip

STORES = frozenset(("good", "zstd"))
"""Asked in every version; the other batches in four."""

FEW = (3, 8, 9, 13)


@scenario
def produce_batches(side: Side) -> Answers:
    """Every kind of batch, each into a partition of its own, and what is stored of it."""
    names = list(BATCHES)
    topic = side.topic("batches", len(names))
    topic_id = side.topics[topic]
    for index, (name, batch) in enumerate(BATCHES.items()):
        for version in versions("Produce") if name in STORES else FEW:
            if name == "null records" and version > FEW[0]:
                continue
            body = by_id(produce_body(topic, batch, index), topic_id, version)
            answer = side.ask("Produce", version, body, is_silent=batch is None)
            if isinstance(answer, dict):
                without(answer, "index", index)
            yield name, version, answer
        found = side.ask("Fetch", 12, fetch_body(topic, 0, index, max_bytes=1 << 22))
        partition = found["responses"][0]["partitions"][0]
        without(found, "partition_index", index)
        records = partition["records"]
        if len(records) > 300:
            partition["records"] = records[:300] + "…"
        yield f"{name}: stored", "-", partition


def without(answer: dict[str, Any], key: str, index: int) -> None:
    """Take the partition's number out of an answer of one partition: it is the case's own."""
    rows = "partitions" if key == "partition_index" else "partition_responses"
    assert answer["responses"][0][rows][0].pop(key, 0) == index, answer


def by_id(body: dict[str, Any], topic_id: bytes, version: int) -> dict[str, Any]:
    """Name the topic as a version does."""
    if version >= 13:
        for topic in body.get("topic_data") or body["topics"]:
            topic.pop("name", topic.pop("topic", None))
            topic["topic_id"] = topic_id
    return body


@scenario
def produce_requests(side: Side) -> Answers:
    """What is wrong with the request rather than with a batch."""
    topic = side.topic("requests", 4)
    topic_id = side.topics[topic]
    bad_crc, bad_length, old = BATCHES["bad CRC"], BATCHES["length 13"], BATCHES["magic 1"]

    def several(version: int, *partitions: tuple[int, bytes | None], **more: Any) -> Any:
        body = produce_body(topic, None)
        body["topic_data"][0]["partition_data"] = [
            {"index": index, "records": records} for index, records in partitions
        ]
        body |= more
        body = by_id(body, topic_id, version)
        return side.ask("Produce", version, body, is_silent=body["acks"] == 0)

    for version in versions("Produce"):
        for index in (-1, 4, 1000):
            answer = several(version, (index, GOOD))
            yield f"partition {index}", version, answer
        for acks in (2, 5, -2, 32767):
            yield f"acks {acks}", version, several(version, (0, GOOD), acks=acks)
        body = produce_body(side.name("unknown"), GOOD)
        body = by_id(body, STRANGER, version)
        yield "unknown topic", version, side.ask("Produce", version, body)
        for word, bad in BAD_NAMES.items() if version < 13 else ():
            yield (
                f"topic name {word}",
                version,
                side.ask("Produce", version, produce_body(bad, GOOD)),
            )
        if version >= 13:
            body = by_id(produce_body("", GOOD), ZERO, version)
            yield "zero id", version, side.ask("Produce", version, body)
        yield "no topics", version, side.ask("Produce", version, {"acks": 1, "topic_data": []})
        body = produce_body(topic, None)
        body["topic_data"][0]["partition_data"] = []
        yield "no partitions", version, side.ask("Produce", version, by_id(body, topic_id, version))
        yield "bad and unknown", version, several(version, (1, bad_crc), (9, GOOD))
        yield "one bad length fails all", version, several(version, (1, GOOD), (2, bad_length))
        yield "old magic and bad CRC", version, several(version, (1, old), (2, bad_crc))
        yield "bad length and acks 5", version, several(version, (1, bad_length), acks=5)
        yield "bad CRC and acks 5", version, several(version, (1, bad_crc), acks=5)
        yield "unknown partition and acks 5", version, several(version, (9, GOOD), acks=5)
        for acks in (0,):
            answer = several(version, (9, GOOD), acks=acks)
            yield "acks 0, unknown partition", version, answer
            answer = several(version, (1, bad_crc), acks=acks)
            yield "acks 0, bad CRC", version, answer
    yield "nothing of these is stored", "-", ends(side, topic, 4)
    for version in (9, 13):
        yield (
            "good and bad",
            version,
            several(version, (0, GOOD), (1, bad_crc), (2, old), (3, GOOD)),
        )
        yield "acks 0 good", version, several(version, (3, GOOD), acks=0)
        yield "acks 1", version, several(version, (3, GOOD), acks=1)
        yield "timeout 0", version, several(version, (3, GOOD), timeout_ms=0)
        yield "timeout negative", version, several(version, (3, GOOD), timeout_ms=-1)
        body = produce_body(topic, GOOD, 1)
        body["topic_data"] += produce_body(topic, GOOD, 2)["topic_data"]
        yield (
            "one topic twice",
            version,
            side.ask("Produce", version, by_id(body, topic_id, version)),
        )
        yield "the ends after that", version, ends(side, topic, 4)
    yield "one partition twice", 9, several(9, (0, GOOD), (0, batch_of(b"last", timestamp=TIME)))
    yield "the ends in the end", "-", ends(side, topic, 4)


def ends(side: Side, topic: str, partitions: int) -> list[Any]:
    """Log end offsets."""
    rows = [{"partition_index": index, "timestamp": -1} for index in range(partitions)]
    body = {"replica_id": -1, "topics": [{"name": topic, "partitions": rows}]}
    answer = side.ask("ListOffsets", 5, body)
    return [row.get("offset", 0) for row in answer["topics"][0]["partitions"]]


@scenario
def produce_sequences(side: Side) -> Answers:
    """Idempotence: one producer, one partition, step by step."""
    topic = side.topic("sequences", 4)
    last = 2**31 - 1
    steps: list[tuple[str, int, bytes]] = [
        ("first", 0, sequenced(0, 2)),
        ("second", 0, sequenced(2, 3)),
        ("duplicate of the first", 0, sequenced(0, 2)),
        ("duplicate of the second", 0, sequenced(2, 3)),
        ("half a duplicate", 0, sequenced(2, 2)),
        ("longer than what it repeats", 0, sequenced(2, 4)),
        ("gap", 0, sequenced(6)),
        ("third", 0, sequenced(5)),
        ("fourth", 0, sequenced(6)),
        ("fifth", 0, sequenced(7)),
        ("sixth", 0, sequenced(8)),
        ("the first again, out of the last five", 0, sequenced(0, 2)),
        ("the second again, fifth from the end", 0, sequenced(2, 3)),
        ("older epoch is not there yet", 0, sequenced(9, epoch=0)),
        ("new epoch, not from 0", 0, sequenced(10, epoch=1)),
        ("new epoch", 0, sequenced(0, epoch=1)),
        ("older epoch", 0, sequenced(10, epoch=0)),
        ("new epoch, duplicate", 0, sequenced(0, epoch=1)),
        ("same sequence, other producer", 0, sequenced(0, producer_id=4_000_100)),
        ("near the wrap", 1, sequenced(last - 1, 2)),
        ("after the wrap", 1, sequenced(0)),
        ("duplicate near the wrap", 1, sequenced(last - 1, 2)),
        ("across the wrap, start", 2, sequenced(last - 1)),
        ("across the wrap", 2, sequenced(last, 3)),
        ("after across", 2, sequenced(2)),
        ("duplicate across", 2, sequenced(last, 3)),
    ]
    for name, index, batch in steps:
        answer = side.ask("Produce", 9, produce_body(topic, batch, index))
        yield name, 9, answer["responses"][0]["partition_responses"][0]
    yield "ends", "-", ends(side, topic, 4)


@scenario
def produce_settings(side: Side) -> Answers:
    """What the topic's settings make of a batch."""
    old = batch_of(b"x", timestamp=TIME - 10_000_000)

    def ask(topic: str, batch: bytes) -> Any:
        answer = side.ask("Produce", 9, produce_body(topic, batch))
        return answer["responses"][0]["partition_responses"][0]

    def keyed(*keys: bytes | None, codec: int = 0) -> bytes:
        return encode_batch([(TIME, key, b"v", []) for key in keys], codec=codec)

    stamped = side.topic("stamped", message_timestamp_type="LogAppendTime")
    yield "LogAppendTime", 9, ask(stamped, GOOD)
    yield "LogAppendTime, far ahead", 9, ask(stamped, BATCHES["far ahead"])
    yield "LogAppendTime, flag set", 9, ask(stamped, BATCHES["LogAppendTime flag"])
    yield "LogAppendTime, timestamp -1", 9, ask(stamped, BATCHES["timestamp -1"])
    yield "LogAppendTime, sequence", 9, ask(stamped, sequenced(0, producer_id=4_000_200))
    yield "LogAppendTime, duplicate", 9, ask(stamped, sequenced(0, producer_id=4_000_200))

    plain = side.topic("created")
    yield (
        "CreateTime, flag set, timestamp -1",
        9,
        ask(plain, patched(BATCHES["timestamp -1"], 21, ">h", 8)),
    )

    compact = side.topic("compact", cleanup_policy="compact")
    yield "compacted, no keys", 9, ask(compact, GOOD)
    yield "compacted, second key missing", 9, ask(compact, keyed(b"a", None, b"c", None))
    yield "compacted, keys", 9, ask(compact, keyed(b"a", b"b"))
    for number in (1, 2, 3, 4):
        yield (
            f"compacted, no key, compression {number}",
            9,
            ask(compact, keyed(b"a", None, codec=number)),
        )
        yield f"compacted, compression {number}", 9, ask(compact, keyed(b"a", codec=number))
    broken = patched(patched(keyed(b"a", codec=1), 65, ">I", 0xFFFFFFFF), 21, ">h", 1)
    yield "compacted, broken gzip", 9, ask(compact, broken)
    both = side.topic("both", cleanup_policy="compact,delete")
    yield "compact and delete, no keys", 9, ask(both, GOOD)

    before = side.topic("before", message_timestamp_before_max_ms="1000")
    yield "too old", 9, ask(before, old)
    after = side.topic("after", message_timestamp_after_max_ms="9000000000000")
    yield "far ahead allowed", 9, ask(after, BATCHES["far ahead"])
    small = side.topic("small", max_message_bytes="100")
    yield "over max.message.bytes", 9, ask(small, GOOD)
    yield (
        "compressed over max.message.bytes",
        9,
        ask(small, batch_of(b"x" * 200, timestamp=TIME, codec=1)),
    )
    segment = side.topic("segment", segment_bytes="1048576", max_message_bytes="3000000")
    yield "over segment.bytes", 9, ask(segment, batch_of(bytes(1_100_000), timestamp=TIME))
    twice = side.topic("replicas", min_insync_replicas="2")
    yield "min.insync.replicas over the replicas", 9, ask(twice, GOOD)

    body = produce_body("__consumer_offsets", GOOD)
    while side.ask("FindCoordinator", 0, {"key": "group"}).get("error_code"):
        pass
    yield "internal topic", 9, side.ask("Produce", 9, body)
