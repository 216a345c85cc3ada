"""What is given to those that need the metadata as they are now, for as long as they are there."""

from __future__ import annotations

from typing import Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.metadata.image import MetadataImage


class Followed(Protocol):
    """Has the newest image that this process has: a `MetadataFollower` as a rule."""

    @property
    def image(self) -> MetadataImage:
        """The cluster as of the last committed record that was followed."""
