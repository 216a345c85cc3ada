"""What the metadata says of the logs of one broker, done a few milliseconds in each turn.

   TopicCreated, PartitionChanged  ──►  to_apply  ──►  open the log, lead it or follow who does
   TopicDeleted                    ──►  to_drop   ──►  the log goes
   no room on the disk               ──►  unopened  ──►  tried again once a second

Rules of this file:
* A topic of 2,000 partitions takes seconds to create, and others want to append meanwhile.
* Deletions come first: a topic may come again under the name of one that goes.
* While the controller doubts what this broker has, it leads and follows nothing that others have.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from shmbroker.apis.controller.tell_log_ends import LACKS
from shmbroker.broker.partition_store import PartitionStore
from shmbroker.broker.replication.replication import Replication
from shmbroker.clock import Clock
from shmbroker.errors import StorageFault
from shmbroker.ids import partition_key
from shmbroker.log.config import LogConfig
from shmbroker.metadata.topic_names import OFFSETS_TOPIC, TRANSACTION_TOPIC
from shmbroker.replica.partition import Partition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.groups.coordinator import GroupCoordinator
    from shmbroker.groups.transactions.coordinator import TransactionCoordinator
    from shmbroker.ipc.member import FamilyMember
    from shmbroker.metadata.image import MetadataImage, PartitionImage, TopicImage

logger = logging.getLogger(__name__)

APPLY_S = 0.005
"""How long one turn may open logs."""


class Placement:
    """The logs that are here, and those that are to come or to go.

    member: whether this broker has said that it runs. of_topic: the settings of a topic's logs.
    on_placed: told of each partition whose part is settled; on_dropped: of each whose log is gone.
    """

    def __init__(
        self,
        clock: Clock,
        member: FamilyMember,
        broker_id: int,
        store: PartitionStore,
        replication: Replication,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
        *,
        now_ms: Callable[[], int],
        of_topic: Callable[[str], LogConfig],
        on_placed: Callable[[Partition], None],
        on_dropped: Callable[[Partition], None],
    ) -> None:
        self.clock = clock
        self._member = member
        self.broker_id = broker_id
        self.store = store
        self.partitions = store.partitions
        self.replication = replication
        self.groups = groups
        self.coordinators: dict[str, GroupCoordinator | TransactionCoordinator] = {
            OFFSETS_TOPIC: groups,
            TRANSACTION_TOPIC: transactions,
        }
        """The coordinators, by the topic whose leaders coordinate."""
        self.is_in_doubt = True
        """Whether the controller has yet to let this broker serve."""
        self.to_drop: deque[bytes] = deque()
        """Keys of partitions whose topics were deleted."""
        self.to_apply: deque[tuple[TopicImage, PartitionImage]] = deque()
        self.due: dict[bytes, tuple[TopicImage, PartitionImage]] = {}
        """What is new in `to_apply`, by key: its log is made when a client asks for it, if not
        before."""
        store.partitions.open_due = self.open_due
        self.unopened: dict[bytes, tuple[TopicImage, PartitionImage]] = {}
        """What the disk had no room for, by key."""
        self._configs: dict[str, LogConfig] = {}
        """The settings of logs opened since the image changed, by topic: to make them takes half as
        long as to open a log."""
        self._now_ms = now_ms
        self._of_topic = of_topic
        self._on_placed = on_placed
        self._on_dropped = on_dropped

    @property
    def has_work(self) -> bool:
        """Whether something is to be opened or to go."""
        return bool(self.to_apply or self.to_drop)

    @property
    def is_applied(self) -> bool:
        """Whether clients find everything here as the image has it: what is left is due."""
        return not self.to_drop and len(self.to_apply) <= len(self.due)

    # ── what the metadata says ──────────────────────────────────────────────────────────────────

    def on_image(self) -> None:
        """The image has changed: settings may be others."""
        self._configs.clear()

    def add(self, topic: TopicImage, image: PartitionImage) -> None:
        """Replicas or leader of a partition have changed."""
        self.to_apply.append((topic, image))

    def add_new(self, topic: TopicImage) -> None:
        """A topic was created. Its logs take a while where they are thousands."""
        may_wait = self._member.has_served and topic.name not in self.coordinators
        for image in topic.partitions:
            self.to_apply.append((topic, image))
            if may_wait and self.broker_id in image.replicas:
                self.due[partition_key(topic.topic_id, image.partition)] = topic, image

    def open_due(self, key: bytes) -> Partition | None:
        """Make a log that is due, as a client asks for it; the partition, if it is here then. Not
        while something is to go, which may be of the same name."""
        if key in self.due and not self.to_drop:
            self._apply(*self.due[key])
        return self.partitions.get(key)

    def delete(self, topics: list[TopicImage]) -> None:
        """Delete what is here of topics that are gone."""
        ids = {topic.topic_id for topic in topics}
        self.to_apply = deque(each for each in self.to_apply if each[0].topic_id not in ids)
        self.due = {key: each for key, each in self.due.items() if each[0].topic_id not in ids}
        for topic in topics:
            for index in range(len(topic.partitions)):
                key = partition_key(topic.topic_id, index)
                self.unopened.pop(key, None)
                self.to_drop.append(key)
        self.groups.on_topics_deleted({topic.name for topic in topics})

    def apply_again(self, partition: Partition, image: MetadataImage) -> None:
        """The metadata says of this partition what it said, and it may lead now."""
        topic = image.topics_by_id.get(partition.topic_id)
        if topic is not None and self.partitions.holds(partition):
            self.add(topic, topic.partitions[partition.partition])

    def end_doubt(self, image: MetadataImage) -> None:
        """The controller lets this broker serve: it takes its part in what is open. Where it was
        not asked for all, as it is back from the death of its process alone, it tells what it found
        lost meanwhile."""
        self.is_in_doubt = False
        log_ends = self.replication.log_ends
        for partition in self.copies(image)[0]:
            if partition.lost_below >= 0 and not log_ends.is_told:
                log_ends.tell(partition, LACKS)
            self.apply_again(partition, image)

    def look_for_coordinators(self) -> None:
        """Groups and transactions whose partitions may be here soon are not refused meanwhile."""
        topics = {topic.name for topic, _ in self.to_apply}
        for name, coordinator in self.coordinators.items():
            coordinator.is_opening = name in topics

    def copies(self, image: MetadataImage) -> tuple[list[Partition], set[bytes]]:
        """The partitions here that have other replicas; keys of those that are in sync here."""
        found = []
        in_sync = set()
        for topic in image.topics_by_id.values():
            for each in topic.partitions:
                if len(each.replicas) == 1:
                    continue
                key = partition_key(topic.topic_id, each.partition)
                partition = self.partitions.get(key)
                if partition is not None:
                    found.append(partition)
                    if self.broker_id in each.in_sync_replicas:
                        in_sync.add(key)
        return found, in_sync

    # ── turns ───────────────────────────────────────────────────────────────────────────────────

    def apply_some(self) -> None:
        """Delete and open logs for some milliseconds."""
        to_drop, to_apply = self.to_drop, self.to_apply
        deadline = self.clock.monotonic() + APPLY_S
        self.replication.may_look_for_places()
        while to_drop or to_apply:
            if to_drop:
                partition = self.partitions.get(to_drop.popleft())
                if partition is not None:
                    self._drop(partition)
            else:
                self._apply(*to_apply.popleft())
            if self.clock.monotonic() > deadline:
                break
        if not to_drop and not to_apply:
            for coordinator in self.coordinators.values():
                coordinator.is_opening = False

    def open_unopened(self) -> None:
        """Try again what the disk had no room for, up to the first that it still has none for."""
        for key, what in list(self.unopened.items()):
            self._apply(*what)
            if key in self.unopened:
                break

    def _apply(self, topic: TopicImage, image: PartitionImage) -> None:
        """Open the log of a partition that is placed here, and take over who leads it."""
        key = partition_key(topic.topic_id, image.partition)
        self.due.pop(key, None)
        partition = self.partitions.get(key)
        if self.broker_id not in image.replicas:
            self.unopened.pop(key, None)
            if partition is not None:
                self._drop(partition)  # it was moved elsewhere
            return
        if partition is None:
            config = self._configs.get(topic.name)
            if config is None:
                config = self._configs[topic.name] = self._of_topic(topic.name)
            try:
                partition = self.store.open(topic, image.partition, config, self._now_ms())
            except StorageFault as fault:
                if key not in self.unopened:
                    logger.error("%s-%d: %s", topic.name, image.partition, fault)
                self.unopened[key] = topic, image
                return
            self.unopened.pop(key, None)
            if self._member.has_served and not image.leader_epoch:
                partition.waits_for_store = False  # Its topic was created a moment ago.
            if len(image.replicas) > 1:
                self._look_whether_lost(partition, image)
        if self.is_in_doubt and len(image.replicas) > 1:
            return
        self.replication.on_leadership(partition, image)
        self._on_placed(partition)
        if topic.name in self.coordinators:
            self.coordinators[topic.name].on_partition(partition, len(topic.partitions))

    def _look_whether_lost(self, partition: Partition, image: PartitionImage) -> None:
        """Tell the controller of a log that is not what it was; while it asks for all, it is told
        anyway. One that was not here before is of a topic that was created a moment ago."""
        if (
            partition.lost_below < 0
            and not self._member.has_served
            and partition.key in self.store.directories.lost
            and self.broker_id in image.in_sync_replicas
        ):
            partition.lost_below = 0
            logger.error(
                "%s is gone, and this broker was in sync: it begins anew, empty",
                partition.log.directory,
            )
        if partition.lost_below >= 0 and not self.is_in_doubt:
            self.replication.log_ends.tell(partition, LACKS)

    def _drop(self, partition: Partition) -> None:
        """Drop a partition whose log goes: deleted, or moved to other brokers."""
        self.replication.on_deleted(partition)
        self.store.delete(partition)
        self._on_dropped(partition)
        if partition.topic in self.coordinators:
            self.coordinators[partition.topic].on_partition_gone(partition.partition)
