"""Partitions that come to a coordinator, are loaded in steps, and go again."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from shmbroker.groups.shards import BaseShard, Sharded
from shmbroker.wire.error_codes import COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR

LOADING = COORDINATOR_LOAD_IN_PROGRESS


class Partition:
    """One of one record, led here."""

    topic = "t"
    partition = 0
    log = SimpleNamespace(log_start_offset=0, log_end_offset=1)
    high_watermark = 0
    is_leader = True


def made_partition() -> Any:
    return Partition()


class Shards(Sharded[BaseShard]):
    """A coordinator that loads in two steps; `loaded` and `gone` are the partitions of which it
    is told."""

    WHAT = "names"

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[Any] = []
        self.gone: list[Any] = []

    def _new_shard(self, partition: Any) -> BaseShard:
        return BaseShard(partition)

    def _load(self, shard: BaseShard) -> Iterator[None]:
        yield
        self.loaded.append(shard.partition)
        shard.is_active = True

    def _on_shard_gone(self, shard: BaseShard) -> None:
        self.gone.append(shard.partition)

    def turn(self) -> None:
        if self.loading:
            self._load_some(self.loading[0])


def test_partition_is_loaded_in_steps_and_serves_then() -> None:
    shards = Shards()
    shards.on_partition(made_partition(), 1)
    assert shards.wake_ms == 0
    assert shards.shard_of("name") == (None, LOADING)
    shards.turn()
    assert shards.shard_of("name") == (None, LOADING)
    shards.turn()
    assert shards.shard_of("name") == (shards.shards[0], 0)
    assert not shards.loading


def test_partition_that_goes_while_it_is_loaded_is_loaded_no_further() -> None:
    shards, partition = Shards(), made_partition()
    shards.on_partition(partition, 1)
    shards.turn()
    shards.on_partition_gone(0)
    assert not shards.loading
    assert (shards.gone, shards.loaded) == ([partition], [])
    assert shards.shard_of("name") == (None, NOT_COORDINATOR)


def test_partition_that_is_made_again_has_nothing_of_the_one_before() -> None:
    shards, before, after = Shards(), made_partition(), made_partition()
    shards.on_partition(before, 1)
    for _ in range(2):
        shards.turn()
    answers: list[Any] = []
    call: Any = SimpleNamespace(reply=lambda body, _grant=None: answers.append(body))
    assert shards.hold(["name"], call, {}, None)
    shards.on_partition(after, 1)
    assert answers == [{"error_code": NOT_COORDINATOR}]
    assert shards.gone == [before]
    assert shards.shard_of("name") == (None, LOADING)
    for _ in range(2):
        shards.turn()
    assert shards.shards[0].partition is after


def test_leader_that_is_none_any_more_serves_nobody_before_its_shard_is_gone() -> None:
    shards, partition = Shards(), made_partition()
    shards.on_partition(partition, 1)
    for _ in range(2):
        shards.turn()
    partition.is_leader = False
    assert shards.shard_of("name") == (None, NOT_COORDINATOR)
