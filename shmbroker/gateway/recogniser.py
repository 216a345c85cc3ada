"""Requests that come again and again: what their bytes meant when they were decoded.

A client repeats a request but for its correlation id, bytes 4 to 8 of the frame. Some fields more
move in what is hot; all other bytes are the key under which the meaning is kept.

    who keeps it                what moves besides   what it means
    produce_known.FastProduce   size and records     the APPEND's constant, the answer's other bytes
    fetch_known.KnownFetch      the offset           the READ around it, the answer's other bytes
    fetch_session.repeated      the epoch            the READ of the session, which keeps it
    forwarding.cache            nothing              the encoded answer, as long as the image stays
    standing.Standing           nothing              the standing answer, as long as it is granted

Rules of this file:
* A meaning holds for one broker id, as each has a port of its own.
* It is kept in a `Known`: what was kept first goes first.
"""

from __future__ import annotations

from shmbroker.ids import ZERO_UUID
from shmbroker.metadata.image import MetadataImage, TopicImage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import TypeVar

    from shmbroker.known import Known

    Key = TypeVar("Key", bound=Hashable)
    Kept = TypeVar("Kept", bound="TopicMeaning")

CORRELATION_ID_AT = 4
BEHIND_CORRELATION_ID = 8
_NO_IMAGE = MetadataImage("")
_NO_TOPIC = TopicImage("", ZERO_UUID, ())


def key_of(buffer: bytearray, start: int, end: int) -> bytes:
    """The bytes of a frame (without its size) but for the correlation id."""
    key = bytes(buffer[start : start + CORRELATION_ID_AT])
    return key + buffer[start + BEHIND_CORRELATION_ID : end]


class TopicMeaning:
    """What names one topic, as that was in `image`."""

    __slots__ = ("image", "topic_image")
    image: MetadataImage
    topic_image: TopicImage

    def holds(self, image: MetadataImage) -> bool:
        """Whether the topic is the same in a newer image: then this is of that one.

        Otherwise it never holds again, and keeps no image alive.
        """
        is_same = (
            image.topics_by_id.get(self.topic_image.topic_id) is self.topic_image
            # Otherwise who was allowed to may be no more.
            and image.security.acls is self.image.security.acls
        )
        if is_same:
            self.image = image
        else:
            self.image, self.topic_image = _NO_IMAGE, _NO_TOPIC
        return is_same


def forget_gone(known: Known[Key, Kept], image: MetadataImage) -> None:
    """Drop the meanings that do not hold in this image; the others are of it."""
    for key in [key for key, meaning in known.items() if not meaning.holds(image)]:
        del known[key]
