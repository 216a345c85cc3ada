"""Decisions by ACLs, row by row, and against a model that looks at every ACL."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmbroker.metadata.security_image import Acl
from shmbroker.security import acls
from shmbroker.security.acls import (
    ALL,
    ALLOW,
    ALTER,
    ALTER_CONFIGS,
    ANY,
    CREATE,
    DELETE,
    DENY,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    LITERAL,
    MATCH,
    PREFIXED,
    READ,
    TOPIC,
    WILDCARD,
    WRITE,
    AclFilter,
)
from shmbroker.security.authorizer import Authorizer

ALICE, BOB, HERE, THERE = "User:alice", "User:bob", "127.0.0.1", "10.0.0.1"


def acl(
    name: str = "t",
    operation: int = READ,
    permission: int = ALLOW,
    pattern: int = LITERAL,
    principal: str = ALICE,
    host: str = "*",
    type_: int = TOPIC,
) -> Acl:
    return Acl(type_, name, pattern, principal, host, operation, permission)


@pytest.mark.parametrize(
    ("entries", "operation", "name", "is_allowed"),
    [
        ([], READ, "t", False),
        ([acl()], READ, "t", True),
        ([acl()], WRITE, "t", False),
        ([acl()], READ, "tt", False),
        ([acl(pattern=PREFIXED)], READ, "tt", True),
        ([acl(pattern=PREFIXED)], READ, "t", True),
        ([acl(WILDCARD), acl(pattern=PREFIXED, permission=DENY)], READ, "t", False),
        ([acl("tt", pattern=PREFIXED)], READ, "t", False),
        ([acl(pattern=PREFIXED)], READ, "s", False),
        ([acl(WILDCARD)], READ, "anything", True),
        ([acl(WILDCARD, pattern=PREFIXED)], READ, "anything", False),
        ([acl(operation=ALL)], CREATE, "t", True),
        ([acl(principal="User:*")], READ, "t", True),
        ([acl(principal=BOB)], READ, "t", False),
        ([acl(host=HERE)], READ, "t", True),
        ([acl(host=THERE)], READ, "t", False),
        ([acl(type_=GROUP)], READ, "t", False),
        # What implies what.
        ([acl()], DESCRIBE, "t", True),
        ([acl(operation=WRITE)], DESCRIBE, "t", True),
        ([acl(operation=DELETE)], DESCRIBE, "t", True),
        ([acl(operation=ALTER)], DESCRIBE, "t", True),
        ([acl(operation=CREATE)], DESCRIBE, "t", False),
        ([acl(operation=ALTER_CONFIGS)], DESCRIBE_CONFIGS, "t", True),
        ([acl(operation=ALTER_CONFIGS)], DESCRIBE, "t", False),
        ([acl(operation=DESCRIBE)], READ, "t", False),
        # Deny beats allow, and implies nothing.
        ([acl(), acl(permission=DENY)], READ, "t", False),
        ([acl(pattern=PREFIXED), acl("tt", permission=DENY)], READ, "tt", False),
        ([acl("tt"), acl(pattern=PREFIXED, permission=DENY)], READ, "tt", False),
        ([acl(), acl(WILDCARD, permission=DENY)], READ, "t", False),
        ([acl(operation=DESCRIBE), acl(permission=DENY)], DESCRIBE, "t", True),
        ([acl(), acl(permission=DENY, operation=ALL)], READ, "t", False),
        ([acl(), acl(permission=DENY, principal=BOB)], READ, "t", True),
    ],
)
def test_decision(entries: list[Acl], operation: int, name: str, is_allowed: bool) -> None:
    authorizer = Authorizer(entries)
    assert authorizer.allows(ALICE, HERE, operation, TOPIC, name) is is_allowed
    assert authorizer.allows(ALICE, HERE, operation, TOPIC, name) is is_allowed, "remembered"


def test_super_users_may_do_what_is_denied() -> None:
    authorizer = Authorizer([acl(permission=DENY)], [ALICE])
    assert authorizer.allows(ALICE, HERE, READ, TOPIC, "t")
    assert not authorizer.allows(BOB, HERE, READ, TOPIC, "t")


def test_only_a_resource_without_any_acl_is_open_to_everyone() -> None:
    authorizer = Authorizer([acl(principal=BOB)], allows_where_no_acl_is=True)
    assert authorizer.allows(ALICE, HERE, WRITE, TOPIC, "other")
    assert not authorizer.allows(ALICE, HERE, WRITE, TOPIC, "t")
    assert authorizer.is_about_any(GROUP)
    assert not Authorizer([acl()]).is_about_any(GROUP)


@pytest.mark.parametrize(
    ("entries", "is_allowed"),
    [
        ([], False),
        ([acl()], True),
        ([acl(), acl(permission=DENY)], False),
        ([acl(), acl("u", permission=DENY)], True),
        ([acl("tt"), acl(pattern=PREFIXED, permission=DENY)], False),
        ([acl("tt", pattern=PREFIXED), acl(pattern=PREFIXED, permission=DENY)], False),
        ([acl(pattern=PREFIXED), acl("tt", pattern=PREFIXED, permission=DENY)], True),
        ([acl(pattern=PREFIXED), acl(permission=DENY)], True),
        ([acl(WILDCARD), acl("t", permission=DENY)], True),
        ([acl(), acl(WILDCARD, permission=DENY)], False),
        ([acl(operation=WRITE)], False),
        ([acl(operation=ALL)], True),
        # What is denied to others, or of other things.
        ([acl(), acl(WILDCARD, permission=DENY, type_=GROUP)], True),
        ([acl(), acl(WILDCARD, WRITE, DENY)], True),
        ([acl(), acl(WILDCARD, permission=DENY, principal=BOB)], True),
        ([acl(), acl(WILDCARD, permission=DENY, host=THERE)], True),
        ([acl(WILDCARD), acl("hardcode", permission=DENY)], True),
    ],
)
def test_some_resource_of_a_type(entries: list[Acl], is_allowed: bool) -> None:
    assert Authorizer(entries).allows_some(ALICE, HERE, READ, TOPIC) is is_allowed


def test_operations_are_bits() -> None:
    authorizer = Authorizer([acl(), acl(operation=WRITE)])
    expected = 1 << READ | 1 << WRITE | 1 << DESCRIBE
    assert authorizer.operations(ALICE, HERE, TOPIC, "t") == expected


@pytest.mark.parametrize(
    ("wanted", "matched"),
    [
        (AclFilter(ANY, None, ANY, None, None, ANY, ANY), True),
        (AclFilter(GROUP, None, ANY, None, None, ANY, ANY), False),
        (AclFilter(TOPIC, "ab", PREFIXED, ALICE, "*", READ, ALLOW), True),
        (AclFilter(TOPIC, "ab", LITERAL, None, None, ANY, ANY), False),
        (AclFilter(TOPIC, "abc", PREFIXED, None, None, ANY, ANY), False),
        (AclFilter(TOPIC, "abc", MATCH, None, None, ANY, ANY), True),
        (AclFilter(TOPIC, "abc", ANY, None, None, ANY, ANY), False),
        (AclFilter(TOPIC, "a", MATCH, None, None, ANY, ANY), False),
        (AclFilter(ANY, None, ANY, BOB, None, ANY, ANY), False),
        (AclFilter(ANY, None, ANY, None, HERE, ANY, ANY), False),
        (AclFilter(ANY, None, ANY, None, None, WRITE, ANY), False),
        (AclFilter(ANY, None, ANY, None, None, ANY, DENY), False),
    ],
)
def test_filter(wanted: AclFilter, matched: bool) -> None:
    assert wanted.matches(acl("ab", pattern=PREFIXED)) is matched


NAMES = st.text("ab*", min_size=1, max_size=3)
ENTRIES = st.builds(
    acl,
    NAMES,
    st.sampled_from([ALL, READ, WRITE, CREATE, DESCRIBE, ALTER]),
    st.sampled_from([ALLOW, DENY]),
    st.sampled_from([LITERAL, PREFIXED]),
    st.sampled_from([ALICE, BOB, "User:*"]),
    st.sampled_from(["*", HERE, THERE]),
    st.sampled_from([TOPIC, GROUP]),
)


def covers(one: Acl, resource_type: int, name: str) -> bool:
    if one.resource_type != resource_type:
        return False
    if one.pattern_type == PREFIXED:
        return name.startswith(one.resource_name)
    return one.resource_name in (name, "*")


@given(st.lists(ENTRIES, max_size=6), NAMES, st.sampled_from([READ, WRITE, CREATE, DESCRIBE]))
def test_index_finds_what_a_look_at_every_acl_finds(
    entries: list[Acl], name: str, operation: int
) -> None:
    covering = [one for one in entries if covers(one, TOPIC, name)]
    mine = [one for one in covering if acls.is_about(one, (ALICE,), HERE)]
    denied = any(one.permission == DENY and one.operation in (ALL, operation) for one in mine)
    implied = {DESCRIBE: {DESCRIBE, READ, WRITE, ALTER}}.get(operation, {operation}) | {ALL}
    allowed = any(one.permission == ALLOW and one.operation in implied for one in mine)
    authorizer = Authorizer(entries)
    assert authorizer.allows(ALICE, HERE, operation, TOPIC, name) == (allowed and not denied)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shmbroker.security.authorizer.REMEMBERED_MAX", 3)
    authorizer = Authorizer([acl()])
    for number in range(10):
        assert not authorizer.allows(ALICE, HERE, READ, TOPIC, f"other-{number}")
        assert len(authorizer._known) <= 3
