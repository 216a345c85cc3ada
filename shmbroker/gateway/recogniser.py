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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.metadata.image import MetadataImage, TopicImage

CORRELATION_ID_AT = 4
BEHIND_CORRELATION_ID = 8


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
        """Whether the topic is the same in a newer image: then this is of that one."""
        if image.topics_by_id.get(self.topic_image.topic_id) is not self.topic_image:
            return False
        if image.security.acls is not self.image.security.acls:
            return False  # who was allowed to may be no more
        self.image = image
        return True
