"""What is asked of both brokers: every API that is served, in every version, good input and bad.

Each scenario is a generator of (case, version, answer). A version is a number, or "-" where a case
has none. Here are frames and what clients ask first; the modules `wire_cases_…` add theirs, and
`wire_expectations` imports all of them. What Kafka 4.2.1 answers is in wire_expectations.txt;
docs/apis.toml says where we answer something else, and why.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any

from shmbroker.wire import api_keys, codec
from tests.processes.wire_side import Side
from tests.support.raw_client import key_of

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
