"""OffsetCommit and OffsetFetch requests that come again: known by their bytes, not decoded again.

A consumer commits the same partition again and again, and who watches a lag asks for the same
offsets. What such a request meant is kept when it has been answered the ordinary way:

    KnownCommits   one partition. Its bytes end with what may move, and four that do not:

                     …       committed_offset 8 | committed_leader_epoch 4 | metadata, tags 4
                     key     ──────────── read anew ───────────────────    ── must be the same

                   What it means: the group, the record's batch, the bytes of the good answer.
    KnownFetches   a group's offsets, named by partition. All bytes are the key. What it means: the
                   offsets that were answered; as long as they are the group's, so is the answer.

Rules of this file:
* Whatever is not as it was, None: the ordinary way answers, and what it says may be kept anew. The
  group judges its member each time.
* An answer that would have to wait for replicas or for the disk goes the ordinary way.
* Nothing is kept of large requests; what was kept first goes first.
"""

from __future__ import annotations

from struct import Struct

from shmbroker.groups import group_log
from shmbroker.groups.consumer.group import ConsumerGroup
from shmbroker.groups.offset_store import NO_EXPIRY
from shmbroker.ids import ZERO_UUID
from shmbroker.known import Known

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.groups.coordinator import GroupCoordinator
    from shmbroker.groups.group_table import AnyGroup
    from shmbroker.groups.offset_store import Committed
    from shmbroker.metadata.followed import Followed
    from shmbroker.metadata.image import TopicImage
    from shmbroker.replica.partition import Partition

FLEXIBLE_FROM = 8
"""The version of both requests from which on strings and tags are as this file expects."""
TOPIC_IDS_FROM = 10
COUNT_MAX = 2048
REQUEST_BYTES_MAX = 1024
ANSWER_BYTES_MAX = 4096
"""The most bytes of an answer. It is sent in one piece: far below what a ring's entry may be."""

_MOVING = Struct(">qi")
MOVING_AT = -16
CONSTANT_AT = -4
NO_METADATA = (b"\0\0\0\0", b"\1\0\0\0")
"""Null or empty, and no tags of the partition, of the topic, of the request."""


def _is_settled(partition: Partition) -> bool:
    """Whether nothing that its log says waits for replicas or for the disk."""
    return partition.is_leader and partition.high_watermark >= partition.log.log_end_offset


class _Commit:
    """What the bytes of a commit meant."""

    __slots__ = (
        "answer",
        "batch",
        "generation_id",
        "group",
        "index",
        "instance_id",
        "member_id",
        "topic",
        "topic_id",
    )

    def __init__(
        self, body: dict[str, Any], group: AnyGroup, topic: TopicImage, by_id: bool, answer: bytes
    ) -> None:
        self.group = group
        self.member_id = body["member_id"]
        self.instance_id = body["group_instance_id"]
        self.generation_id = body["generation_id_or_member_epoch"]
        self.topic = topic
        self.topic_id = topic.topic_id if by_id else ZERO_UUID
        self.index = body["topics"][0]["partitions"][0]["partition_index"]
        key = group_log.offset_key(group.group_id, topic.name, self.index)
        self.batch = group_log.CommitBatch(key, self.topic_id)
        self.answer = answer


class KnownCommits:
    """The known commits of one coordinator."""

    def __init__(self, groups: GroupCoordinator, metadata: Followed) -> None:
        self._groups = groups
        self._metadata = metadata
        self._known: Known[tuple[int, bytes], _Commit] = Known(COUNT_MAX)

    def answer(self, version: int, request: bytes) -> bytes | None:
        """Commit as a request says that is known, and give the bytes of the answer; or None."""
        known = self._known.get((version, request[:MOVING_AT]))
        if known is None or request[CONSTANT_AT:] not in NO_METADATA:
            return None
        groups, group, topic = self._groups, known.group, known.topic
        partition: Partition = group.owner.partition
        if (
            groups.groups.get(group.group_id) is not group
            or self._topic(version, topic.topic_id, topic.name) is not topic
            or partition.waits_for
            or partition.is_fsync
            or not _is_settled(partition)
        ):
            return None
        if isinstance(group, ConsumerGroup):
            error = group.on_commit(known.member_id, known.generation_id, version)
        else:
            error = group.on_commit(
                known.member_id, known.instance_id, known.generation_id, groups.steady_ms()
            )
        if error:
            return None
        offset, leader_epoch = _MOVING.unpack_from(request, len(request) + MOVING_AT)
        committed = offset, leader_epoch, "", groups.now_ms(), NO_EXPIRY, known.topic_id
        if groups.offsets.commit_one(group, known.batch, topic.name, known.index, committed):
            return None
        return known.answer

    def learn(self, version: int, request: bytes, body: dict[str, Any], answer: bytes) -> None:
        """A request was answered the ordinary way, with these bytes."""
        if (
            version < FLEXIBLE_FROM
            or len(request) > REQUEST_BYTES_MAX
            or request[CONSTANT_AT:] not in NO_METADATA
            or len(body["topics"]) != 1
            or len(body["topics"][0]["partitions"]) != 1
        ):
            return
        named = body["topics"][0]
        row = named["partitions"][0]
        moving = row["committed_offset"], row["committed_leader_epoch"]
        if _MOVING.unpack_from(request, len(request) + MOVING_AT) != moving:
            return  # tags that nobody knows
        topic = self._topic(version, named["topic_id"], named["name"])
        group = self._groups.groups.get(body["group_id"])
        if topic is not None and group is not None and _is_good(answer):
            meaning = _Commit(body, group, topic, version >= TOPIC_IDS_FROM, answer)
            self._known.keep((version, request[:MOVING_AT]), meaning)

    def _topic(self, version: int, topic_id: bytes, name: str) -> TopicImage | None:
        """What a request of this version names."""
        image = self._metadata.image
        if version >= TOPIC_IDS_FROM:
            return image.topics_by_id.get(topic_id)
        return image.topics_by_name.get(name)


def _is_good(answer: bytes) -> bool:
    """Whether the only partition of an answer has no error: its code is before three empty tags."""
    return answer[-5:] == b"\0\0\0\0\0"


class _Fetch:
    """What the bytes of a fetch meant, and what was answered."""

    __slots__ = ("answer", "group", "keys", "member_epoch", "member_id", "rows", "topics")

    def __init__(
        self,
        row: dict[str, Any],
        group: AnyGroup,
        keys: list[tuple[str, int]],
        topics: list[TopicImage],
        answer: bytes,
    ) -> None:
        self.group = group
        self.member_id = row["member_id"]
        self.member_epoch = row["member_epoch"]
        self.keys = keys
        self.topics = topics
        """Topics that the request names by their ids."""
        self.rows = _rows(group, keys)
        self.answer = answer


def _rows(group: AnyGroup, keys: list[tuple[str, int]]) -> list[Committed | None]:
    return list(map(group.owner.store.of_group(group.group_id).get, keys))


def _refuses(group: AnyGroup, member_id: str | None, member_epoch: int) -> bool:
    """Whether a group tells its offsets to members alone, and this is none."""
    return isinstance(group, ConsumerGroup) and group.on_fetch(member_id, member_epoch) != 0


class KnownFetches:
    """The known fetches of one coordinator."""

    def __init__(self, groups: GroupCoordinator, metadata: Followed) -> None:
        self._groups = groups
        self._metadata = metadata
        self._known: Known[tuple[int, bytes], _Fetch] = Known(COUNT_MAX)

    def answer(self, version: int, request: bytes) -> bytes | None:
        """The bytes of the answer to a request that is known, if it would be the same; or None."""
        known = self._known.get((version, request))
        if known is None:
            return None
        group = known.group
        if (
            self._groups.groups.get(group.group_id) is not group
            or not _is_settled(group.owner.partition)
            or group.group_id in group.owner.store.pending
            or _rows(group, known.keys) != known.rows
            or _refuses(group, known.member_id, known.member_epoch)
        ):
            return None
        if known.topics:
            by_id = self._metadata.image.topics_by_id
            if any(by_id.get(topic.topic_id) is not topic for topic in known.topics):
                return None
        return known.answer

    def learn(self, version: int, request: bytes, body: dict[str, Any], answer: bytes) -> None:
        """A request was answered the ordinary way, with these bytes, from what is so now."""
        if (
            version < FLEXIBLE_FROM
            or len(request) > REQUEST_BYTES_MAX
            or len(answer) > ANSWER_BYTES_MAX
            or len(body["groups"]) != 1
        ):
            return
        row = body["groups"][0]
        group = self._groups.groups.get(row["group_id"])
        if group is None or row["topics"] is None or not _is_settled(group.owner.partition):
            return
        if group.group_id in group.owner.store.pending:
            return  # some may be unstable
        if _refuses(group, row["member_id"], row["member_epoch"]):
            return
        keys: list[tuple[str, int]] = []
        topics: list[TopicImage] = []
        for named in row["topics"]:
            name = named["name"]
            if version >= TOPIC_IDS_FROM:
                topic = self._metadata.image.topics_by_id.get(named["topic_id"])
                if topic is None:
                    return
                topics.append(topic)
                name = topic.name
            keys += [(name, index) for index in named["partition_indexes"]]
        self._known.keep((version, request), _Fetch(row, group, keys, topics, answer))
