"""Never past the high watermark: a writer that always has bytes beyond it, and rewrites them.

Beyond the watermark there are at all times one whole batch that is never committed and a torn one;
what is committed overwrites them. A stream reads along, by the driver's and the tasks' own code.
"""

import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("pyspark")

from fake_family import FakeFamily, FakePartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from shmbroker.spark.datasource import ShmbrokerDataSource
from tests.support.record_batches import batch

COLUMNS = StructType([StructField("offset", LongType()), StructField("value", BinaryType())])
COMMITS = 300
SEGMENT_BYTES = 20_000


@pytest.fixture
def family(tmp_path: Path) -> Iterator[FakeFamily]:
    with FakeFamily(tmp_path) as made:
        yield made


class Writer:
    """Commits batches one by one; `beyond` are the offsets of the records that never were."""

    def __init__(self, partition: FakePartition, random: Random) -> None:
        self.partition = partition
        self.random = random
        self.path = Path()
        self.roll()
        self.spoil()

    def roll(self) -> None:
        base = self.partition.high_watermark
        self.path = self.partition.directory / f"{base:020}.log"
        self.path.write_bytes(bytes(2 * SEGMENT_BYTES))
        self.path.with_suffix(".index").write_bytes(bytes(800))
        segment = {
            "file_name": self.path.name,
            "inode": self.path.stat().st_ino,
            "base_offset": base,
            "end_offset": base,
            "valid_bytes": 0,
            "max_timestamp": 0,
        }
        self.partition.segments = [*self.partition.segments, segment]

    def write(self, position: int, data: bytes, index: int) -> None:
        """Bytes, and an index entry for them."""
        with self.path.open("r+b") as file:
            file.seek(position)
            file.write(data)
        segment = self.partition.segments[-1]
        if position:
            entry = struct.pack(
                ">ii", self.partition.high_watermark - segment["base_offset"], position
            )
            with self.path.with_suffix(".index").open("r+b") as file:
                file.seek(8 * index)
                file.write(entry)

    def spoil(self) -> None:
        """A whole batch and a torn one beyond the watermark, with other values than will be."""
        watermark = self.partition.high_watermark
        rows = [(i, 0, None, b"uncommitted", []) for i in range(self.random.randint(1, 9))]
        whole = batch(watermark, rows)
        torn = batch(watermark + len(rows), rows)[: self.random.randint(1, 80)]
        valid = self.partition.segments[-1]["valid_bytes"]
        self.write(valid, whole + torn, self.index())

    def index(self) -> int:
        content = self.path.with_suffix(".index").read_bytes()
        valid = self.partition.segments[-1]["valid_bytes"]
        entries = [struct.unpack_from(">ii", content, at)[1] for at in range(0, len(content), 8)]
        return sum(0 < position < valid for position in entries)

    def commit(self) -> None:
        """Replace what is beyond the watermark, then move it, then spoil what is beyond it now."""
        partition = self.partition
        first = partition.high_watermark
        count = self.random.randint(1, 9)
        data = batch(first, [(i, 0, None, b"%d" % (first + i), []) for i in range(count)])
        segment = partition.segments[-1]
        self.write(segment["valid_bytes"], data, self.index())
        moved = {"valid_bytes": segment["valid_bytes"] + len(data), "end_offset": first + count}
        partition.segments = [*partition.segments[:-1], segment | moved]
        partition.high_watermark = first + count
        if moved["valid_bytes"] > SEGMENT_BYTES:
            self.roll()
        self.spoil()

    def run(self, tickets: threading.Semaphore) -> None:
        for _ in range(COMMITS):
            tickets.acquire()
            self.commit()


@pytest.mark.parametrize("way", ["files", "fetch"])
def test_nothing_beyond_the_high_watermark_is_ever_read(family: FakeFamily, way: str) -> None:
    partition = family.create("t")[0]
    writer = Writer(partition, Random(7))
    given = {"kafka.bootstrap.servers": family.address, "subscribe": "t", "commitOffsets": "false"}
    reader = ShmbrokerDataSource(
        {**given, "startingOffsets": "earliest", "shmbroker.read": way}
    ).streamReader(COLUMNS)
    # some commits with every question of the reader's, so that they happen while it works
    tickets = threading.Semaphore(0)
    family.on_ask = lambda _name: tickets.release(3)
    thread = threading.Thread(target=writer.run, args=(tickets,))
    found: list[tuple[int, bytes]] = []
    end = reader.initialOffset()
    thread.start()
    batches = 0
    try:
        while thread.is_alive() or end["t"]["0"] < partition.high_watermark:
            start, end = end, reader.latestOffset(end, ReadAllAvailable())
            for task in reader.partitions(start, end) if end != start else ():
                for rows in reader.read(task):
                    columns = (rows.column("offset").to_pylist(), rows.column("value").to_pylist())
                    found += zip(*columns, strict=True)
            batches += 1
    finally:
        tickets.release(COMMITS)
        thread.join()
        reader.stop()
    assert batches > 10
    assert found == [(i, b"%d" % i) for i in range(partition.high_watermark)]
