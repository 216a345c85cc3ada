"""`log verify` passes what is right, and names the first fault of what isn't."""

import errno
import gc
import os
import re
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from shmbroker.cli import commands
from shmbroker.log import checkpoints
from shmbroker.log.producer_state import ProducerState
from shmbroker.records.batch import encode_batch
from shmbroker.tools import log_files
from shmbroker.tools.log_verify import verify

FIRST, SECOND = "00000000000000000000", "00000000000000000040"


def batch(base_offset: int, *, epoch: int = 1, timestamp: int | None = None) -> bytes:
    """Ten records, of one size whatever they are."""
    at = 1_000_000 + base_offset if timestamp is None else timestamp
    records = [(at, b"k", b"v" * 50, [])] * 10
    return encode_batch(records, base_offset=base_offset, leader_epoch=epoch)


SIZE = len(batch(0))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A partition of two segments of four batches each, with all that belongs to it."""
    directory = tmp_path / "node-1" / "t-0"
    directory.mkdir(parents=True)
    for name, base in ((FIRST, 0), (SECOND, 40)):
        batches = b"".join(batch(base + 10 * n) for n in range(4))
        (directory / f"{name}.log").write_bytes(batches + bytes(4096))
        (directory / f"{name}.index").write_bytes(
            struct.pack(">4I", 19, SIZE, 39, 3 * SIZE) + bytes(32)
        )
        times = struct.pack(">qIqI", 1_000_010 + base, 19, 1_000_030 + base, 39)
        (directory / f"{name}.timeindex").write_bytes(times + bytes(24))
    state = ProducerState()
    state.update(7, 0, 0, 9, 70, 1000)
    state.write_snapshot(str(directory / f"{SECOND}.snapshot"))
    (directory / "leader-epoch-checkpoint").write_text("0\n1\n1 0\n")
    (directory / "partition.metadata").write_text("version: 0\ntopic_id: " + "A" * 22)
    checkpoints.write_offsets(str(tmp_path / "node-1" / checkpoints.RECOVERY_POINT), {("t", 0): 80})
    return directory


def test_sound_log_passes(log: Path) -> None:
    node, partition = verify(str(log.parent), with_records=True)
    assert node.fault is None
    assert partition.fault is None
    assert (partition.segments, partition.batches, partition.records) == (2, 8, 80)
    assert (partition.first_offset, partition.end_offset) == (0, 80)
    assert partition.bytes == 8 * SIZE


def test_gaps_of_compaction_are_right(log: Path) -> None:
    (log / f"{FIRST}.log").write_bytes(batch(10) + batch(30))
    for name in (f"{FIRST}.index", f"{FIRST}.timeindex"):
        (log / name).write_bytes(b"")
    (found,) = verify(str(log))
    assert found.fault is None
    assert (found.first_offset, found.records) == (10, 60)


def overwrite(name: str, position: int, content: bytes) -> Callable[[Path], None]:
    def damage(log: Path) -> None:
        with open(log / name, "r+b") as file:
            file.seek(position)
            file.write(content)

    return damage


def replace(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda log: (log / name).write_bytes(content) and None


def checkpoint(name: str, offsets: dict[tuple[str, int], int]) -> Callable[[Path], None]:
    return lambda log: checkpoints.write_offsets(str(log.parent / name), offsets)


STRAY = "09000000000000000000"
LOG, INDEX, TIMES = f"{FIRST}.log", f"{FIRST}.index", f"{FIRST}.timeindex"
DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a bit of a record": (overwrite(LOG, SIZE + 70, b"\xff"), f"position {SIZE}: wrong CRC"),
    "a hole of zeros": (overwrite(LOG, SIZE, bytes(SIZE)), f"position {SIZE}: neither"),
    "garbage behind the end": (overwrite(LOG, 4 * SIZE + 9, b"x"), f"position {4 * SIZE}: neither"),
    "a torn batch": (
        replace(LOG, b"".join(batch(10 * n) for n in range(4))[:-1]),
        f"position {3 * SIZE}: the batch of {SIZE} bytes does not end",
    ),
    "offsets that go back": (
        overwrite(LOG, 2 * SIZE, batch(10)),
        "offsets 10 to 19 where 20 or more is due",
    ),
    "a leader epoch that goes back": (
        overwrite(LOG, 2 * SIZE, batch(20, epoch=0)),
        "leader epoch 0 follows 1",
    ),
    "an offset that jumps": (
        overwrite(LOG, 2 * SIZE, batch(25)),
        f"position {3 * SIZE}: offsets 30 to 39 where 35 or more is due",
    ),
    "an empty segment far away": (replace(f"{STRAY}.log", b""), f"{STRAY}.log begins"),
    "an empty segment within another": (
        replace("00000000000000000025.log", b""),
        f"position {2 * SIZE}: offsets 20 to 29, and the next segment begins at 25",
    ),
    "a log start beyond the end": (
        checkpoint(checkpoints.LOG_START_OFFSET, {("t", 0): 5000}),
        "ends at offset 80, and",
    ),
    "a recovery point beyond the end": (
        checkpoint(checkpoints.RECOVERY_POINT, {("t", 0): 81}),
        "says flushed up to offset 81",
    ),
    "a directory that is gone": (
        checkpoint(checkpoints.HIGH_WATERMARK, {("t", 0): 80, ("t", 7): 12}),
        "t-7 is gone, and checkpoints know it: its high watermark is 12",
    ),
    "a segment before the end of the last": (
        overwrite(LOG, 3 * SIZE, batch(35, timestamp=1_000_030)),
        f"position {3 * SIZE}: offsets 35 to 44, and the next segment begins at 40",
    ),
    "a batch before its segment": (
        overwrite(f"{SECOND}.log", 0, batch(30)),
        "offsets 30 to 39 where 40 or more is due",
    ),
    "an old magic": (overwrite(LOG, 16, b"\1"), "position 0: neither a record batch of magic 2"),
    "an index entry between batches": (
        overwrite(INDEX, 0, struct.pack(">II", 19, SIZE + 1)),
        f"{INDEX} at position 0: no batch begins at position {SIZE + 1}",
    ),
    "an index entry too far on": (
        overwrite(INDEX, 0, struct.pack(">II", 9, SIZE)),
        f"{INDEX} at position 0: offset 9 is before the batch at {SIZE}",
    ),
    "an index that goes back": (
        overwrite(INDEX, 8, struct.pack(">II", 10, 3 * SIZE)),
        f"{INDEX} at position 8: entry",
    ),
    "an index entry behind the segment": (
        overwrite(INDEX, 8, struct.pack(">II", 49, 4 * SIZE)),
        f"{INDEX} at position 8: entry (49, {4 * SIZE}) lies behind the end",
    ),
    "an entry behind an index's end": (
        overwrite(INDEX, 24, b"\1"),
        f"{INDEX} at position 16: neither",
    ),
    "a timestamp of no batch": (
        overwrite(TIMES, 0, struct.pack(">qI", 1_000_011, 19)),
        f"{TIMES} at position 0: timestamp 1000011, but the batch of offset 19 has 1000010",
    ),
    "a time index that goes back": (
        overwrite(TIMES, 12, struct.pack(">qI", 1_000_009, 39)),
        f"{TIMES} at position 12: entry",
    ),
    "half an index entry": (replace(INDEX, b"\0\0\0\x13\0"), f"{INDEX} at position 0: 5 bytes"),
    "a torn snapshot": (
        overwrite(f"{SECOND}.snapshot", 20, b"\xff"),
        "no whole producer snapshot",
    ),
    "a bad aborted transaction": (
        replace(f"{FIRST}.txnindex", struct.pack(">hqqqq", 0, 7, 9, 8, 0)),
        f"{FIRST}.txnindex at position 0",
    ),
    "epochs that go back": (
        replace("leader-epoch-checkpoint", b"0\n2\n1 0\n0 5\n"),
        "does not grow",
    ),
    "an id that is none": (
        replace("partition.metadata", b"version: 0\ntopic_id: x"),
        "the topic id is no uuid",
    ),
    "a checkpoint cut short": (
        lambda log: (log.parent / checkpoints.RECOVERY_POINT).write_text("0\n2\nt 0 5\n") and None,
        "line 2: does not count",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(log: Path, name: str) -> None:
    damage, complaint = DAMAGE[name]
    damage(log)
    faults = [found.fault for found in verify(str(log.parent)) if found.fault]
    assert len(faults) == 1
    assert complaint in faults[0]


def test_records_that_lie_are_found_when_walked(log: Path) -> None:
    lying = bytearray(batch(0))
    lying[57:61] = struct.pack(">i", 9)  # count; the CRC is made right again
    from shmbroker.crc32c import crc32c

    lying[17:21] = struct.pack(">I", crc32c(bytes(lying[21:])))
    overwrite(LOG, 0, bytes(lying))(log)
    assert next(verify(str(log))).fault is None
    fault = next(verify(str(log), with_records=True)).fault
    assert fault and re.search(r"position 0: bytes are left over", fault)


def test_a_fault_leaves_no_file_open(log: Path) -> None:
    overwrite(LOG, SIZE + 70, b"\xff")(log)
    gc.disable()  # what is open must not wait for a collection
    try:
        list(verify(str(log)))
        files = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    finally:
        gc.enable()
    assert [file for file in files if file.startswith(str(log))] == []


def test_single_files(log: Path) -> None:
    for name in (LOG, INDEX, TIMES, f"{SECOND}.snapshot"):
        (found,) = verify(str(log / name))
        assert (found.path, found.fault) == (str(log / name), None)
    overwrite(INDEX, 8, struct.pack(">II", 10, 3 * SIZE))(log)
    (found,) = verify(str(log / INDEX))
    assert found.fault and "does not grow" in found.fault


def test_what_a_broker_takes_away_meanwhile_is_no_fault(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted, retained, compacted: between the listing and the look at it."""
    node = log.parent
    deleted = node / f"u-0.{'0' * 32}-delete"
    shutil.copytree(log, deleted)
    shutil.copytree(log, node / "v-0")
    listed = list(log_files.files_below(str(node)))
    assert len(listed) == 1 + 3 * 9

    def vanish(path: str) -> Iterator[str]:
        shutil.rmtree(deleted)
        (node / "v-0").rename(node / f"v-0.{'1' * 32}-delete")
        for suffix in (".log", ".index", ".timeindex"):
            (log / f"{FIRST}{suffix}").unlink()
        (log / f"{SECOND}.snapshot").unlink()
        yield from listed

    monkeypatch.setattr(log_files, "files_below", vanish)
    found = list(verify(str(node)))
    assert [(verdict.path, verdict.fault) for verdict in found] == [
        (str(node), None),
        (str(log), None),
    ]
    assert (found[1].segments, found[1].first_offset) == (1, 40)
    monkeypatch.undo()
    gone = str(log / f"{FIRST}.log")
    monkeypatch.setattr(
        log_files, "files_below", lambda path: iter([gone, str(log / f"{SECOND}.log")])
    )
    ran = CliRunner().invoke(commands.main, ["log", "dump", str(log)])
    assert ran.exit_code == 0, ran.output
    assert f"{gone} is gone meanwhile" in ran.output


def test_pieces_from_the_remote_store_are_no_log(log: Path) -> None:
    """Two readers had the same batches fetched, the second from an offset amid the first's."""
    pieces = log.parent.parent / "tier-cache" / "node-1.1" / f"{'0' * 32}-0"
    pieces.mkdir(parents=True)
    (pieces / f"{FIRST}.log").write_bytes(b"".join(batch(10 * n) for n in range(4)))
    (pieces / f"{10:020}.log").write_bytes(b"".join(batch(10 * n) for n in range(1, 4)))
    found = {one.path: one.fault for one in verify(str(log.parent.parent))}
    assert found == {str(log): None, str(log.parent): None}


def test_disk_that_cannot_be_read_is_a_fault(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", refused)
    found = next(one for one in verify(str(log)) if one.path == str(log))
    assert found.fault and "Input/output error" in found.fault and str(log) in found.fault


def test_command_fails_with_the_fault(log: Path) -> None:
    def run() -> tuple[int, str]:
        ran = CliRunner().invoke(commands.main, ["log", "verify", str(log.parent)])
        return ran.exit_code, ran.output

    status, output = run()
    assert (status, output.count("ok  ")) == (0, 2)
    overwrite(LOG, SIZE + 70, b"\xff")(log)
    status, output = run()
    assert status == 1
    assert f"BAD {log / LOG} at position {SIZE}: wrong CRC" in output
    assert "1 of 2 places are damaged" in output
