"""ListSegments is answered in the version that was asked: readers ask in 0, backups in 1."""

from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.apis.broker import list_segments
from shmbroker.replica.partition import Partitions
from shmbroker.wire import codec
from shmbroker.wire.error_codes import OFFSET_NOT_AVAILABLE, is_retriable
from tests.support.family_memory import VirtualClock


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("stop_ms", [0, 1])
def test_an_answer_has_what_its_version_has(version: int, stop_ms: int) -> None:
    name = list_segments.NAME
    body: dict[str, Any] = {"broker_id": 1, "hold_ms": 0, "topics": []}
    if version >= 1:
        body["stop_ms"] = stop_ms
    request = codec.encode(f"{name}Request", version, body)
    asked = codec.decode_request(name, version, request)
    clock = VirtualClock()
    began_ns = clock.monotonic_ns()
    broker: Any = SimpleNamespace(partitions=Partitions(), clock=clock)
    call: Any = SimpleNamespace(api_version=version)
    answer = list_segments.answer(broker, call, asked)
    read = codec.decode_all(
        f"{name}Response", version, codec.encode(f"{name}Response", version, answer)
    )
    assert read["error_code"] == 0
    if version >= 1:
        assert read["looked_ns"] == began_ns
        assert read["stopped_until_ns"] == pytest.approx(began_ns + stop_ms * 1_000_000, abs=1)
        assert clock.monotonic_ns() == read["stopped_until_ns"], "the broker stands still"


def test_backup_waits_for_a_leader_that_does_not_know_what_is_committed() -> None:
    """Else all that its high watermark does not cover yet would be missing in it."""
    partition = SimpleNamespace(is_leader=True, is_high_watermark_behind=True)
    broker: Any = SimpleNamespace(
        partitions=SimpleNamespace(find=lambda key: partition), clock=VirtualClock()
    )
    body = {
        "broker_id": 1,
        "hold_ms": 0,
        "stop_ms": 0,
        "topics": [{"topic_id": bytes(16), "partitions": [{"partition": 0}]}],
    }
    answer = list_segments.answer(broker, SimpleNamespace(api_version=1), body)  # type: ignore[arg-type]
    (row,) = answer["partitions"]
    assert row["error_code"] == OFFSET_NOT_AVAILABLE
    assert is_retriable(row["error_code"])
