"""Samples as text, in the format that is asked for: Prometheus' own or OpenMetrics.

Stands on `prometheus_client`, which only the process that shows metrics imports, and only there.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

from shmbroker.metrics.catalogue import COUNTER
from shmbroker.metrics.samples import Samples
from shmbroker.shm.latencies import BUCKETS

SHORTEST = 5
"""Buckets below 2**5 microseconds are shown as one."""
BOUNDS_S = [2**number / 1e6 for number in range(SHORTEST, BUCKETS - 1)]


def encode(samples: Samples, accept: str) -> tuple[bytes, str]:
    """The text, and its content type; `accept`: the header of the request."""
    encoder, content_type = choose_encoder(accept)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(samples))
    return encoder(registry), content_type


class _Collector:
    """What a registry asks."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        for series, rows in self._samples.values():
            family: CounterMetricFamily | GaugeMetricFamily
            if series.kind == COUNTER:
                family = CounterMetricFamily(series.name, series.meaning, labels=series.labels)
            else:
                family = GaugeMetricFamily(series.name, series.meaning, labels=series.labels)
            for labels, value in rows.items():
                family.add_metric(labels, value)
            yield family
        for series, histograms in self._samples.histograms():
            shown = HistogramMetricFamily(series.name, series.meaning, labels=series.labels)
            for labels, (sum_s, counts) in histograms.items():
                shown.add_metric(labels, _cumulative(counts), sum_s)
            yield shown


def _cumulative(counts: list[int]) -> list[tuple[str, float]]:
    """Counts by bucket as Prometheus has them: all that took at most so long."""
    found: list[tuple[str, float]] = []
    so_far = sum(counts[:SHORTEST])
    for number, bound in enumerate(BOUNDS_S, SHORTEST):
        so_far += counts[number]
        found.append((f"{bound:g}", so_far))
    found.append(("+Inf", so_far + sum(counts[BUCKETS - 1 :])))
    return found
