"""DescribeClientQuotas (key 48): how much clients may do (KIP-546).

Versions: 0-1.
Where: the network worker, from the metadata image.
Version notes: 1 flexible.
"""

from __future__ import annotations

from typing import Any

from shmbroker.metadata.quota_image import entity_rows
from shmbroker.security.quotas import NoFilter, QuotaFilter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.apis.contexts import GatewayContext, Request

API_KEY = 48
NAME = "DescribeClientQuotas"
VERSION_MIN = 0
VERSION_MAX = 1
VERSION_MIN_ADVERTISED = 0


def answer(gateway: GatewayContext, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """The entities that all components match."""
    try:
        wanted = QuotaFilter(body["components"], body["strict"])
    except NoFilter as refusal:
        return {
            "error_code": refusal.error_code,
            "error_message": str(refusal),
            "entries": None,
        }
    entries = [
        {
            "entity": entity_rows(entity),
            "values": [{"key": key, "value": value} for key, value in values.items()],
        }
        for entity, values in gateway.image.security.quotas.items()
        if wanted.matches(entity)
    ]
    # Kafka has an empty text there, not null.
    return {"error_code": 0, "error_message": "", "entries": entries}
