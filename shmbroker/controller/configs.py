"""Decisions about configs: IncrementalAlterConfigs, for topics and brokers.

A pure function of a request and an image, with the checks, codes and words of Kafka's
`ConfigAdminManager` (a broker's own checks, before it forwards) and `ConfigurationControlManager`
(the controller's). Each resource stands or falls by itself.

Unlike Kafka, where a broker takes changes for itself only, any registered broker's are taken.
Broker settings that nobody knows are kept, as Kafka keeps them for its plugins.
"""

from __future__ import annotations

from shmbroker.config import (
    BROKER_SETTINGS,
    LIST,
    TOPIC_SETTINGS,
    effective_topic_config,
    validate_broker_config,
    validate_topic_configs,
)
from shmbroker.controller.topics import config_record
from shmbroker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE
from shmbroker.metadata.messages import fitting
from shmbroker.metadata.topic_names import topic_name_complaint
from shmbroker.wire.error_codes import (
    INVALID_CONFIG,
    INVALID_REQUEST,
    INVALID_TOPIC_EXCEPTION,
    NONE,
    UNKNOWN_SERVER_ERROR,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from shmbroker.wire.primitives import STRING_BYTES_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from shmbroker.controller.metadata_log import Record
    from shmbroker.metadata.image import MetadataImage

    Complaint = tuple[int, str | None]
    Layers = tuple[tuple[int, Mapping[str, str]], ...]

# `AlterConfigOp.OpType`
SET = 0
DELETE = 1
APPEND = 2
SUBTRACT = 3

_MIN_ISR = "min.insync.replicas"
_ELR_FEATURE = "eligible.leader.replicas.version"
_OK: Complaint = (NONE, None)


def alter_configs(
    request: dict[str, Any], image: MetadataImage, layers: Layers
) -> tuple[list[Record], dict[str, Any]]:
    """IncrementalAlterConfigs v0–1: (records, response)."""
    resources = request["resources"]
    keys = [(resource["resource_type"], resource["resource_name"]) for resource in resources]
    counts: dict[tuple[int, str], int] = {}
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
    records: list[Record] = []
    responses = []
    for resource, key in zip(resources, keys, strict=True):
        new: list[Record] = []
        if counts[key] > 1:
            complaint: Complaint = INVALID_REQUEST, "Each resource must appear at most once."
        else:
            complaint = _request_complaint(resource)
            if not complaint[0]:
                new, complaint = _alter_resource(resource, image, layers)
        if not complaint[0] and not request["validate_only"]:
            records += new
        responses.append(
            {
                "error_code": complaint[0],
                "error_message": fitting(complaint[1]),
                "resource_type": key[0],
                "resource_name": key[1],
            }
        )
    return records, {"throttle_time_ms": 0, "responses": responses}


def _request_complaint(resource: dict[str, Any]) -> Complaint:
    configs = resource["configs"]
    if len({config["name"] for config in configs}) < len(configs):
        return INVALID_REQUEST, "Error due to duplicate config keys"
    nulls = [
        config["name"]
        for config in configs
        if config["value"] is None and config["config_operation"] != DELETE
    ]
    if nulls:
        return INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}"
    if any(not SET <= config["config_operation"] <= SUBTRACT for config in configs):
        return UNKNOWN_SERVER_ERROR, None
    if resource["resource_type"] not in (TOPIC_RESOURCE, BROKER_RESOURCE):
        return INVALID_REQUEST, f"Unknown resource type {resource['resource_type']}"
    return _OK


def _alter_resource(
    resource: dict[str, Any], image: MetadataImage, layers: Layers
) -> tuple[list[Record], Complaint]:
    type_, name = resource["resource_type"], resource["resource_name"]
    is_topic = type_ == TOPIC_RESOURCE
    if not is_topic:
        complaint = _broker_complaint(resource, image)
        if complaint[0]:
            return [], complaint
    before = image.config(type_, name)
    after = dict(before)
    records = []
    for config in resource["configs"]:
        key, operation = config["name"], config["config_operation"]
        value = config["value"]
        if operation == DELETE:
            value = None
        elif operation != SET:
            setting = (TOPIC_SETTINGS if is_topic else BROKER_SETTINGS).get(key)
            if setting is None or setting.type != LIST:
                word = "APPEND" if operation == APPEND else "SUBTRACT"
                return [], (
                    INVALID_CONFIG,
                    f"Can't {word} to key {key} because its type is not LIST.",
                )
            current = before.get(key)
            if current is None and is_topic:
                current, _ = effective_topic_config(key, before, layers)
            elif current is None:
                current = setting.default
            value = _altered_list(current or "", value, operation)
            if len(value.encode()) > STRING_BYTES_MAX:
                return [], (INVALID_CONFIG, f"The value of {key} would be too long.")
        # A broker takes a record as the sign to look anew (KAFKA-14136), changed or not.
        if value != before.get(key) or not is_topic:
            records.append(config_record(type_, name, key, value))
        if value is None:
            after.pop(key, None)
        else:
            after[key] = value
    complaint = (
        _topic_complaint(name, after, image)
        if is_topic
        else _min_isr_complaint(name, records, image)
    )
    return records, complaint


def _altered_list(current: str, value: str, operation: int) -> str:
    """Kafka splits at the commas alone: blanks belong to the items."""
    items = [item for item in current.split(",") if item]
    changed = value.split(",")
    while len(changed) > 1 and not changed[-1]:
        changed.pop()
    for item in changed:
        if operation == APPEND and item not in items:
            items.append(item)
        elif operation == SUBTRACT and item in items:
            items.remove(item)
    return ",".join(items)


def _topic_complaint(name: str, configs: dict[str, str], image: MetadataImage) -> Complaint:
    if not name:
        return INVALID_REQUEST, "Default topic resources are not allowed."
    if complaint := topic_name_complaint(name):
        return INVALID_TOPIC_EXCEPTION, complaint
    if complaint := validate_topic_configs(configs):
        return INVALID_CONFIG, complaint
    if name not in image.topics_by_name:
        return UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
    return _OK


def _broker_complaint(resource: dict[str, Any], image: MetadataImage) -> Complaint:
    name = resource["resource_name"]
    if name:
        if not name.removeprefix("-").isdecimal():
            return INVALID_REQUEST, f"Node id must be an integer, but it is: {name}"
        if int(name) not in image.brokers:
            known = ",".join(map(str, sorted(image.brokers)))
            return INVALID_REQUEST, f"Unexpected broker id, expected {known}, but received {name}"
    for config in resource["configs"]:
        key, operation = config["name"], config["config_operation"]
        setting = BROKER_SETTINGS.get(key)
        if operation in (APPEND, SUBTRACT) and (setting is None or setting.type != LIST):
            if setting is None:
                return INVALID_CONFIG, f"Unknown config name: {key}"
            word = "append" if operation == APPEND else "subtract"
            return INVALID_CONFIG, f"Config value {word} is not allowed for config key: {key}"
        if operation == DELETE or setting is None:
            continue
        if not setting.is_dynamic:
            return INVALID_REQUEST, f"Cannot update these configs dynamically: Set({key})"
        if complaint := validate_broker_config(key, config["value"]):
            return INVALID_REQUEST, complaint
    return _OK


def _min_isr_complaint(name: str, records: list[Record], image: MetadataImage) -> Complaint:
    """With eligible leader replicas, the least of in-sync replicas is the cluster's affair."""
    if not image.features.get(_ELR_FEATURE):
        return _OK
    for _, _, message in records:
        if message["name"] == _MIN_ISR and name:
            return (
                INVALID_CONFIG,
                "Broker-level min.insync.replicas cannot be altered while ELR is enabled.",
            )
        if message["name"] == _MIN_ISR and message["value"] is None:
            return (
                INVALID_CONFIG,
                "Cluster-level min.insync.replicas cannot be removed while ELR is enabled.",
            )
    return _OK
