"""Settings for the page: the value, where it is from, what it is for, and what stands behind it.

Out of the metadata image and the settings that the family was started with: nobody is asked.
"""

from __future__ import annotations

from collections.abc import Mapping

from shmbroker.metadata.describe_configs import describe_configs
from shmbroker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.settings.layers import (
    SOURCE_DEFAULT,
    SOURCE_DYNAMIC_BROKER,
    SOURCE_DYNAMIC_DEFAULT_BROKER,
    SOURCE_STATIC_BROKER,
    SOURCE_TOPIC,
    broker_layers,
    effective_topic_config,
)
from shmbroker.settings.table import BROKER_SETTINGS, TOPIC_SETTINGS
from shmbroker.settings.without_effect import WITHOUT_EFFECT

SOURCES = {
    SOURCE_TOPIC: "topic",
    SOURCE_DYNAMIC_BROKER: "broker",
    SOURCE_DYNAMIC_DEFAULT_BROKER: "all brokers",
    SOURCE_STATIC_BROKER: "file or flag",
    SOURCE_DEFAULT: "default",
}


def settings_of(
    image: MetadataImage,
    config: BrokerConfig,
    broker_id: int,
    identity: Mapping[str, str],
    topic: str | None,
) -> list[dict[str, object]]:
    """The settings of a topic, or of a broker if the topic is None. Values of secrets are left out.

    Of a topic the source is where the value is really from; DescribeConfigs names the default
    where Kafka does, as for log.retention.hours behind retention.ms.
    """
    kind = BROKER_RESOURCE if topic is None else TOPIC_RESOURCE
    name = str(broker_id) if topic is None else topic
    request = {
        "resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": None}],
        "include_synonyms": True,
        "include_documentation": True,
    }
    (result,) = describe_configs(request, image, config, broker_id, identity, dict[str, str])[
        "results"
    ]
    table = BROKER_SETTINGS if topic is None else TOPIC_SETTINGS
    layers = broker_layers(
        config, image.config(BROKER_RESOURCE, str(broker_id)), image.config(BROKER_RESOURCE, "")
    )
    overrides = {} if topic is None else image.config(TOPIC_RESOURCE, topic)
    rows = []
    for entry in result["configs"]:
        setting = table.get(entry["name"])
        is_secret = entry["is_sensitive"]
        source = entry["config_source"]
        if topic is not None and setting is not None:
            source = effective_topic_config(entry["name"], overrides, layers)[1]
        rows.append(
            {
                "name": entry["name"],
                "value": None if is_secret else entry["value"],
                "is_secret": is_secret,
                "from": SOURCES.get(source, "unknown"),
                "is_dynamic": not entry["read_only"],
                "default": setting.default if setting else None,
                "unit": setting.unit if setting else "",
                "documentation": entry["documentation"] or "",
                "has_effect": entry["name"] not in WITHOUT_EFFECT,
                "behind": [
                    {
                        "name": each["name"],
                        "value": None if is_secret else each["value"],
                        "from": SOURCES.get(each["source"], "unknown"),
                    }
                    for each in entry["synonyms"]
                ],
            }
        )
    return rows
