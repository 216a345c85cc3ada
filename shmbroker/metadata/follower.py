"""Keeps a process's image up to date with the metadata log, and says what is different."""

from __future__ import annotations

from shmbroker.metadata.image import MetadataImage, difference

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.metadata.changes import MetadataChange
    from shmbroker.metadata.log_reader import MetadataLogReader


class MetadataFollower:
    """`image` is the cluster as of the last `catch_up`; take it once per request and keep it."""

    __slots__ = ("image", "reader")

    def __init__(self, reader: MetadataLogReader, cluster_id: str) -> None:
        self.reader = reader
        self.image = MetadataImage(cluster_id)

    def catch_up(self, end_offset: int) -> list[MetadataChange]:
        """Apply what is committed (all before `end_offset`): what has changed.

        Faults: CorruptFault, StorageFault.
        """
        reader = self.reader
        if reader.next_offset >= end_offset:
            return []
        records = reader.catch_up(end_offset)
        before = self.image
        base = MetadataImage(before.cluster_id) if reader.began_anew else before
        self.image, changes = base.apply(records, reader.next_offset, reader.epoch)
        return difference(before, self.image) if reader.began_anew else changes
