"""The controller as a whole: brokers, producer ids, restarts; its log replayed by others."""

import errno
import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from controller_at_work import (
    CLUSTER_ID,
    DIRECTORY_ID,
    NOW_MS,
    Start,
    at,
    create,
    join,
    open_controller,
    topic,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shmbroker.controller import active_controller
from shmbroker.controller.active_controller import ActiveController
from shmbroker.controller.mutation_quotas import Bucket, Mutations
from shmbroker.controller.raft.metadata_log import MetadataLog
from shmbroker.log.faults import DiskFullFault
from shmbroker.metadata.changes import (
    BrokerChanged,
    PartitionChanged,
    TopicCreated,
    TopicDeleted,
)
from shmbroker.metadata.follower import MetadataFollower
from shmbroker.metadata.image import BROKER_LOGGER_RESOURCE, TOPIC_RESOURCE, MetadataImage
from shmbroker.metadata.log_reader import MetadataLogReader
from shmbroker.metadata.topic_names import OFFSETS_TOPIC
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.wire.error_codes import (
    BROKER_ID_NOT_REGISTERED,
    KAFKA_STORAGE_ERROR,
    NONE,
    STALE_BROKER_EPOCH,
)
from tests.support.examples import examples
from tests.support.steps import finish_counted


def follower_of(directory: Path) -> MetadataFollower:
    return MetadataFollower(MetadataLogReader(str(directory / "__cluster_metadata-0")), CLUSTER_ID)


def test_first_start_formats_the_directory(start: Start, tmp_path: Path) -> None:
    controller = start(min_insync_replicas="1")
    assert controller.image.features["metadata.version"] == 29
    assert controller.image.config(4, "") == {"min.insync.replicas": "1"}
    assert (controller.epoch, controller.image.cluster_id) == (1, CLUSTER_ID)
    assert (tmp_path / "bootstrap.checkpoint").stat().st_size == 411
    assert controller.image.offset == controller.committed_offset == 10


def test_second_start_formats_nothing(start: Start, tmp_path: Path) -> None:
    start().close()
    before = (tmp_path / "bootstrap.checkpoint").read_bytes()
    controller = start()
    assert (controller.epoch, controller.committed_offset) == (2, 11)
    assert (tmp_path / "bootstrap.checkpoint").read_bytes() == before


def test_broker_is_fenced_until_it_works(start: Start) -> None:
    controller = start()
    epoch = controller.membership.register_broker(
        1, "127.0.0.1", 9092, b"i" * 16, [DIRECTORY_ID], NOW_MS
    )
    broker = controller.image.brokers[1]
    assert (broker.is_fenced, broker.broker_epoch, broker.port) == (True, epoch, 9092)
    assert (broker.host, broker.rack, broker.directories) == ("127.0.0.1", None, (DIRECTORY_ID,))
    controller.membership.unfence_broker(1, NOW_MS)
    assert not controller.image.brokers[1].is_fenced
    before = controller.committed_offset
    controller.membership.unfence_broker(1, NOW_MS)
    controller.membership.fence_broker(9, NOW_MS)
    assert controller.committed_offset == before, "nothing changed, nothing is written"


def test_broker_that_starts_again_gets_a_new_epoch(controller: ActiveController) -> None:
    first = controller.image.brokers[1].broker_epoch
    controller.create_topics_auto(["t"], NOW_MS)
    assert join(controller, 1) > first
    assert len(controller.image.brokers) == 1


def test_fenced_broker_keeps_its_partitions(controller: ActiveController) -> None:
    controller.create_topics_auto(["t"], NOW_MS)
    controller.membership.fence_broker(1, NOW_MS)
    assert controller.image.brokers[1].is_fenced
    (partition,) = controller.image.topics_by_name["t"].partitions
    assert (partition.leader_id, partition.leader_epoch) == (1, 0)


def test_returning_broker_leads_what_kafka_left_without_leader(start: Start) -> None:
    controller = start(shmbroker_io_workers="2")
    for broker_id in (1, 2):
        join(controller, broker_id)
    both = {"broker_ids": [1, 2], "partition_index": 0}
    request = {
        "topics": [
            {"name": name, "num_partitions": -1, "replication_factor": -1, "configs": []}
            | {"assignments": [assignment]}
            for name, assignment in (
                ("alone", {"broker_ids": [1], "partition_index": 0}),
                ("in-sync", both),
                ("behind", both),
                ("nobody", both),
            )
        ],
        "validate_only": False,
    }
    controller.handle("CreateTopics", 7, request, NOW_MS)
    controller.membership.fence_broker(1, NOW_MS)
    changes = [
        (
            "PartitionChangeRecord",
            2,
            {
                "partition_id": 0,
                "topic_id": controller.image.topics_by_name[name].topic_id,
                "isr": isr,
                "leader": -1,
            },
        )
        for name, isr in (("alone", []), ("in-sync", [1, 2]), ("behind", [2]), ("nobody", []))
    ]
    controller.log.commit(changes, NOW_MS)
    leaders = {
        name: controller.image.topics_by_name[name].partitions[0].leader_id
        for name in ("alone", "in-sync", "behind", "nobody")
    }
    assert set(leaders.values()) == {-1}
    controller.membership.unfence_broker(1, NOW_MS)
    found = {name: t.partitions[0] for name, t in controller.image.topics_by_name.items()}
    assert (found["alone"].leader_id, found["alone"].in_sync_replicas) == (1, (1,))
    assert (found["in-sync"].leader_id, found["in-sync"].in_sync_replicas) == (1, (1, 2))
    assert (found["behind"].leader_id, found["nobody"].leader_id) == (2, -1)
    assert found["alone"].leader_epoch == 2, "every change of leader is a new epoch"
    before = controller.committed_offset
    controller.membership.unfence_broker(1, NOW_MS)
    assert controller.committed_offset == before


def test_producer_ids_are_never_given_twice(start: Start) -> None:
    controller = start()
    epoch = join(controller, 1)
    assert controller.allocate_producer_ids(1, epoch, NOW_MS) == (0, 0, 1000)
    assert controller.allocate_producer_ids(1, epoch, NOW_MS) == (0, 1000, 1000)
    controller.close()
    controller = start()
    epoch = join(controller, 1)
    assert controller.allocate_producer_ids(1, epoch, NOW_MS) == (0, 2000, 1000)


def test_producer_ids_are_for_registered_brokers_of_this_epoch(
    controller: ActiveController,
) -> None:
    epoch = controller.image.brokers[1].broker_epoch
    assert controller.allocate_producer_ids(2, epoch, NOW_MS) == (102, -1, 0)
    assert controller.allocate_producer_ids(1, epoch - 1, NOW_MS) == (77, -1, 0)


def test_auto_creation_takes_the_defaults(start: Start) -> None:
    controller = start(num_partitions="3")
    join(controller, 1)
    assert controller.create_topics_auto(["t"], NOW_MS) == [(0, None)]
    assert len(controller.image.topics_by_name["t"].partitions) == 3
    assert controller.create_topics_auto(["t"], NOW_MS)[0][0] == 36
    assert controller.create_topics_auto(["no good"], NOW_MS)[0][0] == 17


def test_offsets_topic_is_created_as_kafka_does(controller: ActiveController) -> None:
    assert controller.create_topics_auto([OFFSETS_TOPIC], NOW_MS) == [(0, None)]
    topic = controller.image.topics_by_name[OFFSETS_TOPIC]
    assert topic.is_internal
    assert len(topic.partitions) == 50
    assert controller.image.config(TOPIC_RESOURCE, OFFSETS_TOPIC) == {
        "compression.type": "producer",
        "cleanup.policy": "compact",
        "segment.bytes": "104857600",
    }


def test_full_disk_fails_the_request_alone(
    controller: ActiveController, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise DiskFullFault(os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(MetadataLog, "append", full)
        ((code, message),) = controller.create_topics_auto(["t"], NOW_MS)
        assert (code, os.strerror(errno.ENOSPC) in message) == (56, True)
        epoch = controller.image.brokers[1].broker_epoch
        assert controller.allocate_producer_ids(1, epoch, NOW_MS) == (56, -1, 0)
        assert controller.create_topics_auto(["no good"], NOW_MS)[0][0] == 17
    assert "t" not in controller.image.topics_by_name
    assert controller.create_topics_auto(["t"], NOW_MS) == [(0, None)]


def test_log_level_changes_only_where_its_resource_says_that_it_has(
    controller: ActiveController, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.create_topics_auto(["t"], NOW_MS)
    changed: list[Mapping[str, str | None]] = []
    controller.on_log_levels = changed.append

    def alter_both() -> list[int]:
        """Change a topic and a logger in one request; their errors."""
        resources = [
            {
                "resource_type": type_,
                "resource_name": name,
                "configs": [{"name": key, "config_operation": 0, "value": value}],
            }
            for type_, name, key, value in (
                (TOPIC_RESOURCE, "t", "retention.ms", "5"),
                (BROKER_LOGGER_RESOURCE, "1", "root", "ERROR"),
            )
        ]
        request = {"resources": resources, "validate_only": False}
        answer = controller.handle("IncrementalAlterConfigs", 1, request, NOW_MS)
        return [row["error_code"] for row in answer["responses"]]

    def full(*_: object) -> int:
        raise DiskFullFault(os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(MetadataLog, "append", full)
        assert (alter_both(), changed) == ([KAFKA_STORAGE_ERROR] * 2, [])
    assert (alter_both(), changed) == ([NONE] * 2, [{"root": "ERROR"}])


def test_transaction_its_writer_left_open_is_aborted(start: Start, tmp_path: Path) -> None:
    controller = start()
    join(controller, 1)
    topic = ("TopicRecord", 0, {"name": "half", "topic_id": b"h" * 16})
    controller.log.voter.append([("BeginTransactionRecord", 0, {"name": "x"}), topic], NOW_MS)
    controller.close()
    controller = start()
    controller.create_topics_auto(["t"], NOW_MS)
    assert set(controller.image.topics_by_name) == {"t"}
    follower = follower_of(tmp_path)
    follower.catch_up(controller.committed_offset)
    assert follower.image == controller.image


NAMES = st.sampled_from(["a", "b", "c.d", "c_d", OFFSETS_TOPIC])
CONFIGS = st.sampled_from([("retention.ms", "5"), ("retention.ms", None), ("flush.ms", "7")])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), NAMES, st.integers(1, 3)),
        st.tuples(st.just("delete"), NAMES),
        st.tuples(st.just("grow"), NAMES, st.integers(1, 5)),
        st.tuples(st.just("alter"), NAMES, CONFIGS),
        st.tuples(st.sampled_from(["fence", "unfence", "join"]), st.integers(1, 2)),
        st.tuples(st.sampled_from(["ids", "restart", "follow"])),
    ),
    max_size=14,
)


class World:
    """A controller, one follower that reads along, and a model of what the follower was told."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = BrokerConfig({"shmbroker.io.workers": "2"})
        self.controller = self.open()
        self.follower = follower_of(directory)
        self.told: dict[bytes, list[tuple]] = {}
        self.brokers: dict[int, bool] = {}

    def open(self) -> ActiveController:
        return open_controller(str(self.directory), CLUSTER_ID, self.config, NOW_MS)

    def take(self, kind: str, *args) -> None:
        controller = self.controller
        if kind == "create":
            topic = {"name": args[0], "num_partitions": args[1], "replication_factor": 1}
            self.ask("CreateTopics", {"topics": [topic | {"assignments": [], "configs": []}]})
        elif kind == "delete":
            self.ask("DeleteTopics", {"topics": [{"name": args[0], "topic_id": bytes(16)}]})
        elif kind == "grow":
            topic = {"name": args[0], "count": args[1], "assignments": None}
            self.ask("CreatePartitions", {"topics": [topic]})
        elif kind == "alter":
            key, value = args[1]
            config = {"name": key, "config_operation": int(value is None), "value": value}
            resource = {"resource_type": 2, "resource_name": args[0], "configs": [config]}
            self.ask("IncrementalAlterConfigs", {"resources": [resource]})
        elif kind == "fence":
            controller.membership.fence_broker(args[0], NOW_MS)
        elif kind == "unfence":
            controller.membership.unfence_broker(args[0], NOW_MS)
        elif kind == "join":
            join(controller, args[0])
        elif kind == "ids" and 1 in controller.image.brokers:
            controller.allocate_producer_ids(1, controller.image.brokers[1].broker_epoch, NOW_MS)
        elif kind == "restart":
            controller.close()
            self.controller = self.open()
        elif kind == "follow":
            self.follow()

    def ask(self, api_name: str, request: dict) -> None:
        version = {"CreateTopics": 7, "DeleteTopics": 6, "CreatePartitions": 3}.get(api_name, 1)
        self.controller.handle(api_name, version, {"validate_only": False} | request, NOW_MS)

    def follow(self) -> None:
        for change in self.follower.catch_up(self.controller.committed_offset):
            if isinstance(change, TopicCreated):
                assert change.topic.topic_id not in self.told
                self.told[change.topic.topic_id] = list(change.topic.partitions)
            elif isinstance(change, TopicDeleted):
                del self.told[change.topic.topic_id]
            elif isinstance(change, PartitionChanged):
                topic, old, new = change
                partitions = self.told[topic.topic_id]
                if old is None:
                    assert len(partitions) == new.partition
                    partitions.append(new)
                else:
                    assert partitions[new.partition] == old
                    partitions[new.partition] = new
            elif isinstance(change, BrokerChanged):
                assert change.after is not None
                self.brokers[change.after.broker_id] = change.after.is_fenced


@settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=STEPS)
def test_everybody_who_reads_the_log_has_the_same_image(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple]
) -> None:
    world = World(tmp_path_factory.mktemp("node"))
    join(world.controller, 1)
    for step in steps:
        world.take(*step)
    world.follow()
    image = world.controller.image
    assert world.follower.image == image
    late = follower_of(world.directory)
    late.catch_up(world.controller.committed_offset)
    assert late.image == image
    assert world.told == {id_: list(t.partitions) for id_, t in image.topics_by_id.items()}
    assert world.brokers == {id_: broker.is_fenced for id_, broker in image.brokers.items()}
    check_whole(image)
    for reader in (late.reader, world.follower.reader):
        reader.close()
    world.controller.close()


def check_whole(image: MetadataImage) -> None:
    assert {t.name: t for t in image.topics_by_id.values()} == image.topics_by_name
    for made in image.topics_by_id.values():
        assert [p.partition for p in made.partitions] == list(range(len(made.partitions)))
    for type_, name in image.configs:
        assert image.configs[type_, name]
        assert type_ != TOPIC_RESOURCE or name in image.topics_by_name


@pytest.mark.oracle
def test_kafkas_dump_tool_reads_the_log(start: Start, tmp_path: Path) -> None:
    """KAFKA_DUMP: the command that runs kafka.tools.DumpLogSegments on a file."""
    command = os.environ.get("KAFKA_DUMP")
    if not command:
        pytest.skip("KAFKA_DUMP names no command")
    controller = start()
    epoch = join(controller, 1)
    controller.create_topics_auto([OFFSETS_TOPIC], NOW_MS)
    controller.allocate_producer_ids(1, epoch, NOW_MS)
    controller.membership.fence_broker(1, NOW_MS)
    controller.close()
    for name, count in (
        ("__cluster_metadata-0/00000000000000000000.log", 68),
        ("bootstrap.checkpoint", 8),
    ):
        words = [*shlex.split(command), str(tmp_path / name), "--cluster-metadata-decoder"]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout.count("| offset: ") == count
        assert "isvalid: false" not in done.stdout
        assert "Exception" not in done.stdout + done.stderr


def test_broker_that_is_going_to_stop_hands_over_and_joins_nothing(start: Start) -> None:
    controller = start(shmbroker_io_workers="3")
    epochs = {number: join(controller, number) for number in (1, 2, 3)}
    as_usual = {"num_partitions": -1, "replication_factor": -1, "configs": []}
    for name, brokers in (("shared", [1, 2, 3]), ("alone", [1])):
        assignment = {"broker_ids": brokers, "partition_index": 0}
        create(controller, as_usual | {"name": name, "assignments": [assignment]})
    assert controller.membership.begin_shutdown(9, 0, NOW_MS) == BROKER_ID_NOT_REGISTERED
    assert controller.membership.begin_shutdown(1, epochs[1] + 1, NOW_MS) == STALE_BROKER_EPOCH
    assert controller.membership.begin_shutdown(1, epochs[1], NOW_MS) == NONE
    shared, alone = at(controller, "shared"), at(controller, "alone")
    assert (shared.leader_id, shared.in_sync_replicas) == (2, (2, 3))
    assert (alone.leader_id, alone.in_sync_replicas) == (1, (1,))
    broker = controller.image.brokers[1]
    assert broker.in_controlled_shutdown and not broker.is_fenced
    end = controller.committed_offset
    assert controller.membership.begin_shutdown(1, epochs[1], NOW_MS) == NONE
    assert controller.committed_offset == end, "once is enough"
    join(controller, 1)
    assert controller.image.brokers[1].is_active


def test_what_is_decided_again_counts_once(
    controller: ActiveController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(active_controller, "STEP_RECORDS", 2)
    bucket = Bucket(10.0, 0.0)
    rows = [{"name": "t", "count": 5, "assignments": None}]
    create(controller, topic("t", 1))
    steps = controller.handle_in_steps(
        "CreatePartitions",
        3,
        {"topics": rows, "validate_only": False},
        NOW_MS,
        mutations=Mutations(bucket, 1.0, is_strict=True),
    )
    next(steps)
    assert bucket.tokens == 6.0
    between = [{"name": "t", "count": 3, "assignments": None}]
    controller.handle("CreatePartitions", 3, {"topics": between, "validate_only": False}, NOW_MS)
    answer = finish_counted(steps)[0]
    assert [row["error_code"] for row in answer["results"]] == [0]
    assert bucket.tokens == 8.0
    assert len(controller.image.topics_by_name["t"].partitions) == 5


def test_a_topic_that_grows_goes_on_round_the_brokers_from_where_it_began(
    three: ActiveController,
) -> None:
    create(three, topic("first", 1), topic("t", 1))
    rows = [{"name": "t", "count": 6, "assignments": None}]
    three.handle("CreatePartitions", 3, {"topics": rows, "validate_only": False}, NOW_MS)
    partitions = three.image.topics_by_name["t"].partitions
    assert [each.leader_id for each in partitions] == [2, 3, 1, 2, 3, 1]
