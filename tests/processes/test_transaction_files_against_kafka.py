"""What a broker leaves of committed, aborted and open transactions, as Apache Kafka's own dump tool
reads it: indexes of aborted ones, producer snapshots, logs with markers, and the state log. It
complains of nothing, and tells what `shmbroker log dump` tells.

KAFKA_DUMP: the command that runs kafka.tools.DumpLogSegments on files.
"""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from shmbroker.cli import commands
from shmbroker.testing.broker import Broker

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif("KAFKA_DUMP" not in os.environ, reason="no dump tool of Apache Kafka"),
    pytest.mark.timeout(300),
]

TOPIC = "dumped"
COMPLAINTS = re.compile(r"Exception|isvalid: false|ismatch|orrupt|trailing|Non-consecutive|ERROR")


@pytest.fixture(scope="module")
def node() -> Iterator[Path]:
    """Of a broker that was stopped: rounds of a committed and an aborted transaction over several
    segments, offsets of a group, and a transaction that is open."""
    with Broker() as broker:
        settings = {"bootstrap.servers": broker.address, "log_level": 0}
        admin = AdminClient(settings)
        new = NewTopic(TOPIC, 1, 1, config={"segment.bytes": "1048576", "retention.ms": "-1"})
        admin.create_topics([new])[TOPIC].result(60)
        made = [Producer({**settings, "transactional.id": f"dumped-{n}"}) for n in range(3)]
        for producer in made:
            producer.init_transactions(60)
        for _ in range(6):
            for producer in made[:2]:
                producer.begin_transaction()
                for _ in range(30):
                    producer.produce(TOPIC, bytes(6000), key=b"k", partition=0)
                producer.flush()
            made[0].commit_transaction(60)
            made[1].abort_transaction(60)
        made[2].begin_transaction()
        made[2].produce(TOPIC, b"open", partition=0)
        made[2].flush()
        broker.stop()
        yield broker.data / "node-1"


def theirs(files: list[Path], *more: str) -> dict[Path, list[str]]:
    """The lines that Kafka's tool prints of each file."""
    words = [*shlex.split(os.environ["KAFKA_DUMP"]), ",".join(map(str, files)), *more]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=200)
    complaint = COMPLAINTS.search(ran.stdout + ran.stderr)
    assert ran.returncode == 0 and complaint is None, (complaint, ran.stderr[-2000:])
    found: dict[Path, list[str]] = {}
    for line in ran.stdout.splitlines():
        if line.startswith("Dumping "):
            lines = found[Path(line.removeprefix("Dumping "))] = []
        elif not line.startswith("Log starting offset"):
            lines.append(line)
    assert set(found) == set(files)
    return found


def ours(file: Path) -> list[dict[str, Any]]:
    ran = CliRunner().invoke(commands.main, ["log", "dump", str(file), "--records", "--json"])
    assert ran.exit_code == 0, ran.output
    return [json.loads(line) for line in ran.output.splitlines()]


def numbers(line: str, *names: str) -> list[int]:
    """What `name: 12` says in a line; OptionalLong.empty is -1."""
    found = []
    for name in names:
        told = re.search(rf"\b{name}: (?:OptionalLong\[)?(-?\d+|OptionalLong\.empty)", line)
        assert told is not None, (name, line)
        found.append(-1 if told[1].startswith("O") else int(told[1]))
    return found


def test_aborted_transactions_and_producers_are_told_alike(node: Path) -> None:
    directory = node / f"{TOPIC}-0"
    indexes = [path for path in sorted(directory.glob("*.txnindex")) if path.stat().st_size]
    snapshots = sorted(directory.glob("*.snapshot"))
    assert len(indexes) > 1 and len(snapshots) > 1
    told = theirs([*indexes, *snapshots])
    aborted = 0
    for path in indexes:
        mine = [
            [row["producer_id"], row["first_offset"], row["offset"], row["last_stable_offset"]]
            for row in ours(path)
        ]
        names = "producerId", "firstOffset", "lastOffset", "lastStableOffset"
        assert [numbers(line, *names) for line in told[path]] == mine
        aborted += len(mine)
    assert aborted == 6
    for path in snapshots:
        assert [
            numbers(
                line,
                "producerId",
                "producerEpoch",
                "coordinatorEpoch",
                "currentTxnFirstOffset",
                "lastTimestamp",
                "lastSequence",
                "lastOffset",
                "offsetDelta",
            )
            for line in told[path]
        ] == [
            [
                row["producer_id"],
                row["producer_epoch"],
                row["coordinator_epoch"],
                row["current_txn_first_offset"],
                row["timestamp"],
                row["last_sequence"],
                row["last_offset"],
                row["offset_delta"],
            ]
            for row in ours(path)
        ]
    open_ = [row["current_txn_first_offset"] >= 0 for row in ours(snapshots[-1])]
    assert open_.count(True) == 1


def test_markers_are_told_alike(node: Path) -> None:
    logs = sorted((node / f"{TOPIC}-0").glob("*.log"))
    assert len(logs) > 2
    told = theirs(logs, "--deep-iteration")
    markers = []
    for path in logs:
        batches = [line for line in told[path] if line.startswith("baseOffset")]
        mine = [row for row in ours(path) if row["type"] == "batch"]
        names = "baseOffset", "lastOffset", "producerId", "producerEpoch", "crc", "position"
        keys = "base_offset", "last_offset", "producer_id", "producer_epoch", "crc", "position"
        assert [numbers(line, *names) for line in batches] == [
            [row[key] for key in keys] for row in mine
        ]
        for line, row in zip(batches, mine, strict=True):
            assert f"isTransactional: {str(row['is_transactional']).lower()}" in line
            assert f"isControl: {str(row['is_control']).lower()}" in line
        markers += re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: (\d+)", "\n".join(told[path]))
    assert [kind for kind, _ in markers] == ["COMMIT", "ABORT"] * 6


def test_records_of_transaction_state_are_told_alike(node: Path) -> None:
    logs = [
        path
        for path in sorted(node.glob("__transaction_state-*/*.log"))
        if any(row["type"] == "record" for row in ours(path))
    ]
    told = theirs(logs, "--transaction-log-decoder")
    states = []
    for path in logs:
        found = []
        for line in told[path]:
            if record := re.search(r"offset: (\d+) .* key: (\{.*?\}\}) payload: (\{.*\})", line):
                key, value = json.loads(record[2])["data"], json.loads(record[3])["data"]
                found.append((int(record[1]), key["transactionalId"], value))
        mine = [
            (row["offset"], row["key"]["transactional_id"], row["value"])
            for row in ours(path)
            if row["type"] == "record"
        ]
        assert [(offset, name) for offset, name, _ in found] == [row[:2] for row in mine]
        for (_, name, theirs_), (_, _, value) in zip(found, mine, strict=True):
            assert len(theirs_) == 7
            # Fields of later versions of the record are not in theirs.
            assert theirs_ == {
                name: value for name, value in camel(value).items() if name in theirs_
            }
            states.append((name, value["transaction_status"]))
    # Empty, ongoing, prepared and complete ones, by Kafka's numbers.
    assert {status for name, status in states if name == "dumped-0"} == {0, 1, 2, 4}
    assert {status for name, status in states if name == "dumped-1"} == {0, 1, 3, 5}
    assert {status for name, status in states if name == "dumped-2"} == {0, 1}


def camel(value: Any) -> Any:
    """With field names as Kafka's tool writes them."""
    if isinstance(value, list):
        return [camel(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        re.sub(r"_(\w)", lambda letter: letter[1].upper(), name): camel(each)
        for name, each in value.items()
    }
