"""The catalogue: every counter of shared memory is shown, and docs/metrics.md is made of it."""

import re
import subprocess
import sys

from shmbroker.metrics import catalogue
from shmbroker.metrics.catalogue import CATALOGUE, COUNTER, GAUGE, HISTOGRAM, SECTIONS
from shmbroker.shm.counters import COUNTERS, GAUGES
from tests.tidy.sources import ROOT

SHOWN_BY_HAND = {"flush_us", "boot_ms", "delayed_reads", "delayed_appends"}
LEAST = 80


def test_there_are_many_and_each_name_is_there_once() -> None:
    names = [series.name for section in SECTIONS for series in section.series]
    assert len(names) == len(set(names)) >= LEAST


def test_names_and_kinds_are_as_prometheus_has_them() -> None:
    for series in CATALOGUE.values():
        assert re.fullmatch(r"(kafka|shmbroker)_[a-z0-9_]+", series.name)
        assert series.kind in (COUNTER, GAUGE, HISTOGRAM)
        assert series.name.endswith("_total") == (series.kind == COUNTER), series.name
        assert series.meaning and "|" not in series.meaning


def test_every_counter_and_gauge_of_shared_memory_is_shown() -> None:
    maps = (
        catalogue.OF_GATEWAYS,
        catalogue.OF_BROKERS,
        catalogue.OF_CLEANER,
        catalogue.OF_TIER,
        catalogue.OF_WORKERS,
    )
    shown = {name for each in maps for name in each}
    shown |= {*catalogue.CONNECTIONS_ENDED, *catalogue.APPENDS_REFUSED, *SHOWN_BY_HAND}
    shown |= {*catalogue.TRANSACTIONAL_IDS}
    shown |= {name + unit for name in catalogue.THROTTLED for unit in ("", "_ms")}
    assert shown == {name for name, _ in COUNTERS + GAUGES}
    assert {series for each in maps for series in each.values()} <= set(CATALOGUE)


def test_document_has_the_tables() -> None:
    script = str(ROOT / "scripts" / "make_metrics_table")
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0
