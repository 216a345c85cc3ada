"""DescribeAcls (key 29): who may do what.

Versions: 1-3.
Where: the network worker, from the metadata image.
Version notes: 1 pattern types (KIP-290); 2 flexible; 3 user resources (KIP-373).
"""

from __future__ import annotations

from typing import Any

from shmbroker.errors import ProtocolFault
from shmbroker.security.acls import AclFilter, says_unknown
from shmbroker.wire.error_codes import SECURITY_DISABLED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.apis.contexts import GatewayContext, Request

API_KEY = 29
NAME = "DescribeAcls"
VERSION_MIN = 1
VERSION_MAX = 3
VERSION_MIN_ADVERTISED = 1


def answer(gateway: GatewayContext, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """The ACLs that the filter matches, resource by resource; an unknown number matches none."""
    wanted = AclFilter.of(body)
    if says_unknown(wanted):
        raise ProtocolFault("DescribeAcls with a number that stands for unknown")
    if not gateway.config.has_authorizer:
        return {
            "error_code": SECURITY_DISABLED,
            "error_message": "No Authorizer is configured on the broker",
            "resources": [],
        }
    found: dict[tuple[int, str, int], list[dict[str, Any]]] = {}
    for acl in gateway.image.security.acls.values():
        if wanted.matches(acl):
            found.setdefault(acl[:3], []).append(
                {
                    "principal": acl.principal,
                    "host": acl.host,
                    "operation": acl.operation,
                    "permission_type": acl.permission,
                }
            )
    resources = [
        {"resource_type": type_, "resource_name": name, "pattern_type": pattern, "acls": acls}
        for (type_, name, pattern), acls in found.items()
    ]
    return {"error_code": 0, "error_message": "", "resources": resources}
