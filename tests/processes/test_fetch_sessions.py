"""Fetch sessions against the whole family: many partitions, dying processes, two who share one."""

import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from shmbroker.testing.broker import Broker
from tests.support.acknowledged_load import batch_now
from tests.support.raw_client import RawClient, fetch_body
from tests.support.waiting import wait_until

MANY = 600
NOT_LEADER = 6
SESSION_ID_NOT_FOUND = 70
INVALID_SESSION_EPOCH = 71


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker("--set", "shmbroker.network.workers=1") as broker:
        yield broker
        assert "Traceback" not in broker.log, broker.log


class Session:
    """A client with a session about one topic; `view` is what it knows of each partition."""

    def __init__(self, client: RawClient, topic: str) -> None:
        self.client = client
        self.topic = topic
        self.id = self.epoch = 0
        self.view: dict[int, tuple[int, int, int]] = {}

    def body(
        self, offsets: dict[int, int], forgotten: list[int], max_wait_ms: int
    ) -> dict[str, Any]:
        body = fetch_body(self.topic, 0, max_wait_ms=max_wait_ms)
        row = body["topics"][0]["partitions"][0]
        rows = [row | {"partition": index, "fetch_offset": at} for index, at in offsets.items()]
        dropped = [{"topic": self.topic, "partitions": forgotten}] if forgotten else []
        return body | {
            "topics": [{"topic": self.topic, "partitions": rows}] if rows else [],
            "forgotten_topics_data": dropped,
            "session_id": self.id,
            "session_epoch": self.epoch,
        }

    def send(self, max_wait_ms: int = 0) -> None:
        self.client.send("Fetch", 12, self.body({}, [], max_wait_ms))

    def receive(self) -> dict[int, bytes]:
        """The records of each partition that the answer names."""
        answer = self.client.receive("Fetch", 12)
        assert answer["error_code"] == 0, answer
        self.id, self.epoch = answer["session_id"], self.epoch + 1
        rows = [row for topic in answer["responses"] for row in topic["partitions"]]
        for row in rows:
            self.view[row["partition_index"]] = (
                row["error_code"], row["high_watermark"], row["log_start_offset"]
            )  # fmt: skip
        return {row["partition_index"]: bytes(row["records"]) for row in rows}

    def ask(
        self,
        offsets: dict[int, int] | None = None,
        forgotten: list[int] | None = None,
        max_wait_ms: int = 0,
    ) -> dict[int, bytes]:
        body = self.body(offsets or {}, forgotten or [], max_wait_ms)
        self.client.send("Fetch", 12, body)
        for index in forgotten or ():
            self.view.pop(index, None)
        return self.receive()


def test_of_many_partitions_only_those_with_news_are_told(broker: Broker) -> None:
    with RawClient(broker.address) as client, RawClient(broker.address) as writer:
        client.create_topic("many", MANY)
        session = Session(client, "many")
        assert len(session.ask(dict.fromkeys(range(MANY), 0))) == MANY
        assert session.id
        for _ in range(3):
            assert session.ask() == {}
        for index in (0, 300, MANY - 1):
            session.send(max_wait_ms=20_000)
            writer.produce("many", batch_now(b"news"), index)
            told = session.receive()
            assert list(told) == [index]
            assert b"news" in told[index]
            assert session.ask({index: 1}) == {}
        for index in (5, 6):
            writer.produce("many", batch_now(b"more"), index)
        assert sorted(session.ask()) == [5, 6]


def test_a_session_sees_what_full_fetches_see(broker: Broker) -> None:
    """Random requests, and after each the client's view is compared."""
    chance = random.Random(7)
    partitions = 6
    with RawClient(broker.address) as client, RawClient(broker.address) as other:
        other.create_topic("random", partitions)
        session = Session(client, "random")
        offsets = dict.fromkeys(range(partitions), 0)
        session.ask(offsets)
        for _ in range(150):
            changed: dict[int, int] = {}
            forgotten: list[int] = []
            for _ in range(chance.randrange(3)):
                other.produce("random", batch_now(b"v", b"v"), chance.randrange(partitions))
            if chance.random() < 0.3:
                row = {"partition_index": chance.randrange(partitions), "offset": -1}
                topics = [{"name": "random", "partitions": [row]}]
                other.ask("DeleteRecords", 2, {"timeout_ms": 1000, "topics": topics})
            index = chance.randrange(partitions + 2)
            if index in offsets and len(offsets) > 1 and chance.random() < 0.3:
                del offsets[index]
                forgotten = [index]
            elif chance.random() < 0.7:
                changed[index] = offsets[index] = chance.choice((0, 2, 4, 99))
            told = session.ask(changed, forgotten)
            full = other.ask("Fetch", 12, Session(other, "random").body(offsets, [], 0))
            rows = {row["partition_index"]: row for row in full["responses"][0]["partitions"]}
            assert session.view == {
                index: (row["error_code"], row["high_watermark"], row["log_start_offset"])
                for index, row in rows.items()
            }
            assert {index: records for index, records in told.items() if records} == {
                index: bytes(row["records"]) for index, row in rows.items() if row["records"]
            }


def test_who_waits_in_a_session_that_another_goes_on_with_is_told_so(broker: Broker) -> None:
    with RawClient(broker.address) as first, RawClient(broker.address) as second:
        first.create_topic("shared")
        session = Session(first, "shared")
        session.ask({0: 0})
        first.send("Fetch", 12, session.body({}, [], 20_000))
        other = Session(second, "shared")
        other.id, other.epoch = session.id, session.epoch + 1

        def goes_on() -> bool:
            """Once the first's request is there, the next epoch is right."""
            second.send("Fetch", 12, other.body({}, [], 0))
            return bool(second.receive("Fetch", 12)["error_code"] == 0)

        wait_until(goes_on, "the first request")
        second.produce("shared", batch_now(b"v"))
        answer = first.receive("Fetch", 12)
        assert answer["error_code"] == INVALID_SESSION_EPOCH
        assert answer["session_id"] == session.id
        assert answer["responses"] == []


def test_a_session_outlives_the_death_of_the_log_s_process(broker: Broker) -> None:
    with RawClient(broker.address) as client, RawClient(broker.address) as writer:
        client.create_topic("outlives", 3)
        session = Session(client, "outlives")
        session.ask(dict.fromkeys(range(3), 0))
        session.send(max_wait_ms=20_000)
        writer.produce("outlives", batch_now(b"v"), 1)
        assert list(session.receive()) == [1]
        assert session.ask({1: 1}) == {}
        session.send(max_wait_ms=20_000)
        os.kill(broker.children()["io-worker-1"], signal.SIGKILL)
        session.receive()
        assert {error for error, _, _ in session.view.values()} == {NOT_LEADER}

        def is_well() -> bool:
            session.ask()
            return {error for error, _, _ in session.view.values()} == {0}

        wait_until(is_well, "the successor")
        assert session.view == {0: (0, 0, 0), 1: (0, 1, 0), 2: (0, 0, 0)}
        assert session.ask() == {}


def test_a_new_network_worker_knows_no_session_of_the_old_one(broker: Broker) -> None:
    with RawClient(broker.address) as client:
        client.create_topic("forgotten")
        session = Session(client, "forgotten")
        session.ask({0: 0})
    os.kill(broker.children()["network-worker-1"], signal.SIGKILL)

    def is_not_found() -> bool:
        with RawClient(broker.address) as client:
            client.send("Fetch", 12, session.body({}, [], 0))
            return bool(client.receive("Fetch", 12)["error_code"] == SESSION_ID_NOT_FOUND)

    def tolerant() -> bool:
        try:
            return is_not_found()
        except ConnectionError:
            return False  # of the one that dies

    wait_until(tolerant, "the successor")


def test_names_that_are_too_long_are_not_kept(broker: Broker) -> None:
    with RawClient(broker.address) as client:
        long = Session(client, "x" * 250)
        long.ask({0: 0})
        assert (long.id, long.view) == (0, {0: (3, -1, -1)})
        session = Session(client, "y")
        session.ask({0: 0})
        assert session.id
        body = session.body({0: 0}, [], 0)
        body["topics"][0]["topic"] = "x" * 250
        assert client.ask("Fetch", 12, body)["error_code"] == SESSION_ID_NOT_FOUND


def test_replicas_have_no_sessions(broker: Broker) -> None:
    with RawClient(broker.address) as client:
        client.create_topic("replicas")
        session = Session(client, "replicas")
        answer = client.ask("Fetch", 12, session.body({0: 0}, [], 0) | {"replica_id": 1})
        assert answer["session_id"] == 0
        assert answer["responses"][0]["partitions"][0]["error_code"] == NOT_LEADER
        session.ask({0: 0})
        answer = client.ask("Fetch", 12, session.body({}, [], 0) | {"replica_id": 1})
        assert answer["error_code"] == SESSION_ID_NOT_FOUND
        assert session.ask() == {}


def test_no_slots_no_sessions() -> None:
    with (
        Broker("--set", "max.incremental.fetch.session.cache.slots=0") as broker,
        RawClient(broker.address) as client,
    ):
        client.create_topic("none")
        session = Session(client, "none")
        assert list(session.ask({0: 0})) == [0]
        assert session.id == 0
