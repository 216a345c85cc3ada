"""How an image follows from the one before: by committed records, all at once or in steps.

* The dicts that the records touch are copied once for each draft; the rest is shared with the image
  before.
* What a record means, `appliers` says. Records of things that aren't served here are refused: to
  leave them out silently would open what their writer had closed.
"""

from __future__ import annotations

from shmbroker.errors import StorageFault
from shmbroker.metadata.appliers import APPLIERS
from shmbroker.metadata.changes import (
    BrokerChanged,
    ConfigChanged,
    PartitionChanged,
    SecurityChanged,
    TopicCreated,
    TopicDeleted,
)
from shmbroker.metadata.image import MetadataImage, TopicImage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from shmbroker.metadata.changes import MetadataChange
    from shmbroker.metadata.image import BrokerImage, PartitionImage
    from shmbroker.metadata.record import PlacedRecord


def applied(
    before: MetadataImage, records: Iterable[PlacedRecord], offset: int, epoch: int
) -> tuple[MetadataImage, list[MetadataChange]]:
    """The image at `offset`, written in `epoch`, and what is different in it; a `Draft` does the
    same in steps.

    `records` are all data records up to there, in order. Changes come deletions first, then topics,
    partitions, configs, brokers, security; what came and went within the records is not told.
    StorageFault for a record that isn't understood.
    """
    draft = Draft(before)
    draft.apply(records)
    return draft.finish(offset, epoch)


class Draft:
    """An image in the making, which nobody sees yet, and what has been touched."""

    __slots__ = (
        "before",
        "image",
        "old_topics",
        "partitions",
        "touched_brokers",
        "touched_configs",
        "tuples",
    )

    def __init__(self, before: MetadataImage) -> None:
        self.before = before
        image = self.image = MetadataImage(before.cluster_id)
        for slot in MetadataImage.__slots__:
            setattr(image, slot, getattr(before, slot))
        self.partitions: dict[bytes, dict[int, PartitionImage]] = {}
        """The partitions of each topic that was touched, by id; its TopicImage is made at the
        end."""
        self.old_topics: dict[bytes, TopicImage] = {}
        """Touched or removed topics that the image before had."""
        self.touched_configs: dict[tuple[int, str], None] = {}
        self.touched_brokers: dict[int, None] = {}
        self.tuples: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        """Replicas and directories of new partitions: thousands are placed alike."""

    def apply(self, records: Iterable[PlacedRecord]) -> None:
        """Apply some more records, in order. StorageFault for one that isn't understood."""
        for offset, _, name, _, message in records:
            applier = APPLIERS.get(name)
            if applier is None:
                raise StorageFault(
                    f"the metadata log holds a {name} at offset {offset}, which belongs to "
                    "something that is not served here"
                )
            try:
                applier(self, message)
            except KeyError as missing:
                raise StorageFault(
                    f"the {name} at offset {offset} of the metadata log is about {missing}, "
                    "which isn't there"
                ) from None

    def shared(self, values: list[Any] | None) -> tuple[Any, ...]:
        """A tuple of these; one for all that are equal."""
        if not values:
            return ()
        made = tuple(values)
        return self.tuples.setdefault(made, made)

    def brokers(self, broker_id: int) -> dict[int, BrokerImage]:
        if not self.touched_brokers:
            self.image.brokers = dict(self.image.brokers)
        self.touched_brokers[broker_id] = None
        return self.image.brokers

    def configs(self, resource: tuple[int, str]) -> dict[tuple[int, str], dict[str, str]]:
        image = self.image
        if not self.touched_configs:
            image.configs = dict(image.configs)
        if resource not in self.touched_configs:
            self.touched_configs[resource] = None
            image.configs[resource] = dict(image.configs.get(resource, {}))
        return image.configs

    def topics(self) -> tuple[dict[str, TopicImage], dict[bytes, TopicImage]]:
        image = self.image
        if image.topics_by_id is self.before.topics_by_id:
            image.topics_by_id = dict(image.topics_by_id)
            image.topics_by_name = dict(image.topics_by_name)
        return image.topics_by_name, image.topics_by_id

    def topic_partitions(self, topic_id: bytes) -> dict[int, PartitionImage]:
        partitions = self.partitions.get(topic_id)
        if partitions is None:
            topic = self.image.topics_by_id[topic_id]
            self.old_topics[topic_id] = topic
            partitions = self.partitions[topic_id] = dict(enumerate(topic.partitions))
        return partitions

    def finish(self, offset: int, epoch: int) -> tuple[MetadataImage, list[MetadataChange]]:
        """Give what `applied` gives, for all records together."""
        image = self.image
        image.offset = offset
        image.epoch = epoch
        changes: list[MetadataChange] = []
        for topic_id, old in self.old_topics.items():
            if topic_id not in self.partitions:
                changes.append(TopicDeleted(old))
        partition_changes: list[MetadataChange] = []
        for topic_id, partitions in self.partitions.items():
            by_name, by_id = self.topics()
            if sorted(partitions) != list(range(len(partitions))):
                raise StorageFault(f"topic {by_id[topic_id].name} has holes in its partitions")
            topic = TopicImage(
                by_id[topic_id].name,
                topic_id,
                tuple(partitions[index] for index in range(len(partitions))),
            )
            by_name[topic.name] = by_id[topic_id] = topic
            old_topic = self.old_topics.get(topic_id)
            if old_topic is None:
                changes.append(TopicCreated(topic))
                continue
            for new in topic.partitions:
                was = old_topic.partitions[new.partition : new.partition + 1]
                if not was or was[0] is not new:
                    partition_changes.append(PartitionChanged(topic, was[0] if was else None, new))
        changes += partition_changes
        for resource in self.touched_configs:
            if not image.configs.get(resource, True):
                del image.configs[resource]
            if image.configs.get(resource) != self.before.configs.get(resource):
                changes.append(ConfigChanged(*resource))
        for broker_id in self.touched_brokers:
            was_broker, broker = self.before.brokers.get(broker_id), image.brokers.get(broker_id)
            if was_broker is not broker:
                changes.append(BrokerChanged(was_broker, broker))
        if image.security is not self.before.security:
            changes.append(SecurityChanged())
        return image, changes


def difference(before: MetadataImage, after: MetadataImage) -> list[MetadataChange]:
    """What is different in an image that was not made out of the one before, but read anew."""
    changes: list[MetadataChange] = [
        TopicDeleted(old)
        for topic_id, old in before.topics_by_id.items()
        if topic_id not in after.topics_by_id
    ]
    partitions: list[MetadataChange] = []
    for topic_id, topic in after.topics_by_id.items():
        known = before.topics_by_id.get(topic_id)
        if known is None:
            changes.append(TopicCreated(topic))
            continue
        for new in topic.partitions:
            was = known.partitions[new.partition : new.partition + 1]
            if not was or was[0] != new:
                partitions.append(PartitionChanged(topic, was[0] if was else None, new))
    changes += partitions
    changes += [
        ConfigChanged(*resource)
        for resource in {**before.configs, **after.configs}
        if before.configs.get(resource) != after.configs.get(resource)
    ]
    changes += [
        BrokerChanged(before.brokers.get(broker_id), after.brokers.get(broker_id))
        for broker_id in {**before.brokers, **after.brokers}
        if before.brokers.get(broker_id) != after.brokers.get(broker_id)
    ]
    if before.security != after.security:
        changes.append(SecurityChanged())
    return changes
