"""Markers: the batches by which a transaction ends in a partition. They come from coordinators."""

from __future__ import annotations

from shmbroker.errors import StorageFault
from shmbroker.log.markers import append_marker
from shmbroker.replica.partition import not_led_error
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.broker.append import Appender
    from shmbroker.records.end_marker import EndMarker
    from shmbroker.replica.partition import Partition


class EndMarkers:
    """Appends them for one I/O worker, beside its appender."""

    def __init__(self, appender: Appender) -> None:
        self._acks = appender.acks
        self._unverified = appender.unverified
        self._now_ms = appender.now_ms
        self._on_storage_fault = appender.on_storage_fault

    def append(
        self, partition: Partition, marker: EndMarker, transaction_version: int
    ) -> tuple[int, int]:
        """End a transaction in a partition, as its coordinator asks: (error code, end offset).

        The marker counts once the high watermark is at the end offset: that is the caller's to wait
        for. A marker of a transaction that is not open here is appended all the same; it may be the
        coordinator's second try. Errors as Kafka's: INVALID_PRODUCER_EPOCH,
        TRANSACTION_COORDINATOR_FENCED, and those of an append with acks=all.
        """
        if not partition.is_leader:
            return not_led_error(partition), -1
        if partition.is_under_min_in_sync:
            return error_codes.NOT_ENOUGH_REPLICAS, -1
        error = partition.producers.check_marker(marker, transaction_version)
        if error:
            return error, -1
        now_ms = self._now_ms()
        try:
            append_marker(partition.log, marker, now_ms, partition.leader_epoch, now_ms)
        except StorageFault as fault:
            self._on_storage_fault(partition, fault)
            return error_codes.KAFKA_STORAGE_ERROR, -1
        self._unverified.on_marker(partition.key, marker.producer_id, marker.producer_epoch)
        if partition.is_fsync:
            self._acks.group_commit.want(partition)
        partition.advance_high_watermark()
        self._acks.appended.add(partition)
        return error_codes.NONE, partition.log.log_end_offset
