"""What consumers of the classic protocol say to each other, as a group of both protocols has it."""

from types import SimpleNamespace

import pytest

from shmbroker.groups.classic.embedded_protocol import (
    VERSION_MAX,
    EmbeddedAssignment,
    assignment_of,
    by_topic_id,
    encode_assignment,
    subscription_of,
    version_of,
)

A, B, GONE = b"a" * 16, b"b" * 16, b"g" * 16
BY_NAME = {"a": SimpleNamespace(topic_id=A), "b": SimpleNamespace(topic_id=B)}
BY_ID = {A: SimpleNamespace(name="a"), B: SimpleNamespace(name="b")}


@pytest.mark.parametrize("version", range(VERSION_MAX + 2))
def test_an_assignment_comes_back_without_topics_that_are_gone(version: int) -> None:
    given = {A: frozenset({2, 0}), GONE: frozenset({1}), B: frozenset({5})}
    data = encode_assignment(version, given, BY_ID)
    assert version_of(data) == min(version, VERSION_MAX)
    kept = {A: frozenset({0, 2}), B: frozenset({5})}
    assert assignment_of(data, BY_NAME) == EmbeddedAssignment(kept, False)
    assert assignment_of(data, {"b": BY_NAME["b"]}) == EmbeddedAssignment({B: kept[B]}, False)


def test_topics_without_partitions_are_left_out() -> None:
    rows = [{"topic": "a", "partitions": []}, {"topic": "b", "partitions": [3]}]
    assert by_topic_id(rows, BY_NAME) == {B: frozenset({3})}


def test_user_data_is_noted() -> None:
    assert assignment_of(b"\0\0\0\0\0\0\0\0\0\1x", BY_NAME) == EmbeddedAssignment({}, True)
    assert assignment_of(b"", BY_NAME) == EmbeddedAssignment({}, False)


@pytest.mark.parametrize("data", [b"\0", b"\0\0", b"\xff\xff\0\0\0\0\0\0\0\0", b"\0\0\0\0\0\1"])
def test_what_is_none_of_it_is_nothing(data: bytes) -> None:
    assert assignment_of(data, BY_NAME) is None
    assert subscription_of(data) is None


@pytest.mark.parametrize(
    ("data", "version"),
    [(b"", 0), (b"\0", 0), (b"\0\0", 0), (b"\0\2", 2), (b"\0\5more", 5), (b"\xff\xff", 0)],
)
def test_a_subscription_without_a_version_is_of_the_first(data: bytes, version: int) -> None:
    assert version_of(data) == version


def test_later_versions_begin_like_the_last_that_is_known() -> None:
    topics = b"\0\0\0\1\0\1a" + b"\xff" * 4
    for version in (0, VERSION_MAX + 1):
        found = subscription_of(
            version.to_bytes(2, "big") + topics + bytes(4) + b"\xff" * 4 + b"\xff\xff"
        )
        assert found is not None
        assert (found.version, found.message["topics"]) == (version, ["a"])
