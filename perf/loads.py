"""Loads that several programs here put on a side, each on a topic of its own.

Prebuilt    one and the same Produce again and again, some in flight
Filled      a topic that is filled before the first round, and read round and round
"""

import time

from perf import bench, driver

ROUND_BYTES_MAX = 1 << 30
"""What a round produces at most."""
FILL_S = 120.0
FILL_DEPTH = 16


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
