"""What shared memory says of the family: counters, states, rings, latencies. It asks nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shmbroker.metrics import catalogue
from shmbroker.shm.counters import (
    DISK,
    DISK_HAS_FAILED,
    DISK_IS_FULL,
    INCARNATION,
    LIVENESS_NS,
    METADATA_APPLIED,
    METADATA_END_OFFSET_WORD,
    OPEN_CONNECTIONS,
    PID,
    STARTED_MS,
    STATE,
    STATE_NONE,
    STATE_RUNNING,
    STATE_STARTING,
    STATE_STOPPING,
    STATE_UNABLE,
    Counters,
)
from shmbroker.shm.latencies import (
    OTHERS,
    STAGE_ANSWER,
    STAGE_APPEND,
    STAGE_FLUSH,
    STAGE_NETWORK,
    STAGE_PURGATORY,
    STAGE_RING,
    read_table,
)
from shmbroker.shm.ring_layout import CAPACITY_WORD, HEAD_WORD, TAIL_WORD
from shmbroker.shm.words import words_of
from shmbroker.wire.api_keys import name_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.metrics.samples import Samples

SUPERVISOR, NETWORK_WORKER, IO_WORKER = "supervisor", "network-worker", "io-worker"
CONTROLLER, CLEANER, TIER = "controller", "cleaner", "tier"
"""Roles; `processes.shared_resources` has them."""
STATES = {
    STATE_NONE: "none",
    STATE_STARTING: "starting",
    STATE_RUNNING: "running",
    STATE_STOPPING: "stopping",
    STATE_UNABLE: "unable",
}
_KAFKA_STATES = {STATE_NONE: 0, STATE_STARTING: 2, STATE_RUNNING: 3, STATE_STOPPING: 6}
_KAFKA_UNKNOWN = 127
_STAGES = {
    STAGE_NETWORK: "network",
    STAGE_RING: "ring_wait",
    STAGE_APPEND: "append",
    STAGE_PURGATORY: "purgatory",
    STAGE_FLUSH: "flush",
    STAGE_ANSWER: "answer",
}


class Process(NamedTuple):
    """A slot of the family."""

    slot: int
    role: str
    number: int
    title: str


class Family(NamedTuple):
    """What is looked at: mapped shared memory and who has which slot."""

    counters: Counters
    processes: Sequence[Process]
    rings: Mapping[tuple[int, int], memoryview]
    """By the slots of who writes and who reads."""
    latencies: Mapping[int, memoryview]
    """By slot."""

    def of_role(self, role: str) -> list[Process]:
        """Its processes, of one role."""
        return [process for process in self.processes if process.role == role]

    def word(self, process: Process, field: int) -> int:
        """A field of its slot."""
        return self.counters.words[self.counters.at(process.slot, field)]

    def counted(self, process: Process, name: str) -> int:
        """A counter or gauge of its slot."""
        return self.counters.words[self.counters.counter(process.slot, name)]


def gather(samples: Samples, family: Family, now_s: float) -> None:
    """All of it; now_s: the monotonic clock."""
    for process in family.processes:
        if process.role != SUPERVISOR:
            _state(samples, family, process, now_s)
    for process in family.of_role(NETWORK_WORKER) + family.of_role(IO_WORKER):
        for name, series in catalogue.OF_WORKERS.items():
            samples.put(series, family.counted(process, name), process.title)
    for process in family.of_role(NETWORK_WORKER):
        _network_worker(samples, family, process)
    for process in family.of_role(IO_WORKER):
        _broker(samples, family, process)
    for role, names in ((CLEANER, catalogue.OF_CLEANER), (TIER, catalogue.OF_TIER)):
        for process in family.of_role(role):
            for name, series in names.items():
                samples.put(series, family.counted(process, name), process.title)
    _rings(samples, family)
    _latencies(samples, family)
    epoch, leader, is_active = family.counters.metadata_leader()
    samples.put("kafka_controller_kafkacontroller_activecontrollercount", is_active)
    samples.put("kafka_server_raftmetrics_current_leader", leader if is_active else -1)
    samples.put("kafka_server_raftmetrics_current_epoch", epoch)
    committed = family.counters.words[METADATA_END_OFFSET_WORD]
    samples.put("kafka_server_raftmetrics_high_watermark", committed)
    samples.put("shmbroker_controllers", len(family.of_role(CONTROLLER)))


def _state(samples: Samples, family: Family, process: Process, now_s: float) -> None:
    title, state = process.title, family.word(process, STATE)
    samples.put("shmbroker_process_up", state == STATE_RUNNING, title)
    for number, name in STATES.items():
        samples.put("shmbroker_process_state", state == number, title, name)
    restarts = max(0, family.word(process, INCARNATION) - 1)
    samples.put("shmbroker_process_restarts_total", restarts, title)
    if not family.word(process, PID):
        return
    samples.put(
        "shmbroker_process_start_time_seconds", family.word(process, STARTED_MS) / 1000, title
    )
    signed_s = family.word(process, LIVENESS_NS) / 1e9
    if signed_s:
        samples.put("shmbroker_process_silence_seconds", max(0.0, now_s - signed_s), title)
    boot_s = family.counted(process, "boot_ms") / 1000
    if state == STATE_RUNNING:
        samples.put("shmbroker_process_boot_seconds", boot_s, title)


def _metadata_lag(samples: Samples, family: Family, process: Process) -> None:
    committed = family.counters.words[METADATA_END_OFFSET_WORD]
    lag = max(0, committed - family.word(process, METADATA_APPLIED))
    samples.put("shmbroker_metadata_lag_records", lag, process.title)


def _network_worker(samples: Samples, family: Family, process: Process) -> None:
    title = process.title
    is_up = family.word(process, PID) != 0
    opened = family.word(process, OPEN_CONNECTIONS) if is_up else 0
    samples.put("kafka_server_socketservermetrics_connection_count", opened, title)
    for name, series in catalogue.OF_NETWORK_WORKERS.items():
        samples.put(series, family.counted(process, name), title)
    for name, reason in catalogue.CONNECTIONS_ENDED.items():
        count = family.counted(process, name)
        samples.put("shmbroker_connections_ended_total", count, title, reason)
    for name, reason in catalogue.APPENDS_REFUSED.items():
        count = family.counted(process, name)
        samples.put("shmbroker_appends_refused_total", count, title, reason)
    _metadata_lag(samples, family, process)


def _broker(samples: Samples, family: Family, process: Process) -> None:
    number, state = process.number, family.word(process, STATE)
    samples.put(
        "kafka_server_kafkaserver_brokerstate", _KAFKA_STATES.get(state, _KAFKA_UNKNOWN), number
    )
    for name, series in catalogue.OF_BROKERS.items():
        samples.put(series, family.counted(process, name), number)
    for name, kind in (("delayed_reads", "Fetch"), ("delayed_appends", "Produce")):
        count = family.counted(process, name)
        series = "kafka_server_delayedoperationpurgatory_purgatorysize"
        samples.put(series, count, number, kind)
    flush_s = family.counted(process, "flush_us") / 1e6
    samples.put("shmbroker_flush_seconds_total", flush_s, number)
    disk = family.word(process, DISK)
    series = "kafka_log_logmanager_offlinelogdirectorycount"
    samples.put(series, disk == DISK_HAS_FAILED, number)
    samples.put("shmbroker_disk_full", disk == DISK_IS_FULL, number)
    _metadata_lag(samples, family, process)


def _rings(samples: Samples, family: Family) -> None:
    titles = {process.slot: process.title for process in family.processes}
    for (writer, reader), view in family.rings.items():
        words = words_of(view)
        # The head first: read later it may have passed this tail.
        head, tail = words[HEAD_WORD], words[TAIL_WORD]
        ends = titles[writer], titles[reader]
        capacity = words[CAPACITY_WORD]
        used = min(max(0, tail - head), capacity)
        samples.put("shmbroker_ring_used_bytes", used, *ends)
        samples.put("shmbroker_ring_capacity_bytes", capacity, *ends)
        samples.put("shmbroker_ring_written_bytes_total", tail, *ends)


def _latencies(samples: Samples, family: Family) -> None:
    titles = {process.slot: process.title for process in family.processes}
    for slot, view in family.latencies.items():
        for key, (sum_us, counts) in read_table(view).items():
            if stage := _STAGES.get(key):
                labels = titles[slot], stage
                samples.put_histogram("shmbroker_stage_seconds", sum_us / 1e6, counts, *labels)
                continue
            labels = titles[slot], api_name(key)
            samples.put_histogram("shmbroker_request_seconds", sum_us / 1e6, counts, *labels)
            samples.put("kafka_network_requestmetrics_requests_total", sum(counts), *labels)


def api_name(key: int) -> str:
    """Of an API, as Kafka spells it."""
    return "other" if key == OTHERS else name_of(key)
