"""Keeps a process's image up to date with the metadata log, and says what is different.

One decision may be 10,000 partitions. A process that others wait for takes its records in steps of
`LOT_RECORDS`, some 10 ms each; the image is replaced after the last one, so nobody sees a part.
"""

from __future__ import annotations

from shmbroker.metadata.draft import Draft, applied, difference
from shmbroker.metadata.image import MetadataImage
from shmbroker.metadata.log_reader import LOT_RECORDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from shmbroker.metadata.changes import MetadataChange
    from shmbroker.metadata.log_reader import MetadataLogReader
    from shmbroker.metadata.record import PlacedRecord


class MetadataFollower:
    """Keeps `image`, the cluster as of the last step; take it once per request and keep it."""

    __slots__ = ("_steps", "image", "reader")

    def __init__(self, reader: MetadataLogReader, cluster_id: str) -> None:
        self.reader = reader
        self.image = MetadataImage(cluster_id)
        self._steps: Generator[None, None, list[MetadataChange]] | None = None

    @property
    def is_midway(self) -> bool:
        """Whether records were read that the image does not have yet: `advance` has more to do."""
        return self._steps is not None

    def catch_up(self, end_offset: int) -> list[MetadataChange]:
        """Apply all that is committed (all before `end_offset`), at once; what has changed.
        Faults: CorruptFault, StorageFault."""
        changes: list[MetadataChange] = []
        while self.is_midway or self.reader.next_offset < end_offset:
            changes += self.advance(end_offset) or ()
        return changes

    def advance(self, end_offset: int) -> list[MetadataChange] | None:
        """One step towards `end_offset`, or to where the first step was to lead: the changes, or
        None while there are more steps. Faults as of `catch_up`, and they are final."""
        steps, self._steps = self._steps or self._catching_up(end_offset), None
        try:
            next(steps)
        except StopIteration as end:
            changes: list[MetadataChange] = end.value
            return changes
        self._steps = steps
        return None

    def apply_own(
        self, records: Iterable[PlacedRecord], end_offset: int, epoch: int, timestamp_ms: int
    ) -> None:
        """Apply all that is between here and `end_offset`, which is committed: this process has
        written it, in this epoch and at this time, and does not read it."""
        assert not self.is_midway, "what was begun is ended first"
        self.image, _ = applied(self.image, records, end_offset, epoch)
        self.reader.pass_over(end_offset, epoch, timestamp_ms)

    def _catching_up(self, end_offset: int) -> Generator[None, None, list[MetadataChange]]:
        reader, before = self.reader, self.image
        if reader.next_offset >= end_offset:
            return []
        base, draft = before, Draft(before)
        is_first = True
        for lot in reader.lots(end_offset):
            if lot is None:
                base = MetadataImage(before.cluster_id)
                draft = Draft(base)
                continue
            for at in range(0, max(len(lot), 1), LOT_RECORDS):
                if not is_first:
                    yield
                is_first = False
                draft.apply(lot[at : at + LOT_RECORDS])
        self.image, changes = draft.finish(reader.next_offset, reader.epoch)
        return changes if base is before else difference(before, self.image)
