"""The image: what each record makes of it, what is shared, and what is told as changed."""

import pytest

from shmbroker.errors import StorageFault
from shmbroker.metadata import draft
from shmbroker.metadata.changes import (
    BrokerChanged,
    ConfigChanged,
    MetadataChange,
    PartitionChanged,
    SecurityChanged,
    TopicCreated,
    TopicDeleted,
)
from shmbroker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage
from shmbroker.wire.metadata_records import decode_metadata_record, encode_metadata_record

A, B = b"a" * 16, b"b" * 16


def records(start: int, *rows: tuple) -> list[tuple]:
    """(name, version, message) as the reader gives them, with all the fields."""
    return [
        (start + index, 1, *decode_metadata_record(encode_metadata_record(*row)))
        for index, row in enumerate(rows)
    ]


def applied(image: MetadataImage, *rows: tuple) -> tuple[MetadataImage, list[MetadataChange]]:
    return draft.applied(image, records(image.offset, *rows), image.offset + len(rows), 1)


def are(changes: list[MetadataChange], *wanted: MetadataChange) -> bool:
    """Equal, and of the same kinds: changes are tuples."""
    return changes == list(wanted) and list(map(type, changes)) == list(map(type, wanted))


def topic(name: str, topic_id: bytes) -> tuple:
    return "TopicRecord", 0, {"name": name, "topic_id": topic_id}


def partition(topic_id: bytes, index: int, leader: int = 1) -> tuple:
    return (
        "PartitionRecord",
        2,
        {
            "partition_id": index,
            "topic_id": topic_id,
            "replicas": [1, 2],
            "isr": [1, 2],
            "leader": leader,
            "leader_epoch": 0,
            "partition_epoch": 0,
            "directories": [A, B],
        },
    )


def change(topic_id: bytes, index: int, **fields: object) -> tuple:
    return "PartitionChangeRecord", 2, {"partition_id": index, "topic_id": topic_id, **fields}


def removal(topic_id: bytes) -> tuple:
    return "RemoveTopicRecord", 0, {"topic_id": topic_id}


def setting(type_: int, name: str, key: str, value: str | None) -> tuple:
    message = {"resource_type": type_, "resource_name": name, "name": key, "value": value}
    return "ConfigRecord", 0, message


def registration(broker_id: int, fenced: bool = True) -> tuple:
    end_point = {"name": "PLAINTEXT", "host": "h", "port": 9, "security_protocol": 0}
    message = {
        "broker_id": broker_id,
        "incarnation_id": A,
        "broker_epoch": 5,
        "end_points": [end_point],
        "rack": "r",
        "fenced": fenced,
        "log_dirs": [B],
    }
    return "RegisterBrokerRecord", 3, message


@pytest.fixture
def image() -> MetadataImage:
    """Two topics, two brokers."""
    image, _ = applied(
        MetadataImage("cluster"),
        topic("a", A),
        partition(A, 0),
        partition(A, 1),
        topic("__consumer_offsets", B),
        partition(B, 0),
        setting(TOPIC_RESOURCE, "a", "retention.ms", "5"),
        registration(1),
        registration(2),
    )
    return image


def test_topics_are_found_by_name_and_by_id(image: MetadataImage) -> None:
    found = image.topics_by_name["a"]
    assert image.topics_by_id[A] is found
    assert (found.name, found.topic_id, found.is_internal) == ("a", A, False)
    first = found.partitions[0]
    assert (first.partition, first.replicas, first.in_sync_replicas) == (0, (1, 2), (1, 2))
    assert (first.leader_id, first.leader_epoch, first.partition_epoch) == (1, 0, 0)
    assert first.directories == (A, B)
    assert image.topics_by_name["__consumer_offsets"].is_internal
    assert (image.cluster_id, image.offset, image.epoch) == ("cluster", 8, 1)


def test_partitions_may_come_in_any_order() -> None:
    image, _ = applied(MetadataImage(""), topic("a", A), partition(A, 1, 2), partition(A, 0, 1))
    assert [p.leader_id for p in image.topics_by_name["a"].partitions] == [1, 2]


def test_hole_in_the_partitions_is_refused() -> None:
    with pytest.raises(StorageFault, match="topic a has holes"):
        applied(MetadataImage(""), topic("a", A), partition(A, 1))


def test_the_image_before_stays_as_it_was(image: MetadataImage) -> None:
    before = (
        dict(image.topics_by_name),
        dict(image.topics_by_id),
        {key: dict(values) for key, values in image.configs.items()},
        dict(image.brokers),
        dict(image.features),
    )
    applied(
        image,
        removal(B),
        topic("c", b"c" * 16),
        change(A, 0, leader=2),
        setting(TOPIC_RESOURCE, "a", "retention.ms", "6"),
        registration(3),
        ("FeatureLevelRecord", 0, {"name": "f", "feature_level": 1}),
        ("ProducerIdsRecord", 0, {"broker_id": 1, "broker_epoch": 5, "next_producer_id": 1000}),
    )
    assert before == (
        image.topics_by_name,
        image.topics_by_id,
        image.configs,
        image.brokers,
        image.features,
    )
    assert (image.offset, image.next_producer_id) == (8, 0)


def test_what_is_not_touched_is_shared(image: MetadataImage) -> None:
    after, _ = applied(image, change(A, 0, leader=2))
    assert after.brokers is image.brokers
    assert after.configs is image.configs
    assert after.topics_by_name["__consumer_offsets"] is image.topics_by_name["__consumer_offsets"]
    assert after.topics_by_name["a"].partitions[1] is image.topics_by_name["a"].partitions[1]


@pytest.mark.parametrize(
    ("fields", "leader_id", "leader_epoch", "in_sync"),
    [
        ({}, 1, 0, (1, 2)),
        ({"leader": 2}, 2, 1, (1, 2)),
        ({"leader": -1, "isr": []}, -1, 1, ()),
        ({"isr": [1]}, 1, 0, (1,)),
    ],
)
def test_partition_change(
    image: MetadataImage, fields: dict, leader_id: int, leader_epoch: int, in_sync: tuple
) -> None:
    after, changes = applied(image, change(A, 1, **fields))
    new = after.topics_by_name["a"].partitions[1]
    assert (new.leader_id, new.leader_epoch, new.in_sync_replicas) == (
        leader_id,
        leader_epoch,
        in_sync,
    )
    assert (new.partition_epoch, new.replicas, new.directories) == (1, (1, 2), (A, B))
    old = image.topics_by_name["a"].partitions[1]
    assert are(changes, PartitionChanged(after.topics_by_name["a"], old, new))


def test_two_changes_of_a_partition_are_told_as_one(image: MetadataImage) -> None:
    after, changes = applied(image, change(A, 0, leader=2), change(A, 0, leader=1))
    new = after.topics_by_id[A].partitions[0]
    assert (new.leader_epoch, new.partition_epoch) == (2, 2)
    assert [type(each) for each in changes] == [PartitionChanged]


def test_added_partition_was_not_there_before(image: MetadataImage) -> None:
    after, changes = applied(image, partition(A, 2))
    (only,) = changes
    assert isinstance(only, PartitionChanged)
    assert (only.topic, only.before, only.after.partition) == (after.topics_by_id[A], None, 2)


def test_topic_of_the_same_name_again_is_another_topic(image: MetadataImage) -> None:
    c = b"c" * 16
    after, changes = applied(image, removal(A), topic("a", c), partition(c, 0))
    assert are(
        changes,
        TopicDeleted(image.topics_by_id[A]),
        TopicCreated(after.topics_by_id[c]),
        ConfigChanged(TOPIC_RESOURCE, "a"),
    )
    assert A not in after.topics_by_id
    assert after.config(TOPIC_RESOURCE, "a") == {}


def test_topic_that_came_and_went_is_not_told(image: MetadataImage) -> None:
    c = b"c" * 16
    after, changes = applied(
        image,
        topic("c", c),
        partition(c, 0),
        setting(TOPIC_RESOURCE, "c", "k", "v"),
        removal(c),
    )
    assert changes == []
    assert after.topics_by_id == image.topics_by_id
    assert after.configs == image.configs


def test_topic_that_changed_and_went_is_told_as_it_was(image: MetadataImage) -> None:
    _, changes = applied(image, change(A, 0, leader=2), removal(A))
    assert are(changes[:1], TopicDeleted(image.topics_by_id[A]))
    assert [type(each) for each in changes[1:]] == [ConfigChanged]


def test_configs(image: MetadataImage) -> None:
    after, changes = applied(
        image,
        setting(BROKER_RESOURCE, "", "log.roll.ms", "7"),
        setting(TOPIC_RESOURCE, "a", "retention.ms", None),
        setting(TOPIC_RESOURCE, "__consumer_offsets", "x", None),
    )
    assert after.configs == {(BROKER_RESOURCE, ""): {"log.roll.ms": "7"}}
    assert are(
        changes,
        ConfigChanged(BROKER_RESOURCE, ""),
        ConfigChanged(TOPIC_RESOURCE, "a"),
    )
    assert image.config(TOPIC_RESOURCE, "a") == {"retention.ms": "5"}


def test_brokers(image: MetadataImage) -> None:
    broker = image.brokers[1]
    assert (broker.host, broker.port, broker.rack, broker.broker_epoch) == ("h", 9, "r", 5)
    assert (broker.is_fenced, broker.incarnation_id, broker.directories) == (True, A, (B,))
    registered = {"broker_id": 1, "broker_epoch": 5}
    after, changes = applied(
        image, ("BrokerRegistrationChangeRecord", 0, registered | {"fenced": -1})
    )
    assert not after.brokers[1].is_fenced
    assert are(changes, BrokerChanged(broker, after.brokers[1]))
    again, _ = applied(after, ("BrokerRegistrationChangeRecord", 2, registered | {"log_dirs": [A]}))
    assert (again.brokers[1].is_fenced, again.brokers[1].directories) == (False, (A,))
    again, _ = applied(again, ("FenceBrokerRecord", 0, {"id": 1, "epoch": 5}))
    assert again.brokers[1].is_fenced
    again, _ = applied(again, ("UnfenceBrokerRecord", 0, {"id": 1, "epoch": 5}))
    assert not again.brokers[1].is_fenced
    gone, changes = applied(again, ("UnregisterBrokerRecord", 0, registered))
    assert list(gone.brokers) == [2]
    assert are(changes, BrokerChanged(again.brokers[1], None))


@pytest.mark.parametrize(
    "rows",
    [
        [topic("c", b"c" * 16), partition(b"c" * 16, 0)],
        [removal(A)],
        [partition(A, 2), change(A, 0, leader=2)],
        [setting(TOPIC_RESOURCE, "a", "retention.ms", None)],
        [setting(BROKER_RESOURCE, "", "retention.ms", "5")],
        [("UnregisterBrokerRecord", 0, {"broker_id": 2, "broker_epoch": 5}), registration(3)],
        [("FenceBrokerRecord", 0, {"id": 1, "epoch": 5}), registration(1, fenced=False)],
        [("RemoveUserScramCredentialRecord", 0, {"name": "u", "mechanism": 1})],
        [],
    ],
)
def test_an_image_that_was_read_anew_differs_as_one_that_was_made_of_it(
    image: MetadataImage, rows: list[tuple]
) -> None:
    user = {"name": "u", "mechanism": 1, "salt": A, "iterations": 4096}
    keys = {"stored_key": A, "server_key": B}
    image, _ = applied(image, ("UserScramCredentialRecord", 0, user | keys))
    after, changes = applied(image, *rows)
    assert bool(changes) == bool(rows)
    assert are(draft.difference(image, after), *changes)


def test_features_and_producer_ids(image: MetadataImage) -> None:
    level = ("FeatureLevelRecord", 0, {"name": "f", "feature_level": 2})
    after, _ = applied(image, level, ("ProducerIdsRecord", 0, {"next_producer_id": 3000}))
    assert (after.features, after.next_producer_id) == ({"f": 2}, 3000)
    off, _ = applied(after, ("FeatureLevelRecord", 0, {"name": "f", "feature_level": 0}))
    assert off.features == {}


def test_record_that_is_not_served_is_refused(image: MetadataImage) -> None:
    with pytest.raises(StorageFault, match="BeginTransactionRecord at offset 8"):
        applied(image, ("BeginTransactionRecord", 0, {"name": None}))


@pytest.mark.parametrize(
    "row",
    [
        change(b"z" * 16, 0, leader=1),
        change(A, 7, leader=1),
        partition(b"z" * 16, 0),
        removal(b"z" * 16),
        ("FenceBrokerRecord", 0, {"id": 9, "epoch": 5}),
    ],
)
def test_record_about_what_is_not_there_is_refused(image: MetadataImage, row: tuple) -> None:
    with pytest.raises(StorageFault, match="which isn't there"):
        applied(image, row)


def test_values_are_equal_by_their_fields(image: MetadataImage) -> None:
    again, _ = applied(
        MetadataImage("cluster"),
        topic("a", A),
        partition(A, 0),
        partition(A, 1),
        topic("__consumer_offsets", B),
        partition(B, 0),
        setting(TOPIC_RESOURCE, "a", "retention.ms", "5"),
        registration(1),
        registration(2),
    )
    assert again == image
    assert applied(again, change(A, 0))[0] != image
    assert "topic_id" in repr(image.topics_by_id[A])


def test_what_changes_of_security_leaves_the_other_parts_as_they_are(image: MetadataImage) -> None:
    token = {
        "owner": "User:a",
        "requester": "User:a",
        "renewers": ["User:b"],
        "issue_timestamp": 1,
        "max_timestamp": 3,
        "expiration_timestamp": 2,
        "token_id": "t",
    }
    acl = {
        "id": A,
        "resource_type": 2,
        "resource_name": "a",
        "pattern_type": 3,
        "principal": "User:a",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    judged, _ = applied(image, ("AccessControlEntryRecord", 0, acl))
    issued, changes = applied(judged, ("DelegationTokenRecord", 0, token))
    assert are(changes, SecurityChanged())
    assert issued.security.acls is judged.security.acls
    assert list(issued.security.tokens) == ["t"] and not judged.security.tokens
    other = token | {"token_id": "u"}
    again, _ = applied(
        issued,
        ("DelegationTokenRecord", 0, other),
        ("RemoveDelegationTokenRecord", 0, {"token_id": "t"}),
        ("RemoveDelegationTokenRecord", 0, {"token_id": "never"}),
        ("RemoveAccessControlEntryRecord", 0, {"id": A}),
    )
    assert list(again.security.tokens) == ["u"] and not again.security.acls
    assert list(issued.security.tokens) == ["t"] and issued.security.acls
