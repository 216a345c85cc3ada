"""The advice that follows from facts. Pure.

A setting is advised where a trial beside the one of now showed that it gains: by the median of the
rounds' ratios at least GAIN_LEAST, in two rounds of three at least, and without a loss of more than
LOSS_MOST in another load. What is not a setting of the broker is a command for the host, which
nobody runs but its owner.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import geometric_mean, median

from shmbroker.cli.tune.facts import LOADS, MANY, Candidate, Trial, TuneFacts

GAIN_LEAST = 1.10
LOSS_MOST = 0.90
WINS_LEAST = 2 / 3
NETWORK_WORKERS = "shmbroker.network.workers"
IO_WORKERS = "shmbroker.io.workers"
RING_BYTES = "shmbroker.ring.data.bytes"
ADVISED = (NETWORK_WORKERS, IO_WORKERS, RING_BYTES)
"""Settings that are looked at."""

FEW_CORES = 4
"""Up to so many, one I/O worker is enough: a second one takes a core from clients and network
workers."""
SPARE_CORE_OF = 8
"""One core of so many is left to the kernel and the controller."""
WORKERS_MAX = 64
DIRTY_S_MOST, DIRTY_S_LEAST = 30, 2
"""How long the disk may need for what waits in the page cache, at most and at least."""
DIRTY_S = 10
BACKGROUND_SHARE = 4
DIRTY_BYTES_LEAST = 256 << 20
SOMAXCONN, SOMAXCONN_LEAST = 4096, 1024
"""The default of socket.listen.backlog.size is the least."""
OPEN_FILES, OPEN_FILES_LEAST = 1_048_576, 16_384
READ_AHEAD_GAIN = 1.2
READ_AHEAD_MOST_KB = 4096
RING_SIZES = (2 << 20, 8 << 20, 32 << 20)


@dataclass(frozen=True)
class Advice:
    """One row. command: what the host's owner would run; "": it is a setting of the broker.
    gain: a ratio that was measured, None where it follows from a rule."""

    name: str
    now: str
    advised: str
    why: str
    gain: float | None = None
    command: str = ""
    is_for_new: bool = False
    """Whether the advice is for a directory without data only: it is not applied then."""

    @property
    def is_setting(self) -> bool:
        """Whether `--apply` writes it."""
        return not self.command and not self.is_for_new


# ── candidates ──────────────────────────────────────────────────────────────────────────────────


def candidates(cores: int, settings: dict[str, str]) -> list[Candidate]:
    """What is tried on a host with so many cores, beside the settings of now."""
    now = int(settings[NETWORK_WORKERS])
    numbers = {1, 2, 4, now * 2} if cores > FEW_CORES else {1, 2, 3}
    found = [
        Candidate(f"{number} network worker{'s' * (number > 1)}", {NETWORK_WORKERS: str(number)})
        for number in sorted(numbers)
        if number != now and number < max(cores, 3) and number <= WORKERS_MAX
    ]
    found += [
        Candidate(f"rings of {size >> 20} MiB", {RING_BYTES: str(size)})
        for size in RING_SIZES
        if size != int(settings[RING_BYTES])
    ]
    if cores > 1:
        found.append(Candidate("workers pinned to cores", pins=True))
    return found


# ── gains ───────────────────────────────────────────────────────────────────────────────────────


def ratios(trial: Trial, baseline: Trial, load: str) -> list[float]:
    """Round by round: how many times as fast as the settings of now."""
    return [
        mine / theirs
        for mine, theirs in zip(trial.rates[load], baseline.rates[load], strict=False)
        if theirs
    ]


def gain(trial: Trial, baseline: Trial) -> float | None:
    """The mean over the loads of the medians; None where it does not gain, or not for sure."""
    medians: list[float] = []
    rounds: list[list[float]] = []
    for load in LOADS:
        each = ratios(trial, baseline, load)
        if not each:
            return None
        medians.append(median(each))
        rounds.append(each)
    whole = [geometric_mean(of_round) for of_round in zip(*rounds, strict=False)]
    wins = sum(ratio > 1 for ratio in whole) / len(whole)
    mean = geometric_mean(medians)
    if mean < GAIN_LEAST or wins < WINS_LEAST or min(medians) < LOSS_MOST:
        return None
    return mean


# ── advice ──────────────────────────────────────────────────────────────────────────────────────


def advise(facts: TuneFacts) -> list[Advice]:
    """Everything that would be changed, the broker's settings first."""
    return [
        *_by_trial(facts),
        *_io_workers(facts),
        *_dirty_pages(facts),
        *_read_ahead(facts),
        *_huge_pages(facts),
        *_backlog(facts),
        *_open_files(facts),
    ]


def _by_trial(facts: TuneFacts) -> list[Advice]:
    """The candidate of each setting that gains most."""
    best: dict[str, tuple[float, Candidate]] = {}
    for trial in facts.trials:
        if facts.baseline is None or not trial.candidate.settings:
            continue
        found = gain(trial, facts.baseline)
        (name,) = trial.candidate.settings
        if found is not None and found > best.get(name, (0.0,))[0]:
            best[name] = (found, trial.candidate)
    return [
        Advice(
            name,
            facts.settings[name],
            candidate.settings[name],
            f"{candidate.name} took {found:.2f} times as many requests",
            found,
        )
        for name, (found, candidate) in best.items()
    ]


def split(cores: int, network_us: float, io_us: float) -> tuple[int, int]:
    """Network workers and I/O workers that fill so many cores, by what a request costs each."""
    workers = max(2, cores - max(1, cores // SPARE_CORE_OF))
    networks = round(workers * network_us / (network_us + io_us))
    networks = min(max(1, networks), workers - 1, WORKERS_MAX)
    return networks, min(workers - networks, WORKERS_MAX)


def _io_workers(facts: TuneFacts) -> list[Advice]:
    network_us, io_us = (facts.cpu_us.get(role, 0.0) for role in ("network-worker", "io-worker"))
    cores, now = facts.system.cores, facts.settings.get(IO_WORKERS)
    if cores <= FEW_CORES or not network_us or not io_us or now is None:
        return []
    networks, ios = split(cores, network_us, io_us)
    if ios <= int(now):
        return []
    return [
        Advice(
            IO_WORKERS,
            now,
            str(ios),
            f"with {networks} network workers, by {network_us:.1f} and {io_us:.1f} us of CPU a "
            "request; each is a broker: only for a new data directory with many partitions",
            is_for_new=True,
        )
    ]


def _dirty_pages(facts: TuneFacts) -> list[Advice]:
    system, rate = facts.system, facts.costs.write_rate
    if system.dirty_ratio is None or not system.memory_bytes or not rate:
        return []
    most = system.dirty_bytes or system.dirty_ratio * system.memory_bytes // 100
    seconds = most / rate
    if DIRTY_S_LEAST <= seconds <= DIRTY_S_MOST:
        return []
    wanted = max(DIRTY_BYTES_LEAST, _round_mib(rate * DIRTY_S))
    wanted = min(wanted, system.memory_bytes // 4)
    if wanted == most:
        return []
    why = f"the disk writes {rate / 1e6:,.0f} MB/s: what may wait takes it {seconds:,.0f} s"
    return [
        Advice(
            "vm.dirty_bytes",
            f"{most >> 20} MiB",
            f"{wanted >> 20} MiB",
            why,
            command=f"sysctl -w vm.dirty_bytes={wanted} "
            f"vm.dirty_background_bytes={wanted // BACKGROUND_SHARE}",
        )
    ]


def _round_mib(size: float) -> int:
    """The size rounded to 64 MiB, at least that."""
    return max(1, round(size / (64 << 20))) * (64 << 20)


def _read_ahead(facts: TuneFacts) -> list[Advice]:
    cold, ahead = facts.costs.cold_read_rate, facts.costs.ahead_read_rate
    now, disk = facts.system.read_ahead_kb, facts.system.disk
    if not cold or not ahead or now is None or disk is None or now >= READ_AHEAD_MOST_KB:
        return []
    found = ahead / cold
    if found < READ_AHEAD_GAIN:
        return []
    wanted = min(READ_AHEAD_MOST_KB, max(1, now) * 2)
    return [
        Advice(
            "read_ahead_kb",
            str(now),
            str(wanted),
            f"a cold file was read at {ahead / 1e6:,.0f} MB/s, not {cold / 1e6:,.0f}",
            found,
            f"echo {wanted} > /sys/block/{disk}/queue/read_ahead_kb",
        )
    ]


def _huge_pages(facts: TuneFacts) -> list[Advice]:
    if facts.system.huge_pages != "always":
        return []
    return [
        Advice(
            "transparent_hugepage",
            "always",
            "madvise",
            "a family is many small processes, which it makes larger",
            command="echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )
    ]


def _backlog(facts: TuneFacts) -> list[Advice]:
    now = facts.system.somaxconn
    if now is None or now >= SOMAXCONN_LEAST:
        return []
    return [
        Advice(
            "net.core.somaxconn",
            str(now),
            str(SOMAXCONN),
            "it bounds socket.listen.backlog.size: clients that come all at once are refused",
            command=f"sysctl -w net.core.somaxconn={SOMAXCONN}",
        )
    ]


def _open_files(facts: TuneFacts) -> list[Advice]:
    now = facts.system.open_files
    if now is None or now >= OPEN_FILES_LEAST:
        return []
    return [
        Advice(
            "open files",
            str(now),
            str(OPEN_FILES),
            "connections and segments are open files",
            command=f"ulimit -Hn {OPEN_FILES}, or LimitNOFILE={OPEN_FILES} in a unit",
        )
    ]


def notes(facts: TuneFacts) -> list[str]:
    """What was tried and is no advice: sentences."""
    found = []
    for trial in facts.trials:
        if facts.baseline is None:
            break
        each = {load: ratios(trial, facts.baseline, load) for load in LOADS}
        if not all(each.values()):
            continue
        told = ", ".join(f"{load} {median(of_load):.2f}" for load, of_load in each.items())
        rounds = len(each[MANY])
        found.append(f"{trial.candidate.name}: {told} times the requests/s, {rounds} rounds")
    return found
