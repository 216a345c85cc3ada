"""Consumer groups of the new protocol in a coordinator: stored, loaded, timed."""

from pathlib import Path

import pytest

from shmbroker.errors import StorageFault
from shmbroker.groups import group_log
from shmbroker.groups.consumer.records import encoded
from shmbroker.metadata.changes import ConfigChanged
from shmbroker.metadata.image import GROUP_RESOURCE, TopicImage
from shmbroker.wire import error_codes
from tests.unit.groups.office_at_work import Office, as_loaded, office, owned

__all__ = ["office"]

GOLDEN = Path(__file__).with_name("kafka_consumer_group.txt")


def test_a_group_is_the_same_after_a_restart(office: Office) -> None:
    office.enter("a", instance_id="i")
    office.enter("b", subscribed_topic_names=[], subscribed_topic_regex="t+")
    office.beat("a", 1)
    before = office.groups.consumers.describe("g")
    office.restart()
    assert office.groups.consumers.describe("g") == before
    assert office.beat("b", 1)["member_epoch"] == 2
    office.restart()
    assert office.beat("a", 1, topic_partitions=owned(0, 1))["member_epoch"] == 2


@pytest.mark.parametrize("jump_ms", (-3_600_000, 3_600_000))
def test_expressions_are_looked_at_by_a_clock_that_does_not_jump(
    office: Office, jump_ms: int
) -> None:
    """In the log, their time is the wall clock's."""
    office.wall_ahead_ms = 1_000
    office.enter("a", subscribed_topic_names=[], subscribed_topic_regex="t+")
    looked_ms = office.now_ms
    assert [each.looked_ms for each in office.group.regexes.resolved.values()] == [looked_ms]
    office.wall_ahead_ms += jump_ms
    office.restart()
    assert [each.looked_ms for each in office.group.regexes.resolved.values()] == [
        looked_ms - jump_ms
    ]


def test_the_silent_are_fenced_by_the_timer(office: Office) -> None:
    office.enter("a")
    office.enter("b")
    office.wait(40_000)
    assert "error_code" not in office.beat("b", 2)
    office.wait(5000)
    assert list(office.group.members) == ["b"]
    office.restart()
    assert list(office.group.members) == ["b"]
    office.wait(45_000)
    assert office.group.state == "Empty"
    office.restart()
    assert office.group.epoch == 4


def test_a_heartbeat_that_can_not_be_stored_changes_nothing(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.enter("a")
    log = office.partitions[0].log

    def fail(*_: object) -> None:
        raise StorageFault("full")

    with monkeypatch.context() as patch:
        patch.setattr(type(log), "append", fail)
        assert office.enter("b")["error_code"] == error_codes.NOT_COORDINATOR
        assert "error_code" not in office.beat("a", 1), "nothing to store"
        office.wait(50_000)
        assert list(office.group.members) == ["a"]
    office.wait(1000)
    assert office.group.members == {}


def test_a_group_has_settings_of_its_own(office: Office) -> None:
    office.enter("a")
    image = office.groups.consumers.topics.image
    image.configs[GROUP_RESOURCE, "g"] = {"consumer.heartbeat.interval.ms": "7000"}
    office.groups.consumers.on_image(image, [ConfigChanged(GROUP_RESOURCE, "g")])
    assert office.beat("a", 1)["heartbeat_interval_ms"] == 7000


@pytest.mark.parametrize("was", ["nothing", "classic", "loaded"])
def test_settings_that_a_group_has_before_it_is_there_count(office: Office, was: str) -> None:
    if was == "classic":
        office.stable()
    elif was == "loaded":
        office.enter("a")
        office.restart(is_patient=False)
    configs = office.groups.consumers.topics.image.configs
    configs[GROUP_RESOURCE, "g"] = {
        "consumer.heartbeat.interval.ms": "7000",
        "consumer.session.timeout.ms": "50000",
    }
    while office.groups.loading:
        office.groups.run_due()
    assert office.enter("a")["heartbeat_interval_ms"] == 7000
    assert office.group.session_timeout_ms == 50_000


def test_a_group_that_is_loaded_still_hears_of_settings_of_its_own(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shmbroker.groups.coordinator.REPLAYS_PER_STEP", 1)
    office.enter("a")
    office.restart(is_patient=False)
    (shard,) = office.groups.shards.values()
    while not shard.groups:
        office.groups.run_due()
    assert office.groups.loading
    image = office.groups.consumers.topics.image
    image.configs[GROUP_RESOURCE, "g"] = {"consumer.heartbeat.interval.ms": "7000"}
    office.groups.consumers.on_image(image, [ConfigChanged(GROUP_RESOURCE, "g")])
    while office.groups.loading:
        office.groups.run_due()
    assert office.beat("a", 1)["heartbeat_interval_ms"] == 7000


def test_a_deleted_group_leaves_nothing(office: Office) -> None:
    office.enter("a", subscribed_topic_regex="t")
    assert office.groups.removal.delete("g") == error_codes.NON_EMPTY_GROUP
    office.beat("a", -1)
    assert office.groups.removal.delete("g") == 0
    office.restart()
    assert office.groups.groups == {}
    assert office.groups.consumers.describe("g")[0] == error_codes.GROUP_ID_NOT_FOUND


def test_a_change_that_no_segment_could_hold_changes_nothing(office: Office) -> None:
    office.enter("a")
    before = as_loaded(office)
    office.partitions[0].segment_bytes_max = group_log.BATCH_ROOM + 300
    assert office.enter("b")["error_code"] == error_codes.UNKNOWN_SERVER_ERROR
    assert as_loaded(office) == before


def test_while_it_loads_members_are_told_to_wait(office: Office) -> None:
    office.enter("a")
    office.restart(is_patient=False)
    assert office.beat("a", 1)["error_code"] == error_codes.COORDINATOR_LOAD_IN_PROGRESS


def golden() -> tuple[str, bytes, list[tuple[bytes, bytes | None]]]:
    """(group id, topic id, records)."""
    lines = [line.split() for line in GOLDEN.read_text().splitlines() if line[0] != "#"]
    group_id, topic_id = lines[0]
    return group_id, bytes.fromhex(topic_id), [
        (bytes.fromhex(key), None if value == "-" else bytes.fromhex(value))
        for key, value in lines[1:]
    ]  # fmt: skip


def test_records_are_encoded_as_kafka_encodes_them() -> None:
    _, _, records = golden()
    for key, value in records:
        found = group_log.decode(key, value)
        assert found is not None
        record_type, name, content = found
        assert encoded((record_type, name, None if value is None else content)) == (key, value)


def test_a_log_of_kafka_is_loaded(office: Office) -> None:
    group_id, topic_id, records = golden()
    office.topic = TopicImage("gold", topic_id, (None,) * 3)  # type: ignore[arg-type]
    assert group_log.append(office.partitions[0], records, office.now_ms) == 0
    office.restart()
    _, row = office.groups.consumers.describe(group_id)
    assert row is not None
    members = {each["member_id"]: each for each in row["members"]}
    assert members.keys() == {"anna", "bert", "carl"}
    assert members["anna"]["instance_id"] == "i-1"
    assert members["bert"]["subscribed_topic_regex"] == "gol[d]"
    assert members["carl"]["member_type"] == 0
    assert office.groups.groups[group_id].static_members == {"i-1": "anna"}
    more = {"group_id": group_id, "instance_id": "i-1"}
    epoch = members["anna"]["member_epoch"]
    assert office.beat("anna", epoch, **more).get("error_code", 0) == 0
