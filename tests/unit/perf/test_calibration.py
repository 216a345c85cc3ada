"""The costs of the family's model, and the rows that they are fitted to."""

from dataclasses import replace

import pytest

from perf import calibration
from perf.calibration import PLACES, ROWS, Row, calibrate, of_row
from perf.family_terms import Costs

COSTS = Costs()


@pytest.mark.thorough
def test_calibration_finds_costs_that_make_the_same_rows(monkeypatch):
    """From rows that the model itself made with other costs."""
    pytest.importorskip("numpy")
    monkeypatch.setattr(calibration, "REQUESTS", (120, 120))
    monkeypatch.setattr(calibration, "BEST", 1)
    truth = replace(COSTS, io_request=9.0, network_request=5.0)
    rows = [row for row in ROWS if row.is_calibration and row.bytes == 100]
    measured = {}
    for row in rows:
        outcome = of_row(truth, row)
        measured[row.name] = {
            "rate": outcome.rate,
            "p50_us": outcome.p50_us,
            "client_us": outcome.client_us,
            "network_us": outcome.network_us,
            "io_us": outcome.io_us,
        }
    found = calibrate(COSTS, measured, rows, steps=4, wakes=[COSTS.wake])
    unseen = Row(1024, 16, "client beside I/O worker", False)
    assert of_row(found, unseen).rate == pytest.approx(of_row(truth, unseen).rate, rel=0.1)


def test_rows_differ_and_some_of_each_place_are_kept_for_validation():
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names)) == 26
    predicted = [row for row in ROWS if not row.is_calibration]
    assert {row.where for row in predicted} == set(PLACES)
    assert {row.bytes for row in predicted} == {1024, 4096}
    assert {places.cores for row in predicted for places in [PLACES[row.where]]} == {1, 2}
