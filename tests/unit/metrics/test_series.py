"""What a snapshot says is shown under the right names."""

import pytest

from shmbroker.metrics import series as module
from shmbroker.metrics.catalogue import CATALOGUE
from shmbroker.metrics.samples import Samples
from shmbroker.metrics.series import put_all
from shmbroker.observe.shared_memory import Family
from shmbroker.observe.snapshot import Group, Groups, Lag, Partition, Replica, Topic
from shmbroker.shm.counters import (
    DISK,
    DISK_IS_FULL,
    INCARNATION,
    METADATA_APPLIED,
    METADATA_END_OFFSET_WORD,
    PID,
    STATE,
    STATE_NONE,
    STATE_STOPPING,
    Tally,
)
from shmbroker.shm.latencies import STAGE_FLUSH, Latencies
from shmbroker.shm.ring import RingWriter
from shmbroker.shm.ring_layout import parts_of_ring
from tests.unit.observe.families import RING_BYTES, family, slot_of, snapshot, store


def gathered(made: Family) -> Samples:
    samples = Samples()
    put_all(samples, snapshot(made))
    return samples


def test_counters_and_gauges_of_each_process_are_shown() -> None:
    made = family()
    Tally(made.counters, slot_of(made, "network-worker-2")).add("received_bytes", 70)
    Tally(made.counters, slot_of(made, "network-worker-2")).add("connections_closed_idle", 2)
    broker = Tally(made.counters, slot_of(made, "io-worker-2"))
    broker.add("flush_us", 1_500_000)
    broker.set("delayed_reads", 9)
    broker.set("transactional_ids_prepare_commit", 4)
    broker.set("stable_lag_records", 70)
    broker.set("late_transaction_partitions", 1)
    store(made, "io-worker-2", DISK, DISK_IS_FULL)
    Tally(made.counters, slot_of(made, "tier-1")).add("tier_faults", 3)
    throttled = Tally(made.counters, slot_of(made, "network-worker-2"))
    throttled.add("throttled_fetch", 2)
    throttled.add("throttled_fetch_ms", 2500)
    found = gathered(made)
    for expected, series, *labels in (
        (70, "kafka_server_socketservermetrics_incoming_byte_total", "network-worker-2"),
        (0, "kafka_server_socketservermetrics_incoming_byte_total", "network-worker-1"),
        (2, "shmbroker_connections_ended_total", "network-worker-2", "idle"),
        (2, "shmbroker_throttled_requests_total", "network-worker-2", "fetch"),
        (2.5, "shmbroker_throttled_seconds_total", "network-worker-2", "fetch"),
        (0, "shmbroker_throttled_seconds_total", "network-worker-2", "produce"),
        (1.5, "shmbroker_flush_seconds_total", "2"),
        (9, "kafka_server_delayedoperationpurgatory_purgatorysize", "2", "Fetch"),
        (4, "shmbroker_transactional_ids", "2", "prepare-commit"),
        (0, "shmbroker_transactional_ids", "2", "ongoing"),
        (70, "shmbroker_last_stable_offset_lag_records", "2"),
        (1, "kafka_server_replicamanager_partitionswithlatetransactionscount", "2"),
        (1, "shmbroker_disk_full", "2"),
        (0, "shmbroker_disk_full", "1"),
        (3, "shmbroker_tier_faults_total", "tier-1"),
    ):
        assert found.value(series, *labels) == expected, series


def test_states_restarts_and_silence_are_shown() -> None:
    made = family()
    store(made, "io-worker-1", STATE, STATE_STOPPING)
    store(made, "io-worker-1", INCARNATION, 4)
    store(made, "cleaner-1", STATE, STATE_NONE)
    store(made, "cleaner-1", PID, 0)
    found = gathered(made)
    assert found.value("shmbroker_process_up", "io-worker-1") == 0
    assert found.value("shmbroker_process_state", "io-worker-1", "stopping") == 1
    assert found.value("shmbroker_process_restarts_total", "io-worker-1") == 3
    assert found.value("kafka_server_kafkaserver_brokerstate", "1") == 6
    assert found.value("kafka_server_kafkaserver_brokerstate", "2") == 3
    assert found.value("shmbroker_process_silence_seconds", "io-worker-2") == 1
    silent = dict(found.values())
    assert ("cleaner-1",) not in silent[CATALOGUE["shmbroker_process_silence_seconds"]]


def test_controllers_and_who_is_behind_are_shown() -> None:
    made = family()
    made.counters.words[METADATA_END_OFFSET_WORD] = 50
    store(made, "io-worker-1", METADATA_APPLIED, 44)
    found = gathered(made)
    assert found.value("shmbroker_metadata_lag_records", "io-worker-1") == 6
    assert found.value("kafka_server_raftmetrics_high_watermark") == 50
    assert found.value("kafka_server_raftmetrics_current_leader") == 1
    made.counters.store_metadata_leader(3, 1, is_active=False)
    found = gathered(made)
    assert found.value("kafka_server_raftmetrics_current_leader") == -1
    assert found.value("kafka_controller_kafkacontroller_activecontrollercount") == 0


def test_fill_of_a_ring_is_what_its_reader_has_not_released() -> None:
    made = family()
    (view,) = made.rings.values()
    writer = RingWriter(*parts_of_ring(view))
    writer.claim(1, 100)
    writer.publish()
    ends = "network-worker-1", "io-worker-1"
    found = gathered(made)
    assert found.value("shmbroker_ring_used_bytes", *ends) == 112
    assert found.value("shmbroker_ring_capacity_bytes", *ends) == RING_BYTES
    while writer.claim(1, 1000) >= 0:
        pass
    assert writer.refused == 1


def test_latencies_are_shown_by_api_and_by_stage() -> None:
    made = family()
    for title, key in (("network-worker-1", 0), ("io-worker-1", STAGE_FLUSH)):
        owner = Latencies(made.latencies[slot_of(made, title)])
        owner.of(key).add(2_000_000, times=3)
        owner.show()
    found = gathered(made)
    requests = "kafka_network_requestmetrics_requests_total"
    assert found.value(requests, "network-worker-1", "Produce") == 3
    shown = {series.name: rows for series, rows in found.histograms()}
    assert shown["shmbroker_request_seconds"]["network-worker-1", "Produce"][0] == 6
    assert sum(shown["shmbroker_stage_seconds"]["io-worker-1", "flush"][1]) == 3


def row(number: int, leader: int, lag: int = 0) -> Partition:
    replicas = [Replica(1, 90, 0, 1300), Replica(2, 90 - lag, lag, 1200)]
    return Partition(number, replicas, (1,), leader, 1, False, 5, 90, 1300, 2, 700)


def test_partitions_are_shown_at_their_leaders_and_lag_at_the_others() -> None:
    samples = Samples()
    topics = [Topic("t", "id", False, 2, [row(0, 1, lag=20), row(1, -1)])]
    put_all(samples, snapshot(family(), topics=topics))
    manager, controller = "kafka_server_replicamanager_", "kafka_controller_kafkacontroller_"
    for expected, series, *labels in (
        (1300, "kafka_log_log_size", "t", 0),
        (90, "kafka_log_log_logendoffset", "t", 0),
        (5, "kafka_log_log_logstartoffset", "t", 0),
        (2, "kafka_log_log_numlogsegments", "t", 0),
        (5000, "shmbroker_topic_bytes", "t"),
        (180, "kafka_server_brokertopicmetrics_messagesin_total", "t"),
        (20, "kafka_server_replicafetchermanager_maxlag", 2),
        (20, "shmbroker_replica_lag_records", 2, "t"),
        (2, f"{manager}partitioncount", 1),
        (1, f"{manager}leadercount", 1),
        (1, f"{manager}underminisrpartitioncount", 1),
        (0, f"{manager}underreplicatedpartitions", 2),
        (1, f"{controller}offlinepartitionscount"),
        (1, f"{controller}preferredreplicaimbalancecount"),
        (2, f"{controller}globalpartitioncount"),
        (0, "shmbroker_partitions_left_out"),
    ):
        assert samples.value(series, *labels) == expected, series


def test_of_too_many_partitions_topics_alone_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARTITIONS_MAX", 1)
    samples = Samples()
    topics = [Topic("t", "id", False, 2, [row(0, 1), row(1, 1)])]
    put_all(samples, snapshot(family(), topics=topics))
    assert samples.value("shmbroker_partitions_left_out") == 2
    assert samples.value("shmbroker_topic_bytes", "t") == 5000
    assert "kafka_log_log_size" not in samples.names


def test_groups_are_shown_once_they_are_told() -> None:
    samples = Samples()
    lags = [Lag("t", 0, 60, 90), Lag("t", 1, 5, 4), Lag("gone", 0, 5, None)]
    told = Groups(3.0, 1, [Group("g", "classic", "stable", 2, 1, lags)])
    put_all(samples, snapshot(family(), groups=told))
    assert samples.value("kafka_consumergroup_lag", "g", "t", 0) == 30
    assert samples.value("kafka_consumergroup_lag", "g", "t", 1) == 0
    assert samples.value("kafka_consumergroup_lag_sum", "g", "t") == 30
    assert samples.value("kafka_consumergroup_members", "g") == 2
    assert samples.value("shmbroker_groups_by_state", "stable") == 1
    assert samples.value("shmbroker_metrics_group_age_seconds") == 3
    samples = Samples()
    put_all(samples, snapshot(family()))
    assert "shmbroker_metrics_group_age_seconds" not in samples.names
