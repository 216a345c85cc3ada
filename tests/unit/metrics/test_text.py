"""The text: what a parser of Prometheus reads out of it, in both formats."""

import pytest

from shmbroker.metrics.samples import Samples
from shmbroker.shm.latencies import BUCKETS

pytest.importorskip("prometheus_client")

from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from shmbroker.metrics import text

OPEN = "application/openmetrics-text; version=1.0.0"
NAME = 'a "b"\\c\n'
"""Of a group, which may be anything."""


def samples() -> Samples:
    made = Samples()
    made.put("shmbroker_turns_total", 12, "io-worker-1")
    made.put("kafka_consumergroup_members", 3, NAME)
    counts = [0] * BUCKETS
    counts[3], counts[8], counts[-1] = 1, 2, 4
    made.put_histogram("shmbroker_request_seconds", 7.5, counts, "network-worker-1", "Fetch")
    return made


@pytest.mark.parametrize(
    ("accept", "parse"),
    [
        ("", parser.text_string_to_metric_families),
        (OPEN, openmetrics_parser.text_string_to_metric_families),
    ],
)
def test_parser_reads_what_was_put(accept, parse):
    raw, content_type = text.encode(samples(), accept)
    assert ("openmetrics" in content_type) == bool(accept)
    rows = {
        (row.name, tuple(sorted(row.labels.items()))): row.value
        for family in parse(raw.decode())
        for row in family.samples
    }
    assert rows["shmbroker_turns_total", (("process", "io-worker-1"),)] == 12
    assert rows["kafka_consumergroup_members", (("consumergroup", NAME),)] == 3
    buckets = {
        dict(labels)["le"]: value
        for (name, labels), value in rows.items()
        if name == "shmbroker_request_seconds_bucket"
    }
    assert buckets["3.2e-05"] == 1
    assert buckets["0.000128"] == 1 and buckets["0.000256"] == 3
    assert buckets["+Inf"] == 7
    assert list(buckets.values()) == sorted(buckets.values())
    labels = (("process", "network-worker-1"), ("request", "Fetch"))
    assert rows["shmbroker_request_seconds_sum", labels] == 7.5


def test_series_that_is_not_in_the_catalogue_is_a_mistake():
    with pytest.raises(KeyError):
        Samples().put("shmbroker_nothing", 1)
    with pytest.raises(AssertionError):
        Samples().put("shmbroker_turns_total", 1)
