"""Answers about thousands of partitions or groups are made some rows at a time."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.apis.broker import (
    consumer_group_describe,
    delete_groups,
    delete_records,
    describe_groups,
    describe_producers,
    list_groups,
    list_offsets,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
)
from shmbroker.broker.tier_port import NoTier
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_adapter import STEP_ROWS
from shmbroker.replica.partition import Partitions
from shmbroker.wire import codec, error_codes
from tests.support.family_memory import VirtualClock
from tests.support.steps import finish

ROWS = 5 * STEP_ROWS
INDEXES = range(ROWS)
NAMES = [f"g{index}" for index in INDEXES]


class Groups:
    """Groups that nobody knows; `calls` are the rows that were asked for at once."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.consumers = SimpleNamespace(describe=lambda _: self.note(1, (69, None)))
        self.offsets = self.removal = self

    def note(self, rows: int, answer: Any) -> Any:
        self.calls.append(rows)
        return answer

    def commit(self, body: Any, version: int, offsets: list[Any]) -> list[int]:
        return list(self.note(len(offsets), [0] * len(offsets)))

    def fetch(self, group_id: str, *more: Any) -> Any:
        return self.note(1, (0, []))

    def describe(self, group_id: str) -> Any:
        return self.note(1, (0, None))

    def delete(self, group_id: str) -> Any:
        return self.note(1, error_codes.GROUP_ID_NOT_FOUND)

    def delete_offsets(self, group_id: str, offsets: list[Any]) -> Any:
        return self.note(len(offsets), (0, [0] * len(offsets)))

    def list_groups(self, states: Any, types: Any) -> Any:
        group = SimpleNamespace(group_id="g", protocol_type="", state="Empty", group_type="classic")
        return 0, [group] * ROWS


def worker() -> Any:
    topic = SimpleNamespace(
        name="t", topic_id=bytes(16), is_internal=False, partitions=(None,) * ROWS
    )
    image = SimpleNamespace(
        topics_by_name={"t": topic}, topics_by_id={bytes(16): topic}, features={"group.version": 1}
    )
    return SimpleNamespace(
        image=image,
        partitions=Partitions(),
        groups=Groups(),
        tiering=NoTier(),
        clock=VirtualClock(),
    )


def partitions(**more: Any) -> list[dict[str, Any]]:
    return [{"partition_index": index} | more for index in INDEXES]


CASES: list[tuple[Any, int, dict[str, Any]]] = [
    (
        list_offsets,
        7,
        {"topics": [{"name": "t", "partitions": partitions(timestamp=-1)}]},
    ),
    (
        offset_commit,
        8,
        {"group_id": "g", "topics": [{"name": "t", "partitions": partitions(committed_offset=1)}]},
    ),
    (offset_fetch, 8, {"groups": [{"group_id": name, "topics": []} for name in NAMES]}),
    (
        offset_for_leader_epoch,
        4,
        {"topics": [{"topic": "t", "partitions": [{"partition": index} for index in INDEXES]}]},
    ),
    (describe_groups, 5, {"groups": NAMES}),
    (consumer_group_describe, 0, {"group_ids": NAMES}),
    (delete_groups, 2, {"groups_names": NAMES}),
    (offset_delete, 0, {"group_id": "g", "topics": [{"name": "t", "partitions": partitions()}]}),
    (delete_records, 2, {"topics": [{"name": "t", "partitions": partitions(offset=0)}]}),
    (describe_producers, 0, {"topics": [{"name": "t", "partition_indexes": list(INDEXES)}]}),
    (list_groups, 5, {}),
]


@pytest.mark.parametrize(
    ("module", "version", "body"), CASES, ids=[module.NAME for module, _, _ in CASES]
)
def test_a_long_answer_is_made_in_steps(module: Any, version: int, body: dict[str, Any]) -> None:
    name = module.NAME
    asked = codec.decode_request(name, version, codec.encode(name + "Request", version, body))
    broker = worker()
    steps = module.answer(broker, SimpleNamespace(api_version=version), asked)
    done = [0]
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer = end.value
            break
        done.append(sum(broker.groups.calls))
    assert len(done) - 1 >= ROWS // STEP_ROWS - 1
    asked_at_once = [after - before for before, after in pairwise(done)]
    assert max(asked_at_once) <= 2 * STEP_ROWS  # of some rows two things are asked
    encoded = codec.encode(name + "Response", version, answer)
    whole = codec.decode_all(name + "Response", version, encoded)
    assert rows_in(whole) == ROWS


@pytest.mark.parametrize(("search_s", "steps_taken"), [(0.0, 0), (1.0, 10)])
def test_a_step_ends_when_its_searches_took_long(search_s: float, steps_taken: int) -> None:
    broker = worker()

    def find(_key: bytes) -> None:
        broker.clock.sleep(search_s)

    broker.partitions = SimpleNamespace(find=find)
    asked = {
        "isolation_level": 0,
        "topics": [{"name": "t", "partitions": partitions(timestamp=1000)[:10]}],
    }
    for row in asked["topics"][0]["partitions"]:
        row["current_leader_epoch"] = -1
    steps = list_offsets.answer(broker, SimpleNamespace(api_version=7), asked)
    assert sum(1 for _ in steps) == steps_taken


def rows_in(value: Any) -> int:
    """Of the longest list."""
    if isinstance(value, dict):
        return max((rows_in(each) for each in value.values()), default=0)
    if isinstance(value, list):
        return max([len(value), *map(rows_in, value[:3])])
    return 0


def test_a_partition_that_is_named_again_and_again_makes_no_huge_answer() -> None:
    entry = SimpleNamespace(
        epoch=0, last_sequence=0, timestamp=0, coordinator_epoch=-1, current_txn_first_offset=-1
    )
    producers = SimpleNamespace(producers=dict.fromkeys(range(100), entry))
    broker = worker()
    key = partition_key(bytes(16), 0)
    broker.partitions[key] = SimpleNamespace(is_offline=False, producers=producers)
    asked = {"topics": [{"name": "t", "partition_indexes": [0] * 2000}]}
    steps = describe_producers.answer(broker, SimpleNamespace(api_version=0), asked)
    answer = finish(steps)
    (topic,) = answer["topics"]
    told = sum(len(row.get("active_producers", ())) for row in topic["partitions"])
    assert told == 100 + describe_producers.PRODUCERS_AGAIN_MAX
    assert len(topic["partitions"]) == 2000
