"""Partition changes under a quota: buckets by table, decisions that stop at an empty one."""

from collections.abc import Iterator
from typing import Any

import pytest
from controller_at_work import NOW_MS, create
from hypothesis import given
from hypothesis import strategies as st

from shmbroker.controller.active_controller import ActiveController
from shmbroker.controller.decisions.parts import Joined
from shmbroker.controller.mutation_quotas import (
    BUCKETS_MAX,
    UNBOUNDED,
    Bucket,
    MutationQuotas,
    Mutations,
    place_of,
)
from shmbroker.wire import codec
from shmbroker.wire.error_codes import (
    INVALID_PARTITIONS,
    NONE,
    THROTTLING_QUOTA_EXCEEDED,
    TOPIC_ALREADY_EXISTS,
)

ALICE = "User:alice"
QUOTAS: Any = {(("user", "alice"),): {"controller_mutation_rate": 2.0}}
BURST = 22.0
"""Eleven seconds' worth."""


def of(
    made: MutationQuotas, now_s: float, api: str = "CreateTopics", version: int = 7
) -> Mutations:
    return made.of(QUOTAS, api, version, ALICE, b"app", now_s)


def test_who_has_no_quota_is_not_bounded() -> None:
    made = MutationQuotas(11, 1)
    assert made.of(QUOTAS, "CreateTopics", 7, "User:bob", b"app", 0.0) is UNBOUNDED
    assert made.of({}, "CreateTopics", 7, ALICE, b"app", 0.0) is UNBOUNDED
    assert of(made, 0.0, "AlterConfigs", 2) is UNBOUNDED
    assert UNBOUNDED.allows(1 << 30)


@pytest.mark.parametrize(
    ("api", "version", "is_refused"),
    [
        ("CreateTopics", 6, True), ("CreateTopics", 5, False),
        ("DeleteTopics", 5, True), ("DeleteTopics", 4, False),
        ("CreatePartitions", 3, True), ("CreatePartitions", 2, False),
    ],
)  # fmt: skip
def test_versions_that_know_the_error_are_refused_and_older_ones_told_only(
    api: str, version: int, is_refused: bool
) -> None:
    made = MutationQuotas(11, 1)
    first = of(made, 0.0, api, version)
    assert first.allows(30)
    assert first.throttle_ms == (0 if is_refused else 4000)
    second = of(made, 1.0, api, version)
    assert second.allows(4) is not is_refused
    assert second.throttle_ms == (3000 if is_refused else 5000)


@pytest.mark.parametrize("version", [5, 7])
@pytest.mark.parametrize("rate", [1e-9, 5e-324])
def test_a_time_that_fits_into_no_answer_is_told_as_the_longest_that_does(
    rate: float, version: int
) -> None:
    quotas: Any = {(("user", "alice"),): {"controller_mutation_rate": rate}}
    made = MutationQuotas(11, 1)
    for _ in range(2):
        mutations = made.of(quotas, "CreateTopics", version, ALICE, b"app", 0.0)
        mutations.allows(50)
    assert mutations.throttle_ms == (1 << 31) - 1


def test_a_bucket_is_full_again_after_its_time_and_never_more() -> None:
    made = MutationQuotas(11, 1)
    assert of(made, 0.0).allows(22)
    assert of(made, 0.0).allows(10), "it is empty, not overdrawn"
    assert not of(made, 4.9).allows(1)
    assert of(made, 5.0).allows(1)
    later = of(made, 1000.0)
    assert later.allows(22)
    assert later.allows(1)
    assert not later.allows(1)


def test_what_is_decided_anew_is_counted_once() -> None:
    bucket = Bucket(5.0, 0.0)
    mutations = Mutations(bucket, 1.0, True)
    assert mutations.allows(7)
    assert not mutations.allows(1)
    mutations.begin_anew()
    assert (bucket.tokens, mutations.throttle_ms) == (5.0, 0)


def test_buckets_are_bounded_and_the_busiest_stay() -> None:
    made = MutationQuotas(11, 1)
    quotas: Any = {(("client-id", None),): {"controller_mutation_rate": 1.0}}
    for n in range(BUCKETS_MAX):
        made.of(quotas, "CreateTopics", 7, ALICE, b"%d" % n, float(n)).allows(20)
    made.of(quotas, "CreateTopics", 7, ALICE, b"one more", float(BUCKETS_MAX))
    busy = made.of(quotas, "CreateTopics", 7, ALICE, b"%d" % (BUCKETS_MAX - 1), BUCKETS_MAX)
    assert not busy.allows(1)


def test_long_client_ids_have_buckets_of_their_own_and_are_not_kept() -> None:
    made = MutationQuotas(11, 1)
    quotas: Any = {(("client-id", None),): {"controller_mutation_rate": 1.0}}
    for end in (b"a", b"b"):
        made.of(quotas, "CreateTopics", 7, ALICE, bytes(32_000) + end, 0.0).allows(20)
        assert not made.of(quotas, "CreateTopics", 7, ALICE, bytes(32_000) + end, 0.0).allows(1)
    assert len(place_of("alice", "x" * 32_000)) == 16


steps = st.lists(st.tuples(st.floats(0, 30), st.integers(0, 50)), max_size=40)


@given(steps)
def test_no_more_is_let_through_than_the_burst_the_time_and_one_request(
    steps: list[tuple[float, int]],
) -> None:
    made = MutationQuotas(11, 1)
    now = done = 0.0
    for pause_s, partitions in steps:
        now += pause_s
        if of(made, now).allows(partitions):
            done += partitions
    assert done <= BURST + 2.0 * now + 50 + 1e-6


@pytest.fixture
def mutations() -> Iterator[Mutations]:
    yield Mutations(Bucket(5.0, 0.0), 1.0, True)


def topic(name: str, partitions: int) -> dict[str, Any]:
    row = {"name": name, "num_partitions": partitions, "replication_factor": -1}
    return row | {"assignments": [], "configs": []}


def test_each_topic_is_counted_by_itself(
    controller: ActiveController, mutations: Mutations
) -> None:
    asked = [topic("none", 0), topic("a", 4), topic("b", 4), topic("c", 1)]
    request = {"topics": asked, "validate_only": False}
    answer = controller.handle("CreateTopics", 7, request, NOW_MS, mutations=mutations)
    errors = {row["name"]: row["error_code"] for row in answer["topics"]}
    assert errors == {
        "none": INVALID_PARTITIONS,
        "a": NONE,
        "b": NONE,
        "c": THROTTLING_QUOTA_EXCEEDED,
    }
    assert answer["throttle_time_ms"] == 3000
    assert "c" not in controller.image.topics_by_name
    again = controller.handle("CreateTopics", 7, request, NOW_MS)
    assert [row["error_code"] for row in again["topics"]] == [
        INVALID_PARTITIONS, TOPIC_ALREADY_EXISTS, TOPIC_ALREADY_EXISTS, NONE,
    ]  # fmt: skip
    assert again["throttle_time_ms"] == 0


def test_partitions_that_are_added_and_deleted_count(
    controller: ActiveController, mutations: Mutations
) -> None:
    create(controller, topic("a", 3), topic("b", 2))
    rows = [{"name": "a", "count": 9, "assignments": None}]
    more = {"topics": rows, "validate_only": False}
    answer = controller.handle("CreatePartitions", 3, more, NOW_MS, mutations=mutations)
    assert (answer["results"][0]["error_code"], answer["throttle_time_ms"]) == (NONE, 0)
    gone = {"topic_names": ["b"]}
    answer = controller.handle("DeleteTopics", 5, gone, NOW_MS, mutations=mutations)
    assert answer["responses"][0]["error_code"] == THROTTLING_QUOTA_EXCEEDED
    assert answer["throttle_time_ms"] == 1000
    assert "b" in controller.image.topics_by_name


@pytest.mark.parametrize("version", range(2, 8))
def test_an_answer_of_parts_tells_the_longest_time(version: int) -> None:
    names = ("a", "b")
    whole = Joined("CreateTopics", version, {"topics": [{"name": name} for name in names]})
    for name, throttle_ms in zip(names, (7, 3), strict=True):
        row = {"name": name, "error_code": THROTTLING_QUOTA_EXCEEDED}
        whole.add({"throttle_time_ms": throttle_ms, "topics": [row]})
    answer = codec.decode_all("CreateTopicsResponse", version, whole.encoded())
    assert answer["throttle_time_ms"] == 7
    assert [row["name"] for row in answer["topics"]] == list(names)


def test_topics_that_somebody_uses_count_for_it(
    controller: ActiveController, mutations: Mutations
) -> None:
    create(controller, topic("there", 1))
    made = controller.create_topics_auto(["a", "there"], NOW_MS, mutations=mutations)
    assert [error for error, _ in made] == [NONE, TOPIC_ALREADY_EXISTS]
    for name in "bcdefg":
        controller.create_topics_auto([name], NOW_MS, mutations=mutations)
    [(error, _)] = controller.create_topics_auto(["h"], NOW_MS, mutations=mutations)
    assert error == THROTTLING_QUOTA_EXCEEDED
    assert "h" not in controller.image.topics_by_name
