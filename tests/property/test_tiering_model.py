"""A tiered log against a plain list of its records, with deaths at every step of the store.

The log, `broker.tiering` and `tier.transfer` are the real ones; the store is a dict that dies
after so many changes, and the tier process a queue of what it was asked.
"""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmbroker.log.config import LogConfig
from shmbroker.log.raised_start import RAISED_START
from shmbroker.log.retention import delete_records
from shmbroker.wire.error_codes import KAFKA_STORAGE_ERROR
from tests.property.tiered_world import World

OPERATIONS = (
    "append", "append", "transact", "transact", "transact", "roll", "roll", "tick", "tick",
    "keep_local", "keep_in_all", "delete_records", "kill_tier", "kill_tier", "kill_worker",
    "fail_store", "unmount_store",
)  # fmt: skip


@settings(max_examples=int(os.environ.get("TIERING_EXAMPLES", "40")), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 7)), min_size=5, max_size=40))
def test_every_record_is_read_whatever_happens(operations):
    with tempfile.TemporaryDirectory() as directory:
        world = World(directory)
        try:
            world.answer()
            for name, argument in operations:
                getattr(world, name)(argument)
                if name in ("tick", "kill_worker", "kill_tier", "keep_local"):
                    world.check()
            world.settle()
            world.check()
        finally:
            world.log.close(clean=False)


@pytest.fixture
def tiered_world(tmp_path):
    """Four copied segments of which the local ones are gone."""
    world = World(str(tmp_path))
    world.answer()
    for _ in range(4):
        world.append(2)
        world.roll(0)
        world.tick(2)
    world.keep_local(0)
    world.append(1)
    assert world.log.log_start_offset == 0 < world.log.local_start_offset
    assert world.tiering.end_offset(world.partition) == world.log.local_start_offset
    yield world
    world.log.close(clean=False)


def test_store_that_is_not_mounted_costs_nothing(tiered_world):
    tiered_world.unmount_store(0)
    tiered_world.check()
    assert tiered_world.log.log_start_offset == 0


def test_switched_off_it_begins_where_it_is_local_after_a_kill_as_well(tiered_world):
    """Though it is switched on again by then, and the checkpoint is older."""
    start = tiered_world.log.local_start_offset
    tiered_world.log.set_config(LogConfig({"remote.storage.enable": "false"}))
    tiered_world.tiering.on_partition(tiered_world.partition)
    assert tiered_world.log.log_start_offset == start
    tiered_world.kill_worker(0)
    assert tiered_world.log_start == 0
    assert tiered_world.log.log_start_offset == start


@pytest.mark.parametrize(
    ("number", "is_removed"), [(0, False), (1, False), (1, True), (3, False), (3, True)]
)
def test_a_copy_without_a_manifest_is_named_and_never_skipped(
    tiered_world, caplog, number, is_removed
):
    world = tiered_world
    world.may_be_damaged = True
    keys = sorted(key for key in world.store.objects if key.endswith(".manifest"))
    base, end = (int(part) for part in keys[number].rpartition("/")[2].split("-")[:2])
    whole = world.store.objects[keys[number]]
    if is_removed:
        del world.store.objects[keys[number]]
    else:
        world.store.objects[keys[number]] = whole[:-3]
    world.kill_worker(0)
    world.tick(2)
    assert f"are offsets {base} to {end - 1}: reads of them" in caplog.text
    assert world.log.log_start_offset == 0, "the log begins where it did"
    limit = world.partition.high_watermark
    for offset in range(base, end):
        world.tick(2)
        found = world.tiering.read(world.partition, offset, 300, limit, True)
        assert found == KAFKA_STORAGE_ERROR
    for offset in {0, base - 1, end} - {-1, base}:
        data, _ = world.read(offset)
        assert data
    # DeleteRecords beyond it ends that, and removes what is left of it.
    assert delete_records(world.log, end, limit) == end
    world.note_log_start()
    for _ in range(4):
        world.tick(2)
    left = [key for key in world.store.objects if int(key.rpartition("/")[2][:20]) < end]
    assert not left or is_removed, "one without a manifest is swept with the next start of the tier"
    data, _ = world.read(end)
    assert data


def test_a_list_from_before_a_copy_does_not_take_it_back(tiered_world):
    world = tiered_world
    world.append(2)
    world.roll(0)
    world.tick(0)
    world.tiering.on_partition(world.partition)  # a setting has changed
    (_, body, on_list) = world.asked.pop()
    answer = {"error_code": 0} | world.TierLoad(body)
    assert [name for name, *_ in world.asked] == ["TierCopy"]
    world.answer()
    on_list(answer)
    assert world.tiering.end_offset(world.partition) == world.log.local_start_offset
    world.check()


def test_copies_stay_until_the_log_start_above_them_is_durable(tiered_world):
    world = tiered_world
    before = set(world.store.objects)
    end = world.log.local_start_offset
    assert delete_records(world.log, end, world.partition.high_watermark) == end
    world.note_log_start()
    world.tick(1)
    assert set(world.store.objects) == before
    os.unlink(os.path.join(world.log.directory, RAISED_START))
    world.kill_worker(0)  # as by a power cut: the log start goes back
    world.tick(2)
    world.check()
    delete_records(world.log, end, world.partition.high_watermark)
    world.start = end
    world.note_log_start()
    world.tick(2)
    assert not world.store.objects


def test_copies_wait_while_those_before_have_used_up_the_rate(tmp_path: Path) -> None:
    world = World(str(tmp_path))
    world.answer()
    world.tiering.copied.set_rate(1)
    for _ in range(2):
        world.append(2)
        world.roll(0)
    first, second, _ = world.log.segments
    assert first.size > 120
    for _ in range(2):
        world.tick(2)
        assert world.tiering.end_offset(world.partition) == first.end_offset
    world.now_ms += first.size * 1000
    world.tick(2)
    assert world.tiering.end_offset(world.partition) == second.end_offset
    world.log.close(clean=False)


def test_pieces_wait_while_those_before_have_used_up_the_rate(tiered_world: World) -> None:
    world = tiered_world
    world.tiering.fetched.set_rate(1)

    def read(offset: int) -> object:
        end = world.partition.high_watermark
        return world.tiering.read(world.partition, offset, 300, end, True)

    assert read(0) is None
    world.answer()
    segment, _, _ = read(0)
    assert read(segment.end_offset) is None and not world.asked, "it is not asked for"
    world.now_ms += segment.size * 1000
    assert read(segment.end_offset) is None and world.asked
    world.answer()
    assert isinstance(read(segment.end_offset), tuple)
