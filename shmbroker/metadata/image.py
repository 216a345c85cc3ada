"""The metadata image: the cluster as of one offset of the metadata log.

* Images are never changed: `apply` makes the next one out of committed records. The dicts that the
  records touch are copied once for each `apply`; the rest is shared with the image before.
* What a record means is Kafka's (`org.apache.kafka.image`, `PartitionRegistration.merge`).
* Who may do what is a part of its own (`security_image`).
* Records of things that aren't served here are refused: to leave them out silently would open what
  their writer had closed.
* Lost with the process; the log is the truth.
"""

from __future__ import annotations

from functools import partial

from shmbroker.errors import StorageFault
from shmbroker.ids import ZERO_UUID
from shmbroker.metadata.changes import (
    BrokerChanged,
    ConfigChanged,
    PartitionChanged,
    SecurityChanged,
    TopicCreated,
    TopicDeleted,
)
from shmbroker.metadata.security_image import APPLIERS as SECURITY_APPLIERS
from shmbroker.metadata.security_image import SecurityImage
from shmbroker.metadata.topic_names import INTERNAL_TOPICS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from shmbroker.metadata.changes import MetadataChange

    MetadataRecord = tuple[int, int, str, int, dict[str, Any]]
    """offset, epoch, name, version, message"""

# Resource types of configs (`ConfigResource.Type`).
TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
BROKER_LOGGER_RESOURCE = 8
CLIENT_METRICS_RESOURCE = 16
GROUP_RESOURCE = 32

NO_LEADER = -1
NO_LEADER_CHANGE = -2
"""Leader of a PartitionChangeRecord that leaves leader and leader epoch as they are."""

# `LeaderRecoveryState`: whether the leader came out of an unclean election and hasn't said since
# that it is done with that.
RECOVERED = 0
RECOVERING = 1


class _Value:
    """Equality and repr by the fields."""

    __slots__: tuple[str, ...] = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(
            getattr(self, slot) == getattr(other, slot) for slot in self.__slots__
        )

    def __repr__(self) -> str:
        fields = ", ".join(f"{slot}={getattr(self, slot)!r}" for slot in self.__slots__)
        return f"{type(self).__name__}({fields})"


class BrokerImage(_Value):
    """A registered broker: an I/O worker."""

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "directories",
        "host",
        "in_controlled_shutdown",
        "incarnation_id",
        "is_fenced",
        "port",
        "rack",
    )

    def __init__(
        self,
        broker_id: int,
        host: str,
        port: int,
        rack: str | None,
        broker_epoch: int,
        incarnation_id: bytes,
        is_fenced: bool,
        directories: tuple[bytes, ...],
        in_controlled_shutdown: bool = False,
    ) -> None:
        self.broker_id = broker_id
        self.host = host
        self.port = port
        self.rack = rack
        self.broker_epoch = broker_epoch
        """Offset of its registration in the metadata log."""
        self.incarnation_id = incarnation_id
        self.is_fenced = is_fenced
        """Registered, but not (yet, or any more) at work: no client is sent there."""
        self.directories = directories
        """Ids of its log directories, from meta.properties."""
        self.in_controlled_shutdown = in_controlled_shutdown
        """It stops: it still serves, but leads nothing any more and joins no ISR."""

    @property
    def is_active(self) -> bool:
        """Whether it may lead and be in sync."""
        return not (self.is_fenced or self.in_controlled_shutdown)

    def replace(
        self, is_fenced: bool, directories: tuple[bytes, ...], in_controlled_shutdown: bool
    ) -> BrokerImage:
        return BrokerImage(
            self.broker_id,
            self.host,
            self.port,
            self.rack,
            self.broker_epoch,
            self.incarnation_id,
            is_fenced,
            directories,
            in_controlled_shutdown,
        )


class PartitionImage(_Value):
    """A partition's replicas and leader.

    in_sync_replicas and eligible_leader_replicas are disjoint parts of replicas, and so are
    adding_replicas and removing_replicas, which are empty unless a reassignment is under way.
    """

    __slots__ = (
        "adding_replicas",
        "directories",
        "eligible_leader_replicas",
        "in_sync_replicas",
        "last_known_elr",
        "leader_epoch",
        "leader_id",
        "leader_recovery_state",
        "partition",
        "partition_epoch",
        "removing_replicas",
        "replicas",
    )

    def __init__(
        self,
        partition: int,
        replicas: tuple[int, ...],
        in_sync_replicas: tuple[int, ...],
        leader_id: int,
        leader_epoch: int,
        partition_epoch: int,
        directories: tuple[bytes, ...],
        adding_replicas: tuple[int, ...] = (),
        removing_replicas: tuple[int, ...] = (),
        eligible_leader_replicas: tuple[int, ...] = (),
        last_known_elr: tuple[int, ...] = (),
        leader_recovery_state: int = RECOVERED,
    ) -> None:
        self.partition = partition
        self.replicas = replicas
        self.in_sync_replicas = in_sync_replicas
        self.leader_id = leader_id
        """NO_LEADER, or one of in_sync_replicas."""
        self.leader_epoch = leader_epoch
        """+1 with every record that names a leader, be it the same one."""
        self.partition_epoch = partition_epoch
        """+1 for every change of this partition."""
        self.directories = directories
        """Log directory of each replica, in the order of `replicas`."""
        self.adding_replicas = adding_replicas
        self.removing_replicas = removing_replicas
        """A reassignment under way (KIP-455): what `replicas` has more, and will have less."""
        self.eligible_leader_replicas = eligible_leader_replicas
        """ELR (KIP-966): not in sync any more, but they hold every committed record, as the ISR has
        been smaller than min.insync.replicas ever since."""
        self.last_known_elr = last_known_elr
        """The last leader, of a partition that has neither leader, nor ISR, nor ELR."""
        self.leader_recovery_state = leader_recovery_state

    @property
    def is_reassigning(self) -> bool:
        """Whether a reassignment is under way."""
        return bool(self.adding_replicas or self.removing_replicas)

    def directory(self, broker_id: int) -> bytes:
        """The log directory of one of its replicas; zeros where none was assigned."""
        at = self.replicas.index(broker_id)
        return self.directories[at] if at < len(self.directories) else ZERO_UUID


class TopicImage(_Value):
    """A topic; `partitions[n].partition == n`."""

    __slots__ = ("is_internal", "name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: bytes, partitions: tuple[PartitionImage, ...]) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions
        self.is_internal = name in INTERNAL_TOPICS


class MetadataImage(_Value):
    """The cluster at one offset of the metadata log."""

    __slots__ = (
        "brokers",
        "cluster_id",
        "configs",
        "epoch",
        "features",
        "next_producer_id",
        "offset",
        "security",
        "topics_by_id",
        "topics_by_name",
    )

    def __init__(self, cluster_id: str) -> None:
        """The empty image, before the first record."""
        self.cluster_id = cluster_id
        self.offset = 0
        """The next record to apply; all before it are in here."""
        self.epoch = 0
        """The epoch of the controller whose record was the last one."""
        self.brokers: dict[int, BrokerImage] = {}
        self.topics_by_name: dict[str, TopicImage] = {}
        self.topics_by_id: dict[bytes, TopicImage] = {}
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        """(resource type, name) to the values set for it; (BROKER_RESOURCE, "") is all brokers."""
        self.features: dict[str, int] = {}
        """Finalised feature levels, as they stand in the log: not what is served."""
        self.next_producer_id = 0
        self.security = SecurityImage()

    def apply(
        self, records: Iterable[MetadataRecord], offset: int, epoch: int
    ) -> tuple[MetadataImage, list[MetadataChange]]:
        """The image at `offset`, written in `epoch`, and what is different in it; a `Draft` does
        the same in steps.

        `records` are all data records up to there, in order. Changes come deletions first, then
        topics, partitions, configs, brokers, security; what came and went within the records is not
        told.
        StorageFault for a record that isn't understood.
        """
        draft = Draft(self)
        draft.apply(records)
        return draft.finish(offset, epoch)

    def placed_on(self) -> set[int]:
        """Ids of the brokers that hold any partition's replica."""
        return {
            broker_id
            for topic in self.topics_by_id.values()
            for partition in topic.partitions
            for broker_id in partition.replicas
        }

    def config(self, resource_type: int, name: str) -> dict[str, str]:
        """The values that were set for a topic or broker; not to be changed."""
        return self.configs.get((resource_type, name), _NOTHING)


_NOTHING: dict[str, str] = {}


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

    def apply(self, records: Iterable[MetadataRecord]) -> None:
        """Some more records, in order. StorageFault for one that isn't understood."""
        for offset, _, name, _, message in records:
            applier = _APPLIERS.get(name)
            if applier is None and name in SECURITY_APPLIERS:
                applier = partial(_change_security, name)
            if applier is None:
                raise StorageFault(
                    f"the metadata log holds a {name} at offset {offset}, which belongs to "
                    "something that is not served here"
                )
            try:
                applier(self, message, offset)
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
            image.configs[resource] = dict(image.configs.get(resource, _NOTHING))
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
        """As `MetadataImage.apply` of all of them."""
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


def _register_broker(draft: Draft, message: dict[str, Any], offset: int) -> None:
    end_points = message["end_points"]
    brokers = draft.brokers(message["broker_id"])
    brokers[message["broker_id"]] = BrokerImage(
        message["broker_id"],
        end_points[0]["host"] if end_points else "",
        end_points[0]["port"] if end_points else 0,
        message["rack"],
        message["broker_epoch"],
        message["incarnation_id"],
        message["fenced"],
        tuple(message["log_dirs"]),
        message["in_controlled_shutdown"],
    )


def _unregister_broker(draft: Draft, message: dict[str, Any], offset: int) -> None:
    draft.brokers(message["broker_id"]).pop(message["broker_id"], None)


def _change_broker(draft: Draft, message: dict[str, Any], offset: int) -> None:
    brokers = draft.brokers(message["broker_id"])
    broker = brokers[message["broker_id"]]
    fenced = message["fenced"]  # 1 fences, -1 ends it, 0 leaves it as it is
    brokers[message["broker_id"]] = broker.replace(
        broker.is_fenced if fenced == 0 else fenced > 0,
        tuple(message["log_dirs"]) or broker.directories,
        # A new registration alone ends it.
        broker.in_controlled_shutdown or message["in_controlled_shutdown"] > 0,
    )


def _fence_broker(draft: Draft, message: dict[str, Any], offset: int) -> None:
    _set_fenced(draft, message["id"], True)


def _unfence_broker(draft: Draft, message: dict[str, Any], offset: int) -> None:
    _set_fenced(draft, message["id"], False)


def _set_fenced(draft: Draft, broker_id: int, is_fenced: bool) -> None:
    brokers = draft.brokers(broker_id)
    broker = brokers[broker_id]
    brokers[broker_id] = broker.replace(
        is_fenced, broker.directories, broker.in_controlled_shutdown
    )


def _add_topic(draft: Draft, message: dict[str, Any], offset: int) -> None:
    by_name, by_id = draft.topics()
    topic = TopicImage(message["name"], message["topic_id"], ())
    by_name[topic.name] = by_id[topic.topic_id] = topic
    draft.partitions[topic.topic_id] = {}


def _remove_topic(draft: Draft, message: dict[str, Any], offset: int) -> None:
    by_name, by_id = draft.topics()
    topic = by_id.pop(message["topic_id"])
    by_name.pop(topic.name)
    draft.partitions.pop(topic.topic_id, None)
    if topic.topic_id in draft.before.topics_by_id:
        draft.old_topics[topic.topic_id] = draft.before.topics_by_id[topic.topic_id]
    resource = (TOPIC_RESOURCE, topic.name)
    if resource in draft.image.configs:
        draft.configs(resource)[resource].clear()


def _add_partition(draft: Draft, message: dict[str, Any], offset: int) -> None:
    shared = draft.shared
    draft.topic_partitions(message["topic_id"])[message["partition_id"]] = PartitionImage(
        message["partition_id"],
        shared(message["replicas"]),
        shared(message["isr"]),
        message["leader"],
        message["leader_epoch"],
        message["partition_epoch"],
        shared(message["directories"]),
        shared(message["adding_replicas"]),
        shared(message["removing_replicas"]),
        shared(message["eligible_leader_replicas"]),
        shared(message["last_known_elr"]),
        message["leader_recovery_state"],
    )


def _change_partition(draft: Draft, message: dict[str, Any], offset: int) -> None:
    partitions = draft.topic_partitions(message["topic_id"])
    old = partitions[message["partition_id"]]
    partitions[old.partition] = changed_partition(old, message)


def changed_partition(old: PartitionImage, message: dict[str, Any]) -> PartitionImage:
    """A partition after a PartitionChangeRecord; fields that the message lacks stay."""
    leader_id = message.get("leader", NO_LEADER_CHANGE)
    is_led_anew = leader_id != NO_LEADER_CHANGE
    recovery = message.get("leader_recovery_state", -1)

    def changed(key: str, value: tuple[Any, ...]) -> tuple[Any, ...]:
        new = message.get(key)
        return value if new is None else tuple(new)

    return PartitionImage(
        old.partition,
        changed("replicas", old.replicas),
        changed("isr", old.in_sync_replicas),
        leader_id if is_led_anew else old.leader_id,
        old.leader_epoch + is_led_anew,
        old.partition_epoch + 1,
        changed("directories", old.directories),
        changed("adding_replicas", old.adding_replicas),
        changed("removing_replicas", old.removing_replicas),
        changed("eligible_leader_replicas", old.eligible_leader_replicas),
        changed("last_known_elr", old.last_known_elr),
        old.leader_recovery_state if recovery < 0 else recovery,
    )


def _clear_elr(draft: Draft, message: dict[str, Any], offset: int) -> None:
    """Forget the eligible leaders of one topic or, without a name, of all."""
    name = message["topic_name"]
    by_name = draft.image.topics_by_name
    topics = [by_name[name]] if name else list(by_name.values())
    for topic in topics:
        partitions = draft.partitions.get(topic.topic_id) or dict(enumerate(topic.partitions))
        for index, partition in list(partitions.items()):
            if partition.eligible_leader_replicas or partition.last_known_elr:
                draft.topic_partitions(topic.topic_id)[index] = changed_partition(
                    partition, {"eligible_leader_replicas": (), "last_known_elr": ()}
                )


def _change_config(draft: Draft, message: dict[str, Any], offset: int) -> None:
    resource = (message["resource_type"], message["resource_name"])
    values = draft.configs(resource).setdefault(resource, {})
    if message["value"] is None:
        values.pop(message["name"], None)
    else:
        values[message["name"]] = message["value"]


def _set_feature(draft: Draft, message: dict[str, Any], offset: int) -> None:
    features = dict(draft.image.features)
    if message["feature_level"] == 0:
        features.pop(message["name"], None)
    else:
        features[message["name"]] = message["feature_level"]
    draft.image.features = features


def _set_producer_ids(draft: Draft, message: dict[str, Any], offset: int) -> None:
    draft.image.next_producer_id = message["next_producer_id"]


def _change_security(name: str, draft: Draft, message: dict[str, Any], offset: int) -> None:
    image, before = draft.image, draft.before.security
    if image.security is before:
        image.security = before.copy()
    part, change = SECURITY_APPLIERS[name]
    image.security.begin(part, before)
    change(image.security, message)


def _nothing(draft: Draft, message: dict[str, Any], offset: int) -> None:
    """Records that other things of Kafka's live on, and whose absence changes nothing here."""


_APPLIERS: dict[str, Callable[[Draft, dict[str, Any], int], None]] = {
    "RegisterBrokerRecord": _register_broker,
    "UnregisterBrokerRecord": _unregister_broker,
    "BrokerRegistrationChangeRecord": _change_broker,
    "FenceBrokerRecord": _fence_broker,
    "UnfenceBrokerRecord": _unfence_broker,
    "TopicRecord": _add_topic,
    "RemoveTopicRecord": _remove_topic,
    "PartitionRecord": _add_partition,
    "PartitionChangeRecord": _change_partition,
    "ConfigRecord": _change_config,
    "FeatureLevelRecord": _set_feature,
    "ProducerIdsRecord": _set_producer_ids,
    "NoOpRecord": _nothing,
    "RegisterControllerRecord": _nothing,
    "ZkMigrationStateRecord": _nothing,
    "ClearElrRecord": _clear_elr,
}
