"""The marker that ends a transaction in a partition: a control batch of one record.

   key     int16 version 0, int16 type: 0 abort, 1 commit (`batch_layout.CONTROL_*`)
   value   int16 version 0, int32 coordinator_epoch      (schema EndTxnMarker)

Producer id and epoch are those of the batch, which is transactional and has no sequence (source:
KIP-98, Kafka `EndTransactionMarker`). A newer version of the value only has more behind.
"""

from struct import Struct
from typing import NamedTuple

from shmbroker.errors import ProtocolFault
from shmbroker.records.batch import control_batch, control_type, iterate_records
from shmbroker.records.batch_layout import (
    BATCH_HEADER,
    CONTROL_ABORT,
    CONTROL_COMMIT,
    H_COUNT,
    H_PRODUCER_EPOCH,
    H_PRODUCER_ID,
)

EPOCH_BUMPS_FROM = 2
"""The `transaction.version` from which on a producer's epoch goes up at each end: a marker has a
higher one than what it ends (KIP-890)."""

_VALUE = Struct(">hi")
_VERSION = 0


class EndMarker(NamedTuple):
    """What a control batch says of the transaction that it ends."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool


def encode_marker(marker: EndMarker, timestamp: int) -> bytes:
    """The control batch; its offset and leader epoch are stamped by the append."""
    return control_batch(
        CONTROL_COMMIT if marker.is_commit else CONTROL_ABORT,
        _VALUE.pack(_VERSION, marker.coordinator_epoch),
        timestamp=timestamp,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
    )


def parse_marker(data: bytes | memoryview, position: int = 0) -> EndMarker | None:
    """What the control batch of a producer at `position` says.

    None: nothing is left in it, as compaction has taken its transaction away, or it is of a type
    that ends none. ProtocolFault if it is damaged.
    """
    header = BATCH_HEADER.unpack_from(data, position)
    if not header[H_COUNT]:
        return None
    for _, _, key, value, _ in iterate_records(memoryview(data), position):
        kind = control_type(key or b"")
        if kind not in (CONTROL_ABORT, CONTROL_COMMIT):
            return None
        if value is None or len(value) < _VALUE.size:
            raise ProtocolFault("value of a transaction's marker is too short")
        version, coordinator_epoch = _VALUE.unpack_from(value)
        if version < _VERSION:
            raise ProtocolFault(f"a transaction's marker of version {version}")
        return EndMarker(
            header[H_PRODUCER_ID],
            header[H_PRODUCER_EPOCH],
            coordinator_epoch,
            kind == CONTROL_COMMIT,
        )
    return None
