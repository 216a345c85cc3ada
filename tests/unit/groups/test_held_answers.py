"""Answers that wait until in-sync replicas have what they tell."""

from types import SimpleNamespace
from typing import Any

from shmbroker.groups.held_answers import HeldAnswers
from shmbroker.wire.error_codes import NOT_COORDINATOR


class Partition:
    def __init__(self, high_watermark: int) -> None:
        self.high_watermark = high_watermark


class Asked:
    """One coordinator's answers, and those that have left."""

    def __init__(self) -> None:
        self.held = HeldAnswers()
        self.left: list[dict[str, Any]] = []

    def hold(self, body: dict[str, Any], *needs: tuple[Any, int]) -> bool:
        call: Any = SimpleNamespace(reply=lambda body, _grant=None: self.left.append(body))
        return self.held.hold(list(needs), call, body, None)


def test_answer_waits_until_all_of_the_log_that_it_tells_is_replicated() -> None:
    asked, partition = Asked(), Partition(4)
    known: Any = partition
    assert asked.hold({"number": 1}, (partition, 5))
    assert asked.hold({"number": 2}, (partition, 6))
    asked.held.release(known)
    assert asked.left == []
    partition.high_watermark = 5
    asked.held.release(known)
    assert asked.left == [{"number": 1}]
    partition.high_watermark = 6
    asked.held.release(known)
    assert asked.left == [{"number": 1}, {"number": 2}]
    assert len(asked.held) == 0


def test_answer_does_not_wait_for_what_is_replicated_already() -> None:
    asked, partition = Asked(), Partition(5)
    assert not asked.hold({}, (partition, 5))
    assert not asked.hold({}, (partition, 4), (Partition(0), 0))
    assert len(asked.held) == 0


def test_answer_waits_for_each_of_its_partitions() -> None:
    asked = Asked()
    one, done, other = Partition(0), Partition(9), Partition(0)
    places: list[Any] = [one, done, other]
    assert asked.hold({"number": 1}, *((place, 9) for place in places))
    one.high_watermark = 9
    asked.held.release(places[0])
    assert asked.left == [], "the last one lacks it"
    other.high_watermark = 9
    asked.held.release(places[2])
    assert asked.left == [{"number": 1}]


def test_another_leader_has_every_error_in_an_answer_set() -> None:
    asked, partition = Asked(), Partition(0)
    known: Any = partition
    rows = [{"partition": 0, "error_code": 0}, {"partition": 1, "partition_error_code": 0}]
    assert asked.hold({"topics": [{"name": "t", "rows": rows}]}, (partition, 1))
    asked.held.fail(known, NOT_COORDINATOR)
    [body] = asked.left
    assert body["error_code"] == NOT_COORDINATOR
    assert body["topics"][0]["rows"] == [
        {"partition": 0, "error_code": NOT_COORDINATOR},
        {"partition": 1, "partition_error_code": NOT_COORDINATOR},
    ]
    asked.held.release(known)
    assert len(asked.left) == 1
