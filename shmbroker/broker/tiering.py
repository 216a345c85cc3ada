"""The I/O worker's side of tiered storage: what is copied, dropped, fetched again, and from where.

   this worker                                     tier process (`processes.tier`)
   a partition is led here, or held            →   lists what the store has of it
   a closed segment is on the disk, and
     all of it is below the high watermark     →   copies it; nothing is lost while it doesn't
   a copied one is past local retention: unlinked here
   the log start moves over copies             →   deletes them
   a read before the local start               →   fetches a piece of a segment into a file
  … by a read_committed reader                →   reads transaction indexes of segments

Rules of this file:
* Nobody waits: a read that needs a piece is in the purgatory meanwhile (`broker.read`).
* Leaders copy and delete; followers look now and then, and drop what the leader has copied.
* A local segment goes only when the store's list, as this worker knows it, covers all of it.
* Pieces are files of whole batches in the cache directory of this worker, kept by LRU up to a
  bound; reads are answered with slices of them, as of any segment. They end with the worker.
* What the store refuses is tried again, after 1 s, 2 s … 60 s; reads are told KAFKA_STORAGE_ERROR
  meanwhile. A segment that is damaged here ends the copying of its partition until the next start.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from shmbroker import logs
from shmbroker.broker.partition_store import PartitionStore
from shmbroker.broker.tier_port import Slice
from shmbroker.errors import StorageFault
from shmbroker.log.checkpoints import remove_files
from shmbroker.log.retiring import advance_log_start, delete_local_before
from shmbroker.log.segment import Segment
from shmbroker.log.transaction_index import AbortedTransaction
from shmbroker.log.truncation import truncate_fully
from shmbroker.records.batch_layout import (
    H_BASE_OFFSET,
    H_LAST_OFFSET_DELTA,
    H_LENGTH,
    LOG_OVERHEAD,
)
from shmbroker.replica.partition import Partition
from shmbroker.tier.remote_log import NEVER, RemoteLog, RemoteSegment
from shmbroker.wire.api_keys import (
    TIER_ABORTED,
    TIER_COPY,
    TIER_DELETE,
    TIER_FETCH,
    TIER_FIND,
    TIER_LOAD,
)
from shmbroker.wire.error_codes import (
    CORRUPT_MESSAGE,
    KAFKA_STORAGE_ERROR,
    NONE,
    REQUEST_TIMED_OUT,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.settings.broker_config import BrokerConfig

logger = logging.getLogger(__name__)

COPIES_MAX = 4
"""Under way at once, of this worker; one for a partition."""
FETCHES_MAX = 4
"""Under way at once for one partition."""
BACKOFF_MS_MIN = 1000
BACKOFF_MS_MAX = 60_000
FETCH_BACKOFF_MS = 1000
"""How long reads are refused after a fetch has failed."""
FOLLOWER_REFRESH_MS = 30_000
BOUNDARIES_KEPT = 64
INDEXES_KEPT = 64
"""Transaction indexes of one partition."""

Ask = Callable[[int, str, dict[str, Any], Callable[[dict[str, Any]], None]], bool]


class Remote:
    """What this broker knows of one partition's copies."""

    __slots__ = (
        "aborted",
        "backoff_ms",
        "boundaries",
        "chunks",
        "copying",
        "deleting",
        "directory",
        "fault_until_ms",
        "fetching",
        "finds",
        "is_asked",
        "is_current",
        "is_given_up",
        "is_loaded",
        "log",
        "partition",
        "refresh_ms",
        "retry_ms",
    )

    def __init__(self, partition: Partition, directory: str) -> None:
        self.partition = partition
        self.directory = directory
        """Where its pieces lie; made by the first fetch."""
        self.log = RemoteLog()
        self.is_loaded = False
        """`log` is what the store had at some time."""
        self.is_current = False
        """… and is it still, as far as this worker leads."""
        self.is_asked = False
        """Its list is on the way."""
        self.is_given_up = False
        """Nothing of it is copied or deleted any more."""
        self.copying: Segment | None = None
        self.deleting: list[RemoteSegment] = []
        self.backoff_ms = BACKOFF_MS_MIN
        self.retry_ms = 0
        self.refresh_ms = 0
        self.chunks: list[Segment] = []
        """Pieces that are here, by base offset."""
        self.boundaries: dict[int, tuple[Segment, int]] = {}
        """offset -> (piece, position) where a reader stopped lately."""
        self.aborted: OrderedDict[RemoteSegment, list[AbortedTransaction] | None] = OrderedDict()
        """Transaction indexes that are here, or (None) on the way, used last at the end."""
        self.fetching: set[int] = set()
        self.fault_until_ms = 0
        self.finds: list[Find] = []
        """Lookups by time that wait for `log`."""

    def succeeded(self) -> None:
        self.backoff_ms = BACKOFF_MS_MIN
        self.retry_ms = 0

    def failed(self, now_ms: int) -> None:
        self.retry_ms = now_ms + self.backoff_ms
        self.backoff_ms = min(self.backoff_ms * 2, BACKOFF_MS_MAX)

    def chunk_of(self, offset: int) -> Segment | None:
        """The piece with `offset`."""
        place = bisect_right(self.chunks, offset, key=lambda chunk: chunk.base_offset)
        for chunk in reversed(self.chunks[max(place - 2, 0) : place]):
            if offset < chunk.end_offset:
                return chunk
        return None

    def name(self) -> dict[str, Any]:
        """How the tier process knows the partition."""
        partition = self.partition
        return {
            "topic": partition.topic,
            "topic_id": partition.topic_id,
            "partition": partition.partition,
        }


class Find:
    """One lookup by time in the store; `on_done(error, timestamp, offset)`, -1 for none there."""

    __slots__ = ("deadline_ms", "is_done", "on_done", "remote", "start", "timestamp")

    def __init__(
        self,
        remote: Remote,
        timestamp: int,
        deadline_ms: int,
        on_done: Callable[[int, int, int], None],
    ) -> None:
        self.remote = remote
        self.timestamp = timestamp
        self.start = 0
        self.deadline_ms = deadline_ms
        self.on_done = on_done
        self.is_done = False

    def finish(self, error: int, timestamp: int = -1, offset: int = -1) -> None:
        if not self.is_done:
            self.is_done = True
            self.on_done(error, timestamp, offset)


class Tiering:
    """Tiered storage of one broker's partitions.

    ask(key, name, body, on_answer): a request to the tier process; False if there is no room for
    it, or no such process now. wake(key): reads that wait for the partition look again.
    """

    def __init__(
        self,
        store: PartitionStore,
        config: BrokerConfig,
        ask: Ask,
        wake: Callable[[bytes], Any],
        now_ms: Callable[[], int],
        cache_root: str,
        incarnation: int,
    ) -> None:
        self.is_there = True
        self.store = store
        self.interval_ms = config["remote.log.manager.task.interval.ms"]
        self.find_timeout_ms = config["remote.list.offsets.request.timeout.ms"]
        self.cache_bytes_max = (
            config["shmbroker.tier.cache.bytes"] // config["shmbroker.io.workers"]
        )
        self.ask = ask
        self.wake = wake
        self.now_ms = now_ms
        self.remotes: dict[bytes, Remote] = {}
        self.cache: OrderedDict[int, tuple[Remote, Segment]] = OrderedDict()
        """Pieces by file id, used last at the end."""
        self.cache_bytes = 0
        self.unread: set[int] = set()
        """File ids of pieces that nobody has read from yet: with the first read the next comes."""
        self.copies = 0
        self.finds: list[Find] = []
        self._next_ms = 0
        node = os.path.basename(store.log_directory.path)
        self.cache_directory = os.path.join(cache_root, f"{node}.{incarnation}")
        self._clear_cache(cache_root, f"{node}.")

    def _clear_cache(self, root: str, mine: str) -> None:
        """Begin with an empty cache: nobody knows the pieces of the one before."""
        import shutil  # with all of its archive formats: nothing for a start

        try:
            os.makedirs(root, exist_ok=True)
            for name in os.listdir(root):
                if name.startswith(mine):
                    shutil.rmtree(os.path.join(root, name), ignore_errors=True)
        except OSError as error:
            raise StorageFault(f"can't make the cache directory {root}: {error}") from error

    # ── partitions come and go ──────────────────────────────────────────────────────────────────

    def on_partition(self, partition: Partition) -> None:
        """It is here, its leader or its settings have changed."""
        remote = self.remotes.get(partition.key)
        if not partition.log.config.is_tiered:
            if remote is not None:
                self._forget(remote)
                # What only the store had is not readable any more; the tier process removes it.
                log = partition.log
                advance_log_start(log, log.local_start_offset)
                self.store.note_log_start()
            return
        if remote is None:
            name = f"{partition.topic_id.hex()}-{partition.partition}"
            remote = Remote(partition, os.path.join(self.cache_directory, name))
            self.remotes[partition.key] = remote
        remote.is_current = False
        self._load(remote)

    def on_deleted(self, key: bytes) -> None:
        """The topic is deleted."""
        remote = self.remotes.get(key)
        if remote is not None:
            self._forget(remote)

    def _forget(self, remote: Remote) -> None:
        del self.remotes[remote.partition.key]
        for find in remote.finds:
            find.finish(NONE)
        for chunk in remote.chunks[:]:
            self._drop_chunk(remote, chunk)

    def on_tier_lost(self) -> None:
        """The tier process died with all that it was asked."""
        now_ms = self.now_ms()
        self.copies = 0
        for remote in self.remotes.values():
            remote.is_current = remote.is_asked = False
            remote.copying, remote.deleting = None, []
            if remote.fetching:
                # One that it died of must not be asked for at once.
                remote.fault_until_ms = now_ms + FETCH_BACKOFF_MS
                remote.fetching.clear()
            for copy in [copy for copy, entries in remote.aborted.items() if entries is None]:
                del remote.aborted[copy]
        finds, self.finds = self.finds, []
        for find in finds:
            find.remote.finds.append(find)

    def on_tier_running(self) -> None:
        """There is a tier process (again)."""
        for remote in self.remotes.values():
            self._load(remote)
            self.wake(remote.partition.key)

    def _is_here(self, remote: Remote) -> bool:
        return self.remotes.get(remote.partition.key) is remote

    # ── upkeep ──────────────────────────────────────────────────────────────────────────────────

    def run(self, now_ms: int) -> None:
        """Look which partition has something to do."""
        for find in [find for find in self._all_finds() if find.deadline_ms <= now_ms]:
            find.finish(REQUEST_TIMED_OUT)
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + self.interval_ms
        self.finds = [find for find in self.finds if not find.is_done]
        for remote in self.remotes.values():
            remote.finds = [find for find in remote.finds if not find.is_done]
            if now_ms < remote.retry_ms:
                continue
            if not remote.is_current:
                self._load(remote)
            elif remote.partition.is_leader:
                self._delete_ended(remote)
                self._maybe_copy(remote)
            elif now_ms >= remote.refresh_ms and len(remote.partition.log.segments) > 1:
                remote.is_current = False
                self._load(remote)

    def _all_finds(self) -> Iterator[Find]:
        yield from self.finds
        for remote in self.remotes.values():
            yield from remote.finds

    def _load(self, remote: Remote) -> None:
        if remote.is_asked or remote.is_current:
            return

        def on_answer(body: dict[str, Any]) -> None:
            remote.is_asked = False
            if not self._is_here(remote):
                return
            if body["error_code"]:
                remote.failed(self.now_ms())
            else:
                self._on_loaded(remote, [RemoteSegment(**found) for found in body["segments"]])
            self.wake(remote.partition.key)

        remote.is_asked = self.ask(TIER_LOAD, "TierLoad", remote.name(), on_answer)

    def _on_loaded(self, remote: Remote, segments: list[RemoteSegment]) -> None:
        remote.succeeded()
        remote.log = RemoteLog(segments)
        remote.is_loaded = remote.is_current = True
        remote.refresh_ms = self.now_ms() + FOLLOWER_REFRESH_MS
        if remote.partition.is_leader:
            self._reconcile(remote)
            self._delete_ended(remote)
            self._maybe_copy(remote)
        finds, remote.finds = remote.finds, []
        for find in finds:
            self._find(find)

    def _reconcile(self, remote: Remote) -> None:
        """Bring the log together with what the store has of it."""
        partition, copies = remote.partition, remote.log
        log = partition.log
        if copies.end_offset > log.log_end_offset:
            # Only what is on the disk is copied: the disk has lost it.
            if log.log_end_offset == log.segments[0].base_offset and copies.covered_end(
                max(log.log_start_offset, copies.start_offset)
            ) == (end := copies.end_offset):
                logger.warning(
                    "%s-%d: the log is empty, the store has it up to %d: it goes on there",
                    partition.topic,
                    partition.partition,
                    end,
                )
                truncate_fully(log, end, max(log.log_start_offset, copies.start_offset))
                log.begin_epoch(partition.leader_epoch)
                partition.advance_high_watermark()
            else:
                self._give_up(
                    remote,
                    f"the store has offsets up to {copies.end_offset}, "
                    f"the log only up to {log.log_end_offset}",
                )
                return
        found = copies.find(log.log_start_offset)
        local = log.segments[0].base_offset
        start = local if found is None else min(found.base_offset, local)
        if start > log.log_start_offset:
            advance_log_start(log, start)
        self.store.note_log_start()

    def _give_up(self, remote: Remote, reason: str) -> None:
        remote.is_given_up = True
        partition = remote.partition
        logger.error(
            "%s-%d is not copied to the remote store any more until the next start: %s",
            partition.topic,
            partition.partition,
            reason,
        )

    def _maybe_copy(self, remote: Remote) -> None:
        """Ask for the next copy, if a segment is ready for it."""
        log = remote.partition.log
        if (
            remote.copying is not None
            or remote.is_given_up
            or not log.config.is_copied
            or len(log.segments) < 2
            or self.copies >= COPIES_MAX
        ):
            return
        closed = log.segments[:-1]
        count = remote.log.count_covered(closed, log.local_start_offset)
        if count == len(closed):
            return
        segment = closed[count]
        # What a power cut takes from the log must not be in the store either.
        end = min(remote.partition.last_stable_offset, log.recovery_point)
        if segment.end_offset > end or not segment.size:
            return
        try:
            max_timestamp = _newest(segment)
            log.aborted.check()
        except StorageFault as fault:
            self._on_copied(remote, segment, None, {
                "error_code": KAFKA_STORAGE_ERROR, "error_message": str(fault)
            })  # fmt: skip
            return
        entries = log.leader_epochs.entries
        copy = RemoteSegment(
            segment.base_offset,
            segment.end_offset,
            max(log.leader_epochs.epoch_at(segment.end_offset - 1), 0),
            segment.size,
            max_timestamp,
            log.aborted.has(segment.base_offset),
        )
        body = remote.name() | copy._asdict()
        body["directory"] = log.directory
        body["epochs"] = [{"epoch": epoch, "start_offset": start} for epoch, start in entries]
        if self.ask(
            TIER_COPY,
            "TierCopy",
            body,
            lambda answer: self._on_copied(remote, segment, copy, answer),
        ):
            remote.copying = segment
            self.copies += 1

    def _on_copied(
        self, remote: Remote, segment: Segment, copy: RemoteSegment | None, body: dict[str, Any]
    ) -> None:
        if remote.copying is segment:
            remote.copying = None
            self.copies -= 1
        if not self._is_here(remote):
            return
        error = body["error_code"]
        if error == CORRUPT_MESSAGE:
            self._give_up(remote, body.get("error_message") or "a segment is damaged")
        elif error or copy is None:
            remote.failed(self.now_ms())
            remote.is_current = False
        else:
            remote.succeeded()
            remote.log.add(copy)
            self.store.retain(remote.partition, self.now_ms())
            self._maybe_copy(remote)

    def _delete_ended(self, remote: Remote) -> None:
        """Have copies deleted of which nothing is readable any more."""
        if remote.deleting or remote.is_given_up:
            return
        gone = remote.log.ended_by(remote.partition.log.log_start_offset)
        if not gone:
            return

        def on_answer(body: dict[str, Any]) -> None:
            remote.deleting = []
            if body["error_code"]:
                remote.failed(self.now_ms())
            else:
                remote.succeeded()
                remote.log.remove(gone)

        body = remote.name()
        fields = ("base_offset", "end_offset", "leader_epoch")
        body["segments"] = [{name: getattr(one, name) for name in fields} for one in gone]
        if self.ask(TIER_DELETE, "TierDelete", body, on_answer):
            remote.deleting = gone

    # ── retention ───────────────────────────────────────────────────────────────────────────────

    def retain(self, partition: Partition, now_ms: int) -> bool:
        """Retention of copies, and of local segments that are copied.

        True if total retention is to be kept among the local segments as well: nothing more is
        copied, and nothing before them is left. Else they stay until they are copied, and expire
        in the store (as Kafka's `UnifiedLog.isSegmentEligibleForDeletion` has it).
        """
        log = partition.log
        config = log.config
        remote = self.remotes.get(partition.key)
        if remote is None or not remote.is_loaded:
            return False
        if config.is_deleted and partition.is_leader:
            start = remote.log.expired_end(
                log.log_start_offset,
                log.local_start_offset,
                log.size_bytes,
                now_ms,
                (config.retention_ms, config.retention_bytes),
            )
            if start > log.log_start_offset:
                advance_log_start(log, start)
                self.store.note_log_start()
        if config.is_copied:
            self._retain_local(remote, now_ms)
            if not remote.is_given_up:
                return False
        return bool(log.log_start_offset >= log.segments[0].base_offset)

    def _retain_local(self, remote: Remote, now_ms: int) -> None:
        """Unlink copied segments that local retention doesn't keep; roll the active one for it."""
        log = remote.partition.log
        limit_ms, limit_bytes = log.config.local_retention_ms, log.config.local_retention_bytes
        closed = log.segments[:-1]
        covered = remote.log.count_covered(closed, log.local_start_offset)
        excess = log.size_bytes - limit_bytes
        end = -1
        for number, segment in enumerate(log.segments):
            excess -= segment.size
            if segment.size:
                is_too_old = limit_ms >= 0 and now_ms - _newest(segment) > limit_ms
                is_too_much = limit_bytes >= 0 and excess >= 0
                if not (is_too_old or is_too_much):
                    break
            if segment is log.active:
                is_all_committed = log.log_end_offset <= remote.partition.high_watermark
                if segment.size and remote.partition.is_leader and is_all_committed:
                    log.roll(now_ms)
                    log.active.create_files()
            elif number < covered:
                end = segment.end_offset
        delete_local_before(log, end)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────

    def read(
        self,
        partition: Partition,
        offset: int,
        max_bytes: int,
        end_offset: int,
        min_one_batch: bool,
    ) -> Slice | int | None:
        """Whole batches from the one with `offset` on, which lies before the local start, up to
        `end_offset`. (What is in the store ends before the last stable offset.)

        (segment, position, length) as `PartitionLog.read` has it; an error code; None: they are
        on the way, and whoever watches the partition is woken.
        """
        remote = self.remotes.get(partition.key)
        if remote is None:
            return KAFKA_STORAGE_ERROR
        log = partition.log
        try:
            while offset < log.local_start_offset:
                place = remote.boundaries.get(offset)
                if place is None:
                    chunk = remote.chunk_of(offset)
                    if chunk is None:
                        copy = remote.log.find(offset)
                        if copy is None or copy.base_offset >= log.local_start_offset:
                            if not remote.is_loaded:
                                return self._await_list(remote)
                            offset = log.local_start_offset  # a gap
                            break
                        return self._fetch(remote, copy, max(offset, copy.base_offset))
                    place = chunk, chunk.find(offset)[0]
                chunk, position = place
                if position < chunk.size:
                    return self._slice(remote, chunk, position, max_bytes, min_one_batch)
                offset = chunk.end_offset  # a gap at its end
        except StorageFault as fault:
            again = "it is fetched again"
            logger.error("%s; %s", fault, again, extra=logs.seldom(again))
            for damaged in remote.chunks[:]:
                self._drop_chunk(remote, damaged)
            remote.fault_until_ms = self.now_ms() + FETCH_BACKOFF_MS
            return KAFKA_STORAGE_ERROR
        return log.read(offset, max_bytes, end_offset, min_one_batch)

    def aborted_in(
        self, partition: Partition, offset: int, segment: Segment, position: int, end_offset: int
    ) -> list[AbortedTransaction] | int | None:
        """As `lookups.aborted_in`, of a slice that `read` gave; or an error code, or None as
        there."""
        log = partition.log
        remote = self.remotes.get(partition.key)
        if remote is None:
            return KAFKA_STORAGE_ERROR
        if position == segment.size:
            end_offset = min(end_offset, segment.end_offset)
        else:
            end_offset = min(end_offset, segment.end_before(position))
        found: list[AbortedTransaction] = []
        for copy in remote.log.with_aborted(offset):
            if copy.base_offset >= log.local_start_offset:
                break  # here as well
            entries = self._index_of(remote, copy)
            if not isinstance(entries, list):
                return entries
            for entry in entries:
                if entry.last_offset >= offset and entry.first_offset < end_offset:
                    found.append(entry)
                if entry.last_stable_offset >= end_offset:
                    return list(dict.fromkeys(found))
        # A segment may be here and there, and copies overlap.
        return list(dict.fromkeys(found + log.aborted.find(offset, end_offset)))

    def _index_of(
        self, remote: Remote, copy: RemoteSegment
    ) -> list[AbortedTransaction] | int | None:
        """The transaction index of a copy, which is asked for where it is not here."""
        if copy in remote.aborted:
            remote.aborted.move_to_end(copy)
            return remote.aborted[copy]
        if self.now_ms() < remote.fault_until_ms:
            return KAFKA_STORAGE_ERROR

        def on_answer(body: dict[str, Any]) -> None:
            if body["error_code"]:
                remote.aborted.pop(copy, None)
                remote.fault_until_ms = self.now_ms() + FETCH_BACKOFF_MS
            else:
                rows = body["aborted"]
                fields = AbortedTransaction._fields
                remote.aborted[copy] = [
                    AbortedTransaction(*(row[name] for name in fields)) for row in rows
                ]
                while len(remote.aborted) > INDEXES_KEPT:
                    remote.aborted.popitem(last=False)
            self.wake(remote.partition.key)

        if self.ask(TIER_ABORTED, "TierAborted", remote.name() | copy._asdict(), on_answer):
            remote.aborted[copy] = None
        return None

    def _await_list(self, remote: Remote) -> int | None:
        if self.now_ms() < remote.retry_ms:
            return KAFKA_STORAGE_ERROR
        self._load(remote)
        return None

    def _slice(
        self, remote: Remote, chunk: Segment, position: int, max_bytes: int, min_one_batch: bool
    ) -> Slice:
        self.cache.move_to_end(chunk.file_id)
        if chunk.file_id in self.unread:
            self.unread.discard(chunk.file_id)
            self._read_ahead(remote, chunk.end_offset)
        limit, next_offset = chunk.size, chunk.end_offset
        if limit - position > max_bytes:
            limit, next_offset = chunk.whole_batches(position, position + max_bytes)
            if limit == position:
                if not min_one_batch:
                    return chunk, position, 0
                for found, header in chunk.headers(position, chunk.size):
                    limit = found + header[H_LENGTH] + LOG_OVERHEAD
                    next_offset = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1
                    break
        if next_offset != chunk.end_offset:
            if len(remote.boundaries) >= BOUNDARIES_KEPT:
                del remote.boundaries[next(iter(remote.boundaries))]
            remote.boundaries[next_offset] = chunk, limit
        return chunk, position, limit - position

    def _read_ahead(self, remote: Remote, offset: int) -> None:
        """A reader has begun with the piece before: it will want this one."""
        if offset >= remote.partition.log.local_start_offset or remote.chunk_of(offset):
            return
        copy = remote.log.find(offset)
        if copy is not None:
            self._fetch(remote, copy, max(offset, copy.base_offset))

    def _fetch(self, remote: Remote, copy: RemoteSegment, offset: int) -> int | None:
        """Ask for a piece, if it isn't on the way; KAFKA_STORAGE_ERROR soon after a failure."""
        if self.now_ms() < remote.fault_until_ms:
            return KAFKA_STORAGE_ERROR
        if offset in remote.fetching or len(remote.fetching) >= FETCHES_MAX:
            return None
        try:
            os.makedirs(remote.directory, exist_ok=True)
        except OSError as error:
            raise StorageFault(f"can't make {remote.directory}: {error}") from error
        body = remote.name() | copy._asdict()
        body |= {"offset": offset, "directory": remote.directory}
        if self.ask(
            TIER_FETCH, "TierFetch", body, lambda answer: self._on_fetched(remote, offset, answer)
        ):
            remote.fetching.add(offset)
        return None

    def _on_fetched(self, remote: Remote, offset: int, body: dict[str, Any]) -> None:
        remote.fetching.discard(offset)
        if body["error_code"]:
            remote.fault_until_ms = self.now_ms() + FETCH_BACKOFF_MS
        else:
            chunk = Segment(
                remote.directory,
                body["base_offset"],
                remote.partition.log.config,
                next(self.store.file_ids),
                self.store.log_directory.descriptors,
            )
            chunk.size = body["size"]
            chunk.end_offset = body["end_offset"]
            if not self._is_here(remote):
                chunk.remove()
                return
            self._add_chunk(remote, chunk)
        self.wake(remote.partition.key)

    def _add_chunk(self, remote: Remote, chunk: Segment) -> None:
        for other in remote.chunks[:]:
            if other.base_offset == chunk.base_offset:
                self._drop_chunk(remote, other, is_removed=False)  # its file is replaced
        place = bisect_right(remote.chunks, chunk.base_offset, key=lambda one: one.base_offset)
        remote.chunks.insert(place, chunk)
        self.cache[chunk.file_id] = remote, chunk
        self.unread.add(chunk.file_id)
        self.cache_bytes += chunk.size
        while self.cache_bytes > self.cache_bytes_max and len(self.cache) > 1:
            self._drop_chunk(*next(iter(self.cache.values())))

    def _drop_chunk(self, remote: Remote, chunk: Segment, *, is_removed: bool = True) -> None:
        remote.chunks.remove(chunk)
        del self.cache[chunk.file_id]
        self.unread.discard(chunk.file_id)
        self.cache_bytes -= chunk.size
        remote.boundaries = {
            offset: place for offset, place in remote.boundaries.items() if place[0] is not chunk
        }
        chunk.close()
        if is_removed:
            try:
                remove_files((chunk.path, chunk.offset_index.path, chunk.time_index.path))
            except StorageFault as fault:
                logger.error("%s", fault, extra=logs.seldom("a cached piece is left"))
        self.store.dropped_file_ids.append(chunk.file_id)

    # ── lookups by time ─────────────────────────────────────────────────────────────────────────

    def is_older_here(self, partition: Partition, timestamp: int) -> bool:
        """Whether a lookup by this time has to go to the store first."""
        remote = self.remotes.get(partition.key)
        log = partition.log
        if remote is None or log.log_start_offset >= log.local_start_offset:
            return False
        return not remote.is_loaded or (
            remote.log.newer_than(timestamp, log.log_start_offset, log.local_start_offset)
            is not None
        )

    def max_timestamp(self, partition: Partition) -> int:
        """The largest timestamp of what only the store has, or NEVER."""
        remote = self.remotes.get(partition.key)
        if remote is None:
            return NEVER
        log = partition.log
        return remote.log.max_timestamp(log.log_start_offset, log.local_start_offset)

    def find_time(
        self, partition: Partition, timestamp: int, on_done: Callable[[int, int, int], None]
    ) -> None:
        """Look for the first record that isn't older, among what only the store has."""
        remote = self.remotes[partition.key]
        self._find(Find(remote, timestamp, self.now_ms() + self.find_timeout_ms, on_done))

    def _find(self, find: Find) -> None:
        remote = find.remote
        log = remote.partition.log
        if find.is_done:
            return
        if not remote.is_loaded:
            remote.finds.append(find)
            self._load(remote)
            return
        find.start = max(find.start, log.log_start_offset)
        copy = remote.log.newer_than(find.timestamp, find.start, log.local_start_offset)
        if copy is None:
            find.finish(NONE)
            return

        def on_answer(body: dict[str, Any]) -> None:
            if find in self.finds:
                self.finds.remove(find)
            if body["error_code"]:
                find.finish(KAFKA_STORAGE_ERROR)
            elif body["offset"] >= 0:
                find.finish(NONE, body["timestamp"], body["offset"])
            else:
                find.start = copy.end_offset
                self._find(find)

        body = remote.name() | copy._asdict()
        body |= {"timestamp": find.timestamp, "start_offset": find.start}
        if self.ask(TIER_FIND, "TierFind", body, on_answer):
            self.finds.append(find)
        else:
            find.finish(KAFKA_STORAGE_ERROR)

    # ── for ListOffsets ─────────────────────────────────────────────────────────────────────────

    def end_offset(self, partition: Partition) -> int:
        """One past the last offset that is in the store, or NEVER."""
        remote = self.remotes.get(partition.key)
        return remote.log.end_offset if remote is not None else NEVER


def _newest(segment: Segment) -> int:
    """The largest timestamp; where there is none, when the file was written."""
    newest = segment.max_timestamp
    return newest if newest >= 0 else segment.modified_ms()
