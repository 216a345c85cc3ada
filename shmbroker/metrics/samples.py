"""What is shown at one moment: values by series and labels, before anybody makes text of them."""

from __future__ import annotations

from collections.abc import Iterator

from shmbroker.metrics.catalogue import CATALOGUE, Series

Labels = tuple[str, ...]
Buckets = tuple[float, list[int]]
"""A histogram: the sum in seconds, and counts by bucket (`shm.latencies`)."""


class Samples:
    """Values that were gathered; a series that is not in the catalogue is a mistake."""

    def __init__(self) -> None:
        self._values: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, Buckets]] = {}

    def put(self, name: str, value: float, *labels: object) -> None:
        """Put one value; what has the same labels already is added to."""
        rows = self._values.setdefault(name, {})
        texts = self._labels(name, labels)
        rows[texts] = rows.get(texts, 0.0) + value

    def put_histogram(self, name: str, sum_s: float, counts: list[int], *labels: object) -> None:
        """Put one histogram."""
        self._histograms.setdefault(name, {})[self._labels(name, labels)] = (sum_s, counts)

    def _labels(self, name: str, labels: tuple[object, ...]) -> Labels:
        assert len(labels) == len(CATALOGUE[name].labels), name
        return tuple(map(str, labels))

    def value(self, name: str, *labels: object) -> float:
        """What was put; KeyError if nothing was."""
        return self._values[name][tuple(map(str, labels))]

    @property
    def names(self) -> set[str]:
        """The names of the series that have values."""
        return {*self._values, *self._histograms}

    def values(self) -> Iterator[tuple[Series, dict[Labels, float]]]:
        """Counters and gauges that have values, in the order of the catalogue."""
        for name, series in CATALOGUE.items():
            if name in self._values:
                yield series, self._values[name]

    def histograms(self) -> Iterator[tuple[Series, dict[Labels, Buckets]]]:
        """Histograms that have values."""
        for name, series in CATALOGUE.items():
            if name in self._histograms:
                yield series, self._histograms[name]
