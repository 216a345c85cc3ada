"""The settings of one broker as they are now: its own, the cluster's, and those of its topics.

They may change while it runs: the layers that the metadata image has come before the ones that the
process was started with (`settings.layers`).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from shmbroker.log.config import LogConfig
from shmbroker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE
from shmbroker.metadata.topic_names import INTERNAL_TOPICS
from shmbroker.records import validation
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.settings.layers import (
    broker_layers,
    effective_broker_config,
    effective_topic_configs,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.metadata.followed import Followed
    from shmbroker.settings.layers import Layers


class LiveSettings:
    """Finds what settings hold now, whenever something was changed."""

    def __init__(self, config: BrokerConfig, broker_id: int, metadata: Followed) -> None:
        self.config = config
        self.broker_id = broker_id
        self._metadata = metadata

    def of_broker(self, *names: str) -> list[Any]:
        """The values of these settings of the broker."""
        layers = self._layers()
        return [effective_broker_config(name, self.config, layers) for name in names]

    def of_topic(self, topic: str) -> LogConfig:
        """What holds for the logs of a topic."""
        values = effective_topic_configs(
            self._metadata.image.config(TOPIC_RESOURCE, topic), self._layers()
        )
        if not self.config.is_tier_enabled or topic in INTERNAL_TOPICS:
            values["remote.storage.enable"] = "false"
        config = LogConfig(values)
        if config.is_validated:
            validation.prepare()
        return config

    def key_of(self, topic: str) -> Hashable:
        """Topics of the same key have the same settings."""
        overrides = self._metadata.image.config(TOPIC_RESOURCE, topic)
        return topic in INTERNAL_TOPICS, tuple(overrides.items())

    def _layers(self) -> Layers:
        image = self._metadata.image
        return broker_layers(
            self.config,
            image.config(BROKER_RESOURCE, str(self.broker_id)),
            image.config(BROKER_RESOURCE, ""),
        )
