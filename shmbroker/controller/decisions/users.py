"""Decisions about users: AlterUserScramCredentials (KIP-554), checked and refused in Kafka's words.

Pure. A user may be named once in a request: what of it is deleted counts before what is set. What a
client sends is the salted password; kept is what a password can be checked with, no more.
"""

from __future__ import annotations

from shmbroker.metadata.features import METADATA_VERSION
from shmbroker.metadata.security_image import scram_record
from shmbroker.wire.error_codes import (
    DUPLICATE_RESOURCE,
    NONE,
    RESOURCE_NOT_FOUND,
    UNACCEPTABLE_CREDENTIAL,
    UNKNOWN_SERVER_ERROR,
    UNSUPPORTED_SASL_MECHANISM,
    UNSUPPORTED_VERSION,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.metadata.image import MetadataImage
    from shmbroker.metadata.record import MetadataRecord

    Complaint = tuple[int, str | None]

METADATA_VERSION_OF_SCRAM = 11
"""3.5-IV2, the first that has these records."""


def alter_users(
    request: dict[str, Any], image: MetadataImage
) -> tuple[list[MetadataRecord], dict[str, Any]]:
    """Each user stands or falls by itself."""
    refused: dict[str, Complaint] = {}
    records: dict[str, MetadataRecord] = {}
    for change in (*request["deletions"], *request["upsertions"]):
        user = change["name"]
        is_empty = user in refused and refused[user][0] == UNKNOWN_SERVER_ERROR
        if user in refused and not is_empty:
            continue
        if user in records or is_empty:
            records.pop(user, None)
            refused[user] = (
                DUPLICATE_RESOURCE,
                "A user credential cannot be altered twice in the same request",
            )
        elif complaint := _complaint(change, image):
            refused[user] = complaint
        else:
            records[user] = _record(change)
    rows = dict.fromkeys(records, (NONE, None)) | refused
    return list(records.values()), {
        "results": [
            {"user": user, "error_code": error, "error_message": message}
            for user, (error, message) in rows.items()
        ]
    }


def _complaint(change: dict[str, Any], image: MetadataImage) -> Complaint | None:
    """Why this is not done; None if it is."""
    from shmbroker.security.sasl.scram import BY_CODE, ITERATIONS_MAX, ITERATIONS_MIN

    user, mechanism = change["name"], change["mechanism"]
    if image.features.get(METADATA_VERSION, 0) < METADATA_VERSION_OF_SCRAM:
        return UNSUPPORTED_VERSION, "The current metadata version does not support SCRAM"
    if not user:
        return UNACCEPTABLE_CREDENTIAL, "Username must not be empty"
    if mechanism not in BY_CODE:
        return UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
    if "salt" not in change:
        if (user, mechanism) in image.security.scram:
            return None
        return RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
    if change["iterations"] < ITERATIONS_MIN:
        return UNACCEPTABLE_CREDENTIAL, "Too few iterations"
    if change["iterations"] > ITERATIONS_MAX:
        return UNACCEPTABLE_CREDENTIAL, "Too many iterations"
    if not change["salted_password"]:
        return UNKNOWN_SERVER_ERROR, None
    return None


def _record(change: dict[str, Any]) -> MetadataRecord:
    from shmbroker.security.sasl.scram import BY_CODE, credential_of

    user, code = change["name"], change["mechanism"]
    if "salt" not in change:
        return "RemoveUserScramCredentialRecord", 0, {"name": user, "mechanism": code}
    credential = credential_of(
        BY_CODE[code], change["salted_password"], change["salt"], change["iterations"]
    )
    return "UserScramCredentialRecord", 0, scram_record(user, code, credential)
