"""Decisions about client quotas: AlterClientQuotas (KIP-546), checked and refused in Kafka's words.

Pure. An entity stands or falls as a whole; what is set to what it is already is not written again.
An entity that is named twice is refused, but what its first row asks for is done, as in Kafka.
"""

from __future__ import annotations

import math

from shmbroker.metadata.quota_image import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    entity_of,
    entity_rows,
    quota_record,
)
from shmbroker.settings.setting import LONG_MAX
from shmbroker.shm.address_counts import packed_address
from shmbroker.wire.error_codes import INVALID_REQUEST, NONE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.metadata.quota_image import Entity
    from shmbroker.metadata.record import MetadataRecord
    from shmbroker.metadata.security_image import SecurityImage

INT_MAX = (1 << 31) - 1
NEARLY_WHOLE = 1e-6
"""A whole number may be off by so much."""

_OF_CLIENTS: dict[str, int | None] = {
    PRODUCER_BYTE_RATE: LONG_MAX,
    CONSUMER_BYTE_RATE: LONG_MAX,
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
"""Keys of users and client ids: the largest whole number; None: any number above 0."""
_OF_ADDRESSES: dict[str, int | None] = {CONNECTION_CREATION_RATE: INT_MAX}
_TYPES = {INT_MAX: "an INT", LONG_MAX: "a LONG"}


def alter_client_quotas(
    request: dict[str, Any], security: SecurityImage
) -> tuple[list[MetadataRecord], dict[str, Any]]:
    """The records, and a row for each entity."""
    records: list[MetadataRecord] = []
    complaints: dict[Entity, str | None] = {}
    for row in request["entries"]:
        entity = entity_of(row["entity"])
        ops = {op["key"]: None if op["remove"] else op["value"] for op in row["ops"]}
        if entity in complaints or len(ops) < len(row["ops"]):
            named = ", ".join(f"{kind}={name or '<default>'}" for kind, name in entity)
            complaints[entity] = f"Ignoring duplicate entity or key of {named}"
            continue
        complaints[entity] = complaint = _complaint(entity, ops)
        if complaint is None:
            now = security.quotas.get(entity, {})
            records += [
                quota_record(entity, key, value)
                for key, value in ops.items()
                if value != now.get(key)
            ]
    rows = [
        {
            "error_code": NONE if complaint is None else INVALID_REQUEST,
            "error_message": complaint,
            "entity": entity_rows(entity),
        }
        for entity, complaint in complaints.items()
    ]
    return [] if request["validate_only"] else records, {"entries": rows}


def _complaint(entity: Entity, ops: dict[str, float | None]) -> str | None:
    """Why this can't be set; None if it can."""
    if not entity:
        return "Invalid empty client quota entity"
    for kind, name in entity:
        if kind not in (USER, CLIENT_ID, IP):
            return f"Unhandled client quota entity type: {kind}"
        if name == "":
            return f"Empty {kind} not supported"
    names = dict(entity)
    keys = _OF_CLIENTS
    if IP in names:
        if len(names) > 1:
            return (
                "Invalid quota entity combination, IP entity should not be combined with User or "
                "ClientId"
            )
        address = names[IP]
        if address is not None and not _is_address(address):
            return f"{address} is not a valid IP or resolvable host."
        keys = _OF_ADDRESSES
    for key, value in ops.items():
        if value is not None and (complaint := _value_complaint(keys, key, value)):
            return complaint
    return None


def _value_complaint(keys: dict[str, int | None], key: str, value: float) -> str | None:
    if key not in keys:
        return f"Invalid configuration key {key}"
    if value <= 0:  # what is no number is none of these: Kafka takes it, and it limits nothing
        return f"Quota {key} must be greater than 0"
    most = keys[key]
    if most is None:
        return None
    if value > most:
        return f"Proposed value for {key} is too large for {_TYPES[most]}."
    if value == value and abs(math.floor(value + NEARLY_WHOLE) - value) > NEARLY_WHOLE:
        return f"{key} cannot be a fractional value."
    return None


def _is_address(text: str) -> bool:
    try:
        packed_address(text)
    except OSError:
        return False
    return True
