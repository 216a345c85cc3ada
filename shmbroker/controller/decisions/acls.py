"""Decisions about ACLs: CreateAcls and DeleteAcls, checked and refused in Kafka's words.

Pure. What is there already is not written again; a delete says which it has found.
"""

from __future__ import annotations

from shmbroker.metadata.security_image import Acl, acl_record
from shmbroker.security.acls import (
    ANY,
    CLUSTER,
    CLUSTER_NAME,
    MATCH,
    OPERATION_CODES,
    PATTERN_CODES,
    PERMISSION_CODES,
    RESOURCE_CODES,
    AclFilter,
    acl_of,
)
from shmbroker.wire.error_codes import INVALID_REQUEST, NONE, UNKNOWN_SERVER_ERROR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from shmbroker.metadata.record import MetadataRecord
    from shmbroker.metadata.security_image import SecurityImage

_NO_COLON = (
    "Could not parse principal from `{}` (no colon is present separating the principal type from "
    "the principal name)"
)


def create_acls(
    request: dict[str, Any], security: SecurityImage, new_id: Callable[[], bytes]
) -> tuple[list[MetadataRecord], dict[str, Any]]:
    """Each stands or falls by itself, but for a number that only a filter may have: Kafka fails the
    whole request then."""
    creations = request["creations"]
    if any(_is_of_a_filter(creation) for creation in creations):
        row = {"error_code": UNKNOWN_SERVER_ERROR, "error_message": None}
        return [], {"results": [row for _ in creations]}
    known = set(security.acls.values())
    records: list[MetadataRecord] = []
    results = []
    for creation in creations:
        complaint = _complaint(creation)
        results.append(
            {"error_code": INVALID_REQUEST if complaint else NONE, "error_message": complaint}
        )
        acl = acl_of(creation)
        if not complaint and acl not in known:
            known.add(acl)
            records.append(("AccessControlEntryRecord", 0, acl_record(new_id(), acl)))
    return records, {"results": results}


def delete_acls(
    request: dict[str, Any], security: SecurityImage
) -> tuple[list[MetadataRecord], dict[str, Any]]:
    """Delete the ACLs that any filter matches; each filter is told all of its own."""
    gone: set[bytes] = set()
    results = []
    for row in request["filters"]:
        wanted = AclFilter.of(row)
        complaint = _filter_complaint(wanted)
        found = []
        if complaint is None:
            for acl_id, acl in security.acls.items():
                if wanted.matches(acl):
                    gone.add(acl_id)
                    found.append(_matching(acl))
        results.append(
            {
                "error_code": INVALID_REQUEST if complaint else NONE,
                "error_message": complaint,
                "matching_acls": found,
            }
        )
    records: list[MetadataRecord] = [
        ("RemoveAccessControlEntryRecord", 0, {"id": acl_id})
        for acl_id in security.acls
        if acl_id in gone
    ]
    return records, {"filter_results": results}


def _is_of_a_filter(creation: dict[str, Any]) -> bool:
    return (
        creation["resource_pattern_type"] in (ANY, MATCH)
        or ANY in (creation["resource_type"], creation["operation"], creation["permission_type"])
    )  # fmt: skip


def _complaint(creation: dict[str, Any]) -> str:
    """Why this is no ACL; "" if it is one."""
    if creation["resource_type"] not in RESOURCE_CODES:
        return "Invalid resourceType UNKNOWN"
    if creation["resource_pattern_type"] not in PATTERN_CODES:
        return "Invalid patternType UNKNOWN"
    if creation["operation"] not in OPERATION_CODES:
        return "Invalid operation UNKNOWN"
    if creation["permission_type"] not in PERMISSION_CODES:
        return "Invalid permissionType UNKNOWN"
    if not creation["resource_name"]:
        return "Invalid empty resource name"
    if creation["resource_type"] == CLUSTER and creation["resource_name"] != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if ":" not in creation["principal"]:
        return _NO_COLON.format(creation["principal"])
    return ""


def _filter_complaint(wanted: AclFilter) -> str | None:
    if (
        wanted.resource_type not in (ANY, *RESOURCE_CODES)
        or wanted.pattern_type not in (ANY, MATCH, *PATTERN_CODES)
    ):  # fmt: skip
        return "Unknown patternFilter."
    if (
        wanted.operation not in (ANY, *OPERATION_CODES)
        or wanted.permission not in (ANY, *PERMISSION_CODES)
    ):  # fmt: skip
        return "Unknown entryFilter."
    return None


def _matching(acl: Acl) -> dict[str, Any]:
    return {
        "error_code": NONE,
        "error_message": None,
        "resource_type": acl.resource_type,
        "resource_name": acl.resource_name,
        "pattern_type": acl.pattern_type,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }
