"""How long answers took, from the turn that has read their requests until they were sent."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.gateway.connection import Answered
    from shmbroker.shm.latencies import Latencies


def measure(answered: list[Answered], latencies: Latencies) -> None:
    """Put these into the table, and empty the list. What one connection gets together counts as
    its first."""
    histograms = latencies.histograms
    for first, received, api_key, last_received, count, now in answered:
        if first != api_key:
            latencies.of(first).add(int((now - received) * 1e6))
            received, count = last_received, count - 1
        took_us = int((now - received) * 1e6)
        found = histograms.get(api_key)
        if found is None:
            found = latencies.of(api_key)
        found.counts[took_us.bit_length()] += count
        found.sum_us += took_us * count
    answered.clear()
