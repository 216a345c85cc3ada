"""What every API is asked by each principal. Who is who, and what there is: `acl_side`.

Each case is a request in all of its versions. None changes what another case is told: what would
change something is asked on trial, or for what is not there, or is mended before the next asks.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from shmbroker.metadata.image import GROUP_RESOURCE, TOPIC_RESOURCE
from shmbroker.records.batch import encode_batch
from shmbroker.security.acls import ALLOW, LITERAL, READ, TOPIC
from tests.processes.acl_side import (
    ADMIN,
    DELETED,
    EVERY_KIND,
    GROUPS,
    GROUPS_848,
    IDS,
    NAMED,
    PEOPLE,
    TOPICS,
    AclSide,
)
from tests.processes.wire_cases import ZERO, versions
from tests.support.raw_client import batch_of

Message = dict[str, Any]
BROKER_RESOURCE, LOGGER_RESOURCE, SUBSCRIPTION_RESOURCE = 4, 8, 16
NOT_DAVES = tuple(who for who in EVERY_KIND if who not in ("bob", "nobody"))
STRANGERS_MEMBER = "nobody-of-this-name"


class Case(NamedTuple):
    """One request, and who sends it."""

    name: str
    api: str
    body: Message | Callable[[AclSide], Message]
    who: tuple[str, ...] = PEOPLE
    versions: tuple[int, int] = (0, 99)
    """Both inclusive; of those that are served."""
    before: Callable[[AclSide], None] | None = None
    """What is done before each request."""

    def asked(self) -> Iterator[tuple[str, int]]:
        """(principal, version), one after the other."""
        first, last = self.versions
        for who in self.who:
            for version in versions(self.api):
                if first <= version <= last:
                    yield who, version


def cases(side: AclSide) -> Iterator[Case]:
    """All of them."""
    yield from records(side)
    yield from topics(side)
    yield from groups(side)
    yield from transactions()
    yield from settings()
    yield from cluster()
    yield from users()


def rows(side: AclSide, names: list[str] = NAMED, **more: Any) -> list[Message]:
    """A request's topics, by their names and ids: a version has one of the two."""
    return [{"name": name, "topic": name, "topic_id": id_of(side, name)} | more for name in names]


def id_of(side: AclSide, name: str) -> bytes:
    """A topic's id, or one that no topic has."""
    return side.topics.get(name, name.encode().ljust(16, b"."))


def batch(**more: Any) -> bytes:
    return encode_batch([(1_700_000_000_000, None, b"x", [])], **more)


# ── records ─────────────────────────────────────────────────────────────────────────────────────


def records(side: AclSide) -> Iterator[Case]:
    """What is written and read."""
    data = [{"index": 0, "records": batch_of(b"more")}]
    yield Case(
        "all topics", "Produce",
        {"acks": -1, "timeout_ms": 10_000, "topic_data": rows(side, partition_data=data)},
    )  # fmt: skip
    data = [
        {"index": 0, "records": batch(producer_id=7_000_001, producer_epoch=0, base_sequence=0)}
    ]
    writable = rows(side, ["t-write", "t-read"], partition_data=data)
    yield Case("idempotent", "Produce", {"acks": -1, "timeout_ms": 10_000, "topic_data": writable})
    transactional = batch(
        producer_id=7_000_002, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    data = [{"index": 0, "records": transactional}]
    for name in IDS:
        body = {
            "transactional_id": name,
            "acks": -1,
            "timeout_ms": 10_000,
            "topic_data": rows(side, ["t-read", "t-none"], partition_data=data),
        }
        # Who may write with the id and the topic is told of the transaction: other tests' matter.
        who = ("dave", "nobody") if name in ("x-none", "x-describe", "x-write") else ("nobody",)
        yield Case(f"transaction {name}", "Produce", body, who)
    plain = [{"index": 0, "records": batch_of(b"plain")}]
    body = {
        "transactional_id": "x-none",
        "acks": -1,
        "timeout_ms": 10_000,
        "topic_data": rows(side, ["t-write"], partition_data=plain),
    }
    yield Case("an id and no transaction", "Produce", body, ("dave", "nobody"))

    wanted = [
        {
            "partition": 0,
            "current_leader_epoch": -1,
            "fetch_offset": 1 << 40,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": 100,
        }
    ]
    fetch = {
        "max_wait_ms": 0,
        "min_bytes": 0,
        "max_bytes": 1000,
        "replica_id": -1,
        "session_epoch": -1,
        "topics": rows(side, partitions=wanted),
    }
    yield Case("all topics", "Fetch", fetch)
    as_replica = fetch | {"replica_id": 1, "replica_state": {"replica_id": 1, "replica_epoch": 1}}
    yield Case("as a replica", "Fetch", as_replica, ("dave", "bob", "nobody"))
    for who, isolation in ((PEOPLE, 0), (("dave",), 1)):
        at = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -2}]
        body = {
            "replica_id": -1,
            "isolation_level": isolation,
            "topics": rows(side, partitions=at),
        }
        yield Case(f"all topics, isolation {isolation}", "ListOffsets", body, who)
    at = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
    yield Case(
        "all topics", "OffsetForLeaderEpoch",
        {"replica_id": -1, "topics": rows(side, partitions=at)}, EVERY_KIND,
    )  # fmt: skip
    at = [{"partition_index": 0, "offset": 0}]
    body = {"topics": rows(side, partitions=at), "timeout_ms": 10_000}
    yield Case("all topics", "DeleteRecords", body)
    body = {"topics": rows(side, partition_indexes=[0])}
    yield Case("all topics", "DescribeProducers", body)


# ── topics ──────────────────────────────────────────────────────────────────────────────────────


def topics(side: AclSide) -> Iterator[Case]:
    """What they are, and what is done with them."""
    flags = {
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
    }
    named = [{"name": name, "topic_id": ZERO} for name in NAMED]
    yield Case("named", "Metadata", {"topics": named} | flags, EVERY_KIND, (4, 99))
    there = [{"name": name} for name in TOPICS]  # without the flag others would be made
    yield Case("named", "Metadata", {"topics": there}, EVERY_KIND, (0, 3))
    plain = {"topics": named, "allow_auto_topic_creation": False}
    yield Case("named, no operations", "Metadata", plain, ("dave", "carol"), (4, 99))
    yield Case("all", "Metadata", {"topics": None} | flags, EVERY_KIND, (1, 99))
    yield Case("all of version 0", "Metadata", {"topics": []}, PEOPLE, (0, 0))
    yield Case("none", "Metadata", {"topics": []} | flags, PEOPLE, (1, 99))
    by_id = [{"name": None, "topic_id": id_of(side, name)} for name in NAMED]
    yield Case("by id", "Metadata", {"topics": by_id} | flags, EVERY_KIND, (10, 99))
    for name in ("n-none", "n-seen", "n-create"):  # n-create may be made, and not be seen
        body = {"topics": [{"name": name, "topic_id": ZERO}], "allow_auto_topic_creation": True}
        yield Case(f"made where it is not: {name}", "Metadata", body, ("dave", "nobody"))

    body = {"topics": [{"name": name} for name in NAMED], "response_partition_limit": 2000}
    yield Case("named", "DescribeTopicPartitions", body, EVERY_KIND)
    yield Case("all", "DescribeTopicPartitions", body | {"topics": []}, EVERY_KIND)

    new = [
        {"name": name, "num_partitions": 1, "replication_factor": 1}
        for name in ("t-none", "t-create", *(f"n-{one}" for one in ("none", "create")), "n-seen",
                     "n-create-seen")
    ]  # fmt: skip
    body = {"topics": new, "timeout_ms": 10_000, "validate_only": True}
    yield Case("on trial", "CreateTopics", body, EVERY_KIND)
    bad = [{"name": "a/b", "num_partitions": 1, "replication_factor": 1}] * 1 + [
        {"name": "n-create", "num_partitions": -7, "replication_factor": 1}
    ]
    body = {"topics": bad, "timeout_ms": 10_000, "validate_only": True}
    yield Case("bad ones on trial", "CreateTopics", body, ("dave", "k-create", "nobody"))
    twice = {"name": "n-create", "num_partitions": 1, "replication_factor": 1}
    body = {"topics": [twice, twice], "timeout_ms": 10_000, "validate_only": True}
    yield Case("one twice on trial", "CreateTopics", body, ("dave", "k-create", "nobody"))
    body = {"topics": [twice | {"name": "__cluster_metadata"}], "timeout_ms": 10_000,
            "validate_only": True}  # fmt: skip
    yield Case("the cluster's own", "CreateTopics", body, ("carol", "k-create", "nobody"))

    made = lambda side: side.make_topics(*DELETED)  # noqa: E731
    names = [*DELETED, "m-none", "m-delete"]
    body = {"topic_names": names, "timeout_ms": 10_000}
    who = (ADMIN, "dave", "carol", "nobody")
    yield Case("by name", "DeleteTopics", body, who, (1, 5), made)
    body = {"topics": [{"name": name, "topic_id": ZERO} for name in names], "timeout_ms": 10_000}
    yield Case("by name", "DeleteTopics", body, who, (6, 99), made)

    def by_ids(side: AclSide) -> Message:
        return {
            "topics": [{"name": None, "topic_id": id_of(side, name)} for name in names],
            "timeout_ms": 10_000,
        }

    yield Case("by id", "DeleteTopics", by_ids, who, (6, 99), made)
    more = [
        {"name": topic, "count": 1, "assignments": None} for topic in NAMED if topic != "m-create"
    ]
    body = {"topics": more, "timeout_ms": 10_000, "validate_only": True}
    yield Case("on trial", "CreatePartitions", body)


# ── groups ──────────────────────────────────────────────────────────────────────────────────────


def groups(side: AclSide) -> Iterator[Case]:
    """Classic groups and those of KIP-848, and the offsets of both."""
    at = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]
    for group in ("g-none", "g-read", "g-describe"):
        body = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
        committed = body | {"topics": rows(side, partitions=at)}
        yield Case(group, "OffsetCommit", committed)
        yield Case(f"{group}, no topic", "OffsetCommit", body | {"topics": []}, ("dave", "nobody"))
        for word, wanted in (
            ("named", rows(side, partition_indexes=[0])), ("all", None), ("none", []),
        ):  # fmt: skip
            if word == "none" and group == "g-read":
                continue
            first = 2 if wanted is None else 0
            body = {"group_id": group, "topics": wanted}
            yield Case(f"{group}, {word}", "OffsetFetch", body, PEOPLE, (first, 7))
            body = {"groups": [{"group_id": group, "topics": wanted, "member_epoch": -1}]}
            yield Case(f"{group}, {word}", "OffsetFetch", body, PEOPLE, (8, 99))
    both = {
        "groups": [
            {"group_id": group, "topics": rows(side, partition_indexes=[0]), "member_epoch": -1}
            for group in GROUPS
        ]
    }
    yield Case("several", "OffsetFetch", both, PEOPLE, (8, 99))

    for group in GROUPS[:4]:
        body = {
            "group_id": group,
            "session_timeout_ms": 1,
            "rebalance_timeout_ms": 1,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        }
        member = {"group_id": group, "member_id": STRANGERS_MEMBER, "generation_id": 7}
        yield Case(group, "JoinGroup", body)
        protocol = {"protocol_type": "consumer", "protocol_name": "range"}
        yield Case(group, "SyncGroup", member | protocol)
        yield Case(f"{group}, no protocol", "SyncGroup", member, ("dave", "nobody"), (5, 99))
        yield Case(group, "Heartbeat", member)
        leaving = {"group_id": group, "member_id": STRANGERS_MEMBER,
                   "members": [{"member_id": STRANGERS_MEMBER}]}  # fmt: skip
        yield Case(group, "LeaveGroup", leaving)
        for word, subscribed in (
            ("none", ["t-none"]), ("seen", ["t-describe"]), ("both", ["t-describe", "t-none"]),
        ):  # fmt: skip
            beat = {
                "group_id": group,
                "member_id": STRANGERS_MEMBER,
                "member_epoch": 3,
                "subscribed_topic_names": subscribed,
            }
            yield Case(f"{group}, {word}", "ConsumerGroupHeartbeat", beat)
        yield Case(f"{group}, one that left", "ConsumerGroupHeartbeat", beat | {"member_epoch": -1})
        topic = [{"partition_index": 0}]
        body = {"group_id": group, "topics": rows(side, partitions=topic)}
        yield Case(group, "OffsetDelete", body, ("bob", "nobody"))
    for group in ("g-none", "g-delete"):  # who may, deletes: of topics without offsets
        body = {"group_id": group, "topics": rows(side, ["m-none", "t-none"], partitions=topic)}
        yield Case(f"{group}, some", "OffsetDelete", body, ("dave", "nobody"))
        body = {"group_id": group, "topics": []}
        yield Case(f"{group}, no topic", "OffsetDelete", body)
    kinds = {"include_authorized_operations": True}
    yield Case("all", "DescribeGroups", {"groups": [*GROUPS, "g-not-there"]} | kinds, EVERY_KIND)
    yield Case("no operations", "DescribeGroups", {"groups": GROUPS}, ("dave", "nobody"))
    yield Case("classic", "ConsumerGroupDescribe", {"group_ids": [*GROUPS, "g-not-there"]} | kinds)
    joined = AclSide.join_groups
    named = {"group_ids": [*GROUPS_848]}
    yield Case("of the protocol", "ConsumerGroupDescribe", named | kinds, before=joined)
    yield Case("no operations", "ConsumerGroupDescribe", named, ("dave",), before=joined)
    yield Case("of the protocol", "DescribeGroups", {"groups": [*GROUPS_848]} | kinds)
    listed = {"states_filter": [], "types_filter": []}
    yield Case("all", "ListGroups", listed, EVERY_KIND, before=joined)
    yield Case("some", "ListGroups", {"states_filter": ["Dead"]}, ("dave", "nobody"), (4, 99))
    names = [f"{group}-not-there" for group in GROUPS] + ["m-delete"]
    yield Case("not there", "DeleteGroups", {"groups_names": names})
    yield Case("forbidden", "DeleteGroups", {"groups_names": ["g-read", "g-describe", "g-none"]},
               ("dave", "bob", "nobody"))  # fmt: skip
    for kind, keys in ((0, [*GROUPS, "g-not-there"]), (1, [*IDS, "x-not-there"]),
                       (2, ["g-none:AAAAAAAAAAAAAAAAAAAAAQ:0", "bad"])):  # fmt: skip
        who = ("dave", "bob", "nobody") if kind == 2 else EVERY_KIND
        if kind < 2:
            for key in keys[:4]:
                if kind:
                    yield Case(f"{key}", "FindCoordinator", {"key": key, "key_type": 1}, PEOPLE,
                               (1, 3))  # fmt: skip
                else:
                    yield Case(f"{key}", "FindCoordinator", {"key": key}, PEOPLE, (0, 3))
        body = {"key_type": kind, "coordinator_keys": keys}
        yield Case(f"kind {kind}", "FindCoordinator", body, who, (6 if kind == 2 else 4, 99))


# ── transactions ────────────────────────────────────────────────────────────────────────────────


def transactions() -> Iterator[Case]:
    """Producer ids, and what is done with transactional ids."""
    body = {"transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1}
    yield Case("no id", "InitProducerId", body | {"transactional_id": None}, EVERY_KIND)
    for name in IDS:
        # -7 ms is no time: who may is told so, and nothing is begun.
        wrong = body | {"transactional_id": name, "transaction_timeout_ms": -7}
        yield Case(name, "InitProducerId", wrong, EVERY_KIND if name == "x-none" else PEOPLE)
        who = {"producer_id": 1 << 40, "producer_epoch": 0, "transactional_id": name}
        added = {f"v3_and_below_{key}": value for key, value in who.items()}
        for word, wanted in (
            ("writable", ["t-write"]), ("some", ["t-write", "t-none", "m-none"]),
            ("none", ["t-none"]), ("not there", ["m-none"]),
        ):  # fmt: skip
            topics = [{"name": topic, "partitions": [0]} for topic in wanted]
            yield Case(f"{name}, {word}", "AddPartitionsToTxn",
                       added | {"v3_and_below_topics": topics}, PEOPLE, (0, 3))  # fmt: skip
            if word == "some":
                one = who | {"verify_only": True, "topics": topics}
                yield Case(f"{name}, {word}", "AddPartitionsToTxn", {"transactions": [one]},
                           ("dave", "bob", "nobody", "k-alter"), (4, 99))  # fmt: skip
        for group in ("g-none", "g-read", "g-describe"):
            yield Case(f"{name}, {group}", "AddOffsetsToTxn", who | {"group_id": group})
            at = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]
            committed = who | {
                "group_id": group,
                "generation_id": -1,
                "member_id": "",
                "topics": [{"name": topic, "partitions": at} for topic in NAMED],
            }
            only = PEOPLE if name != "x-write" else ("bob", "nobody", "dave")
            yield Case(f"{name}, {group}", "TxnOffsetCommit", committed, only)
        yield Case(name, "EndTxn", who | {"committed": True})
    yield Case("all", "DescribeTransactions", {"transactional_ids": [*IDS, "x-not-there"]},
               EVERY_KIND)  # fmt: skip
    yield Case("all", "ListTransactions", {"state_filters": [], "producer_id_filters": []},
               EVERY_KIND)  # fmt: skip
    marker = {
        "producer_id": 1 << 40,
        "producer_epoch": 0,
        "transaction_result": True,
        "coordinator_epoch": 0,
        "topics": [{"name": "m-none", "partition_indexes": [0]}],
    }
    yield Case("one", "WriteTxnMarkers", {"markers": [marker]}, EVERY_KIND)


# ── settings ────────────────────────────────────────────────────────────────────────────────────


def settings() -> Iterator[Case]:
    """Of topics, groups and brokers."""
    wanted = [
        *((TOPIC_RESOURCE, name) for name in NAMED),
        *((GROUP_RESOURCE, name) for name in GROUPS),
        (BROKER_RESOURCE, "1"),
        (BROKER_RESOURCE, ""),
        (LOGGER_RESOURCE, "1"),
        (SUBSCRIPTION_RESOURCE, "metrics"),
    ]
    resources = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": []}
        for kind, name in wanted
    ]
    yield Case("all", "DescribeConfigs", {"resources": resources}, EVERY_KIND)
    altered = [
        {"resource_type": kind, "resource_name": name, "configs": []}
        for kind, name in wanted
        if kind != LOGGER_RESOURCE
    ]
    body = {"resources": altered, "validate_only": True}
    yield Case("on trial", "AlterConfigs", body, EVERY_KIND)
    yield Case("on trial", "IncrementalAlterConfigs", body, EVERY_KIND)
    logger = {"resource_type": LOGGER_RESOURCE, "resource_name": "1", "configs": []}
    for api in ("AlterConfigs", "IncrementalAlterConfigs"):
        body = {"resources": [logger], "validate_only": True}
        yield Case("logger on trial", api, body, ("dave", "nobody", "k-alter"))
    yield Case("all", "ListConfigResources", {"resource_types": []}, EVERY_KIND)


# ── the cluster ─────────────────────────────────────────────────────────────────────────────────


def cluster() -> Iterator[Case]:
    """What administrators ask."""
    yield Case("all", "ApiVersions",
               {"client_software_name": "a", "client_software_version": "1"})  # fmt: skip
    body = {"include_cluster_authorized_operations": True, "endpoint_type": 1}
    yield Case("brokers", "DescribeCluster", body, EVERY_KIND)
    yield Case("no operations", "DescribeCluster", {"endpoint_type": 1}, ("dave", "nobody"))
    quorum = {
        "topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    }
    yield Case("quorum", "DescribeQuorum", quorum, EVERY_KIND)
    update = {"feature": "no.such", "max_version_level": 1}
    yield Case("on trial", "UpdateFeatures",
               {"feature_updates": [update], "validate_only": True, "timeout_ms": 10_000},
               EVERY_KIND)  # fmt: skip
    yield Case("one that is not there", "UnregisterBroker", {"broker_id": 77}, EVERY_KIND)
    voter = {
        "cluster_id": None,
        "voter_id": 4,
        "voter_directory_id": bytes(15) + b"\x01",
        "listeners": [],
    }
    denied = ("dave", "bob", "nobody", "carol", "k-describe")
    yield Case("one", "AddRaftVoter", voter, denied)
    yield Case("one", "RemoveRaftVoter", voter, denied)
    elected = [{"topic": name, "partitions": [0]} for name in ("t-none", "t-alter", "m-none")]
    body = {"topic_partitions": elected, "timeout_ms": 10_000}
    yield Case("some", "ElectLeaders", body, EVERY_KIND)
    yield Case("all", "ElectLeaders", body | {"topic_partitions": None},
               tuple(who for who in EVERY_KIND if who not in (ADMIN, "k-alter")))  # fmt: skip
    moved = [
        {"name": name, "partitions": [{"partition_index": 0, "replicas": None}]}
        for name in ("t-none", "t-alter", "m-none")
    ]
    body = {"topics": moved, "timeout_ms": 10_000}
    yield Case("given up", "AlterPartitionReassignments", body, EVERY_KIND)
    yield Case("all", "ListPartitionReassignments", {"topics": None}, EVERY_KIND)
    named = [{"name": name, "partition_indexes": [0]} for name in ("t-none", "m-none")]
    yield Case("named", "ListPartitionReassignments", {"topics": named}, EVERY_KIND)
    directories = {
        "dirs": [
            {
                "path": "/nowhere",
                "topics": [{"name": name, "partitions": [0]} for name in ("t-none", "m-none")],
            }
        ]
    }
    yield Case("some", "AlterReplicaLogDirs", directories,
               tuple(who for who in EVERY_KIND if who not in (ADMIN, "k-alter")))  # fmt: skip
    wanted = [{"topic": name, "partitions": [0]} for name in ("t-none", "m-none")]
    yield Case("some", "DescribeLogDirs", {"topics": wanted}, EVERY_KIND)

    one = {
        "resource_type": TOPIC,
        "resource_name": "temporary",
        "resource_pattern_type": LITERAL,
        "principal": "User:temporary",
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
    }
    bad = one | {"resource_name": ""}
    yield Case("one and a bad one", "CreateAcls", {"creations": [one, bad]}, EVERY_KIND)
    found = {
        "resource_type_filter": TOPIC,
        "resource_name_filter": "temporary",
        "pattern_type_filter": LITERAL,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    creations = {"creations": [one]}
    yield Case("one", "DescribeAcls", found, EVERY_KIND, before=partial(_add, body=creations))
    yield Case("one", "DeleteAcls", {"filters": [found, found | {"resource_name_filter": "no"}]},
               EVERY_KIND, before=partial(_add, body=creations))  # fmt: skip


def _add(side: AclSide, body: Message) -> None:
    """An ACL that a request may have taken away; seen by who is asked."""
    side.admin("CreateAcls", 3, body)
    creation = body["creations"][0]
    asked = {
        "resource_type_filter": creation["resource_type"],
        "resource_name_filter": creation["resource_name"],
        "pattern_type_filter": creation["resource_pattern_type"],
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    side.until(lambda: side.admin("DescribeAcls", 3, asked)["resources"], "the ACL is seen")


# ── users ───────────────────────────────────────────────────────────────────────────────────────


def users() -> Iterator[Case]:
    """Their secrets, tokens and quotas."""
    # Kafka says nothing to who may not ask for all of them.
    yield Case("all", "DescribeUserScramCredentials", {"users": None}, (ADMIN, "k-describe"))
    named = [{"name": "dave"}]
    yield Case("one", "DescribeUserScramCredentials", {"users": named}, EVERY_KIND)
    gone = [{"name": "nobody-of-this-name", "mechanism": 1}]
    yield Case("one", "AlterUserScramCredentials", {"deletions": gone, "upsertions": []},
               EVERY_KIND)  # fmt: skip
    yield Case("all", "DescribeClientQuotas", {"components": [], "strict": False}, EVERY_KIND)
    entry = {
        "entity": [{"entity_type": "user", "entity_name": "dave"}],
        "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}],
    }
    yield Case("on trial", "AlterClientQuotas", {"entries": [entry], "validate_only": True},
               EVERY_KIND)  # fmt: skip


__all__ = ["TOPICS", "Case", "cases"]
