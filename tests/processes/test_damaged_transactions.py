"""`__transaction_state` that was damaged while nobody ran: the ids beside the damage go on as they
were, and the one in it begins again; a torn end is cut."""

from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from shmbroker.groups.group_partition import group_partition
from shmbroker.records.batch import iterate_batches
from shmbroker.testing.broker import Broker
from shmbroker.wire import error_codes
from tests.processes.wire_cases_transactions import patiently
from tests.support.damaged_directory import forget_clean_stop
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

PARTITION = 7
NAMES = list(
    islice((name for n in count() if group_partition(name := f"id-{n}", 50) == PARTITION), 3)
)
BEFORE, HIT, BEHIND = NAMES


def init(client: RawClient, name: str) -> dict[str, Any]:
    body = {
        "transactional_id": name,
        "transaction_timeout_ms": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    found: dict[str, Any] = patiently(lambda: client.ask("InitProducerId", 4, body))
    return found


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """Three ids in one partition of `__transaction_state`, a record in a batch each."""
    with Broker(data=tmp_path) as broker, RawClient(broker.address) as client:
        body = {"key_type": 1, "coordinator_keys": [HIT]}
        patiently(lambda: client.ask("FindCoordinator", 4, body))
        assert [init(client, name)["error_code"] for name in NAMES] == [error_codes.NONE] * 3
    yield tmp_path


def log_of(data: Path) -> Path:
    return data / "node-1" / f"__transaction_state-{PARTITION}" / f"{0:020d}.log"


def positions(data: Path) -> list[int]:
    return [at for at, _ in iterate_batches(log_of(data).read_bytes())]


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean stop", "power cut"])
def test_ids_beside_a_damaged_record_go_on(data: Path, is_clean: bool) -> None:
    content = bytearray(log_of(data).read_bytes())
    content[positions(data)[2] - 4] ^= 0x10  # in the value of the second
    log_of(data).write_bytes(content)
    if not is_clean:
        forget_clean_stop(data)
    with Broker(data=data) as broker, RawClient(broker.address) as client:
        found = {name: init(client, name) for name in NAMES}
        assert {row["error_code"] for row in found.values()} == {error_codes.NONE}
        assert [found[name]["producer_epoch"] for name in NAMES] == [1, 0, 1]
        assert len({row["producer_id"] for row in found.values()}) == 3
        wait_until(lambda: f"__transaction_state-{PARTITION}" in broker.log, "its line")


def test_a_torn_end_is_cut(data: Path) -> None:
    content = log_of(data).read_bytes()
    log_of(data).write_bytes(content[: positions(data)[2] + 30])
    forget_clean_stop(data)
    with Broker(data=data) as broker, RawClient(broker.address) as client:
        assert [init(client, name)["producer_epoch"] for name in NAMES] == [1, 1, 0]
        assert f"__transaction_state-{PARTITION}" in broker.log
