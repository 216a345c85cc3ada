"""All that can be said to a door before it opens: the talks of the corpus, and others made of them.

FUZZ_DOOR_EXAMPLES says how many others; `scripts/fuzz_door --seconds N` runs longer, and keeps what
fails in the corpus.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("joserfc")  # of OAUTHBEARER, which this door offers

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import door

CORPUS = Path(__file__).parent / "corpus" / "door"
EXAMPLES = int(os.environ.get("FUZZ_DOOR_EXAMPLES", "120"))
WORDS = (
    *(b"PLAIN", b"SCRAM-SHA-256", b"SCRAM-SHA-512", b"OAUTHBEARER", b"n,,n=alice,r=", b"c=biws,r="),
    *(
        b",p=",
        b"\0alice\0",
        b"m=",
        b"n,a=bob,",
        b"tokenauth=true",
        b"\xff",
        b"\0",
        b"=2C",
        b"alice",
    ),
)


@pytest.fixture(scope="module")
def clear() -> Iterator[door.Trial]:
    made = door.Trial()
    yield made
    made.close()


@pytest.fixture(scope="module")
def sealed() -> Iterator[door.Trial]:
    made = door.Trial(door.TLS)
    yield made
    made.close()


@pytest.fixture(params=["clear", "sealed"])
def trial(request: pytest.FixtureRequest) -> door.Trial:
    found: door.Trial = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("name", sorted(path.name for path in CORPUS.iterdir()))
def test_talk_of_the_corpus(trial: door.Trial, name: str) -> None:
    talk = (CORPUS / name).read_bytes()
    outcome, _, _ = trial.talk(talk).partition(",")
    if trial.side is door.Sealed and door.AS_THEY_ARE in dict(door.pieces(talk)):
        assert outcome in ("closed", "open")
        return  # what is sent past the records ends a conversation with TLS, or is the first of one
    assert (outcome == "admitted") == (name in ADMITTED)
    assert outcome == "closed" or name not in CLOSED


ADMITTED = {
    "plain",
    "plain_and_a_request",
    "plain_bare",
    "again_in_time",
    "again_by_another_mechanism",
    "again_begun_and_left",
    "three_frames_in_one",
}
CLOSED = {
    "again_too_late",
    "a_request_at_once",
    "frame_of_a_byte",
    "frame_of_a_negative_size",
    "frame_of_nothing",
    "frame_too_large",
    "http",
    "plain_wrong",
    "produce_at_once",
    "scram",
    "tls",
}
"""At once, or as soon as who was refused is told so."""


def test_corpus_has_the_talks_to_begin_with() -> None:
    for name, talk in door.first_messages().items():
        assert (CORPUS / name).read_bytes() == talk, "python -m tests.fuzz.door writes them"


contents = st.one_of(
    st.binary(max_size=80),
    st.lists(st.sampled_from(WORDS), max_size=5).map(b"".join),
    st.integers(0, 1 << 17).map(bytes),
)
talks = st.lists(
    st.builds(door.piece, st.integers(0, 7), contents.map(lambda content: content[:65535])),
    max_size=8,
).map(b"".join)
known = st.sampled_from(sorted(door.first_messages().values()))


@st.composite
def changed(draw: st.DrawFn) -> bytes:
    """A known talk, with another behind it, or a few bytes of it changed, left out or put in."""
    talk = bytearray(draw(known))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(talk)))
        talk[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(talk) + draw(st.one_of(st.just(b""), known, talks))


COMMON = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@settings(COMMON, max_examples=EXAMPLES)
@given(talk=st.one_of(talks, changed()))
def test_whatever_is_said_the_worker_lives_and_nobody_gets_in(
    clear: door.Trial, talk: bytes
) -> None:
    clear.talk(talk)


@settings(COMMON, max_examples=EXAMPLES // 4)
@given(talk=st.one_of(talks, changed()))
def test_the_same_with_tls(sealed: door.Trial, talk: bytes) -> None:
    sealed.talk(talk)


@given(talk=st.binary(max_size=200))
def test_any_bytes_are_pieces(talk: bytes) -> None:
    found = door.pieces(talk)
    assert sum(len(content) for _, content in found) <= len(talk)
    assert door.pieces(b"".join(door.piece(*each) for each in found)) == found
