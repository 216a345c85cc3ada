"""Tiered storage with real processes, clients and stores, and with kills in between."""

import os
import random
import shutil
import signal
import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from shmbroker.testing.broker import Broker
from shmbroker.tier.manifest import split_key
from shmbroker.tier.object_store import ObjectStore, open_store
from shmbroker.wire.error_codes import KAFKA_STORAGE_ERROR
from tests.support.acknowledged_load import Load, read_numbers
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until
from tests.unit.tier.conftest import s3_endpoint  # noqa: F401

TOPIC = "old"
MIB = 1 << 20
SETTINGS = {
    "remote.storage.enable": "true",
    "segment.bytes": str(MIB),
    "local.retention.bytes": str(MIB),
}
QUICK = (
    "--set", "remote.log.storage.system.enable=true",
    "--set", "log.retention.check.interval.ms=300",
    "--set", "remote.log.manager.task.interval.ms=100",
)  # fmt: skip
KINDS = ("log", "index", "timeindex", "snapshot", "leader-epoch-checkpoint", "manifest")


def create(broker: Broker, topic: str = TOPIC, replicas: int = 1, **settings: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    settings = {name.replace("_", "."): value for name, value in settings.items()}
    new = NewTopic(topic, 1, replicas, config=SETTINGS | settings)
    admin.create_topics([new])[topic].result(30)


def produce(broker: Broker, count: int, first: int = 0, topic: str = TOPIC) -> int:
    """Records with their number as key, a second apart, 1,000 bytes each; the first timestamp."""
    start = int(time.time() * 1000) - 3_600_000 * 10
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 5, "log_level": 0})
    noise = random.Random(count).randbytes(1000)
    for number in range(first, first + count):
        producer.produce(topic, noise, b"%d" % number, timestamp=start + number * 1000)
        producer.poll(0)
    producer.flush(30)
    return start


def local_segments(broker: Broker, topic: str = TOPIC, node: int = 1) -> list[int]:
    names = os.listdir(broker.data / f"node-{node}" / f"{topic}-0")
    return sorted(int(name[:20]) for name in names if name.endswith(".log"))


def read(broker: Broker, count: int, start: int = 0, topic: str = TOPIC) -> None:
    """Every record from `start` on, in order, with its own key."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "readers",
            "check.crcs": True,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, start)])
    expected = start
    deadline = time.monotonic() + 60
    while expected < count:
        assert time.monotonic() < deadline, f"{expected} of {count} were read"
        for message in consumer.consume(1000, 0.5):
            assert message.error() is None, message.error()
            assert message.offset() == expected
            assert message.key() == b"%d" % expected
            expected += 1
    consumer.close()


def offsets(broker: Broker, *timestamps: int, topic: str = TOPIC) -> list[int]:
    found = []
    with RawClient(broker.address) as client:
        for timestamp in timestamps:
            row = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
            body = {
                "replica_id": -1,
                "isolation_level": 0,
                "topics": [{"name": topic, "partitions": [row]}],
                "timeout_ms": 5000,
            }
            answer = client.ask("ListOffsets", 11, body)["topics"][0]["partitions"][0]
            assert answer["error_code"] == 0
            found.append(answer["offset"])
    return found


def delete_records(broker: Broker, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    for future in admin.delete_records([TopicPartition(TOPIC, 0, before)]).values():
        assert future.result(30).low_watermark == before


def delete_topic(broker: Broker, topic: str = TOPIC) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    admin.delete_topics([topic])[topic].result(30)


def alter(broker: Broker, topic: str = TOPIC, **settings: str) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    admin.incremental_alter_configs([resource])[resource].result(30)


class Stored:
    """What lies in a broker's store, by way of the store's own interface."""

    def __init__(self, broker: Broker, store: ObjectStore) -> None:
        self.store = store
        text = (broker.data / "node-1" / "meta.properties").read_text()
        lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        self.prefix = f"{lines['cluster.id']}/"

    def keys(self) -> list[str]:
        return sorted(key for key, _ in self.store.list_objects(self.prefix))

    def segments(self) -> list[tuple[int, int]]:
        """(base, end offset) of complete segments."""
        return [
            (int(name[:20]), int(name[21:41]))
            for name in (key.rpartition("/")[2] for key in self.keys())
            if name.endswith(".manifest")
        ]

    def log_sizes(self) -> list[int]:
        """Bytes of the segments' logs, the oldest first."""
        objects = sorted(self.store.list_objects(self.prefix))
        return [size for key, size in objects if key.endswith(".log")]

    def is_whole(self) -> bool:
        """Every segment has all of its objects, and there is nothing else."""
        return not self.fragments()

    def fragments(self) -> dict[str, set[str]]:
        """The kinds of objects of segments that are not whole, by their names."""
        stems: dict[str, set[str]] = {}
        for key in self.keys():
            stem, kind = split_key(key) or (key, "")
            stems.setdefault(stem, set()).add(kind)
        return {stem: kinds for stem, kinds in stems.items() if kinds != set(KINDS)}


def directory_of(broker: Broker) -> Stored:
    return Stored(broker, open_store(f"file://{broker.data}/tier-store"))


@pytest.fixture(params=["directory", "s3"])
def tiered(request: pytest.FixtureRequest) -> Iterator[tuple[Broker, Stored]]:
    """A broker and its store, of either kind."""
    if request.param == "directory":
        with Broker(*QUICK) as broker:
            yield broker, directory_of(broker)
        return
    boto3 = pytest.importorskip("boto3")
    endpoint = request.getfixturevalue("s3_endpoint")
    bucket = f"b{uuid.uuid4().hex}"
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=bucket)
    url = f"s3://{bucket}/brokers"
    flags = (
        "--set",
        f"shmbroker.tier.store={url}",
        "--set",
        f"shmbroker.tier.s3.endpoint={endpoint}",
    )
    with Broker(*QUICK, *flags) as broker:
        yield broker, Stored(broker, open_store(url, endpoint))


def test_log_is_one_over_both_tiers(tiered: tuple[Broker, Stored]) -> None:
    broker, stored = tiered
    create(broker)
    assert offsets(broker, -2, -4, -5, -6) == [0, 0, -1, 0]
    start = produce(broker, 8000)
    wait_until(lambda: len(local_segments(broker)) <= 2, "local retention")
    active = local_segments(broker)[-1]
    wait_until(lambda: offsets(broker, -6) == [active], "copies of all but the active segment")
    first_local = local_segments(broker)[0]
    wait_until(lambda: offsets(broker, -4) == [first_local], "the local start")
    assert offsets(broker, -2, -1, -5) == [0, 8000, active - 1]
    assert stored.is_whole()
    read(broker, 8000)
    read(broker, 3500, 3217)
    times = [0, start, start + 1, start + 1_234_000, start + 7_999_000]
    assert offsets(broker, *times) == [0, 0, 1, 1234, 7999]
    assert offsets(broker, start + 7_999_001, -3) == [-1, 7999]
    with RawClient(broker.address) as client:
        log = client.ask("DescribeLogDirs", 4, {"topics": None})["results"][0]["topics"]
        (size,) = [row["partition_size"] for one in log if one["name"] == TOPIC
                   for row in one["partitions"]]  # fmt: skip
        assert size < 2.5 * MIB
    # What nobody may read any more goes in the store too.
    delete_records(broker, 2500)
    wait_until(lambda: min(stored.segments())[1] > 2500, "deletion of copies")
    wait_until(stored.is_whole, "all of them")
    assert offsets(broker, -2, start) == [2500, 2500]
    read(broker, 8000, 2500)
    # … by total retention …
    alter(broker, retention_bytes=str(3 * MIB), local_retention_bytes="0")
    wait_until(lambda: offsets(broker, -2)[0] > 2500, "retention of copies")
    wait_until(lambda: sum(stored.log_sizes()[1:]) < 3 * MIB, "deletion of what is past it")
    # (the active segment is rolled for it, and copied)
    wait_until(lambda: local_segments(broker) == [8000], "everything to be in the store alone")
    read(broker, 8000, offsets(broker, -2)[0])
    assert broker.stop() == 0
    broker.start()
    assert offsets(broker, -2, -1, -4) == [offsets(broker, -2)[0], 8000, 8000]
    read(broker, 8000, offsets(broker, -2)[0])
    # … and with the topic.
    delete_topic(broker)
    wait_until(lambda: stored.keys() == [], "an empty store")
    assert "ERROR" not in broker.log


VICTIMS = ("tier-1", "io-worker-1", "all")


def kill(broker: Broker, title: str) -> None:
    os.kill(broker.children()[title], signal.SIGKILL)


@pytest.mark.parametrize("seed", range(int(os.environ.get("TIERING_SEEDS", "1"))))
def test_nothing_is_lost_whoever_is_killed(seed: int) -> None:
    """Records come, segments go to and fro, and processes die at random moments."""
    source = random.Random(seed)
    with Broker(*QUICK) as broker:
        create(broker)
        load = Load(broker.address, TOPIC, partitions=1, value_bytes=300)
        for victim in source.sample(VICTIMS, len(VICTIMS)):
            copies = len(directory_of(broker).segments())
            wait_until(
                lambda copies=copies: len(directory_of(broker).segments()) > copies, "a copy"
            )
            time.sleep(source.random() * 0.2)  # not for something to happen: to be anywhere
            if victim == "all":
                broker.kill()
                broker.start()
            else:
                wait_until(lambda victim=victim: victim in broker.children(), victim)
                kill(broker, victim)
        load.finish()
        stored = directory_of(broker)
        wait_until(lambda: len(local_segments(broker)) <= 2, "local retention", 60)
        wait_until(stored.is_whole, lambda: f"these to be whole or gone: {stored.fragments()}")
        (numbers,) = read_numbers(broker.address, TOPIC, 1)
        assert numbers == sorted(set(numbers))
        assert set(load.acked) <= set(numbers)
        # A deletion that is killed is finished, by whoever comes next.
        delete_topic(broker)
        kill(broker, "tier-1")
        broker.kill()
        broker.start()
        wait_until(lambda: stored.keys() == [], "an empty store")


def test_store_that_fails_costs_time_and_damage_is_not_served() -> None:
    with Broker(*QUICK) as broker:
        create(broker)
        produce(broker, 3000)
        wait_until(lambda: len(local_segments(broker)) <= 2, "local retention")
        store = broker.data / "tier-store"
        away = broker.data / "away"
        store.rename(away)
        store.write_text("in the way")
        produce(broker, 3000, 3000)
        wait_until(lambda: "the remote store fails" in broker.log, "a line about it")
        kept = local_segments(broker)
        assert len(kept) > 2, "what is not in the store stays"
        read(broker, 6000, kept[0])
        store.unlink()
        away.rename(store)
        wait_until(lambda: len(local_segments(broker)) <= 2, "copies to go on")
        wait_until(lambda: "the remote store answers again" in broker.log, "the end of it")
        read(broker, 6000)
        assert broker.log.count("the remote store fails") == 1
        # Damage is refused, and costs the segment that it is in.
        (file,) = store.rglob(f"{0:020d}-*.log")
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        assert broker.stop() == 0  # or the good bytes would still be in the cache
        broker.start()
        with RawClient(broker.address) as client:
            wait_until(
                lambda: client.fetch(TOPIC, 0, 0)["error_code"] == KAFKA_STORAGE_ERROR,
                "the damage to be seen",
            )
        wait_until(lambda: "wrong CRC" in broker.log, "its line")
        read(broker, 6000, 1500)


def test_nothing_is_copied_under_a_mount_point_that_is_bare() -> None:
    with Broker(*QUICK) as broker:
        create(broker, **{"local.retention.bytes": "-2", "local.retention.ms": "-2"})
        produce(broker, 3000)
        store = broker.data / "tier-store"
        wait_until(lambda: list(store.rglob("*.manifest")), "a copy")
        assert broker.stop() == 0
        away = broker.data / "away"
        store.rename(away)
        store.mkdir()
        broker.start()
        assert local_segments(broker)[0] == 0, "it is here as a whole"
        produce(broker, 3000, 3000)
        wait_until(lambda: "is it mounted?" in broker.log, "a line about it")
        read(broker, 6000)
        assert not list(store.rglob("*"))
        before = set(away.rglob("*.manifest"))
        store.rmdir()
        away.rename(store)
        wait_until(lambda: len(list(store.rglob("*.manifest"))) > len(before), "copies to go on")


def test_a_damaged_manifest_is_a_gap_that_is_named_and_not_skipped() -> None:
    with Broker(*QUICK) as broker:
        create(broker)
        produce(broker, 6000)
        wait_until(lambda: len(local_segments(broker)) <= 2, "local retention")
        store = broker.data / "tier-store"
        manifests = sorted(store.rglob("*.manifest"))
        damaged = manifests[1]
        start, end = (int(part) for part in damaged.name.split("-")[:2])
        whole = damaged.read_bytes()
        damaged.write_bytes(whole[:-3])
        assert broker.stop() == 0
        broker.start()
        line = f"neither here nor whole in the remote store are offsets {start} to {end - 1}"
        wait_until(lambda: line in broker.log, "its line")
        assert offsets(broker, -2)[0] == 0
        with RawClient(broker.address) as client:
            wait_until(lambda: client.fetch(TOPIC, 0, 0)["records"], "what is before it")
            for offset in (start, end - 1):
                assert client.fetch(TOPIC, offset, 0)["error_code"] == KAFKA_STORAGE_ERROR
        read(broker, 6000, end)
        damaged.write_bytes(whole)
        kill(broker, "tier-1")
        kill(broker, "io-worker-1")
        read(broker, 6000)


def test_total_retention_waits_for_copies() -> None:
    with Broker(*QUICK) as broker:
        store = broker.data / "tier-store"
        store.write_text("in the way")
        create(broker, retention_bytes=str(2 * MIB))
        produce(broker, 6000)
        wait_until(lambda: "the remote store fails" in broker.log, "a line about it")
        # Passes of retention have come by when another topic has lost its segments.
        for topic in ("passes", "again"):
            plain = {"retention.bytes": str(MIB), "remote.storage.enable": "false"}
            create(broker, topic, **plain)
            produce(broker, 4000, topic=topic)
            wait_until(lambda topic=topic: local_segments(broker, topic)[0], "retention")
        assert local_segments(broker)[0] == 0, "what is not in the store stays"
        read(broker, 6000)
        store.unlink()
        wait_until(lambda: len(local_segments(broker)) <= 2, "copies")
        wait_until(lambda: 0 < offsets(broker, -2)[0] < 6000, "total retention")
        wait_until(lambda: len(directory_of(broker).segments()) <= 3, "retention of copies")
        read(broker, 6000, offsets(broker, -2)[0])


def test_switching_off_needs_a_word_and_deletes_the_copies() -> None:
    with Broker(*QUICK) as broker:
        create(broker)
        produce(broker, 3000)
        wait_until(lambda: len(local_segments(broker)) <= 2, "local retention")
        with pytest.raises(KafkaException, match="invalid to disable remote storage without"):
            alter(broker, remote_storage_enable="false")
        with pytest.raises(KafkaException, match="Remote log storage only supports"):
            alter(broker, cleanup_policy="compact")
        with pytest.raises(KafkaException, match="Value must not be more than"):
            alter(broker, retention_bytes="5")
        with pytest.raises(KafkaException, match="must be set to the identical value"):
            alter(broker, remote_log_copy_disable="true")
        alter(broker, remote_storage_enable="false", remote_log_delete_on_disable="true")
        wait_until(lambda: directory_of(broker).keys() == [], "an empty store")
        first = local_segments(broker)[0]
        assert offsets(broker, -2, -4, -5, -6) == [first, first, -1, -1]
        read(broker, 3000, first)
        # And on again: what is here is copied.
        alter(broker, remote_storage_enable="true")
        wait_until(lambda: directory_of(broker).segments(), "copies of what is left")
        read(broker, 3000, first)


def test_replicas_lead_and_follow_over_the_store() -> None:
    with Broker(*QUICK, "--io-workers", "3") as broker:
        create(broker, replicas=3)
        produce(broker, 4000)

        def leader() -> int:
            topic = AdminClient({"bootstrap.servers": broker.address, "log_level": 0}).list_topics(
                TOPIC, 10
            )
            return int(topic.topics[TOPIC].partitions[0].leader)

        before = leader()
        wait_until(lambda: len(local_segments(broker, node=before)) <= 2, "local retention")
        read(broker, 4000)
        kill(broker, f"io-worker-{before}")
        wait_until(lambda: leader() not in (before, -1), "another leader")
        read(broker, 4000)
        produce(broker, 3000, 4000)
        now = leader()
        wait_until(lambda: len(local_segments(broker, node=now)) <= 2, "local retention")
        read(broker, 7000)
        others = [node for node in (1, 2, 3) if node != now]
        for node in others:
            # A follower looks into the store every 30 s only (lists.FOLLOWER_REFRESH_MS).
            wait_until(
                lambda node=node: len(local_segments(broker, node=node)) <= 4,
                "local retention of a follower",
                timeout=60,
            )
        wait_until(directory_of(broker).is_whole, "the last copy")


def move(client: RawClient, replicas: list[int]) -> None:
    row = {"partition_index": 0, "replicas": replicas}
    body = {"timeout_ms": 5000, "topics": [{"name": TOPIC, "partitions": [row]}]}
    answer = client.ask("AlterPartitionReassignments", 0, body)
    assert answer["responses"][0]["partitions"][0]["error_code"] == 0
    asked = {"timeout_ms": 5000, "topics": None}
    wait_until(lambda: not client.ask("ListPartitionReassignments", 0, asked)["topics"], "its end")


def end_of_epoch(client: RawClient, epoch: int) -> tuple[int, int]:
    """(error, end offset) of OffsetForLeaderEpoch."""
    row = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
    body = {"replica_id": -1, "topics": [{"topic": TOPIC, "partitions": [row]}]}
    answer = client.ask("OffsetForLeaderEpoch", 4, body)["topics"][0]["partitions"][0]
    return answer["error_code"], answer["end_offset"]


def test_a_log_that_is_lost_goes_on_behind_what_the_store_has() -> None:
    """Though a producer writes as soon as there is a leader."""
    with Broker(*QUICK) as broker:
        create(broker, local_retention_bytes="0")
        produce(broker, 3000)
        wait_until(lambda: local_segments(broker) == [3000], "all to be in the store alone")
        broker.kill()
        shutil.rmtree(broker.data / "node-1" / f"{TOPIC}-0")
        broker.start()
        produce(broker, 500, 3000)
        read(broker, 3500)


def test_a_new_replica_that_leads_knows_epochs_and_transactions_of_what_the_store_has() -> None:
    with Broker(*QUICK, "--io-workers", "2") as broker:
        create(broker)
        with RawClient(broker.address) as client:
            move(client, [1])
            produce(broker, 50)
            move(client, [1, 2])
            move(client, [2])
            move(client, [2, 1])
            move(client, [1])
        producer = Producer(
            {"bootstrap.servers": broker.address, "transactional.id": "t", "log_level": 0}
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        for _ in range(3000):
            producer.produce(TOPIC, b"x" * 1000, b"aborted")
            producer.poll(0)
        producer.flush(30)
        producer.abort_transaction(30)
        produce(broker, 50, 3051)
        wait_until(lambda: local_segments(broker)[0] > 50, "the aborted records to be copied")
        with RawClient(broker.address) as client:
            wait_until(lambda: end_of_epoch(client, 0) == (0, 50), "its epochs")
            move(client, [2])
        assert local_segments(broker, node=2)[0] > 50
        with RawClient(f"127.0.0.1:{broker.port + 1}") as client:
            wait_until(lambda: end_of_epoch(client, 0)[0] == 0, "its new leader")
            assert end_of_epoch(client, 0) == (0, 50)
        consumer = Consumer(
            {
                "bootstrap.servers": broker.address,
                "group.id": "readers",
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        keys: list[bytes] = []
        deadline = time.monotonic() + 60
        while keys[-1:] != [b"3100"]:
            assert time.monotonic() < deadline, f"{len(keys)} were read"
            for message in consumer.consume(1000, 0.5):
                assert message.error() is None, message.error()
                keys.append(message.key())
        consumer.close()
        assert keys == [b"%d" % number for number in (*range(50), *range(3051, 3101))]
