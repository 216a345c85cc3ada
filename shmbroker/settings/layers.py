"""Where a setting has its value from: the layers, from the topic's override down to the default."""

from __future__ import annotations

from shmbroker.settings.table import TOPIC_SETTINGS, broker_setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from shmbroker.settings.broker_config import BrokerConfig

    Layers = tuple[tuple[int, Mapping[str, str]], ...]
    """Where a setting is looked for, first wins: (source, setting to text)."""

# Where a value is from, numbered as DescribeConfigs v1 does (`ConfigSource`).
SOURCE_TOPIC = 1
SOURCE_DYNAMIC_BROKER = 2
SOURCE_DYNAMIC_DEFAULT_BROKER = 3
SOURCE_STATIC_BROKER = 4
SOURCE_DEFAULT = 5
SOURCE_BROKER_LOGGER = 6
SOURCE_CLIENT_METRICS = 7
SOURCE_GROUP = 8


def broker_layers(
    config: BrokerConfig, dynamic_broker: Mapping[str, str], dynamic_default: Mapping[str, str]
) -> Layers:
    """Where a broker's values are looked for."""
    return (
        (SOURCE_DYNAMIC_BROKER, dynamic_broker),
        (SOURCE_DYNAMIC_DEFAULT_BROKER, dynamic_default),
        (SOURCE_STATIC_BROKER, config.static),
    )


def effective_broker_config(name: str, config: BrokerConfig, layers: Layers) -> Any:
    """The parsed value of a dynamic broker setting. A stored value that isn't allowed here
    (another version wrote it) gives way to the next."""
    setting = broker_setting(name)
    for _, values in layers:
        if setting is not None and name in values:
            try:
                return setting.parse(values[name])
            except ValueError:
                continue
    return config[name]


def effective_topic_config(
    name: str,
    overrides: Mapping[str, str],
    layers: Layers,
) -> tuple[str, int]:
    """(text, source) of a topic setting: as stored where it was set, the default else
    (Kafka: `KafkaConfigSchema.resolveEffectiveTopicConfig`)."""
    setting = TOPIC_SETTINGS[name]
    if name in overrides:
        return overrides[name], SOURCE_TOPIC
    for source, values in layers:
        for synonym, factor in setting.synonyms:
            if synonym in values:
                text = values[synonym]
                return (text if factor == 1 else str(int(text) * factor)), source
    return setting.default or "", SOURCE_DEFAULT


def effective_topic_value(
    name: str,
    overrides: Mapping[str, str],
    layers: Layers,
) -> Any:
    """The parsed value of a topic setting; the default for a stored one that isn't allowed here."""
    setting = TOPIC_SETTINGS[name]
    text, _ = effective_topic_config(name, overrides, layers)
    try:
        return setting.parse(text)
    except ValueError:
        return setting.parse(setting.default or "")


def effective_topic_configs(overrides: Mapping[str, str], layers: Layers) -> dict[str, str]:
    """Every topic setting's effective value as Kafka prints it: what a log is configured with.

    A stored value that isn't allowed here (another version wrote it) gives way to the default:
    a broker doesn't die of it. Overrides of unknown settings are left out.
    """
    values = {}
    for name, setting in TOPIC_SETTINGS.items():
        text, _ = effective_topic_config(name, overrides, layers)
        try:
            values[name] = setting.text(setting.parse(text)) or ""
        except ValueError:
            values[name] = setting.default or ""
    return values
