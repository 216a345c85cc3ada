"""A snapshot of the family as series: which value goes under which name.

    observe.snapshot ──► put_all ──► metrics.samples ──► metrics.text
                            └── names, kinds and labels: metrics.catalogue

Rules of this file:
* Pure: it reads nothing, and what it counts it counts from the snapshot.
* A value that is not known has no sample. Zero means that there was none.
* States are a sample for each, 0 or 1, so that a query need not know numbers; Kafka's own series
  have its numbers.
* Labels name processes, brokers, topics, partitions and groups; a client id, of which there may be
  any number, is none. Above `PARTITIONS_MAX` partitions there are no series of single ones, and
  `shmbroker_partitions_left_out` says so.
"""

from __future__ import annotations

from collections import Counter

from shmbroker.ipc.slots import CLEANER, CONTROLLER, IO_WORKER, NETWORK_WORKER, SUPERVISOR, TIER
from shmbroker.metrics import catalogue
from shmbroker.metrics.samples import Samples
from shmbroker.observe.snapshot import (
    HAS_FAILED,
    IS_FULL,
    NO_LEADER,
    NONE,
    RUNNING,
    STARTING,
    STOPPING,
    UNABLE,
    Broker,
    Groups,
    Process,
    Snapshot,
    Topic,
    Usage,
)

PARTITIONS_MAX = 5000
"""The most partitions that have series of their own; with more there are those of topics only."""

_STATES = (NONE, STARTING, RUNNING, STOPPING, UNABLE)
_KAFKA_STATES = {NONE: 0, STARTING: 2, RUNNING: 3, STOPPING: 6}
_KAFKA_UNKNOWN = 127
_MANAGER = "kafka_server_replicamanager_"
_CONTROLLER = "kafka_controller_kafkacontroller_"


def put_all(samples: Samples, snapshot: Snapshot) -> None:
    """Put every series but those of the process that shows them."""
    samples.put("shmbroker_info", 1, snapshot.version, snapshot.cluster_id)
    samples.put("shmbroker_ready", snapshot.is_ready)
    for process in snapshot.processes:
        _process(samples, process)
    _rings(samples, snapshot)
    _latencies(samples, snapshot)
    _controllers(samples, snapshot)
    for broker in snapshot.brokers:
        _replicas(samples, broker)
    is_each = snapshot.partition_count <= PARTITIONS_MAX
    samples.put("shmbroker_partitions_left_out", 0 if is_each else snapshot.partition_count)
    family = {broker.number for broker in snapshot.brokers}
    for topic in snapshot.topics:
        _topic(samples, topic, family, is_each)
    samples.put(f"{_MANAGER}isrshrinks_total", snapshot.changes.shrinks)
    samples.put(f"{_MANAGER}isrexpands_total", snapshot.changes.expands)
    samples.put("shmbroker_leader_changes_total", snapshot.changes.leaders)
    _groups(samples, snapshot.groups)


# ── processes ───────────────────────────────────────────────────────────────────────────────────


def _process(samples: Samples, process: Process) -> None:
    title, counted = process.title, process.counted
    if process.usage is not None:
        _usage(samples, title, process.usage)
    if process.role == SUPERVISOR:
        return
    samples.put("shmbroker_process_up", process.state == RUNNING, title)
    for state in _STATES:
        samples.put("shmbroker_process_state", process.state == state, title, state)
    samples.put("shmbroker_process_restarts_total", process.restarts, title)
    if process.pid:
        samples.put("shmbroker_process_start_time_seconds", process.started_ms / 1000, title)
    if process.silence_s is not None:
        samples.put("shmbroker_process_silence_seconds", process.silence_s, title)
    if process.boot_s is not None:
        samples.put("shmbroker_process_boot_seconds", process.boot_s, title)
    if process.metadata_lag is not None:
        samples.put("shmbroker_metadata_lag_records", process.metadata_lag, title)
    names: dict[str, str] = {}
    if process.role in (NETWORK_WORKER, IO_WORKER):
        names |= catalogue.OF_WORKERS | catalogue.OF_GATEWAYS  # I/O workers have guests
        _clients(samples, process)
    if process.role == IO_WORKER:
        _broker(samples, process)
    elif process.role == CLEANER:
        names |= catalogue.OF_CLEANER
    elif process.role == TIER:
        names |= catalogue.OF_TIER
    for name, series in names.items():
        samples.put(series, counted[name], title)


def _usage(samples: Samples, title: str, usage: Usage) -> None:
    for value, mode in ((usage.cpu_user_s, "user"), (usage.cpu_system_s, "system")):
        samples.put("shmbroker_process_cpu_seconds_total", value, title, mode)
    for number, kind in (
        (usage.anonymous_bytes, "anonymous"),
        (usage.file_bytes, "file"),
        (usage.shared_bytes, "shared"),
    ):
        samples.put("shmbroker_process_memory_bytes", number, title, kind)
    samples.put("shmbroker_process_threads", usage.threads, title)
    samples.put("shmbroker_process_open_fds", usage.open_files, title)
    samples.put("shmbroker_process_max_fds", usage.open_files_max, title)
    switches = "shmbroker_process_context_switches_total"
    samples.put(switches, usage.switches_voluntary, title, "voluntary")
    samples.put(switches, usage.switches_involuntary, title, "involuntary")
    samples.put("shmbroker_process_page_faults_total", usage.major_faults, title)
    for moved, direction in ((usage.disk_read_bytes, "read"), (usage.disk_written_bytes, "write")):
        if moved is not None:
            samples.put("shmbroker_process_disk_bytes_total", moved, title, direction)


def _clients(samples: Samples, process: Process) -> None:
    title, counted = process.title, process.counted
    samples.put("kafka_server_socketservermetrics_connection_count", process.connections, title)
    for name, reason in catalogue.CONNECTIONS_ENDED.items():
        samples.put("shmbroker_connections_ended_total", counted[name], title, reason)
    for name, kind in catalogue.THROTTLED.items():
        samples.put("shmbroker_throttled_requests_total", counted[name], title, kind)
        seconds = counted[f"{name}_ms"] / 1000
        samples.put("shmbroker_throttled_seconds_total", seconds, title, kind)
    for name, reason in catalogue.APPENDS_REFUSED.items():
        samples.put("shmbroker_appends_refused_total", counted[name], title, reason)


def _broker(samples: Samples, process: Process) -> None:
    number, counted = process.number, process.counted
    state = _KAFKA_STATES.get(process.state, _KAFKA_UNKNOWN)
    samples.put("kafka_server_kafkaserver_brokerstate", state, number)
    for name, series in catalogue.OF_BROKERS.items():
        samples.put(series, counted[name], number)
    for name, kind in (("delayed_reads", "Fetch"), ("delayed_appends", "Produce")):
        series = "kafka_server_delayedoperationpurgatory_purgatorysize"
        samples.put(series, counted[name], number, kind)
    for name, which in catalogue.TRANSACTIONAL_IDS.items():
        samples.put("shmbroker_transactional_ids", counted[name], number, which)
    samples.put("shmbroker_flush_seconds_total", counted["flush_us"] / 1e6, number)
    series = "kafka_log_logmanager_offlinelogdirectorycount"
    samples.put(series, process.disk == HAS_FAILED, number)
    samples.put("shmbroker_disk_full", process.disk == IS_FULL, number)


def _rings(samples: Samples, snapshot: Snapshot) -> None:
    for ring in snapshot.rings:
        ends = ring.writer, ring.reader
        samples.put("shmbroker_ring_used_bytes", ring.used_bytes, *ends)
        samples.put("shmbroker_ring_capacity_bytes", ring.capacity_bytes, *ends)
        samples.put("shmbroker_ring_written_bytes_total", ring.written_bytes, *ends)


def _latencies(samples: Samples, snapshot: Snapshot) -> None:
    for each in snapshot.latencies:
        series = "shmbroker_stage_seconds" if each.is_stage else "shmbroker_request_seconds"
        samples.put_histogram(series, each.sum_s, list(each.counts), each.process, each.name)
        if not each.is_stage:
            requests = "kafka_network_requestmetrics_requests_total"
            samples.put(requests, sum(each.counts), each.process, each.name)


# ── the cluster ─────────────────────────────────────────────────────────────────────────────────


def _controllers(samples: Samples, snapshot: Snapshot) -> None:
    controllers = snapshot.controllers
    samples.put(f"{_CONTROLLER}activecontrollercount", controllers.is_active)
    samples.put("kafka_server_raftmetrics_current_leader", controllers.active)
    samples.put("kafka_server_raftmetrics_current_epoch", controllers.epoch)
    samples.put("kafka_server_raftmetrics_high_watermark", controllers.committed)
    samples.put("shmbroker_controllers", len(snapshot.of_role(CONTROLLER)))
    fenced = len(snapshot.fenced)
    samples.put(f"{_CONTROLLER}activebrokercount", len(snapshot.registered) - fenced)
    samples.put(f"{_CONTROLLER}fencedbrokercount", fenced)
    samples.put(f"{_CONTROLLER}globaltopiccount", len(snapshot.topics))
    samples.put(f"{_CONTROLLER}globalpartitioncount", snapshot.partition_count)
    rows = [row for topic in snapshot.topics for row in topic.partitions]
    offline = sum(row.leader == NO_LEADER for row in rows)
    samples.put(f"{_CONTROLLER}offlinepartitionscount", offline)
    imbalanced = sum(row.leader != row.replicas[0].broker for row in rows)
    samples.put(f"{_CONTROLLER}preferredreplicaimbalancecount", imbalanced)


def _replicas(samples: Samples, broker: Broker) -> None:
    for name, count in (
        ("partitioncount", broker.replicas),
        ("leadercount", broker.leaders),
        ("underreplicatedpartitions", broker.under_replicated),
        ("underminisrpartitioncount", broker.under_min_in_sync),
        ("atminisrpartitioncount", broker.at_min_in_sync),
        ("reassigningpartitions", broker.reassigning),
    ):
        samples.put(_MANAGER + name, count, broker.number)
    samples.put("kafka_server_replicafetchermanager_maxlag", broker.max_lag, broker.number)


def _topic(samples: Samples, topic: Topic, family: set[int], is_each: bool) -> None:
    samples.put("shmbroker_topic_bytes", topic.size_bytes, topic.name)
    samples.put("kafka_server_brokertopicmetrics_messagesin_total", topic.records, topic.name)
    for row in topic.partitions:
        for replica in row.replicas:
            if replica.broker != row.leader and replica.lag is not None:
                labels = replica.broker, topic.name
                samples.put("shmbroker_replica_lag_records", replica.lag, *labels)
        if not is_each or row.leader not in family:
            continue
        for name, value in (
            ("logstartoffset", row.start_offset),
            ("size", row.size_bytes),
            ("numlogsegments", row.segments),
            ("logendoffset", row.end_offset),
        ):
            if value is not None:
                samples.put(f"kafka_log_log_{name}", value, topic.name, row.number)


def _groups(samples: Samples, told: Groups) -> None:
    samples.put("shmbroker_metrics_group_questions_failed_total", told.failed)
    if told.age_s is None:
        return
    samples.put("shmbroker_metrics_group_age_seconds", told.age_s)
    states = Counter(group.state for group in told.groups)
    for group in told.groups:
        samples.put("kafka_consumergroup_members", group.members, group.name)
        for each in group.lags:
            if each.lag is None:
                continue
            labels = group.name, each.topic, each.partition
            samples.put("kafka_consumergroup_current_offset", each.committed, *labels)
            samples.put("kafka_consumergroup_lag", each.lag, *labels)
            samples.put("kafka_consumergroup_lag_sum", each.lag, group.name, each.topic)
    for state, count in states.items():
        samples.put("shmbroker_groups_by_state", count, state)
