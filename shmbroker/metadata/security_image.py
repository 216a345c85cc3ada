"""The rights and quotas of users, and how users show who they are, as of one offset of the metadata
log: ACLs, client quotas, SCRAM credentials, delegation tokens.

* Part of the metadata image, and like it never changed: a draft copies the parts that its records
  touch. So who goes by the ACLs sees by `is` that they are the same, however often tokens change.
* The records are Kafka's, so all of it moves from one to the other with the directory.
"""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.metadata.quota_image import change_quota, quota_records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from shmbroker.metadata.quota_image import Quotas
    from shmbroker.metadata.record import MetadataRecord


class Acl(NamedTuple):
    """One access control entry (KIP-11, KIP-290): its numbers are Kafka's codes."""

    resource_type: int
    resource_name: str
    pattern_type: int
    """3 the very name, 4 all that begin with it."""
    principal: str
    """Such as User:alice, or User:* for everybody."""
    host: str
    """An address, or * for all."""
    operation: int
    permission: int
    """2 denies, 3 allows."""


class ScramCredential(NamedTuple):
    """What is kept of a user's password (RFC 5802): enough to check it, not to use it elsewhere."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


class Token(NamedTuple):
    """A delegation token (KIP-48); what proves it is made of its id (`security.tokens`)."""

    token_id: str
    owner: str
    """The principal that it stands for, such as User:alice."""
    requester: str
    """The principal that asked for it, for itself or for the owner (KIP-373)."""
    renewers: tuple[str, ...]
    """Principals that may renew and expire it besides the owner."""
    issued_ms: int
    expires_ms: int
    max_ms: int
    """The time until which it may be renewed."""


class SecurityImage:
    """All of it."""

    __slots__ = ("acls", "quotas", "scram", "tokens")

    def __init__(self) -> None:
        self.acls: dict[bytes, Acl] = {}
        """ACLs by the id that each one's record has."""
        self.scram: dict[tuple[str, int], ScramCredential] = {}
        """Credentials by user and mechanism (1 SCRAM-SHA-256, 2 SCRAM-SHA-512)."""
        self.quotas: Quotas = {}
        self.tokens: dict[str, Token] = {}
        """Tokens by their ids, in the order in which they were issued."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecurityImage) and all(
            getattr(self, slot) == getattr(other, slot) for slot in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> SecurityImage:
        """One whose parts are these, until others take their place."""
        made = SecurityImage()
        for slot in self.__slots__:
            setattr(made, slot, getattr(self, slot))
        return made

    def begin(self, part: str, before: SecurityImage) -> None:
        """A part is about to be changed: it gets one of its own, unless it has it already."""
        if getattr(self, part) is getattr(before, part):
            setattr(self, part, dict(getattr(before, part)))

    def records(self) -> Iterator[MetadataRecord]:
        """What makes this image: a part of a metadata snapshot."""
        for acl_id, acl in self.acls.items():
            yield "AccessControlEntryRecord", 0, acl_record(acl_id, acl)
        for (name, mechanism), credential in self.scram.items():
            yield "UserScramCredentialRecord", 0, scram_record(name, mechanism, credential)
        yield from quota_records(self.quotas)
        for token in self.tokens.values():
            yield "DelegationTokenRecord", 0, token_record(token)


def acl_record(acl_id: bytes, acl: Acl) -> dict[str, Any]:
    """The message of an AccessControlEntryRecord."""
    return {
        "id": acl_id,
        "resource_type": acl.resource_type,
        "resource_name": acl.resource_name,
        "pattern_type": acl.pattern_type,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }


def scram_record(name: str, mechanism: int, credential: ScramCredential) -> dict[str, Any]:
    """The message of a UserScramCredentialRecord."""
    return {"name": name, "mechanism": mechanism, **credential._asdict()}


def token_record(token: Token) -> dict[str, Any]:
    """The message of a DelegationTokenRecord."""
    return {
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
        "issue_timestamp": token.issued_ms,
        "max_timestamp": token.max_ms,
        "expiration_timestamp": token.expires_ms,
        "token_id": token.token_id,
    }


def _add_acl(image: SecurityImage, message: dict[str, Any]) -> None:
    image.acls[message["id"]] = Acl(
        message["resource_type"],
        message["resource_name"],
        message["pattern_type"],
        message["principal"],
        message["host"],
        message["operation"],
        message["permission_type"],
    )


def _remove_acl(image: SecurityImage, message: dict[str, Any]) -> None:
    del image.acls[message["id"]]


def _set_scram(image: SecurityImage, message: dict[str, Any]) -> None:
    image.scram[message["name"], message["mechanism"]] = ScramCredential(
        message["salt"], message["stored_key"], message["server_key"], message["iterations"]
    )


def _remove_scram(image: SecurityImage, message: dict[str, Any]) -> None:
    del image.scram[message["name"], message["mechanism"]]


def _change_quota(image: SecurityImage, message: dict[str, Any]) -> None:
    change_quota(image.quotas, message)


def _put_token(image: SecurityImage, message: dict[str, Any]) -> None:
    image.tokens[message["token_id"]] = Token(
        message["token_id"],
        message["owner"],
        message["requester"],
        tuple(message["renewers"]),
        message["issue_timestamp"],
        message["expiration_timestamp"],
        message["max_timestamp"],
    )


def _remove_token(image: SecurityImage, message: dict[str, Any]) -> None:
    """Kafka, too, says nothing of one that is not there: two may have removed it."""
    image.tokens.pop(message["token_id"], None)


APPLIERS: dict[str, tuple[str, Callable[[SecurityImage, dict[str, Any]], None]]] = {
    "AccessControlEntryRecord": ("acls", _add_acl),
    "RemoveAccessControlEntryRecord": ("acls", _remove_acl),
    "UserScramCredentialRecord": ("scram", _set_scram),
    "RemoveUserScramCredentialRecord": ("scram", _remove_scram),
    "ClientQuotaRecord": ("quotas", _change_quota),
    "DelegationTokenRecord": ("tokens", _put_token),
    "RemoveDelegationTokenRecord": ("tokens", _remove_token),
}
"""The part that a record changes, and the function that changes it, by the record's name; the
function raises KeyError for a removal of an ACL that isn't there."""
