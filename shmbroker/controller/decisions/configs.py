"""Decisions about settings: IncrementalAlterConfigs and AlterConfigs, for every kind of resource.

Pure functions of a request and an image, with the checks, codes and words of Kafka's
`ConfigAdminManager` (a broker's own checks, before it forwards) and `ConfigurationControlManager`
(the controller's). Each resource stands or falls by itself; but an operation that there is not
fails all that a broker would have forwarded with it, as the controller reads them together.

* Unlike Kafka, where a broker takes changes for itself only, any registered broker's are taken.
* Broker settings that nobody knows are kept, as Kafka keeps them for its plugins.
* Log levels (BROKER_LOGGER) are judged as in Kafka, and are the whole family's, whichever of its
  brokers is named. They are no metadata: `level_changes` says what shared memory shall have.
"""

from __future__ import annotations

from shmbroker.controller.decisions.broker_values import (
    fixed_complaint,
    listeners_complaint,
    together_complaint,
)
from shmbroker.logs import LEVELS, LOGGERS
from shmbroker.metadata.client_metrics import client_metrics_complaint
from shmbroker.metadata.features import ELIGIBLE_LEADER_REPLICAS
from shmbroker.metadata.group_configs import validate_group_configs
from shmbroker.metadata.image import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)
from shmbroker.metadata.messages import fitting
from shmbroker.metadata.topic_names import INTERNAL_TOPICS, topic_name_complaint
from shmbroker.settings.checks import validate_broker_config, validate_topic_configs
from shmbroker.settings.setting import LIST
from shmbroker.settings.table import BROKER_SETTINGS, TOPIC_SETTINGS
from shmbroker.settings.without_effect import idle_complaint
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
    from collections.abc import Callable, Mapping
    from typing import Any

    from shmbroker.metadata.image import MetadataImage
    from shmbroker.metadata.record import MetadataRecord
    from shmbroker.settings.broker_config import BrokerConfig

    Complaint = tuple[int, str | None]

# `AlterConfigOp.OpType`
SET = 0
DELETE = 1
APPEND = 2
SUBTRACT = 3

_WORDS = {APPEND: "APPEND", SUBTRACT: "SUBTRACT"}
_LEVELS = tuple(sorted(LEVELS))
_KINDS = {
    TOPIC_RESOURCE: "topic",
    BROKER_RESOURCE: "broker",
    GROUP_RESOURCE: "group",
    CLIENT_METRICS_RESOURCE: "client metrics subscription",
}
_TABLES = {TOPIC_RESOURCE: TOPIC_SETTINGS, BROKER_RESOURCE: BROKER_SETTINGS}
_MIN_ISR = "min.insync.replicas"
_OK: Complaint = (NONE, None)


def incremental_alter_configs(
    request: dict[str, Any], image: MetadataImage, config: BrokerConfig
) -> tuple[list[MetadataRecord], dict[str, Any]]:
    """IncrementalAlterConfigs v0–1: (records, response)."""

    def own_complaint(resource: dict[str, Any]) -> Complaint:
        if resource["resource_type"] == BROKER_LOGGER_RESOURCE:
            return _logger_complaint(resource, image)
        return _own_complaint(resource, image, config)

    def alter(resource: dict[str, Any]) -> tuple[list[MetadataRecord], Complaint]:
        return _alter(resource, image, config)

    return _answer(request, image, own_complaint, alter)


def has_unknown_operation(resource: dict[str, Any]) -> bool:
    """Whether a setting is to be changed in a way that there is not."""
    return any(
        not SET <= entry.get("config_operation", SET) <= SUBTRACT for entry in resource["configs"]
    )


def level_changes(request: dict[str, Any], response: dict[str, Any]) -> dict[str, str | None]:
    """The levels of loggers that an answered IncrementalAlterConfigs has changed; None: taken
    back."""
    changes: dict[str, str | None] = {}
    if request["validate_only"]:
        return changes
    for resource, result in zip(request["resources"], response["responses"], strict=True):
        if resource["resource_type"] == BROKER_LOGGER_RESOURCE and not result["error_code"]:
            for entry in resource["configs"]:
                is_set = entry["config_operation"] == SET
                changes[entry["name"]] = entry["value"] if is_set else None
    return changes


def alter_configs(
    request: dict[str, Any], image: MetadataImage, config: BrokerConfig
) -> tuple[list[MetadataRecord], dict[str, Any]]:
    """AlterConfigs v0–2: what isn't named is taken away."""

    def own_complaint(resource: dict[str, Any]) -> Complaint:
        return _own_complaint(resource, image, config)

    def replace(resource: dict[str, Any]) -> tuple[list[MetadataRecord], Complaint]:
        return _replace(resource, image, config)

    return _answer(request, image, own_complaint, replace)


def idle_complaints(records: list[MetadataRecord]) -> list[str]:
    """What to tell of settings among these records that change nothing. Internal topics have those
    that Kafka gives them."""
    found = []
    for name, _, message in records:
        if message.get("resource_name") in INTERNAL_TOPICS:
            continue
        if name == "ConfigRecord" and message["value"] is not None:
            complaint = idle_complaint(message["name"], message["value"])
            if complaint is not None:
                found.append(f"{complaint} It was set for {_resource_in_words(message)}.")
    return found


def _resource_in_words(message: dict[str, Any]) -> str:
    kind, name = message["resource_type"], message["resource_name"]
    return f"{_KINDS.get(kind, 'a resource')} {name}" if name else "all brokers"


def _answer(
    request: dict[str, Any],
    image: MetadataImage,
    own_complaint: Callable[[dict[str, Any]], Complaint],
    change: Callable[[dict[str, Any]], tuple[list[MetadataRecord], Complaint]],
) -> tuple[list[MetadataRecord], dict[str, Any]]:
    """First what a broker says itself, then `change` for what it would have forwarded."""
    resources = request["resources"]
    keys = [(resource["resource_type"], resource["resource_name"]) for resource in resources]
    counts: dict[tuple[int, str], int] = {}
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
    complaints = []
    forwarded = []
    for at, (resource, key) in enumerate(zip(resources, keys, strict=True)):
        if counts[key] > 1:
            complaint: Complaint = INVALID_REQUEST, "Each resource must appear at most once."
        else:
            complaint = _values_complaint(resource)
            if not complaint[0]:
                complaint = own_complaint(resource)
        complaints.append(complaint)
        if not complaint[0] and key[0] != BROKER_LOGGER_RESOURCE:
            forwarded.append(at)
    if any(has_unknown_operation(resources[at]) for at in forwarded):
        for at in forwarded:
            complaints[at] = UNKNOWN_SERVER_ERROR, None
        forwarded = []
    records: list[MetadataRecord] = []
    for at in forwarded:
        new, complaints[at] = change(resources[at])
        if not complaints[at][0] and not request["validate_only"]:
            records += new
            if image.features.get(ELIGIBLE_LEADER_REPLICAS):
                records += _cleared_elrs(new)
    responses = [
        {
            "error_code": code,
            "error_message": fitting(message),
            "resource_type": type_,
            "resource_name": name,
        }
        for (code, message), (type_, name) in zip(complaints, keys, strict=True)
    ]
    return records, {"throttle_time_ms": 0, "responses": responses}


def _cleared_elrs(new: list[MetadataRecord]) -> list[MetadataRecord]:
    """Records that clear the eligible leader replicas, which were found with another
    min.insync.replicas."""
    names = [
        message["resource_name"] if message["resource_type"] == TOPIC_RESOURCE else ""
        for _, _, message in new
        if message["name"] == _MIN_ISR
    ]
    return [("ClearElrRecord", 0, {"topic_name": name}) for name in names]


def _values_complaint(resource: dict[str, Any]) -> Complaint:
    configs = resource["configs"]
    if len({config["name"] for config in configs}) < len(configs):
        return INVALID_REQUEST, "Error due to duplicate config keys"
    nulls = [
        config["name"]
        for config in configs
        if config["value"] is None and config.get("config_operation") != DELETE
    ]
    if nulls:
        return INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}"
    return _OK


def _own_complaint(
    resource: dict[str, Any], image: MetadataImage, config: BrokerConfig
) -> Complaint:
    """What a broker says itself to changes of anything but loggers."""
    type_ = resource["resource_type"]
    if type_ not in (TOPIC_RESOURCE, BROKER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE):
        return INVALID_REQUEST, f"Unknown resource type {type_}"
    if type_ != BROKER_RESOURCE:
        return _OK
    operations = {
        entry["name"]: (entry.get("config_operation", SET), entry["value"])
        for entry in resource["configs"]
    }
    return _broker_complaint(resource["resource_name"], operations, image, config)


def _alter(
    resource: dict[str, Any], image: MetadataImage, config: BrokerConfig
) -> tuple[list[MetadataRecord], Complaint]:
    type_, name = resource["resource_type"], resource["resource_name"]
    before = image.config(type_, name)
    changes: dict[str, str | None] = {}
    for entry in resource["configs"]:
        key, operation, value = entry["name"], entry["config_operation"], entry["value"]
        if operation == DELETE:
            value = None
        elif operation != SET:
            value, complaint = _altered_list(type_, key, operation, value, before)
            if complaint[0]:
                return [], complaint
        changes[key] = value
    return _changed(type_, name, changes, image, config)


def _replace(
    resource: dict[str, Any], image: MetadataImage, config: BrokerConfig
) -> tuple[list[MetadataRecord], Complaint]:
    type_, name = resource["resource_type"], resource["resource_name"]
    changes = {entry["name"]: entry["value"] for entry in resource["configs"]}
    for key in image.config(type_, name):
        changes.setdefault(key, None)
    return _changed(type_, name, changes, image, config)


def _changed(
    type_: int,
    name: str,
    changes: Mapping[str, str | None],
    image: MetadataImage,
    config: BrokerConfig,
) -> tuple[list[MetadataRecord], Complaint]:
    """The records of these changes (None takes a setting away), if what comes out is allowed."""
    after = dict(image.config(type_, name))
    records = []
    for key, value in changes.items():
        # A broker takes a record as the sign to look anew (KAFKA-14136), changed or not.
        if value != after.get(key) or type_ == BROKER_RESOURCE:
            records.append(config_record(type_, name, key, value))
        if value is None:
            after.pop(key, None)
        else:
            after[key] = value
    if type_ == TOPIC_RESOURCE:
        complaint = _topic_complaint(name, after, image, config)
    elif type_ == BROKER_RESOURCE:
        complaint = _min_isr_complaint(name, changes, image)
    elif type_ == CLIENT_METRICS_RESOURCE:
        complaint = client_metrics_complaint(name, after)
    elif not name:
        complaint = INVALID_REQUEST, "Default group resources are not allowed."
    else:
        message = validate_group_configs(after, config)
        complaint = (INVALID_CONFIG if message else NONE), message
    return records, complaint


def _altered_list(
    type_: int, key: str, operation: int, value: str, before: Mapping[str, str]
) -> tuple[str, Complaint]:
    """A list with items more or less. Kafka knows the lists of topics and brokers only, and splits
    at the commas alone: blanks belong to the items."""
    setting = _TABLES.get(type_, {}).get(key)
    if setting is None or setting.type != LIST:
        message = f"Can't {_WORDS[operation]} to key {key} because its type is not LIST."
        return "", (INVALID_CONFIG, message)
    # What brokers say for all topics does not count, in Kafka either.
    current = before.get(key, setting.default)
    items = dict.fromkeys(item for item in (current or "").split(",") if item)
    # As Java splits: no empty items at the end, and none at all where there are only commas.
    kept = value.rstrip(",")
    for item in kept.split(",") if kept or not value else ():
        if operation == APPEND:
            items.setdefault(item)
        else:
            items.pop(item, None)
    altered = ",".join(items)
    if len(altered.encode()) > STRING_BYTES_MAX:
        return "", (INVALID_CONFIG, f"The value of {key} would be too long.")
    return altered, _OK


def _topic_complaint(
    name: str, configs: dict[str, str], image: MetadataImage, config: BrokerConfig
) -> Complaint:
    if not name:
        return INVALID_REQUEST, "Default topic resources are not allowed."
    if complaint := topic_name_complaint(name):
        return INVALID_TOPIC_EXCEPTION, complaint
    if complaint := validate_topic_configs(configs, image.config(TOPIC_RESOURCE, name), config):
        return INVALID_CONFIG, complaint
    if name not in image.topics_by_name:
        return UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
    return _OK


def _broker_complaint(
    name: str,
    operations: Mapping[str, tuple[int, str]],
    image: MetadataImage,
    config: BrokerConfig,
) -> Complaint:
    """What a broker says to changes of itself or, without a name, of all brokers."""
    if name:
        if not name.removeprefix("-").isdecimal():
            return INVALID_REQUEST, f"Node id must be an integer, but it is: {name}"
        if int(name) not in image.brokers:
            known = ",".join(map(str, sorted(image.brokers)))
            return INVALID_REQUEST, f"Unexpected broker id, expected {known}, but received {name}"
    for operation, _ in operations.values():
        if not SET <= operation <= SUBTRACT:
            return INVALID_REQUEST, f"Unknown operations type {operation}"
    known_settings = {
        key: BROKER_SETTINGS[key]
        for key, (operation, _) in operations.items()
        if key in BROKER_SETTINGS and operation != DELETE
    }
    for key, (operation, _) in operations.items():
        if operation not in _WORDS:
            continue
        if key not in known_settings:
            return INVALID_CONFIG, f"Unknown config name: {key}"
        if known_settings[key].type != LIST:
            word = _WORDS[operation].lower()
            return INVALID_CONFIG, f"Config value {word} is not allowed for config key: {key}"
    changes = {key: None if op == DELETE else value for key, (op, value) in operations.items()}
    values = {key: value for key, value in changes.items() if value is not None}
    if complaint := fixed_complaint(values):
        return INVALID_REQUEST, complaint
    for key, value in values.items():
        if complaint := validate_broker_config(key, value):
            return INVALID_REQUEST, complaint
    if complaint := listeners_complaint(name, values, config):
        return INVALID_REQUEST, complaint
    if complaint := together_complaint(name, changes, image, config):
        return INVALID_REQUEST, complaint
    return _OK


def _min_isr_complaint(
    name: str, changes: Mapping[str, str | None], image: MetadataImage
) -> Complaint:
    """With eligible leader replicas, the least of in-sync replicas is the cluster's affair."""
    if not image.features.get(ELIGIBLE_LEADER_REPLICAS) or _MIN_ISR not in changes:
        return _OK
    if name:
        return (
            INVALID_CONFIG,
            "Broker-level min.insync.replicas cannot be altered while ELR is enabled.",
        )
    if changes[_MIN_ISR] is None:
        return (
            INVALID_CONFIG,
            "Cluster-level min.insync.replicas cannot be removed while ELR is enabled.",
        )
    return _OK


def _logger_complaint(resource: dict[str, Any], image: MetadataImage) -> Complaint:
    name = resource["resource_name"]
    if not name.removeprefix("-").isdecimal():
        return INVALID_REQUEST, f"Node id must be an integer, but it is: {name}"
    if int(name) not in image.brokers:
        known = ",".join(map(str, sorted(image.brokers)))
        return INVALID_REQUEST, f"Unexpected node id. Expected {known}, but received {name}"
    for entry in resource["configs"]:
        key, operation, level = entry["name"], entry["config_operation"], entry["value"]
        if not SET <= operation <= SUBTRACT:
            return UNKNOWN_SERVER_ERROR, None
        if operation in _WORDS:
            return INVALID_REQUEST, (
                f"{_WORDS[operation]} operation is not allowed for the BROKER_LOGGER resource"
            )
        if key not in LOGGERS:
            return INVALID_CONFIG, f"Logger {key} does not exist!"
        if operation == SET and level not in _LEVELS:
            return INVALID_CONFIG, (
                f"Cannot set the log level of {key} to {level} as it is not a supported log "
                f"level. Valid log levels are {', '.join(_LEVELS)}"
            )
        if operation == DELETE and key == "root":
            return INVALID_REQUEST, "Removing the log level of the root logger is not allowed"
    return _OK


def config_record(resource_type: int, name: str, key: str, value: str | None) -> MetadataRecord:
    """ConfigRecord v0; a null value takes the setting away."""
    return (
        "ConfigRecord",
        0,
        {"resource_type": resource_type, "resource_name": name, "name": key, "value": value},
    )
