"""The metadata of a gateway that has a broker beside it, which follows the log for both."""

from __future__ import annotations

from shmbroker.shm.counters import METADATA_END_OFFSET_WORD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from shmbroker.broker.broker import Broker
    from shmbroker.gateway.gateway import Gateway
    from shmbroker.ipc.peer import Peer
    from shmbroker.metadata.changes import MetadataChange


class BrokersImage:
    """The metadata that the broker beside has followed: a `MetadataLink` to no controller."""

    def __init__(self, broker: Broker, words: memoryview) -> None:
        self._broker = broker
        self._words = words
        self._changes: list[MetadataChange] = []
        self.epoch = 0
        self.number = broker.link.number
        self.follower = broker.link.follower
        self.on_followed([])

    def on_followed(self, changes: Sequence[MetadataChange]) -> None:
        """The broker has followed the metadata: so much has changed."""
        self._changes += changes
        self._words[METADATA_END_OFFSET_WORD] = self._broker.image.offset

    def is_behind(self) -> bool:
        return bool(self._changes)

    def has_news(self) -> bool:
        return False

    def catch_up(self) -> list[MetadataChange]:
        changes, self._changes = self._changes, []
        return changes

    def peer(self) -> None:
        """No peer: nobody is asked."""

    def others(self) -> list[Peer]:
        return []


def is_current(gateway: Gateway, broker: Broker) -> bool:
    """Whether both have followed the metadata log as far as it is committed."""
    image = gateway.image
    return broker.image is image and gateway.words[METADATA_END_OFFSET_WORD] == image.offset
