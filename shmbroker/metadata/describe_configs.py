"""DescribeConfigs: what is set, where it is set, and what stands behind it.

Answers out of an image and the static config for topics, brokers, groups, client metrics
subscriptions and log levels; a broker answers for itself and for all brokers (name ""), as Kafka's
does. A setting's *synonyms* are all the places that have a value for it, the effective one first.

Source: Kafka's `ConfigHelper` (`describeConfigs`, `configSynonyms`), KIP-226, KIP-569.
"""

from __future__ import annotations

from shmbroker.metadata.client_metrics import CLIENT_METRICS_SETTINGS
from shmbroker.metadata.group_configs import GROUP_SETTINGS, group_default
from shmbroker.metadata.image import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    MetadataImage,
)
from shmbroker.metadata.messages import fitting
from shmbroker.metadata.topic_names import topic_name_complaint
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.settings.layers import (
    SOURCE_BROKER_LOGGER,
    SOURCE_CLIENT_METRICS,
    SOURCE_DEFAULT,
    SOURCE_DYNAMIC_DEFAULT_BROKER,
    SOURCE_GROUP,
    SOURCE_STATIC_BROKER,
    SOURCE_TOPIC,
    broker_layers,
    effective_topic_config,
)
from shmbroker.settings.left_out import CHANGED_BY_CLIENTS
from shmbroker.settings.setting import OWN_PREFIX, Setting
from shmbroker.settings.table import BROKER_SETTINGS, TOPIC_SETTINGS, broker_setting
from shmbroker.wire.error_codes import (
    INVALID_REQUEST,
    INVALID_TOPIC_EXCEPTION,
    NONE,
    POLICY_VIOLATION,
    UNKNOWN_TOPIC_OR_PARTITION,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Entry = dict[str, Any]
    from shmbroker.settings.layers import Layers

_UNKNOWN_TYPE = 0

ENTRIES_MAX = 20_000
"""The most settings in one answer, besides those of topics that are named once: any group may be
asked for, and anything twice, so a small request could ask for gigabytes."""

_RESOURCES = (
    TOPIC_RESOURCE,
    BROKER_RESOURCE,
    BROKER_LOGGER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
)
"""What can be asked for; one that is something else fails the whole request, as in Kafka."""
_CHAINS = {
    synonym: setting.synonyms
    for setting in TOPIC_SETTINGS.values()
    for synonym, _ in setting.synonyms
    if len(setting.synonyms) > 1
}
"""Broker settings that stand in for each other: log.retention.ms, …minutes, …hours."""


def describe_configs(
    request: dict[str, Any],
    image: MetadataImage,
    config: BrokerConfig,
    broker_id: int,
    identity: Mapping[str, str],
    levels: Callable[[], Mapping[str, str]],
) -> dict[str, Any]:
    """The response to `request`; `identity` is `BrokerConfig.identity` of the broker asked,
    `levels` those that the family's loggers go by now."""
    results = []
    with_synonyms, with_text = request["include_synonyms"], request["include_documentation"]
    topics = set()
    room = ENTRIES_MAX
    unexpected = next(
        (
            f"Unexpected resource type {row['resource_type']} for resource {row['resource_name']}"
            for row in request["resources"]
            if row["resource_type"] not in _RESOURCES
        ),
        None,
    )
    alike: dict[tuple[tuple[str, str], ...], list[Entry]] = {}
    for resource in request["resources"]:
        kind, name = resource["resource_type"], resource["resource_name"]
        entries: list[Entry] = []
        message: str | None
        if unexpected is not None:
            error, message = INVALID_REQUEST, unexpected
        elif room <= 0:
            error, message = POLICY_VIOLATION, "Too many resources in one request."
        elif kind == TOPIC_RESOURCE and name in image.topics_by_name:
            # Making the entries takes a tenth of a millisecond, and most topics set the same.
            error, message = NONE, ""
            overrides = image.config(TOPIC_RESOURCE, name)
            values = tuple(overrides.items())
            if values not in alike:
                alike[values] = topic_entries(overrides, _layers(image, config, broker_id))
            entries = alike[values]
        else:
            asked = kind, name, image, config, broker_id, identity
            error, message, entries = _describe(*asked, levels)
        if kind == TOPIC_RESOURCE and name not in topics:
            topics.add(name)
        else:
            room -= len(entries)
        wanted = resource["configuration_keys"]
        if wanted:
            entries = [entry for entry in entries if entry["name"] in wanted]
        for entry in entries:
            if not with_synonyms:
                entry["synonyms"] = []
            if not with_text and entry["documentation"]:
                entry["documentation"] = None
        results.append(
            {
                "error_code": error,
                "error_message": fitting(message),
                "resource_type": kind,
                "resource_name": name,
                "configs": entries,
            }
        )
    return {"throttle_time_ms": 0, "results": results}


def _describe(
    type_: int,
    name: str,
    image: MetadataImage,
    config: BrokerConfig,
    broker_id: int,
    identity: Mapping[str, str],
    levels: Callable[[], Mapping[str, str]],
) -> tuple[int, str | None, list[Entry]]:
    """(error, message, entries) of one resource, other than a topic that there is."""
    if type_ == TOPIC_RESOURCE:
        if complaint := topic_name_complaint(name):
            return INVALID_TOPIC_EXCEPTION, complaint, []
        return UNKNOWN_TOPIC_OR_PARTITION, "", []
    if type_ == BROKER_RESOURCE:
        if complaint := _broker_name_complaint(name, broker_id):
            return INVALID_REQUEST, complaint, []
        if name:
            *dynamic_layers, (_, static) = _layers(image, config, broker_id)
            # What a broker is goes before what was said of the whole family.
            known = {**static, **identity}
            return NONE, "", _broker_entries((*dynamic_layers, (SOURCE_STATIC_BROKER, known)))
        dynamic = image.config(BROKER_RESOURCE, "")
        default_layer = ((SOURCE_DYNAMIC_DEFAULT_BROKER, dynamic),)
        entries = [_broker_entry(key, default_layer, is_of_all=True) for key in sorted(dynamic)]
        return NONE, "", entries
    if type_ == BROKER_LOGGER_RESOURCE:
        if complaint := _logger_name_complaint(name, broker_id):
            return INVALID_REQUEST, complaint, []
        return NONE, "", [_logger_entry(*row) for row in levels().items()]
    if type_ == GROUP_RESOURCE:
        if not name:
            return INVALID_REQUEST, "Group name must not be empty", []
        return NONE, "", _group_entries(image.config(GROUP_RESOURCE, name), config)
    if type_ == CLIENT_METRICS_RESOURCE:
        if not name:
            return INVALID_REQUEST, "Client metrics subscription name must not be empty", []
        return NONE, "", _subscription_entries(image.config(CLIENT_METRICS_RESOURCE, name))
    raise AssertionError(f"resource type {type_}")


def _group_entries(overrides: Mapping[str, str], config: BrokerConfig) -> list[Entry]:
    entries = []
    for name, setting in GROUP_SETTINGS.items():
        value = _printed(setting, overrides.get(name, group_default(setting, config)))
        source = SOURCE_GROUP if name in overrides else SOURCE_DEFAULT
        entries.append(_entry(setting, value, [_synonym(name, value, source)]))
    return entries


def _subscription_entries(values: Mapping[str, str]) -> list[Entry]:
    entries = []
    for name, setting in CLIENT_METRICS_SETTINGS.items():
        value = _printed(setting, values.get(name, setting.default or ""))
        synonyms = [_synonym(name, value, SOURCE_CLIENT_METRICS)] if name in values else []
        entries.append(_entry(setting, value, synonyms))
    return entries


def _logger_entry(name: str, level: str) -> Entry:
    return {
        "name": name,
        "value": level,
        "read_only": False,
        "config_source": SOURCE_BROKER_LOGGER,
        "is_sensitive": False,
        "synonyms": [],
        "config_type": _UNKNOWN_TYPE,
        "documentation": "",
    }


def topic_entries(overrides: Mapping[str, str], layers: Layers) -> list[Entry]:
    """All settings of one topic. Those that Kafka doesn't have are listed where they are set."""
    entries = []
    for name, setting in TOPIC_SETTINGS.items():
        if name.startswith(OWN_PREFIX) and name not in overrides:
            continue
        value = _printed(setting, effective_topic_config(name, overrides, layers)[0])
        synonyms = []
        if setting.synonyms:
            synonyms = _synonyms(setting.synonyms[0][0], setting.synonyms, layers)
        if name in overrides:
            synonyms.insert(0, _synonym(name, value, SOURCE_TOPIC))
        entries.append(_entry(setting, value, synonyms))
    return entries


def _broker_entries(layers: Layers) -> list[Entry]:
    names = {name for name, setting in BROKER_SETTINGS.items() if not setting.is_hidden}
    for _, values in layers:
        names.update(values)
    return [_broker_entry(name, layers) for name in sorted(names)]


def _broker_entry(name: str, layers: Layers, *, is_of_all: bool = False) -> Entry:
    """One setting of a broker; `is_of_all`: what was said of all brokers, as it was said."""
    setting = broker_setting(name)
    if setting is None:
        return _unknown_entry(name, layers)
    value = setting.default
    for _, values in layers:
        if name in values:
            value = values[name]
            break
    has_default = not is_of_all and not setting.is_hidden
    chain = _CHAINS.get(name, ((name, 1),))
    if setting.name != name:
        chain = ((name, 1), (setting.name, 1))  # a listener's own, and what holds for all
    synonyms = _synonyms(name, chain, layers, has_default)
    if value is not None and not is_of_all:
        value = _printed(setting, value)
    shown = None if setting.is_secret else value
    return _entry(setting, shown, synonyms) | {"name": name}


def _unknown_entry(name: str, layers: Layers) -> Entry:
    """A value kept for a setting that isn't here. Where Kafka does not know it either, it is, for
    all that is known, a secret."""
    is_known = name in CHANGED_BY_CLIENTS
    synonyms = [
        _synonym(name, values[name] if is_known else None, source)
        for source, values in layers
        if name in values
    ]
    return {
        "name": name,
        "value": synonyms[0]["value"],
        "read_only": not is_known,
        "config_source": synonyms[0]["source"],
        "is_sensitive": not is_known,
        "synonyms": synonyms,
        "config_type": _UNKNOWN_TYPE,
        "documentation": None,
    }


def _synonyms(
    main: str, chain: tuple[tuple[str, int], ...], layers: Layers, has_default: bool = True
) -> list[dict[str, Any]]:
    """Every value of the settings in `chain`, layer by layer, beginning with one of `main`."""
    setting = broker_setting(main)
    is_secret = setting is not None and setting.is_secret
    found = [
        _synonym(name, None if is_secret else values[name], source)
        for source, values in layers
        for name, _ in chain
        if name in values
    ]
    for name, _ in chain if has_default else ():
        row = BROKER_SETTINGS.get(name)
        if row is not None and row.default is not None:
            found.append(_synonym(name, row.default, SOURCE_DEFAULT))
    # Kafka leaves out what comes before the first value of `main`, even if that is the effective
    # one: a topic doesn't show log.retention.hours while log.retention.ms isn't set.
    while found and found[0]["name"] != main:
        del found[0]
    return found


def _synonym(name: str, value: str | None, source: int) -> dict[str, Any]:
    return {"name": name, "value": value, "source": source}


def _entry(setting: Setting, value: str | None, synonyms: list[dict[str, Any]]) -> Entry:
    return {
        "name": setting.name,
        "value": value,
        "read_only": not setting.is_dynamic or setting.is_hidden,
        "config_source": synonyms[0]["source"] if synonyms else SOURCE_DEFAULT,
        "is_sensitive": setting.is_secret,
        "synonyms": synonyms,
        "config_type": setting.type,
        "documentation": setting.documentation,
    }


def _printed(setting: Setting, text: str) -> str | None:
    """The text of the parsed value, as Kafka prints it: " 5 " is 5, TRUE is true."""
    try:
        return setting.text(setting.parse(text))
    except ValueError:
        return text  # another version's; better shown than hidden


def _layers(image: MetadataImage, config: BrokerConfig, broker_id: int) -> Layers:
    return broker_layers(
        config, image.config(BROKER_RESOURCE, str(broker_id)), image.config(BROKER_RESOURCE, "")
    )


def _broker_name_complaint(name: str, broker_id: int) -> str | None:
    if name in ("", str(broker_id)):
        return None
    if not name.removeprefix("-").isdecimal():
        return f"Broker id must be an integer, but it is: {name}"
    return f"Unexpected broker id, expected {broker_id} or empty string, but received {name}"


def _logger_name_complaint(name: str, broker_id: int) -> str | None:
    if not name:
        return "Broker id must not be empty"
    if name == str(broker_id):
        return None
    if not name.removeprefix("-").isdecimal():
        return f"Broker id must be an integer, but it is: {name}"
    return f"Unexpected broker id, expected {broker_id} but received {name}"
