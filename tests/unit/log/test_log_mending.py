"""What is damaged or impossible in the only replica of a log: named, and the rest served."""

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.log import quarantine
from shmbroker.log.config import LogConfig
from shmbroker.log.file_names import META_PROPERTIES
from shmbroker.log.lookups import offset_for_timestamp
from shmbroker.log.mending import NO_LIMIT, Hole, KeptBytes, Mend, survey, write_mended
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.retiring import delete_segments_before
from shmbroker.records.batch import encode_batch, iterate_batches, iterate_records
from shmbroker.records.batch_layout import LOG_OVERHEAD, STAMP

COUNT = 60
VALUE = 300
SIZE = len(encode_batch([(1000, b"k", b"v" * VALUE, [])]))
IN_SEGMENT = 12
SETTINGS = {"segment.bytes": str(IN_SEGMENT * SIZE), "index.interval.bytes": "1000"}
SPARSE = SETTINGS | {"cleanup.policy": "compact"}
BASES = list(range(0, COUNT, IN_SEGMENT))
STRAY = 9 * 10**18


class Slot:
    stored: tuple[int, int, int] | None = None

    def store(self, base: int, position: int, end: int) -> None:
        self.stored = base, position, end


def value_of(offset: int) -> bytes:
    return b"%04d" % offset + b"\xaa" * (VALUE - 4)


def batch_of(offset: int, **more: Any) -> bytes:
    return encode_batch([(1000 + offset, b"k", value_of(offset), [])], **more)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """With a log of five segments of twelve batches, closed cleanly."""
    path = tmp_path / "data" / "node-1"
    path.mkdir(parents=True)
    (path / META_PROPERTIES).write_text("node.id=1\n")
    log = PartitionLog.open(str(path / "t-0"), LogConfig(SETTINGS), file_ids=itertools.count(1))
    for offset in range(COUNT):
        batch = memoryview(batch_of(offset))
        log.append(batch, 0, 1000 + offset, offset // 40, 0)
    assert [segment.base_offset for segment in log.segments] == BASES
    log.close(clean=True)
    return path


def open_log(node: Path, settings: dict[str, str] = SETTINGS, **how: Any) -> PartitionLog:
    arguments = {"clean": False, "recovery_point": COUNT, "cleaned_offset": 0}
    arguments |= {"is_only_replica": True, **how}
    return PartitionLog.open(
        str(node / "t-0"), LogConfig(settings), file_ids=itertools.count(100), **arguments
    )


def read_all(log: PartitionLog, max_bytes: int = 2000) -> dict[int, bytes]:
    """As a consumer does it: what is served, from the log's start to its end."""
    found: dict[int, bytes] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        place = log.read(offset, max_bytes, log.log_end_offset)
        assert place is not None
        segment, position, length = place
        if not length:
            break
        data = segment.read_bytes(position, length)
        for at, header in iterate_batches(data):
            for record in iterate_records(data, at):
                assert record[0] not in found
                found[record[0]] = record[3]
            offset = header[0] + header[6] + 1
    return found


def segment_file(node: Path, base: int) -> Path:
    return node / "t-0" / f"{base:020d}.log"


def aside(node: Path) -> Path:
    return node.parent / "quarantine" / "node-1" / "t-0"


def change(node: Path, base: int, number: int, at: int, data: bytes) -> None:
    """Bytes of a batch of a segment are others."""
    with open(segment_file(node, base), "r+b") as file:
        file.seek(number * SIZE + at)
        file.write(data)


def offset_bytes(offset: int) -> bytes:
    return offset.to_bytes(8, "big")


def remove_middle(node: Path, number: int) -> None:
    path = segment_file(node, 12)
    content = path.read_bytes()
    path.write_bytes(content[: number * SIZE] + content[(number + 1) * SIZE :])


DAMAGE: dict[str, tuple[Callable[[Path], None], set[int]]] = {
    "a bit of a value": (lambda node: change(node, 12, 3, 100, b"\x00"), {15}),
    "a length": (lambda node: change(node, 12, 3, 8, b"\x00\x00\x77\x77"), {15}),
    "a magic": (lambda node: change(node, 12, 3, 16, b"\x01"), {15}),
    "a header": (lambda node: change(node, 12, 3, 0, b"\xff" * 61), {15}),
    "zeros over two": (lambda node: change(node, 12, 3, 50, bytes(SIZE)), {15, 16}),
    "a sector": (
        lambda node: change(node, 12, 3, 90, bytes(1536 - 90 - 3 * SIZE)),
        {15, 16},
    ),
    "two places": (
        lambda node: (change(node, 12, 2, 99, b"\0"), change(node, 12, 7, 99, b"\0"))[0],
        {14, 19},
    ),
    "the first": (lambda node: change(node, 12, 0, 99, b"\0"), {12}),
    "the last": (lambda node: change(node, 12, 11, 99, b"\0"), {23}),
    "the last's length": (lambda node: change(node, 12, 11, 8, b"\x7f"), {23}),
    "cut short": (lambda node: os.truncate(segment_file(node, 12), 5 * SIZE), set(range(17, 24))),
    "cut in a batch": (
        lambda node: os.truncate(segment_file(node, 12), 5 * SIZE + 9),
        set(range(17, 24)),
    ),
    "all of it": (
        lambda node: segment_file(node, 12).write_bytes(b"\xfe" * 12 * SIZE) and None,
        set(range(12, 24)),
    ),
    "emptied": (lambda node: segment_file(node, 12).write_bytes(b"") and None, set(range(12, 24))),
    "another's content": (
        lambda node: shutil.copyfile(segment_file(node, 0), segment_file(node, 12)) and None,
        set(range(12, 24)),
    ),
    "gone": (lambda node: segment_file(node, 12).unlink(), set(range(12, 24))),
    "a batch is taken out": (lambda node: remove_middle(node, 4), {16}),
    # What no CRC covers: the neighbours know it.
    "an offset further": (lambda node: change(node, 12, 3, 0, offset_bytes(18)), set()),
    "an offset back": (lambda node: change(node, 12, 3, 0, offset_bytes(13)), set()),
    "the offset of the next": (lambda node: change(node, 12, 3, 0, offset_bytes(16)), set()),
    "an offset far away": (lambda node: change(node, 12, 3, 0, offset_bytes(STRAY)), set()),
    "the last one's offset": (lambda node: change(node, 12, 11, 0, offset_bytes(30)), set()),
    "a leader epoch": (lambda node: change(node, 12, 3, 12, b"\0\0\0\x09"), set()),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_whole_behind_damage_is_served(
    node: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    damage, lost = DAMAGE[name]
    damage(node)
    segment_file(node, 12).with_suffix(".index").unlink()  # Else the scan begins further on.
    served = {offset: value_of(offset) for offset in range(COUNT) if offset not in lost}
    log = open_log(node, recovery_point=24)  # so that the second segment is scanned
    assert log.damage_count == len([row for row in caplog.records if row.levelname == "ERROR"]) > 0
    assert log.log_end_offset == COUNT
    assert read_all(log) == served
    assert [log.leader_epochs.epoch_at(offset) for offset in (0, 39, 40)] == [0, 0, 1]
    for offset in served:
        assert offset_for_timestamp(log, 1000 + offset) == (1000 + offset, offset)
    cleaned = log.cleaned_offset
    assert cleaned == (max(lost) + 1 if lost else 0)
    log.close(clean=True)
    # It stays so, however the next start looks at it.
    caplog.clear()
    for how in ({"clean": True}, {"recovery_point": 0}, {"recovery_point": 24}):
        again = open_log(node, cleaned_offset=cleaned, **how)
        assert read_all(again) == served
        assert again.log_end_offset == COUNT
        assert not again.damage_count
        again.close(clean=False)
    assert not [row for row in caplog.records if row.levelname == "ERROR"]
    aside = node.parent / "quarantine" / "node-1" / "t-0"
    if lost and name not in ("cut short", "emptied", "gone", "a batch is taken out"):
        assert min(int(path.name[:20]) for path in aside.iterdir()) == min(lost)


SPARSE_DAMAGE = {
    name: DAMAGE[name]
    for name in ("a bit of a value", "a length", "two places", "another's content", "gone")
} | {
    "an offset further": (lambda node: change(node, 12, 3, 0, offset_bytes(18)), set()),
    "an offset back": (lambda node: change(node, 12, 3, 0, offset_bytes(13)), set()),
}


@pytest.fixture
def short_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that are asked for at once, of which each read gives some."""
    real = os.pread
    asked: list[int] = []

    def pread(fd: int, length: int, position: int) -> bytes:
        asked.append(length)
        return real(fd, min(length, 50), position)

    monkeypatch.setattr(os, "pread", pread)
    monkeypatch.setattr(quarantine, "COPY_BYTES", 64)
    return asked


@pytest.mark.parametrize("zeros", [0, 1, 64, 5000])
def test_a_tail_is_put_aside_by_steps(node: Path, short_reads: list[int], zeros: int) -> None:
    path = segment_file(node, 24)
    tail = path.read_bytes()[3 * SIZE :] + bytes(100) + b"x"
    with path.open("ab") as file:
        file.write(bytes(100) + b"x" + bytes(zeros))
    assert quarantine.put_tail_aside(str(path), 3 * SIZE, is_any=True) == len(tail)
    assert (aside(node) / path.name).read_bytes() == tail
    assert max(short_reads) <= 64
    assert quarantine.put_tail_aside(str(path), 3 * SIZE + len(tail), is_any=True) == 0


def test_what_a_hole_takes_is_put_aside_by_steps(node: Path, short_reads: list[int]) -> None:
    path = segment_file(node, 24)
    content = path.read_bytes()
    hole = Hole(3 * SIZE, 5 * SIZE, 27, 29)
    kept = [KeptBytes(0, 3 * SIZE, None), KeptBytes(5 * SIZE, 6 * SIZE, None)]
    beside = str(path) + ".tmp"
    write_mended(str(path), Mend(kept, [hole], [], 36, 0, 7 * SIZE), beside)
    assert (aside(node) / f"{27:020d}.log").read_bytes() == content[3 * SIZE : 5 * SIZE]
    left = content[: 3 * SIZE] + content[5 * SIZE : 6 * SIZE] + content[7 * SIZE :]
    assert Path(beside).read_bytes() == left
    assert max(short_reads) <= 64


def test_a_file_that_has_less_than_is_to_be_copied_is_a_fault(node: Path) -> None:
    path = segment_file(node, 24)
    kept = [KeptBytes(0, path.stat().st_size + 1, None)]
    with pytest.raises(StorageFault):
        write_mended(str(path), Mend(kept, [], [], 36, 0, 7 * SIZE), str(path) + ".tmp")


@pytest.mark.parametrize("name", SPARSE_DAMAGE)
def test_compacted_logs_are_mended_too(node: Path, name: str) -> None:
    damage, lost = SPARSE_DAMAGE[name]
    damage(node)
    segment_file(node, 12).with_suffix(".index").unlink()
    log = open_log(node, SPARSE, recovery_point=24)
    assert log.log_end_offset == COUNT
    assert read_all(log) == {at: value_of(at) for at in range(COUNT) if at not in lost}
    assert log.cleaned_offset == 0, "that is how far compaction has been"
    log.close(clean=False)


@pytest.mark.parametrize(
    ("name", "recovery_point", "end"),
    [
        ("a bit of a value", 0, 60),  # No power cut does that.
        ("the offset of the next", 0, 60),
        ("a sector", 0, 15),  # This is what one does.
        ("cut short", 0, 17),
        ("cut in a batch", 0, 17),
        ("gone", 0, 12),
        ("a sector", 24, 60),
        ("a sector", 15, 15),  # What was flushed ends right before it.
        ("a sector", 16, 60),
    ],
)
def test_torn_write_is_cut_and_damage_is_not(
    node: Path, name: str, recovery_point: int, end: int
) -> None:
    DAMAGE[name][0](node)
    segment_file(node, 12).with_suffix(".index").unlink()
    log = open_log(node, recovery_point=recovery_point)
    assert log.log_end_offset == end
    assert set(read_all(log)) == set(range(end)) - (DAMAGE[name][1] if end == COUNT else set())
    log.close(clean=False)


@pytest.mark.parametrize("recovery_point", [0, 24])
def test_where_other_replicas_are_no_hole_is_made(node: Path, recovery_point: int) -> None:
    change(node, 12, 3, 100, b"\x00")
    segment_file(node, 12).with_suffix(".index").unlink()
    log = open_log(node, recovery_point=recovery_point, is_only_replica=False)
    if recovery_point:
        assert log.log_end_offset == COUNT
        with pytest.raises(CorruptFault):
            log.read(15, 1000, COUNT)
        assert log.read(16, 1000, COUNT)
    else:
        assert log.log_end_offset == 15
    assert log.cleaned_offset == 0
    log.close(clean=False)


# --- segments that don't belong there ---


STRAYS = {
    "empty, far away": (STRAY, lambda node: b""),
    "empty, near": (COUNT + 1000, lambda node: b""),
    "of another log": (STRAY, lambda node: segment_file(node, 12).read_bytes()),
    "empty, within another": (18, lambda node: b""),
    "empty, within the last": (50, lambda node: b""),
    "a copy, within another": (18, lambda node: segment_file(node, 0).read_bytes()),
}


@pytest.mark.parametrize(
    ("name", "how"),
    [
        (name, how)
        for name in STRAYS
        for how in ("clean", "killed", "successor")
        # Without a scan nobody looks in the midst: a reader is refused, `log verify` says why.
        if how == "killed" or STRAYS[name][0] != 18
    ],
)
def test_stray_segment_is_put_aside(
    node: Path, name: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    base, content = STRAYS[name]
    trusted = (48, 12 * SIZE, COUNT)
    segment_file(node, base).write_bytes(content(node))
    log = open_log(
        node,
        clean=how == "clean",
        trusted=trusted if how == "successor" else None,
        recovery_point=24 if how == "killed" else COUNT,
    )
    assert log.log_end_offset == COUNT
    assert log.damage_count
    assert read_all(log) == {at: value_of(at) for at in range(COUNT)}
    assert log.active.base_offset == 48
    assert f"{base:020d}.log" in caplog.text
    aside = node.parent / "quarantine" / "node-1" / "t-0" / f"{base:020d}.log"
    assert aside.exists() == (not segment_file(node, base).exists()) is True
    log.close(clean=False)


@pytest.mark.parametrize("how", ["clean", "killed", "successor"])
def test_empty_segment_behind_the_last_is_where_the_log_goes_on(node: Path, how: str) -> None:
    slot = Slot()
    log = open_log(node, clean=True)
    log.roll()
    log.active.create_files()
    log.close(clean=True)
    trusted = (COUNT, 0, COUNT)
    again = open_log(
        node,
        clean=how == "clean",
        trusted=trusted if how == "successor" else None,
        recovery_point=COUNT if how == "clean" else 24,
        position_slot=slot,
    )
    assert again.log_end_offset == again.active.base_offset == COUNT
    assert not again.damage_count
    again.close(clean=False)


def test_empty_segment_behind_a_gap_of_compaction_stays(node: Path) -> None:
    segment_file(node, 72).write_bytes(b"")
    for cleaned in (72, -1):
        log = open_log(node, SPARSE, recovery_point=24, cleaned_offset=cleaned)
        assert log.log_end_offset == 72
        assert not log.damage_count
        log.close(clean=False)
    # Nobody knows how far compaction has been, but no gap is so wide.
    segment_file(node, 72).rename(segment_file(node, STRAY))
    log = open_log(node, SPARSE, recovery_point=24, cleaned_offset=-1)
    assert log.log_end_offset == COUNT
    assert log.damage_count
    log.close(clean=False)


# --- checkpoints that can't be ---


@pytest.mark.parametrize("clean", [True, False])
def test_log_start_beyond_the_end_is_named_and_not_used(
    node: Path, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(node, clean=clean, log_start_offset=5000)
    assert (log.log_start_offset, log.log_end_offset) == (0, COUNT)
    assert "begins at 5000: that can't be" in caplog.text
    assert len(read_all(log)) == COUNT
    assert not delete_segments_before(log, log.log_start_offset)
    log.close(clean=False)


def test_log_of_which_everything_was_deleted_stays_so(node: Path) -> None:
    log = open_log(node, clean=True, log_start_offset=COUNT)
    assert log.log_start_offset == log.log_end_offset == COUNT
    assert not log.damage_count
    log.close(clean=False)


@pytest.mark.parametrize("clean", [True, False])
def test_recovery_point_beyond_the_end_is_named(node: Path, clean: bool) -> None:
    change(node, 12, 3, 100, b"\x00")
    log = open_log(node, clean=clean, recovery_point=STRAY)
    assert log.log_end_offset == log.recovery_point == COUNT
    assert log.damage_count
    log.close(clean=False)
    # Not even a segment bears it out.
    shutil.copyfile(segment_file(node, 12), segment_file(node, STRAY))
    log = open_log(node, clean=clean, recovery_point=STRAY)
    assert log.log_end_offset == COUNT
    log.close(clean=False)


@pytest.mark.parametrize(("recovery_point", "wrong", "epoch"), [(3, 1, 0), (2, 2, 1), (0, 2, 1)])
def test_epoch_is_not_judged_by_a_head_that_may_be_torn(
    recovery_point: int, wrong: int, epoch: int
) -> None:
    """The last byte of the head of the batch behind is in a sector that was not written since."""
    batches = [bytearray(batch_of(offset)) for offset in range(3)]
    for offset, of_batch in enumerate((0, 1, 0)):
        STAMP.pack_into(batches[offset], 0, offset, SIZE - LOG_OVERHEAD, of_batch)
    mend = survey(
        b"".join(batches),
        base=0,
        epoch=0,
        limit=NO_LIMIT,
        gaps_end=0,
        recovery_point=recovery_point,
    )
    assert mend.moved == [(wrong * SIZE, wrong, wrong)]
    assert (mend.end_offset, mend.epoch) == (3, epoch)


def test_epochs_are_not_rebuilt_from_a_batch_that_lost_its_base_offset(node: Path) -> None:
    (node / "t-0" / "leader-epoch-checkpoint").unlink()
    # Torn: the sector with its base offset was not written, the one with its epoch was.
    change(node, 48, 11, 0, offset_bytes(0))
    before = [segment_file(node, base).read_bytes() for base in BASES[:-1]]
    log = open_log(node, recovery_point=COUNT - 3)
    assert log.leader_epochs.entries == [(0, 0), (1, 40)]
    assert [segment_file(node, base).read_bytes() for base in BASES[:-1]] == before
    assert log.log_end_offset == COUNT - 1
    log.close(clean=True)


def test_impossible_epochs_are_named_and_not_used(
    node: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = node / "t-0" / "leader-epoch-checkpoint"
    path.write_text("0\n3\n0 0\n1 40\n7 5000\n")
    log = open_log(node, clean=True)
    assert log.leader_epochs.entries == [(0, 0), (1, 40)]
    assert "leader epoch 7 begin at 5000" in caplog.text
    log.close(clean=False)
    path.write_text("0\n2\n0 0\n1000 24\n")
    again = open_log(node, recovery_point=24)
    assert again.log_end_offset == COUNT
    assert again.leader_epochs.entries == [(0, 0), (1, 40)]
    again.close(clean=False)


@pytest.mark.parametrize("name", [STRAY, 12])
def test_snapshot_under_a_wrong_name_is_not_used(
    node: Path, name: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(node, clean=True)
    for sequence in range(20):
        batch = batch_of(COUNT + sequence, producer_id=7, producer_epoch=0, base_sequence=sequence)
        log.append(memoryview(batch), 0, 2000, 1, 0)
        log.producers.update(7, 0, sequence, 0, COUNT + sequence, 2000)
    log.close(clean=True)
    directory = node / "t-0"
    wrong = directory / f"{name:020d}.snapshot"
    (directory / f"{log.log_end_offset:020d}.snapshot").rename(wrong)
    for path in directory.glob("*.snapshot"):
        if path != wrong:
            path.unlink()
    again = open_log(node, clean=True, recovery_point=COUNT + 20)
    assert again.producers.producers[7].next_sequence == 20
    assert wrong.name[:20].lstrip("0") in caplog.text
    again.close(clean=False)


# --- readers, where no start has looked ---


@pytest.mark.parametrize("settings", [SETTINGS, SPARSE], ids=["dense", "compacted"])
@pytest.mark.parametrize("moved_to", [0, 13, 14, 16, 17, 18, 23, 30, STRAY])
@pytest.mark.parametrize("max_bytes", [1, SIZE * 2, 1 << 20])
def test_nothing_is_served_under_an_offset_that_the_neighbours_contradict(
    node: Path, settings: dict[str, str], moved_to: int, max_bytes: int
) -> None:
    change(node, 12, 3, 0, offset_bytes(moved_to))
    log = open_log(node, settings, clean=True)
    served: dict[int, bytes] = {}
    for offset in range(COUNT):
        try:
            place = log.read(offset, max_bytes, COUNT)
        except CorruptFault:
            continue
        assert place is not None
        segment, position, length = place
        data = segment.read_bytes(position, length)
        for at, _ in iterate_batches(data):
            served |= {record[0]: record[3] for record in iterate_records(data, at)}
    for offset, value in served.items():
        assert value == value_of(offset)
    # And hardly anything else is refused.
    assert set(range(COUNT)) - set(served) <= {14, 15, 16, 17}
    log.close(clean=False)
