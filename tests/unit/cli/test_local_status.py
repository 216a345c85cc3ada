"""What `status` takes for a problem of a family on this host, and what it makes of a snapshot."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from shmbroker import signs
from shmbroker.cli import local_status
from shmbroker.cli.status import problems
from shmbroker.observe.shared_memory import Family
from shmbroker.observe.snapshot import Group, Groups, Lag, Partition, Replica, Topic
from shmbroker.shm.counters import (
    DISK,
    DISK_HAS_FAILED,
    DISK_IS_FULL,
    INCARNATION,
    LIVENESS_NS,
    PID,
    STARTED_MS,
    STATE,
    STATE_NONE,
    STATE_STARTING,
    STATE_UNABLE,
    WORK,
)
from tests.unit.observe.families import NOW_S, ROLES, family, image, snapshot, store

OPENING = 45 << signs.LEFT_SHIFT | signs.OPENING


def made(*stored: tuple[str, int, int]) -> Family:
    """A family of which every process was forked once."""
    found = family()
    for role, number in ROLES[1:]:
        store(found, f"{role}-{number}", STARTED_MS, 950_000)
    for each in stored:
        store(found, *each)
    return found


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ([], []),
        ([("io-worker-1", INCARNATION, 9)], []),
        (
            [("io-worker-2", STATE, STATE_STARTING), ("io-worker-2", WORK, OPENING)],
            ["io-worker-2 is starting: opening logs, 45 left"],
        ),
        (
            [("network-worker-2", STATE, STATE_NONE), ("network-worker-2", PID, 0)],
            ["network-worker-2 has ended and is started again"],
        ),
        ([("cleaner-1", STATE, STATE_UNABLE)], ["cleaner-1 can't boot; the log says why"]),
        (
            [("controller-3", LIVENESS_NS, int((NOW_S - 7) * 1e9))],
            ["controller-3 gives no sign of life for 7 s"],
        ),
        (
            [("io-worker-2", DISK, DISK_IS_FULL)],
            ["broker 2 refuses producers: its disk is full"],
        ),
    ],
)
def test_problems_of_processes_are_named(stored: list[tuple[str, int, int]], said: list[str]):
    described = local_status.described(snapshot(made(*stored)), 77)
    assert local_status.problems(json.loads(json.dumps(described))) == said


def test_what_nothing_else_shows_is_named_in_the_end() -> None:
    described = local_status.described(snapshot(made(), image(2)), 77)
    assert local_status.problems(described) == ["broker 2 is fenced or stops"]


def test_helper_that_nobody_has_needed_is_no_problem() -> None:
    stored = [("tier-1", STARTED_MS, 0), ("tier-1", STATE, STATE_NONE)]
    described = local_status.described(snapshot(made(*stored)), 77)
    assert local_status.problems(described) == []
    assert "tier-1" not in [row["process"] for row in described["processes"]]


def row(number: int, leader: int = 1, in_sync: tuple[int, ...] = (1, 2)) -> Partition:
    replicas = [Replica(1, 90, 0, 1300), Replica(2, 70, 20, 1200)]
    return Partition(number, replicas, in_sync, leader, 1, False, 5, 90, 1300, 2, 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda _made: None, []),
        (
            lambda made: made.counters.store_metadata_leader(3, 1, is_active=False),
            ["there is no active controller"],
        ),
        (
            lambda made: store(made, "controller-2", STATE, STATE_NONE),
            ["1 controller is not there (2)"],
        ),
        (
            lambda made: store(made, "io-worker-1", DISK, DISK_HAS_FAILED),
            ["log directory /nowhere/node-1 of broker 1 failed"],
        ),
    ],
)
def test_report_out_of_a_snapshot_is_judged_as_one_of_a_cluster(
    change: Callable[[Family], Any], said: list[str]
) -> None:
    there = made()
    change(there)
    topics = [Topic("t", "id", False, 1, [row(0)]), Topic("__x", "id2", True, 1, [row(0)])]
    groups = Groups(0.0, 0, [Group("g", "classic", "empty", 0, 1, [Lag("t", 0, 80, 90)])])
    found = local_status.report(snapshot(there, topics=topics, groups=groups))
    assert problems(found) == said
    assert (found["topics"], found["internal_topics"], found["partitions"]) == (1, 1, 2)
    assert found["groups"] == [{"group": "g", "state": "empty", "lag": 10}]
    (directory,) = found["brokers"][1]["log_dirs"]
    assert (directory["partitions"], directory["bytes"], directory["free_bytes"]) == (2, 2400, -1)


def test_report_out_of_a_snapshot_names_partitions() -> None:
    topics = [Topic("t", "id", False, 1, [row(0, in_sync=(1,)), row(1, -1, ())])]
    found = local_status.report(snapshot(made(), image(2), topics))
    assert problems(found) == [
        "1 partition has no leader (t-1)",
        "1 broker is fenced (2)",
        "1 partition lacks a replica in sync (t-0)",
    ]
