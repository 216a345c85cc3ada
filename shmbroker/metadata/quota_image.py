"""Client quotas (KIP-13, KIP-257, KIP-546, KIP-612) as of one offset of the metadata log.

   entity  {"user": "alice", "client-id": None}   None: whoever has no entity of his own
   key     producer_byte_rate, …                   value: a float, above 0

The record is Kafka's ClientQuotaRecord, one for each key of an entity. What is served is said by
`security.quotas`, and what may be set by `controller.decisions.quotas`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from shmbroker.metadata.record import MetadataRecord

    Entity = tuple[tuple[str, str | None], ...]
    """(type, name) pairs in the order of their types."""
    Quotas = dict[Entity, dict[str, float]]
    """What each entity has, by key; a shared value, never changed."""

USER = "user"
CLIENT_ID = "client-id"
IP = "ip"

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"


def entity_of(rows: Iterable[dict[str, Any]]) -> Entity:
    """The entity of a record or request; of a type that is named twice the last name counts."""
    return tuple(sorted({row["entity_type"]: row["entity_name"] for row in rows}.items()))


def entity_rows(entity: Entity) -> list[dict[str, Any]]:
    """The rows of an entity, as records and answers have them."""
    return [{"entity_type": kind, "entity_name": name} for kind, name in entity]


def quota_record(entity: Entity, key: str, value: float | None) -> MetadataRecord:
    """A quota that is set; None takes it away."""
    message = {
        "entity": entity_rows(entity),
        "key": key,
        "value": value or 0.0,
        "remove": value is None,
    }
    return "ClientQuotaRecord", 0, message


def quota_records(quotas: Quotas) -> Iterator[MetadataRecord]:
    """What makes these quotas: a part of a metadata snapshot."""
    for entity, values in quotas.items():
        for key, value in values.items():
            yield quota_record(entity, key, value)


def change_quota(quotas: Quotas, message: dict[str, Any]) -> None:
    """Apply a ClientQuotaRecord; taking away what is not there changes nothing."""
    entity = entity_of(message["entity"])
    values = dict(quotas.get(entity, ()))
    if message["remove"]:
        values.pop(message["key"], None)
    else:
        values[message["key"]] = message["value"]
    if values:
        quotas[entity] = values
    else:
        quotas.pop(entity, None)
