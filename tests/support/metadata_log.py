"""What a reader of the metadata log gives out, as one list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shmbroker.metadata.log_reader import MetadataLogReader

if TYPE_CHECKING:
    from shmbroker.metadata.record import PlacedRecord


def read_all(reader: MetadataLogReader, end_offset: int) -> list[PlacedRecord]:
    """All lots in one: from the last snapshot on, if there was one."""
    records: list[PlacedRecord] = []
    for lot in reader.lots(end_offset):
        if lot is None:
            records.clear()
        else:
            records += lot
    return records
