"""Requests with a few bytes changed, against a running broker: nobody dies, nothing rots.

The requests are those of the wire cases, so that each served API and version is there with bodies
that mean something. A changed request may be answered, closed, or wait: the answer is not looked
at. Afterwards every process is the same, a bystander is served, no handler has failed, and the log
that was written meanwhile is whole.

FUZZ_SEED and FUZZ_COUNT run others, or more, than the usual ones.
"""

import os
import random
import select
import socket
from contextlib import ExitStack
from typing import Any

from shmbroker.crc32c import crc32c
from shmbroker.records.batch import iterate_batches
from shmbroker.testing.broker import Broker
from shmbroker.wire import codec
from shmbroker.wire.frame import request_frame
from tests.processes import (  # noqa: F401  they add their scenarios
    wire_cases_admin,
    wire_cases_configs,
    wire_cases_fetch,
    wire_cases_logs,
    wire_cases_metadata,
    wire_cases_topics,
)
from tests.processes.hostile import Besieged
from tests.processes.wire_cases import SCENARIOS
from tests.processes.wire_cases_produce import BATCHES, by_id
from tests.processes.wire_side import Side
from tests.support.raw_client import fetch_body, key_of, produce_body

SEED = int(os.environ.get("FUZZ_SEED", "1"))
COUNT = int(os.environ.get("FUZZ_COUNT", "2000"))
TOGETHER = 40
ANSWER_WAIT_S = 0.03

SOURCES = (
    "api_versions", "describe_cluster", "find_coordinator", "metadata", "describe_topic_partitions",
    "list_offsets", "offset_for_leader_epoch", "create_topics", "create_partitions",
    "describe_configs", "incremental_alter_configs", "init_producer_id", "describe_log_dirs",
    "alter_configs", "group_configs", "client_metrics", "broker_loggers", "list_config_resources",
    "update_features", "elect_leaders", "alter_partition_reassignments", "describe_quorum",
    "other_cluster_calls",
)  # fmt: skip


class RecordingSide(Side):
    """Keeps every request that a scenario makes."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.requests: list[bytes] = []

    def ask(self, api: str, version: int, body: dict[str, Any], **more: Any) -> Any:
        self.keep(api, version, body)
        return super().ask(api, version, body, **more)

    def keep(self, api: str, version: int, body: dict[str, Any]) -> None:
        encoded = codec.encode(api + "Request", version, body)
        self.requests.append(request_frame(key_of(api), version, 1, "fuzz", encoded))


def corpus(address: str, topic: str) -> list[bytes]:
    """Requests of every kind; Produce and Fetch of one topic of two partitions."""
    side = RecordingSide(address)
    for scenario in SOURCES:
        for _ in SCENARIOS[scenario](side):
            pass
    topic_id = side.topics[side.topic(topic, 2)]
    name = side.name(topic)
    others = side.requests
    side.requests = []
    small = [batch for batch in BATCHES.values() if batch is not None and len(batch) < 1000]
    for version in range(3, 14):
        for batch in small:
            side.keep("Produce", version, by_id(produce_body(name, batch), topic_id, version))
    for version in range(12, 15):
        body = by_id(fetch_body(name, 0), topic_id, version)
        side.keep("Fetch", version, body)
    return random.Random(SEED).sample(others, 600) + side.requests


def mutated(frame: bytes, chance: random.Random) -> bytes:
    """The frame with one to four changes behind its size, whose size is then right again."""
    content = bytearray(frame[4:])
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(2, len(content))
        kind = chance.randrange(5)
        if kind == 0:
            content[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        elif kind == 1:
            content[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            content[at : at + 4] = chance.choice((b"\xff" * 4, b"\x7f\xff\xff\xff", bytes(4)))
        elif kind == 3:
            del content[at : at + chance.randint(1, 8)]
        else:
            content[at:at] = chance.randbytes(chance.randint(1, 8))
        if len(content) < 12:
            break
    return len(content).to_bytes(4, "big") + content


def fire(address: str, frames: list[bytes]) -> None:
    """Each on a connection of its own; then wait a moment for what comes, and leave."""
    host, port = address.rsplit(":", 1)
    with ExitStack() as stack:
        waiting = set()
        for frame in frames:
            each = stack.enter_context(socket.create_connection((host, int(port)), 5))
            each.sendall(frame)
            waiting.add(each)
        while waiting:
            ready = select.select(list(waiting), [], [], ANSWER_WAIT_S)[0]
            if not ready:
                return
            waiting -= set(ready)


def test_changed_requests_harm_nobody() -> None:
    chance = random.Random(SEED)
    with Broker() as broker:
        besieged = Besieged(broker)
        requests = corpus(broker.address, "fuzzed")
        before = besieged.memory_bytes()
        for _ in range(COUNT // TOGETHER):
            frames = [mutated(chance.choice(requests), chance) for _ in range(TOGETHER)]
            fire(broker.address, frames)
            assert broker.children() == besieged.children, f"seed {SEED}: a process has died"
        besieged.serves()
        assert "Traceback" not in broker.log, broker.log[-5000:]
        assert besieged.memory_bytes() - before < 64 << 20
        with besieged.client() as client:
            for partition in (0, 1):
                assert_whole(client.fetch(topic_of(besieged), 0, partition)["records"])


def topic_of(besieged: Besieged) -> str:
    """The fuzzed topic's name, with the prefix of the run."""
    with besieged.client() as client:
        topics = client.ask("Metadata", 1, {"topics": None})["topics"]
    return next(row["name"] for row in topics if row["name"].endswith("fuzzed"))


def assert_whole(records: bytes) -> None:
    """Batches follow each other, and their CRCs are right."""
    next_offset = 0
    for position, header in iterate_batches(records):
        assert header[0] == next_offset
        next_offset += header[6] + 1
        assert crc32c(records[position + 21 : position + 12 + header[1]]) == header[4]
