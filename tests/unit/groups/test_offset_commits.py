"""OffsetCommit where some of it, or all, is refused."""

from typing import Any

import pytest

from shmbroker.errors import StorageFault
from shmbroker.log.partition_log import PartitionLog
from shmbroker.wire import error_codes
from tests.unit.groups.coordinator_at_work import NOT_COORDINATOR, Broker, broker

__all__ = ["broker"]

METADATA_MAX = 4096
TOO_LARGE = error_codes.OFFSET_METADATA_TOO_LARGE


def rows(*texts: str) -> list[Any]:
    return [
        (
            "t",
            bytes(16),
            {
                "partition_index": index,
                "committed_offset": 5,
                "committed_leader_epoch": -1,
                "committed_metadata": text,
            },
        )
        for index, text in enumerate(texts)
    ]


BODY = {
    "group_id": "g",
    "member_id": "",
    "group_instance_id": None,
    "generation_id_or_member_epoch": -1,
    "retention_time_ms": -1,
}


def test_metadata_has_its_limit_and_the_other_offsets_are_stored(broker: Broker) -> None:
    texts = rows("x" * METADATA_MAX, "x" * (METADATA_MAX + 1), "")
    assert broker.groups.offsets.commit(BODY, 9, texts) == [0, TOO_LARGE, 0]
    assert broker.committed() == {("t", 0): 5, ("t", 2): 5}


def test_each_offset_is_refused_for_its_own_reason(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise StorageFault("full")

    monkeypatch.setattr(PartitionLog, "append", fail)
    texts = rows("x" * (METADATA_MAX + 1), "")
    assert broker.groups.offsets.commit(BODY, 9, texts) == [TOO_LARGE, NOT_COORDINATOR]
    assert broker.names() == set()


@pytest.mark.parametrize("generation", [0, 1])
def test_no_generation_of_a_group_that_there_is_not_may_commit(
    broker: Broker, generation: int
) -> None:
    assert broker.commit(generation=generation) == error_codes.GROUP_ID_NOT_FOUND
    assert broker.commit(generation=generation, version=8) == error_codes.ILLEGAL_GENERATION
