"""Requests that the group coordinator knows by their bytes: when they are answered, when not.

`tests/property/test_known_offsets.py` compares them with a coordinator that knows none.
"""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.errors import StorageFault
from shmbroker.groups import group_log
from shmbroker.groups.known_requests import KnownCommits, KnownFetches
from shmbroker.groups.offset_store import NO_EXPIRY
from shmbroker.ids import ZERO_UUID
from shmbroker.log.partition_log import PartitionLog
from shmbroker.wire import codec
from shmbroker.wire.coordinator_records import GROUP, OFFSET_COMMIT, encode_value
from tests.unit.groups.coordinator_at_work import Broker

TOPIC_ID = b"\7" * 16
COMMIT, FETCH = "OffsetCommit", "OffsetFetch"


class Asked:
    """A coordinator with what it knows, and an image of one topic."""

    def __init__(self, directory: Path) -> None:
        self.broker = Broker(directory)
        self.topic = SimpleNamespace(name="t", topic_id=TOPIC_ID)
        self.commits = KnownCommits(self.broker.groups, self)  # type: ignore[arg-type]
        self.fetches = KnownFetches(self.broker.groups, self)  # type: ignore[arg-type]

    @property
    def image(self) -> Any:
        return SimpleNamespace(
            topics_by_name={"t": self.topic}, topics_by_id={TOPIC_ID: self.topic}
        )

    def commit(self, offset: int = 5, *, member: str = "", generation: int = -1) -> bytes | None:
        body = {
            "group_id": "g",
            "member_id": member,
            "generation_id_or_member_epoch": generation,
            "topics": [
                {
                    "name": "t",
                    "partitions": [
                        {
                            "partition_index": 0,
                            "committed_offset": offset,
                            "committed_leader_epoch": 3,
                            "committed_metadata": "",
                        }
                    ],
                }
            ],
        }
        request = codec.encode("OffsetCommitRequest", 9, body)
        found = self.commits.answer(9, request)
        if found is None:
            error = self.broker.commit(offset, member=member, generation=generation)
            rows = [{"partition_index": 0, "error_code": error}]
            answer = {"topics": [{"name": "t", "partitions": rows}]}
            encoded = codec.encode("OffsetCommitResponse", 9, answer)
            decoded = codec.decode_request(COMMIT, 9, request)
            self.commits.learn(9, request, decoded, encoded)
        return found

    def fetch(self, answer: bytes = b"answer") -> bytes | None:
        topics = [{"name": "t", "partition_indexes": [0]}]
        body = {"groups": [{"group_id": "g", "topics": topics}], "require_stable": True}
        request = codec.encode("OffsetFetchRequest", 9, body)
        found = self.fetches.answer(9, request)
        if found is None:
            decoded = codec.decode_request(FETCH, 9, request)
            self.fetches.learn(9, request, decoded, answer)
        return found


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    yield Asked(tmp_path)


def test_commit_is_known_the_second_time(asked: Asked) -> None:
    assert asked.commit(5) is None
    assert asked.commit(6) is not None
    assert asked.broker.committed() == {("t", 0): 6}
    asked.broker.restart()
    assert asked.broker.committed() == {("t", 0): 6}, "the log has it"


def test_known_commit_that_is_not_stored_is_not_there(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise StorageFault("full")

    asked.commit(5)
    with monkeypatch.context() as context:
        context.setattr(PartitionLog, "append", fail)
        asked.commit(6)
    assert asked.broker.committed() == {("t", 0): 5}


def test_known_commit_is_told_to_whoever_reads(asked: Asked) -> None:
    asked.commit(5)
    asked.broker.appended.clear()
    assert asked.commit(6) is not None
    assert asked.broker.appended == [0]


def test_member_is_judged_each_time(asked: Asked) -> None:
    member = asked.broker.stable()
    assert asked.commit(5, member=member, generation=1) is None
    assert asked.commit(6, member=member, generation=1) is not None
    asked.broker.join(member=member)
    asked.broker.wait(0)
    assert asked.commit(7, member=member, generation=1) is None
    assert asked.broker.committed() == {("t", 0): 6}


def test_known_commit_is_a_sign_of_life(asked: Asked) -> None:
    member = asked.broker.stable()
    for offset in range(8):
        asked.broker.wait(4000)
        found = asked.commit(offset, member=member, generation=1)
        assert (found is not None) == bool(offset)
    assert asked.broker.heartbeat(member) == 0


def test_refused_commit_is_not_learned(asked: Asked) -> None:
    asked.broker.stable()
    for _ in range(3):
        assert asked.commit(5) is None, "the group has members, this is none"
    assert asked.broker.committed() == {}


def test_topic_of_the_same_name_is_another_one(asked: Asked) -> None:
    asked.commit(5)
    asked.topic = SimpleNamespace(name="t", topic_id=b"\x08" * 16)
    assert asked.commit(6) is None


def test_commit_that_has_to_wait_goes_the_ordinary_way(asked: Asked) -> None:
    asked.commit(5)
    asked.broker.partitions[0].is_fsync = True
    assert asked.commit(6) is None


def test_fetch_is_known_until_the_offset_moves(asked: Asked) -> None:
    asked.commit(5)
    assert asked.fetch(b"five") is None
    assert asked.fetch() == b"five"
    asked.commit(6)
    assert asked.fetch(b"six") is None
    assert asked.fetch() == b"six"


def test_fetch_is_not_known_while_a_transaction_may_change_it(asked: Asked) -> None:
    asked.commit(5)
    asked.fetch(b"five")
    (shard,) = asked.broker.groups.shards.values()
    shard.store.put_pending(7, 9, "g", "t", 0, (6, -1, "", 0, NO_EXPIRY, ZERO_UUID))
    assert asked.fetch(b"unstable") is None
    shard.store.end_pending(7, is_commit=False)
    assert asked.fetch() == b"five", "what it said then is so again"


def test_nothing_is_known_of_a_group_that_was_deleted(asked: Asked) -> None:
    asked.commit(5)
    asked.fetch(b"five")
    assert asked.broker.groups.removal.delete("g") == 0
    assert asked.fetch(b"nothing") is None
    assert asked.commit(5) is None
    assert asked.fetch(b"five again") is None


@pytest.mark.parametrize("metadata", ("", "mine", "ü" * 3000))
@pytest.mark.parametrize("topic_id", (ZERO_UUID, TOPIC_ID))
@pytest.mark.parametrize("expiry_ms", (NO_EXPIRY, 77))
def test_value_is_as_the_codec_encodes_it(metadata: str, topic_id: bytes, expiry_ms: int) -> None:
    message = {
        "offset": 1 << 40,
        "leader_epoch": 3,
        "metadata": metadata,
        "commit_timestamp": 1 << 41,
        "expire_timestamp": expiry_ms,
        "topic_id": topic_id,
    }
    version = 4 if expiry_ms == NO_EXPIRY else 1
    committed = 1 << 40, 3, metadata, 1 << 41, expiry_ms, topic_id
    expected = encode_value(GROUP, OFFSET_COMMIT, version, message)
    assert group_log.offset_value(committed) == expected
