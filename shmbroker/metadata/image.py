"""The metadata image: the cluster as of one offset of the metadata log.

* Images are never changed: a `draft` makes the next one out of committed records.
* Who may do what is a part of its own (`security_image`).
* Lost with the process; the log is the truth.
"""

from __future__ import annotations

from shmbroker.ids import ZERO_UUID
from shmbroker.metadata.security_image import SecurityImage
from shmbroker.metadata.topic_names import INTERNAL_TOPICS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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
        """The broker stops: it still serves, but leads nothing any more and joins no ISR."""

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

    def placed_on(self) -> set[int]:
        """Ids of the brokers that hold any partition's replica."""
        return {
            broker_id
            for topic in self.topics_by_id.values()
            for partition in topic.partitions
            for broker_id in partition.replicas
        }

    def has_copies(self, broker_id: int) -> bool:
        """Whether any partition of a broker has another replica."""
        return any(
            broker_id in partition.replicas and len(partition.replicas) > 1
            for topic in self.topics_by_id.values()
            for partition in topic.partitions
        )

    @property
    def is_replicated(self) -> bool:
        """Whether any partition has more than one replica."""
        return any(
            len(partition.replicas) > 1
            for topic in self.topics_by_id.values()
            for partition in topic.partitions
        )

    def config(self, resource_type: int, name: str) -> dict[str, str]:
        """The values that were set for a topic or broker; not to be changed."""
        return self.configs.get((resource_type, name), _NOTHING)


_NOTHING: dict[str, str] = {}
