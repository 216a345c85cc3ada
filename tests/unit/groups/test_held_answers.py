"""Answers that wait until in-sync replicas have what they tell."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.apis.broker import offset_commit
from shmbroker.broker.served_apis import handler_of
from shmbroker.groups.held_answers import HeldAnswers
from shmbroker.groups.shards import BaseShard, Sharded
from shmbroker.wire.error_codes import NOT_COORDINATOR
from tests.support.steps import finish


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


def test_answer_that_has_waited_may_be_given_again_as_it_said() -> None:
    partition: Any = Partition(0)
    held = HeldAnswers()
    given: list[Any] = []
    call: Any = SimpleNamespace(reply=lambda *answer: given.append(answer))
    assert held.hold([(partition, 1)], call, {"error_code": 0}, (8, 77))
    partition.high_watermark = 1
    held.release(partition)
    assert given == [({"error_code": 0}, (8, 77))]


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


class Shards(Sharded[BaseShard]):
    """A coordinator of one partition, whose log is empty."""

    WHAT = "names"

    def __init__(self) -> None:
        super().__init__()
        log = SimpleNamespace(log_start_offset=0, log_end_offset=0)
        self.partition: Any = SimpleNamespace(
            topic="t", partition=0, log=log, is_leader=True, high_watermark=0
        )
        self.on_partition(self.partition, 1)

    def _new_shard(self, partition: Any) -> BaseShard:
        return BaseShard(partition)

    def _load(self, shard: BaseShard) -> Iterator[None]:
        shard.is_active = True
        return iter(())

    def _on_shard_gone(self, shard: BaseShard) -> None:
        pass

    def lose(self) -> None:
        self.partition.is_leader = False
        self.on_partition(self.partition, 1)

    def lead_again(self) -> None:
        self.lose()
        self.partition.is_leader = True
        self.on_partition(self.partition, 1)

    def stay(self) -> None:
        self.on_partition(self.partition, 1)


@pytest.mark.parametrize(
    ("what", "error"),
    [(Shards.stay, 0), (Shards.lose, NOT_COORDINATOR), (Shards.lead_again, NOT_COORDINATOR)],
)
def test_another_leader_between_the_steps_of_an_answer_has_all_of_it_refused(
    monkeypatch: pytest.MonkeyPatch, what: Any, error: int
) -> None:
    """What the first step has stored may be lost with the leader that it was."""
    shards = Shards()
    broker: Any = SimpleNamespace(groups=shards)

    def answer(*_: Any) -> Iterator[None]:
        rows = [{"partition_index": 0, "error_code": 0}]
        yield
        what(shards)
        return {"topics": [{"name": "t", "partitions": rows}]}

    monkeypatch.setattr(offset_commit, "answer", answer)
    module: Any = offset_commit
    steps: Any = handler_of(broker, module)(
        SimpleNamespace(),  # type: ignore[arg-type]
        {"group_id": "g"},
    )
    body = finish(steps)
    assert body["topics"][0]["partitions"] == [{"partition_index": 0, "error_code": error}]
