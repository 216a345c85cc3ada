"""What a broker shows of open transactions: how many, how far readers are held back, which hang."""

from pathlib import Path

from shmbroker.broker.open_transactions import LATE_MS, open_transactions
from shmbroker.log.markers import append_marker
from shmbroker.records.end_marker import EndMarker
from tests.unit.broker.test_group_commit import NOW_MS
from tests.unit.broker.test_read_committed import Leader

TIMEOUT_MS = 900_000


def test_open_transactions_are_counted_with_their_lag(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    other = leader.open("u")
    partitions = [leader.partition, other]

    def found(now_ms: int = NOW_MS) -> tuple[int, int, int]:
        return open_transactions(partitions, now_ms, TIMEOUT_MS)

    assert found() == (0, 0, 0)
    for producer_id in (7, 8, 7):
        leader.write(producer_id)
    assert found() == (2, 3, 0)
    leader.write(9, partition=other)
    assert found() == (3, 3, 0)
    last_ms = NOW_MS + TIMEOUT_MS + LATE_MS
    assert found(last_ms) == (3, 3, 0)
    assert found(last_ms + 1) == (3, 3, 2)
    append_marker(leader.partition.log, EndMarker(7, 0, 1, True), NOW_MS, 0, NOW_MS)
    leader.partition.advance_high_watermark()
    assert found() == (2, 3, 0)
    other.is_leader = False
    assert found() == (1, 3, 0)
