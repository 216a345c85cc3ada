"""A partition of `__transaction_state`: transactional ids as Kafka's records.

    TransactionLogKey   transactional id  ->  TransactionLogValue   the `Transaction`
    a null value                              the id has expired

Rules of this file:
* Which version a value has is told by `transaction.version`: 0 has none of the tagged fields.
* A producer id that is to follow, or that was replaced, is in the record (KIP-890): a coordinator
  that takes over goes on with it. (Kafka 4.2.1 reads these fields and leaves them out.)

Appending and loading are the group log's (`groups.group_log`).

Source: Kafka's TransactionLog, schema TransactionLogValue.
"""

from __future__ import annotations

from shmbroker.errors import ProtocolFault
from shmbroker.groups.transactions.transaction import DEAD, EMPTY, NO_EPOCH, Transaction
from shmbroker.wire import coordinator_records
from shmbroker.wire.coordinator_records import TRANSACTION, TRANSACTION_LOG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.groups.group_log import Record

VALUE_VERSION_MAX = 1


def record(transactional_id: str, known: Transaction | None, server_version: int) -> Record:
    """The record of a transactional id; None: its tombstone."""
    key = coordinator_records.encode_key(
        TRANSACTION, TRANSACTION_LOG, {"transactional_id": transactional_id}
    )
    if known is None:
        return key, None
    partitions = None
    if known.state != EMPTY:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(known.partitions):
            by_topic.setdefault(topic, []).append(partition)
        partitions = [
            {"topic": topic, "partition_ids": indexes} for topic, indexes in by_topic.items()
        ]
    value = {
        "producer_id": known.producer_id,
        "producer_epoch": known.producer_epoch,
        "transaction_timeout_ms": known.timeout_ms,
        "transaction_status": known.state,
        "transaction_partitions": partitions,
        "transaction_last_update_timestamp_ms": known.update_ms,
        "transaction_start_timestamp_ms": known.start_ms,
    }
    version = 0
    if server_version > 0:
        version = VALUE_VERSION_MAX
        value |= {
            "previous_producer_id": known.previous_producer_id,
            "next_producer_id": known.next_producer_id,
            "client_transaction_version": known.client_version,
        }
    return key, coordinator_records.encode_value(TRANSACTION, TRANSACTION_LOG, version, value)


def decode(key: bytes, value: bytes) -> tuple[str, Transaction] | None:
    """(transactional id, its state) of a record; None if it is not one that is known here."""
    try:
        record_type, name = coordinator_records.decode_key(TRANSACTION, key)
        if record_type != TRANSACTION_LOG or name is None:
            return None
        _, found = coordinator_records.decode_value(TRANSACTION, TRANSACTION_LOG, value)
    except ProtocolFault:
        return None
    if not 0 <= found["transaction_status"] < DEAD:
        return None
    return name["transactional_id"], Transaction(
        found["producer_id"],
        found["producer_epoch"],
        found["previous_producer_id"],
        found["next_producer_id"],
        NO_EPOCH,
        found["transaction_timeout_ms"],
        found["transaction_status"],
        frozenset(
            (row["topic"], index)
            for row in found["transaction_partitions"] or ()
            for index in row["partition_ids"]
        ),
        found["transaction_start_timestamp_ms"],
        found["transaction_last_update_timestamp_ms"],
        found["client_transaction_version"],
    )
