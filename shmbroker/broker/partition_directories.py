"""The directories of one broker's partitions: found, made, renamed away, and whose they are.

   there, with the topic id that is asked for    it is the partition's
   there, with another one, or nobody's          `-stray`: renamed, and left alone
   there, of a partition that was moved away     the same
   not there, and known to have been             its loss is named, and it is made again
   the same, and there is one of its name that
   was deleted                                   it is made
   not there                                     it is made
   its partition was deleted                     `-delete`: renamed, and removed later

Rules of this file:
* A directory belongs to the topic id in its `partition.metadata`.
* What was here and is gone is named before anything else takes its place: a directory that
  checkpoints know, or the positions of the worker before. What checkpoints know of a deleted topic
  says nothing about one that has its name now: a worker that dies after a deletion and before its
  next checkpoint leaves a `-delete` directory, which stays until the checkpoints know (`Removals`).
* A directory that has to go and that the disk does not let be renamed is tried again (`refused`).
  Until then nothing is opened under its name: it might take the other's place under that name.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import NamedTuple

from shmbroker import logs
from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.ids import partition_key, random_uuid
from shmbroker.log.file_names import (
    DELETE,
    FUTURE,
    LOG,
    PARTITION_METADATA,
    STRAY,
    mark_of,
    marked_directory,
    parse_partition_directory,
    partition_directory,
    unmarked,
)
from shmbroker.log.partition_metadata import (
    mark_directory,
    read_mark,
    read_partition_metadata,
    write_partition_metadata,
)
from shmbroker.log.quarantine import put_strangers_aside
from shmbroker.log.retiring import delete_log
from shmbroker.metadata.topic_names import METADATA_TOPIC
from shmbroker.signs import sign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from shmbroker.log.log_directory import LogDirectory
    from shmbroker.log.partition_log import PartitionLog
    from shmbroker.metadata.image import TopicImage

    Position = tuple[int, int, int]
    """What a worker stores of a log (`shm.positions`)."""

logger = logging.getLogger(__name__)

_DAMAGED_BITS_MAX = 12


class _Rename(NamedTuple):
    """What is to be done with a directory."""

    mark: str
    why: str
    delay_ms: int
    """How long one that is deleted stays under its new name."""


class PartitionDirectories:
    """The directories in one log directory. count: told a counter's name for each that is lost.
    remove_later: given the path of each that is deleted, and how long it is to stay."""

    def __init__(
        self,
        log_directory: LogDirectory,
        count: Callable[[str], None],
        remove_later: Callable[[str, int], None],
    ) -> None:
        self.log_directory = log_directory
        self.refused: dict[tuple[str, int], _Rename] = {}
        """Renames that were refused, by topic and partition. `rename_refused` tries them again when
        there is time."""
        self._remove_later = remove_later
        self.lost: set[bytes] = set()
        """Keys of the partitions whose directories were here, by the checkpoints or the process
        before, and had to be made again."""
        self._count = count
        self._deleted = {
            unmarked(name) for name in os.listdir(log_directory.path) if mark_of(name) == DELETE
        }
        """What the directories were called that processes before this one deleted and left."""

    def find(self, topic: TopicImage, index: int, trusted: Position | None) -> str | None:
        """Find a partition's directory, with the right topic id in it; None if it is to be made.
        trusted: what the process before stored of its log."""
        if (topic.name, index) in self.refused:
            self.rename_refused((topic.name, index))
        path = self._path_of(topic.name, index)
        if not os.path.isdir(path):
            if trusted is None and self._was_deleted((topic.name, index)):
                self.log_directory.forget((topic.name, index))
            self._name_loss(path, (topic.name, index), trusted)
            return None
        found = self._identity_of(path, (topic.name, index), topic.topic_id)
        if found == topic.topic_id:
            return path
        why = "it belongs to another topic id" if found else "nothing says whose it is"
        if found:
            self.log_directory.forget((topic.name, index))
            self.log_directory.write_gone()
        self.set_aside(topic.name, index, why)
        if not found:
            self._count("partitions_lost")
        return None

    def _was_deleted(self, name: tuple[str, int]) -> bool:
        """Whether a process before this one deleted a partition of that name, and has not made
        another one since: there is no directory."""
        return unmarked(marked_directory(*name, DELETE, "0" * 32)) in self._deleted

    def make(self, topic: TopicImage, index: int, trusted: Position | None) -> str:
        """Make the one that `find` has not found."""
        path = self._path_of(topic.name, index)
        if trusted is not None or self.log_directory.knows((topic.name, index)):
            self.lost.add(partition_key(topic.topic_id, index))
        self.log_directory.begin((topic.name, index))
        try:
            os.mkdir(path)
        except OSError as fault:
            raise StorageFault(f"can't make {path}: {fault}", path) from fault
        write_partition_metadata(os.path.join(path, PARTITION_METADATA), topic.topic_id)
        mark_directory(path, topic.topic_id)
        return path

    def _path_of(self, topic: str, index: int) -> str:
        return os.path.join(self.log_directory.path, partition_directory(topic, index))

    def _name_loss(self, path: str, name: tuple[str, int], trusted: Position | None) -> None:
        """Say it if a directory that is not there is known to have been. One that no checkpoint
        knows may be of a topic that was just created."""
        known = self.log_directory.known(name)
        if trusted is not None and trusted[2]:
            known["its end"] = trusted[2]
        if known:
            what = ", ".join(f"{meaning} {offset}" for meaning, offset in known.items())
            logger.error("%s is gone, and was there (%s): it begins anew, empty", path, what)
            self._count("partitions_lost")

    def _identity_of(self, path: str, name: tuple[str, int], topic_id: bytes) -> bytes | None:
        """The topic id of a directory that is there; None if nobody can say.

        Its file is durable from the first flush on. Lost before that, by a power cut, it may have
        been that of a topic of the same name which is deleted since: so, where the directory itself
        doesn't bear the id, only a log that is empty or was flushed is taken for the topic that is
        asked for (Kafka: a log without topic id is stray).
        """
        metadata = os.path.join(path, PARTITION_METADATA)
        try:
            try:
                found = read_partition_metadata(metadata)
            except CorruptFault:
                raise
            except StorageFault:
                if not put_strangers_aside(path):
                    raise
                found = read_partition_metadata(metadata)
            if found == topic_id:
                mark_directory(path, topic_id)
                return found
            if found is not None and not _is_nearly(found, topic_id):
                return found
            is_lost = found is None
            if found is not None:
                logger.warning("%s is damaged", metadata)
        except CorruptFault as fault:
            logger.warning("%s", fault)
            is_lost = _is_zeros(metadata)
        mark = read_mark(path)
        if mark is not None and mark != topic_id:
            return mark
        is_flushed = (
            mark or self.log_directory.is_clean or self.log_directory.recovery_points.get(name)
        )
        if is_lost and not is_flushed and _has_batches(path):
            return None
        why = "of its directory" if mark else "of that name"
        write_partition_metadata(metadata, topic_id)
        logger.warning("%s is written anew, with the topic id %s", metadata, why)
        mark_directory(path, topic_id)
        return topic_id

    def set_aside(self, topic: str, index: int, why: str) -> None:
        """Rename one that is not the partition's, or can't be opened: nothing of it is touched."""
        self._rename((topic, index), STRAY, why)

    def _rename(self, name: tuple[str, int], mark: str, why: str) -> str:
        path = self._path_of(*name)
        away = marked_directory(*name, mark, random_uuid().hex())
        target = os.path.join(self.log_directory.path, away)
        try:
            os.rename(path, target)
        except OSError as fault:
            raise StorageFault(f"can't rename {path} ({why}): {fault}", path) from fault
        logger.warning("%s is renamed to %s: %s", path, away, why)
        return target

    def delete(self, log: PartitionLog, delay_ms: int) -> None:
        """Close a log and rename its directory, which is removed `delay_ms` later."""
        try:
            self._remove_later(delete_log(log, random_uuid().hex()), delay_ms)
        except StorageFault as fault:
            name = parse_partition_directory(os.path.basename(log.directory))
            assert name is not None, log.directory
            self._note_refused(name, _Rename(DELETE, "it was deleted", delay_ms), fault)

    def _note_refused(self, name: tuple[str, int], rename: _Rename, fault: StorageFault) -> None:
        self.refused[name] = rename
        again = "a directory that can't be renamed is tried again"
        logger.error("%s; %s", fault, again, extra=logs.seldom(again))

    def rename_refused(self, name: tuple[str, int]) -> None:
        """Try it again; StorageFault if the disk still refuses."""
        rename = self.refused.pop(name)
        self.refused[name] = rename  # behind the others
        if os.path.lexists(self._path_of(*name)):
            path = self._rename(name, rename.mark, rename.why)
            if rename.mark == DELETE:
                self._remove_later(path, rename.delay_ms)
        del self.refused[name]

    def rename_all_refused(self) -> None:
        """Try all refused renames once more, at a stop; the disk may refuse them again."""
        for name in list(self.refused):
            with suppress(StorageFault):
                self.rename_refused(name)

    def left_behind(
        self, topics_by_id: Mapping[bytes, TopicImage], opened: set[tuple[str, int]]
    ) -> Iterator[str]:
        """What a deletion left, to be removed; a log without a topic is set aside on the way.

        A log without a topic id is one of those, if its name is no topic's.
        """
        directory = self.log_directory.path
        by_name = {topic.name: topic for topic in topics_by_id.values()}
        strays: list[tuple[tuple[str, int], str]] = []
        for name in os.listdir(directory):
            sign()
            path = os.path.join(directory, name)
            if mark_of(name) == DELETE:
                yield path
            elif mark_of(name) == STRAY:
                left = "no topic owns it; it is left alone, and can be removed"
                logger.warning("%s: %s", path, left, extra=logs.seldom(left))
            elif mark_of(name) == FUTURE:
                logger.warning("%s is a copy that Apache Kafka was making: it is left alone", path)
            elif (
                (parsed := parse_partition_directory(name))
                and parsed not in opened
                and parsed[0] != METADATA_TOPIC
            ):
                try:
                    topic_id = read_partition_metadata(os.path.join(path, PARTITION_METADATA))
                except StorageFault as fault:
                    logger.warning("%s", fault)
                    topic_id = None
                topic = topics_by_id.get(topic_id) if topic_id is not None else None
                if parsed[0] not in by_name or (topic_id is not None and topic is None):
                    why = "its topic was deleted"
                elif topic is not None and self._is_elsewhere(topic, parsed):
                    why = "its partition was moved to other brokers"
                else:
                    continue
                strays.append((parsed, why))
                self.log_directory.forget(parsed)
        for log in self.log_directory.named():
            owner = by_name.get(log[0])
            if owner is None or (
                (self._is_elsewhere(owner, log) or self._was_deleted(log))
                and not os.path.lexists(self._path_of(*log))
            ):
                self.log_directory.forget(log)
        with suppress(StorageFault):  # The next checkpoint says it, too.
            self.log_directory.write_gone()
        for name_of_log, why in strays:
            sign()
            self._try_set_aside(name_of_log, why)

    def _is_elsewhere(self, topic: TopicImage, name: tuple[str, int]) -> bool:
        """Whether a partition of the topic has its replicas on other brokers alone."""
        if topic.name != name[0] or name[1] >= len(topic.partitions):
            return False
        return self.log_directory.node_id not in topic.partitions[name[1]].replicas

    def _try_set_aside(self, name: tuple[str, int], why: str) -> None:
        try:
            self.set_aside(*name, why)
        except StorageFault as fault:
            self._note_refused(name, _Rename(STRAY, why, 0), fault)


def _has_batches(directory: str) -> bool:
    return any(
        name.endswith(LOG) and os.path.getsize(os.path.join(directory, name))
        for name in os.listdir(directory)
    )


def _is_nearly(found: bytes, topic_id: bytes) -> bool:
    """Whether an id differs in one letter of its text, 6 bits, or two: ids of 122 random bits are
    never that near to each other."""
    difference = int.from_bytes(found, "big") ^ int.from_bytes(topic_id, "big")
    return 0 < difference.bit_count() <= _DAMAGED_BITS_MAX


def _is_zeros(path: str) -> bool:
    """What a power cut makes of a small file, where it doesn't lose it: it has its size alone."""
    with open(path, "rb") as file:
        return not file.read().strip(b"\0")
