"""A partition as one broker holds it: its log, and its place among the replicas.

       log start          high watermark         log end offset
   ────────┬────────────────────┬──────────────────────┬
           │ what consumers see │ not yet on all in-sync replicas
           │                    └ acks=all waits here

Rules of this file:
* log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset, always; the high
  watermark never goes back while this broker leads, nor when an in-sync follower takes over
  (`take_over`), and with it neither does the last stable offset. Only where the leader before was
  moved away, and has forgotten what it told, may it be behind (`is_high_watermark_behind`).
* It is the least log end offset of those whom it waits for: the in-sync replicas, and those that
  the controller may already have made in-sync (`pending_in_sync`). With too few of them in sync
  (min.insync.replicas) it stands still (KIP-966).
* With one in-sync replica the high watermark is the log end offset: what is in the page cache of
  the only replica is all that there is to wait for.
* Settings that the append path asks for are plain attributes, refreshed when a topic's
  configuration changes.
"""

from __future__ import annotations

from typing import final

from shmbroker.metadata.image import RECOVERING
from shmbroker.replica.follower import Follower
from shmbroker.replica.throttle import throttled_brokers
from shmbroker.settings.setting import LONG_MAX
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from shmbroker.log.config import LogConfig
    from shmbroker.log.partition_log import PartitionLog
    from shmbroker.metadata.image import PartitionImage
    from shmbroker.replica.follower_session import FollowedRow


@final
class Partition:
    """One replica. `key` names it on the rings (`ids.PARTITION_KEY`)."""

    __slots__ = (
        "effective_min_in_sync",
        "epoch_start_offset",
        "flush_messages",
        "followed_rows",
        "follower_throttled",
        "followers",
        "high_watermark",
        "in_sync_replicas",
        "is_compacted",
        "is_fsync",
        "is_held_back",
        "is_internal",
        "is_leader",
        "is_led_offline",
        "is_log_append_time",
        "is_offline",
        "is_under_min_in_sync",
        "is_walked",
        "key",
        "known_high_watermark",
        "leader_epoch",
        "leader_id",
        "leader_throttled",
        "leads_from_epoch",
        "log",
        "lost_below",
        "may_be_cut",
        "message_bytes_max",
        "min_in_sync_replicas",
        "partition",
        "partition_epoch",
        "pending_in_sync",
        "plain_bytes_max",
        "producers",
        "replicas",
        "segment_bytes_max",
        "store_high_watermark",
        "timestamp_after_max_ms",
        "timestamp_before_max_ms",
        "topic",
        "topic_id",
        "waits_for",
        "waits_for_store",
    )

    def __init__(
        self, key: bytes, topic: str, topic_id: bytes, partition: int, log: PartitionLog
    ) -> None:
        self.key = key
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.log = log
        self.producers = log.producers
        self.is_leader = False
        self.is_offline = False
        """Whether the disk below its log has failed."""
        self.is_led_offline = False
        """Whether that disk has failed, and nobody else leads the partition yet."""
        self.is_internal = False
        self.leader_id = -1
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.in_sync_replicas: tuple[int, ...] = ()
        self.high_watermark = log.log_end_offset
        self.known_high_watermark = 0
        """What is known of it from before this process, where there are more replicas than one."""
        self.lost_below = -1
        """Where the log once ended, if it was found to end before that, or to be gone; else -1."""
        self.leads_from_epoch = 0
        """The first epoch that it may lead in, whatever the metadata says: before, it lacks
        something that the one that made it the leader did not know of."""
        self.waits_for_store = False
        """Whether its log was made anew, and what it held may be in the remote store: it does not
        lead before that is known."""
        self.is_held_back = False
        """Whether it would lead but for that."""
        self.may_be_cut = False
        """Whether its leader may lack what was committed: an operator has allowed to elect such a
        one."""
        self.store_high_watermark: Callable[[int], None] | None = None
        """What keeps it for the next leader after this process; only used with several replicas."""
        self.epoch_start_offset = 0
        """Where the log ended when this broker began to lead in this epoch."""
        self.followers: dict[int, Follower] = {}
        """The followers by broker id, while this broker leads."""
        self.waits_for: tuple[Follower, ...] = ()
        """The followers that the high watermark waits for."""
        self.pending_in_sync: tuple[int, ...] | None = None
        """In-sync replicas that the controller was asked for and has not answered."""
        self.is_under_min_in_sync = False
        self.followed_rows: list[FollowedRow] = []
        """One for each follower that reads here."""
        self.on_config(log.config)

    def on_config(self, config: LogConfig) -> None:
        """The topic's settings have changed."""
        self.message_bytes_max = config.max_message_bytes
        self.is_compacted = config.is_compacted
        self.is_log_append_time = config.is_log_append_time
        self.timestamp_before_max_ms = config.message_timestamp_before_max_ms
        self.timestamp_after_max_ms = config.message_timestamp_after_max_ms
        self.is_walked = (
            config.is_validated
            or config.is_compacted
            # A header tells the latest timestamp only.
            or (config.message_timestamp_before_max_ms < LONG_MAX and not config.is_log_append_time)
        )
        """Produce looks at every record: what it answers depends on them."""
        self.segment_bytes_max = config.segment_bytes
        self.min_in_sync_replicas = config.min_insync_replicas
        self.is_fsync = config.is_fsync
        self.leader_throttled = throttled_brokers(config.leader_throttled_replicas, self.partition)
        self.follower_throttled = throttled_brokers(
            config.follower_throttled_replicas, self.partition
        )
        """Brokers that copy it at a limited rate, as its leader and as a follower."""
        self.flush_messages = 1 if config.is_fsync else config.flush_messages
        """Records not yet on the disk with which an ack waits for it."""
        self.count_in_sync()

    def on_leadership(self, broker_id: int, image: PartitionImage) -> None:
        """Take over what the metadata image says of this partition."""
        is_first = self.leader_epoch < 0
        self.leader_id = image.leader_id
        self.partition_epoch = image.partition_epoch
        self.replicas = image.replicas
        self.in_sync_replicas = image.in_sync_replicas
        self.pending_in_sync = None
        self.may_be_cut = image.leader_recovery_state == RECOVERING
        leads = (
            image.leader_id == broker_id
            and not self.is_offline
            and image.leader_epoch >= self.leads_from_epoch
        )
        self.waits_for_store &= not self.log.log_end_offset
        self.is_held_back = leads and self.waits_for_store
        leads = leads and not self.waits_for_store
        if is_first and len(image.replicas) > 1:
            # What is behind it may be on this replica alone, so that it must not be shown.
            log = self.log
            known = min(self.known_high_watermark, log.log_end_offset)
            self.high_watermark = max(known, log.log_start_offset)
        if image.leader_epoch != self.leader_epoch or leads != self.is_leader:
            self.leader_epoch = image.leader_epoch
            self.epoch_start_offset = self.log.log_end_offset
            self.followers = {}
            if leads:
                # Written with the first batch: thousands of empty partitions need no file.
                self.log.leader_epochs.assign(image.leader_epoch, self.log.log_end_offset)
        self.is_leader = leads
        self.is_led_offline = self.is_offline and image.leader_id == broker_id
        if leads:
            followers = self.followers
            self.followers = {
                number: followers.get(number) or Follower(number)
                for number in image.replicas
                if number != broker_id
            }
        self.count_in_sync()
        if leads:
            self.advance_high_watermark()

    def count_in_sync(self) -> None:
        """Reckon whom the high watermark waits for, and whether it may move."""
        self.effective_min_in_sync = min(self.min_in_sync_replicas, len(self.replicas))
        self.is_under_min_in_sync = len(self.in_sync_replicas) < self.effective_min_in_sync
        counted = set(self.in_sync_replicas) | set(self.pending_in_sync or ())
        self.waits_for = tuple(
            follower for number, follower in self.followers.items() if number in counted
        )
        is_looked_at = (
            self.is_under_min_in_sync
            or self.is_walked
            or self.is_log_append_time
            or self.flush_messages < LONG_MAX
            or (len(self.replicas) > 1 and not self.waits_for)
        )
        most = min(self.message_bytes_max, self.segment_bytes_max)
        self.plain_bytes_max = 0 if is_looked_at else most
        """The largest batch of which only the header is looked at; 0: there is none."""

    def ask_for_in_sync(self, wanted: tuple[int, ...] | None) -> bool:
        """The controller is asked for these in-sync replicas; None: it has refused.

        From now on they count for the high watermark, as it may have said yes already; True if it
        has moved, as fewer are waited for.
        """
        self.pending_in_sync = wanted
        self.count_in_sync()
        return self.advance_high_watermark()

    def take_offline(self) -> None:
        """The disk has failed: nothing is read or appended here until the broker starts again."""
        self.is_led_offline = self.is_led_offline or self.is_leader
        self.is_leader = self.is_held_back = False
        self.is_offline = True

    def take_over(self, high_watermark: int) -> None:
        """Begin to lead where the leader before, with which this replica was in sync, had got to.

        Whatever it had told is here, as an in-sync replica has all below the high watermark.
        """
        self.high_watermark = max(self.high_watermark, min(high_watermark, self.log.log_end_offset))

    def on_begun_behind(self) -> None:
        """The log, which was empty, goes on behind what the remote store has: all of that was
        committed."""
        self.take_over(self.log.log_end_offset)
        if len(self.replicas) > 1 and self.store_high_watermark is not None:
            self.store_high_watermark(self.high_watermark)
        if self.is_leader:
            self.epoch_start_offset = self.log.log_end_offset
            self.log.begin_epoch(self.leader_epoch)
            self.advance_high_watermark()

    def advance_high_watermark(self) -> bool:
        """Move it as far as the in-sync replicas allow; True if it moved."""
        end = self.log.recovery_point if self.is_fsync else self.log.log_end_offset
        if self.is_under_min_in_sync or not self.is_leader:
            return False
        for follower in self.waits_for:
            if follower.log_end_offset < end:
                end = follower.log_end_offset
        if end <= self.high_watermark:
            return False
        self.high_watermark = end
        if self.producers.ended:
            self.producers.settle(end)
        if len(self.replicas) > 1 and self.store_high_watermark is not None:
            self.store_high_watermark(end)
        return True

    def follow_high_watermark(self, high_watermark: int) -> None:
        """The leader has told it; here it can't be beyond the end of the log."""
        end = min(high_watermark, self.log.log_end_offset)
        if end > self.high_watermark:
            self.high_watermark = end
            if self.producers.ended:
                self.producers.settle(end)
            if self.store_high_watermark is not None:
                self.store_high_watermark(end)

    def on_truncated(self) -> None:
        """The log was cut, above the high watermark unless an unclean leader was elected."""
        log = self.log
        self.high_watermark = max(
            min(self.high_watermark, log.log_end_offset), log.log_start_offset
        )
        if self.store_high_watermark is not None:
            self.store_high_watermark(self.high_watermark)  # followers compare with it

    def low_watermark(self, counted: Container[int]) -> int:
        """The least log start offset of this replica and of those on the brokers that count, while
        this one leads: UNKNOWN as long as one has not read in this epoch."""
        starts = [
            follower.log_start_offset
            for number, follower in self.followers.items()
            if number in counted
        ]
        return min([self.log.log_start_offset, *starts])

    @property
    def is_high_watermark_behind(self) -> bool:
        """Whether the leader before may have told a higher one (KIP-207): the followers have not
        read yet as far as this log went when it began to lead."""
        return self.high_watermark < self.epoch_start_offset

    @property
    def last_stable_offset(self) -> int:
        """Exclusive end of what read_committed consumers may see.

        It follows from the log below the high watermark, which every later leader has, so it never
        goes back either.
        """
        producers = self.producers
        if producers.open or producers.ended:
            return producers.stable_end(self.high_watermark, self.log.log_start_offset)
        return self.high_watermark


class Partitions(dict[bytes, Partition]):
    """The partitions that a broker holds, by key. The log of a topic that was just created may not
    be made yet: who is asked for it by a client looks with `find`, which has it made first."""

    __slots__ = ("open_due",)

    def __init__(self, *of: Mapping[bytes, Partition]) -> None:
        super().__init__(*of)
        self.open_due: Callable[[bytes], Partition | None] = lambda _: None
        """Makes the log of a key, if that is due here."""

    def find(self, key: bytes) -> Partition | None:
        """The partition of a key, with its log."""
        found = self.get(key)
        return self.open_due(key) if found is None else found

    def holds(self, partition: Partition) -> bool:
        """Whether this one is here still: not gone, and no other in its place."""
        return self.get(partition.key) is partition


def not_led_error(partition: Partition | None) -> int:
    """The error code for a partition that is not led here; None for one that is not here at all."""
    if partition is not None and partition.is_led_offline:
        return error_codes.KAFKA_STORAGE_ERROR
    return error_codes.NOT_LEADER_OR_FOLLOWER
