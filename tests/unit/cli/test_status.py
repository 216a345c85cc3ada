"""What `status` takes for a problem."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker import clock
from shmbroker.cli import numbers, status
from shmbroker.cli.status import problems
from shmbroker.wire import error_codes


def report(**changes: Any) -> dict[str, Any]:
    """Two brokers and nothing wrong."""
    directory = {
        "path": "/d",
        "error_code": 0,
        "partitions": 1,
        "bytes": 10,
        "free_bytes": 50 << 30,
        "disk_bytes": 100 << 30,
    }
    return {
        "brokers": [{"id": 1, "log_dirs": [directory]}, {"id": 2, "log_dirs": None}],
        "fenced_brokers": [],
        "quorum": {"leader": 1, "epoch": 1, "voters": [1], "absent": [], "behind": 0},
        "offline": [],
        "unopened": [],
        "under_replicated": [],
        "replica_holders": [1, 2],
    } | changes


def with_disk(**changes: Any) -> dict[str, Any]:
    found = report()
    found["brokers"][0]["log_dirs"][0] |= changes
    return found


CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "well": (report(), []),
    "nothing told": (report(quorum=None, fenced_brokers=None), []),
    "no leader": (
        report(offline=["t-0", "t-1"]),
        ["2 partitions have no leader (t-0, t-1)"],
    ),
    "not open": (
        report(unopened=["t-0"]),
        ["1 partition is not open at its leader (t-0): the broker's log says why"],
    ),
    "one lacks": (
        report(under_replicated=["t-0"]),
        ["1 partition lacks a replica in sync (t-0)"],
    ),
    "many lack": (
        report(under_replicated=[f"t-{n}" for n in range(9)]),
        ["9 partitions lack a replica in sync (t-0, t-1, t-2, t-3, t-4, …)"],
    ),
    "holder gone": (report(replica_holders=[1, 2, 3]), ["1 broker is not there (3)"]),
    "fenced": (
        report(fenced_brokers=[2, 3], replica_holders=[2, 3, 4]),
        ["2 brokers are fenced (2, 3)", "1 broker is not there (4)"],
    ),
    "no controller": (
        report(quorum={"leader": None, "epoch": None, "voters": [], "absent": [], "behind": None}),
        ["there is no active controller"],
    ),
    "controller gone": (
        report(quorum={"leader": 1, "epoch": 1, "voters": [1, 2, 3], "absent": [2], "behind": 0}),
        ["1 controller is not there (2)"],
    ),
    "directory failed": (
        with_disk(error_code=56),
        ["log directory /d of broker 1 failed"],
    ),
    "disk nearly full": (
        with_disk(free_bytes=1 << 30),
        ["the disk of log directory /d of broker 1 is nearly full, 1.0 GiB are free"],
    ),
    "small disk, half free": (with_disk(free_bytes=1 << 30, disk_bytes=2 << 30), []),
    "large disk, a hundredth free": (with_disk(free_bytes=40 << 30, disk_bytes=4 << 40), []),
    "free is not told": (with_disk(free_bytes=-1, disk_bytes=-1), []),
}


@pytest.mark.parametrize(("found", "said"), CASES.values(), ids=list(CASES))
def test_problems_are_named(found: dict[str, Any], said: list[str]) -> None:
    assert problems(found) == said


def test_what_is_worse_comes_first() -> None:
    said = problems(report(offline=["a-0"], under_replicated=["b-0"], replica_holders=[7]))
    assert [text.split("(")[1].split(")")[0] for text in said] == ["a-0", "7", "b-0"]


def test_partition_that_its_leader_does_not_hold_is_not_open() -> None:
    def topic(*leaders: int) -> Any:
        rows = [SimpleNamespace(id=n, leader=leader) for n, leader in enumerate(leaders)]
        return SimpleNamespace(partitions={row.id: row for row in rows})

    def holding(error_code: int, *numbers: int) -> Any:
        rows = [{"partition_index": number} for number in numbers]
        return [{"error_code": error_code, "topics": [{"name": "t", "partitions": rows}]}]

    topics = {"t": topic(1, 2, -1, 1), "u": topic(1, 3, 4)}
    held = {1: holding(0, 0), 2: holding(0, 1, 3), 3: holding(56), 4: None}
    assert status.unopened_of(topics, held) == ["t-3", "u-0"]


@pytest.mark.parametrize(
    ("looks", "lasting"),
    [
        ([[]], []),
        ([["t-0", "t-1"], []], []),
        ([["t-0", "t-1"], ["t-1", "t-2"], ["t-1"]], ["t-1"]),
        ([["t-0"], ["t-0"]], ["t-0"]),
    ],
)
def test_what_gets_less_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch, looks: list[list[str]], lasting: list[str]
) -> None:
    """As partitions of a new topic, which are opened one after the other."""
    slept: list[float] = []
    monkeypatch.setattr(clock, "sleep", slept.append)
    first, *others = looks
    remaining = iter(others)
    assert status.lasting(first, lambda: next(remaining)) == lasting
    assert len(slept) == len(others) and next(remaining, None) is None


def answered(value: Any) -> Any:
    """A future with this result, or this exception."""
    future: Future[Any] = Future()
    if isinstance(value, Exception):
        future.set_exception(value)
    else:
        future.set_result(value)
    return future


class Admin:
    """A client library of a cluster where some coordinators do not answer."""

    def __init__(self, groups: Any, offsets: dict[str, Any]) -> None:
        self.groups = groups
        self.offsets = offsets

    def list_consumer_groups(self, request_timeout: float) -> Any:
        return answered(self.groups)

    def list_consumer_group_offsets(self, asked: list[Any], request_timeout: float) -> Any:
        name = asked[0].group_id
        return {name: answered(self.offsets[name])}


def test_groups_that_do_not_answer_do_not_hide_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    silent = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    monkeypatch.setattr(status, "offsets_known", lambda *_: {("t", 0): 10})
    listing = SimpleNamespace(
        valid=[
            SimpleNamespace(group_id=name, state=SimpleNamespace(name="EMPTY"))
            for name in ("a", "b", "c")
        ]
    )
    here = SimpleNamespace(topic_partitions=[TopicPartition("t", 0, 4), TopicPartition("u", 0, 1)])
    done = SimpleNamespace(topic_partitions=[TopicPartition("t", 0, 10)])
    admin = Admin(listing, {"a": done, "b": silent, "c": here})
    assert status.groups_of(None, admin) == [  # type: ignore[arg-type]
        {"group": "c", "state": "empty", "lag": 6},
        {"group": "a", "state": "empty", "lag": 0},
        {"group": "b", "state": "empty", "lag": None},
    ]
    assert status.groups_of(None, Admin(silent, {})) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (5 << 40, "5.0 TiB"),
        (1 << 60, "1048576.0 TiB"),
    ],
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert numbers.size_text(count) == text


@pytest.mark.parametrize(
    ("error", "quorum"), [("CLUSTER_AUTHORIZATION_FAILED", None), ("INVALID_REQUEST", {})]
)
def test_who_may_not_ask_for_the_controllers_is_not_told_that_there_are_none(
    monkeypatch: pytest.MonkeyPatch, error: str, quorum: dict[str, Any] | None
) -> None:
    from shmbroker.client import admin, faults

    def describe_quorum(_: Any) -> None:
        faults.refuse(getattr(error_codes, error), "the controllers")

    monkeypatch.setattr(admin, "describe_quorum", describe_quorum)
    if quorum is None:
        with pytest.raises(faults.DeniedFault, match="not authorized for the cluster"):
            status.quorum_of([])
    else:
        found = status.quorum_of([])
        assert found is not None
        assert found["leader"] is None
