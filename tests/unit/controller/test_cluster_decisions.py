"""ElectLeaders, reassignments, DescribeQuorum, UnregisterBroker, and what AlterConfigs leaves.

Kafka's answers to the same requests are in `tests/processes/wire_expectations.txt`; here stands
what one broker can't show.
"""

from typing import Any

import pytest
from controller_at_work import DIRECTORY_ID, NOW_MS, Start, join
from decision_cases import topic

from shmbroker.controller.active_controller import ActiveController
from shmbroker.controller.decisions import election, nodes
from shmbroker.controller.decisions.cluster_state import ClusterState
from shmbroker.controller.decisions.election import PREFERRED, UNCLEAN, elect_leaders
from shmbroker.errors import ConfigFault
from shmbroker.ids import ZERO_UUID, random_uuid
from shmbroker.metadata.image import (
    BROKER_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from shmbroker.metadata.security_image import Acl
from shmbroker.security.acls import ALL, ALLOW, ALTER, CLUSTER, DENY, DESCRIBE, LITERAL, TOPIC
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.settings.table import STANDARD_AUTHORIZER
from shmbroker.wire import codec


def ask(controller: ActiveController, api: str, version: int, body: dict[str, Any]) -> Any:
    """Through the codec, as requests come and responses go."""
    request = codec.decode_all(
        f"{api}Request", version, codec.encode(f"{api}Request", version, body)
    )
    answer = controller.handle(api, version, request, NOW_MS)
    encoded = codec.encode(f"{api}Response", version, answer)
    return codec.decode_all(f"{api}Response", version, encoded)


def replace(controller: ActiveController, kind: int, name: str, **configs: str) -> None:
    entries = [{"name": k.replace("_", "."), "value": v} for k, v in configs.items()]
    resource = {"resource_type": kind, "resource_name": name, "configs": entries}
    body = {"resources": [resource], "validate_only": False}
    (response,) = ask(controller, "AlterConfigs", 2, body)["responses"]
    assert response["error_code"] == 0, response


@pytest.fixture
def two(start: Start) -> ActiveController:
    """A controller of two brokers, and a topic on each."""
    controller = start(shmbroker_io_workers="2")
    for broker_id in (1, 2):
        join(controller, broker_id)
    wanted = [topic(name, -1, -1, ((0, [id_]),)) for name, id_ in (("a", 1), ("b", 2))]
    body = {"topics": wanted, "timeout_ms": 1, "validate_only": False}
    ask(controller, "CreateTopics", 7, body)
    return controller


def test_alter_configs_takes_away_what_is_not_named(controller: ActiveController) -> None:
    wanted = [topic("t", 1, 1, retention_ms="5", segment_bytes="2000000")]
    ask(controller, "CreateTopics", 7, {"topics": wanted, "timeout_ms": 1, "validate_only": False})
    replace(controller, TOPIC_RESOURCE, "t", retention_ms="6", flush_ms="7")
    assert controller.image.config(TOPIC_RESOURCE, "t") == {"retention.ms": "6", "flush.ms": "7"}
    replace(controller, TOPIC_RESOURCE, "t")
    assert controller.image.config(TOPIC_RESOURCE, "t") == {}
    replace(controller, BROKER_RESOURCE, "1", log_retention_ms="5")
    replace(controller, BROKER_RESOURCE, "1", log_roll_ms="6")
    assert controller.image.config(BROKER_RESOURCE, "1") == {"log.roll.ms": "6"}


def test_settings_of_groups_are_kept(controller: ActiveController) -> None:
    replace(controller, GROUP_RESOURCE, "g", consumer_session_timeout_ms="50000")
    assert controller.image.config(GROUP_RESOURCE, "g") == {"consumer.session.timeout.ms": "50000"}
    replace(controller, GROUP_RESOURCE, "g")
    assert (GROUP_RESOURCE, "g") not in controller.image.configs


def test_trial_changes_nothing(controller: ActiveController) -> None:
    before = controller.committed_offset
    entries = [{"name": "consumer.session.timeout.ms", "value": "50000"}]
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": "g", "configs": entries}
    ask(controller, "AlterConfigs", 2, {"resources": [resource], "validate_only": True})
    assert controller.committed_offset == before


def reassign(controller: ActiveController, name: str, *replicas: int, **more: bool) -> Any:
    partition = {"partition_index": 0, "replicas": list(replicas)}
    body = {"topics": [{"name": name, "partitions": [partition]}], **more}
    answer = ask(controller, "AlterPartitionReassignments", 1, body)
    return answer["responses"][0]["partitions"][0]


def test_reassignment_to_where_it_is_is_done(two: ActiveController) -> None:
    before = two.committed_offset
    assert reassign(two, "b", 2)["error_code"] == 0
    assert two.committed_offset == before


def test_reassignment_that_may_not_change_the_factor(two: ActiveController) -> None:
    assert reassign(two, "b", 2, 1, allow_replication_factor_change=False) == {
        "partition_index": 0,
        "error_code": 38,
        "error_message": "The replication factor is changed from 1 to 2",
    }


@pytest.mark.parametrize(
    ("election_type", "leader_id", "code"),
    [(PREFERRED, 1, 84), (UNCLEAN, 1, 84), (PREFERRED, -1, 80), (UNCLEAN, -1, 83)],
)
def test_election(election_type: int, leader_id: int, code: int) -> None:
    partition = PartitionImage(0, (1,), (1,), leader_id, 0, 0, (DIRECTORY_ID,))
    image = MetadataImage("cluster")
    image.topics_by_name["t"] = TopicImage("t", bytes(16), (partition,))
    if leader_id == 1:
        image.brokers[1] = BrokerImage(1, "", 0, None, 0, bytes(16), False, ())
    asked = [{"topic": "t", "partitions": [0]}]
    for topics in (asked, None):
        request = {"election_type": election_type, "topic_partitions": topics}
        cluster = ClusterState(image, BrokerConfig(), (), random_uuid)
        records, answer = elect_leaders(request, 1, cluster)
        assert records == []
        (result,) = answer["replica_election_results"]
        codes = [row["error_code"] for row in result["partition_result"]]
        assert codes == ([] if topics is None and code == 84 else [code])


BOTH = [{"topic": "t", "partitions": [0]}]


def led_by_second(first_is_fenced: bool = False, partitions: int = 1) -> ClusterState:
    """A topic whose first replica, broker 1, leads only where it is fenced."""
    leader_id = 1 if first_is_fenced else 2
    directories = (DIRECTORY_ID,) * 2
    rows = [
        PartitionImage(index, (1, 2), (1, 2), leader_id, 0, 0, directories)
        for index in range(partitions)
    ]
    image = MetadataImage("cluster")
    topic_image = TopicImage("t", bytes(16), tuple(rows))
    image.topics_by_name["t"] = image.topics_by_id[bytes(16)] = topic_image
    for id_, is_fenced in ((1, first_is_fenced), (2, False)):
        image.brokers[id_] = BrokerImage(id_, "", 0, None, 0, bytes(16), is_fenced, ())
    return ClusterState(image, BrokerConfig(), (), random_uuid)


@pytest.mark.parametrize(("first_is_fenced", "leader_id"), [(False, 1), (True, 2)])
def test_the_first_replica_leads_if_it_is_at_work_and_is_named_once(
    first_is_fenced: bool, leader_id: int
) -> None:
    request = {"election_type": PREFERRED, "topic_partitions": BOTH * 2}
    records, answer = elect_leaders(request, 2, led_by_second(first_is_fenced))
    assert [message["leader"] for _, _, message in records] == [leader_id]
    rows = [result["partition_result"] for result in answer["replica_election_results"]]
    assert [row["error_code"] for (row,) in rows] == [0, 0]


@pytest.mark.parametrize(("asked", "code"), [(None, 42), (BOTH, 42), ([], 0)])
def test_an_election_of_no_known_type_is_refused_where_it_is_about_something(
    asked: Any, code: int
) -> None:
    request = {"election_type": 7, "topic_partitions": asked}
    records, answer = elect_leaders(request, 2, led_by_second())
    assert (records, answer["error_code"]) == ([], code)


def test_elections_that_nobody_asked_for_are_so_many_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(election, "ELECTIONS_MAX", 2)
    assert len(election.preferred_leaders(led_by_second(partitions=3))) == 2


def test_quorum_is_this_node(two: ActiveController) -> None:
    partitions = [{"partition_index": 0}]
    body = {"topics": [{"topic_name": "__cluster_metadata", "partitions": partitions}]}
    encoded = codec.encode("DescribeQuorumResponse", 2, two.describe_quorum(body, 2, NOW_MS))
    answer = codec.decode_all("DescribeQuorumResponse", 2, encoded)
    (partition,) = answer["topics"][0]["partitions"]
    assert (partition["leader_id"], partition["leader_epoch"]) == (1, two.epoch)
    assert partition["high_watermark"] == two.committed_offset
    assert partition["observers"] == []
    (voter,) = partition["current_voters"]
    assert voter == {
        "replica_id": 1,
        "replica_directory_id": ZERO_UUID,
        "log_end_offset": two.committed_offset,
        "last_fetch_timestamp": NOW_MS,
        "last_caught_up_timestamp": NOW_MS,
    }
    assert answer["nodes"] == [{"node_id": 1, "listeners": []}]


def test_only_a_broker_of_an_earlier_family_is_unregistered(
    two: ActiveController, start: Start
) -> None:
    for broker_id in (1, 2):
        assert ask(two, "UnregisterBroker", 0, {"broker_id": broker_id})["error_code"] == 42
    two.close()
    with pytest.raises(ConfigFault, match=r"broker 2 holds replicas.*--io-workers 2"):
        start()
    two = start(shmbroker_io_workers="2")
    body = {"topics": [{"name": "b", "topic_id": ZERO_UUID}], "timeout_ms": 1}
    ask(two, "DeleteTopics", 6, body)
    two.close()
    one = start()
    assert [broker.is_fenced for broker in one.image.brokers.values()] == [False, True]
    assert ask(one, "UnregisterBroker", 0, {"broker_id": 2})["error_code"] == 0
    assert set(one.image.brokers) == {1}
    assert ask(one, "UnregisterBroker", 0, {"broker_id": 2})["error_code"] == 102


ANYBODY = f"authorizer.class.name={STANDARD_AUTHORIZER}"
MAY_ALTER = Acl(CLUSTER, "kafka-cluster", LITERAL, "User:a", "*", ALTER, ALLOW)


@pytest.mark.parametrize(
    ("assignments", "acls", "is_said"),
    [
        ((), (), False),
        ((ANYBODY,), (), True),
        ((ANYBODY, "super.users=User:a"), (), False),
        ((ANYBODY, "allow.everyone.if.no.acl.found=true"), (), False),
        ((ANYBODY,), (MAY_ALTER,), False),
        ((ANYBODY,), (MAY_ALTER._replace(operation=ALL),), False),
        ((ANYBODY,), (MAY_ALTER._replace(operation=DESCRIBE),), True),
        ((ANYBODY,), (MAY_ALTER._replace(permission=DENY),), True),
        ((ANYBODY,), (MAY_ALTER._replace(resource_type=TOPIC),), True),
    ],
)
def test_cluster_that_nobody_may_alter_is_told(
    assignments: tuple[str, ...], acls: tuple[Acl, ...], is_said: bool
) -> None:
    image = MetadataImage("c")
    image.security.acls = {bytes([number] * 16): acl for number, acl in enumerate(acls)}
    said = nodes.shuts_out_all(image, BrokerConfig.load(None, assignments, []))
    assert ("super.users" in said) is is_said


def test_controller_warns_as_it_takes_over(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    start(authorizer_class_name=STANDARD_AUTHORIZER)
    assert "nobody may add an ACL" in caplog.text
