"""What the family's model says of larger machines: one hot partition, and many that are spread.

Clients are on other machines. How many workers of each kind there are best is tried, as the cores
are shared out among them.
"""

from __future__ import annotations

from typing import Any

from perf.family_model import simulate
from perf.family_terms import LARGE, Costs, Host, Load, Outcome, io_kib, network_kib

WORKERS_MAX = 64
"""Of each kind: the bound of both settings."""
SPARE_CORES = {8: 1, 32: 2, 128: 8}
"""For the controller, the kernel's own threads and the interrupts of the network card."""
MEMORY_GB_S = {8: 40.0, 32: 150.0, 128: 400.0}
"""What such machines have, by their makers; a tenth of it is not to be had."""
NETWORKS = (25, 100, 200)
SIZES = (1024, 16384, LARGE)
REMOTE_THINK_US = 40.0
DEPTH = 8


def _remote(cores: int, networks: int, ios: int, gbit_s: float, memory: bool = True) -> Host:
    return Host(cores, networks, ios, True, gbit_s, MEMORY_GB_S[cores] if memory else 0.0)


def _load(host: Host, size: int) -> Load:
    """Enough connections that all workers have some, and none is alone."""
    each = max(host.network_workers, host.io_workers)
    other = min(host.network_workers, host.io_workers)
    # A count that both kinds share out evenly.
    return Load(size, DEPTH, each * max(2, other if other < 4 else 4), REMOTE_THINK_US)


def _try(costs: Costs, host: Host, size: int) -> Outcome:
    load = _load(host, size)
    in_flight = load.connections * load.depth
    return simulate(costs, host, load, 4 * in_flight if size < LARGE else 2 * in_flight)


def hot_partition(costs: Costs) -> list[dict[str, Any]]:
    """One partition, so one I/O worker: with how many network workers it is full, and how fast."""
    found = []
    for size in SIZES:
        best: dict[str, Any] = {}
        for networks in (1, 2, 3, 4, 6):
            outcome = _try(costs, _remote(8, networks, 1, 0, memory=False), size)
            if not best or outcome.rate > 1.05 * best["rate"]:
                best = {
                    "bytes": size,
                    "network_workers": networks,
                    "rate": outcome.rate,
                    "gb_s": outcome.rate * size / 1e9,
                    "full": outcome.full,
                }
        found.append(best)
    return found


def best_split(costs: Costs, cores: int, size: int) -> tuple[int, int]:
    """Network workers and I/O workers with which such a machine takes most, its network aside."""
    workers = cores - SPARE_CORES[cores]
    kib = size / 1024
    network = costs.network_request + kib * network_kib(costs, size)
    io = costs.io_request + kib * io_kib(costs, size)
    guess = workers * network / (network + io)
    best, found = (1, 1), 0.0
    tried = set()
    for shift in (-0.15, 0.0, 0.15):
        networks = min(WORKERS_MAX, max(1, round(guess + shift * workers)), workers - 1)
        ios = min(WORKERS_MAX, workers - networks)
        networks = min(networks, workers - ios)
        if (networks, ios) in tried:
            continue
        tried.add((networks, ios))
        rate = _try(costs, _remote(cores, networks, ios, 0), size).rate
        if rate > found:
            best, found = (networks, ios), rate
    return best


def machines(costs: Costs) -> list[dict[str, Any]]:
    """Many partitions, spread: for each machine, size of batch and network."""
    found = []
    for cores in MEMORY_GB_S:
        for size in SIZES:
            networks, ios = best_split(costs, cores, size)
            for gbit_s in NETWORKS:
                outcome = _try(costs, _remote(cores, networks, ios, gbit_s), size)
                found.append(
                    {
                        "cores": cores,
                        "bytes": size,
                        "network_gbit_s": gbit_s,
                        "network_workers": networks,
                        "io_workers": ios,
                        "rate": outcome.rate,
                        "gb_s": outcome.rate * size / 1e9,
                        "p50_us": outcome.p50_us,
                        "full": outcome.full,
                        "use": outcome.use,
                    }
                )
    return found
