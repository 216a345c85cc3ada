"""DeleteRecords beyond its answer: what readers, files, other replicas and the next start have."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

from shmbroker.log.checkpoints import HIGH_WATERMARK, LOG_START_OFFSET, read_offsets
from shmbroker.log.raised_start import RAISED_START
from shmbroker.testing.broker import Broker
from shmbroker.wire.error_codes import NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT
from tests.processes.test_kill_under_load import wait_for_successors
from tests.support.acknowledged_load import batch_now, leader_of
from tests.support.raw_client import RawClient, fetch_body
from tests.support.waiting import wait_until

TOPIC = "deleted"
OUT_OF_RANGE = 1
NODES = (1, 2, 3)


def delete(client: RawClient, offset: int, topic: str = TOPIC) -> dict[str, Any]:
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}]
    answer = client.ask("DeleteRecords", 2, {"timeout_ms": 1000, "topics": topics})
    return answer["topics"][0]["partitions"][0]


def start_of(client: RawClient, topic: str = TOPIC) -> int:
    row = {"partition_index": 0, "timestamp": -2}
    body = {"replica_id": -1, "topics": [{"name": topic, "partitions": [row]}]}
    row = client.ask("ListOffsets", 7, body)["topics"][0]["partitions"][0]
    return row["offset"] if row["error_code"] == 0 else -row["error_code"]


def leader_id(client: RawClient) -> int:
    answer = client.ask("Metadata", 12, {"topics": [{"name": TOPIC}]})
    (row,) = answer["topics"][0]["partitions"]
    return row["leader_id"] if len(row["isr_nodes"]) == 3 else -1


def leader_in_sync(broker: Broker) -> int:
    """The broker id of the partition's leader, once all three replicas are in sync."""

    def look() -> int:
        with RawClient(broker.address) as client:
            return leader_id(client)

    return wait_until(lambda: max(look(), 0), "all replicas to be in sync")


def address_of_leader(broker: Broker) -> str:
    return wait_until(partial(leader_of, broker.address, TOPIC, 0), "a leader")


def is_start(broker: Broker, start: int) -> bool:
    """What the leader says; False while there is none."""
    try:
        with RawClient(address_of_leader(broker)) as client:
            found = start_of(client)
    except OSError:  # it was the dead one
        return False
    assert found < 0 or found == start
    return found == start


def is_deleted(broker: Broker, start: int) -> bool:
    """What the leader answers; False where a client asks again: since the family started or a
    leader died, the leadership moves on, and a new leader shows no record before its followers
    have asked."""
    try:
        with RawClient(address_of_leader(broker)) as client:
            answer = delete(client, start)
    except OSError:  # it was the dead one
        return False
    again = (OUT_OF_RANGE, NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT)
    assert answer["error_code"] in (0, *again)
    assert answer["low_watermark"] == (-1 if answer["error_code"] else start)
    return answer["error_code"] == 0


def is_stored(broker: Broker, offset: int) -> bool:
    offsets = read_offsets(str(broker.data / "node-1" / LOG_START_OFFSET))
    return offsets.get((TOPIC, 0)) == offset


def test_the_start_survives_every_kind_of_death(tmp_path: Path) -> None:
    with Broker(data=tmp_path) as broker:
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC)
            for _ in range(3):
                client.produce(TOPIC, batch_now(*[b"v"] * 10))
            assert delete(client, 15)["low_watermark"] == 15
            wait_until(lambda: is_stored(broker, 15), "the checkpoint")
            killed = broker.children()["io-worker-1"]
            os.kill(killed, signal.SIGKILL)
        wait_until(lambda: broker.children().get("io-worker-1", killed) != killed, "the successor")
        with RawClient(broker.address) as client:
            wait_until(lambda: start_of(client) == 15, "its log")
        broker.kill()
        broker.start()
        with RawClient(broker.address) as client:
            assert start_of(client) == 15
            assert client.fetch(TOPIC, 14)["error_code"] == OUT_OF_RANGE
            assert client.fetch(TOPIC, 15)["error_code"] == 0
            assert delete(client, -1)["low_watermark"] == 30
        assert broker.stop() == 0
        broker.start()
        with RawClient(broker.address) as client:
            assert start_of(client) == 30
            assert client.produce(TOPIC, batch_now(b"after"))["base_offset"] == 30
            assert b"after" in bytes(client.fetch(TOPIC, 30)["records"])


def test_the_start_survives_a_kill_of_all_processes_right_after_the_answer(
    tmp_path: Path,
) -> None:
    with Broker(data=tmp_path) as broker:
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC)
            for _ in range(3):
                client.produce(TOPIC, batch_now(*[b"v"] * 10))
        for start in range(11, 17):
            with RawClient(broker.address) as client:
                assert delete(client, start)["low_watermark"] == start
                broker.kill()
            broker.start()
            with RawClient(broker.address) as client:
                assert start_of(client) == start


def is_checkpointed(broker: Broker, topic: str) -> bool:
    """Whether a whole checkpoint was written since this topic is there."""
    return (topic, 0) in read_offsets(str(broker.data / "node-1" / HIGH_WATERMARK))


def test_the_start_survives_two_kills_of_all_processes_with_a_checkpoint_between(
    tmp_path: Path,
) -> None:
    with Broker(data=tmp_path) as broker:
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC)
            for _ in range(3):
                client.produce(TOPIC, batch_now(*[b"v"] * 10))
            assert delete(client, 15)["low_watermark"] == 15
        wait_until(lambda: is_stored(broker, 15), "the checkpoint of log starts")
        for another in ("first", "second"):
            broker.kill()
            broker.start()
            with RawClient(broker.address) as client:
                assert start_of(client) == 15
                client.create_topic(another)
            wait_until(partial(is_checkpointed, broker, another), "a checkpoint")
            assert is_stored(broker, 15)


def test_no_replica_has_the_records_when_the_leader_dies_right_after_the_answer() -> None:
    with Broker("--replicas", "3") as broker:
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC)
        leader_in_sync(broker)
        with RawClient(address_of_leader(broker)) as client:
            client.produce(TOPIC, batch_now(*[b"v"] * 30), acks=-1)
        for start in (5, 10, 15):
            title = f"io-worker-{leader_in_sync(broker)}"
            before = broker.children()
            wait_until(partial(is_deleted, broker, start), "the answer")
            os.kill(before[title], signal.SIGKILL)
            wait_until(partial(is_start, broker, start), "the next leader")
            wait_for_successors(broker, before, title)


def test_no_replica_has_the_records_when_all_die_right_after_the_answer() -> None:
    """Whichever of them leads then."""
    with Broker("--replicas", "3") as broker:
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC)
        leader_in_sync(broker)
        with RawClient(address_of_leader(broker)) as client:
            client.produce(TOPIC, batch_now(*[b"v"] * 30), acks=-1)
        for start in (5, 10):
            wait_until(partial(is_deleted, broker, start), "the answer")
            broker.kill()
            noted = [broker.data / f"node-{node}" / f"{TOPIC}-0" / RAISED_START for node in NODES]
            assert [path.read_text().strip() for path in noted] == [str(start)] * 3
            broker.start()
            leader_in_sync(broker)
            wait_until(partial(is_start, broker, start), "a leader")


def test_whole_segments_go_with_the_next_retention_check() -> None:
    with (
        Broker("--set", "log.retention.check.interval.ms=500") as broker,
        RawClient(broker.address) as client,
    ):
        client.create_topic(
            TOPIC, segment_bytes="1048576", file_delete_delay_ms="0", retention_ms="-1"
        )
        for _ in range(30):
            client.produce(TOPIC, batch_now(bytes(100_000)))
        directory = broker.data / "node-1" / f"{TOPIC}-0"
        before = sorted(directory.glob("*.log"))
        assert len(before) == 3
        assert delete(client, 25)["low_watermark"] == 25
        wait_until(lambda: sorted(directory.glob("*.log")) == before[2:], "retention")
        assert start_of(client) == 25
        assert len(client.fetch(TOPIC, 25, max_bytes=200_000)["records"]) > 100_000


def test_a_waiting_session_is_told_of_the_new_start() -> None:
    with Broker() as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC)
        client.produce(TOPIC, batch_now(b"a", b"b"))
        body = fetch_body(TOPIC, 2) | {"session_epoch": 0}
        session = client.ask("Fetch", 12, body)["session_id"]
        delete(client, 1)
        body |= {"topics": [], "session_id": session, "session_epoch": 1}
        (row,) = client.ask("Fetch", 12, body)["responses"][0]["partitions"]
        assert (row["log_start_offset"], row["high_watermark"], row["error_code"]) == (1, 2, 0)
        assert client.ask("Fetch", 12, body | {"session_epoch": 2})["responses"] == []
