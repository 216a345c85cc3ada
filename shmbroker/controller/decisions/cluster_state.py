"""What decisions about topics and partitions look at: the image and what stands round it.

Pure: a `ClusterState` is made for one decision, and nothing changes it but what the decision takes
from `mutations`.
"""

from __future__ import annotations

from shmbroker.controller.decisions.partition_change import ONLINE, UNCLEAN, ElectionRules
from shmbroker.controller.mutation_quotas import UNBOUNDED
from shmbroker.ids import ZERO_UUID
from shmbroker.metadata.features import ELIGIBLE_LEADER_REPLICAS
from shmbroker.metadata.image import TOPIC_RESOURCE
from shmbroker.settings.layers import effective_topic_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet
    from typing import Any

    from shmbroker.controller.mutation_quotas import Mutations
    from shmbroker.metadata.image import MetadataImage, TopicImage
    from shmbroker.metadata.record import MetadataRecord
    from shmbroker.settings.broker_config import BrokerConfig

    Decision = tuple[list[MetadataRecord], dict[str, Any]]
    """Records to commit, and the response that is true once they are."""
    from shmbroker.settings.layers import Layers

    Complaint = tuple[int, str | None]
    """An error and its message; (NONE, None)."""


class ClusterState:
    """What decisions about topics and partitions look at, besides the request."""

    __slots__ = ("brokers", "config", "fenced", "image", "layers", "mutations", "new_uuid",
                 "short")  # fmt: skip

    def __init__(
        self,
        image: MetadataImage,
        config: BrokerConfig,
        layers: Layers,
        new_uuid: Callable[[], bytes],
        short: AbstractSet[int] = frozenset(),
        mutations: Mutations = UNBOUNDED,
    ) -> None:
        self.image = image
        self.config = config
        self.layers = layers
        """Where topic settings come from below the topic (`settings.layers`)."""
        self.new_uuid = new_uuid
        """Draws an id that nothing has yet."""
        self.brokers = [id_ for id_, broker in sorted(image.brokers.items()) if broker.is_active]
        """Ids of the brokers at work, in order."""
        self.short = short
        """Brokers without room on their disk: they lead if nobody else can."""
        self.mutations = mutations
        """How many partitions the client that asks may have changed."""
        self.fenced = [id_ for id_, broker in sorted(image.brokers.items()) if broker.is_fenced]

    def is_active(self, broker_id: int) -> bool:
        """Whether a broker may lead and be in sync."""
        broker = self.image.brokers.get(broker_id)
        return broker is not None and broker.is_active

    def directory_of(self, broker_id: int) -> bytes:
        """Where a broker puts a new replica."""
        broker = self.image.brokers.get(broker_id)
        return broker.directories[0] if broker and broker.directories else ZERO_UUID

    @property
    def is_elr_on(self) -> bool:
        """Whether eligible leader replicas are kept (KIP-966)."""
        return self.image.features.get(ELIGIBLE_LEADER_REPLICAS, 0) >= 1

    def min_in_sync(self, topic: TopicImage) -> int:
        """min.insync.replicas of a topic, at most its replicas
        (`ReplicationControlManager.getTopicEffectiveMinIsr`)."""
        replicas = len(topic.partitions[0].replicas) if topic.partitions else 1
        return min(int(self._value(topic.name, "min.insync.replicas")), replicas)

    def is_unclean_allowed(self, topic: str) -> bool:
        """unclean.leader.election.enable of a topic."""
        return bool(self._value(topic, "unclean.leader.election.enable"))

    def rules(
        self,
        topic: TopicImage,
        is_acceptable: Callable[[int], bool] | None = None,
        election: int | None = None,
    ) -> ElectionRules:
        """The rules by which this topic's partitions change; without `election`, as its setting
        allows."""
        if election is None:
            election = UNCLEAN if self.is_unclean_allowed(topic.name) else ONLINE
        return ElectionRules(
            is_acceptable or self.is_active,
            self.min_in_sync(topic),
            self.is_elr_on,
            self.directory_of,
            election,
            self.short,
        )

    def _value(self, topic: str, name: str) -> Any:
        overrides = self.image.config(TOPIC_RESOURCE, topic)
        return effective_topic_value(name, overrides, self.layers)
