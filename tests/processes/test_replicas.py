"""Three replicas: whichever process dies or hangs, clients see at most a retry.

Fault groups A and E of the reliability catalogue, as far as they concern replicas.
"""

import contextlib
import os
import signal

import pytest
from confluent_kafka import Consumer, TopicPartition

from shmbroker.log.file_names import LOG
from shmbroker.testing.broker import Broker
from tests.processes.test_kill_under_load import kill, wait_for_successors
from tests.support.acknowledged_load import IMPATIENT, Load, batch_now, leader_of, load_on
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

TOPIC = "kept"
FLAGS = ("--replicas", "3", "--set", "broker.session.timeout.ms=2000")
HANGING = ("--set", "shmbroker.watchdog.kill.ms=0")
"""However long it takes here: who hangs shall go on."""
NODES = (1, 2, 3)


def partition_rows(client: RawClient, topic: str = TOPIC) -> list[dict]:
    """What Metadata says of the partitions, in their order."""
    body = client.ask("Metadata", 12, {"topics": [{"name": topic}]})
    return sorted(body["topics"][0]["partitions"], key=lambda row: row["partition_index"])


def partition_rows_of(broker: Broker) -> list[dict]:
    with RawClient(broker.address) as client:
        return partition_rows(client)


def high_watermark(client: RawClient) -> int:
    return client.fetch(TOPIC, 0)["high_watermark"]


def wait_for_all_in_sync(broker: Broker, topic: str = TOPIC) -> list[dict]:
    def all_in_sync() -> list[dict] | None:
        with RawClient(broker.address) as client:
            rows = partition_rows(client, topic)
        return rows if all(sorted(row["isr_nodes"]) == list(NODES) for row in rows) else None

    return wait_until(all_in_sync, "all replicas to be in sync")


def log_bytes(broker: Broker, node: int, partition: int, topic: str = TOPIC) -> bytes:
    """The batches of a replica: all its segments, without what is allocated ahead."""
    directory = broker.data / f"node-{node}" / f"{topic}-{partition}"
    return b"".join(path.read_bytes().rstrip(b"\0") for path in sorted(directory.glob(f"*{LOG}")))


def assert_replicas_are_equal(broker: Broker, partitions: int = 3) -> None:
    """After a clean stop: every replica holds the same bytes."""
    for partition in range(partitions):
        one, two, three = (log_bytes(broker, node, partition) for node in NODES)
        assert one and one == two == three


@pytest.mark.parametrize(
    "titles",
    [
        ["io-worker-1"],
        ["io-worker-2", "network-worker-1"],
        ["io-worker-3", "controller-1"],
        ["io-worker-2", "io-worker-3"],  # some partition's two followers, of others one and leader
    ],
    ids="+".join,
)
def test_killed_workers_lose_nothing(titles: list[str]) -> None:
    with Broker(*FLAGS) as broker:
        load = load_on(broker.address, TOPIC)
        for _ in range(3):
            before = broker.children()
            kill(broker, *titles)
            load.wait_for_more()
            wait_for_successors(broker, before, *titles)
            wait_for_all_in_sync(broker)
        load.finish()
        load.check(broker.address)
        assert broker.stop() == 0
        assert_replicas_are_equal(broker)


def test_brokers_that_are_told_to_stop_one_by_one_hand_over_first() -> None:
    with Broker(*FLAGS) as broker:
        load = load_on(broker.address, TOPIC)
        for node in NODES:
            before = broker.children()
            title = f"io-worker-{node}"
            os.kill(before[title], signal.SIGTERM)
            load.wait_for_more()
            wait_for_successors(broker, before, title)
            wait_for_all_in_sync(broker)
        load.finish()
        load.check(broker.address)
        assert broker.log.count("ended with status 0, starting another") == len(NODES)
        assert broker.stop() == 0
        assert_replicas_are_equal(broker)


def test_leader_that_hangs_is_fenced_and_comes_back_as_follower() -> None:
    with Broker(*FLAGS, *HANGING) as broker:
        load = load_on(broker.address, TOPIC, 1)
        with RawClient(broker.address) as client:
            leader = partition_rows(client)[0]["leader_id"]
        pid = broker.children()[f"io-worker-{leader}"]
        os.kill(pid, signal.SIGSTOP)
        with RawClient(broker.address) as client:
            wait_until(lambda: partition_rows(client)[0]["leader_id"] != leader, "another leader")
            # Clients that are told of both at once lose the partition for a second.
            told = client.ask("Metadata", 9, {"topics": []})["brokers"]
            assert tuple(broker["node_id"] for broker in told) == NODES
            at_work = client.ask("DescribeCluster", 1, {})["brokers"]
            assert [broker["broker_id"] for broker in at_work] == [
                node for node in NODES if node != leader
            ]
        load.wait_for_more(3000)
        with RawClient(broker.address) as client:
            (row,) = partition_rows(client)
        assert row["leader_id"] != leader and leader not in row["isr_nodes"]
        os.kill(pid, signal.SIGCONT)
        (row,) = wait_for_all_in_sync(broker)
        assert row["leader_id"] != leader
        load.finish()
        load.check(broker.address)
        assert broker.children()[f"io-worker-{leader}"] == pid
        assert broker.stop() == 0
        assert_replicas_are_equal(broker, 1)


def test_one_replica_left_takes_no_acks_all_and_loses_nothing() -> None:
    with Broker(*FLAGS, *HANGING) as broker:
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC)
            leader = partition_rows(client)[0]["leader_id"]
        port = broker.port + leader - 1
        stopped = [broker.children()[f"io-worker-{node}"] for node in NODES if node != leader]
        with RawClient(f"127.0.0.1:{port}") as client:
            assert client.produce(TOPIC, batch_now(b"first"))["error_code"] == 0
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            wait_until(
                lambda: partition_rows(client)[0]["isr_nodes"] == [leader], "a single in-sync one"
            )
            refused = client.produce(TOPIC, batch_now(b"refused"))
            assert refused["error_code"] == 19  # NOT_ENOUGH_REPLICAS
            numbered = [
                batch_now(b"%d" % one, producer_id=7_000, producer_epoch=0, base_sequence=one)
                for one in range(2)
            ]
            assert client.produce(TOPIC, numbered[0])["error_code"] == 19
            # acks=1 is taken, but nobody may see it yet.
            assert client.produce(TOPIC, batch_now(b"second"), acks=1)["error_code"] == 0
            assert high_watermark(client) == 1
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
            wait_for_all_in_sync(broker)
            wait_until(lambda: high_watermark(client) == 2, "the high watermark")
            # Sent behind the refused one: to be sent again in order, no gap of the producer's.
            assert client.produce(TOPIC, numbered[1])["error_code"] == 19
            for one in numbered:
                assert client.produce(TOPIC, one)["error_code"] == 0


def resume(pid: int) -> None:
    """Unless the supervisor has found it to hang for too long, and there is another one."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def list_offsets(client: RawClient, timestamp: int, version: int = 7) -> tuple[int, int]:
    """(error code, offset) for partition 0."""
    asked = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
    topics = [{"name": TOPIC, "partitions": [asked]}]
    answer = client.ask("ListOffsets", version, {"topics": topics, "isolation_level": 0})
    (row,) = answer["topics"][0]["partitions"]
    return row["error_code"], row["offset"]


def test_the_last_replica_that_dies_leads_again_with_all_it_has() -> None:
    # With two it might be another: one that has all that two had (KIP-966), if it is back first.
    with Broker(*FLAGS, "--set", "min.insync.replicas=1") as broker:
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC)
            leader = partition_rows(client)[0]["leader_id"]
        address = f"127.0.0.1:{broker.port + leader - 1}"
        title = f"io-worker-{leader}"
        stopped = [broker.children()[f"io-worker-{node}"] for node in NODES if node != leader]
        with RawClient(address) as client:
            assert client.produce(TOPIC, batch_now(b"first"))["error_code"] == 0
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            wait_until(
                lambda: partition_rows(client)[0]["isr_nodes"] == [leader], "a single in-sync one"
            )
            epoch = partition_rows(client)[0]["leader_epoch"]
            assert client.produce(TOPIC, batch_now(b"second"))["error_code"] == 0
            before = broker.children()
            kill(broker, title)
            wait_for_successors(broker, before, title)
            wait_until(
                lambda: client.fetch(TOPIC, 0)["error_code"] == 0, "the same one to lead again"
            )
            row = partition_rows(client)[0]
            assert row["leader_id"] == leader and leader in row["isr_nodes"]
            # Successors of the others, which were found to hang, may be in sync by now.
            pids = broker.children()
            assert not {pids.get(f"io-worker-{node}") for node in row["isr_nodes"]} & set(stopped)
            if row["leader_epoch"] > epoch:
                # What it may have told before is not known to it (KIP-207), until those have read.
                assert list_offsets(client, -1) in ((78, -1), (0, 2))
                assert list_offsets(client, -1, 4) in ((5, -1), (0, 2))
            assert list_offsets(client, -2) == (0, 0)
            for pid in stopped:
                resume(pid)
            wait_for_all_in_sync(broker)
            wait_until(lambda: list_offsets(client, -1) == (0, 2), "the second to be committed")


def test_committed_offsets_survive_their_coordinator() -> None:
    with Broker(*FLAGS, "--set", "offsets.topic.num.partitions=3") as broker:
        load = load_on(broker.address, TOPIC)
        settings = {
            "bootstrap.servers": broker.address,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **{name: value for name, value in IMPATIENT.items() if name != "linger.ms"},
        }
        consumer = Consumer(settings)
        consumer.subscribe([TOPIC])
        committed = {}
        for _ in range(3):
            read = wait_until(lambda: consumer.consume(200, 0.5), "records")
            assert not [message.error() for message in read if message.error()]
            for row in consumer.commit(asynchronous=False):
                if row.offset >= 0:  # something was read of it
                    assert row.offset >= committed.get(row.partition, 0)
                    committed[row.partition] = row.offset
            with RawClient(broker.address) as client:
                found = client.ask("FindCoordinator", 4, {"key_type": 0, "coordinator_keys": ["g"]})
            before = broker.children()
            title = f"io-worker-{found['coordinators'][0]['node_id']}"
            kill(broker, title)
            asked = [TopicPartition(TOPIC, partition) for partition in committed]
            for row in consumer.committed(asked, timeout=30):
                assert row.offset == committed[row.partition]
            wait_for_successors(broker, before, title)
            wait_for_all_in_sync(broker)
            wait_for_all_in_sync(broker, "__consumer_offsets")
        consumer.close()
        load.finish()
        load.check(broker.address)


def test_a_worker_that_keeps_dying_harms_nobody_and_keeps_its_data() -> None:
    with Broker(*FLAGS) as broker:
        load = load_on(broker.address, TOPIC)
        for _ in range(4):
            before = broker.children()
            kill(broker, "io-worker-2")
            wait_for_successors(broker, before, "io-worker-2")
        load.wait_for_more()
        wait_until(lambda: "starting another in 1.0 s" in broker.log, "it backs off")
        wait_for_all_in_sync(broker)
        load.finish()
        load.check(broker.address)
        assert broker.stop() == 0
        assert_replicas_are_equal(broker)


def test_sequences_of_a_producer_are_known_to_the_next_leader() -> None:
    with Broker(*FLAGS) as broker:
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC)
            answer = client.ask(
                "InitProducerId", 4, {"transactional_id": None, "transaction_timeout_ms": 60_000}
            )
        ids = {"producer_id": answer["producer_id"]}

        def send(sequence: int, epoch: int = 1) -> tuple[int, int]:
            """(error code, base offset) from whoever leads."""
            batch = batch_now(b"x", producer_epoch=epoch, base_sequence=sequence, **ids)

            def taken() -> dict | None:
                leader = leader_of(broker.address, TOPIC, 0)
                if leader is None:
                    return None
                with RawClient(leader) as client:
                    answer = client.produce(TOPIC, batch)
                return None if answer["error_code"] in (6, 19, 20) else answer

            found = wait_until(taken, "an answer")
            return found["error_code"], found["base_offset"]

        assert [send(sequence) for sequence in range(3)] == [(0, 0), (0, 1), (0, 2)]
        row = wait_for_all_in_sync(broker)[0]
        before = broker.children()
        title = f"io-worker-{row['leader_id']}"
        kill(broker, title)
        wait_until(
            lambda: (
                leader_of(broker.address, TOPIC, 0) is not None
                and partition_rows_of(broker)[0]["leader_id"] != row["leader_id"]
            ),
            "another leader",
        )
        assert send(2) == (0, 2), "a repetition"
        assert send(0) == (0, 0), "a repetition"
        assert send(4)[0] == 45  # OUT_OF_ORDER_SEQUENCE_NUMBER
        assert send(3, epoch=0)[0] == 47  # INVALID_PRODUCER_EPOCH: a zombie
        assert send(3) == (0, 3)
        wait_for_successors(broker, before, title)


@pytest.mark.parametrize("is_clean", [True, False], ids=["SIGTERM", "supervisor killed"])
def test_family_that_ends_under_load_and_starts_again(is_clean: bool) -> None:
    with Broker(*FLAGS) as broker:
        load = load_on(broker.address, TOPIC)
        if is_clean:
            assert broker.stop() == 0
        else:
            os.kill(broker.pid, signal.SIGKILL)
            broker.process.wait()
        broker.start()
        load.wait_for_more()
        load.finish()
        wait_for_all_in_sync(broker)
        load.check(broker.address)
        assert broker.stop() == 0
        assert_replicas_are_equal(broker)


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
def test_all_of_it_starts_again(is_clean: bool) -> None:
    with Broker(*FLAGS) as broker:
        load = load_on(broker.address, TOPIC)
        load.finish()
        if is_clean:
            assert broker.stop() == 0
        else:
            broker.kill()
        broker.start()
        wait_for_all_in_sync(broker)
        load.check(broker.address)
        more = Load(broker.address, TOPIC, 3)
        more.wait_for_more()
        more.finish()
        assert not more.failed
        assert broker.stop() == 0
        assert_replicas_are_equal(broker)
