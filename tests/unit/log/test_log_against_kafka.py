"""Apache Kafka's own dump tool reads every file that is written here.

KAFKA_DUMP: the command that runs kafka.tools.DumpLogSegments on a file.
"""

import itertools
import os
import random
import re
import shlex
import subprocess

import pytest

from shmbroker.log.config import LogConfig
from shmbroker.log.markers import append_marker
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.truncation import truncate_to
from shmbroker.records.batch import control_batch, encode_batch
from shmbroker.records.batch_layout import CONTROL_COMMIT
from shmbroker.records.end_marker import EndMarker
from tests.support.compaction_logs import append, batches_of, compact_log, open_log

pytestmark = pytest.mark.oracle

WRONG = re.compile(r"Exception|isvalid: false|[Mm]ismatch|corrupt|trailing|Non-consecutive")


WRONG_IN_GAPS = re.compile(WRONG.pattern.removesuffix("|Non-consecutive"))
"""Where compaction has been, offsets need not follow each other."""


def dump(path, *options, wrong=WRONG):
    command = os.environ.get("KAFKA_DUMP")
    if not command:
        pytest.skip("KAFKA_DUMP names no command")
    ran = subprocess.run(
        [*shlex.split(command), path, *options], capture_output=True, text=True, check=False
    )
    text = ran.stdout + ran.stderr
    assert ran.returncode == 0, text
    assert not wrong.search(text), text
    return text


def test_dump_tool_reads_transactions(tmp_path):
    log = open_log(tmp_path / "t-0", {})
    for number in range(6):
        producer_id = 7 + number % 2
        producer = (producer_id, number // 2, 0)
        append(log, [(1000, b"k", b"v")] * 2, producer=producer, is_transactional=True)
        bumps = number % 3 == 1
        marker = EndMarker(producer_id, number // 2 + bumps, number, number % 2 == 0)
        append_marker(log, marker, 1000 + number, 0, 0)
        if number == 3:
            log.roll()
    append(log, [(1000, b"k", b"v")], producer=(9, 0, 0), is_transactional=True)
    log.close(clean=True)
    found = {"endTxnMarker: COMMIT": 0, "endTxnMarker: ABORT": 0, "lastStableOffset:": 0}
    snapshots = []
    for path in sorted((tmp_path / "t-0").iterdir()):
        if path.suffix in (".log", ".txnindex"):
            text = dump(path, *(["--deep-iteration"] if path.suffix == ".log" else []))
            for word in found:
                found[word] += text.count(word)
        elif path.suffix == ".snapshot":
            snapshots.append(dump(path))
    assert list(found.values()) == [3, 3, 3]
    first = log.producers.producers[9].current_txn_first_offset
    assert f"currentTxnFirstOffset: OptionalLong[{first}]" in snapshots[-1]


def test_dump_tool_reads_a_rolled_truncated_reopened_log(tmp_path):
    source = random.Random(3)
    config = LogConfig({"segment.bytes": "60000", "index.interval.bytes": "1000"})
    directory = str(tmp_path / "t-0")
    log = PartitionLog.open(directory, config, file_ids=itertools.count())
    sequence = 0
    for number in range(600):
        count = source.randrange(1, 5)
        timestamp = source.randrange(100_000, 200_000)
        headers = [(b"h", b"x"), (b"n", None)]
        batch = encode_batch(
            [(timestamp, b"k", source.randbytes(source.randrange(200)), headers)] * count,
            codec=number % 5,
            producer_id=77,
            producer_epoch=2,
            base_sequence=sequence,
        )
        base = log.append(memoryview(batch), count - 1, timestamp, number // 100, 0)
        log.producers.update(77, 2, sequence, count - 1, base, timestamp)
        sequence += count
        if number == 300:
            marker = control_batch(
                CONTROL_COMMIT, bytes(6), timestamp=5, producer_id=77, producer_epoch=2
            )
            log.append(memoryview(marker), 0, 5, number // 100, 0)
        if number == 400:
            truncate_to(log, log.log_end_offset - 7)
            sequence = log.producers.producers[77].next_sequence
        if number == 500:
            log.close(clean=False)
            log = PartitionLog.open(directory, config, file_ids=itertools.count(), clean=False)
    log.close(clean=True)
    records, snapshots = 0, []
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        if name.endswith(".log"):
            records += len(re.findall(r"^\| offset: ", dump(path, "--deep-iteration"), re.M))
        elif name.endswith((".index", ".timeindex")):
            dump(path)
        elif name.endswith(".snapshot"):
            snapshots.append(dump(path))
    assert records == log.log_end_offset
    assert f"lastSequence: {sequence - 1} " in snapshots[-1]


def test_dump_tool_reads_a_compacted_log(tmp_path):
    source = random.Random(4)
    settings = {
        "cleanup.policy": "compact",
        "segment.bytes": "60000",
        "index.interval.bytes": "900",
    }
    log = open_log(tmp_path / "t-0", settings)
    append(log, [(100_000, b"1", b"soon superseded")], producer=(9, 0, 0))
    for number in range(400):
        records = [
            (
                100_000 + source.randrange(1000),
                b"%d" % source.randrange(150),
                None if source.random() < 0.1 else source.randbytes(source.randrange(200)),
                [(b"h", b"x")],
            )
            for _ in range(source.randrange(1, 8))
        ]
        append(log, records, number % 5, (number % 3, 0, number) if number % 2 else None)
    log.roll()
    compact_log(log, now_ms=2_000_000, delete_retention_ms=1000)
    compact_log(log, now_ms=2_002_000)
    records = 0
    for name in sorted(os.listdir(log.directory)):
        path = os.path.join(log.directory, name)
        if name.endswith(".log"):
            text = dump(path, "--deep-iteration", wrong=WRONG_IN_GAPS)
            records += len(re.findall(r"^\| offset: ", text, re.M))
        elif name.endswith((".index", ".timeindex")):
            dump(path)
    batches = batches_of(log)
    assert records == sum(len(found) for _, found in batches) < 160
    assert any(not found for _, found in batches)
