"""Loads that several programs here put on a side, each on a topic of its own.

Prebuilt    one and the same Produce again and again, some in flight
Filled      a topic that is filled before the first round, and read round and round

and frames of groups that commit offsets, for `many`.
"""

import time
from typing import Any

from perf import bench, driver
from shmbroker.wire.api_keys import FIND_COORDINATOR, OFFSET_COMMIT

ROUND_BYTES_MAX = 1 << 30
"""What a round produces at most."""
FILL_S = 120.0
FILL_DEPTH = 16
COMMIT_VERSION = 9


class Prebuilt:
    """Rounds of one shape of batches on one side. replicas: the brokers that hold the topic."""

    def __init__(
        self,
        side: bench.Side,
        prefix: str,
        shape: tuple[int, int, int],
        seconds: float,
        *,
        acks: int = 1,
        replicas: list[int] | None = None,
        requests_max: int = 0,
    ) -> None:
        """shape: records in a batch, bytes of each value, requests in flight."""
        records, value_bytes, self.depth = shape
        self.address = side.address
        self.topic = bench.topic_name(prefix)
        driver.create_topic(side.address, self.topic, replicas)
        self.bytes = records * value_bytes
        batch = driver.batch_of(records, value_bytes)
        self.frame = driver.produce_frame(self.topic, batch, acks)
        self.seconds = seconds
        self.requests_max = requests_max or ROUND_BYTES_MAX // self.bytes

    def __call__(self, side: bench.Side) -> dict[str, float]:
        with driver.Connection(side.address) as connection:
            begin = time.perf_counter()
            times = driver.produce_round(
                connection, self.topic, self.frame, self.depth, self.seconds, self.requests_max
            )
            seconds = time.perf_counter() - begin
        figures = {"requests": len(times), "bytes": len(times) * self.bytes, "seconds": seconds}
        return figures | driver.percentiles(times)

    def close(self) -> None:
        driver.delete_topic(self.address, self.topic)


class Filled:
    """Rounds of fetches from a topic of so many bytes, max_bytes at a time."""

    def __init__(
        self,
        side: bench.Side,
        prefix: str,
        shape: tuple[int, int],
        filled_bytes: int,
        max_bytes: int,
        seconds: float,
    ) -> None:
        """shape: records in a batch, bytes of each value."""
        self.records, value_bytes = shape
        self.address = side.address
        self.max_bytes = max_bytes
        self.seconds = seconds
        self.topic = bench.topic_name(prefix)
        driver.create_topic(side.address, self.topic)
        batch = driver.batch_of(self.records, value_bytes)
        self.batch_bytes = len(batch)
        frame = driver.produce_frame(self.topic, batch, 1)
        with driver.Connection(side.address) as connection:
            count = filled_bytes // self.batch_bytes
            driver.produce_round(connection, self.topic, frame, FILL_DEPTH, FILL_S, count)

    def __call__(self, side: bench.Side) -> dict[str, float]:
        with driver.Connection(side.address) as connection:
            begin = time.perf_counter()
            times, total = driver.fetch_round(
                connection,
                self.topic,
                self.batch_bytes,
                self.records,
                self.max_bytes,
                self.seconds,
            )
            seconds = time.perf_counter() - begin
        figures = {"requests": len(times), "bytes": total, "seconds": seconds}
        return figures | driver.percentiles(times)

    def close(self) -> None:
        driver.delete_topic(self.address, self.topic)


# ── groups that commit offsets ──────────────────────────────────────────────────────────────────


def group_names(topic: str, count: int) -> list[str]:
    """As many groups, none of which any run had before if the topic is new."""
    return [f"{topic}-{number}" for number in range(count)]


def commit_frames(topic: str, groups: int, partitions: int = 1) -> list[bytes]:
    """A commit of each group, as of one that assigns partitions by itself."""
    rows: list[dict[str, Any]] = [
        {
            "partition_index": index,
            "committed_offset": 1,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        for index in range(partitions)
    ]
    body = {
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": rows}],
    }
    return [
        driver.frame_of(OFFSET_COMMIT, COMMIT_VERSION, body | {"group_id": name})
        for name in group_names(topic, groups)
    ]


def commits(answer: memoryview) -> None:
    """Looks at the answer to such a commit: at the error code of its last partition, which three
    empty lists of tags follow."""
    if answer[-5] or answer[-4]:
        raise driver.Refused(f"OffsetCommit answered {bytes(answer)!r}")


def until_committed(address: str, group: str, frames: list[bytes]) -> None:
    """Send each commit once, again while its coordinator loads. Somebody has to look for one
    before: that makes `__consumer_offsets` where it is not there yet."""
    with driver.Connection(address) as connection:
        connection.ask(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [group]})
        deadline = time.monotonic() + driver.LEADER_WAIT_S
        for frame in frames:
            while True:
                connection.socket.sendall(frame)
                try:
                    commits(connection.answer())
                    break
                except driver.Refused:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)
