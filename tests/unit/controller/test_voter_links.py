"""What voters say to each other, in Kafka's messages over real sockets."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmbroker.controller.raft.quorum_messages import (
    KEYS,
    AnswerCame,
    BeginEpoch,
    EndEpoch,
    EpochAnswer,
    Fetch,
    FetchSnapshot,
    NoAnswer,
    QuorumFetchAnswer,
    RequestCame,
    SnapshotAnswer,
    SnapshotId,
    Vote,
    VoteAnswer,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)
from shmbroker.controller.raft.voter_links import VoterLinks, socket_name
from shmbroker.errors import ProtocolFault

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
REQUESTS = [
    Vote(3, 1, 2, 77, True),
    Vote(4, 1, 2, 77, False),
    BeginEpoch(4, 1),
    EndEpoch(4, 1, (3, 2)),
    Fetch(4, 77, 2, 70, 500),
    FetchSnapshot(4, SnapshotId(70, 2), 1000),
]
ANSWERS: list[tuple[type, Any]] = [
    (Vote, VoteAnswer(0, 4, -1, True)),
    (BeginEpoch, EpochAnswer(74, 5, 2)),
    (EndEpoch, EpochAnswer(0, 5, 2)),
    (Fetch, QuorumFetchAnswer(0, 4, 1, 77, None, None, b"records")),
    (Fetch, QuorumFetchAnswer(0, 4, 1, 77, (2, 60), None, b"")),
    (Fetch, QuorumFetchAnswer(0, 4, 1, 77, None, SnapshotId(70, 2), b"")),
    (Fetch, QuorumFetchAnswer(6, 4, 3)),
    (FetchSnapshot, SnapshotAnswer(0, 4, 1, SnapshotId(70, 2), 3000, 1000, b"x" * 99)),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_requests_are_what_they_were(request_: Any) -> None:
    api_key, _, version = KEYS[type(request_)]
    body = encode_request(request_, 1, 2, CLUSTER)
    assert decode_request(api_key, version, body, 0, CLUSTER) == request_


@pytest.mark.parametrize(("kind", "answer"), ANSWERS, ids=str)
def test_answers_are_what_they_were(kind: type, answer: Any) -> None:
    api_key = KEYS[kind][0]
    assert decode_answer(api_key, encode_answer(api_key, answer), 0) == answer


def test_a_voter_of_another_cluster_is_refused() -> None:
    body = encode_request(REQUESTS[0], 1, 2, "another")
    with pytest.raises(ProtocolFault, match="another"):
        decode_request(52, 2, body, 0, CLUSTER)


@given(st.sampled_from([row[0] for row in KEYS.values()]), st.binary(max_size=200))
def test_garbage_is_the_one_fault(api_key: int, body: bytes) -> None:
    version = next(row[2] for row in KEYS.values() if row[0] == api_key)
    for decoded in (
        lambda: decode_request(api_key, version, body, 0, CLUSTER),
        lambda: decode_answer(api_key, body, 0),
    ):
        try:
            decoded()
        except ProtocolFault:
            pass


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[VoterLinks, VoterLinks]]:
    one = VoterLinks(str(tmp_path), 1, [2], CLUSTER)
    two = VoterLinks(str(tmp_path), 2, [1], CLUSTER)
    yield one, two
    one.close()
    two.close()


def told(links: VoterLinks) -> Any:
    """The next thing that it is told."""
    for _ in range(100):
        if found := links.take():
            assert len(found) == 1
            return found[0]
        links.wait(1.0)
    raise AssertionError("nothing came")


def test_a_request_and_its_answer_pass(pair: tuple[VoterLinks, VoterLinks]) -> None:
    one, two = pair
    for number, request in enumerate(REQUESTS):
        one.send(2, number + 10, request)
        asked = told(two)
        assert (type(asked), asked.voter, asked.request) == (RequestCame, 1, request)
        _, answer = next(row for row in ANSWERS if row[0] is type(request))
        two.send(1, asked.request_id, answer)
        assert told(one) == AnswerCame(2, number + 10, answer)


def test_a_large_answer_passes_in_pieces(pair: tuple[VoterLinks, VoterLinks]) -> None:
    one, two = pair
    one.send(2, 1, REQUESTS[4])
    token = told(two).request_id
    answer = QuorumFetchAnswer(0, 4, 1, 77, None, None, bytes(8 << 20))
    two.send(1, token, answer)
    got: list[Any] = []
    for _ in range(10_000):
        assert two.take() == []
        got += one.take()
        if got:
            break
    assert got == [AnswerCame(2, 1, answer)]


def test_who_is_not_there_fails_the_request(pair: tuple[VoterLinks, VoterLinks]) -> None:
    one, two = pair
    one.send(2, 1, REQUESTS[4])
    told(two)
    for link in list(two._links.values()):
        two._end(link)
    assert told(one) == NoAnswer(2, 1)
    one.send(3, 2, REQUESTS[4])
    assert one.has_news
    assert told(one) == NoAnswer(3, 2)


def test_a_stranger_ends_only_its_own_connection(
    pair: tuple[VoterLinks, VoterLinks], tmp_path: Path
) -> None:
    one, two = pair
    for garbage in (b"\xff" * 64, b"\0\0\0\x10" + bytes(16), b"GET / HTTP/1.1\r\n\r\n"):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(tmp_path / socket_name(2)))
            stranger.sendall(garbage)
            stranger.settimeout(5)
            for _ in range(20):
                two.wait(0.05)
                assert two.take() == []
                if not two._links:
                    break
            assert stranger.recv(1) == b""
    one.send(2, 7, REQUESTS[0])
    assert told(two).request == REQUESTS[0]
