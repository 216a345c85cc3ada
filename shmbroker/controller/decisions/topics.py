"""Decisions about topics: CreateTopics, DeleteTopics, CreatePartitions.

Pure functions of a request and an image: they give the records to append and the response to send
once those are durable. Order of the checks, error codes and words are those of Kafka's
`ReplicationControlManager` and `ControllerApis`, as seen on a real 4.2.1. Errors are values.

Where partitions are placed is our own: leaders go round the brokers at work in the order of their
ids, beginning where the partitions so far would end, so that topics with one partition spread too;
who follows first goes round as well, so that a dead broker's partitions spread over all others.
Fenced brokers follow where there aren't enough others, as in Kafka.
"""

from __future__ import annotations

from shmbroker.controller.decisions.partition_change import ONLINE, UNCLEAN, ElectionRules
from shmbroker.controller.mutation_quotas import UNBOUNDED
from shmbroker.ids import ZERO_UUID
from shmbroker.metadata.features import ELIGIBLE_LEADER_REPLICAS
from shmbroker.metadata.image import TOPIC_RESOURCE
from shmbroker.metadata.messages import fitting
from shmbroker.metadata.topic_names import (
    METADATA_TOPIC,
    OFFSETS_TOPIC,
    TRANSACTION_TOPIC,
    collision_key,
    topic_name_complaint,
)
from shmbroker.settings.checks import validate_topic_configs
from shmbroker.settings.layers import effective_topic_config, effective_topic_value
from shmbroker.settings.setting import OWN_PREFIX
from shmbroker.settings.table import TOPIC_SETTINGS
from shmbroker.wire.error_codes import (
    INVALID_CONFIG,
    INVALID_PARTITIONS,
    INVALID_REPLICA_ASSIGNMENT,
    INVALID_REPLICATION_FACTOR,
    INVALID_REQUEST,
    INVALID_TOPIC_EXCEPTION,
    NONE,
    POLICY_VIOLATION,
    THROTTLING_QUOTA_EXCEEDED,
    TOPIC_ALREADY_EXISTS,
    TOPIC_DELETION_DISABLED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from typing import Any

    from shmbroker.controller.mutation_quotas import Mutations
    from shmbroker.controller.raft.metadata_log import Record
    from shmbroker.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
    from shmbroker.settings.broker_config import BrokerConfig

    Decision = tuple[list[Record], dict[str, Any]]
    Layers = tuple[tuple[int, Mapping[str, str]], ...]
    Complaint = tuple[int, str | None]

PARTITIONS_MAX = 10_000
"""The partitions of one request: they go into the log as one batch (MAX_PARTITIONS_PER_BATCH)."""

_NO_TOPIC = "This server does not host this topic-partition."
_NO_TOPIC_ID = "This server does not host this topic ID."
_TOO_MANY = "Excessively large number of partitions per request."


class ClusterState:
    """What decisions about topics and partitions look at, besides the request."""

    __slots__ = ("brokers", "config", "fenced", "image", "layers", "mutations", "new_topic_id",
                 "short")  # fmt: skip

    def __init__(
        self,
        image: MetadataImage,
        config: BrokerConfig,
        layers: Layers,
        new_topic_id: Callable[[], bytes],
        short: AbstractSet[int] = frozenset(),
        mutations: Mutations = UNBOUNDED,
    ) -> None:
        self.image = image
        self.config = config
        self.layers = layers
        """Where topic settings come from below the topic (`settings.layers`)."""
        self.new_topic_id = new_topic_id
        self.brokers = [id_ for id_, broker in sorted(image.brokers.items()) if broker.is_active]
        """Ids of the brokers at work, in order."""
        self.short = short
        """Brokers without room on their disk: they lead if nobody else can."""
        self.mutations = mutations
        """How many partitions whoever asks may have changed."""
        self.fenced = [id_ for id_, broker in sorted(image.brokers.items()) if broker.is_fenced]

    def is_active(self, broker_id: int) -> bool:
        """Whether a broker may lead and be in sync."""
        broker = self.image.brokers.get(broker_id)
        return broker is not None and broker.is_active

    def directory_of(self, broker_id: int) -> bytes:
        """Where a broker puts a new replica."""
        broker = self.image.brokers.get(broker_id)
        return broker.directories[0] if broker and broker.directories else ZERO_UUID

    @property
    def is_elr_on(self) -> bool:
        """Whether eligible leader replicas are kept (KIP-966)."""
        return self.image.features.get(ELIGIBLE_LEADER_REPLICAS, 0) >= 1

    def min_in_sync(self, topic: TopicImage) -> int:
        """min.insync.replicas of a topic, at most its replicas
        (`ReplicationControlManager.getTopicEffectiveMinIsr`)."""
        replicas = len(topic.partitions[0].replicas) if topic.partitions else 1
        return min(int(self._value(topic.name, "min.insync.replicas")), replicas)

    def is_unclean_allowed(self, topic: str) -> bool:
        """unclean.leader.election.enable of a topic."""
        return bool(self._value(topic, "unclean.leader.election.enable"))

    def rules(
        self,
        topic: TopicImage,
        is_acceptable: Callable[[int], bool] | None = None,
        election: int | None = None,
    ) -> ElectionRules:
        """By which this topic's partitions change; without `election`, as its setting allows."""
        if election is None:
            election = UNCLEAN if self.is_unclean_allowed(topic.name) else ONLINE
        return ElectionRules(
            is_acceptable or self.is_active,
            self.min_in_sync(topic),
            self.is_elr_on,
            self.directory_of,
            election,
            self.short,
        )

    def _value(self, topic: str, name: str) -> Any:
        overrides = self.image.config(TOPIC_RESOURCE, topic)
        return effective_topic_value(name, overrides, self.layers)


def is_alike(before: MetadataImage, after: MetadataImage, asked: list[dict[str, Any]]) -> bool:
    """Whether topics that are asked to be made or enlarged would be so in both images: by the same
    brokers, none of them made, enlarged or gone since, and none with a name that collides."""
    was, now = before.topics_by_name, after.topics_by_name
    names = {topic["name"] for topic in asked}
    came = {collision_key(name) for name in now.keys() - was.keys()}
    return (
        before.brokers is after.brokers
        and came.isdisjoint(map(collision_key, names))
        and all(
            name in now
            and was[name].topic_id == now[name].topic_id
            and len(was[name].partitions) == len(now[name].partitions)
            for name in names & was.keys()
        )
    )


# --- CreateTopics ---


def create_topics(request: dict[str, Any], version: int, cluster: ClusterState) -> Decision:
    """CreateTopics v2–7. The answer has one result for each name, in order of appearance."""
    topics = request["topics"]
    counts = _counted(topic["name"] for topic in topics)
    partition_count = asked_partitions(topics, cluster.config)
    records: list[Record] = []
    results = {}
    placed = sum(len(topic.partitions) for topic in cluster.image.topics_by_id.values())
    keys = {collision_key(name): name for name in cluster.image.topics_by_name}
    listed: dict[tuple[tuple[str, str | None], ...], list[dict[str, Any]]] = {}
    for topic in topics:
        name = topic["name"]
        if name in results:
            continue
        complaint: Complaint = (NONE, None)
        if partition_count > PARTITIONS_MAX:
            complaint = POLICY_VIOLATION, _TOO_MANY
        elif counts[name] > 1:
            complaint = INVALID_REQUEST, "Duplicate topic name."
        elif name == METADATA_TOPIC:
            complaint = (
                INVALID_REQUEST,
                f"Creation of internal topic {METADATA_TOPIC} is prohibited.",
            )
        else:
            complaint = _name_complaint(name, cluster.image, keys)
        configs = {entry["name"]: entry["value"] for entry in topic["configs"]}
        if not complaint[0]:
            complaint = _configs_complaint(configs, cluster.config)
        assignments: list[tuple[int, ...]] = []
        if not complaint[0]:
            assignments, complaint = _place_topic(topic, cluster, placed)
        if not complaint[0] and not cluster.mutations.allows(len(assignments)):
            complaint = THROTTLING_QUOTA_EXCEEDED, None
        if complaint[0]:
            results[name] = _failed_topic(name, complaint)
            continue
        topic_id = cluster.new_topic_id()
        keys[collision_key(name)] = name
        placed += len(assignments)
        if not request["validate_only"]:
            records += _topic_records(name, topic_id, configs, assignments, cluster.image.brokers)
        values = tuple(configs.items())
        if version >= 5 and values not in listed:  # 50 us, and most topics of a request are alike
            listed[values] = _created_configs(configs, cluster.layers)
        results[name] = {
            "name": name,
            "topic_id": topic_id,
            "error_code": NONE,
            "error_message": None,
            "topic_config_error_code": NONE,
            "num_partitions": len(assignments),
            "replication_factor": len(assignments[0]),
            "configs": listed.get(values, []),
        }
    return records, {"throttle_time_ms": 0, "topics": list(results.values())}


def _counted(items: Iterable[Any]) -> dict[Any, int]:
    """How often each item is there. Requests may be long: no list.count."""
    counts: dict[Any, int] = {}
    for item in items:
        counts[item] = counts.get(item, 0) + 1
    return counts


def offsets_topic(config: BrokerConfig) -> dict[str, Any]:
    """`__consumer_offsets` as Kafka creates it, as a topic of a CreateTopics request."""
    return _creatable(
        OFFSETS_TOPIC,
        config["offsets.topic.num.partitions"],
        config["offsets.topic.replication.factor"],
        {
            "compression.type": "producer",
            "cleanup.policy": "compact",
            "segment.bytes": str(config["offsets.topic.segment.bytes"]),
        },
    )


def transactions_topic(config: BrokerConfig) -> dict[str, Any]:
    """`__transaction_state` as Kafka creates it."""
    return _creatable(
        TRANSACTION_TOPIC,
        config["transaction.state.log.num.partitions"],
        config["transaction.state.log.replication.factor"],
        {
            "cleanup.policy": "compact",
            "min.insync.replicas": str(config["transaction.state.log.min.isr"]),
            "segment.bytes": str(config["transaction.state.log.segment.bytes"]),
            "unclean.leader.election.enable": "false",
        },
    )


def created_by_use(name: str, config: BrokerConfig) -> dict[str, Any]:
    """A topic that is created because somebody uses it, as a topic of a CreateTopics request."""
    if name == OFFSETS_TOPIC:
        return offsets_topic(config)
    if name == TRANSACTION_TOPIC:
        return transactions_topic(config)
    return default_topic(name)


def default_topic(name: str) -> dict[str, Any]:
    """A topic of a CreateTopics request that leaves everything to the defaults."""
    return _creatable(name, -1, -1, {})


def _creatable(
    name: str, partitions: int, replication_factor: int, configs: dict[str, str]
) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replication_factor,
        "assignments": [],
        "configs": [{"name": key, "value": value} for key, value in configs.items()],
    }


def asked_partitions(topics: list[dict[str, Any]], config: BrokerConfig) -> int:
    """Partitions that topics of a CreateTopics are to have together."""
    return sum(max(_asked_partitions(topic, config), 0) for topic in topics)


def _asked_partitions(topic: dict[str, Any], config: BrokerConfig) -> int:
    if topic["assignments"]:
        return len(topic["assignments"])
    asked: int = topic["num_partitions"]
    return config["num.partitions"] if asked == -1 else asked


def _name_complaint(name: str, image: MetadataImage, keys: dict[str, str]) -> Complaint:
    if complaint := topic_name_complaint(name):
        return INVALID_TOPIC_EXCEPTION, complaint
    if name in image.topics_by_name:
        return TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists."
    if collision_key(name) in keys:
        other = keys[collision_key(name)]
        return INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}"
    return NONE, None


def _configs_complaint(configs: dict[str, str | None], config: BrokerConfig) -> Complaint:
    nulls = [name for name, value in configs.items() if value is None]
    if nulls:
        return INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}"
    if complaint := validate_topic_configs(configs, {}, config):  # type: ignore[arg-type]
        return INVALID_CONFIG, complaint
    return NONE, None


def _place_topic(
    topic: dict[str, Any], cluster: ClusterState, placed: int
) -> tuple[list[tuple[int, ...]], Complaint]:
    """The replicas of each partition, by assignment or by ourselves."""
    count, factor = topic["num_partitions"], topic["replication_factor"]
    if topic["assignments"]:
        return _place_by_hand(topic, cluster)
    if factor < -1 or factor == 0:
        return [], (
            INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if count < -1 or count == 0:
        return [], (
            INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        )
    if count == -1:
        count = cluster.config["num.partitions"]
    if factor == -1:
        factor = cluster.config["default.replication.factor"]
    complaint = _factor_complaint(factor, cluster)
    if complaint[0]:
        return [], complaint
    return place_partitions(count, factor, cluster.brokers, placed, cluster.fenced), complaint


def _place_by_hand(
    topic: dict[str, Any], cluster: ClusterState
) -> tuple[list[tuple[int, ...]], Complaint]:
    if topic["replication_factor"] != -1:
        return [], (
            INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set "
            "to -1.",
        )
    if topic["num_partitions"] != -1:
        return [], (
            INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    assigned: dict[int, tuple[int, ...]] = {}
    factor = None
    for assignment in topic["assignments"]:
        index, replicas = assignment["partition_index"], tuple(assignment["broker_ids"])
        if index in assigned:
            return [], (
                INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {index}",
            )
        complaint = _assignment_complaint(index, replicas, factor, cluster)
        if complaint[0]:
            return [], complaint
        assigned[index] = replicas
        factor = len(replicas)
    if sorted(assigned) != list(range(len(assigned))):
        return [], (
            INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        )
    return [assigned[index] for index in range(len(assigned))], (NONE, None)


def replicas_complaint(
    replicas: tuple[int, ...], factor: int | None, cluster: ClusterState
) -> Complaint:
    """What is wrong with replicas that a client has chosen; `factor`: how many there must be."""
    says = "The manual partition assignment includes"
    if not replicas:
        return INVALID_REPLICA_ASSIGNMENT, f"{says} an empty replica list."
    previous = None
    for broker_id in sorted(replicas):
        if broker_id not in cluster.image.brokers:
            message = f"{says} broker {broker_id}, but no such broker is registered."
            return INVALID_REPLICA_ASSIGNMENT, message
        if broker_id == previous:
            return INVALID_REPLICA_ASSIGNMENT, f"{says} the broker {broker_id} more than once."
        previous = broker_id
    if factor is not None and len(replicas) != factor:
        return INVALID_REPLICA_ASSIGNMENT, (
            f"{says} a partition with {len(replicas)} replica(s), but this is not consistent with "
            f"previous partitions, which have {factor} replica(s)."
        )
    return NONE, None


def _assignment_complaint(
    partition: int, replicas: tuple[int, ...], factor: int | None, cluster: ClusterState
) -> Complaint:
    """The same for a partition that is to be made."""
    complaint = replicas_complaint(replicas, factor, cluster)
    if complaint[0]:
        return complaint
    if not set(replicas) & set(cluster.brokers):
        return INVALID_REPLICA_ASSIGNMENT, (
            f"All brokers specified in the manual partition assignment for partition {partition} "
            "are fenced or in controlled shutdown."
        )
    return NONE, None


def _factor_complaint(factor: int, cluster: ClusterState) -> Complaint:
    says = f"Unable to replicate the partition {factor} time(s):"
    registered = len(cluster.brokers) + len(cluster.fenced)
    if not cluster.brokers:
        return INVALID_REPLICATION_FACTOR, f"{says} All brokers are currently fenced."
    if factor > registered:
        return INVALID_REPLICATION_FACTOR, (
            f"{says} The target replication factor of {factor} cannot be reached because only "
            f"{registered} broker(s) are registered."
        )
    return NONE, None


def place_partitions(
    count: int, factor: int, brokers: Sequence[int], start: int, fenced: Sequence[int] = ()
) -> list[tuple[int, ...]]:
    """Replicas of `count` partitions, leader first: round the brokers from `start` on. It all comes
    round again, and a tuple stands for all that are equal."""
    round_ = len(brokers) * max(len(brokers) - 1, 1) * max(len(fenced), 1)
    placed = [
        _placed(start + partition, brokers, fenced)[:factor]
        for partition in range(min(count, round_))
    ]
    return (placed * (count // round_ + 1))[:count]


def _placed(rank: int, brokers: Sequence[int], fenced: Sequence[int]) -> tuple[int, ...]:
    """All brokers in the order in which the `rank`-th partition would have them."""
    round_, at = divmod(rank, len(brokers))
    followers = [*brokers[at + 1 :], *brokers[:at]]
    by = round_ % len(followers) if followers else 0
    late = round_ % len(fenced) if fenced else 0
    return (brokers[at], *followers[by:], *followers[:by], *fenced[late:], *fenced[:late])


def _topic_records(
    name: str,
    topic_id: bytes,
    configs: dict[str, Any],
    assignments: list[tuple[int, ...]],
    brokers: dict[int, BrokerImage],
) -> list[Record]:
    records: list[Record] = [("TopicRecord", 0, {"name": name, "topic_id": topic_id})]
    for key, value in configs.items():
        records.append(config_record(TOPIC_RESOURCE, name, key, value))
    return records + _partition_records(topic_id, 0, assignments, brokers)


def config_record(resource_type: int, name: str, key: str, value: str | None) -> Record:
    """ConfigRecord v0; a null value takes the setting away."""
    return (
        "ConfigRecord",
        0,
        {"resource_type": resource_type, "resource_name": name, "name": key, "value": value},
    )


def _partition_records(
    topic_id: bytes,
    first: int,
    assignments: list[tuple[int, ...]],
    brokers: dict[int, BrokerImage],
) -> list[Record]:
    """New partitions from `first` on. Of thousands most have the replicas of others."""
    alike: dict[tuple[int, ...], dict[str, Any]] = {}
    records: list[Record] = []
    for partition, replicas in enumerate(assignments, first):
        message = alike.get(replicas)
        if message is None:
            in_sync = [broker_id for broker_id in replicas if brokers[broker_id].is_active]
            message = alike[replicas] = {
                "topic_id": topic_id,
                "replicas": list(replicas),
                "isr": in_sync,
                "leader": in_sync[0],
                "leader_epoch": 0,
                "partition_epoch": 0,
                "directories": [
                    (brokers[broker_id].directories or (ZERO_UUID,))[0] for broker_id in replicas
                ],
            }
        records.append(("PartitionRecord", 2, {"partition_id": partition} | message))
    return records


def _failed_topic(name: str, complaint: Complaint) -> dict[str, Any]:
    return {
        "name": name,
        "error_code": complaint[0],
        "error_message": fitting(complaint[1]),
        "configs": [],
    }


def _created_configs(configs: dict[str, Any], layers: Layers) -> list[dict[str, Any]]:
    """The settings a new topic has, as they were written; ours only where they were given."""
    listed = []
    for name in TOPIC_SETTINGS:
        if name.startswith(OWN_PREFIX) and name not in configs:
            continue
        value, source = effective_topic_config(name, configs, layers)
        listed.append(
            {
                "name": name,
                "value": value,
                "read_only": False,
                "config_source": source,
                "is_sensitive": False,
            }
        )
    return listed


# --- DeleteTopics ---


def delete_topics(request: dict[str, Any], version: int, cluster: ClusterState) -> Decision:
    """DeleteTopics v1–6; by name, from v6 on also by id."""
    if version >= 6:
        wanted = [(topic["name"], topic["topic_id"]) for topic in request["topics"]]
    else:
        wanted = [(name, ZERO_UUID) for name in request["topic_names"]]
    counts = _counted(wanted)
    image = cluster.image
    records: list[Record] = []
    results = {}
    for name, topic_id in wanted:
        key = (name, topic_id)
        if key in results:
            continue
        topic = image.topics_by_id.get(topic_id) if name is None else image.topics_by_name.get(name)
        error, message = NONE, None
        shown_id = topic_id
        if not cluster.config["delete.topic.enable"]:
            error, message = TOPIC_DELETION_DISABLED, "Topic deletion is disabled."
            if version < 3:
                error = INVALID_REQUEST
        elif name is None and topic_id == ZERO_UUID:
            error, message = INVALID_REQUEST, "Neither topic name nor id were specified."
        elif name is not None and topic_id != ZERO_UUID:
            error, message = INVALID_REQUEST, "You may not specify both topic name and topic id."
        elif counts[key] > 1:
            what = "id" if name is None else "name"
            error, message = INVALID_REQUEST, f"Duplicate topic {what}."
        elif topic is None:
            error, message = UNKNOWN_TOPIC_OR_PARTITION, _NO_TOPIC
            if name is None:
                error, message = UNKNOWN_TOPIC_ID, _NO_TOPIC_ID
        elif name is not None and (None, topic.topic_id) in counts:
            error, message = (
                INVALID_REQUEST,
                "The provided topic name maps to an ID that was already supplied.",
            )
            shown_id = topic.topic_id
        elif name is None and (topic.name, ZERO_UUID) in counts:
            continue  # answered under its name, as above
        elif not cluster.mutations.allows(len(topic.partitions)):
            error = THROTTLING_QUOTA_EXCEEDED
            name, shown_id = topic.name, topic.topic_id
        else:
            name, shown_id = topic.name, topic.topic_id
            records.append(("RemoveTopicRecord", 0, {"topic_id": topic.topic_id}))
        results[key] = {
            "name": name,
            "topic_id": shown_id,
            "error_code": error,
            "error_message": message,
        }
    return records, {"throttle_time_ms": 0, "responses": list(results.values())}


# --- CreatePartitions ---


def create_partitions(request: dict[str, Any], version: int, cluster: ClusterState) -> Decision:
    """CreatePartitions v0–3: the count asked for is the new total."""
    topics = request["topics"]
    counts = _counted(topic["name"] for topic in topics)
    added = added_partitions(topics, cluster.image)
    records: list[Record] = []
    results = {}
    for topic in topics:
        name = topic["name"]
        if name in results:
            continue
        known = cluster.image.topics_by_name.get(name)
        new: list[tuple[int, ...]] = []
        if counts[name] > 1:
            complaint: Complaint = (INVALID_REQUEST, "Duplicate topic name.")
        elif known is None:
            complaint = UNKNOWN_TOPIC_OR_PARTITION, None
        elif added > PARTITIONS_MAX:
            complaint = POLICY_VIOLATION, _TOO_MANY
        else:
            new, complaint = _place_more(topic, known.partitions, cluster)
            if new and not cluster.mutations.allows(len(new)):
                new, complaint = [], (THROTTLING_QUOTA_EXCEEDED, None)
            if not request["validate_only"]:
                first = len(known.partitions)
                records += _partition_records(known.topic_id, first, new, cluster.image.brokers)
        results[name] = {
            "name": name,
            "error_code": complaint[0],
            "error_message": fitting(complaint[1]),
        }
    return records, {"throttle_time_ms": 0, "results": list(results.values())}


def added_partitions(topics: list[dict[str, Any]], image: MetadataImage) -> int:
    """Partitions that the topics of a CreatePartitions are to get together."""
    return sum(
        topic["count"] - len(known.partitions)
        for topic in topics
        if (known := image.topics_by_name.get(topic["name"]))
        and topic["count"] > len(known.partitions)
    )


def _place_more(
    topic: dict[str, Any], partitions: tuple[PartitionImage, ...], cluster: ClusterState
) -> tuple[list[tuple[int, ...]], Complaint]:
    count, first = topic["count"], len(partitions)
    if count == first:
        return [], (INVALID_PARTITIONS, f"Topic already has {first} partition(s).")
    if count < first:
        return [], (
            INVALID_PARTITIONS,
            f"The topic {topic['name']} currently has {first} partition(s); {count} would not be "
            "an increase.",
        )
    additional = count - first
    factor = len(partitions[0].replicas)
    if topic["assignments"] is None:
        complaint = _factor_complaint(factor, cluster)
        if complaint[0]:
            return [], complaint
        brokers, leader = cluster.brokers, partitions[0].replicas[0]
        start = first + (brokers.index(leader) if leader in brokers else 0)
        return place_partitions(additional, factor, brokers, start, cluster.fenced), complaint
    if len(topic["assignments"]) != additional:
        return [], (
            INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {additional} additional partition(s), but only "
            f"{len(topic['assignments'])} assignment(s) were specified.",
        )
    new = [tuple(assignment["broker_ids"]) for assignment in topic["assignments"]]
    for index, replicas in enumerate(new):
        complaint = _assignment_complaint(first + index, replicas, factor, cluster)
        if complaint[0]:
            return [], complaint
    return new, (NONE, None)
