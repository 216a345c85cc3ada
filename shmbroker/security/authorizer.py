"""Decisions by ACLs, as Kafka's StandardAuthorizer makes them.

   super user ──► yes
   an ACL denies, for this principal, host, operation and resource ──► no
   one allows, the operation or another that implies it ──► yes
   the resource has no ACL at all ──► allow.everyone.if.no.acl.found
   else no

* An authorizer is made anew from each image whose ACLs have changed, and remembers its decisions.
* The time of a decision does not grow with the number of ACLs: those of a resource are found by its
  name, and by the prefixes of it that have any.
"""

from __future__ import annotations

from collections import defaultdict

from shmbroker.security.acls import (
    ALL,
    ALLOW,
    DENY,
    IMPLIED_BY,
    LITERAL,
    OPERATIONS,
    WILDCARD,
    is_about,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from shmbroker.metadata.security_image import Acl

REMEMBERED_MAX = 16384
"""Decisions: after so many all are forgotten."""


class Authorizer:
    """The ACLs of one image."""

    def __init__(
        self,
        acls: Iterable[Acl],
        super_users: Collection[str] = (),
        allows_where_no_acl_is: bool = False,
    ) -> None:
        """super_users: principals, such as User:admin, who may do everything."""
        self._super_users = frozenset(super_users)
        self._allows_where_no_acl_is = allows_where_no_acl_is
        self._literal: dict[tuple[int, str], list[Acl]] = defaultdict(list)
        self._prefixed: dict[tuple[int, str], list[Acl]] = defaultdict(list)
        lengths: dict[int, set[int]] = defaultdict(set)
        for acl in acls:
            key = (acl.resource_type, acl.resource_name)
            if acl.pattern_type == LITERAL:
                self._literal[key].append(acl)
            else:
                self._prefixed[key].append(acl)
                lengths[acl.resource_type].add(len(acl.resource_name))
        self._types = {type_ for table in (self._literal, self._prefixed) for type_, _ in table}
        self._lengths = {type_: sorted(found) for type_, found in lengths.items()}
        self._known: dict[tuple[str, str, int, int, str], bool] = {}

    def allows(
        self, principal: str, host: str, operation: int, resource_type: int, name: str
    ) -> bool:
        """Whether who comes from this address may do this. host: an address without its port."""
        key = (principal, host, operation, resource_type, name)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            known = self._known[key] = self._decide(*key)
        return known

    def is_about_any(self, resource_type: int) -> bool:
        """Whether there can be a right to a resource of this type, but for super users: without an
        ACL there is none, unless that opens all."""
        return resource_type in self._types or self._allows_where_no_acl_is

    def is_super(self, principal: str) -> bool:
        """Whether nothing is denied to this principal."""
        return principal in self._super_users

    def _decide(
        self, principal: str, host: str, operation: int, resource_type: int, name: str
    ) -> bool:
        if self.is_super(principal):
            return True
        is_allowed = has_acls = False
        allowing = (ALL, *IMPLIED_BY.get(operation, (operation,)))
        for acl in self._of(resource_type, name):
            has_acls = True
            if not is_about(acl, (principal,), host):
                continue
            if acl.permission == DENY:
                if acl.operation in (ALL, operation):
                    return False
            elif acl.operation in allowing:
                is_allowed = True
        return is_allowed or (not has_acls and self._allows_where_no_acl_is)

    def _of(self, resource_type: int, name: str) -> Iterator[Acl]:
        """The ACLs that cover a resource."""
        yield from self._literal.get((resource_type, name), ())
        if name != WILDCARD:
            yield from self._literal.get((resource_type, WILDCARD), ())
        for length in self._lengths.get(resource_type, ()):
            if length > len(name):
                break
            yield from self._prefixed.get((resource_type, name[:length]), ())

    def allows_some(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        """Whether there is some resource of a type with which this may be done: one that is allowed
        and not denied altogether (Kafka's `authorizeByResourceType`). No operation is implied."""
        if self.allows(principal, host, operation, resource_type, "hardcode"):
            return True
        denied_names: set[str] = set()
        denied_prefixes: set[str] = set()
        allowed: list[Acl] = []
        for table in (self._literal, self._prefixed):
            for (type_, name), acls in table.items():
                if type_ != resource_type:
                    continue
                for acl in acls:
                    if acl.operation not in (ALL, operation):
                        continue
                    if not is_about(acl, (principal,), host):
                        continue
                    if acl.permission == ALLOW:
                        allowed.append(acl)
                    elif acl.pattern_type != LITERAL:
                        denied_prefixes.add(name)
                    elif name == WILDCARD:
                        return False
                    else:
                        denied_names.add(name)
        for acl in allowed:
            name = acl.resource_name
            if acl.pattern_type == LITERAL:
                if name == WILDCARD:
                    return True
                if name in denied_names:
                    continue
            if not any(name[:end] in denied_prefixes for end in range(1, len(name) + 1)):
                return True
        return False

    def operations(self, principal: str, host: str, resource_type: int, name: str) -> int:
        """What may be done with a resource: bit n for operation n (KIP-430)."""
        return sum(
            1 << operation
            for operation in OPERATIONS[resource_type]
            if self.allows(principal, host, operation, resource_type, name)
        )
