"""Every series that is shown, once: name, kind, labels, meaning. docs/metrics.md is made of it.

Names are Kafka's where Kafka has such a figure, as its JMX exporter writes them (`kafka_server_…`,
`kafka_controller_…`, `kafka_log_…`), or as kafka_exporter does (`kafka_consumergroup_…`). What
Kafka does not have begins with `shmbroker_`. Units are in the names; a counter ends in `_total`.
"""

from typing import NamedTuple

COUNTER = "counter"
GAUGE = "gauge"
HISTOGRAM = "histogram"


class Series(NamedTuple):
    """One name. `labels` are what its values are told apart by."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


class Section(NamedTuple):
    """Series of one subject."""

    title: str
    series: tuple[Series, ...]


_PROCESS = ("process",)
_BROKER = ("broker",)
_PARTITION = ("topic", "partition")

# By the counters and gauges of `shm.counters` that they show.
OF_GATEWAYS = {
    "connections_accepted": "kafka_server_socketservermetrics_connection_creation_total",
    "connections_closed": "kafka_server_socketservermetrics_connection_close_total",
    "received_bytes": "kafka_server_socketservermetrics_incoming_byte_total",
    "sent_bytes": "kafka_server_socketservermetrics_outgoing_byte_total",
    "sent_file_bytes": "shmbroker_sent_file_bytes_total",
    "requests_held": "shmbroker_requests_held_total",
    "requests_denied": "shmbroker_requests_denied_total",
    "listeners_rested": "shmbroker_listeners_rested_total",
    "answers_unsent": "shmbroker_unsent_answers_bytes",
    "requests_in_flight": "shmbroker_requests_in_flight",
    "arriving_bytes": "shmbroker_arriving_frames_bytes",
}
CONNECTIONS_ENDED = {
    "connections_refused_for_all": "max.connections",
    "connections_refused_for_address": "max.connections.per.ip",
    "authentications_failed": "authentication",
    "connections_refused_for_rate": "connection_creation_rate",
    "connections_closed_idle": "idle",
    "connections_closed_slow": "slow",
    "protocol_faults": "protocol",
}
THROTTLED = {
    "throttled_produce": "produce",
    "throttled_fetch": "fetch",
    "throttled_request": "request",
    "throttled_mutation": "mutation",
}
"""Beside each there is one of milliseconds, `…_ms`."""
APPENDS_REFUSED = {
    "appends_refused_not_leader": "not_leader",
    "appends_refused_not_in_sync": "not_enough_replicas",
    "appends_refused_storage": "storage",
    "appends_refused_invalid": "invalid",
}
OF_BROKERS = {
    "batches_appended": "shmbroker_batches_appended_total",
    "appended_bytes": "kafka_server_brokertopicmetrics_bytesin_total",
    "read_bytes": "kafka_server_brokertopicmetrics_bytesout_total",
    "replicated_bytes": "kafka_server_brokertopicmetrics_replicationbytesin_total",
    "reads_served": "shmbroker_reads_served_total",
    "operations_delayed": "shmbroker_operations_delayed_total",
    "operations_expired": "kafka_server_delayedoperationpurgatory_expires_total",
    "segments_deleted": "shmbroker_segments_deleted_total",
    "flushes": "kafka_log_logflushstats_logflushes_total",
    "storage_faults": "shmbroker_storage_faults_total",
    "partitions_lost": "shmbroker_partitions_lost_total",
    "log_damage": "shmbroker_log_damage_total",
    "logs_compacted": "shmbroker_logs_compacted_total",
    "logs_not_compacted": "shmbroker_logs_not_compacted_total",
    "flushes_waiting": "shmbroker_flushes_waiting",
    "groups": "kafka_coordinator_group_groupmetadatamanager_numgroups",
    "groups_bytes": "shmbroker_groups_bytes",
    "groups_loading": "shmbroker_groups_loading",
    "transactions_loading": "shmbroker_transactions_loading",
    "open_transactions": "shmbroker_open_transactions",
    "stable_lag_records": "shmbroker_last_stable_offset_lag_records",
    "late_transaction_partitions": (
        "kafka_server_replicamanager_partitionswithlatetransactionscount"
    ),
    "disk_free_bytes": "shmbroker_disk_free_bytes",
    "disk_reserve_bytes": "shmbroker_disk_reserve_bytes",
}
TRANSACTIONAL_IDS = {
    "transactional_ids_empty": "empty",
    "transactional_ids_ongoing": "ongoing",
    "transactional_ids_prepare_commit": "prepare-commit",
    "transactional_ids_prepare_abort": "prepare-abort",
    "transactional_ids_complete_commit": "complete-commit",
    "transactional_ids_complete_abort": "complete-abort",
}
OF_CLEANER = {
    "compaction_read_bytes": "shmbroker_compaction_read_bytes_total",
    "compaction_written_bytes": "shmbroker_compaction_written_bytes_total",
    "compaction_removed_records": "shmbroker_compaction_removed_records_total",
}
OF_TIER = {
    "tier_copies": "shmbroker_tier_copied_segments_total",
    "tier_copied_bytes": "kafka_server_brokertopicmetrics_remotecopybytes_total",
    "tier_deletes": "shmbroker_tier_deleted_segments_total",
    "tier_fetches": "shmbroker_tier_fetches_total",
    "tier_fetched_bytes": "kafka_server_brokertopicmetrics_remotefetchbytes_total",
    "tier_faults": "shmbroker_tier_faults_total",
    "tier_damaged": "shmbroker_tier_damaged_total",
}
OF_WORKERS = {
    "turns": "shmbroker_turns_total",
    "claims_refused": "shmbroker_ring_stalls_total",
}

SECTIONS = (
    Section(
        "The family",
        (
            Series("shmbroker_info", GAUGE, ("version", "cluster_id"), "1; who this is"),
            Series("shmbroker_ready", GAUGE, (), "1 while /readyz says that it is ready"),
            Series("shmbroker_process_up", GAUGE, _PROCESS, "1 while the process runs and serves"),
            Series(
                "shmbroker_process_state",
                GAUGE,
                ("process", "state"),
                "1 for the state it is in: none, starting, running, stopping, unable",
            ),
            Series(
                "shmbroker_process_restarts_total",
                COUNTER,
                _PROCESS,
                "times that it has died and was replaced",
            ),
            Series(
                "shmbroker_process_silence_seconds",
                GAUGE,
                _PROCESS,
                "seconds since its last sign of life; idle processes sign once a second",
            ),
            Series("shmbroker_process_start_time_seconds", GAUGE, _PROCESS, "when it was forked"),
            Series(
                "shmbroker_process_boot_seconds",
                GAUGE,
                _PROCESS,
                "from its fork until it served: recovery of logs is in it",
            ),
            Series(
                "shmbroker_process_cpu_seconds_total",
                COUNTER,
                ("process", "mode"),
                "CPU time, mode user or system",
            ),
            Series(
                "shmbroker_process_memory_bytes",
                GAUGE,
                ("process", "kind"),
                "resident memory: anonymous (its own), file (mapped files), shared "
                "(/dev/shm, which all of them count)",
            ),
            Series("shmbroker_process_threads", GAUGE, _PROCESS, "threads"),
            Series("shmbroker_process_open_fds", GAUGE, _PROCESS, "open file descriptors"),
            Series("shmbroker_process_max_fds", GAUGE, _PROCESS, "how many it may open"),
            Series(
                "shmbroker_process_context_switches_total",
                COUNTER,
                ("process", "kind"),
                "voluntary (it slept) and involuntary (it was taken off its core)",
            ),
            Series(
                "shmbroker_process_page_faults_total",
                COUNTER,
                _PROCESS,
                "page faults that waited for a disk",
            ),
            Series(
                "shmbroker_process_disk_bytes_total",
                COUNTER,
                ("process", "direction"),
                "bytes read from and written to disks, as the kernel counts them",
            ),
            Series(
                "shmbroker_turns_total",
                COUNTER,
                _PROCESS,
                "passes of the main loop of a network worker or I/O worker",
            ),
        ),
    ),
    Section(
        "Rings between processes",
        (
            Series(
                "shmbroker_ring_used_bytes",
                GAUGE,
                ("writer", "reader"),
                "bytes in a ring that its reader has not released",
            ),
            Series("shmbroker_ring_capacity_bytes", GAUGE, ("writer", "reader"), "what it holds"),
            Series(
                "shmbroker_ring_written_bytes_total",
                COUNTER,
                ("writer", "reader"),
                "bytes that went through it since both its ends live",
            ),
            Series(
                "shmbroker_ring_stalls_total",
                COUNTER,
                _PROCESS,
                "entries of a network worker or I/O worker that found no room in a ring",
            ),
        ),
    ),
    Section(
        "Clients",
        (
            Series(
                "kafka_server_socketservermetrics_connection_count",
                GAUGE,
                _PROCESS,
                "open client connections",
            ),
            Series(
                "kafka_server_socketservermetrics_connection_creation_total",
                COUNTER,
                _PROCESS,
                "client connections accepted",
            ),
            Series(
                "kafka_server_socketservermetrics_connection_close_total",
                COUNTER,
                _PROCESS,
                "client connections ended, by either side",
            ),
            Series(
                "shmbroker_connections_ended_total",
                COUNTER,
                ("process", "reason"),
                "client connections that the broker has refused (max.connections, "
                "max.connections.per.ip, connection_creation_rate) or ended (idle, slow, protocol)",
            ),
            Series(
                "shmbroker_throttled_requests_total",
                COUNTER,
                ("process", "quota"),
                "requests whose client was muted for a quota: produce, fetch, request, mutation",
            ),
            Series(
                "shmbroker_throttled_seconds_total",
                COUNTER,
                ("process", "quota"),
                "seconds for which it was",
            ),
            Series(
                "kafka_server_socketservermetrics_incoming_byte_total",
                COUNTER,
                _PROCESS,
                "bytes read from clients",
            ),
            Series(
                "kafka_server_socketservermetrics_outgoing_byte_total",
                COUNTER,
                _PROCESS,
                "bytes written to clients",
            ),
            Series(
                "shmbroker_sent_file_bytes_total",
                COUNTER,
                _PROCESS,
                "of these, bytes sent from files by sendfile",
            ),
            Series(
                "shmbroker_arriving_frames_bytes",
                GAUGE,
                _PROCESS,
                "memory of frames that are still arriving (queued.max.request.bytes)",
            ),
            Series(
                "shmbroker_requests_in_flight",
                GAUGE,
                _PROCESS,
                "requests that wait for the result of another process",
            ),
            Series(
                "shmbroker_requests_held_total",
                COUNTER,
                _PROCESS,
                "requests that were put off, as a ring was full or their broker down",
            ),
            Series(
                "shmbroker_requests_denied_total",
                COUNTER,
                _PROCESS,
                "requests that ACLs denied, all of them or a part",
            ),
            Series(
                "shmbroker_listeners_rested_total",
                COUNTER,
                _PROCESS,
                "times that a listener accepted nobody for a while (max.connection.creation.rate)",
            ),
            Series(
                "shmbroker_unsent_answers_bytes",
                GAUGE,
                _PROCESS,
                "memory of answers that clients do not read",
            ),
            Series(
                "kafka_network_requestmetrics_requests_total",
                COUNTER,
                ("process", "request"),
                "requests answered, by API",
            ),
            Series(
                "shmbroker_request_seconds",
                HISTOGRAM,
                ("process", "request"),
                "from the read of a request to its answer's being handed to the socket, "
                "waits included",
            ),
            Series(
                "shmbroker_stage_seconds",
                HISTOGRAM,
                ("process", "stage"),
                "parts of shmbroker_request_seconds",
            ),
        ),
    ),
    Section(
        "Brokers",
        (
            Series(
                "kafka_server_kafkaserver_brokerstate",
                GAUGE,
                _BROKER,
                "as Kafka numbers them: 0 not running, 1 starting, 2 recovering, 3 running, "
                "6 handing over or stopping; 127 unknown",
            ),
            Series(
                "kafka_server_brokertopicmetrics_bytesin_total",
                COUNTER,
                _BROKER,
                "bytes of batches appended to logs that are led here",
            ),
            Series(
                "kafka_server_brokertopicmetrics_bytesout_total",
                COUNTER,
                _BROKER,
                "bytes of batches that consumers were answered with",
            ),
            Series(
                "kafka_server_brokertopicmetrics_messagesin_total",
                COUNTER,
                ("topic",),
                "records that a topic has got, ever: the sum of its log end offsets",
            ),
            Series(
                "kafka_server_brokertopicmetrics_replicationbytesin_total",
                COUNTER,
                _BROKER,
                "bytes of batches copied from leaders",
            ),
            Series("shmbroker_batches_appended_total", COUNTER, _BROKER, "record batches appended"),
            Series(
                "shmbroker_appends_refused_total",
                COUNTER,
                ("process", "reason"),
                "batches answered with an error: not_leader, not_enough_replicas, storage "
                "(a full or failed disk), invalid (the batch's own fault)",
            ),
            Series("shmbroker_reads_served_total", COUNTER, _BROKER, "reads answered"),
            Series(
                "kafka_server_delayedoperationpurgatory_purgatorysize",
                GAUGE,
                ("broker", "delayedoperation"),
                "Fetch: reads that wait for bytes; Produce: acks that wait for replicas",
            ),
            Series(
                "shmbroker_operations_delayed_total",
                COUNTER,
                _BROKER,
                "operations that had to wait in a purgatory",
            ),
            Series(
                "kafka_server_delayedoperationpurgatory_expires_total",
                COUNTER,
                _BROKER,
                "of these, ended by their time-out",
            ),
            Series(
                "kafka_log_logflushstats_logflushes_total",
                COUNTER,
                _BROKER,
                "fdatasync calls on log files",
            ),
            Series("shmbroker_flush_seconds_total", COUNTER, _BROKER, "time that they have taken"),
            Series("shmbroker_flushes_waiting", GAUGE, _BROKER, "flushes asked for, not done"),
            Series("shmbroker_storage_faults_total", COUNTER, _BROKER, "refusals by the disk"),
            Series("shmbroker_segments_deleted_total", COUNTER, _BROKER, "segments deleted"),
            Series(
                "shmbroker_partitions_lost_total",
                COUNTER,
                _BROKER,
                "partitions gone or set aside at a start",
            ),
            Series(
                "shmbroker_log_damage_total",
                COUNTER,
                _BROKER,
                "places of logs found damaged, missing or impossible",
            ),
            Series(
                "kafka_log_logmanager_offlinelogdirectorycount",
                GAUGE,
                _BROKER,
                "1 if its log directory is offline",
            ),
            Series(
                "shmbroker_disk_full",
                GAUGE,
                _BROKER,
                "1 while producers are refused for want of room",
            ),
            Series("shmbroker_disk_free_bytes", GAUGE, _BROKER, "room on its disk"),
            Series(
                "shmbroker_disk_reserve_bytes",
                GAUGE,
                _BROKER,
                "below this Produce is refused (shmbroker.disk.reserve.bytes)",
            ),
            Series(
                "shmbroker_metadata_lag_records",
                GAUGE,
                _PROCESS,
                "committed metadata records that it has not applied yet",
            ),
        ),
    ),
    Section(
        "Partitions and replicas",
        (
            Series("kafka_server_replicamanager_partitioncount", GAUGE, _BROKER, "replicas on it"),
            Series(
                "kafka_server_replicamanager_leadercount", GAUGE, _BROKER, "partitions it leads"
            ),
            Series(
                "kafka_server_replicamanager_underreplicatedpartitions",
                GAUGE,
                _BROKER,
                "of the partitions that it leads, those with a replica that is not in sync",
            ),
            Series(
                "kafka_server_replicamanager_underminisrpartitioncount",
                GAUGE,
                _BROKER,
                "those with less than min.insync.replicas in sync: acks=all is refused",
            ),
            Series(
                "kafka_server_replicamanager_atminisrpartitioncount",
                GAUGE,
                _BROKER,
                "those with just min.insync.replicas in sync, and replicas that are not",
            ),
            Series(
                "kafka_server_replicamanager_reassigningpartitions",
                GAUGE,
                _BROKER,
                "those that are being reassigned",
            ),
            Series(
                "kafka_server_replicamanager_isrshrinks_total",
                COUNTER,
                (),
                "times that a replica left an ISR, since this process began",
            ),
            Series(
                "kafka_server_replicamanager_isrexpands_total",
                COUNTER,
                (),
                "times that a replica joined an ISR, since this process began",
            ),
            Series(
                "shmbroker_leader_changes_total",
                COUNTER,
                (),
                "times that a partition got another leader or none, since this process began",
            ),
            Series(
                "kafka_server_replicafetchermanager_maxlag",
                GAUGE,
                _BROKER,
                "records that it is behind the leader, in the partition where it is most",
            ),
            Series(
                "shmbroker_replica_lag_records",
                GAUGE,
                ("broker", "topic"),
                "records that a follower is behind the leaders of a topic, in all",
            ),
            Series("kafka_log_log_logendoffset", GAUGE, _PARTITION, "the leader's log end offset"),
            Series("kafka_log_log_logstartoffset", GAUGE, _PARTITION, "the leader's log start"),
            Series("kafka_log_log_size", GAUGE, _PARTITION, "bytes of the leader's log"),
            Series(
                "kafka_log_log_numlogsegments", GAUGE, _PARTITION, "segments of the leader's log"
            ),
            Series("shmbroker_topic_bytes", GAUGE, ("topic",), "bytes of all its replicas"),
            Series(
                "shmbroker_partitions_left_out",
                GAUGE,
                (),
                "partitions without a series of their own, as there are too many",
            ),
        ),
    ),
    Section(
        "Controllers",
        (
            Series(
                "kafka_controller_kafkacontroller_activecontrollercount",
                GAUGE,
                (),
                "1 while there is an active controller",
            ),
            Series(
                "kafka_server_raftmetrics_current_leader",
                GAUGE,
                (),
                "id of the active controller; -1: none",
            ),
            Series("kafka_server_raftmetrics_current_epoch", GAUGE, (), "epoch of the controllers"),
            Series(
                "kafka_server_raftmetrics_high_watermark",
                GAUGE,
                (),
                "end of what is committed of the metadata log",
            ),
            Series("shmbroker_controllers", GAUGE, (), "controllers of the family"),
            Series(
                "kafka_controller_kafkacontroller_activebrokercount",
                GAUGE,
                (),
                "brokers that are registered and not fenced",
            ),
            Series(
                "kafka_controller_kafkacontroller_fencedbrokercount",
                GAUGE,
                (),
                "brokers that are fenced: not at work",
            ),
            Series("kafka_controller_kafkacontroller_globaltopiccount", GAUGE, (), "topics"),
            Series(
                "kafka_controller_kafkacontroller_globalpartitioncount", GAUGE, (), "partitions"
            ),
            Series(
                "kafka_controller_kafkacontroller_offlinepartitionscount",
                GAUGE,
                (),
                "partitions without a leader",
            ),
            Series(
                "kafka_controller_kafkacontroller_preferredreplicaimbalancecount",
                GAUGE,
                (),
                "partitions that are not led by their first replica",
            ),
        ),
    ),
    Section(
        "Groups",
        (
            Series(
                "kafka_coordinator_group_groupmetadatamanager_numgroups",
                GAUGE,
                _BROKER,
                "groups that it coordinates",
            ),
            Series("shmbroker_groups_bytes", GAUGE, _BROKER, "memory of its groups"),
            Series(
                "shmbroker_groups_loading",
                GAUGE,
                _BROKER,
                "partitions of __consumer_offsets that it is still reading",
            ),
            Series("shmbroker_groups_by_state", GAUGE, ("state",), "groups in each state"),
            Series(
                "kafka_consumergroup_lag",
                GAUGE,
                ("consumergroup", "topic", "partition"),
                "records between a group's committed offset and the log's end",
            ),
            Series(
                "kafka_consumergroup_current_offset",
                GAUGE,
                ("consumergroup", "topic", "partition"),
                "the committed offset",
            ),
            Series(
                "kafka_consumergroup_lag_sum",
                GAUGE,
                ("consumergroup", "topic"),
                "the same lag, of a topic",
            ),
            Series("kafka_consumergroup_members", GAUGE, ("consumergroup",), "members of a group"),
        ),
    ),
    Section(
        "Transactions",
        (
            Series(
                "shmbroker_transactional_ids",
                GAUGE,
                ("broker", "state"),
                "transactional ids that it coordinates: empty, ongoing, prepare-commit, "
                "prepare-abort, complete-commit, complete-abort",
            ),
            Series(
                "shmbroker_transactions_loading",
                GAUGE,
                _BROKER,
                "partitions of __transaction_state that it is still reading",
            ),
            Series(
                "shmbroker_open_transactions",
                GAUGE,
                _BROKER,
                "transactions that are open in partitions it leads, in each of them",
            ),
            Series(
                "shmbroker_last_stable_offset_lag_records",
                GAUGE,
                _BROKER,
                "the longest way from a last stable offset to the high watermark (Kafka's "
                "LastStableOffsetLag): what readers with read_committed wait for",
            ),
            Series(
                "kafka_server_replicamanager_partitionswithlatetransactionscount",
                GAUGE,
                _BROKER,
                "partitions it leads whose oldest open transaction nobody will end: nothing was "
                "written to it for transaction.max.timeout.ms and five minutes",
            ),
        ),
    ),
    Section(
        "Compaction and tiered storage",
        (
            Series("shmbroker_logs_compacted_total", COUNTER, _BROKER, "passes over a log"),
            Series(
                "shmbroker_logs_not_compacted_total",
                COUNTER,
                _BROKER,
                "logs that compaction has given up",
            ),
            Series("shmbroker_compaction_read_bytes_total", COUNTER, _PROCESS, "bytes it has read"),
            Series(
                "shmbroker_compaction_written_bytes_total",
                COUNTER,
                _PROCESS,
                "bytes it has written",
            ),
            Series(
                "shmbroker_compaction_removed_records_total",
                COUNTER,
                _PROCESS,
                "records it has left out",
            ),
            Series(
                "shmbroker_tier_copied_segments_total",
                COUNTER,
                _PROCESS,
                "segments copied to the remote store",
            ),
            Series(
                "kafka_server_brokertopicmetrics_remotecopybytes_total",
                COUNTER,
                _PROCESS,
                "bytes of them",
            ),
            Series(
                "shmbroker_tier_deleted_segments_total",
                COUNTER,
                _PROCESS,
                "segments deleted from the remote store",
            ),
            Series("shmbroker_tier_fetches_total", COUNTER, _PROCESS, "pieces read from the store"),
            Series(
                "kafka_server_brokertopicmetrics_remotefetchbytes_total",
                COUNTER,
                _PROCESS,
                "bytes of them",
            ),
            Series(
                "shmbroker_tier_faults_total",
                COUNTER,
                _PROCESS,
                "requests that the store has failed",
            ),
            Series(
                "shmbroker_tier_damaged_total",
                COUNTER,
                _PROCESS,
                "segments or manifests found damaged",
            ),
        ),
    ),
    Section(
        "The metrics themselves",
        (
            Series(
                "shmbroker_metrics_scrapes_total", COUNTER, (), "answers of /metrics before this"
            ),
            Series("shmbroker_metrics_gather_seconds", GAUGE, (), "how long gathering these took"),
            Series(
                "shmbroker_metrics_group_questions_failed_total",
                COUNTER,
                (),
                "questions about groups that a broker did not answer",
            ),
            Series(
                "shmbroker_metrics_group_age_seconds",
                GAUGE,
                (),
                "age of what is said of groups; they are asked for every 10 s at most",
            ),
        ),
    ),
)

CATALOGUE = {series.name: series for section in SECTIONS for series in section.series}


def markdown() -> str:
    """The tables of docs/metrics.md."""
    lines = []
    for section in SECTIONS:
        lines += ["", f"## {section.title}", "", "| series | kind | labels | what it is |"]
        lines.append("|---|---|---|---|")
        for name, kind, labels, meaning in section.series:
            lines.append(f"| `{name}` | {kind} | {', '.join(labels)} | {meaning} |")
    return "\n".join(lines[1:]) + "\n"
