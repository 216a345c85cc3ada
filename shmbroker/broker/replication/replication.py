"""A broker's part in replication: what it leads is followed, what others lead it follows.

    leader                                             follower
    append ──► rows of its followers are ready
           ──► READ_DONE (`follower_reads`)        ──► append, READ (`replica_fetcher`)
    their READs move the high watermark            ◄──
           ──► acks (`delayed_produce`), reads and group answers that waited for it
    who lags or has caught up (`in_sync`)          ──► controller ──► metadata ──► `on_leadership`

Rules of this file:
* Everything that a change of leader means for a replica is in `on_leadership`, in one place.
* A replica that was found to lack something leads only when the controller has heard of it, and one
  that has what its leader lacks says so (`log_ends`).
* The next leader begins at the high watermark that the leader before had told, which lies in
  shared memory: it never goes back for anybody. Who does not know which one that was, as its own
  process was dead then, goes by what any sibling had told.
* Where acks wait for followers, the process looks at its rings for some turns of the scheduler
  before it sleeps: their READs come within some ten microseconds, and a wake-up takes that long.
  So it does after an append, and after the last ack, as long as the next comes soon (`ipc.streak`),
  and nobody else computes on its core (`ipc.core`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from shmbroker.apis.controller.tell_log_ends import IS_AHEAD
from shmbroker.broker.append import Appender
from shmbroker.broker.delayed_produce import EXPIRY_INTERVAL_MS
from shmbroker.broker.replication.follower_reads import FollowerReads
from shmbroker.broker.replication.in_sync import InSyncChanges
from shmbroker.broker.replication.leader_rings import LeaderRings
from shmbroker.broker.replication.log_ends import LogEnds
from shmbroker.broker.replication.replica_fetcher import ReplicaFetcher
from shmbroker.ipc.awake import Awake
from shmbroker.ipc.core import ENTRIES, NOTHING
from shmbroker.ipc.peer import Peer
from shmbroker.replica.partition import Partition
from shmbroker.shm.positions import SiblingPositions
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.broker.replication.cutting import FindState
    from shmbroker.ipc.asking import OnAnswer
    from shmbroker.ipc.passed_files import FileTable
    from shmbroker.log.segment import Segment
    from shmbroker.metadata.image import MetadataImage, PartitionImage


class Replication:
    """The part of one I/O worker. Without siblings (`is_alone`) most of it is never called.

    links: by broker id the peer and the table of its files. siblings: their position tables.
    on_high_watermark(partition): it has moved, and others than this package wait for that.
    ask: as `InSyncChanges` says; tell, on_decided: as `LogEnds`.
    The rest: as `ReplicaFetcher` and `FollowerReads` say.
    """

    def __init__(
        self,
        broker_id: int,
        appender: Appender,
        links: Mapping[int, tuple[Peer, FileTable]],
        siblings: Mapping[int, SiblingPositions],
        lag_max_ms: int,
        *,
        awake: Awake,
        new_token: Callable[[], int],
        pass_file: Callable[[Peer, Segment], None],
        note_gap: Callable[[Partition], None],
        raise_log_start: Callable[[Partition, int], None],
        flush: Callable[..., None],
        find_state: FindState,
        ask: Callable[[dict[str, Any], OnAnswer], bool],
        tell: Callable[[dict[str, Any], OnAnswer], bool],
        on_decided: Callable[[Partition], None],
        on_high_watermark: Callable[[Partition], None],
        on_log_start: Callable[[Partition], object],
    ) -> None:
        self.broker_id = broker_id
        self.is_alone = not links
        self.lag_max_ms = lag_max_ms
        self.partitions = appender.partitions
        self.moved = appender.acks.moved
        self.delayed = appender.acks.delayed
        self.siblings = siblings
        self._steady_ms = appender.steady_ms
        self._want_durable = appender.acks.group_commit.want
        self._on_high_watermark = on_high_watermark
        self.reads = FollowerReads(
            appender.partitions,
            appender.steady_ms,
            pass_file,
            self.moved,
            appender.on_storage_fault,
            on_log_start,
            broker_id,
        )
        self.log_ends = LogEnds(broker_id, tell, on_decided)
        self.fetcher = ReplicaFetcher(
            links,
            new_token,
            appender.now_ms,
            appender.steady_ms,
            appender.appended.add,
            appender.on_storage_fault,
            note_gap,
            partial(self.log_ends.tell, state=IS_AHEAD),
            LeaderRings(broker_id, siblings).is_worth_one,
            raise_log_start,
            flush,
            find_state,
            broker_id,
        )
        self.awake = awake
        self.in_sync = InSyncChanges(self.reads.may_join, ask, self.partitions, self.moved)

    # ── turns ───────────────────────────────────────────────────────────────────────────────────

    def tell_moved(self) -> None:
        """Tell those who wait of high watermarks that moved without an append."""
        for partition in list(self.moved):
            self.on_high_watermark(partition)
        self.moved.clear()

    def on_high_watermark(self, partition: Partition) -> None:
        """Note that a high watermark has moved."""
        if self.delayed.partitions:
            self.delayed.complete(partition)
        self.reads.on_high_watermark(partition)
        self._on_high_watermark(partition)

    def run(self, image: MetadataImage) -> None:
        """Answer followers for whom there is something, read what is led elsewhere."""
        self.reads.answer_all()
        self.fetcher.send_all()
        if self.delayed.partitions:
            self.delayed.expire(self._steady_ms())
        if self.reads.may_join:
            self.in_sync.expand(image)
        if self.log_ends.waiting:
            self.log_ends.run()

    def next_ms(self) -> int | None:
        """When `run` has something to do though nothing comes in; None: then only."""
        due = [ms for ms in (self.reads.next_ms, self.fetcher.retries.next_ms) if ms is not None]
        if self.delayed.partitions:
            due.append(self._steady_ms() + EXPIRY_INTERVAL_MS)
        return min(due, default=None)

    def look_before_sleep(self, has_entries: Callable[[], bool], has_appended: bool) -> bool:
        """Whether something came in a short while, if that is likely: followers' READs where acks
        wait for them, else the next request after an append or another one (has_appended: in this
        turn)."""
        came = self.awake.look(bool(self.delayed.partitions), has_appended)
        return came != NOTHING and (came == ENTRIES or has_entries())

    def look_at_all(self, image: MetadataImage) -> None:
        """Look, once a second, who lags and who has caught up."""
        self.may_look_for_places()
        self.log_ends.look_again()
        self.in_sync.look_at_all(
            self.partitions.values(), image, self._steady_ms(), self.lag_max_ms
        )

    def set_rates(self, as_leader: int, as_follower: int) -> None:
        """Set how many bytes a second throttled replicas may take here."""
        self.reads.throttle.set_rate(as_leader)
        self.fetcher.throttle.set_rate(as_follower)

    # ── what changes ────────────────────────────────────────────────────────────────────────────

    def on_leadership(self, partition: Partition, image: PartitionImage) -> None:
        """Lead it, or follow who does, as the metadata says (a `PartitionImage`)."""
        before, was_leader = partition.leader_id, partition.is_leader
        in_sync, replicas = partition.in_sync_replicas, partition.replicas
        partition.on_leadership(self.broker_id, image)
        if len(image.replicas) == 1 and len(replicas) < 2:
            return  # nobody follows it or waits for a follower: a start may have thousands of them
        if partition.is_leader:
            self.fetcher.unfollow(partition.key)
            if not was_leader:
                leader = self.siblings.get(before)
                for told in (leader,) if leader is not None else self.siblings.values():
                    partition.take_over(told.high_watermark(partition.key))
            if partition.is_fsync and partition.log.recovery_point < partition.log.log_end_offset:
                # What it took as a follower: the high watermark waits for this disk, too.
                self._want_durable(partition)
        elif image.leader_id in self.fetcher.links:
            self.fetcher.follow(partition)
            if partition.in_sync_replicas != in_sync:
                # Whom our last READ was held back for may count no more.
                self.fetcher.links[image.leader_id].peer.doorbell.ring_if_sleeping()
        else:
            self.fetcher.unfollow(partition.key)
        if was_leader:
            self.reads.on_leadership(partition)
            self.delayed.look_at(partition)
        self.on_high_watermark(partition)

    def on_deleted(self, partition: Partition) -> None:
        """Forget a partition whose log goes."""
        self.fetcher.unfollow(partition.key)
        self.log_ends.forget(partition)
        self.reads.on_deleted(partition)
        self.delayed.fail(partition, error_codes.NOT_LEADER_OR_FOLLOWER)
        self.moved.discard(partition)

    def on_sibling_lost(self, peer: Peer) -> None:
        """Note that an I/O worker is dead."""
        self.reads.drop_peer(peer.slot)
        self.fetcher.on_peer_lost(peer)

    def may_look_for_places(self) -> None:
        """Partitions have come: siblings may have some in their tables that were not found."""
        for told in self.siblings.values():
            told.may_look_again()
