"""The offset at which each leader epoch began: the history a follower compares its log with.

File `leader-epoch-checkpoint` (source: Kafka `LeaderEpochCheckpointFile`, `LeaderEpochFileCache`):

   0            version
   2            entries
   0 0          epoch start_offset
   3 1187

Epochs and start offsets both grow from line to line. What is lost here is found again in the
batches, which carry their epoch: an entry is made durable before the recovery point passes it.
Where batches are in the remote store alone, every change is made durable before it takes the place
of what was (`PartitionLog.write_epochs`).
"""

import bisect

from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.log.checkpoints import (
    encode_entries,
    parse_entries,
    parse_number,
    read_file,
    write_file,
)


class LeaderEpochs:
    """The epoch history of one partition's log; `write` brings changes to its file."""

    __slots__ = ("_epochs", "_path", "_starts", "is_flush_needed", "is_written")

    def __init__(self, path: str) -> None:
        self._path = path
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.is_flush_needed = False
        """The file changed since the last flush."""
        self.is_written = True
        """False: memory is ahead of the file. Before the first batch of an epoch, and before a
        flush, it is written; an epoch without a batch can be forgotten."""

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset), oldest first."""
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def latest(self) -> int:
        """The newest epoch, or -1."""
        return self._epochs[-1] if self._epochs else -1

    @property
    def path(self) -> str:
        return self._path

    def load(self) -> None:
        """Read the file; CorruptFault if it isn't whole or doesn't grow."""
        text = read_file(self._path)
        epochs: list[int] = []
        starts: list[int] = []
        for fields in parse_entries(self._path, text or "", 2):
            epoch = parse_number(self._path, fields[0], 2**31)
            start = parse_number(self._path, fields[1])
            if epochs and (epoch <= epochs[-1] or start < starts[-1]):
                raise CorruptFault(
                    f"{self._path}: epoch {epoch} at {start} does not grow", self._path
                )
            epochs.append(epoch)
            starts.append(start)
        self._epochs, self._starts = epochs, starts

    def take(self, entries: list[tuple[int, int]]) -> None:
        """Let the history be this one."""
        self._epochs = [epoch for epoch, _ in entries]
        self._starts = [start for _, start in entries]
        self.is_written = False

    def write(self, *, is_synced: bool = False) -> StorageFault | None:
        """Write the file, if it is behind. After a refusal it stays behind, for the next try: the
        fault."""
        if self.is_written:
            return None
        lines = [f"{epoch} {start}" for epoch, start in self.entries]
        self.is_flush_needed = True
        try:
            write_file(self._path, encode_entries(lines), is_synced=is_synced)
            self.is_written = True
            self.is_flush_needed = not is_synced
        except StorageFault as fault:
            return fault
        return None

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Note that `epoch` begins at `start_offset`; True if that is news.

        Entries that contradict it (an epoch as new, or a start at or behind it) go.
        """
        if epoch < 0 or (epoch == self.latest and self._starts[-1] <= start_offset):
            return False
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start_offset):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.is_written = False
        return True

    def clear(self) -> None:
        """Forget everything."""
        self.is_written &= not self._epochs
        self._epochs.clear()
        self._starts.clear()

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(epoch, end offset) that answers OffsetForLeaderEpoch; (-1, -1) if unknown (KIP-101).

        The epoch is the largest known one that is not above the asked one, except where the asked
        one is older than all: then it is named itself, with the start of the oldest.
        """
        if epoch < 0 or epoch > self.latest:
            return -1, -1
        if epoch == self.latest:
            return epoch, log_end_offset
        higher = bisect.bisect_right(self._epochs, epoch)
        found = self._epochs[higher - 1] if higher else epoch
        return found, self._starts[higher]

    def epoch_at(self, offset: int) -> int:
        """The epoch that the record at `offset` was written in, or -1."""
        place = bisect.bisect_right(self._starts, offset)
        return self._epochs[place - 1] if place else -1

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget epochs that begin at or behind `end_offset`."""
        keep = bisect.bisect_left(self._starts, end_offset)
        if keep < len(self._starts):
            del self._epochs[keep:], self._starts[keep:]
            self.is_written = False

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget what lies before the log start; the epoch in force there now begins there."""
        place = bisect.bisect_right(self._starts, start_offset) - 1
        if place > 0 or (place == 0 and self._starts[0] != start_offset):
            del self._epochs[:place], self._starts[:place]
            self._starts[0] = start_offset
            self.is_written = False
