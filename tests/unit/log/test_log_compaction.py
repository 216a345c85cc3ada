"""Compaction, its parts: hashes, the map, what is cleanable, damage, deaths between two renames."""

import errno
import itertools
import os
import random
import shutil

import numpy as np
import pytest

from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.kernels import native
from shmbroker.log.compaction import chunks as compaction_chunks
from shmbroker.log.compaction import cleaned_files
from shmbroker.log.compaction import engine as compaction_engine
from shmbroker.log.compaction.cleanable import find_cleanable
from shmbroker.log.compaction.compactor import compact
from shmbroker.log.compaction.key_offsets import SLACK_BYTES, KeyHash
from shmbroker.log.compaction.swap import prepare_swap
from shmbroker.log.retention import retain
from shmbroker.log.retiring import set_aside
from shmbroker.records.batch import iterate_records
from shmbroker.records.batch_layout import BATCH_HEADER, CONTROL_BIT, DELETE_HORIZON_BIT
from tests.support.compaction_logs import (
    COMPACT,
    ENGINES,
    append,
    batches_of,
    compact_log,
    end_transaction,
    groups_of,
    last_batches,
    open_log,
    records_of,
    settings_of,
    sources_of,
    swap,
)
from tests.support.kills import kill_after

engines = pytest.mark.parametrize("engine", ENGINES, ids=lambda one: one.__name__[-6:])


def hashes_of(key_hash, keys):
    raw = np.frombuffer(b"".join(keys) + bytes(SLACK_BYTES), np.uint8)
    length = np.array([len(key) for key in keys], np.int64)
    return key_hash.hash(raw, np.cumsum(length) - length, length)


def test_hash_tells_keys_apart_and_knows_them_again():
    source = random.Random(1)
    keys = [bytes(n) for n in range(300)]  # zeros: only their length differs
    keys += [source.randbytes(source.randrange(1, 400)) for _ in range(500)]
    keys += [b"sensor-%d" % n for n in range(20_000)]
    key_hash = KeyHash()
    hashes = hashes_of(key_hash, keys)
    assert len(np.unique(hashes, axis=0)) == len(set(keys))
    places = list(range(len(keys)))
    source.shuffle(places)
    again = hashes_of(key_hash, [keys[place] for place in places])
    assert (again == hashes[places]).all()
    assert (hashes_of(KeyHash(), keys[:100]) != hashes[:100]).any()


@pytest.mark.skipif(native is None, reason="the kernels are not built here")
def test_kernels_hash_as_numpy_does(tmp_path):
    log = open_log(tmp_path / "t-0", COMPACT | {"segment.bytes": "1000000"})
    source = random.Random(2)
    keys = [bytes(n) for n in range(300)] + [source.randbytes(n) for n in range(260)]
    append(log, [(1, key, b"v" * source.randrange(3)) for key in keys])
    append(log, [(1, key, None) for key in keys if key])
    log.roll()
    key_hash, found = KeyHash(), []
    for engine in ENGINES:
        (chunk,) = compaction_chunks.read_chunks(
            log.directory, sources_of(log)[0], engine.find_batches
        )
        hashes, offsets = engine.hash_keys(chunk, key_hash, np.array([True, True]), 7)
        found.append((hashes.tolist(), offsets.tolist()))
    assert found[0] == found[1]
    assert found[0][0] == hashes_of(key_hash, [*keys, *filter(None, keys)])[7:].tolist()


@engines
@pytest.mark.parametrize("distinct", [1, 50, 30_000])
def test_map_is_a_dict(distinct, engine):
    source = np.random.default_rng(distinct)
    offsets, model, key_hash = engine.KeyOffsets(24 * 60_000), {}, KeyHash()
    for start in range(0, 60_000, 20_000):
        numbers = source.integers(0, distinct, 20_000)
        hashes = hashes_of(key_hash, [b"%d" % number for number in numbers])
        rows = np.arange(start, start + 20_000)
        assert offsets.put(hashes, rows) == 20_000
        model |= dict(zip(numbers.tolist(), rows.tolist(), strict=True))
    asked = list(range(-5, distinct))
    found = offsets.get(hashes_of(key_hash, [b"%d" % number for number in asked]))
    assert found.tolist() == [model.get(number, -1) for number in asked]
    assert (offsets.count, offsets.latest_offset) == (len(model), 59_999)


@engines
def test_full_map_says_how_far_it_came(engine):
    hashes = hashes_of(KeyHash(), [b"%d" % number for number in range(1000)])
    offsets = engine.KeyOffsets(24 * 100)
    assert offsets.put(hashes, np.arange(1000)) == 70
    assert offsets.latest_offset == 69
    assert offsets.get(hashes[:100]).tolist() == [*range(70), *[-1] * 30]


def fill(log, rounds=6, codec=0):
    """Ten keys over and over, a segment for each round."""
    for number in range(rounds):
        for key in range(10):
            append(log, [(1000 + number, b"k%d" % key, b"%d" % number * 20)] * 2, codec)
        log.roll()


def test_what_is_cleanable(tmp_path):
    log = open_log(tmp_path / "t-0")
    assert find_cleanable(log, -1, 0, 2000) is None
    fill(log, 4)
    end = log.log_end_offset
    found = find_cleanable(log, -1, end, 2000)
    assert (found.segments, found.first_dirty_offset) == (log.segments[:-1], 0)
    assert (found.dirty_ratio, found.is_overdue) == (1.0, False)
    found = find_cleanable(log, 40, end, 2000)
    assert 0.4 < found.dirty_ratio < 0.6
    assert find_cleanable(log, 80, end, 2000) is None
    assert find_cleanable(log, 500, end, 2000).first_dirty_offset == 0  # the log was cut
    assert len(find_cleanable(log, 0, end - 1, 2000).segments) == 3  # the last isn't decided
    config = open_log(tmp_path / "u-0", COMPACT | {"min.compaction.lag.ms": "500"}).config
    log.set_config(config)
    assert len(find_cleanable(log, 0, end, 1502).segments) == 3
    config = open_log(tmp_path / "v-0", COMPACT | {"max.compaction.lag.ms": "500"}).config
    log.set_config(config)
    assert [find_cleanable(log, 20, end, now).is_overdue for now in (1501, 1502)] == [False, True]


def test_max_compaction_lag_rolls_the_active_segment(tmp_path):
    log = open_log(tmp_path / "t-0", COMPACT | {"max.compaction.lag.ms": "500"})
    append(log, [(1000, b"k", b"v")])
    append(log, [(1501, b"k", b"v")])
    assert [segment.base_offset for segment in log.segments] == [0, 1]


@engines
@pytest.mark.parametrize("codec", range(5))
def test_damage_anywhere_is_a_fault_and_leaves_the_log_alone(tmp_path, codec, engine, monkeypatch):
    monkeypatch.setattr(compaction_engine, "chosen", engine)
    log = open_log(tmp_path / "t-0")
    fill(log, 3, codec)
    source = random.Random(codec)
    paths = [segment.path for segment in log.segments[:-1]]
    for _ in range(40):
        path = source.choice(paths)
        size = os.stat(path).st_size
        at = source.randrange(size)
        with open(path, "r+b") as file:
            content = file.read()
            # Base offset and leader epoch stand outside of the CRC: their damage may be legal.
            bad = bytes([content[at] ^ 1 << source.randrange(8)])
            file.seek(at)
            file.write(bad)
        try:
            compact(log.directory, sources_of(log), 0, {}, settings_of(log))
            cleaned_files.remove_cleaned(log.directory)
        except CorruptFault:
            pass
        else:
            start = 0
            while start + 12 + int.from_bytes(content[start + 8 : start + 12], "big") <= at:
                start += 12 + int.from_bytes(content[start + 8 : start + 12], "big")
            assert at - start < 8 or 12 <= at - start < 16
        assert not [name for name in os.listdir(log.directory) if name.endswith(".cleaned")]
        with open(path, "r+b") as file:
            file.write(content)


def test_no_pass_begins_beside_what_an_earlier_one_has_left(tmp_path, caplog):
    log = open_log(tmp_path / "t-0")
    fill(log, 4)
    left = tmp_path / "t-0" / f"{0:020d}.log.cleaned"
    left.mkdir()  # which no unlink removes
    cleaned_files.try_remove_cleaned(log.directory)
    assert [str(left) in one.getMessage() for one in caplog.records] == [True]
    with pytest.raises(StorageFault):
        compact(log.directory, sources_of(log)[1:], 0, {}, settings_of(log))
    assert [name for name in os.listdir(log.directory) if "cleaned" in name] == [left.name]
    left.rmdir()
    assert compact(log.directory, sources_of(log), 0, {}, settings_of(log)).groups
    cleaned_files.try_remove_cleaned(str(tmp_path / "gone"))


def test_pass_that_is_stopped_leaves_nothing(tmp_path):
    log = open_log(tmp_path / "t-0")
    fill(log, 4)

    class Stop(Exception):
        pass

    for steps in range(8):
        left = itertools.count(steps, -1)

        def on_progress(count, left=left):
            if not next(left):
                raise Stop

        with pytest.raises(Stop):
            compact(log.directory, sources_of(log), 0, {}, settings_of(log), on_progress)
        assert not [name for name in os.listdir(log.directory) if name.endswith(".cleaned")]


def test_last_batch_of_a_producer_keeps_its_header(tmp_path):
    log = open_log(tmp_path / "t-0")
    for sequence in range(3):
        append(log, [(1000, b"k", b"v")], producer=(7, 2, sequence))
    append(log, [(1000, b"k", b"v")])
    log.roll()
    compact_log(log)
    (kept, records), (_, others) = batches_of(log)
    assert (kept[0], kept[9], kept[10], kept[11], kept[12]) == (2, 7, 2, 2, 0)
    assert records == [] and len(others) == 1
    log.close(clean=False)
    again = open_log(log.directory, clean=False)
    assert last_batches(again) == {7: (2, 2)}


def write_transaction(log, producer_id, key, value, *, is_commit):
    options = {"producer": (producer_id, 0, 0), "is_transactional": True}
    append(log, [(1000, key, value)], **options)
    end_transaction(log, producer_id, is_commit=is_commit)


def control_batches(log):
    """(offset, whether it has a delete horizon, records) of the markers that are left."""
    return [
        (header[0], header[5] & DELETE_HORIZON_BIT != 0, header[12])
        for header, _ in batches_of(log)
        if header[5] & CONTROL_BIT
    ]


def test_aborted_records_do_not_supersede_and_go(tmp_path):
    log = open_log(tmp_path / "t-0")
    append(log, [(1000, b"k", b"first")])
    write_transaction(log, 7, b"k", b"committed", is_commit=True)
    write_transaction(log, 8, b"k", b"aborted", is_commit=False)
    write_transaction(log, 8, b"other", b"committed later", is_commit=True)
    log.roll()
    compact_log(log)
    assert [record[3] for record in records_of(log)] == [b"committed", b"committed later"]
    # The markers stay, as their transactions have just been here; nothing is left of the first.
    assert [header[0] for header, _ in batches_of(log)] == [1, 2, 4, 5, 6]
    assert log.aborted.find(0, 100) == [(8, 3, 4, 5)]


def test_marker_whose_transaction_has_gone_goes_after_its_horizon(tmp_path):
    log = open_log(tmp_path / "t-0")
    write_transaction(log, 7, b"k", b"superseded", is_commit=True)
    write_transaction(log, 8, b"k", b"aborted", is_commit=False)
    write_transaction(log, 8, b"k", b"stays", is_commit=True)
    append(log, [(1000, b"l", b"stays")], producer=(7, 0, 1))
    log.roll()
    compact_log(log, now_ms=1_000)
    assert control_batches(log) == [(1, False, 1), (3, False, 1), (5, False, 1)]
    compact_log(log, now_ms=2_000)
    assert control_batches(log) == [(1, True, 1), (3, True, 1), (5, False, 1)]
    assert not log.aborted.find(0, 100)
    (header,) = (header for header, _ in batches_of(log) if header[0] == 3)
    assert header[7] == 2_100
    compact_log(log, now_ms=2_099)
    assert [offset for offset, _, _ in control_batches(log)] == [1, 3, 5]
    compact_log(log, now_ms=2_100)
    assert [offset for offset, _, _ in control_batches(log)] == [5]
    assert [record[3] for record in records_of(log)] == [b"stays", b"stays"]


def test_marker_with_a_horizon_keeps_its_offset_and_its_time(tmp_path):
    log = open_log(tmp_path / "t-0")
    write_transaction(log, 8, b"k", b"aborted", is_commit=False)
    append(log, [(1000, b"l", b"stays")], producer=(8, 0, 1))
    log.roll()
    compact_log(log, now_ms=1_000)
    compact_log(log, now_ms=2_000)
    segment = log.segments[0]
    batch = segment.batch_at(0)
    assert [record[:2] for record in iterate_records(memoryview(batch), 0)] == [(1, 1)]


def test_last_epoch_of_a_producer_stays_as_an_empty_marker(tmp_path):
    """A marker that began an epoch (KIP-890) fences who wrote in the one before."""
    log = open_log(tmp_path / "t-0")
    append(log, [(1000, b"k", b"aborted")], producer=(8, 0, 0), is_transactional=True)
    end_transaction(log, 8, epoch=1, is_commit=False)
    append(log, [(1000, b"l", b"stays")])
    log.roll()
    for now_ms in (1_000, 2_000, 3_000, 4_000):
        compact_log(log, now_ms=now_ms)
    assert control_batches(log) == [(1, False, 0)]
    log.close(clean=False)
    for path in tmp_path.glob("t-0/*.snapshot"):
        path.unlink()
    again = open_log(log.directory, clean=False)
    assert not again.producers.open


def test_epochs_before_the_last_of_a_producer_go(tmp_path):
    log = open_log(tmp_path / "t-0")
    for epoch in (0, 1):
        append(log, [(1000, b"k", b"aborted")], producer=(8, epoch, 0), is_transactional=True)
        end_transaction(log, 8, epoch=epoch + 1, is_commit=False)
    append(log, [(1000, b"l", b"stays")])
    log.roll()
    for now_ms in (1_000, 2_000, 3_000, 4_000):
        compact_log(log, now_ms=now_ms)
    assert control_batches(log) == [(3, False, 0)]


def test_what_stays_is_counted(tmp_path):
    log = open_log(tmp_path / "t-0")
    append(log, [(1000, b"k", b"old"), (1000, b"l", b"stays")])
    append(log, [(1000, b"k", b"new"), (1000, b"m", b"stays")])
    log.roll()
    assert compact_log(log).kept == 3


def test_marker_far_behind_decides(tmp_path):
    """It lies in a segment that is not compacted yet, and so does its entry of the index."""
    log = open_log(tmp_path / "t-0")
    append(log, [(1000, b"k", b"first")])
    append(log, [(1000, b"k", b"aborted")], producer=(8, 0, 0), is_transactional=True)
    append(log, [(1000, b"k", b"committed")], producer=(7, 0, 0), is_transactional=True)
    log.roll()
    end_transaction(log, 8, is_commit=False)
    end_transaction(log, 7, is_commit=True)
    compact_log(log)
    assert [record[3] for record in records_of(log)] == [b"committed"]


def test_tombstone_goes_when_its_horizon_is_over(tmp_path):
    log = open_log(tmp_path / "t-0")
    append(log, [(1000, b"k", b"v"), (1001, b"gone", None), (1002, b"l", b"w")])
    log.roll()
    compact_log(log, now_ms=5000, delete_retention_ms=100)
    ((header, records),) = batches_of(log)
    assert (header[7], header[8]) == (5100, 1002)
    places = [(0, 1000, b"k"), (1, 1001, b"gone"), (2, 1002, b"l")]
    assert [record[:3] for record in records] == places
    compact_log(log, now_ms=5099)
    assert len(records_of(log)) == 3
    compact_log(log, now_ms=5100)
    ((header, records),) = batches_of(log)
    assert (header[7], header[6], header[12]) == (5100, 2, 2)
    assert [record[:3] for record in records] == places[::2]


def test_log_without_anything_to_drop_is_not_rewritten(tmp_path):
    log = open_log(tmp_path / "t-0", COMPACT | {"segment.bytes": "700"})
    for number in range(20):
        append(log, [(1000, b"key-%d" % number, b"v" * 50)])
    log.roll()
    assert len(log.segments) > 3
    report = compact_log(log)
    assert (report.groups, report.end_offset) == ([], log.log_end_offset)


def test_start_after_a_death_between_any_two_renames(tmp_path, monkeypatch):
    """At each step the start finishes or undoes: never a record too few, never one twice."""
    log = open_log(tmp_path / "t-0", COMPACT | {"segment.bytes": "3000"})
    fill(log, 8)
    before = [record[:4] for record in records_of(log)]
    report = compact(log.directory, sources_of(log), 0, {}, settings_of(log))
    assert len(report.groups) > 1
    made = str(tmp_path / "made")
    shutil.copytree(log.directory, made)
    outcomes = set()
    for steps in itertools.count():
        trial = str(tmp_path / "w-0")
        shutil.copytree(made, trial)
        log = open_log_without_settling(trial, monkeypatch)
        with kill_after(steps, monkeypatch, (os, "rename")) as kill:
            swap(log, report)
        is_over = not kill.happened
        again = open_log(trial, COMPACT | {"segment.bytes": "3000"}, clean=False)
        found = [record[:4] for record in records_of(again)]
        assert again.log_end_offset == log.log_end_offset
        assert set(found) <= set(before)
        assert [record[0] for record in found] == sorted({record[0] for record in found})
        assert {record[2]: record for record in found} == {record[2]: record for record in before}
        assert not [
            name
            for name in os.listdir(trial)
            if name.endswith((".cleaned", ".swap")) or (not is_over and name.endswith(".deleted"))
        ]
        assert all(
            os.path.exists(index.path)
            for segment in again.segments[:-1]
            for index in (segment.offset_index, segment.time_index)
        )
        outcomes.add(len(found))
        shutil.rmtree(trial)
        if is_over:
            break
    assert steps > 20
    assert {len(before), 10} <= outcomes


def test_a_rename_that_is_refused_changes_no_name(tmp_path, monkeypatch):
    """Whichever rename of step A, or of a segment that goes: all files have their names again."""
    log = open_log(tmp_path / "t-0", COMPACT | {"segment.bytes": "3000"})
    fill(log, 8)
    report = compact(log.directory, sources_of(log), 0, {}, settings_of(log))
    groups = groups_of(log, report)
    names = sorted(os.listdir(log.directory))
    goes = log.segments[0]
    rename = os.rename

    def refused(step, act):
        """Whether `act` meets the refusal of its rename number `step`."""
        left = itertools.count(step, -1)

        def counted(old, new):
            if not next(left):
                raise OSError(errno.EIO, "no")
            rename(old, new)

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", counted)
            try:
                act()
            except StorageFault:
                return True
        return False

    for act in (
        lambda: prepare_swap(log.directory, groups),
        lambda: set_aside(log, goes),
    ):
        steps = 0
        while refused(steps, act):
            assert sorted(os.listdir(log.directory)) == names
            steps += 1
        assert steps >= 3
        names = sorted(os.listdir(log.directory))
    assert goes.path.endswith(".deleted")


def open_log_without_settling(directory, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("shmbroker.log.recovery.listing.settle", lambda *_: False)
        return open_log(directory, COMPACT | {"segment.bytes": "3000"}, clean=False)


def test_chunks_do_not_show(tmp_path, monkeypatch):
    logs = []
    for name, chunk_bytes in (("t-0", 4 << 20), ("u-0", 500)):
        monkeypatch.setattr(compaction_chunks, "CHUNK_BYTES", chunk_bytes)
        log = open_log(tmp_path / name, COMPACT | {"segment.bytes": "20000"})
        for codec in range(5):
            fill(log, 3, codec)
        append(log, [(1, b"large", b"x" * 3000)] * 3, 1)
        log.roll()
        compact_log(log)
        logs.append([BATCH_HEADER.pack(*header) for header, _ in batches_of(log)])
    assert logs[0] == logs[1]


def test_retention_goes_over_segments_that_compaction_left_empty(tmp_path):
    settings = {"cleanup.policy": "compact,delete", "retention.ms": "1000"}
    log = open_log(tmp_path / "t-0", COMPACT | settings | {"segment.bytes": "1300"})
    fill(log, 4)
    append(log, [(1 << 42, b"k", b"young")])
    compact_log(log)
    sizes = [segment.size for segment in log.segments]
    assert len(sizes) > 2 and sizes[0] == 0
    retain(log, log.log_end_offset, (1 << 42) + 1000)
    assert log.segments == [log.active]
    assert log.log_start_offset == 80
    retain(log, log.log_end_offset, (1 << 42) + 1001)
    assert log.log_start_offset == log.log_end_offset == 81
