"""What is committed of the metadata log, for those who read the counters: whose files to follow.

Rules of this file:
* The committed offset is loaded before the word that says who leads: who stores them stores them
  the other way round, so the log of that leader holds what the offset names.
* A word of a lower epoch is of one that wakes up and does not know yet that it leads no more.
"""

from __future__ import annotations

from shmbroker.metadata.follower import MetadataFollower
from shmbroker.metadata.log_reader import MetadataLogReader
from shmbroker.shm.counters import METADATA_END_OFFSET_WORD, Counters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.metadata.changes import MetadataChange
    from shmbroker.metadata.image import MetadataImage


class CommittedLog:
    """One process's view of the metadata log. `directory_of`: a controller's, by its id."""

    def __init__(
        self, counters: Counters, directory_of: Callable[[int], str], cluster_id: str
    ) -> None:
        self._counters = counters
        self._words = counters.words
        self._seen = 0
        self._directory_of = directory_of
        self.epoch = 0
        """The highest that was seen; `number` led it, -1 before the first."""
        self.number = -1
        self.follower = MetadataFollower(MetadataLogReader("nowhere yet"), cluster_id)

    @property
    def image(self) -> MetadataImage:
        """What holds, as far as it was followed."""
        return self.follower.image

    def is_behind(self) -> bool:
        """Whether more is committed than the image has."""
        self._seen = committed = self._words[METADATA_END_OFFSET_WORD]
        return committed > self.follower.image.offset

    def has_news(self) -> bool:
        """Whether `catch_up` has steps left, or something was committed since it or `is_behind`
        looked: to be asked after `Doorbell.say_sleeping`, as who commits rings only those who
        sleep."""
        return self.follower.is_midway or self._words[METADATA_END_OFFSET_WORD] != self._seen

    def catch_up(self) -> list[MetadataChange] | None:
        """One step towards what is committed, for `follower.image`; see `MetadataFollower.advance`.
        What was begun in one controller's directory is ended there."""
        if self.follower.is_midway:
            return self.follower.advance(self._seen)
        self._seen = committed = self._words[METADATA_END_OFFSET_WORD]
        if committed <= self.follower.image.offset:
            return []
        epoch, number, _ = self._counters.metadata_leader()
        if epoch > self.epoch:
            self.epoch, self.number = epoch, number
            self.follower.reader.move(self._directory_of(number))
        return self.follower.advance(committed)
