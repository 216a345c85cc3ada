"""Retention on a running broker: what is too old goes, the active segment with it."""

from pathlib import Path

from shmbroker.records.batch import encode_batch
from shmbroker.testing.broker import Broker
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

BATCH = encode_batch([(1, b"key", b"value", ())] * 2)
FIRST = "00000000000000000000"


def earliest(client: RawClient, topic: str) -> int:
    row = {"partition_index": 0, "timestamp": -2}
    body = {"replica_id": -1, "topics": [{"name": topic, "partitions": [row]}]}
    return client.ask("ListOffsets", 7, body)["topics"][0]["partitions"][0]["offset"]


def test_old_records_go_and_their_files_wait_for_their_delay() -> None:
    with Broker("--set", "log.retention.check.interval.ms=100") as broker:
        with RawClient(broker.address) as client:
            for name, delay in (("at-once", "0"), ("later", "3600000"), ("compacted", "0")):
                policy = "compact,delete" if name == "compacted" else "delete"
                client.create_topic(
                    name, retention_ms="1000", file_delete_delay_ms=delay, cleanup_policy=policy
                )
                assert client.produce(name, BATCH)["error_code"] == 0
            for name in ("at-once", "later", "compacted"):
                wait_until(lambda name=name: earliest(client, name) == 2, "retention")
                assert client.fetch(name, 0)["error_code"] == 1
                assert client.produce(name, BATCH)["base_offset"] == 2

            def files(name: str) -> set[str]:
                directory: Path = broker.data / "node-1" / f"{name}-0"
                return {path.name for path in directory.glob(FIRST + ".*")}

            kinds = (".log", ".index", ".timeindex")
            for name in ("at-once", "compacted"):
                wait_until(lambda name=name: not files(name), "unlinking")
            assert files("later") == {FIRST + kind + ".deleted" for kind in kinds}
        assert broker.stop() == 0
        broker.start()
        assert not files("later")
