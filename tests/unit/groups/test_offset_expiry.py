"""Which committed offsets of a group nobody has used for too long."""

from typing import Any

import pytest

from shmbroker.groups.classic.group import ClassicGroup, ClassicSettings
from shmbroker.groups.classic.states import COMPLETING, EMPTY, PREPARING, STABLE
from shmbroker.groups.offset_store import NO_EXPIRY, OffsetStore
from tests.unit.groups.groups_at_work import NO_SHARD

RETENTION_MS = 1000
COMMITTED_MS = 5000
EMPTY_MS = 7000
"""When the group came into its state, by the wall clock."""
WALL_AHEAD_MS = 500

T, UNREAD = frozenset({"t"}), frozenset({"u"})


@pytest.mark.parametrize(
    ("protocol_type", "state", "topics", "since_ms"),
    [
        (None, EMPTY, None, COMMITTED_MS),
        ("consumer", EMPTY, frozenset(), EMPTY_MS),
        ("connect", EMPTY, None, EMPTY_MS),
        ("consumer", STABLE, UNREAD, COMMITTED_MS),
        ("consumer", STABLE, T, None),
        ("consumer", STABLE, None, None),
        ("consumer", PREPARING, UNREAD, None),
        ("consumer", COMPLETING, UNREAD, None),
        ("connect", STABLE, None, None),
    ],
)
def test_offset_expires_so_long_after_its_last_use(
    protocol_type: str | None, state: str, topics: frozenset[str] | None, since_ms: int | None
) -> None:
    settings = ClassicSettings(0, 100)
    group = ClassicGroup("g", settings, str, EMPTY_MS - WALL_AHEAD_MS, NO_SHARD)
    group.protocol_type, group.state, group.subscribed_topics = protocol_type, state, topics
    store = OffsetStore()
    store.put("g", "t", 0, (1, -1, "", COMMITTED_MS, NO_EXPIRY, b""))

    def expired(now_ms: int) -> list[Any]:
        return store.expired(group, now_ms, RETENTION_MS, WALL_AHEAD_MS)

    if since_ms is None:
        assert expired(10**9) == []
    else:
        assert expired(since_ms + RETENTION_MS - 1) == []
        assert expired(since_ms + RETENTION_MS) == [("t", 0)]


def test_offset_that_brings_its_own_time_expires_then() -> None:
    group = ClassicGroup("g", ClassicSettings(0, 100), str, 0, NO_SHARD)
    store = OffsetStore()
    store.put("g", "t", 0, (1, -1, "", COMMITTED_MS, 6000, b""))
    assert store.expired(group, 5999, RETENTION_MS) == []
    assert store.expired(group, 6000, RETENTION_MS) == [("t", 0)]
