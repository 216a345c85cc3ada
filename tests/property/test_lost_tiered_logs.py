"""A leader's log that was lost with its disk, while the store has what it held."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shmbroker.log.config import LogConfig
from shmbroker.wire.error_codes import NONE, OUT_OF_ORDER_SEQUENCE_NUMBER
from tests.property.tiered_world import RECORDS, World

BEGIN, ABORT = 0, 4
"""What `World.transact` does for producer 1."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Its first segment ends within a transaction of producer 1, which is aborted in the second.
    Both are in the store, and neither is here; what is here is empty."""
    world = World(str(tmp_path))
    world.answer()
    world.append(1)
    world.transact(BEGIN)
    world.transact(BEGIN)
    world.roll(0)
    world.transact(ABORT)
    world.roll(0)
    for _ in range(3):
        world.tick(2)
    world.keep_local(0)
    assert world.tiering.end_offset(world.partition) == world.log.log_end_offset == 13
    yield world
    world.log.close(clean=False)


def test_it_goes_on_with_the_epochs_and_sequences_that_the_store_has(world: World) -> None:
    world.lose_disk()
    world.answer()
    log, partition = world.log, world.partition
    assert (log.log_start_offset, log.local_start_offset, log.log_end_offset) == (0, 13, 13)
    assert partition.is_leader and partition.high_watermark == 13
    assert log.leader_epochs.entries == [(0, 0), (1, 13)]
    producers = log.producers
    assert producers.check(1, 0, 2 * RECORDS, RECORDS - 1)[:2] == (NONE, 9)  # stored already
    assert producers.check(1, 0, 3 * RECORDS, RECORDS - 1)[:2] == (NONE, -1)
    assert producers.check(1, 0, 4 * RECORDS, 0)[0] == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert not producers.open
    world.append(1)
    world.check()


def test_it_does_not_lead_before_the_store_has_said_what_it_held(world: World) -> None:
    """What it would take until then would stand where the store has something else."""
    world.lose_disk()
    partition = world.partition
    assert not partition.is_leader and partition.is_held_back
    world.tiering.on_tier_lost()
    assert not partition.is_leader
    world.tiering.on_tier_running()
    world.answer()
    assert partition.is_leader and not partition.is_held_back


def test_it_leads_at_once_where_it_has_a_log(world: World) -> None:
    world.kill_worker(0)
    assert world.partition.is_leader


def test_it_leads_empty_where_the_store_has_nothing(tmp_path: Path) -> None:
    world = World(str(tmp_path))
    world.answer()
    world.lose_disk()
    assert not world.partition.is_leader
    world.answer()
    assert world.partition.is_leader and world.log.log_end_offset == 0
    world.append(1)
    world.check()
    world.log.close(clean=False)


def test_what_is_damaged_there_is_not_gone_without(world: World) -> None:
    world.lose_disk()
    key = max(key for key in world.store.objects if key.endswith(".snapshot"))
    world.store.objects[key] = b"damaged"
    world.answer()
    assert not world.partition.is_leader


def test_it_leads_empty_once_its_topic_has_no_remote_storage_any_more(world: World) -> None:
    """What the store has is given up, and nobody waits for it."""
    world.lose_disk()
    world.asked.clear()
    world.log.set_config(LogConfig({"remote.storage.enable": "false"}))
    world.tiering.on_partition(world.partition)
    assert world.partition.is_leader and world.log.log_end_offset == 0
