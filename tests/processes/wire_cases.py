"""What is asked of both brokers: every API that is served, in every version, good input and bad.

Each scenario is a generator of (case, version, answer). A version is a number, or "-" where a case
has none. What Kafka 4.2.1 answers is in wire_expectations.txt; docs/apis.toml says
where we answer something else, and why.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from shmbroker import clock
from shmbroker.crc32c import crc32c
from shmbroker.records.batch import control_batch, encode_batch
from shmbroker.wire import api_keys, codec
from tests.processes.wire_side import Side
from tests.support.raw_client import RawClient, batch_of, fetch_body, key_of, produce_body
from tests.support.waiting import wait_until

Answers = Iterator[tuple[str, Any, Any]]
SCENARIOS: dict[str, Callable[[Side], Answers]] = {}

ZERO = bytes(16)
STRANGER = b"no such topic id"
BAD_NAMES = {
    "empty": "",
    "dot": ".",
    "dots": "..",
    "blank": "a b",
    "slash": "a/b",
    "long": "x" * 250,
}
TIME = 1_700_000_000_000


def scenario(cases: Callable[[Side], Answers]) -> Callable[[Side], Answers]:
    SCENARIOS[cases.__name__] = cases
    return cases


def versions(api: str) -> range:
    """The versions that are served (InitProducerId's last one in the table is unstable)."""
    _, first, last, _ = api_keys.TABLE[key_of(api)]
    return range(first, min(last, 5) + 1 if api == "InitProducerId" else last + 1)


# ── frames and headers ──────────────────────────────────────────────────────────────────────────

ONE_ACL = {
    "resource_type": 2,
    "resource_name": "t",
    "principal": "User:alice",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
ANY_ACL = {
    "resource_type_filter": 1,
    "pattern_type_filter": 1,
    "operation": 1,
    "permission_type": 1,
}
SMALLEST: dict[str, dict[str, Any]] = {
    "Produce": {"acks": 1, "timeout_ms": 1000},
    "Fetch": {"max_wait_ms": 0, "replica_id": -1},
    "ListOffsets": {"replica_id": -1},
    "Metadata": {
        "topics": [{"name": "none", "topic_id": ZERO}],
        "allow_auto_topic_creation": False,
    },
    "FindCoordinator": {"key": "", "key_type": 9},
    "ApiVersions": {"client_software_name": "a", "client_software_version": "1"},
    "CreateTopics": {"timeout_ms": 1000},
    "DeleteTopics": {"timeout_ms": 1000},
    "InitProducerId": {"transactional_id": "", "transaction_timeout_ms": 1},
    "OffsetForLeaderEpoch": {},
    "DescribeConfigs": {},
    "DescribeLogDirs": {"topics": []},
    "CreatePartitions": {"timeout_ms": 1000},
    "IncrementalAlterConfigs": {},
    "DescribeCluster": {"endpoint_type": 7},
    "DescribeTopicPartitions": {"topics": [{"name": "none"}], "response_partition_limit": 2},
    "AlterConfigs": {},
    "AlterReplicaLogDirs": {},
    "ElectLeaders": {"topic_partitions": []},
    "AlterPartitionReassignments": {},
    "ListPartitionReassignments": {"topics": []},
    "DescribeQuorum": {},
    "UpdateFeatures": {},
    "UnregisterBroker": {"broker_id": 77},
    "AddRaftVoter": {"voter_id": 4, "voter_directory_id": bytes(15) + b"\x01", "listeners": []},
    "RemoveRaftVoter": {"voter_id": 4, "voter_directory_id": bytes(15) + b"\x01"},
    "ListConfigResources": {"resource_types": [2]},
    "DescribeAcls": ANY_ACL,
    "CreateAcls": {"creations": [ONE_ACL]},
    "DeleteAcls": {"filters": [ANY_ACL]},
    "DescribeClientQuotas": {},
    "AlterClientQuotas": {"entries": []},
    "SaslHandshake": {"mechanism": "PLAIN"},
    "SaslAuthenticate": {"auth_bytes": b"token"},
    "DescribeUserScramCredentials": {"users": [{"name": "nobody"}]},
    "AlterUserScramCredentials": {"deletions": [{"name": "nobody", "mechanism": 1}]},
}
"""A request of each API that needs no topic."""


def smallest(api: str, version: int) -> bytes:
    """Its body in a version, without what that version lacks."""
    body = dict(SMALLEST[api])
    if api == "Metadata" and version < 4:
        body.pop("allow_auto_topic_creation")
        body["topics"] = None if version else []
    if api == "FindCoordinator":
        if version == 0:
            body = {"key": "group"}
        elif version >= 4:
            body = {"key_type": 9, "coordinator_keys": []}
    if api == "Fetch" and version >= 15:
        body.pop("replica_id")
    if api == "DescribeCluster" and version == 0:
        body = {}
    if api == "ApiVersions" and version < 3:
        body = {}
    if api == "ListConfigResources" and version == 0:
        body = {}
    return codec.encode(api + "Request", version, body)


def kind(answer: Any) -> str:
    """Closed, silent or an answer, whatever it says."""
    return answer if isinstance(answer, str) else "answered"


@scenario
def frames(side: Side) -> Answers:
    """Sizes, headers, keys and versions: what is answered and what ends the connection."""
    request = bytes.fromhex("00 12 00 00 00 00 00 07 ff ff")
    for name, size in (
        ("negative", -1), ("least", -(2**31)), ("too large", (100 << 20) + 1), ("most", 2**31 - 1),
    ):  # fmt: skip
        yield f"size {name}", "-", kind(side.send_raw(struct.pack(">i", size) + request))
    for size in range(10):
        frame = struct.pack(">i", size) + request[:size]
        yield f"size {size}", "-", kind(side.send_raw(frame, is_silent=True))
    for key in (-1, 4, 5, 6, 7, 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82, 93, 1000, 32767):
        frame = struct.pack(">ihhih", 10, key, 0, 7, -1)
        yield f"api key {key}", "-", kind(side.send_raw(frame))
    for api in SMALLEST:
        first, last = versions(api)[0], versions(api)[-1]
        for version in {-32768, -1, first - 1, last + 1, 32767} - {-1 if first else -2}:
            if api == "ApiVersions":
                answer = side.ask_bytes(api, version, smallest(api, last))
            else:
                frame = struct.pack(">hhih", key_of(api), version, 7, -1) + smallest(api, last)
                answer = kind(side.send_raw(struct.pack(">i", len(frame)) + frame))
            word = {first - 1: "below", last + 1: "above"}.get(version, version)
            yield f"{api} version {word}", "-", answer
    for version in (0, 3):
        body = smallest("ApiVersions", version)
        tags = b"" if version < 3 else b"\0"
        for name, client_id in (
            ("null", b"\xff\xff"), ("empty", b"\0\0"), ("not text", b"\0\x02\xff\xfe"),
            ("long", b"\x7f\xff" + b"x" * 32767), ("negative", b"\xff\xfe"), ("cut off", b"\0\x20"),
        ):  # fmt: skip
            frame = struct.pack(">hhi", 18, version, 7) + client_id + tags + body
            answer = kind(side.send_raw(struct.pack(">i", len(frame)) + frame))
            yield f"client id {name}", version, answer
    body = smallest("ApiVersions", 3)
    for name, tags in (
        ("unknown", b"\x01\x63\x02hi"), ("two unknown", b"\x02\x62\x01h\x63\x02hi"),
        ("cut off", b"\x01\x63\x7fhi"), ("falling", b"\x02\x63\x01h\x62\x02hi"),
        ("endless count", b"\xff\xff\xff\xff\x0f"), ("six byte count", b"\xff" * 6),
    ):  # fmt: skip
        frame = struct.pack(">hhih", 18, 3, 7, -1) + tags + body
        yield f"header tags {name}", "-", kind(side.send_raw(struct.pack(">i", len(frame)) + frame))


@scenario
def bodies(side: Side) -> Answers:
    """Bodies that are cut off, that go on behind their end, and that have unknown tagged fields."""
    for api in SMALLEST:
        for version in versions(api):
            body = smallest(api, version)
            yield f"{api} whole", version, kind(side.ask_bytes(api, version, body))
            if body:
                answer = side.ask_bytes(api, version, body[:-1])
                yield f"{api} cut off", version, kind(answer)
            answer = side.ask_bytes(api, version, body + b"more")
            yield f"{api} with bytes behind", version, kind(answer)
            if api_keys.is_flexible(key_of(api), version):
                answer = side.ask_bytes(api, version, body[:-1] + b"\x01\x63\x02hi")
                yield f"{api} with an unknown tagged field", version, kind(answer)


# ── ApiVersions, DescribeCluster, FindCoordinator ───────────────────────────────────────────────


@scenario
def api_versions(side: Side) -> Answers:
    """The table, as far as both have it; the client's name."""
    for version in versions("ApiVersions"):
        body = {"client_software_name": "wire", "client_software_version": "1.0"}
        answer = side.ask("ApiVersions", version, body if version >= 3 else {})
        served = {key_of(api) for api in SMALLEST}
        rows = [row for row in answer["api_keys"] if row.get("api_key", 0) in served]
        yield "table", version, {"api_keys": rows}
        for field in ("supported_features", "finalized_features"):
            levels = [row for row in answer.get(field, ()) if row["name"] == "metadata.version"]
            yield field, version, levels
        if version < 3:
            continue
        for name, software in (
            ("empty", ""), ("blank", "a b"), ("dash first", "-a"), ("dash last", "a-"),
            ("inner", "a-b.c-9"), ("one letter", "a"), ("accent", "é"), ("underscore", "a_b"),
        ):  # fmt: skip
            for field in body:
                answer = side.ask("ApiVersions", version, body | {field: software})
                yield f"{field} {name}", version, answer.get("error_code", 0)


@scenario
def describe_cluster(side: Side) -> Answers:
    for version in versions("DescribeCluster"):
        yield "plain", version, side.ask("DescribeCluster", version, {})
        body = {"include_cluster_authorized_operations": True}
        yield "operations", version, side.ask("DescribeCluster", version, body)
        for endpoint in (0, 1, 2, 3, -1) if version >= 1 else ():
            answer = side.ask("DescribeCluster", version, {"endpoint_type": endpoint})
            yield f"endpoint type {endpoint}", version, answer
        if version >= 2:
            answer = side.ask("DescribeCluster", version, {"include_fenced_brokers": True})
            yield "fenced too", version, answer


@scenario
def find_coordinator(side: Side) -> Answers:
    def ask(version: int, kind: int, *keys: str) -> Any:
        if version >= 4:
            body: dict[str, Any] = {"key_type": kind, "coordinator_keys": list(keys)}
        else:
            body = {"key": keys[0]} | ({"key_type": kind} if version else {})
        return side.ask("FindCoordinator", version, body)

    while ask(0, 0, "group").get("error_code"):  # the offsets topic is made on the first one
        pass
    for version in versions("FindCoordinator"):
        yield "group", version, ask(version, 0, "group")
        yield "group without a name", version, ask(version, 0, "")
        if version >= 1:
            for key_type in (3, -1, 127):
                yield f"key type {key_type}", version, ask(version, key_type, "x")
            yield "share", version, ask(version, 2, "x")
            yield (
                "share, a key of three parts",
                version,
                ask(version, 2, "group:AAAAAAAAAAAAAAAAAAAAAQ:0"),
            )
        if version >= 4:
            yield "no keys", version, ask(version, 0)
            yield "three keys", version, ask(version, 0, "a", "b", "c")
            yield "one key twice", version, ask(version, 0, "a", "a")


# ── Metadata ────────────────────────────────────────────────────────────────────────────────────


@scenario
def metadata(side: Side) -> Answers:
    name = side.topic("one", 2)
    topic_id = side.topics[name]
    other = side.topic("two")

    def ask(version: int, topics: Any, **more: Any) -> Any:
        body = {"topics": topics} | more
        if version >= 4:
            body.setdefault("allow_auto_topic_creation", False)
        answer = side.ask("Metadata", version, body)
        if isinstance(answer, dict):
            rows = answer.get("topics", [])
            rows.sort(key=lambda row: (row.get("name") or "", row.get("topic_id", "")))
        return answer

    def own(answer: dict[str, Any]) -> dict[str, Any]:
        """Without the topics of others on the same broker."""
        known = ("one", "two")
        return answer | {"topics": [row for row in answer["topics"] if row["name"] in known]}

    def named(name: str | None, topic_id: bytes = ZERO) -> dict[str, Any]:
        return {"name": name, "topic_id": topic_id}

    for version in versions("Metadata"):
        yield "one topic", version, ask(version, [named(name)])
        yield "one topic twice", version, ask(version, [named(name), named(name)])
        everything = ask(version, None if version else [])
        yield "all topics", version, own(everything)
        if version:
            yield "no topics", version, ask(version, [])
        if version >= 4:
            unknown = side.name("unknown")
            yield "unknown topic", version, ask(version, [named(unknown)])
            yield "known and unknown", version, ask(version, [named(unknown), named(name)])
        for word, bad in BAD_NAMES.items():
            yield f"name {word}", version, ask(version, [named(bad)])
            if version >= 4:
                answer = ask(version, [named(bad)], allow_auto_topic_creation=True)
                yield f"name {word}, to be created", version, answer
        if version >= 8:
            answer = ask(version, [named(name)], include_topic_authorized_operations=True)
            yield "topic operations", version, answer
        if 8 <= version <= 10:
            answer = ask(version, [named(name)], include_cluster_authorized_operations=True)
            yield "cluster operations", version, answer
        if version >= 10:
            yield "null name", version, ask(version, [named(None)])
            yield "id alone", version, ask(version, [named(None, topic_id)])
            yield "unknown id", version, ask(version, [named(None, STRANGER)])
            yield "name and its id", version, ask(version, [named(name, topic_id)])
            yield "name and another's id", version, ask(version, [named(other, topic_id)])
            yield "name and an unknown id", version, ask(version, [named(name, STRANGER)])
            yield (
                "unknown name and an id",
                version,
                ask(version, [named(side.name("unknown"), topic_id)]),
            )
            yield (
                "one by name, one by id",
                version,
                ask(version, [named(other), named(None, topic_id)]),
            )
            yield (
                "same topic by name and by id",
                version,
                ask(version, [named(name), named(None, topic_id)]),
            )
            yield "id twice", version, ask(version, [named(None, topic_id)] * 2)


@scenario
def metadata_creates(side: Side) -> Answers:
    """A topic that somebody uses is made, with the broker's defaults."""
    for version in versions("Metadata"):
        name = side.name(f"made-{version}")
        body = {"topics": [{"name": name, "topic_id": ZERO}]}
        answer = {}
        for _ in range(500):
            answer = side.ask("Metadata", version, body)
            if not answer["topics"][0].get("error_code"):
                break
        side.learn(name)
        answer = side.ask("Metadata", version, body)
        answer["topics"][0]["name"] = "made"
        if "topic_id" in answer["topics"][0]:
            answer["topics"][0]["topic_id"] = "its id"
        yield "made on use", version, answer
        if version >= 4:
            body = {"topics": [{"name": side.name(f"not-{version}"), "topic_id": ZERO}]}
            body["allow_auto_topic_creation"] = False
            for _ in range(2):
                answer = side.ask("Metadata", version, body)
            answer["topics"][0]["name"] = "not made"
            yield "not made where it is not wanted", version, answer


@scenario
def describe_topic_partitions(side: Side) -> Answers:
    names = {"a": side.topic("a", 3), "b": side.topic("b"), "c": side.topic("c", 2)}

    def ask(topics: str, limit: int = 100, cursor: tuple[str, int] | None = None) -> Any:
        body = {
            "topics": [{"name": names.get(short, side.name(short))} for short in topics],
            "response_partition_limit": limit,
            "cursor": cursor and {"topic_name": side.name(cursor[0]), "partition_index": cursor[1]},
        }
        return side.ask("DescribeTopicPartitions", 0, body)

    yield "three topics", 0, ask("cab")
    yield "one twice", 0, ask("bb")
    yield "unknown", 0, ask("xb")
    for limit in (-1, 0, 1, 2, 3, 4, 5, 6, 2000, 3000):
        yield f"limit {limit}", 0, ask("abc", limit)
    yield "limit and unknown behind", 0, ask("bx", 1)
    yield "limit and unknown before", 0, ask("ax", 3)
    for cursor in (
        ("a", 0), ("a", 1), ("a", 2), ("a", 3), ("a", 9), ("a", -1), ("b", 0), ("bb", 0), ("c", 1),
        ("d", 0), ("x", 0), ("0", 5),
    ):  # fmt: skip
        yield f"cursor {cursor[0]} {cursor[1]}", 0, ask("abc", 2, cursor)
    for word, bad in BAD_NAMES.items():
        body = {"topics": [{"name": bad}], "response_partition_limit": 2}
        yield f"name {word}", 0, side.ask("DescribeTopicPartitions", 0, body)
    body = {"topics": [], "response_partition_limit": 2000}
    answer = side.ask("DescribeTopicPartitions", 0, body)
    own = [row for row in answer["topics"] if row["name"] in ("a", "b", "c")]
    yield "all topics", 0, {"topics": own}


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


# ── Fetch ───────────────────────────────────────────────────────────────────────────────────────


@scenario
def fetch(side: Side) -> Answers:
    """Offsets, limits, epochs, isolation and topics."""
    topic = side.topic("fetch", 4)
    topic_id = side.topics[topic]
    for index, count in ((0, 3), (2, 1)):
        for which in range(count):
            values = [b"%d-%d-%d" % (index, which, value) + bytes(200) for value in range(10)]
            batch = batch_of(*values, timestamp=TIME + which)
            side.ask("Produce", 9, produce_body(topic, batch, index))

    def ask(version: int, *partitions: dict[str, Any] | int, **more: Any) -> Any:
        body = fetch_body(topic, 0)
        row = body["topics"][0]["partitions"][0]
        if version < 12:
            row.pop("last_fetched_epoch")
        rows = [
            row | (asked if isinstance(asked, dict) else {"fetch_offset": asked})
            for asked in partitions
        ]
        body["topics"][0]["partitions"] = rows
        if version < 9:
            for row in rows:
                row.pop("current_leader_epoch", None)
        if version < 7:
            body.pop("session_id"), body.pop("session_epoch")
        if version >= 15:
            body.pop("replica_id")
        topics = more.pop("topics", None)
        body = by_id(body, topic_id, version)
        body |= more
        if topics is not None:
            body["topics"] = topics
        return side.ask("Fetch", version, body)

    for version in versions("Fetch"):
        for name, offset in (
            ("start", 0), ("second batch", 10), ("mid batch", 15), ("last", 29), ("end", 30),
            ("behind the end", 31), ("negative", -1), ("far", 2**62),
        ):  # fmt: skip
            yield f"offset {name}", version, ask(version, offset)
        yield "empty partition", version, ask(version, {"partition": 1})
        for index in (4, -1):
            yield f"partition {index}", version, ask(version, {"partition": index})
        yield "max bytes 1", version, ask(version, 0, max_bytes=1)
        yield "max bytes 0", version, ask(version, 0, max_bytes=0)
        yield "max bytes negative", version, ask(version, 0, max_bytes=-1)
        for limit in (-1, 0, 1, 100, 3000, 5000):
            answer = ask(version, {"partition_max_bytes": limit})
            yield f"partition max bytes {limit}", version, answer
        yield "two partitions", version, ask(version, {"partition": 0}, {"partition": 2})
        yield (
            "two partitions, max bytes 1",
            version,
            ask(version, {"partition": 2}, {"partition": 0}, max_bytes=1),
        )
        yield (
            "two partitions, max bytes 4000",
            version,
            ask(version, {"partition": 2}, {"partition": 0}, max_bytes=4000),
        )
        yield (
            "empty partition first, max bytes 1",
            version,
            ask(version, {"partition": 1}, {"partition": 0}, max_bytes=1),
        )
        yield (
            "two partitions, first with max bytes 1",
            version,
            ask(version, {"partition_max_bytes": 1}, {"partition": 2, "partition_max_bytes": 1}),
        )
        yield "one partition twice", version, ask(version, 0, 10)
        yield "bad beside good", version, ask(version, 31, {"partition": 2}, {"partition": 9})
        yield (
            "long wait, error of the log",
            version,
            ask(version, 31, max_wait_ms=20_000, min_bytes=1 << 20),
        )
        yield (
            "long wait, nothing valid",
            version,
            ask(version, {"partition": 9}, max_wait_ms=20_000, min_bytes=1 << 20),
        )
        yield "long wait, min bytes 0", version, ask(version, 30, max_wait_ms=20_000, min_bytes=0)
        yield "long wait, enough bytes", version, ask(version, 0, max_wait_ms=20_000, min_bytes=100)
        yield (
            "short wait, too few bytes",
            version,
            ask(version, 0, max_wait_ms=20, min_bytes=1 << 20),
        )
        yield (
            "short wait, unknown beside valid",
            version,
            ask(version, {"partition": 9}, 30, max_wait_ms=20),
        )
        yield "wait negative", version, ask(version, 30, max_wait_ms=-1)
        yield "min bytes negative", version, ask(version, 30, max_wait_ms=20, min_bytes=-1)
        yield "no topics", version, ask(version, topics=[])
        yield "no partitions", version, ask(version)
        for isolation in (1, 2, -1):
            answer = ask(version, 0, isolation_level=isolation)
            yield f"isolation {isolation}", version, answer
        unknown = fetch_body(side.name("unknown"), 0)["topics"]
        if version < 12:
            unknown[0]["partitions"][0].pop("last_fetched_epoch")
        if version < 9:
            unknown[0]["partitions"][0].pop("current_leader_epoch")
        if version >= 13:
            by_id({"topics": unknown}, STRANGER, version)
        yield "unknown topic", version, ask(version, topics=unknown)
        if version >= 13:
            zero = [unknown[0] | {"topic_id": ZERO}]
            yield "zero id", version, ask(version, topics=zero)
        if version >= 9:
            for epoch in (0, 5, -2):
                answer = ask(version, {"current_leader_epoch": epoch})
                yield f"leader epoch {epoch}", version, answer
            answer = ask(version, {"current_leader_epoch": 5, "fetch_offset": 99})
            yield "leader epoch 5, behind the end", version, answer
        if version >= 12:
            for epoch, offset in ((0, 10), (0, 30), (0, 31), (3, 10), (3, 31), (-2, 0)):
                answer = ask(version, {"last_fetched_epoch": epoch, "fetch_offset": offset})
                yield f"last fetched epoch {epoch} at {offset}", version, answer
        if version >= 7:
            for session, epoch in ((123, 0), (123, -1), (123, 1), (0, 1), (123, -5), (0, -5)):
                answer = ask(version, 0, session_id=session, session_epoch=epoch)
                yield f"session {session} epoch {epoch}", version, answer
            yield "session asked for", version, ask(version, 0, session_id=0, session_epoch=0)
        for replica in (-2, 99):
            named = {"replica_id": replica}
            if version >= 15:
                named = {"replica_state": {"replica_id": replica, "replica_epoch": -1}}
            yield f"replica {replica}", version, ask(version, 0, **named)
        if version >= 11:
            yield "rack", version, ask(version, 0, rack_id="somewhere")


@scenario
def fetch_sessions(side: Side) -> Answers:
    """One connection after the other: what a session's client is told, and when it has none."""
    topic = side.topic("sessions", 3)
    for index, count in ((0, 3), (2, 1)):
        for which in range(count):
            values = [b"%d-%d-%d" % (index, which, value) for value in range(10)]
            batch = batch_of(*values, timestamp=TIME + which)
            side.ask("Produce", 9, produce_body(topic, batch, index))
    for version in range(7, 19):
        with RawClient(side.address) as client:
            talk = FetchTalk(side, client, version, topic)
            ask = talk.ask
            yield "full", version, ask({0: 30, 1: 0, 2: 0})
            yield "records not taken", version, ask()
            yield "records taken", version, ask({2: 10})
            yield "nothing new", version, ask()
            yield "nothing new, waiting", version, ask(max_wait_ms=20)
            for epoch in (talk.epoch - 1, talk.epoch + 1, -2, 2**31 - 1):
                name = f"epoch {epoch}"
                yield name, version, ask(epoch=epoch)
            yield "after wrong epochs", version, ask()
            yield "stranger", version, ask(session=talk.session ^ 1 << 20)
            yield "behind the end", version, ask({0: 99})
            yield "still behind the end", version, ask()
            yield "back in range", version, ask({0: 30})
            yield "quiet after an error", version, ask()
            yield "unknown partition", version, ask({9: 0})
            yield "still unknown", version, ask()
            yield "forgotten", version, ask(forgotten=[9])
            yield "added and forgotten", version, ask({9: 0}, forgotten=[9])
            yield "forgotten and not there", version, ask(forgotten=[9, 7])
            yield "two with records, room for one", version, ask({2: 0, 0: 0}, max_bytes=1)
            for turn in ("second", "third", "fourth"):
                yield f"the {turn} turn", version, ask(max_bytes=1)
            yield "by name and id", version, ask(as_version=12 if version > 12 else 13)
            yield "after the other version", version, ask(max_bytes=1)
            yield "from the start again", version, ask({0: 30}, epoch=0)
            yield "with the old id", version, ask(session=talk.before)
            yield "with the new id", version, ask()
            yield "closed", version, ask({1: 0}, epoch=-1)
            yield "after its end", version, ask()
            yield "one partition", version, ask({1: 0}, epoch=0, session=0)
            yield "none left", version, ask(forgotten=[1])
            yield "after none were left", version, ask()
            yield "nothing at all", version, ask({}, epoch=0, session=0)
            yield "after nothing at all", version, ask()
            yield "only unknown ones", version, ask({7: 0}, epoch=0, session=0)
            yield "still only unknown ones", version, ask(max_wait_ms=20_000)
    for version in (12, 13):
        name = side.topic(f"sessions-gone-{version}")
        with RawClient(side.address) as client:
            talk = FetchTalk(side, client, version, name)
            yield "full, of a topic that goes", version, talk.ask({0: 0})
            body = {"timeout_ms": 5000, "topics": [{"name": name}]}
            client.ask("DeleteTopics", 6, body)
            yield "gone", version, talk.until(lambda row: row["error_code"] != 0)
            if version < 13:
                client.create_topic(name)
                yield "made anew", version, talk.until(lambda row: row["error_code"] == 0)
                yield "quiet again", version, talk.ask()
            else:
                client.create_topic(name)
                # UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID
                answer = talk.until(lambda row: row["error_code"] in (100, 103))
                yield "another of its name", version, answer


class FetchTalk:
    """A client with a fetch session about one topic."""

    def __init__(self, side: Side, client: RawClient, version: int, topic: str) -> None:
        self.side = side
        self.client = client
        self.version = version
        self.topic = topic
        self.session = self.before = self.epoch = 0

    def ask(
        self,
        offsets: dict[int, int] | None = None,
        *,
        epoch: int | None = None,
        session: int | None = None,
        forgotten: Any = (),
        as_version: int = 0,
        **more: Any,
    ) -> Any:
        return self.side.comparable(
            "Fetch", as_version or self.version,
            self.answer(offsets or {}, epoch, session, forgotten, as_version, more),
        )  # fmt: skip

    def answer(
        self,
        offsets: dict[int, int],
        epoch: int | None,
        session: int | None,
        forgotten: Any,
        as_version: int,
        more: dict[str, Any],
    ) -> Any:
        version = as_version or self.version
        body = fetch_body(self.topic, 0)
        row = body["topics"][0]["partitions"][0]
        if version < 12:
            row.pop("last_fetched_epoch")
        if version < 9:
            row.pop("current_leader_epoch")
        if version >= 15:
            body.pop("replica_id")
        name = (
            {"topic_id": self.side.topics[self.topic]} if version >= 13 else {"topic": self.topic}
        )
        rows = [row | {"partition": index, "fetch_offset": at} for index, at in offsets.items()]
        body |= {
            "topics": [name | {"partitions": rows}] if rows else [],
            "forgotten_topics_data": [name | {"partitions": list(forgotten)}] if forgotten else [],
            "session_id": self.session if session is None else session,
            "session_epoch": self.epoch if epoch is None else epoch,
        }
        answer = self.client.ask("Fetch", version, body | more)
        if epoch == 0 or not self.session:
            self.before, self.session, self.epoch = self.session, answer["session_id"], 1
        elif answer["error_code"] == 0 and epoch is None:
            self.epoch += 1
        return answer

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> Any:
        """Ask until the answer has a partition that is as expected."""
        deadline = clock.monotonic() + 20
        while clock.monotonic() < deadline:
            answer = self.answer({}, None, None, (), 0, {})
            rows = [row for topic in answer["responses"] for row in topic["partitions"]]
            if rows and condition(rows[0]) and rows[0]["error_code"] != 6:
                break
        return self.side.comparable("Fetch", self.version, answer)


# ── ListOffsets, OffsetForLeaderEpoch ───────────────────────────────────────────────────────────


@scenario
def list_offsets(side: Side) -> Answers:
    topic = side.topic("offsets", 3)
    for step in range(3):
        batch = encode_batch(
            [(TIME + 100 * step + 10 * which, None, b"v", []) for which in range(5)]
        )
        side.ask("Produce", 9, produce_body(topic, batch, 0))
    falling = encode_batch([(TIME - 10 * which, None, b"v", []) for which in range(5)])
    side.ask("Produce", 9, produce_body(topic, falling, 2))

    def ask(version: int, *rows: dict[str, Any], name: str = topic, **more: Any) -> Any:
        asked = [{"partition_index": 0, "timestamp": -1} | row for row in rows]
        if version < 4:
            for row in asked:
                row.pop("current_leader_epoch", None)
        body = {"replica_id": -1, "topics": [{"name": name, "partitions": asked}]} | more
        return side.ask("ListOffsets", version, body)

    for version in versions("ListOffsets"):
        for timestamp in (-1, -2, -3, -4, -5, -6, -7, -8, -(2**63)):
            yield f"timestamp {timestamp}", version, ask(version, {"timestamp": timestamp})
        for timestamp in (-1, -2, -3, -4, -5, -6):
            answer = ask(version, {"timestamp": timestamp, "partition_index": 1})
            yield f"timestamp {timestamp} of an empty log", version, answer
        for name, timestamp in (
            ("0", 0), ("the first's", TIME), ("in the first batch", TIME + 15),
            ("in the second batch", TIME + 110), ("between batches", TIME + 50),
            ("the last's", TIME + 240), ("after the last", TIME + 241), ("most", 2**63 - 1),
        ):  # fmt: skip
            yield f"timestamp {name}", version, ask(version, {"timestamp": timestamp})
        answer = ask(version, {"timestamp": TIME - 25, "partition_index": 2})
        yield "timestamp in a falling batch", version, answer
        answer = ask(version, {"timestamp": -3, "partition_index": 2})
        yield "max timestamp of a falling batch", version, answer
        answer = ask(version, {"timestamp": TIME, "partition_index": 1})
        yield "timestamp in an empty log", version, answer
        for index in (3, -1):
            yield f"partition {index}", version, ask(version, {"partition_index": index})
        yield "unknown topic", version, ask(version, {}, name=side.name("unknown"))
        yield "name empty", version, ask(version, {}, name="")
        yield (
            "one partition twice",
            version,
            ask(version, {}, {"timestamp": -2}, {"partition_index": 1}),
        )
        yield "no topics", version, ask(version, topics=[])
        yield "no partitions", version, ask(version)
        for replica in (-2, -3, 1, 99):
            yield f"replica {replica}", version, ask(version, {}, replica_id=replica)
        for isolation in (1, 2, -1) if version >= 2 else ():
            answer = ask(version, {}, isolation_level=isolation)
            yield f"isolation {isolation}", version, answer
        for epoch in (0, 5, -2) if version >= 4 else ():
            yield f"leader epoch {epoch}", version, ask(version, {"current_leader_epoch": epoch})
        if version >= 10:
            yield "timeout negative", version, ask(version, {}, timeout_ms=-1)
        row = {"partition_index": 0, "timestamp": -1}
        twice = [{"name": topic, "partitions": [row]}, {"name": topic, "partitions": [row]}]
        yield "one topic twice", version, ask(version, topics=twice)


@scenario
def offset_for_leader_epoch(side: Side) -> Answers:
    topic = side.topic("epochs", 2)
    side.ask("Produce", 9, produce_body(topic, GOOD))

    def ask(version: int, name: str = topic, replica: int = -1, **row: int) -> Any:
        asked = {"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1} | row
        body: dict[str, Any] = {"topics": [{"topic": name, "partitions": [asked]}]}
        if version >= 3:
            body["replica_id"] = replica
        return side.ask("OffsetForLeaderEpoch", version, body)

    for version in versions("OffsetForLeaderEpoch"):
        for epoch in (0, 1, 5, -1, -2):
            yield f"epoch {epoch}", version, ask(version, leader_epoch=epoch)
            answer = ask(version, leader_epoch=epoch, partition=1)
            yield f"epoch {epoch} of an empty log", version, answer
        for epoch in (0, 5, -2):
            answer = ask(version, current_leader_epoch=epoch)
            yield f"leader epoch {epoch}", version, answer
        for index in (2, -1):
            yield f"partition {index}", version, ask(version, partition=index)
        yield "unknown topic", version, ask(version, side.name("unknown"))
        yield "name empty", version, ask(version, "")
        for replica in (-2, 1, 99) if version >= 3 else ():
            yield f"replica {replica}", version, ask(version, replica=replica)
        yield "no topics", version, side.ask("OffsetForLeaderEpoch", version, {})
        row = {"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1}
        for word, rows in (("no partitions", []), ("one partition twice", [row, row])):
            body = {"topics": [{"topic": topic, "partitions": rows}]}
            yield word, version, side.ask("OffsetForLeaderEpoch", version, body)
        body = {"topics": [{"topic": topic, "partitions": [row]}] * 2}
        yield "one topic twice", version, side.ask("OffsetForLeaderEpoch", version, body)


# ── topics made, grown and deleted ──────────────────────────────────────────────────────────────


def creatable(name: str, partitions: int = 1, factor: int = 1, **more: Any) -> dict[str, Any]:
    row = {"name": name, "num_partitions": partitions, "replication_factor": factor}
    if "configs" in more:
        more["configs"] = [{"name": key, "value": value} for key, value in more["configs"].items()]
    if "assignments" in more:
        more["assignments"] = [
            {"partition_index": index, "broker_ids": brokers}
            for index, brokers in more["assignments"]
        ]
    return row | more


@scenario
def create_topics(side: Side) -> Answers:
    there = side.topic("there")

    def ask(version: int, *topics: dict[str, Any], is_dry: bool = True) -> Any:
        body = {"topics": list(topics), "timeout_ms": 20_000, "validate_only": is_dry}
        answer = side.ask("CreateTopics", version, body)
        if isinstance(answer, dict):
            answer.get("topics", []).sort(key=lambda row: row.get("name", ""))
            for row in answer.get("topics", []):
                if "topic_id" in row:
                    row["topic_id"] = "its id"
                settings = row.get("configs")
                if settings:
                    wanted = ("cleanup.policy", "retention.ms", "segment.bytes")
                    row["configs"] = [each for each in settings if each["name"] in wanted]
        return answer

    while side.ask("FindCoordinator", 0, {"key": "group"}).get("error_code"):
        pass  # the offsets topic is there then

    def hand(*rows: tuple[int, list[int]], count: int = -1, factor: int = -1) -> dict[str, Any]:
        return creatable(side.name("hand"), count, factor, assignments=list(rows))

    new = side.name("new")
    for version in versions("CreateTopics"):
        yield "dry run", version, ask(version, creatable(new, 3))
        yield "defaults", version, ask(version, creatable(new, -1, -1))
        yield "there already", version, ask(version, creatable(there))
        for count in (0, -2):
            yield f"{count} partitions", version, ask(version, creatable(new, count))
        for factor in (0, -2, 2, 32767):
            yield f"replication factor {factor}", version, ask(version, creatable(new, 1, factor))
        yield "too many partitions", version, ask(version, creatable(new, 10_001))
        for word, bad in BAD_NAMES.items():
            yield f"name {word}", version, ask(version, creatable(bad))
        yield "name of 249", version, ask(version, creatable("y" * 249))
        for name in ("__cluster_metadata", "__consumer_offsets"):
            yield f"name {name}", version, ask(version, creatable(name))
        collides = side.name("there").replace("-", "-")
        yield "one twice", version, ask(version, creatable(new), creatable(new, 2))
        yield (
            "good and bad",
            version,
            ask(version, creatable(new), creatable("a b"), creatable(collides)),
        )
        yield "no topics", version, ask(version)
        for word, settings in (
            ("known", {"retention.ms": "5000", "cleanup.policy": "compact"}),
            ("unknown", {"no.such.setting": "1"}), ("bad value", {"retention.ms": "soon"}),
            ("out of bounds", {"segment.bytes": "3"}), ("bad choice", {"cleanup.policy": "keep"}),
            ("null", {"retention.ms": None}), ("removed", {"message.format.version": "3.0"}),
            ("several bad", {"retention.ms": "soon", "no.such": "x"}), ("empty name", {"": "x"}),
            ("blank around", {"retention.ms": " 5000 "}),
        ):  # fmt: skip
            answer = ask(version, creatable(new, configs=settings))
            yield f"setting {word}", version, answer
        for word, rows in (
            ("one", [(0, [1])]), ("two", [(0, [1]), (1, [1])]), ("unknown broker", [(0, [7])]),
            ("negative broker", [(0, [-1])]), ("broker twice", [(0, [1, 1])]),
            ("no broker", [(0, [])]),
            ("not from 0", [(1, [1])]), ("partition twice", [(0, [1]), (0, [1])]),
            ("gap", [(0, [1]), (2, [1])]), ("negative partition", [(-1, [1])]),
        ):  # fmt: skip
            yield f"by hand, {word}", version, ask(version, hand(*rows))
        yield "by hand with a count", version, ask(version, hand((0, [1]), count=1))
        yield "by hand with a factor", version, ask(version, hand((0, [1]), factor=1))
        made = side.name(f"made-{version}")
        answer = ask(version, creatable(made, 2, configs={"retention.ms": "1234"}), is_dry=False)
        answer["topics"][0]["name"] = "made"
        yield "made", version, answer
        body = {"topics": [{"name": made}]}
        found = side.ask("Metadata", 4, body | {"allow_auto_topic_creation": False})
        found["topics"][0]["name"] = "made"
        yield "made, then its metadata", version, found["topics"]
    side.topic("a.b")
    yield "collides", 7, ask(7, creatable(side.name("a_b")))


@scenario
def delete_topics(side: Side) -> Answers:
    def ask(version: int, *topics: str | bytes | tuple[str | None, bytes]) -> Any:
        if version >= 6:
            rows = []
            for topic in topics:
                name, topic_id = topic if isinstance(topic, tuple) else (topic, ZERO)
                rows.append({"name": name, "topic_id": topic_id})
            body: dict[str, Any] = {"topics": rows}
        else:
            body = {"topic_names": list(topics)}
        answer = side.ask("DeleteTopics", version, body | {"timeout_ms": 20_000})
        if isinstance(answer, dict):
            rows = answer.get("responses", [])
            rows.sort(key=lambda row: (row.get("name") or "", row.get("error_code", 0)))
            for row in rows:
                if (row.get("name") or "").startswith("deleted"):
                    row["name"] = "deleted"
                if row.get("topic_id", "").startswith("id of deleted"):
                    row["topic_id"] = "its id"
        return answer

    for version in versions("DeleteTopics"):
        name = side.topic(f"deleted-{version}")
        yield "good", version, ask(version, name)
        yield "deleted already", version, ask(version, name)
        body = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
        for _ in range(500):  # Kafka's brokers hear of it a moment later
            found = side.ask("Metadata", 4, body)["topics"]
            answer = side.ask("Produce", 9, produce_body(name, GOOD))
            row = answer["responses"][0]["partition_responses"][0]
            if found[0].get("error_code") and row.get("error_code") == 3:
                break
        found[0]["name"] = answer["responses"][0]["name"] = "deleted"
        yield "then its metadata", version, found
        yield "then Produce", version, answer
        yield "unknown", version, ask(version, side.name("unknown"))
        for word, bad in BAD_NAMES.items():
            yield f"name {word}", version, ask(version, bad)
        yield "no topics", version, ask(version)
        twice = side.topic(f"deleted-twice-{version}")
        yield "one twice", version, ask(version, twice, twice)
        yield "one twice and another", version, ask(version, "x", "x", side.name("unknown"))
        if version >= 6:
            by_id = side.topic("deleted-by-id")
            topic_id = side.topics[by_id]
            yield "name and id", version, ask(version, (by_id, topic_id))
            yield "neither", version, ask(version, (None, ZERO))
            yield "unknown id", version, ask(version, (None, STRANGER))
            yield "by name and by id", version, ask(version, by_id, (None, topic_id))
            yield "by id twice", version, ask(version, (None, topic_id), (None, topic_id))
            yield "by id", version, ask(version, (None, topic_id))
            yield "by id again", version, ask(version, (None, topic_id))


@scenario
def create_partitions(side: Side) -> Answers:
    topic = side.topic("grow", 2)

    def ask(version: int, *rows: tuple[str, int, Any], is_dry: bool = True) -> Any:
        topics = [
            {
                "name": name,
                "count": count,
                "assignments": by_hand and [{"broker_ids": brokers} for brokers in by_hand],
            }
            for name, count, by_hand in rows
        ]
        body = {"topics": topics, "timeout_ms": 20_000, "validate_only": is_dry}
        answer = side.ask("CreatePartitions", version, body)
        if isinstance(answer, dict):
            answer.get("results", []).sort(key=lambda row: row.get("name", ""))
        return answer

    for version in versions("CreatePartitions"):
        for count in (3, 2, 1, 0, -1, 10_003):
            yield f"count {count}", version, ask(version, (topic, count, None))
        yield "unknown", version, ask(version, (side.name("unknown"), 3, None))
        for word, bad in BAD_NAMES.items():
            yield f"name {word}", version, ask(version, (bad, 3, None))
        yield "one twice", version, ask(version, (topic, 3, None), (topic, 4, None))
        yield "no topics", version, ask(version)
        for word, by_hand in (
            ("right", [[1]]), ("too many", [[1], [1]]), ("too few", []), ("unknown broker", [[9]]),
            ("broker twice", [[1, 1]]), ("no broker", [[]]),
        ):  # fmt: skip
            yield f"by hand, {word}", version, ask(version, (topic, 3, by_hand))
        grown = side.topic(f"grown-{version}")
        yield "grown", version, _named(ask(version, (grown, 3, None), is_dry=False), "results")
        body = {"topics": [{"name": grown}], "allow_auto_topic_creation": False}
        yield (
            "then its metadata",
            version,
            _named(side.ask("Metadata", 4, body), "topics")["topics"],
        )


def _named(answer: dict[str, Any], rows: str) -> dict[str, Any]:
    """The same name for all versions."""
    answer[rows][0]["name"] = "it"
    return answer


# ── settings ────────────────────────────────────────────────────────────────────────────────────

TOPIC = 2
BROKER = 4


@scenario
def describe_configs(side: Side) -> Answers:
    topic = side.topic("described", retention_ms="77000", cleanup_policy="compact")

    def ask(version: int, *rows: tuple[int, str, Any], **more: Any) -> Any:
        resources = [
            {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
            for kind, name, keys in rows
        ]
        answer = side.ask("DescribeConfigs", version, {"resources": resources} | more)
        for result in answer.get("results", ()) if isinstance(answer, dict) else ():
            for row in result.get("configs", ()):
                if "documentation" in row:
                    row["documentation"] = "some text"
            result.get("configs", []).sort(key=lambda row: row["name"])
        return answer

    keys = ["retention.ms", "cleanup.policy", "segment.bytes", "compression.type"]
    for version in versions("DescribeConfigs"):
        yield "topic", version, ask(version, (TOPIC, topic, keys))
        yield (
            "topic with synonyms",
            version,
            ask(version, (TOPIC, topic, keys), include_synonyms=True),
        )
        if version >= 3:
            yield (
                "topic with texts",
                version,
                ask(version, (TOPIC, topic, keys), include_documentation=True),
            )
        yield (
            "topic, unknown key",
            version,
            ask(version, (TOPIC, topic, ["no.such", "retention.ms"])),
        )
        yield "topic, a key twice", version, ask(version, (TOPIC, topic, ["retention.ms"] * 2))
        yield "unknown topic", version, ask(version, (TOPIC, side.name("unknown"), None))
        for word, bad in BAD_NAMES.items():
            yield f"topic name {word}", version, ask(version, (TOPIC, bad, None))
        broker_keys = ["node.id", "num.partitions", "log.retention.ms", "message.max.bytes"]
        yield "broker", version, ask(version, (BROKER, "1", broker_keys))
        yield (
            "broker with synonyms",
            version,
            ask(version, (BROKER, "1", broker_keys), include_synonyms=True),
        )
        yield "another broker", version, ask(version, (BROKER, "9", broker_keys))
        yield "broker x", version, ask(version, (BROKER, "x", broker_keys))
        yield "all brokers", version, ask(version, (BROKER, "", ["message.max.bytes"]))
        for kind in (0, 1, 3, 9, -1, 127):
            yield f"resource type {kind}", version, ask(version, (kind, "x", None))
        yield "one twice", version, ask(version, (TOPIC, topic, keys), (TOPIC, topic, keys[:1]))
        yield "no resources", version, ask(version)
    answer = ask(4, (TOPIC, topic, None), include_synonyms=True)
    yield "all settings of a topic", 4, answer
    answer = ask(4, (TOPIC, topic, []), include_synonyms=True)
    yield "no keys: names", 4, [row["name"] for row in answer["results"][0].get("configs", ())]


@scenario
def incremental_alter_configs(side: Side) -> Answers:
    topic = side.topic("altered")

    def ask(
        version: int,
        *rows: tuple[int, str, list[tuple[str, int, str | None]]],
        is_dry: bool = False,
    ) -> Any:
        resources = [
            {
                "resource_type": kind,
                "resource_name": name,
                "configs": [
                    {"name": key, "config_operation": operation, "value": value}
                    for key, operation, value in configs
                ],
            }
            for kind, name, configs in rows
        ]
        body = {"resources": resources, "validate_only": is_dry}
        answer = side.ask("IncrementalAlterConfigs", version, body)
        if isinstance(answer, dict):
            answer.get("responses", []).sort(key=str)
        return answer

    def now(key: str) -> Any:
        resource = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": [key]}
        answer = side.ask("DescribeConfigs", 4, {"resources": [resource]})
        return answer["results"][0]["configs"]

    for version in versions("IncrementalAlterConfigs"):
        for word, key, operation, value in (
            ("set", "retention.ms", 0, "5000"), ("set again", "retention.ms", 0, "5000"),
            ("delete", "retention.ms", 1, None), ("delete unset", "retention.ms", 1, None),
            ("delete with a value", "retention.ms", 1, "1"),
            ("append", "cleanup.policy", 2, "compact"),
            ("append again", "cleanup.policy", 2, "compact"),
            ("subtract", "cleanup.policy", 3, "delete"),
            ("subtract what is not there", "cleanup.policy", 3, "delete"),
            ("append to a number", "retention.ms", 2, "5"), ("set null", "retention.ms", 0, None),
            ("append null", "cleanup.policy", 2, None),
            ("unknown operation", "retention.ms", 4, "5"),
            ("negative operation", "retention.ms", -1, "5"), ("unknown key", "no.such", 0, "5"),
            ("bad value", "retention.ms", 0, "soon"), ("out of bounds", "segment.bytes", 0, "1"),
            ("bad choice", "cleanup.policy", 0, "keep"), ("empty key", "", 0, "x"),
            ("append unknown key", "no.such", 2, "5"),
        ):  # fmt: skip
            yield word, version, ask(version, (TOPIC, topic, [(key, operation, value)]))
            if operation >= 0 and word[:3] in ("set", "del", "app", "sub") and "." in key:
                yield f"{word}: after", version, now(key) if key != "no.such" else None
        ask(version, (TOPIC, topic, [("cleanup.policy", 1, None)]))
        ask(version, (TOPIC, topic, [("retention.ms", 1, None)]))
        yield (
            "one key twice",
            version,
            ask(version, (TOPIC, topic, [("retention.ms", 0, "1"), ("retention.ms", 1, None)])),
        )
        yield (
            "one resource twice",
            version,
            ask(
                version,
                (TOPIC, topic, [("retention.ms", 0, "1")]),
                (TOPIC, topic, [("segment.ms", 0, "1")]),
            ),
        )
        yield (
            "dry run",
            version,
            ask(version, (TOPIC, topic, [("retention.ms", 0, "9")]), is_dry=True),
        )
        yield "dry run: after", version, now("retention.ms")
        unknown = side.name("unknown")
        yield "unknown topic", version, ask(version, (TOPIC, unknown, [("retention.ms", 0, "9")]))
        yield "unknown topic, no change", version, ask(version, (TOPIC, unknown, []))
        yield "no change", version, ask(version, (TOPIC, topic, []))
        yield "no resources", version, ask(version)
        for word, bad in BAD_NAMES.items():
            yield (
                f"topic name {word}",
                version,
                ask(version, (TOPIC, bad, [("retention.ms", 0, "9")])),
            )
        for kind in (0, 1, 3, 9, -1):
            yield f"resource type {kind}", version, ask(version, (kind, "x", [("a", 0, "b")]))
        for name in ("9", "x"):
            yield (
                f"broker {name}",
                version,
                ask(version, (BROKER, name, [("log.cleaner.threads", 0, "1")])),
            )
        for word, key, value in (
            ("static", "node.id", "3"), ("bad value", "log.retention.ms", "soon"),
            ("good, dry", "log.retention.ms", "500000"),
        ):  # fmt: skip
            answer = ask(version, (BROKER, "1", [(key, 0, value)]), is_dry=True)
            yield f"broker setting {word}", version, answer
        yield (
            "good and bad",
            version,
            ask(
                version,
                (TOPIC, topic, [("retention.ms", 0, "soon")]),
                (TOPIC, unknown, [("retention.ms", 0, "1")]),
                (BROKER, "1", []),
            ),
        )


# ── InitProducerId, DescribeLogDirs ─────────────────────────────────────────────────────────────


@scenario
def init_producer_id(side: Side) -> Answers:
    def ask(version: int, **more: Any) -> Any:
        body = {"transactional_id": None, "transaction_timeout_ms": 60_000}
        for _ in range(500):  # 14 until the first block of ids is there
            answer = side.ask("InitProducerId", version, body | more)
            if answer.get("error_code") != 14:
                break
        return answer

    for version in versions("InitProducerId"):
        yield "idempotent", version, ask(version)
        yield "timeout 0", version, ask(version, transaction_timeout_ms=0)
        yield "timeout negative", version, ask(version, transaction_timeout_ms=-1)
        yield "empty transactional id", version, ask(version, transactional_id="")
        if version >= 3:
            for producer_id, epoch in ((5, 0), (5, 3), (5, -1), (-1, 0), (-2, -2), (-2, -1)):
                answer = ask(version, producer_id=producer_id, producer_epoch=epoch)
                yield f"producer id {producer_id} epoch {epoch}", version, answer


# ── DeleteRecords, DescribeProducers ────────────────────────────────────────────────────────────


@scenario
def delete_records(side: Side) -> Answers:
    """Where logs begin, and what is read then; one partition for each version."""
    topic = side.topic("deletes", 4)
    compacted = side.topic("deletes-compacted", cleanup_policy="compact")
    both = side.topic("deletes-both", cleanup_policy="compact,delete")
    for index in range(3):
        for which in range(3):
            values = [b"%d" % value for value in range(10)]
            batch = batch_of(*values, timestamp=TIME + which)
            side.ask("Produce", 9, produce_body(topic, batch, index))
    deadline = clock.monotonic() + 20
    while clock.monotonic() < deadline:
        found = side.ask("FindCoordinator", 1, {"key": "g", "key_type": 0})
        if "error_code" not in found:
            break  # so __consumer_offsets is there

    for version in versions("DeleteRecords"):

        def ask(*rows: tuple[int, int], name: str = topic, version: int = version) -> Any:
            rows_of_one = [{"partition_index": index, "offset": offset} for index, offset in rows]
            topics = [{"name": name, "partitions": rows_of_one}]
            return side.ask("DeleteRecords", version, {"timeout_ms": 5000, "topics": topics})

        def to(offset: int, version: int = version) -> Any:
            return anywhere(ask((version, offset))["topics"][0])

        def first(timestamp: int, version: int = version) -> Any:
            row = {"partition_index": version, "timestamp": timestamp}
            body = {"replica_id": -1, "topics": [{"name": topic, "partitions": [row]}]}
            return anywhere(side.ask("ListOffsets", 11, body)["topics"][0])

        def read(offset: int, version: int = version) -> Any:
            found = side.ask("Fetch", 12, fetch_body(topic, offset, version))
            return anywhere(found["responses"][0])

        for offset in (-2, -(2**63), 31, 2**63 - 1):
            yield f"to {offset}", version, to(offset)
        for step in ("0", "15", "15 again", "5 from 15", "20", "everything"):
            yield f"to {step}", version, to(-1 if step == "everything" else int(step.split()[0]))
            for at in (0, 14, 15, 20, 30) if step in ("15", "20", "everything") else ():
                yield f"read {at} after {step}", version, read(at)
            for timestamp in (-1, -2, -3, -4, -5, -6, 0, TIME, TIME + 1, TIME + 2):
                yield f"timestamp {timestamp} after {step}", version, first(timestamp)
        yield "empty log", version, ask((3, -1))
        yield "empty log to 0", version, ask((3, 0))
        yield "empty log to 1", version, ask((3, 1))
        for index in (4, -1):
            yield f"partition {index}", version, ask((index, 0))
        yield "good beside bad", version, ask((3, 0), (9, 0), (3, 1))
        yield "unknown topic", version, ask((0, 0), name=side.name("unknown"))
        for name, bad in BAD_NAMES.items():
            yield f"name {name}", version, ask((0, 0), name=bad)
        yield "compacted", version, ask((0, 0), name=compacted)
        yield "compacted and deleted", version, ask((0, 0), name=both)
        yield "internal", version, ask((0, 0), name="__consumer_offsets")
        yield "no partitions", version, ask()
        body = {"timeout_ms": -1, "topics": []}
        yield "no topics", version, side.ask("DeleteRecords", version, body)


def anywhere(topic: dict[str, Any]) -> Any:
    """What is said of its only partition, whichever it is."""
    row = topic["partitions"][0]
    row.pop("partition_index", None)
    return row


@scenario
def describe_producers(side: Side) -> Answers:
    topic = side.topic("producers", 4)
    for index, batch in (
        (0, sequenced(0, 3, producer_id=4_000_300)),
        (0, sequenced(3, 2, producer_id=4_000_300)),
        (1, sequenced(2**31 - 1, 1, producer_id=4_000_301)),
        (2, sequenced(0, 1, producer_id=4_000_302)),
        (2, sequenced(0, 2, epoch=3, producer_id=4_000_302)),
        (3, GOOD),
    ):
        side.ask("Produce", 9, produce_body(topic, batch, index))

    def ask(name: str, *indexes: int) -> Any:
        body = {"topics": [{"name": name, "partition_indexes": list(indexes)}]}
        return side.ask("DescribeProducers", 0, body)

    yield "all", 0, ask(topic, 0, 1, 2, 3)
    side.ask("Produce", 9, produce_body(topic, sequenced(0, 2, producer_id=4_000_303), 1))
    found = ask(topic, 1)
    for row in found["topics"][0]["partitions"]:
        row["active_producers"].sort(key=lambda each: each["last_sequence"])
    yield "two of them", 0, found
    yield "one twice", 0, ask(topic, 0, 0)
    for index in (4, -1):
        yield f"partition {index}", 0, ask(topic, index)
    yield "good beside bad", 0, ask(topic, 9, 0)
    yield "unknown topic", 0, ask(side.name("unknown"), 0)
    for name, bad in BAD_NAMES.items():
        yield f"name {name}", 0, ask(bad, 0)
    yield "no partitions", 0, ask(topic)
    yield "no topics", 0, side.ask("DescribeProducers", 0, {"topics": []})
    rows = [{"name": topic, "partition_indexes": [0]}, {"name": topic, "partition_indexes": [1]}]
    yield "topic twice", 0, side.ask("DescribeProducers", 0, {"topics": rows})
    row = {"partition_index": 0, "offset": -1}
    body = {"timeout_ms": 5000, "topics": [{"name": topic, "partitions": [row]}]}
    side.ask("DeleteRecords", 2, body)
    yield "after its records", 0, ask(topic, 0)


@scenario
def describe_log_dirs(side: Side) -> Answers:
    topic = side.topic("sizes", 3)
    for index in (0, 0, 2):
        side.ask("Produce", 9, produce_body(topic, GOOD, index))

    def ask(version: int, topics: Any) -> Any:
        rows = topics and [{"topic": name, "partitions": indexes} for name, indexes in topics]
        answer = side.ask("DescribeLogDirs", version, {"topics": rows})
        for result in answer.get("results", ()):
            own = [row for row in result.get("topics", ()) if row["name"] in ("sizes", "unknown")]
            for row in own:
                row.get("partitions", []).sort(key=lambda each: each.get("partition_index", 0))
            result["topics"] = own
        return answer

    for version in versions("DescribeLogDirs"):
        yield "all", version, ask(version, None)
        yield "one topic", version, ask(version, [(topic, [0, 1, 2])])
        yield "one partition", version, ask(version, [(topic, [2])])
        yield "unknown partition", version, ask(version, [(topic, [7])])
        yield "unknown topic", version, ask(version, [(side.name("unknown"), [0])])
        yield "no topics", version, ask(version, [])
        yield "no partitions", version, ask(version, [(topic, [])])
        yield "one topic twice", version, ask(version, [(topic, [0]), (topic, [1])])
        yield "one partition twice", version, ask(version, [(topic, [0, 0])])


# ── groups of the new consumer protocol ─────────────────────────────────────────────────────────


class Talk:
    """Members of one group, whose heartbeats have ids and epochs that are made up by the case."""

    def __init__(self, side: Side, group: str, version: int) -> None:
        self.side = side
        self.group = side.name(f"{group}{version}")
        self.version = version
        body = {"key": self.group} if version == 0 else {"key_type": 0, "key": self.group}
        while side.ask("FindCoordinator", min(version, 1), body).get("error_code"):
            pass

    def beat(self, member_id: str, epoch: int, **more: Any) -> Any:
        body = {"group_id": self.group, "member_id": member_id, "member_epoch": epoch} | more
        answer = self.side.ask("ConsumerGroupHeartbeat", self.version, body)
        return in_order(answer)

    def join(self, member_id: str, *topics: str, **more: Any) -> Any:
        """With epoch 0; subscribed to the topics."""
        body = {
            "rebalance_timeout_ms": 60_000,
            "topic_partitions": [],
            "subscribed_topic_names": list(topics),
        }
        return self.beat(member_id, 0, **(body | more))

    def until(self, member_id: str, epoch: int) -> Any:
        """The first answer that brings an assignment, or an error."""
        deadline = clock.monotonic() + 20
        while True:
            answer = self.beat(member_id, epoch)
            if "assignment" in answer or "error_code" in answer or clock.monotonic() > deadline:
                return answer

    def once(self, member_id: str, epoch: int, group_epoch: int) -> Any:
        """What a heartbeat is answered once the group has come to an epoch."""

        def has_come() -> bool:
            self.beat(member_id, epoch)
            return self.described(1)["groups"][0].get("group_epoch") == group_epoch

        wait_until(has_come, f"group epoch {group_epoch}", 20)
        return self.beat(member_id, epoch)

    def owns(self, topic: str, *partitions: int) -> list[dict[str, Any]]:
        if not partitions:
            return []
        return [{"topic_id": self.side.topics[topic], "partitions": list(partitions)}]

    def described(self, version: int | None = None) -> Any:
        body = {"group_ids": [self.group]}
        version = self.version if version is None else version
        return in_order(self.side.ask("ConsumerGroupDescribe", version, body))

    def commit(self, member_id: str, epoch: int, topic: str, version: int = 9) -> Any:
        row = {"partition_index": 0, "committed_offset": 1}
        body = {
            "group_id": self.group,
            "member_id": member_id,
            "generation_id_or_member_epoch": epoch,
            "topics": [{"name": topic, "partitions": [row]}],
        }
        return self.side.ask("OffsetCommit", version, body)

    def fetch(self, member_id: str | None, epoch: int, topic: str) -> Any:
        topics = [{"name": topic, "partition_indexes": [0]}]
        group = {"group_id": self.group, "topics": topics}
        body = {"groups": [group | {"member_id": member_id, "member_epoch": epoch}]}
        return self.side.ask("OffsetFetch", 9, body)


def in_order(answer: Any) -> Any:
    """Members by id, topics by name, partitions by number; ids that the broker made are words."""
    if isinstance(answer, list):
        rows = [in_order(row) for row in answer]
        return sorted(rows, key=lambda row: str(row.get("member_id", row.get("topic_id", "")))
                      if isinstance(row, dict) else row)  # fmt: skip
    if isinstance(answer, dict):
        return {key: in_order(value) for key, value in answer.items()}
    return answer


@scenario
def consumer_group_heartbeat(side: Side) -> Answers:
    """Requests that are refused, and how a member comes, stays and goes."""
    topic = side.topic("read", 4)
    for version in versions("ConsumerGroupHeartbeat"):
        talk = Talk(side, "heartbeat", version)
        joining = {"rebalance_timeout_ms": 1, "topic_partitions": [], "subscribed_topic_names": []}
        for name, body in {
            "group id empty": {"group_id": ""},
            "group id blank": {"group_id": " \t"},
            "instance id empty": {"instance_id": ""},
            "rack id empty": {"rack_id": ""},
            "no rebalance timeout": {"rebalance_timeout_ms": -1},
            "no partitions": {"topic_partitions": None},
            "some partitions": {"topic_partitions": talk.owns(topic, 1)},
            "no subscription": {"subscribed_topic_names": None},
            "assignor unknown": {"server_assignor": "cooperative"},
            "assignor empty": {"server_assignor": ""},
        }.items():
            yield f"join, {name}", version, talk.beat("m", 0, **(joining | body))
        yield "epoch -3", version, talk.beat("m", -3)
        yield "epoch -2 of nobody", version, talk.beat("m", -2)
        yield "epoch -2 in no group", version, talk.beat("m", -2, instance_id="i")
        yield "epoch -1 in no group", version, talk.beat("m", -1)
        yield "epoch 1 in no group", version, talk.beat("m", 1)
        yield "no member id, epoch 1", version, talk.beat("", 1)
        yield "no member id, epoch -1", version, talk.beat("", -1)
        if version:
            yield "no member id", version, talk.join("", topic)
            yield "expression malformed", version, talk.join("m", subscribed_topic_regex="a(")
            yield "group after that", version, talk.described()
        yield "first join", version, talk.join("m", topic, rack_id="rack")
        yield "described", version, talk.described()
        yield "nothing new", version, talk.beat("m", 1)
        more = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [topic]}
        answer = talk.beat("m", 1, topic_partitions=talk.owns(topic, 0, 1, 2, 3), **more)
        yield "all said again", version, answer
        yield "epoch too high", version, talk.beat("m", 2)
        yield "epoch before, owning nothing", version, talk.beat("m", 0, topic_partitions=[])
        yield "joins again", version, talk.join("m", topic)
        yield "stranger", version, talk.beat("other", 1)
        yield "instance id of nobody", version, talk.beat("m", 1, instance_id="i")
        yield "another rack", version, talk.beat("m", 1, rack_id="rack2")
        yield "another assignor", version, talk.beat("m", 1, server_assignor="range")
        yield "no such assignor", version, talk.beat("m", 1, server_assignor="best")
        yield "another timeout", version, talk.beat("m", 1, rebalance_timeout_ms=50_000)
        unknown = side.name("unknown")
        answer = talk.beat("m", 1, subscribed_topic_names=[topic, unknown])
        yield "another topic, which isn't there", version, answer
        yield "nothing more to read", version, talk.beat("m", 2, subscribed_topic_names=[])
        yield "still owning", version, talk.beat("m", 2, topic_partitions=talk.owns(topic, 0))
        yield "described while it holds on", version, talk.described()
        yield "given up", version, talk.beat("m", 2, topic_partitions=[])
        yield "one epoch behind, nothing owned", version, talk.beat("m", 2, topic_partitions=[])
        yield "one epoch behind, silent", version, talk.beat("m", 2)
        answer = talk.beat("m", 2, topic_partitions=talk.owns(topic, 0))
        yield "one epoch behind, owning another's", version, answer
        yield "commit by a stranger", version, talk.commit("other", 3, topic)
        yield "commit one epoch behind", version, talk.commit("m", 2, topic)
        yield "commit", version, talk.commit("m", 3, topic)
        yield "commit in an old version", version, talk.commit("m", 3, topic, 8)
        yield "commit of nobody", version, talk.commit("", -1, topic)
        yield "fetch by a stranger", version, talk.fetch("other", 3, topic)
        yield "fetch one epoch behind", version, talk.fetch("m", 2, topic)
        yield "fetch", version, talk.fetch("m", 3, topic)
        yield "fetch of nobody", version, talk.fetch(None, -1, topic)
        yield "leave of a stranger", version, talk.beat("other", -1)
        body = {"groups": [talk.group]}
        for other in (5, 6):
            answer = side.ask("DescribeGroups", other, body)
            yield f"as a classic group, version {other}", version, answer
        yield "delete", version, side.ask("DeleteGroups", 2, {"groups_names": [talk.group]})
        yield "leave", version, talk.beat("m", -1)
        yield "leave again", version, talk.beat("m", -1)
        yield "described when empty", version, talk.described()
        yield "commit of nobody when empty", version, talk.commit("", -1, topic)
        yield "a stranger's when empty", version, talk.beat("m", 4)
        yield "comes back", version, talk.join("m", topic)
        yield "leaves", version, talk.beat("m", -1)
        row = {"name": topic, "partitions": [{"partition_index": 0}]}
        body = {"group_id": talk.group, "topics": [row]}
        yield "offsets deleted", version, side.ask("OffsetDelete", 0, body)
        yield "deleted", version, side.ask("DeleteGroups", 2, {"groups_names": [talk.group]})
        yield "described when deleted", version, talk.described()


@scenario
def consumer_group_members(side: Side) -> Answers:
    """Partitions go from member to member; static members; topics that come and grow."""
    topic, second = side.topic("six", 6), side.topic("two", 2)
    for version in versions("ConsumerGroupHeartbeat"):
        talk = Talk(side, "members", version)
        yield "first", version, talk.join("a", topic)
        yield "second", version, talk.join("b", topic)
        yield "second waits", version, talk.beat("b", 2)
        yield "described", version, talk.described()
        yield "first is told", version, talk.beat("a", 1)
        yield "first is told once", version, talk.beat("a", 1)
        yield "second still waits", version, talk.beat("b", 2)
        yield "described, revoking", version, talk.described()
        first = talk.owns(topic, 0, 1, 2)
        yield "first gives up", version, talk.beat("a", 1, topic_partitions=first)
        yield "second gets", version, talk.beat("b", 2)
        yield "described, stable", version, talk.described()
        yield "third", version, talk.join("c", topic)
        yield "all of them told: first", version, talk.beat("a", 2)
        yield "all of them told: second", version, talk.beat("b", 2)
        yield "second gives up", version, talk.beat("b", 2, topic_partitions=talk.owns(topic, 3, 4))
        yield "third gets some", version, talk.beat("c", 3)
        yield "described, some", version, talk.described()
        yield "first leaves", version, talk.beat("a", -1)
        yield "third gets more", version, talk.beat("c", 3)
        yield "second as well", version, talk.beat("b", 3)
        yield "described, two", version, talk.described()
        yield "second turns to another", version, talk.beat("b", 4, subscribed_topic_names=[second])
        yield "it has given up", version, talk.beat("b", 4, topic_partitions=[])
        yield "third gets all", version, talk.beat("c", 4)
        yield "described, each its own", version, talk.described()
        yield "third leaves", version, talk.beat("c", -1)
        yield "second leaves", version, talk.beat("b", -1)

        talk = Talk(side, "static", version)
        yield "static", version, talk.join("a", topic, instance_id="i")
        yield "static again", version, talk.join("a", topic, instance_id="i")
        yield "static, another member", version, talk.join("b", topic, instance_id="i")
        yield "static, not saying so", version, talk.beat("a", 1)
        yield "another member's heartbeat", version, talk.beat("b", 1, instance_id="i")
        yield "another member leaves", version, talk.beat("b", -1, instance_id="i")
        yield "static goes away", version, talk.beat("a", -2, instance_id="i")
        yield "described, away", version, talk.described()
        yield "heartbeat of one who is away", version, talk.beat("a", 1, instance_id="i")
        yield "its successor", version, talk.join("b", topic, instance_id="i")
        yield "the one before", version, talk.beat("a", 1, instance_id="i")
        yield "the successor's", version, talk.beat("b", 1, instance_id="i")
        yield "described, succeeded", version, talk.described()
        yield "static leaves", version, talk.beat("b", -1, instance_id="i")
        yield "described, nobody", version, talk.described()

        talk = Talk(side, "range", version)
        more = {"server_assignor": "range", "instance_id": "1"}
        yield "range", version, talk.join("z", topic, second, **more)
        more = {"server_assignor": "range", "instance_id": "2"}
        yield "range, second", version, talk.join("a", topic, second, **more)
        yield "range, told", version, talk.beat("z", 1, instance_id="1")
        yield "range, described", version, talk.described()

        talk = Talk(side, "grow", version)
        late = side.name(f"late{version}")
        yield "topic to come", version, talk.join("a", late)
        side.topic(f"late{version}", 2)
        yield "topic there", version, talk.until("a", 1)
        body = {"topics": [{"name": late, "count": 3, "assignments": None}], "timeout_ms": 20_000}
        yield "more partitions", version, side.ask("CreatePartitions", 3, body)
        yield "topic grown", version, talk.until("a", 2)
        side.ask("DeleteTopics", 6, {"topics": [{"name": late}], "timeout_ms": 20_000})
        yield "topic gone", version, talk.once("a", 3, group_epoch=4)
        yield "described, gone", version, talk.described()
        yield "given up what is gone", version, talk.beat("a", 3, topic_partitions=[])
        yield "nothing left", version, talk.beat("a", 4)

    talk = Talk(side, "expression", 1)
    side.topic("match-1")
    regex = side.prefix + "match-[0-9]+"
    more = {"subscribed_topic_names": None, "subscribed_topic_regex": regex}
    yield "expression", 1, talk.join("a", **more)
    yield "expression resolved", 1, talk.until("a", 1)
    yield "expression described", 1, talk.described()
    yield "same expression", 1, talk.join("b", **more)
    yield "topics as well", 1, talk.beat("b", 3, subscribed_topic_names=[topic, second])
    yield "malformed", 1, talk.beat("b", 4, subscribed_topic_regex="(?=a)")
    yield "no expression any more", 1, talk.beat("b", 4, subscribed_topic_regex="")
    yield "described, one expression", 1, talk.described()
    yield "leaves with it", 1, talk.beat("a", -1)
    yield "described, no expression", 1, talk.described()


def embedded(name: str, version: int, message: dict[str, Any]) -> bytes:
    """What classic consumers tell each other."""
    return struct.pack(">h", version) + codec.encode("ConsumerProtocol" + name, version, message)


class ClassicTalk(Talk):
    """Classic members of the group, whose broker-made ids are words in the answers.

    is_mixed: in a consumer group they may bring their ids.
    """

    def __init__(self, side: Side, group: str, is_mixed: bool = False) -> None:
        super().__init__(side, group, 1)
        self.is_mixed = is_mixed
        self.ids: dict[str, str] = {}

    def classic(self, api: str, version: int, member: str, generation_id: int, **more: Any) -> Any:
        body = {"group_id": self.group, "member_id": self.ids.get(member, member)}
        if api == "JoinGroup":
            body |= {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 60_000}
            body |= {"protocol_type": "consumer"}
        else:
            body |= {"generation_id": generation_id}
        if api == "SyncGroup":
            body |= {"protocol_type": "consumer", "protocol_name": "range"}
        return self.plain(self.side.ask(api, version, body | more))

    def subscribe(self, member: str, *topics: str, owned: Any = (), **more: Any) -> Any:
        """JoinGroup, twice if an id is asked for."""
        message = {"topics": list(topics), "owned_partitions": list(owned)}
        protocol = {"name": "range", "metadata": embedded("Subscription", 1, message)}
        body = {"protocols": [protocol]} | more
        known = {} if member in self.ids or self.is_mixed else {"member_id": ""}
        answer = self.classic("JoinGroup", 9, member, 0, **(known | body))
        if answer.get("error_code") == 79:
            self.ids[member] = answer["member_id"]
            answer = self.classic("JoinGroup", 9, member, 0, **body)
        return answer

    def plain(self, answer: Any) -> Any:
        words = {member_id: word for word, member_id in self.ids.items()}

        def spelt(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: spelt(item) for key, item in value.items()}
            if isinstance(value, list):
                return in_order([spelt(item) for item in value])
            return words.get(value, value)

        return spelt(answer)

    def shown(self) -> Iterator[tuple[str, Any]]:
        """The group as both kinds of describe see it."""
        yield "as a consumer group", self.plain(self.described(1))
        body = {"groups": [self.group]}
        yield "as a classic one", self.plain(self.side.ask("DescribeGroups", 5, body))


@scenario
def consumer_group_migration(side: Side) -> Answers:
    """Members of both protocols in one group, and groups that change theirs."""
    topic = side.topic("four", 4)
    owned = [{"topic": topic, "partitions": [0, 1]}]
    talk = ClassicTalk(side, "mixed", is_mixed=True)
    yield "new member", 1, talk.join("new", topic)
    yield "other protocol type", 1, talk.subscribe("old", topic, protocol_type="connect")
    yield "no protocols", 1, talk.subscribe("old", topic, protocols=[])
    bad = [{"name": "range", "metadata": b"\0\1\0"}]
    yield "malformed", 1, talk.subscribe("old", topic, protocols=bad)
    yield "classic member", 1, talk.subscribe("old", topic)
    yield "syncs", 1, talk.classic("SyncGroup", 5, "old", 2)
    yield "syncs with another", 1, talk.classic("SyncGroup", 5, "old", 2, protocol_name="best")
    yield "syncs too early", 1, talk.classic("SyncGroup", 5, "old", 3)
    yield "the new one syncs", 1, talk.classic("SyncGroup", 5, "new", 1)
    yield "the new one in the old way", 1, talk.classic("Heartbeat", 4, "new", 1)
    yield "heartbeat, waiting", 1, talk.classic("Heartbeat", 4, "old", 2)
    for name, answer in talk.shown():
        yield f"mixed {name}", 1, answer
    yield "new one told", 1, talk.beat("new", 1)
    yield "new one gives up", 1, talk.beat("new", 1, topic_partitions=talk.owns(topic, 0, 1))
    yield "heartbeat, all free", 1, talk.classic("Heartbeat", 4, "old", 2)
    yield "joins again", 1, talk.subscribe("old", topic)
    yield "syncs again", 1, talk.classic("SyncGroup", 5, "old", 2)
    yield "heartbeat, stable", 1, talk.classic("Heartbeat", 4, "old", 2)
    yield "heartbeat of before", 1, talk.classic("Heartbeat", 4, "old", 1)
    yield "heartbeat of a stranger", 1, talk.classic("Heartbeat", 4, "x", 2)
    yield "commit", 1, talk.commit("old", 2, topic, 8)
    yield "commit of before", 1, talk.commit("old", 1, topic, 9)
    yield "second new member", 1, talk.join("newer", topic)
    yield "heartbeat, rebalance", 1, talk.classic("Heartbeat", 4, "old", 2)
    yield "syncs, rebalance", 1, talk.classic("SyncGroup", 5, "old", 2)
    holding = [{"topic": topic, "partitions": [2, 3]}]
    yield "joins, holding on", 1, talk.subscribe("old", topic, owned=holding)
    yield "heartbeat, holding on", 1, talk.classic("Heartbeat", 4, "old", 2)
    for name, answer in talk.shown():
        yield f"holding on {name}", 1, answer
    yield "second new one leaves", 1, talk.beat("newer", -1)
    member = {"member_id": "x"}
    yield "a stranger leaves", 1, talk.classic("LeaveGroup", 5, "", 0, members=[member])
    member = {"member_id": "new"}
    answer = talk.classic("LeaveGroup", 5, "", 0, members=[member])
    yield "last new one leaves in the old way", 1, answer
    for name, answer in talk.shown():
        yield f"downgraded {name}", 1, answer
    yield "heartbeat, downgraded", 1, talk.classic("Heartbeat", 4, "old", 4)
    yield "joins, downgraded", 1, talk.subscribe("old", topic)

    talk = ClassicTalk(side, "upgraded")
    yield "classic group", 1, talk.subscribe("old", topic)
    message = {"assigned_partitions": [{"topic": topic, "partitions": [0, 1, 2, 3]}]}
    rows = [{"member_id": talk.ids["old"], "assignment": embedded("Assignment", 1, message)}]
    yield "classic assignment", 1, talk.classic("SyncGroup", 5, "old", 1, assignments=rows)
    yield "new one without joining", 1, talk.beat("new", 1)
    yield "new one leaves before", 1, talk.beat("new", -1)
    yield "new one joins", 1, talk.join("new", topic)
    for name, answer in talk.shown():
        yield f"upgraded {name}", 1, answer
    yield "told", 1, talk.classic("Heartbeat", 4, "old", 1)
    owned = [{"topic": topic, "partitions": [0, 1, 2, 3]}]
    yield "joins with all", 1, talk.subscribe("old", topic, owned=owned)
    yield "gets its part", 1, talk.classic("SyncGroup", 5, "old", 1)
    yield (
        "joins with half",
        1,
        talk.subscribe("old", topic, owned=[owned[0] | {"partitions": [0, 1]}]),
    )
    yield "keeps its part", 1, talk.classic("SyncGroup", 5, "old", 2)
    yield "new one gets the rest", 1, talk.beat("new", 2)
    member = {"member_id": talk.ids["old"]}
    answer = talk.classic("LeaveGroup", 5, "", 0, members=[member])
    yield "classic one leaves", 1, answer
    yield "new one gets all", 1, talk.beat("new", 2)
    yield "new one leaves", 1, talk.beat("new", -1)
    for name, answer in talk.shown():
        yield f"empty {name}", 1, answer
    yield "a known member's join", 1, talk.subscribe("", topic, member_id="x")
    talk.ids.clear()
    yield "classic again", 1, talk.subscribe("old", topic)

    talk = ClassicTalk(side, "emptied")
    yield "offsets only", 1, talk.commit("", -1, topic)
    yield "then a new member", 1, talk.join("new", topic)
    yield "with its offset", 1, talk.fetch(None, -1, topic)

    talk = ClassicTalk(side, "swapped")
    yield "static new one", 1, talk.join("new", topic, instance_id="i")
    yield "second static new one", 1, talk.join("other", topic, instance_id="j")
    more = {"group_instance_id": "i"}
    answer = talk.subscribe("i2", topic, **more)
    talk.ids["i2"] = answer["member_id"]
    yield "taken over by a classic one", 1, talk.plain(answer)
    answer = talk.subscribe("j2", topic, group_instance_id="j")
    talk.ids["j2"] = answer["member_id"]
    yield "so is the second", 1, talk.plain(answer)
    for name, answer in talk.shown():
        yield f"swapped {name}", 1, answer
