"""Taking a backup of a running family.

    A  list       each partition, some at a time; finished segments below the high watermark are
                  stored at once, those that earlier backups have are not
    B  cut        all partitions at one moment (`asking`), with what A did not have
    C  the rest   what is new since A, and the segment that is written to, up to the cut
    D  metadata   as it is then, which knows at least what the logs of the cut know
    E  manifest   by which the backup is one

A takes long, C is short. The files that A and B have listed are held: retention and compaction only
rename them meanwhile. Of compacted logs B lists all, whatever A has stored: with a segment from
before a compaction and one from after it, a record would be back whose tombstone is gone.

Partitions without a leader are waited for in B. Those that have none then are not in the backup,
which says so (`Backup.missing`).

Memory: one manifest, the one before, and the list of the cut. Bytes are never held but in pieces.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from shmbroker import clock
from shmbroker.backup import manifest
from shmbroker.backup.asking import FamilyClient, ListedPartition
from shmbroker.backup.manifest import Backup, PartitionBackup, SegmentObject
from shmbroker.backup.target import Lock, put_open_file
from shmbroker.client.faults import ClusterFault
from shmbroker.client.reader.segment_files import DELETED
from shmbroker.controller.raft.snapshots import image_snapshot
from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault
from shmbroker.ids import TopicIdPartition
from shmbroker.log.checkpoints import parse_entries, read_file
from shmbroker.log.file_names import (
    DELETE,
    LEADER_EPOCH_CHECKPOINT,
    mark_of,
    parse_partition_directory,
)
from shmbroker.tier.object_store import unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shmbroker.client.reader.planning import ListedSegment
    from shmbroker.metadata.image import MetadataImage
    from shmbroker.tier.object_store import ObjectStore

PARTITIONS_AT_ONCE = 100
CUTS_MAX = 5
"""How often the cut is done again for topics that are made anew meanwhile."""
PIECE_BYTES = 4 << 20
DELETED_AT_ONCE = 1000


class Taken(NamedTuple):
    """What a backup has cost."""

    backup: Backup
    stored: int
    stored_bytes: int
    """The bytes of objects that were not there, hard links included."""
    linked: int
    """How many of them are hard links."""
    kept: int
    """Segments that an earlier backup had."""


class Taking:
    """One backup; `progress(bytes done, bytes known of)` is told now and then."""

    def __init__(
        self,
        client: FamilyClient,
        store: ObjectStore,
        cluster_id: str,
        copies: bool = False,
        progress: Callable[[int, int], None] = lambda done, known: None,
    ) -> None:
        self._client = client
        self._store = store
        self._cluster_id = cluster_id
        self._copies = copies
        self._progress = progress
        self._known: dict[tuple[str, int, int, int, int], SegmentObject] = {}
        """The objects of the backup before, and finished ones of this, by (topic id, partition,
        base, size, inode)."""
        self._there: set[str] = set()
        """Keys that the store has, by its own word."""
        self._last_name = ""
        self._early: dict[TopicIdPartition, list[SegmentObject]] = {}
        self._early_epochs: dict[TopicIdPartition, int] = {}
        """The epochs of the leaders that have listed those."""
        self._done = self._expected = 0
        self._stored = self._stored_bytes = self._linked = self._kept = 0

    def run(self) -> Taken:
        """Take it. Faults: ClusterFault, StoreFault, CorruptFault, ConfigFault."""
        with Lock(self._store) as self._lock:
            self._store.sweep(manifest.SEGMENTS)
            self._look_back()
            self._store_finished()
            for _ in range(CUTS_MAX):
                rows = [self._rest(place, listed) for place, listed in sorted(self._cut().items())]
                image, timestamp_ms = self._client.image(self._cluster_id)
                if not _is_any_made_anew(rows, image):
                    return self._finish(rows, image, timestamp_ms)
        raise ClusterFault("topics are deleted and made again all the time; try again later")

    def _look_back(self) -> None:
        sizes = dict(self._store.list_objects(manifest.SEGMENTS))
        self._there = {key for key, size in sizes.items() if size >= manifest.size_in(key)}
        names = manifest.names(self._store)
        self._last_name = names[-1] if names else ""
        for name in reversed(names):
            try:
                before = manifest.load(self._store, name)
            except CorruptFault:
                continue  # an older one will do
            if before.cluster_id != self._cluster_id:
                raise ClusterFault(
                    f"the backups there are of the cluster {before.cluster_id}, this one is "
                    f"{self._cluster_id}: name another place"
                )
            for row in before.partitions:
                for each in row.segments:
                    if each.key not in self._there:
                        continue  # somebody has removed it: it is stored again
                    about = row.topic_id, row.partition, each.base_offset, each.size, each.inode
                    self._known[about] = each
            return

    # --- A -------------------------------------------------------------------------------------

    def _store_finished(self) -> None:
        places = [
            (topic.topic_id, index)
            for topic in self._client.all_topics()
            for index in topic.partitions
        ]
        for at in range(0, len(places), PARTITIONS_AT_ONCE):
            listed = self._client.list_held(set(places[at : at + PARTITIONS_AT_ONCE]))
            # The last one is written to, or will not be the last when it is asked for again.
            finished = {place: found.segments[:-1] for place, found in listed.items()}
            self._early_epochs |= {place: found.leader_epoch for place, found in listed.items()}
            self._expect(finished.values())
            for place, segments in finished.items():
                early = self._early[place] = []
                for segment in segments:
                    stored = self._segment(place, segment, is_finished=True)
                    if stored is None or (early and early[-1].end_offset != segment.base_offset):
                        break  # compacted or gone meanwhile: the cut will say what there is
                    early.append(stored)

    def _expect(self, segments: Iterable[Iterable[ListedSegment]]) -> None:
        self._expected += sum(each.valid_bytes for some in segments for each in some)
        self._progress(self._done, self._expected)

    # --- B -------------------------------------------------------------------------------------

    def _cut(self) -> dict[TopicIdPartition, ListedPartition]:
        while True:
            firsts = {
                place: segments[-1].end_offset
                for place, segments in self._early.items()
                if segments
            }
            cut = self._client.cut(firsts)
            parted = [place for place, listed in cut.items() if self._is_parted(place, listed)]
            if not parted:
                return cut
            for place in parted:
                self._early[place] = []

    def _is_parted(self, place: TopicIdPartition, listed: ListedPartition) -> bool:
        """Whether what was stored early and what is listed don't go together: another replica leads
        since, whose segments begin elsewhere, and one of the early ones straddles; or which did not
        have all of them, as after an unclean election."""
        early = self._early.get(place, ())
        if not early:
            return False
        epoch = self._early_epochs[place]
        if listed.leader_epoch != epoch:
            later = [start for each, start in _epochs(listed) if each > epoch]
            if later and min(later) < early[-1].end_offset:
                return True
        if not listed.segments or listed.segments[0].base_offset <= listed.log_start_offset:
            return False
        first = listed.segments[0].base_offset
        return any(each.base_offset < first < each.end_offset for each in early)

    # --- C -------------------------------------------------------------------------------------

    def _rest(self, place: TopicIdPartition, listed: ListedPartition) -> PartitionBackup:
        self._expect([listed.segments])
        first = listed.segments[0].base_offset if listed.segments else 1 << 63
        segments = [
            each
            for each in self._early.get(place, ())
            if each.end_offset <= first and each.end_offset > listed.log_start_offset
        ]
        for segment in listed.segments:
            stored = self._segment(place, segment, is_finished=segment is not listed.segments[-1])
            if stored is None:
                if not self._is_there(place):
                    break
                raise ClusterFault(
                    f"{segment.path} went away while it was backed up: the disk is nearly full, "
                    "the broker was started again, or the backup took too long. Try again"
                )
            segments.append(stored)
        return PartitionBackup(
            listed.topic,
            place[0].hex(),
            place[1],
            listed.log_start_offset,
            listed.high_watermark,
            _epochs(listed),
            tuple(segments),
        )

    def _is_there(self, place: TopicIdPartition) -> bool:
        """Whether the topic has not been deleted; one that has is left out at the end."""
        return any(topic.topic_id == place[0] for topic in self._client.all_topics())

    def _segment(
        self, place: TopicIdPartition, segment: ListedSegment, is_finished: bool
    ) -> SegmentObject | None:
        """The object of a listed segment, stored if it was not there; None if its file is gone."""
        fd = _open(segment)
        if fd is None:
            return None
        topic_id, index = place[0].hex(), place[1]
        try:
            status = os.fstat(fd)
            size = segment.valid_bytes
            about = topic_id, index, segment.base_offset, size, segment.inode
            known = self._known.get(about)
            if (
                known is not None
                and known.mtime_ns == status.st_mtime_ns
                and known.end_offset == segment.end_offset
            ):
                self._kept += 1
                self._done += size
                return known
            crc = 0
            for piece in _pieces(fd, size, segment.path):
                crc = crc32c(piece, crc)
            key = manifest.segment_key(
                topic_id, index, segment.base_offset, segment.end_offset, size, crc
            )
            if key in self._there:
                self._kept += 1
            else:
                may_link = is_finished and not self._copies
                self._lock.keep()
                self._linked += put_open_file(self._store, key, fd, size, may_link)
                self._stored += 1
                self._stored_bytes += size
                self._there.add(key)
            self._done += size
            self._progress(self._done, self._expected)
            stored = SegmentObject(
                key,
                size,
                crc,
                segment.base_offset,
                segment.end_offset,
                segment.inode,
                status.st_mtime_ns,
            )
            if is_finished:
                self._known[about] = stored  # a compacted log's are listed once more
            return stored
        finally:
            os.close(fd)

    # --- D and E -------------------------------------------------------------------------------

    def _finish(
        self, rows: list[PartitionBackup], image: MetadataImage, timestamp_ms: int
    ) -> Taken:
        now_ms = clock.now_ms()
        name = manifest.name_after(self._last_name, now_ms)
        content = b"".join(image_snapshot(image, timestamp_ms, now_ms))
        crc = crc32c(content)
        key = f"{manifest.METADATA}{name}-{crc:08x}.checkpoint"
        self._store.put(key, content)
        topics = {topic_id.hex() for topic_id in image.topics_by_id}
        left_out = self._client.left_out
        missing = sorted(left_out[place] for place in left_out if place[0] in image.topics_by_id)
        backup = Backup(
            name,
            self._cluster_id,
            now_ms,
            key,
            len(content),
            crc,
            image.offset,
            image.epoch,
            tuple(row for row in rows if row.topic_id in topics),  # others were deleted since
            tuple(missing),
        )
        self._lock.keep()  # else what it names may be gone
        self._store.put(f"{manifest.BACKUPS}{name}.json", manifest.encode(backup))
        self._progress(self._done, self._done)
        return Taken(backup, self._stored, self._stored_bytes, self._linked, self._kept)


def _is_any_made_anew(rows: Iterable[PartitionBackup], image: MetadataImage) -> bool:
    """Whether a topic has another id since the cut: groups have offsets in it there, which are
    beyond what is in the new one."""
    names = {row.topic: row.topic_id for row in rows}
    return any(
        topic.name in names and topic_id.hex() != names[topic.name]
        for topic_id, topic in image.topics_by_id.items()
    )


def _epochs(listed: ListedPartition) -> tuple[tuple[int, int], ...]:
    """Where the leader epochs of the log begin; none where the file tells none: the batches do."""
    path = f"{listed.directory}/{LEADER_EPOCH_CHECKPOINT}"
    text = read_file(path)
    rows = parse_entries(path, text, 2) if text else []
    pairs = [(int(epoch), int(start)) for epoch, start in rows]
    return tuple(pair for pair in pairs if pair[1] < listed.high_watermark)


def _open(segment: ListedSegment) -> int | None:
    """The listed file, under its name or what retention and compaction have made of that."""
    for path in _names(segment.path):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        if os.fstat(fd).st_ino == segment.inode:
            return fd
        os.close(fd)
    return None


def _names(path: str) -> Iterator[str]:
    yield path
    yield path + DELETED
    yield path  # it may have got back between the two
    directory, name = os.path.split(path)
    node, partition = os.path.split(directory)
    if parse_partition_directory(partition) is not None:
        try:
            renamed = [each for each in os.listdir(node) if each.startswith(f"{partition}.")]
        except OSError:
            return
        for each in renamed:
            if mark_of(each) == DELETE:
                yield os.path.join(node, each, name)


def _pieces(fd: int, size: int, path: str) -> Iterator[bytes]:
    position = 0
    while position < size:
        try:
            piece = os.pread(fd, min(PIECE_BYTES, size - position), position)
        except OSError as error:
            raise unreadable(path, error) from error
        if not piece:
            raise CorruptFault(
                f"{path} ends at {position}, before {size} bytes that it should have"
            )
        yield piece
        position += len(piece)


def prune(store: ObjectStore, keep: int) -> tuple[list[str], int, int]:
    """Remove all that is older than the `keep` latest backups in which nothing is missing, and what
    none of those that stay needs: the names, and how many objects of how many bytes. CorruptFault,
    with nothing removed, if one to keep is damaged.
    """
    with Lock(store) as lock:
        gone = manifest.names(store)
        needed: set[str] = set()
        while gone and keep:
            backup = manifest.load(store, gone.pop())
            needed |= backup.keys
            keep -= not backup.missing
        lock.keep()
        store.delete(f"{manifest.BACKUPS}{name}.json" for name in gone)
        store.sweep(manifest.SEGMENTS)
        objects = bytes_ = 0
        for prefix in (manifest.SEGMENTS, manifest.METADATA):
            some: list[str] = []
            for key, size in list(store.list_objects(prefix)):
                if key not in needed:
                    objects, bytes_ = objects + 1, bytes_ + size
                    some.append(key)
            for at in range(0, len(some), DELETED_AT_ONCE):
                lock.keep()
                store.delete(some[at : at + DELETED_AT_ONCE])
        return gone, objects, bytes_
