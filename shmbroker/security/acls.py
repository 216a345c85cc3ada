"""ACLs: their numbers, what a filter matches, and what is no ACL (KIP-11, KIP-50, KIP-290).

The numbers are those of Kafka's protocol (ResourceType, PatternType, AclOperation,
AclPermissionType).
"""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.metadata.security_image import Acl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

UNKNOWN = 0
ANY = 1
"""The number that stands for everything in a filter. It is the same for types, patterns,
operations, permissions."""

TOPIC = 2
GROUP = 3
CLUSTER = 4
TRANSACTIONAL_ID = 5
DELEGATION_TOKEN = 6
USER = 7

MATCH = 2
"""The pattern type of a filter for the patterns, of any type, that a resource of this name falls
under."""
LITERAL = 3
PREFIXED = 4

ALL = 2
READ = 3
WRITE = 4
CREATE = 5
DELETE = 6
ALTER = 7
DESCRIBE = 8
CLUSTER_ACTION = 9
DESCRIBE_CONFIGS = 10
ALTER_CONFIGS = 11
IDEMPOTENT_WRITE = 12
CREATE_TOKENS = 13
DESCRIBE_TOKENS = 14
TWO_PHASE_COMMIT = 15

_RESOURCES = ("unknown", "any", "topic", "group", "cluster", "transactional id", "token", "user")
_OPERATIONS = (
    "UNKNOWN", "ANY", "ALL", "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE",
    "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE", "CREATE_TOKENS",
    "DESCRIBE_TOKENS", "TWO_PHASE_COMMIT",
)  # fmt: skip

DENY = 2
ALLOW = 3

WILDCARD = "*"
CLUSTER_NAME = "kafka-cluster"
EVERYBODY = "User:*"
ANONYMOUS = "User:ANONYMOUS"
"""The principal of a client that comes in through a listener without authentication."""

OPERATIONS: dict[int, tuple[int, ...]] = {
    TOPIC: (READ, WRITE, CREATE, DESCRIBE, DELETE, ALTER, DESCRIBE_CONFIGS, ALTER_CONFIGS),
    GROUP: (READ, DESCRIBE, DELETE, DESCRIBE_CONFIGS, ALTER_CONFIGS),
    CLUSTER: (
        CREATE,
        CLUSTER_ACTION,
        DESCRIBE_CONFIGS,
        ALTER_CONFIGS,
        IDEMPOTENT_WRITE,
        ALTER,
        DESCRIBE,
    ),
    TRANSACTIONAL_ID: (DESCRIBE, WRITE, TWO_PHASE_COMMIT),
    DELEGATION_TOKEN: (DESCRIBE,),
    USER: (CREATE_TOKENS, DESCRIBE_TOKENS),
}
"""What can be done with each type of resource."""

RESOURCE_CODES = frozenset(OPERATIONS)
OPERATION_CODES = frozenset(range(ALL, TWO_PHASE_COMMIT + 1))
PATTERN_CODES = frozenset((LITERAL, PREFIXED))
PERMISSION_CODES = frozenset((DENY, ALLOW))
"""What an ACL may have; a filter may have ANY besides, and MATCH."""

IMPLIED_BY: dict[int, tuple[int, ...]] = {
    DESCRIBE: (DESCRIBE, READ, WRITE, DELETE, ALTER),
    DESCRIBE_CONFIGS: (DESCRIBE_CONFIGS, ALTER_CONFIGS),
}
"""Operations that imply an operation: who may do one of them may do it; of what denies none is
implied."""


class AclFilter(NamedTuple):
    """A choice of ACLs; None and ANY stand for all."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    @classmethod
    def of(cls, row: dict[str, Any]) -> AclFilter:
        """The filter of a DescribeAcls request, or of one row of DeleteAcls."""
        return cls(
            row["resource_type_filter"],
            row["resource_name_filter"],
            row["pattern_type_filter"],
            row["principal_filter"],
            row["host_filter"],
            row["operation"],
            row["permission_type"],
        )

    def matches(self, acl: Acl) -> bool:
        """Whether an ACL is one of them."""
        return (
            self.resource_type in (ANY, acl.resource_type)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (ANY, acl.operation)
            and self.permission in (ANY, acl.permission)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern_type not in (ANY, MATCH, acl.pattern_type):
            return False
        name = self.resource_name
        if name is None or name == acl.resource_name:
            return True
        if self.pattern_type != MATCH:
            return False
        if acl.pattern_type == LITERAL:
            return acl.resource_name == WILDCARD
        return name.startswith(acl.resource_name)


def name_of_resource(resource_type: int) -> str:
    """A resource's type in words; its number where it has none."""
    known = 0 <= resource_type < len(_RESOURCES)
    return _RESOURCES[resource_type] if known else str(resource_type)


def name_of_operation(operation: int) -> str:
    """Kafka's name of an operation; its number where it has none."""
    return _OPERATIONS[operation] if 0 <= operation < len(_OPERATIONS) else str(operation)


def acl_of(creation: dict[str, Any]) -> Acl:
    """The ACL of one row of CreateAcls."""
    return Acl(
        creation["resource_type"],
        creation["resource_name"],
        creation["resource_pattern_type"],
        creation["principal"],
        creation["host"],
        creation["operation"],
        creation["permission_type"],
    )


def says_unknown(entry: Acl | AclFilter) -> bool:
    """Whether it has a number that stands for unknown: Kafka closes such a client's connection."""
    return UNKNOWN in (
        entry.resource_type,
        entry.pattern_type,
        entry.operation,
        entry.permission,
    )


def is_about(acl: Acl, principals: tuple[str, ...], host: str) -> bool:
    """Whether an ACL is about one of these principals at this address."""
    return (acl.principal == EVERYBODY or acl.principal in principals) and (
        acl.host in (WILDCARD, host)
    )
