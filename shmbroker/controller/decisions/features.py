"""Decisions about feature levels: UpdateFeatures.

A pure function of a request and an image, with the checks, codes and words of Kafka's
`FeatureControlManager` (KIP-584, KIP-778). All updates of a request stand or fall together. Only
the features in `metadata.features` have levels to choose.
"""

from __future__ import annotations

from shmbroker.controller.decisions.configs import config_record
from shmbroker.metadata.features import (
    CARRIED_FEATURES,
    ELIGIBLE_LEADER_REPLICAS,
    KRAFT_VERSION,
    METADATA_VERSION,
    METADATA_VERSION_OF_RECORDS,
    SUPPORTED_FEATURES,
)
from shmbroker.metadata.image import BROKER_RESOURCE
from shmbroker.metadata.messages import fitting
from shmbroker.wire.error_codes import INVALID_UPDATE_VERSION, NONE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.metadata.image import MetadataImage
    from shmbroker.metadata.record import MetadataRecord

# `FeatureUpdate.UpgradeType`
UPGRADE = 1
SAFE_DOWNGRADE = 2
UNSAFE_DOWNGRADE = 3

_LEVELS = SUPPORTED_FEATURES | CARRIED_FEATURES


def update_features(
    request: dict[str, Any],
    version: int,
    image: MetadataImage,
    node_id: int,
    min_insync_replicas: int,
) -> tuple[list[MetadataRecord], dict[str, Any]]:
    """UpdateFeatures v0–2: (records, response). `node_id`: of this controller, for the texts;
    `min_insync_replicas`: what file and flags say.

    v0's flag that allows downgrades is read as Kafka reads it: not at all.
    """
    updates = request["feature_updates"]
    records: list[MetadataRecord] = []
    for update in updates:
        name, level = update["feature"], update["max_version_level"]
        kind = update["upgrade_type"] if version >= 1 else UPGRADE
        if complaint := _complaint(name, level, kind, image, node_id):
            return [], {
                "throttle_time_ms": 0,
                "error_code": INVALID_UPDATE_VERSION,
                "error_message": fitting(
                    "The update failed for all features since the following feature had an "
                    f"error: {complaint}"
                ),
                "results": [],
            }
        if name == KRAFT_VERSION:
            continue
        if name == ELIGIBLE_LEADER_REPLICAS and level > 0:
            records += _safe_for_elr(image, min_insync_replicas)
        records.append(("FeatureLevelRecord", 0, {"name": name, "feature_level": level}))
    response = {
        "throttle_time_ms": 0,
        "error_code": NONE,
        "error_message": None,
        "results": [
            {"feature": update["feature"], "error_code": NONE, "error_message": "NONE"}
            for update in updates
        ]
        if version < 2
        else [],
    }
    return [] if version >= 1 and request["validate_only"] else records, response


def _safe_for_elr(image: MetadataImage, min_insync_replicas: int) -> list[MetadataRecord]:
    """With eligible leader replicas, min.insync.replicas is the cluster's affair: a value for all
    brokers, and none for single ones (`maybeGenerateElrSafetyRecords`)."""
    key = "min.insync.replicas"
    records = []
    if key not in image.config(BROKER_RESOURCE, ""):
        records.append(config_record(BROKER_RESOURCE, "", key, str(min_insync_replicas)))
    records += [
        config_record(BROKER_RESOURCE, name, key, None)
        for (kind, name), values in image.configs.items()
        if kind == BROKER_RESOURCE and name and key in values
    ]
    return records


def _complaint(name: str, level: int, kind: int, image: MetadataImage, node_id: int) -> str | None:
    current = image.features.get(name, 0)
    reason = None
    if not UPGRADE <= kind <= UNSAFE_DOWNGRADE:
        reason = "The controller does not support the given upgrade type."
    elif level < 0:
        reason = "A feature version cannot be less than 0."
    elif name not in _LEVELS:
        reason = f"Local controller {node_id} does not support this feature."
        if level == 0:
            reason = f"Feature {name} not found."
    else:
        least, most = _LEVELS[name]
        if not least <= level <= most:
            reason = f"Local controller {node_id} only supports versions {least}-{most}"
        elif name == KRAFT_VERSION:
            pass
        elif level < current and kind == UPGRADE:
            reason = (
                "Can't downgrade the version of this feature without setting the upgrade type to "
                "either safe or unsafe downgrade."
            )
        elif level > current and kind != UPGRADE:
            reason = "Can't downgrade to a newer version."
    if reason is not None:
        return f"Invalid update version {level} for feature {name}. {reason}"
    if name == METADATA_VERSION and level < min(current, METADATA_VERSION_OF_RECORDS):
        reason = (
            "Unsafe metadata downgrade is not supported in this version."
            if kind == UNSAFE_DOWNGRADE
            else "Refusing to perform the requested downgrade because it might delete metadata "
            "information."
        )
        return f"Unsupported metadata.version downgrade from {current} to {level}. {reason}"
    return None
