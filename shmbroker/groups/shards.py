"""The partitions that a coordinator leads: found by id, loaded in steps, with answers that wait.

The same for groups (`__consumer_offsets`) and for transactional ids (`__transaction_state`). What
is in a shard, and what becomes of it, its coordinator knows.

Rules of this file:
* A shard loads a step for each turn of its owner. Meanwhile, and while the owner opens partitions,
  who asks gets COORDINATOR_LOAD_IN_PROGRESS.
* An answer rests on what the log held when it was given: it waits for the in-sync replicas
  (`held_answers`).
* A log that can't be read has no coordinator here. Its owner is told, who may mend it, and has it
  read again now and then (`load_again`).
"""

from __future__ import annotations

import logging
from typing import Generic, TypeVar

from shmbroker.errors import Fault, StorageFault
from shmbroker.groups.group_partition import group_partition
from shmbroker.groups.held_answers import HeldAnswers, refuse
from shmbroker.purgatory import NEVER_MS
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from typing import Any

    from shmbroker.groups.caller import HeldCaller
    from shmbroker.replica.partition import Partition

logger = logging.getLogger(__name__)


class BaseShard:
    """One partition led here. Until `is_active`, it is still being read."""

    __slots__ = ("is_active", "is_again", "loading", "partition")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.is_active = False
        self.is_again = False
        """The partition could not be read before, and that is said."""
        self.loading: Iterator[None] | None = None


AnyShard = TypeVar("AnyShard", bound=BaseShard)


class Sharded(Generic[AnyShard]):
    """What every coordinator does with its shards."""

    WHAT: str
    """What is loaded, for messages."""

    def __init__(self) -> None:
        self.held = HeldAnswers()
        self.shards: dict[int, AnyShard] = {}
        self.partition_count = 0
        self.loading: list[AnyShard] = []
        self.is_opening = False
        """Some partitions may be here soon; the owner says so."""
        self.wake_ms = NEVER_MS
        """When `run_due` has something to do."""
        self.on_unread: Callable[[Partition, StorageFault], None] | None = None
        """Called when a log can't be read."""
        self._unread: dict[int, Partition] = {}

    def _new_shard(self, partition: Partition) -> AnyShard:
        raise NotImplementedError

    def _load(self, shard: AnyShard) -> Iterator[None]:
        """Replay the log, some of it between two yields; then the shard serves."""
        raise NotImplementedError

    def _on_shard_gone(self, shard: AnyShard) -> None:
        """Send away who waits there."""
        raise NotImplementedError

    def on_partition(self, partition: Partition, partition_count: int) -> None:
        """A partition of the coordinator's topic is here, led by this broker or not."""
        self.partition_count = partition_count
        shard = self.shards.get(partition.partition)
        if not partition.is_leader:
            self.on_partition_gone(partition.partition)
        elif shard is None or shard.partition is not partition:
            self.on_partition_gone(partition.partition)
            shard = self.shards[partition.partition] = self._new_shard(partition)
            shard.loading = self._load(shard)
            if partition.log.log_start_offset == partition.log.log_end_offset:
                self._load_some(shard)
            else:
                self.loading.append(shard)
                self.wake_ms = 0

    def on_partition_gone(self, index: int) -> None:
        """Send away who waits for a partition that another broker leads now, or that was
        deleted."""
        self._unread.pop(index, None)
        shard = self.shards.pop(index, None)
        if shard is None:
            return
        if shard in self.loading:
            self.loading.remove(shard)
        self.held.fail(shard.partition, error_codes.NOT_COORDINATOR)
        self._on_shard_gone(shard)

    def load_again(self) -> None:
        """Read what could not be read: it may be mended."""
        for partition in list(self._unread.values()):
            self.on_partition(partition, self.partition_count)
            shard = self.shards.get(partition.partition)
            if shard is not None:
                shard.is_again = True

    def on_high_watermark(self, partition: Partition) -> None:
        """More of a partition is on its in-sync replicas."""
        self.held.release(partition)

    def hold(
        self,
        names: list[str] | None,
        call: HeldCaller,
        body: dict[str, Any],
        grant: tuple[int, int] | None,
    ) -> bool:
        """Keep an answer about these ids (None: about all) while what it says may be lost."""
        needs = []
        for shard in self._shards_of(names):
            partition = shard.partition
            end_offset = partition.log.log_end_offset
            if partition.high_watermark < end_offset:
                needs.append((partition, end_offset))
        return bool(needs) and self.held.hold(needs, call, body, grant)

    def _shards_of(self, names: list[str] | None) -> list[AnyShard]:
        """The shards here of these ids (None: all)."""
        if names is None:
            return list(self.shards.values())
        if not self.shards:
            return []
        count = self.partition_count
        if len(names) == 1:  # as nearly always; each answer asks
            shard = self.shards.get(group_partition(names[0], count))
            return [] if shard is None else [shard]
        found = [self.shards.get(group_partition(name, count)) for name in names]
        return [shard for shard in found if shard is not None]

    def while_here(
        self, names: list[str] | None, steps: Generator[None, None, dict[str, Any] | None]
    ) -> Generator[None, None, dict[str, Any] | None]:
        """Take the steps of an answer about these ids. If one of their partitions got another
        leader between two of them, what was said before may be lost: all of it is refused."""
        shards = self._shards_of(names)
        body = yield from steps
        if body is not None and any(
            self.shards.get(shard.partition.partition) is not shard for shard in shards
        ):
            refuse(body, error_codes.NOT_COORDINATOR)
        return body

    def close(self) -> None:
        """The broker stops: who waits is sent to look for another coordinator."""
        for index in list(self.shards):
            self.on_partition_gone(index)

    def shard_of(self, name: str) -> tuple[AnyShard | None, int]:
        """(shard, 0), or (None, the error code for who asks)."""
        shard = None
        if self.shards:
            shard = self.shards.get(group_partition(name, self.partition_count))
        if shard is None or not shard.partition.is_leader:
            if not self.is_opening:
                return None, error_codes.NOT_COORDINATOR
            return None, error_codes.COORDINATOR_LOAD_IN_PROGRESS
        if not shard.is_active:
            return None, error_codes.COORDINATOR_LOAD_IN_PROGRESS
        return shard, 0

    def _load_some(self, shard: AnyShard) -> None:
        assert shard.loading is not None
        partition = shard.partition
        try:
            if next(shard.loading, shard) is not shard:
                return
        except Fault as fault:
            if not shard.is_again:
                name = f"{partition.topic}-{partition.partition}"
                logger.error("%s of %s can't be loaded: %s", self.WHAT, name, fault)
            del self.shards[partition.partition]
            if isinstance(fault, StorageFault):
                self._unread[partition.partition] = partition
                if self.on_unread is not None:
                    self.on_unread(partition, fault)
        if shard in self.loading:
            self.loading.remove(shard)
        shard.loading = None
