"""Three controllers: any one may die or hang at any moment, and no decision is lost or made twice.

SHMBROKER_CONTROLLER_KILLS: how often the active one is killed under load (3).
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmbroker.testing.broker import Broker
from tests.support.acknowledged_load import batch_now
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

KILLS = int(os.environ.get("SHMBROKER_CONTROLLER_KILLS", "3"))
NONE = 0
TOPIC_ALREADY_EXISTS = 36
NOT_CONTROLLER = 41
QUORUM = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
FLAGS = (
    *("--set", "controller.quorum.fetch.timeout.ms=1000"),
    *("--set", "shmbroker.watchdog.kill.ms=0"),  # who hangs here shall go on
)


@pytest.fixture(scope="module")
def family() -> Iterator[Broker]:
    with Broker("--replicas", "3", "--controllers", "3", *FLAGS) as started:
        yield started


def create(client: RawClient, name: str) -> int:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
    body = {"topics": [topic], "timeout_ms": 10_000}
    return client.ask("CreateTopics", 7, body)["topics"][0]["error_code"]


def created(client: RawClient, name: str) -> None:
    """Create a topic as a client does that repeats what it can."""
    for _ in range(10_000):
        if create(client, name) in (NONE, TOPIC_ALREADY_EXISTS):
            return
    raise AssertionError(f"{name} was never created")


def quorum(client: RawClient) -> dict[str, Any]:
    """The partition of a DescribeQuorum answer, when there is an active controller."""
    for _ in range(10_000):
        answer = client.ask("DescribeQuorum", 2, QUORUM)
        if answer["topics"]:
            return answer["topics"][0]["partitions"][0]
    raise AssertionError("no active controller")


def quorum_after(client: RawClient, epoch: int) -> dict[str, Any]:
    """The same in a later epoch than `epoch`."""
    while (found := quorum(client))["leader_epoch"] <= epoch:
        pass
    return found


def pid_of(family: Broker, controller: int) -> int:
    """When it is there: a test before this one may have killed it."""
    title = f"controller-{controller}"
    wait_until(lambda: title in family.children(), title)
    return family.children()[title]


def address_of_leader(client: RawClient, topic: str) -> str:
    answer = client.ask("Metadata", 12, {"topics": [{"name": topic}]})
    leader_id = answer["topics"][0]["partitions"][0]["leader_id"]
    (row,) = (row for row in answer["brokers"] if row["node_id"] == leader_id)
    return f"{row['host']}:{row['port']}"


def topics(client: RawClient) -> list[str]:
    return [row["name"] for row in client.ask("Metadata", 12, {"topics": None})["topics"]]


def test_active_controllers_that_are_killed_lose_and_repeat_nothing(family: Broker) -> None:
    answers: dict[str, list[int]] = {}
    is_over = threading.Event()

    def load() -> None:
        with RawClient(family.address, 30) as client:
            while not is_over.is_set():
                errors = answers.setdefault(f"load-{len(answers)}", [])
                while not errors or errors[-1] not in (NONE, TOPIC_ALREADY_EXISTS):
                    errors.append(create(client, list(answers)[-1]))

    loading = threading.Thread(target=load)
    loading.start()
    try:
        with RawClient(family.address, 30) as client:
            for _ in range(KILLS):
                before = quorum(client)
                killed = pid_of(family, before["leader_id"])
                os.kill(killed, signal.SIGKILL)
                after = quorum_after(client, before["leader_epoch"])
                # Another one, or the dead one's successor, if it was back before they noticed.
                assert pid_of(family, after["leader_id"]) != killed
                # Ready for the next one when the dead one follows again.
                while min(row["log_end_offset"] for row in quorum(client)["current_voters"]) < 0:
                    pass
    finally:
        is_over.set()
        loading.join()
    with RawClient(family.address) as client:
        there = [name for name in topics(client) if name.startswith("load-")]
    assert sorted(there) == sorted(answers), "each once, and all of them"
    for errors in answers.values():
        assert set(errors[:-1]) <= {NOT_CONTROLLER}, "only what clients repeat"
        if len(errors) == 1:
            assert errors == [NONE], "a first try can't find it there"


def test_a_hanging_controller_is_replaced_and_follows_when_it_wakes_up(family: Broker) -> None:
    with RawClient(family.address, 30) as client:
        before = quorum(client)
        pid = pid_of(family, before["leader_id"])
        os.kill(pid, signal.SIGSTOP)
        try:
            after = quorum_after(client, before["leader_epoch"])
            assert after["leader_id"] != before["leader_id"]
            created(client, "while-it-hangs")
        finally:
            os.kill(pid, signal.SIGCONT)
        created(client, "when-it-is-back")
        end_offset = quorum(client)["high_watermark"]
        while any(row["log_end_offset"] < end_offset for row in quorum(client)["current_voters"]):
            pass
        assert pid_of(family, before["leader_id"]) == pid, "it was not killed for it"


def test_a_minority_commits_nothing(family: Broker) -> None:
    with RawClient(family.address, 30) as client:
        leader_id = quorum(client)["leader_id"]
        others = [pid_of(family, number) for number in (1, 2, 3) if number != leader_id]
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        try:
            assert create(client, "minority") == NOT_CONTROLLER
            assert "minority" not in topics(client)
        finally:
            for pid in others:
                os.kill(pid, signal.SIGCONT)
        created(client, "minority")


def test_data_goes_on_while_no_controller_lives(family: Broker) -> None:
    with RawClient(family.address, 30) as client:
        client.create_topic("data")
        before = quorum(client)
        for number in (1, 2, 3):
            os.kill(pid_of(family, number), signal.SIGKILL)
        with RawClient(address_of_leader(client, "data")) as producer:
            assert producer.produce("data", batch_now(b"meanwhile"))["error_code"] == NONE
        after = quorum_after(client, before["leader_epoch"])
        assert after["high_watermark"] > before["high_watermark"]
        created(client, "after-all-died")
        assert {"data", "after-all-died"} <= set(topics(client))


def test_more_and_fewer_controllers_on_the_same_directory(tmp_path: Path) -> None:
    with Broker("--io-workers", "3", data=tmp_path) as family, RawClient(family.address) as client:
        client.create_topic("alone")
        described = quorum(client)
        assert [row["replica_id"] for row in described["current_voters"]] == [1]
        assert [row["replica_id"] for row in described["observers"]] == [2, 3]
    grown = Broker("--io-workers", "3", "--controllers", "3", data=tmp_path)
    with grown as family, RawClient(family.address) as client:
        assert "alone" in topics(client)
        described = quorum(client)
        assert [row["replica_id"] for row in described["current_voters"]] == [1, 2, 3]
        assert described["observers"] == []
        client.create_topic("three")
    assert not list(tmp_path.glob("*.sock"))
    with Broker("--io-workers", "3", data=tmp_path) as family, RawClient(family.address) as client:
        assert {"alone", "three"} <= set(topics(client))


def test_the_command_shows_the_quorum(family: Broker) -> None:
    def shown(*words: str) -> Any:
        command = [sys.executable, "-m", "shmbroker", "quorum", *words]
        command += ["--bootstrap-server", family.address]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    with RawClient(family.address, 30) as client:
        leader_id = quorum(client)["leader_id"]
    status = json.loads(shown("status", "--json"))
    assert (status["leader_id"], status["voters"], status["observers"]) == (
        leader_id,
        [1, 2, 3],
        [],
    )
    rows = json.loads(shown("replication", "--json"))
    assert {row["node"]: row["status"] for row in rows}[leader_id] == "leader"
    assert shown("status").splitlines()[1].split() == ["leader", "id", str(leader_id)]
    assert shown("replication").splitlines()[0].split()[:4] == ["NODE", "STATUS", "LOG-END", "LAG"]
