"""Lines, and the document that is made of them."""

import json
import re

import pytest

from perf import calibration, growth
from perf.family_terms import Costs

pytest.importorskip("numpy")


def test_points_on_a_line_give_that_line():
    line = growth.fit([1, 10, 100, 1000], [5 + 0.25 * x for x in (1, 10, 100, 1000)])
    assert line["intercept"] == pytest.approx(5)
    assert line["slope"] == pytest.approx(0.25)
    assert line["residual"] == pytest.approx(0, abs=1e-6)
    assert growth.grows(line)


def test_first_point_counts_as_much_as_the_last():
    """Off by a tenth at the far end: the near end must not pay for it in full."""
    line = growth.fit([1, 1000, 1_000_000], [10, 11, 1.1 * 1010])
    assert line["intercept"] == pytest.approx(10, rel=0.03)


@pytest.mark.parametrize(
    ("ys", "grows"),
    [([50, 50, 50, 50], False), ([50, 55, 48, 51], False), ([50, 60, 70, 80], True)],
)
def test_what_strays_more_than_it_rises_does_not_grow(ys, grows):
    assert growth.grows(growth.fit([1, 2, 3, 4], ys)) is grows


def row(axis, x, **figures):
    return {"case": f"{axis}: {x}", "axis": axis, "x": x, "A": figures}


def test_lines_are_made_of_the_figures_that_all_rows_have():
    cases = [row("partitions", x, p50_us=10 + x, pss_mib=30) for x in (1, 2, 3)]
    cases[0]["A"]["cpu_us_per_request"] = 1
    assert set(growth.lines(cases)) == {"partitions"}
    assert set(growth.lines(cases)["partitions"]) == {"p50_us", "pss_mib"}


def off(share):
    return {"measured": 100.0, "model": 100.0 * (1 + share), "off": share}


def predicted(rate, p50=0.0, network=0.0, io=0.0, is_calibration=False):
    figures = {"rate": off(rate), "p50_us": off(p50), "network_us": off(network), "io_us": off(io)}
    return {
        "row": "r",
        "is_calibration": is_calibration,
        "figures": figures | {"client_us": off(0)},
    }


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([predicted(0.1), predicted(-0.14)], "Of 2 rows .* in 2\\. .* 14% in the rate"),
        ([predicted(0.1), predicted(0.3)], "in 1\\. .* no better than that"),
        ([predicted(0.1, network=0.3, io=-0.3)], "in 1\\. "),
        ([predicted(0.5, is_calibration=True), predicted(0.0)], "Of 1 rows .* in 1\\. "),
    ],
)
def test_verdict_is_of_the_rows_that_were_not_seen(rows, says):
    assert re.search(says, growth.verdict(rows))


def test_document_has_a_place_for_every_block_and_filling_it_twice_changes_nothing():
    text = growth.DOCUMENT.read_text(encoding="utf-8")
    once = growth.filled(text, None)
    assert growth.filled(once, None) == once
    for name, content in growth.blocks(None).items():
        assert f"<!-- figures: {name} -->\n{content}\n<!-- end of figures -->" in once


def test_document_is_what_the_result_says():
    """`perf/scaling --document` makes it so."""
    result = json.loads(growth.RESULT.read_text()) if growth.RESULT.exists() else None
    text = growth.DOCUMENT.read_text(encoding="utf-8")
    assert text == growth.filled(text, result), "run perf/scaling --document"


def test_rings_of_one_worker_each_are_a_ring_to_and_one_from():
    assert growth.ring_mib(1, 1) == 10
    assert growth.ring_mib(2, 3) == 60 + 12


def result_of_the_model():
    """A result whose closed loops are the model's own: it predicts them all."""
    costs = Costs()
    measured = {}
    for each in calibration.ROWS:
        outcome = calibration.of_row(costs, each, 1500)
        measured[each.name] = {name: getattr(outcome, name) for name in calibration.WEIGHTS}
    machine = {"cores": 8, "bytes": 1024, "network_workers": 4, "io_workers": 3, "gb_s": 0.25}
    machine |= {"network_gbit_s": 25, "rate": 250_000.0, "full": "I/O workers"}
    cases = [row("partitions", x, p50_us=10 + x, pss_mib=30) for x in (1, 100, 2000)]
    return {
        "environment": {
            "cpu": "a processor", "cores": 2, "memory_gib": 8.0, "kernel": "6.1", "python": "3.11",
            "load_average_before": 0.1, "commit": "0123456789ab",
        },
        "lines": growth.lines(cases),
        "model": {
            "rows": calibration.predictions(costs, measured),
            "hot_partition": [machine],
            "machines": [machine],
        },
    }  # fmt: skip


@pytest.mark.thorough
def test_figures_of_a_result_get_into_the_document(tmp_path):
    path, document = tmp_path / "scaling.json", tmp_path / "scaling.md"
    path.write_text(json.dumps(result_of_the_model()))
    document.write_text(growth.DOCUMENT.read_text(encoding="utf-8"), encoding="utf-8")
    growth.write_document(path, document)
    text = document.read_text(encoding="utf-8")
    count = sum(not each.is_calibration for each in calibration.ROWS)
    assert "| partitions | 1,000 partitions |  |  |  | 10 + 1,000 (0%) | 30 (0%) |" in text
    assert f"Of {count} rows that it was not calibrated on" in text
    assert f"within {growth.SHARE_MOST:.0%} in {count}." in text
    assert "| 8 | 1 KiB | 0.25, I/O workers |  |  |" in text
    assert "| 8 | 1 KiB | 4 | 3 | 132 |" in text
    assert "a processor, 2 cores" in text
