"""SIGTERM and SIGINT: what is in flight is answered, the logs are closed cleanly, exit 0."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmbroker.log.checkpoints import RECOVERY_POINT, read_offsets
from shmbroker.log.file_names import CLEAN_SHUTDOWN
from shmbroker.testing.broker import Broker
from tests.support.acknowledged_load import Load, batch_now, read_values
from tests.support.raw_client import RawClient, fetch_body, produce_body
from tests.support.waiting import wait_until

TOPIC = "stops"


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Broker]:
    """A broker whose data outlives it."""
    with Broker(data=tmp_path) as started:
        yield started


def test_clean_stop_leaves_marker_checkpoints_and_no_preallocation(kept: Broker) -> None:
    with RawClient(kept.address) as client:
        client.create_topic(TOPIC)
        batches = [batch_now(b"%d" % number) for number in range(5)]
        for batch in batches:
            assert client.produce(TOPIC, batch)["error_code"] == 0
    assert kept.stop() == 0
    node = kept.data / "node-1"
    assert (node / CLEAN_SHUTDOWN).exists()
    assert read_offsets(str(node / RECOVERY_POINT)) == {(TOPIC, 0): 5}
    log = node / f"{TOPIC}-0" / f"{0:020d}.log"
    assert log.stat().st_size == sum(map(len, batches))
    assert "Traceback" not in kept.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_requests_in_flight_are_answered_before_the_end(kept: Broker, number: int) -> None:
    count = 200
    with RawClient(kept.address) as client:
        client.create_topic(TOPIC)
        client.produce(TOPIC, batch_now(b"first"))  # everything is warm
        for index in range(count):
            client.send("Produce", 9, produce_body(TOPIC, batch_now(b"%d" % index)))
        answered = 0
        os.kill(kept.pid, number)
        try:
            while answered < count:
                rows = client.receive("Produce", 9)["responses"][0]["partition_responses"]
                assert rows[0]["error_code"] == 0
                answered += 1
        except ConnectionError:
            pass
    assert kept.process.wait(20) == 0
    kept.start()
    with RawClient(kept.address) as client:
        stored = read_values(client, TOPIC, 0)
    # Whatever was begun is answered: nothing is stored that nobody was told of.
    assert stored == [b"first", *(b"%d" % index for index in range(answered))]


def test_waiting_fetch_does_not_hold_up_the_stop(kept: Broker) -> None:
    with RawClient(kept.address) as client:
        client.create_topic(TOPIC)
        client.send("Fetch", 12, fetch_body(TOPIC, 0, max_wait_ms=600_000))
        # Answered after the fetch has been started: each worker takes requests in order.
        with RawClient(kept.address) as other:
            other.produce(TOPIC, None)
        kept.process.send_signal(signal.SIGTERM)
        assert kept.process.wait(20) == 0
    assert "killed" not in kept.log


def test_produce_behind_a_waiting_fetch_is_answered(kept: Broker) -> None:
    with RawClient(kept.address) as client:
        client.create_topic(TOPIC)
        client.send("Fetch", 12, fetch_body(TOPIC, 0, max_wait_ms=600_000, min_bytes=1 << 20))
        client.send("Produce", 9, produce_body(TOPIC, batch_now(b"behind")))
        with RawClient(kept.address) as other:
            wait_until(lambda: other.fetch(TOPIC, 0)["high_watermark"] == 1, "the append")
        kept.process.send_signal(signal.SIGTERM)
        client.receive("Fetch", 12)
        answer = client.receive("Produce", 9)
        assert answer["responses"][0]["partition_responses"][0]["base_offset"] == 0
        assert kept.process.wait(20) == 0


def test_stop_and_start_under_load_lose_nothing(kept: Broker) -> None:
    with RawClient(kept.address) as client:
        client.create_topic(TOPIC, 3)
    load = Load(kept.address, TOPIC)
    for _ in range(2):
        load.wait_for_more()
        assert kept.stop() == 0
        kept.start()
    load.wait_for_more()
    load.finish()
    load.check(kept.address)


def test_stop_while_children_boot_ends_them_all(tmp_path: Path) -> None:
    with Broker(data=tmp_path) as broker:
        broker.stop()
        for _ in range(3):
            broker.launch()
            wait_until(broker.children, "a child")
            assert broker.stop() == 0, broker.log
