"""Topic names: what may be one, and which two can't both be."""

import pytest

from shmbroker.metadata.topic_names import (
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    collision_key,
    topic_name_complaint,
)


@pytest.mark.parametrize("name", ["a", "...", "a.b_c-D9", "__consumer_offsets", "x" * 249])
def test_good_name(name: str) -> None:
    assert topic_name_complaint(name) is None


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "the empty string"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("x" * 250, "longer than the max allowed length 249"),
        ("a b", "one or more characters"),
        ("a/b", "one or more characters"),
        ("é", "one or more characters"),
        ("a\n", "one or more characters"),
        ("a\0", "one or more characters"),
    ],
)
def test_bad_name(name: str, says: str) -> None:
    assert says in topic_name_complaint(name)


def test_dots_and_underscores_collide() -> None:
    assert collision_key("a.b_c") == collision_key("a_b.c") != collision_key("a-b.c")


def test_internal_topics() -> None:
    assert OFFSETS_TOPIC in INTERNAL_TOPICS
    assert "__cluster_metadata" not in INTERNAL_TOPICS
