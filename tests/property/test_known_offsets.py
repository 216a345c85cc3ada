"""Requests that a coordinator knows by their bytes, beside a coordinator that knows none.

Both get the same: the same answers, byte for byte, and the same log at the end.
"""

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as some

from shmbroker.ids import partition_key
from shmbroker.ipc.operation_layout import EXECUTE, EXECUTE_HEAD, EXECUTED, EXECUTED_HEAD
from shmbroker.wire import codec
from shmbroker.wire.api_keys import DELETE_GROUPS, OFFSET_COMMIT, OFFSET_DELETE, OFFSET_FETCH
from tests.support.broker_family import BrokerFamily, broker_family
from tests.support.examples import examples
from tests.support.family_memory import TOPIC_ID, topic

NAMES = {
    OFFSET_COMMIT: "OffsetCommit",
    OFFSET_FETCH: "OffsetFetch",
    OFFSET_DELETE: "OffsetDelete",
    DELETE_GROUPS: "DeleteGroups",
}
OFFSETS = "__consumer_offsets"
DATA_ID = b"\3" * 16
groups = some.sampled_from(["g", "h"])
versions = some.sampled_from([8, 9, 10])
indexes = some.sampled_from([0, 1, 2])
"""The last one there is not."""
ids = some.sampled_from([DATA_ID, bytes(15) + b"\7"])


def rows() -> some.SearchStrategy[dict[str, Any]]:
    return some.fixed_dictionaries(
        {
            "partition_index": indexes,
            "committed_offset": some.integers(0, 3),
            "committed_leader_epoch": some.sampled_from([-1, 4]),
            "committed_metadata": some.sampled_from(["", "", "", None, "mine", "x" * 5000]),
        }
    )


def requests() -> some.SearchStrategy[tuple[int, int, dict[str, Any]]]:
    commit = some.builds(
        lambda group, version, generation, named, topic_id, rows: (
            OFFSET_COMMIT,
            version,
            {
                "group_id": group,
                "generation_id_or_member_epoch": generation,
                "topics": [
                    {"name": named if version < 10 else "", "partitions": rows}
                    | ({"topic_id": topic_id} if version >= 10 else {})
                ],
            },
        ),
        groups,
        versions,
        some.sampled_from([-1, -1, -1, 1]),
        some.sampled_from(["data", "data", "nothing"]),
        ids,
        some.lists(rows(), min_size=1, max_size=2),
    )
    fetch = some.builds(
        lambda names, version, is_stable, topics: (
            OFFSET_FETCH,
            version,
            {
                "require_stable": is_stable,
                "groups": [{"group_id": name, "topics": topics(version)} for name in names],
            },
        ),
        some.sampled_from([["g"], ["g"], ["h"], ["g", "h"]]),
        versions,
        some.booleans(),
        some.builds(
            lambda named, topic_id, indexes: (
                lambda version: (
                    None
                    if named is None
                    else [
                        {"partition_indexes": indexes}
                        | ({"topic_id": topic_id} if version >= 10 else {"name": named})
                    ]
                )
            ),
            some.sampled_from(["data", "data", "nothing", None]),
            ids,
            some.lists(indexes, min_size=1, max_size=3),
        ),
    )
    forget = some.builds(
        lambda group, index: (
            OFFSET_DELETE,
            0,
            {
                "group_id": group,
                "topics": [{"name": "data", "partitions": [{"partition_index": index}]}],
            },
        ),
        groups,
        indexes,
    )
    drop = some.builds(lambda group: (DELETE_GROUPS, 2, {"groups_names": [group]}), groups)
    return some.one_of(commit, commit, commit, fetch, fetch, fetch, forget, drop)


def booted(family: BrokerFamily) -> BrokerFamily:
    (named, version, body), (kind, of_version, partition) = topic()
    family.boot(
        (named, version, body | {"name": OFFSETS}),
        (kind, of_version, partition),
        (named, version, body | {"name": "data", "topic_id": DATA_ID}),
        *(
            (kind, of_version, partition | {"topic_id": DATA_ID, "partition_id": index})
            for index in (0, 1)
        ),
    )
    return family


def asked(family: BrokerFamily, key: int, version: int, body: dict[str, Any]) -> bytes:
    """The body of the answer. The clock moves, so that each commit has a time of its own."""
    family.clock.now += 0.001
    encoded = codec.encode(f"{NAMES[key]}Request", version, body)
    family.gateway.send(EXECUTE, EXECUTE_HEAD.pack(1, key, version, 0, 0, 0) + encoded)
    family.broker.turn()
    ((_, payload),) = [entry for entry in family.gateway.taken() if entry[0] == EXECUTED]
    return payload[EXECUTED_HEAD.size :]


def log_of(family: BrokerFamily) -> bytes:
    log = family.broker.partitions[partition_key(TOPIC_ID, 0)].log
    if not log.log_end_offset:
        return b""
    found = log.read(0, 1 << 20, log.log_end_offset)
    assert found is not None
    segment, position, length = found
    return segment.read_bytes(position, length)


@settings(max_examples=examples(60), deadline=None)
@given(some.lists(requests(), min_size=1, max_size=8), some.lists(some.integers(0, 7), max_size=60))
def test_known_requests_are_answered_as_any(
    few: list[tuple[int, int, dict[str, Any]]], order: list[int]
) -> None:
    """The same few requests come again and again."""
    with (
        tempfile.TemporaryDirectory() as first,
        tempfile.TemporaryDirectory() as second,
        broker_family(Path(first)) as known,
        broker_family(Path(second)) as plain,
    ):
        booted(known)
        booted(plain)
        plain.broker.executor.shortcuts.clear()
        for number in order:
            request = few[number % len(few)]
            assert asked(known, *request) == asked(plain, *request), request
        assert log_of(known) == log_of(plain)
