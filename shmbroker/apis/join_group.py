"""JoinGroup (key 11): advertised, as librdkafka judges other features by its least version; the
groups themselves are not served yet.

Versions: 0-9.
Where: the network worker.
"""

from typing import Any

from shmbroker.wire import error_codes

API_KEY = 11
NAME = "JoinGroup"
VERSION_MIN = 0
VERSION_MAX = 9
VERSION_MIN_ADVERTISED = 0


def answer(worker: Any, request: Any, body: dict[str, Any]) -> dict[str, Any]:
    """COORDINATOR_NOT_AVAILABLE: the client may try again, nothing is kept."""
    return {
        "error_code": error_codes.COORDINATOR_NOT_AVAILABLE,
        "generation_id": -1,
        "protocol_type": None,
        "protocol_name": "" if request.api_version < 7 else None,
        "leader": "",
        "member_id": body["member_id"],
        "members": [],
    }
