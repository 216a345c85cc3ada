"""Which quota holds for whom, by table, and what filters find."""

from typing import Any

import pytest

from shmbroker.metadata.quota_image import entity_of
from shmbroker.security.quotas import (
    DEFAULT,
    EXACT,
    SPECIFIED,
    Held,
    NoFilter,
    QuotaFilter,
    quota_of,
)
from shmbroker.wire.error_codes import INVALID_REQUEST, UNSUPPORTED_VERSION

KEY = "producer_byte_rate"
NOBODY = "<nobody>"


def entity(user: str | None = NOBODY, client: str | None = NOBODY, ip: str | None = NOBODY) -> Any:
    names = (("user", user), ("client-id", client), ("ip", ip))
    return entity_of(
        {"entity_type": kind, "entity_name": name} for kind, name in names if name != NOBODY
    )


LEVELS = [
    (entity("alice", "app"), Held("alice", "app", 1.0)),
    (entity("alice", None), Held("alice", "app", 2.0)),
    (entity("alice"), Held("alice", "", 3.0)),
    (entity(None, "app"), Held("alice", "app", 4.0)),
    (entity(None, None), Held("alice", "app", 5.0)),
    (entity(None), Held("alice", "", 6.0)),
    (entity(client="app"), Held("", "app", 7.0)),
    (entity(client=None), Held("", "app", 8.0)),
]
"""In the order in which they hold, and who is counted together under each."""

OTHERS = {
    entity("bob", "app"): {KEY: 11.0},
    entity("alice", "other"): {KEY: 12.0},
    entity(client="other"): {KEY: 13.0},
    entity("bob"): {KEY: 14.0},
    entity(ip="app"): {KEY: 15.0},
}


@pytest.mark.parametrize("level", range(len(LEVELS)))
def test_the_first_of_eight_levels_that_has_the_key_holds(level: int) -> None:
    quotas = OTHERS | {
        who: {KEY: held.bound} if at >= level else {"consumer_byte_rate": 9.0}
        for at, (who, held) in enumerate(LEVELS)
    }
    assert quota_of(quotas, KEY, "alice", "app") == LEVELS[level][1]


def test_where_no_level_has_the_key_there_is_no_quota() -> None:
    assert quota_of(OTHERS, KEY, "alice", "app") is None
    assert quota_of(OTHERS, KEY, "carol", "") is None


def test_a_client_without_id_has_no_quota_of_client_ids() -> None:
    quotas = {
        entity(client=None): {KEY: 8.0},
        entity(None, None): {KEY: 5.0},
        entity("alice", None): {KEY: 2.0},
    }
    assert quota_of(quotas, KEY, "alice", "") is None
    assert quota_of(quotas | {entity(None): {KEY: 6.0}}, KEY, "alice", "") == Held("alice", "", 6.0)


def component(kind: str, match_type: int, match: str | None) -> dict[str, Any]:
    return {"entity_type": kind, "match_type": match_type, "match": match}


FOUND = [
    ([], False, ["user", "pair", "default", "client", "ip"]),
    ([], True, []),
    ([component("user", EXACT, "alice")], False, ["user", "pair", "default"]),
    ([component("user", EXACT, "alice")], True, ["user"]),
    ([component("user", SPECIFIED, None)], False, ["user", "pair", "default"]),
    ([component("client-id", DEFAULT, None)], False, ["default"]),
    ([component("client-id", SPECIFIED, None)], True, ["client"]),
    (
        [component("user", SPECIFIED, None), component("client-id", EXACT, "app")],
        True,
        ["pair"],
    ),
    ([component("ip", SPECIFIED, None)], False, ["ip"]),
    ([component("ip", DEFAULT, None)], False, []),
]
ENTITIES = {
    "user": entity("alice"),
    "pair": entity("alice", "app"),
    "default": entity("alice", None),
    "client": entity(client="app"),
    "ip": entity(ip="10.0.0.7"),
}


@pytest.mark.parametrize(("components", "is_strict", "expected"), FOUND)
def test_filters_find_what_matches_all_components(
    components: list[dict[str, Any]], is_strict: bool, expected: list[str]
) -> None:
    wanted = QuotaFilter(components, is_strict)
    assert [name for name, one in ENTITIES.items() if wanted.matches(one)] == expected


@pytest.mark.parametrize(
    ("components", "error"),
    [
        ([component("", EXACT, "x")], INVALID_REQUEST),
        ([component("group", EXACT, "x")], UNSUPPORTED_VERSION),
        ([component("user", EXACT, None)], INVALID_REQUEST),
        ([component("user", DEFAULT, "x")], INVALID_REQUEST),
        ([component("user", SPECIFIED, "x")], INVALID_REQUEST),
        ([component("user", 3, None)], INVALID_REQUEST),
        ([component("user", EXACT, "x"), component("user", DEFAULT, None)], INVALID_REQUEST),
        ([component("ip", EXACT, "x"), component("user", EXACT, "x")], INVALID_REQUEST),
    ],
)
def test_components_that_are_no_filter_are_refused(
    components: list[dict[str, Any]], error: int
) -> None:
    with pytest.raises(NoFilter) as refusal:
        QuotaFilter(components, False)
    assert refusal.value.error_code == error
