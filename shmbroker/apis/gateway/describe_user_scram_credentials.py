"""DescribeUserScramCredentials (key 50): users, and by which mechanisms they have a password.

Versions: 0.
Where: the network worker, from the metadata image.
Version notes: KIP-554.
"""

from __future__ import annotations

from typing import Any

from shmbroker.wire.error_codes import DUPLICATE_RESOURCE, NONE, RESOURCE_NOT_FOUND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.apis.contexts import GatewayContext, Request

API_KEY = 50
NAME = "DescribeUserScramCredentials"
VERSION_MIN = 0
VERSION_MAX = 0
VERSION_MIN_ADVERTISED = 0


def answer(gateway: GatewayContext, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """The credentials of the users that are named, or of all; never a salt or a key."""
    found: dict[str, list[dict[str, int]]] = {}
    for (user, mechanism), credential in sorted(gateway.image.security.scram.items()):
        info = {"mechanism": mechanism, "iterations": credential.iterations}
        found.setdefault(user, []).append(info)
    named = [row["name"] for row in body["users"] or ()]
    results = []
    for user in dict.fromkeys(named or found):
        error, message = NONE, ""
        if named.count(user) > 1:
            error = DUPLICATE_RESOURCE
            message = (
                "Cannot describe SCRAM credentials for the same user twice in a single request: "
                f"{user}"
            )
        elif user not in found:
            error = RESOURCE_NOT_FOUND
            message = f"Attempt to describe a user credential that does not exist: {user}"
        results.append(
            {
                "user": user,
                "error_code": error,
                "error_message": message,
                "credential_infos": [] if error else found[user],
            }
        )
    return {"error_code": NONE, "error_message": "", "results": results}
