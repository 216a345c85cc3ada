"""Two seconds of a list-append history. Long runs, and the other kinds: `scripts/exactly_once`."""

import pytest

from tests.exactly_once import list_append

SECONDS = 2.0


@pytest.mark.timeout(300)
def test_lists_that_are_appended_to_in_transactions_have_no_anomaly() -> None:
    report = list_append.run(3, SECONDS)
    assert report.anomalies == {}, report.lines()
    assert report.committed and report.faults and report.reads
