"""A short history under faults. Many and long ones: `scripts/histories`."""

import pytest

from tests.histories import workload
from tests.histories.checker import anomalies

# A seed that ever failed is added here.
SEEDS = (1,)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.timeout(240)
def test_history_has_no_anomaly(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    history = workload.run(seed, 5, print)
    assert anomalies(history) == {}
    assert history.acked and history.commits
