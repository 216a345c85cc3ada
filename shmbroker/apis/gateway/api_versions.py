"""ApiVersions (key 18): which APIs and versions are served, and the cluster's features.

Versions: 0-4. A higher version gets a version 0 body with error 35 and the one entry that says so
(KIP-511); the answer's header is always version 0.
Where: the network gateway.
Version notes: 3 flexible, client software name and version, features (KIP-584); 4 features whose
minimum is 0.
"""

from __future__ import annotations

import re
from typing import Any

from shmbroker.metadata.features import SUPPORTED_FEATURES
from shmbroker.wire import codec, error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.apis.contexts import GatewayContext, Request

API_KEY = 18
NAME = "ApiVersions"
VERSION_MIN = 0
VERSION_MAX = 4
VERSION_MIN_ADVERTISED = 0

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def answer(gateway: GatewayContext, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """The table, the supported features and the finalised ones."""
    if request.api_version >= 3 and not (
        _SOFTWARE.fullmatch(body["client_software_name"])
        and _SOFTWARE.fullmatch(body["client_software_version"])
    ):
        return {"error_code": error_codes.INVALID_REQUEST, "api_keys": []}
    return everything(gateway, request.api_version)


def everything(gateway: GatewayContext, version: int) -> dict[str, Any]:
    """The answer of every well-formed request of a version."""
    features = gateway.image.features
    return {
        "api_keys": gateway.advertised,
        "supported_features": [
            {"name": name, "min_version": low, "max_version": high}
            for name, (low, high) in SUPPORTED_FEATURES.items()
            if low > 0 or version >= 4
        ],
        "finalized_features_epoch": max(0, gateway.image.offset - 1),
        "finalized_features": [
            {"name": name, "max_version_level": features[name], "min_version_level": features[name]}
            for name in SUPPORTED_FEATURES
            if features.get(name)
        ],
    }


def unsupported_version() -> bytes:
    """The body for a version that is too high."""
    return codec.encode(
        "ApiVersionsResponse",
        0,
        {
            "error_code": error_codes.UNSUPPORTED_VERSION,
            "api_keys": [
                {"api_key": API_KEY, "min_version": VERSION_MIN, "max_version": VERSION_MAX}
            ],
        },
    )
