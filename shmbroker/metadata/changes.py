"""What can be different between two metadata images: one type for each kind of change.

The images inside are those that stand in the cluster's image; a change copies nothing.
"""

from __future__ import annotations

from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.metadata.image import BrokerImage, PartitionImage, TopicImage


class TopicDeleted(NamedTuple):
    """A topic is gone."""

    topic: TopicImage
    """The topic as it was."""


class TopicCreated(NamedTuple):
    """A topic has come, with all its partitions: there is no PartitionChanged for them."""

    topic: TopicImage


class PartitionChanged(NamedTuple):
    """A partition of a topic that was there before has changed, or was added."""

    topic: TopicImage
    """The topic as it is now."""
    before: PartitionImage | None
    """None: added."""
    after: PartitionImage


class ConfigChanged(NamedTuple):
    """The settings of a topic, broker, group or client metrics subscription have changed."""

    resource_type: int
    name: str
    """"" with BROKER_RESOURCE: of all brokers."""


class BrokerChanged(NamedTuple):
    """A broker was registered, fenced, unfenced, changed or unregistered."""

    before: BrokerImage | None
    """None: new."""
    after: BrokerImage | None
    """None: unregistered."""


class SecurityChanged(NamedTuple):
    """ACLs have changed."""


MetadataChange = (
    TopicDeleted | TopicCreated | PartitionChanged | ConfigChanged | BrokerChanged | SecurityChanged
)
