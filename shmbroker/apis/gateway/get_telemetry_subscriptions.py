"""GetTelemetrySubscriptions (key 71): which of its metrics a client shall push.

Versions: 0.
Where: the network gateway. As in Kafka without a receiver of metrics it is answered (push nothing),
but not advertised, so that no client asks.
Version notes: KIP-714.
"""

from __future__ import annotations

from typing import Any

from shmbroker.crc32c import crc32c
from shmbroker.ids import ZERO_UUID, random_uuid
from shmbroker.metadata.client_metrics import PUSH_INTERVAL_MS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.apis.contexts import GatewayContext, Request

API_KEY = 71
NAME = "GetTelemetrySubscriptions"
VERSION_MIN = 0
VERSION_MAX = 0
VERSION_MIN_ADVERTISED = 0

COMPRESSION_TYPES = [4, 3, 1, 2]
"""zstd, lz4, gzip, snappy: the best first."""
TELEMETRY_BYTES_MAX = 1 << 20
"""Kafka's telemetry.max.bytes."""


def answer(gateway: GatewayContext, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """No metrics are wanted."""
    instance_id = body["client_instance_id"]
    if instance_id == ZERO_UUID:
        instance_id = random_uuid()
    return {
        "client_instance_id": instance_id,
        "subscription_id": subscription_id_of(instance_id),
        "accepted_compression_types": COMPRESSION_TYPES,
        "push_interval_ms": PUSH_INTERVAL_MS,
        "telemetry_max_bytes": TELEMETRY_BYTES_MAX,
        "delta_temporality": True,
        "requested_metrics": [],
    }


def subscription_id_of(instance_id: bytes) -> int:
    """The id of "nothing" for one client, as Kafka's `ClientMetricsManager` makes it: a checksum
    of the subscription and the hash of the client's uuid."""
    half: int = int.from_bytes(instance_id[:8]) ^ int.from_bytes(instance_id[8:])
    checksum: int = crc32c(f"[]{PUSH_INTERVAL_MS}".encode())
    found = checksum ^ (half >> 32) ^ (half & 0xFFFFFFFF)
    return found - (1 << 32) if found >= 1 << 31 else found
