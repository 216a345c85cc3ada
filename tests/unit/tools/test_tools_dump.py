"""What `log dump` makes of each kind of file."""

import struct
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shmbroker.cli.log import as_text, command, moment
from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.log import checkpoints
from shmbroker.log.meta_properties import MetaProperties, write_meta_properties
from shmbroker.log.partition_metadata import write_partition_metadata
from shmbroker.log.producer_state import ProducerState
from shmbroker.records.batch import control_batch, encode_batch
from shmbroker.tools import log_files
from shmbroker.tools.log_dump import dump
from shmbroker.wire import codec, coordinator_records
from shmbroker.wire.metadata_records import encode_metadata_record

NAME = "00000000000000000100"


def put(directory: Path, name: str, content: bytes) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_bytes(content)
    return str(directory / name)


def rows(path: str, **how: Any) -> list[dict[str, Any]]:
    found = list(dump(path, **how))
    for row in found:
        assert "\n" not in as_text(row)
    return found


def test_space_behind_the_last_batch_is_said_on_stderr(tmp_path: Path) -> None:
    batch = encode_batch([(1, None, b"v", ())], base_offset=100)
    segment = put(tmp_path, f"{NAME}.log", batch + bytes(4096))
    for words in ([], ["--json"]):
        ran = CliRunner().invoke(command, ["dump", segment, *words])
        assert ran.exit_code == 0 and len(ran.stdout.splitlines()) == 1
        assert f"the 4096 bytes from position {len(batch)} on are allocated" in ran.stderr
    put(tmp_path, f"{NAME}.log", batch)
    assert "allocated" not in CliRunner().invoke(command, ["dump", segment]).stderr


def only(rows: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["type"] == kind]


def segment(directory: Path, *batches: bytes, tail: bytes = bytes(5000)) -> str:
    return put(directory, f"{NAME}.log", b"".join(batches) + tail)


def test_segment(tmp_path: Path) -> None:
    records = [(1000, b"k", b"v", [(b"h", b"\xff")]), (1001, None, None, [])]
    path = segment(
        tmp_path / "t-0",
        encode_batch(records, base_offset=100, leader_epoch=3, codec=1, producer_id=9),
        encode_batch([(5, b"\xff", b"x", [])], base_offset=102),
    )
    batches = rows(path)
    assert [(b["base_offset"], b["last_offset"], b["count"]) for b in batches] == [
        (100, 101, 2),
        (102, 102, 1),
    ]
    first = batches[0]
    assert (first["position"], first["leader_epoch"], first["compression"]) == (0, 3, "gzip")
    assert (first["producer_id"], first["max_timestamp"], first["is_crc_right"]) == (9, 1001, True)
    assert batches[1]["position"] == first["size"]
    found = only(rows(path, with_records=True), "record")
    assert found == [
        {
            "type": "record",
            "offset": 100,
            "timestamp": 1000,
            "key": "k",
            "value": "v",
            "headers": [{"key": "h", "value_base64": "/w=="}],
        },
        {
            "type": "record",
            "offset": 101,
            "timestamp": 1001,
            "key": None,
            "value": None,
            "headers": [],
        },
        {
            "type": "record",
            "offset": 102,
            "timestamp": 5,
            "key_base64": "/w==",
            "value": "x",
            "headers": [],
        },
    ]


def test_offsets_bound_what_is_shown(tmp_path: Path) -> None:
    batches = [
        encode_batch([(0, None, b"%d" % n, [])] * 10, base_offset=100 + 10 * n) for n in range(3)
    ]
    path = segment(tmp_path / "t-0", *batches)
    found = rows(path, with_records=True, first=115, last=120)
    assert [row["base_offset"] for row in only(found, "batch")] == [110, 120]
    assert [row["offset"] for row in only(found, "record")] == [*range(115, 121)]


def test_wrong_crc_is_shown(tmp_path: Path) -> None:
    batch = bytearray(encode_batch([(0, None, b"v", [])], base_offset=100))
    batch[-2] ^= 1
    (row,) = rows(segment(tmp_path / "t-0", bytes(batch)))
    assert row["is_crc_right"] is False
    assert "WRONG" in as_text(row)


def test_damage_is_told_after_what_lies_before_it(tmp_path: Path) -> None:
    batch = encode_batch([(0, None, b"v", [])], base_offset=100)
    path = segment(tmp_path / "t-0", batch, tail=b"\1" * 100)
    found = dump(path)
    assert next(found)["base_offset"] == 100
    with pytest.raises(CorruptFault, match=f"at position {len(batch)}: neither"):
        next(found)
    path = segment(tmp_path / "t-0", batch, tail=batch[:-1])
    with pytest.raises(CorruptFault, match=f"at position {len(batch)}: the batch of"):
        list(dump(path))


def test_batch_larger_than_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "CHUNK_BYTES", 100)
    batches = [
        encode_batch([(0, None, bytes(size), [])], base_offset=100 + n)
        for n, size in enumerate((1, 30, 99, 100, 500, 1))
    ]
    found = rows(segment(tmp_path / "t-0", *batches))
    assert [row["size"] for row in found] == [len(batch) for batch in batches]
    assert all(row["is_crc_right"] for row in found)


def test_consumer_offsets(tmp_path: Path) -> None:
    key = {"group": "g", "topic": "t", "partition": 1}
    value = {"offset": 7, "metadata": "m", "commit_timestamp": 5}
    group = {"protocol_type": "consumer", "members": [{"member_id": "x", "assignment": b"\xff"}]}
    encode = coordinator_records
    records = [
        (5, encode.encode_key("group", 1, key), encode.encode_value("group", 1, 3, value), []),
        (5, encode.encode_key("group", 2, {"group": "g"}), None, []),
        (
            5,
            encode.encode_key("group", 2, {"group": "g"}),
            encode.encode_value("group", 2, 3, group),
            [],
        ),
        (5, b"\x7f\x00", b"?", []),
    ]
    path = segment(tmp_path / "__consumer_offsets-3", encode_batch(records, base_offset=100))
    commit, tombstone, metadata, unknown = only(rows(path, with_records=True), "record")
    assert (commit["record"], commit["key"], commit["version"]) == ("OffsetCommit", key, 3)
    assert commit["value"]["offset"] == 7
    assert (tombstone["record"], tombstone["value"]) == ("GroupMetadata", None)
    assert metadata["value"]["members"][0]["assignment_base64"]
    assert "unknown type" in unknown["not_decoded"]
    assert unknown["value"] == "?"


def test_transaction_state(tmp_path: Path) -> None:
    key = coordinator_records.encode_key("transaction", 0, {"transactional_id": "tx"})
    path = segment(
        tmp_path / "__transaction_state-0", encode_batch([(5, key, None, [])], base_offset=100)
    )
    (row,) = only(rows(path, with_records=True), "record")
    assert (row["record"], row["key"]) == ("TransactionLog", {"transactional_id": "tx"})


def test_cluster_metadata_and_its_snapshots(tmp_path: Path) -> None:
    topic = encode_metadata_record("TopicRecord", 0, {"name": "t", "topic_id": bytes(15) + b"\1"})
    header = codec.encode("SnapshotHeaderRecord", 0, {"last_contained_log_timestamp": 5})
    content = control_batch(3, header, timestamp=5) + encode_batch(
        [(5, None, topic, [])], base_offset=1
    )
    for name in (f"{NAME}.log", f"{NAME}-0000000001.checkpoint", "bootstrap.checkpoint"):
        found = rows(put(tmp_path / "__cluster_metadata-0", name, content), with_records=True)
        control, record = only(found, "record")
        assert control["control"] == "snapshot-header"
        assert control["value"]["last_contained_log_timestamp"] == 5
        assert record["record"] == "TopicRecord"
        assert record["value"] == {"name": "t", "topic_id": "AAAAAAAAAAAAAAAAAAAAAQ"}


def test_transaction_marker(tmp_path: Path) -> None:
    marker = control_batch(
        1, struct.pack(">hi", 0, 4), timestamp=5, base_offset=100, producer_id=1, producer_epoch=0
    )
    batch, record = rows(segment(tmp_path / "t-0", marker), with_records=True)
    assert (batch["is_control"], batch["is_transactional"]) == (True, True)
    assert (record["control"], record["value"]) == ("commit", {"coordinator_epoch": 4})


def test_indexes(tmp_path: Path) -> None:
    index = struct.pack(">IIII", 5, 4200, 9, 8400) + bytes(64)
    assert rows(put(tmp_path, f"{NAME}.index", index)) == [
        {"type": "entry", "offset": 105, "position": 4200},
        {"type": "entry", "offset": 109, "position": 8400},
    ]
    times = struct.pack(">qIqI", 1000, 5, 2000, 9) + bytes(24)
    path = put(tmp_path, f"{NAME}.timeindex", times)
    assert rows(path, first=106) == [{"type": "entry", "timestamp": 2000, "offset": 109}]
    aborted = struct.pack(">hqqqq", 0, 7, 100, 108, 100)
    (row,) = rows(put(tmp_path, f"{NAME}.txnindex", aborted))
    assert (row["producer_id"], row["first_offset"], row["offset"]) == (7, 100, 108)
    with pytest.raises(CorruptFault, match="at position 8: 3 bytes are no entry"):
        rows(put(tmp_path, f"{NAME}.index", index[:8] + b"\1\2\3"))


def test_small_files(tmp_path: Path) -> None:
    state = ProducerState()
    state.update(7, 2, 10, 4, 90, 1234)
    path = tmp_path / f"{NAME}.snapshot"
    state.write_snapshot(str(path))
    (row,) = rows(str(path))
    assert (row["producer_id"], row["last_sequence"], row["last_offset"]) == (7, 14, 94)
    path = tmp_path / checkpoints.RECOVERY_POINT
    checkpoints.write_offsets(str(path), {("t", 1): 5})
    assert rows(str(path)) == [{"type": "offset", "topic": "t", "partition": 1, "offset": 5}]
    assert rows(put(tmp_path, "leader-epoch-checkpoint", b"0\n1\n3 1187\n")) == [
        {"type": "epoch", "leader_epoch": 3, "start_offset": 1187}
    ]
    path = tmp_path / "partition.metadata"
    write_partition_metadata(str(path), bytes(16))
    assert rows(str(path)) == [{"type": "partition", "topic_id": "A" * 22}]
    path = tmp_path / "meta.properties"
    write_meta_properties(str(path), MetaProperties(3, "c", bytes(16)))
    assert rows(str(path))[0]["node.id"] == "3"
    stored = put(tmp_path, "meta.properties", b"! Java\ncluster.id=a\\=b\\u0063")
    assert rows(stored) == [{"type": "properties", "cluster.id": "a=bc"}]
    with pytest.raises(CorruptFault, match="hexadecimal"):
        rows(put(tmp_path, "meta.properties", b"cluster.id=\\uX"))
    assert rows(put(tmp_path, "quorum-state", b'{"leaderId":1}'))[0]["leaderId"] == 1
    with pytest.raises(CorruptFault, match="is no JSON"):
        rows(put(tmp_path, "quorum-state", b"{"))


def test_names_say_what_files_are(tmp_path: Path) -> None:
    for name, kind in {
        f"{NAME}.log": ".log",
        f"{NAME}.log.deleted": ".log",
        f"{NAME}.index.swap": ".index",
        f"{NAME}-0000000007.checkpoint": ".checkpoint",
        "replication-offset-checkpoint": "-offset-checkpoint",
        ".kafka_cleanshutdown": ".kafka_cleanshutdown",
        "1.log": None,
        "control.sock": None,
        f"{NAME}.log.bak": None,
    }.items():
        assert log_files.kind_of(f"/x/{name}") == kind
    with pytest.raises(StorageFault, match="there is no"):
        list(log_files.files_below(str(tmp_path / "gone")))
    with pytest.raises(StorageFault, match=r"can't read .*: Not a directory"):
        list(log_files.files_below(put(tmp_path, "plain", b"") + "/below"))
    with pytest.raises(StorageFault, match="by its name"):
        list(log_files.files_below(put(tmp_path, "notes.txt", b"")))


def test_moments() -> None:
    assert moment(0) == "1970-01-01T00:00:00.000Z"
    assert moment(1_795_301_662_292) == "2026-11-21T22:54:22.292Z"
    assert moment(-1) == "-1"
    assert moment(2**62) == str(2**62)
