"""A topic whose acks wait for the disk: nothing of it is lost, a clean stop answers all."""

import os
import signal
from pathlib import Path

from shmbroker.testing.broker import Broker
from tests.support.acknowledged_load import Load
from tests.support.raw_client import RawClient, batch_of, produce_body

TOPIC = "durable"
CONFIGS = {"shmbroker_ack_durability": "fsync"}


def test_acknowledged_records_outlive_every_process(tmp_path: Path) -> None:
    with Broker(data=tmp_path) as broker:
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC, 3, **CONFIGS)
        load = Load(broker.address, TOPIC)
        load.wait_for_more()
        os.kill(broker.children()["io-worker-1"], signal.SIGKILL)
        load.wait_for_more()
        broker.kill()
        broker.start()
        load.wait_for_more()
        load.finish()
        load.check(broker.address)


def test_stopping_broker_answers_those_who_wait_for_the_disk(tmp_path: Path) -> None:
    with Broker(data=tmp_path) as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC, 1, **CONFIGS)
        assert client.produce(TOPIC, batch_of(b"first"))["error_code"] == 0
        for _ in range(50):
            client.send("Produce", 9, produce_body(TOPIC, batch_of(b"v")))
        client.receive("Produce", 9)
        assert broker.stop() == 0
        answered = 1
        try:
            while True:
                answer = client.receive("Produce", 9)
                assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0
                answered += 1
        except ConnectionError:
            pass
    with Broker(data=tmp_path) as broker, RawClient(broker.address) as client:
        body = {
            "replica_id": -1,
            "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "timestamp": -1}]}],
        }
        end = client.ask("ListOffsets", 6, body)["topics"][0]["partitions"][0]["offset"]
    assert end >= 1 + answered
