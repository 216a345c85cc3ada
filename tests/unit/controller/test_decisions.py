"""CreateTopics, DeleteTopics, CreatePartitions, IncrementalAlterConfigs: codes, words, effects."""

import pytest
from controller_at_work import DIRECTORY_ID, NOW_MS, Start, join
from decision_cases import ALL, Case, answers_of, topic

from shmbroker.controller.active_controller import ActiveController
from shmbroker.controller.decisions.broker_values import listeners_complaint
from shmbroker.controller.decisions.placement import PARTITIONS_MAX, place_partitions
from shmbroker.controller.decisions.used_topics import transactions_topic
from shmbroker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE
from shmbroker.metadata.topic_names import TRANSACTION_TOPIC
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.wire import codec
from shmbroker.wire.error_codes import INVALID_REQUEST


def create(controller: ActiveController, *topics: dict, version: int = 7, **more: bool) -> list:
    request = {"topics": list(topics), "timeout_ms": 1, "validate_only": False, **more}
    return controller.handle("CreateTopics", version, request, NOW_MS)["topics"]


def set_config(controller: ActiveController, type_: int, name: str, key: str, value: str) -> None:
    config = {"name": key, "config_operation": 0, "value": value}
    resource = {"resource_type": type_, "resource_name": name, "configs": [config]}
    request = {"resources": [resource], "validate_only": False}
    response = controller.handle("IncrementalAlterConfigs", 1, request, NOW_MS)
    assert response["responses"][0]["error_code"] == 0, response


def alter_list(controller: ActiveController, operation: int, value: str | None) -> str | None:
    """Change the cleanup policy of topic "t"; what it is then."""
    config = {"name": "cleanup.policy", "config_operation": operation, "value": value}
    resource = {"resource_type": 2, "resource_name": "t", "configs": [config]}
    request = {"resources": [resource], "validate_only": False}
    controller.handle("IncrementalAlterConfigs", 1, request, NOW_MS)
    return controller.image.config(TOPIC_RESOURCE, "t").get("cleanup.policy")


@pytest.mark.parametrize("cases", ALL.values(), ids=ALL)
def test_answers_are_kafkas(controller: ActiveController, cases: list[Case]) -> None:
    for api_name, version, request, answers in cases:
        # through the codec, as requests come and responses go
        body = codec.encode(f"{api_name}Request", version, request)
        request = codec.decode_all(f"{api_name}Request", version, body)
        response = controller.handle(api_name, version, request, NOW_MS)
        body = codec.encode(f"{api_name}Response", version, response)
        response = codec.decode_all(f"{api_name}Response", version, body)
        assert answers_of(api_name, version, response) == sorted(answers, key=repr), request


def test_created_topic_is_in_the_image(controller: ActiveController) -> None:
    (result,) = create(controller, topic("t", 2, 1, retention_ms=" 5 "))
    image = controller.image.topics_by_name["t"]
    assert result["topic_id"] == image.topic_id != bytes(16)
    assert [p.partition for p in image.partitions] == [0, 1]
    first = image.partitions[0]
    assert (first.replicas, first.in_sync_replicas, first.leader_id) == ((1,), (1,), 1)
    assert (first.leader_epoch, first.partition_epoch) == (0, 0)
    assert first.directories == (DIRECTORY_ID,)
    assert controller.image.config(TOPIC_RESOURCE, "t") == {"retention.ms": " 5 "}


def test_configs_are_listed_as_written_from_version_5_on(controller: ActiveController) -> None:
    set_config(controller, BROKER_RESOURCE, "", "log.segment.bytes", "2000000")
    (result,) = create(controller, topic("t", 1, 1, retention_ms=" 5 "))
    listed = {entry["name"]: entry for entry in result["configs"]}
    assert len(listed) == 33
    assert (listed["retention.ms"]["value"], listed["retention.ms"]["config_source"]) == (" 5 ", 1)
    assert listed["segment.bytes"]["value"] == "2000000"
    assert listed["segment.bytes"]["config_source"] == 3
    assert listed["cleanup.policy"]["config_source"] == 5
    assert create(controller, topic("old"), version=4)[0]["configs"] == []


def test_own_setting_is_listed_where_it_is_set(controller: ActiveController) -> None:
    wanted = topic("t")
    wanted["configs"] = [{"name": "shmbroker.validation", "value": "records"}]
    (result,) = create(controller, wanted)
    assert "shmbroker.validation" in [entry["name"] for entry in result["configs"]]


def test_validate_only_leaves_no_trace(controller: ActiveController) -> None:
    before = controller.committed_offset
    (result,) = create(controller, topic("t", 3), validate_only=True)
    assert (result["error_code"], result["num_partitions"]) == (0, 3)
    assert controller.committed_offset == before
    assert "t" not in controller.image.topics_by_name


def test_names_of_one_request_collide(controller: ActiveController) -> None:
    results = create(controller, topic("a.b"), topic("a_b"))
    assert [result["error_code"] for result in results] == [0, 17]


def test_one_request_is_one_batch(controller: ActiveController) -> None:
    before = controller.committed_offset
    create(controller, topic("a", 2), topic("b", 1, 1, retention_ms="5"))
    # two topics, one config, three partitions
    assert controller.committed_offset == before + 6


def test_leaders_go_round_the_brokers(start: Start) -> None:
    controller = start(shmbroker_io_workers="3")
    for broker_id in (1, 2, 3):
        join(controller, broker_id)
    for name in "abc":
        create(controller, topic(name))
    create(controller, topic("d", 4))
    leaders = [
        p.leader_id for name in "abcd" for p in controller.image.topics_by_name[name].partitions
    ]
    assert leaders == [1, 2, 3, 1, 2, 3, 1]
    request = {
        "topics": [{"name": "d", "count": 6, "assignments": None}],
        "timeout_ms": 1,
        "validate_only": False,
    }
    controller.handle("CreatePartitions", 3, request, NOW_MS)
    partitions = controller.image.topics_by_name["d"].partitions
    assert [p.leader_id for p in partitions] == [1, 2, 3, 1, 2, 3]


def test_topics_of_one_request_are_spread_too(start: Start) -> None:
    controller = start(shmbroker_io_workers="2")
    for broker_id in (1, 2):
        join(controller, broker_id)
    create(controller, *map(topic, "abcd"))
    topics = [controller.image.topics_by_name[name] for name in "abcd"]
    assert [t.partitions[0].leader_id for t in topics] == [1, 2, 1, 2]


def test_followers_come_after_their_leader() -> None:
    assert place_partitions(3, 2, [1, 2, 5], 1) == [(2, 5), (5, 1), (1, 5)]


def test_what_one_broker_leads_spreads_over_the_others_when_it_dies() -> None:
    for fenced in ((), (4,)):
        placed = place_partitions(12, 3, [1, 2, 3], 0, fenced)
        assert all(len(set(replicas)) == 3 for replicas in placed)
        assert [replicas[0] for replicas in placed] == [1, 2, 3] * 4
        for leader in (1, 2, 3):
            heirs = [replicas[1] for replicas in placed if replicas[0] == leader]
            assert {heirs.count(heir) for heir in {1, 2, 3} - {leader}} == {2}


def test_fenced_brokers_follow_where_there_are_not_enough_others() -> None:
    assert place_partitions(2, 3, [2], 0, [1, 3]) == [(2, 1, 3), (2, 3, 1)]


def test_served_factor_is_placed(start: Start) -> None:
    controller = start(shmbroker_io_workers="2")
    for broker_id in (1, 2):
        join(controller, broker_id)
    create(controller, topic("t", 2, 2))
    partitions = controller.image.topics_by_name["t"].partitions
    assert [p.replicas for p in partitions] == [(1, 2), (2, 1)]
    (result,) = create(controller, topic("hand", -1, -1, ((0, [1, 2]), (1, [1]))))
    assert result["error_code"] == 39
    assert "not consistent with previous partitions" in result["error_message"]


def test_only_brokers_at_work_get_partitions(start: Start) -> None:
    controller = start(shmbroker_io_workers="2")
    for broker_id in (1, 2):
        join(controller, broker_id)
    controller.membership.fence_broker(1, NOW_MS)
    create(controller, topic("t", 2))
    assert {p.leader_id for p in controller.image.topics_by_name["t"].partitions} == {2}
    assert create(controller, topic("u", 1, 2))[0]["error_code"] == 0
    (partition,) = controller.image.topics_by_name["u"].partitions
    assert (partition.replicas, partition.in_sync_replicas) == ((2, 1), (2,))
    (result,) = create(controller, topic("u3", 1, 3))
    assert result["error_code"] == 38
    assert "only 2 broker(s) are registered" in result["error_message"]
    assert create(controller, topic("v", -1, -1, ((0, [1]),)))[0]["error_code"] == 39
    create(controller, topic("w", -1, -1, ((0, [1, 2]),)))
    (partition,) = controller.image.topics_by_name["w"].partitions
    assert (partition.in_sync_replicas, partition.leader_id) == ((2,), 2)
    controller.membership.fence_broker(2, NOW_MS)
    (result,) = create(controller, topic("x"))
    assert (result["error_code"], "fenced" in result["error_message"]) == (38, True)


def test_too_many_new_partitions_are_refused(controller: ActiveController) -> None:
    create(controller, topic("t"), topic("u"))
    wanted = [
        {"name": name, "count": PARTITIONS_MAX // 2 + 2, "assignments": None} for name in "tu"
    ]
    request = {"topics": wanted, "timeout_ms": 1, "validate_only": False}
    response = controller.handle("CreatePartitions", 3, request, NOW_MS)
    assert [result["error_code"] for result in response["results"]] == [44, 44]
    # a negative count must not make room for others
    results = create(controller, topic("v", PARTITIONS_MAX + 1), topic("w", -5))
    assert [result["error_code"] for result in results] == [44, 44]


def test_a_long_request_takes_no_quadratic_time(controller: ActiveController) -> None:
    many = [topic(f"{number}", 0) for number in range(30_000)]
    assert {result["error_code"] for result in create(controller, *many)} == {37}


def test_delete_by_id_and_deletion_takes_the_configs_along(controller: ActiveController) -> None:
    (result,) = create(controller, topic("t", 1, 1, retention_ms="5"))
    request = {"topics": [{"name": None, "topic_id": result["topic_id"]}], "timeout_ms": 1}
    response = controller.handle("DeleteTopics", 6, request, NOW_MS)
    assert response["responses"] == [
        {"name": "t", "topic_id": result["topic_id"], "error_code": 0, "error_message": None}
    ]
    assert "t" not in controller.image.topics_by_name
    create(controller, topic("t"))
    assert controller.image.config(TOPIC_RESOURCE, "t") == {}
    assert controller.image.topics_by_name["t"].topic_id != result["topic_id"]


def test_delete_by_name_and_by_id_at_once_is_refused(controller: ActiveController) -> None:
    (result,) = create(controller, topic("t"))
    both = [{"name": "t", "topic_id": bytes(16)}, {"name": None, "topic_id": result["topic_id"]}]
    for topics in (both, both[::-1]):
        response = controller.handle("DeleteTopics", 6, {"topics": topics}, NOW_MS)
        (answer,) = response["responses"]
        assert (answer["name"], answer["topic_id"]) == ("t", result["topic_id"])
        assert answer["error_code"] == 42
    assert "t" in controller.image.topics_by_name


@pytest.mark.parametrize(("version", "code"), [(1, 42), (3, 73), (5, 73), (6, 73)])
def test_deletion_can_be_disabled(start: Start, version: int, code: int) -> None:
    controller = start(delete_topic_enable="false")
    join(controller, 1)
    create(controller, topic("t"))
    request = {"topic_names": ["t"], "topics": [{"name": "t", "topic_id": bytes(16)}]}
    (answer,) = controller.handle("DeleteTopics", version, request, NOW_MS)["responses"]
    assert answer["error_code"] == code
    assert "t" in controller.image.topics_by_name


def test_lists_are_appended_to_and_subtracted_from(controller: ActiveController) -> None:
    create(controller, topic("t", cleanup_policy="compact"))

    def alter(operation: int, value: str | None) -> str | None:
        return alter_list(controller, operation, value)

    assert alter(2, "delete") == "compact,delete"
    before = controller.committed_offset
    assert alter(2, "delete") == "compact,delete"
    assert controller.committed_offset == before, "an unchanged topic needs no record"
    assert alter(3, "compact") == "delete"
    assert alter(3, "delete") == ""
    assert alter(1, None) is None
    assert alter(2, "compact") == "delete,compact", "the default is what is appended to"


@pytest.mark.parametrize(
    ("operation", "value", "after"),
    [
        (2, ",", "compact"),
        (2, ",,", "compact"),
        (2, "delete,,", "compact,delete"),
        (2, ",delete", "compact"),
        (2, "", "compact"),
        (3, ",", "compact"),
        (3, "", "compact"),
        (3, "delete,", "compact"),
        (3, "compact,", ""),
    ],
)
def test_commas_at_the_end_of_a_list_are_no_items(
    controller: ActiveController, operation: int, value: str, after: str
) -> None:
    """As Apache Kafka 4.2.1 has it: an empty item elsewhere is one, and is refused."""
    create(controller, topic("t", cleanup_policy="compact"))
    assert alter_list(controller, operation, value) == after


def test_a_list_of_a_topic_grows_from_kafkas_default_and_not_from_the_brokers(
    controller: ActiveController,
) -> None:
    """As Apache Kafka 4.2.1 has it."""
    set_config(controller, BROKER_RESOURCE, "", "log.cleanup.policy", "compact")
    create(controller, topic("t"))
    assert alter_list(controller, 2, "delete") == "delete"


def test_unknown_broker_setting_is_kept(controller: ActiveController) -> None:
    set_config(controller, BROKER_RESOURCE, "1", "plugin.key", "x")
    assert controller.image.config(BROKER_RESOURCE, "1") == {"plugin.key": "x"}


def test_what_a_client_sent_never_makes_an_answer_too_long(controller: ActiveController) -> None:
    long = "é" * 16_000
    create(controller, topic("t"))
    config = {"name": long, "config_operation": 0, "value": long}
    resources = [
        {"resource_type": type_, "resource_name": name, "configs": [config]}
        for type_, name in ((2, "t"), (2, long), (4, long))
    ]
    cases = [
        ("CreateTopics", 7, {"topics": [topic(long), topic("u", 1, 1, retention_ms=long)]}),
        ("CreateTopics", 7, {"topics": [topic("v") | {"configs": [{"name": long, "value": "1"}]}]}),
        ("CreatePartitions", 3, {"topics": [{"name": long, "count": 2, "assignments": None}]}),
        ("DeleteTopics", 6, {"topics": [{"name": long, "topic_id": bytes(16)}]}),
        ("IncrementalAlterConfigs", 1, {"resources": resources}),
    ]
    for api_name, version, request in cases:
        request["validate_only"] = False
        response = controller.handle(api_name, version, request, NOW_MS)
        assert codec.encode(f"{api_name}Response", version, response)


def test_list_does_not_grow_beyond_what_a_record_holds(controller: ActiveController) -> None:
    create(controller, topic("t"))
    name = "leader.replication.throttled.replicas"
    codes = []
    for start in (0, 3000):
        value = ",".join(f"{number}:1000000" for number in range(start, start + 2000))
        config = {"name": name, "config_operation": 2, "value": value}
        resource = {"resource_type": 2, "resource_name": "t", "configs": [config]}
        request = {"resources": [resource], "validate_only": False}
        response = controller.handle("IncrementalAlterConfigs", 1, request, NOW_MS)
        codes.append(response["responses"][0]["error_code"])
    assert codes == [0, 40]


def test_decision_too_large_for_one_batch_is_refused(controller: ActiveController) -> None:
    before = controller.committed_offset
    configs = [
        {"name": f"plugin.{number}", "config_operation": 0, "value": "x" * 32_000}
        for number in range(300)
    ]
    resource = {"resource_type": BROKER_RESOURCE, "resource_name": "1", "configs": configs}
    request = {"resources": [resource], "validate_only": False}
    response = controller.handle("IncrementalAlterConfigs", 1, request, NOW_MS)
    assert response["responses"][0]["error_code"] == 44
    assert controller.committed_offset == before


PER_IP, OVERRIDES = "max.connections.per.ip", "max.connections.per.ip.overrides"


def test_nobody_is_shut_out_without_an_exception(controller: ActiveController) -> None:
    def alter(**values: str) -> int:
        configs = [
            {"name": name, "config_operation": 0, "value": value}
            for name, value in ((PER_IP, values.get("each")), (OVERRIDES, values.get("of")))
            if value is not None
        ]
        resource = {"resource_type": BROKER_RESOURCE, "resource_name": "", "configs": configs}
        request = {"resources": [resource], "validate_only": False}
        response = controller.handle("IncrementalAlterConfigs", 1, request, NOW_MS)
        return response["responses"][0]["error_code"]

    assert alter(each="0") == INVALID_REQUEST
    assert alter(each="0", of="localhost:1") == INVALID_REQUEST
    assert alter(each="0", of="127.0.0.1:1") == 0
    assert alter(each="0") == 0


def test_internal_topics_have_the_settings_that_kafka_gives_them(
    controller: ActiveController, caplog: pytest.LogCaptureFixture
) -> None:
    create(controller, transactions_topic(BrokerConfig()))
    assert controller.image.config(TOPIC_RESOURCE, TRANSACTION_TOPIC) == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "1",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    }
    assert caplog.messages == []


def test_what_tls_and_sasl_go_by_is_taken_as_it_is_and_not_changed() -> None:
    """It was taken, and nothing came of it."""
    config = BrokerConfig(
        {
            "listeners": "SSL://127.0.0.1:9093,PLAINTEXT://127.0.0.1:9092",
            "listener.name.ssl.ssl.keystore.location": "/own",
            "ssl.truststore.location": "/all",
        }
    )

    def complaint(name: str, value: str) -> str | None:
        return listeners_complaint("1", {f"listener.name.{name}": value}, config)

    assert complaint("ssl.ssl.keystore.location", "/own") is None, "as it is: read it again"
    assert complaint("ssl.ssl.truststore.location", "/all") is None
    for name in ("ssl.ssl.keystore.location", "ssl.ssl.truststore.location"):
        found = complaint(name, "/other")
        assert found == f"Cannot update these configs dynamically: Set(listener.name.{name})"
    for name in (
        "ssl.sasl.jaas.config",
        "plaintext.ssl.keystore.location",
        "other.ssl.keystore.location",
        "ssl.max.connections",
    ):
        assert complaint(name, "5") is None


def test_what_has_no_effect_is_said_once_it_is_done(
    controller: ActiveController, caplog: pytest.LogCaptureFixture
) -> None:
    create(controller, topic("t", compression_type="zstd"), validate_only=True)
    assert caplog.messages == []
    create(controller, topic("t", compression_type="zstd", retention_ms="5"))
    set_config(controller, BROKER_RESOURCE, "", "log.cleaner.io.buffer.size", "600000")
    told = [line.partition(":")[0] + line[line.index(" It was") :] for line in caplog.messages]
    assert told == [
        "compression.type has no effect here It was set for topic t.",
        "log.cleaner.io.buffer.size has no effect here It was set for all brokers.",
    ]
