"""What repeated requests mean is found by all their bytes but the correlation id, and forgotten."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shmbroker.gateway.recogniser import TopicMeaning, forget_gone, key_of
from shmbroker.known import Known


@given(
    st.binary(min_size=8, max_size=40),
    st.binary(min_size=8, max_size=40),
    st.binary(max_size=5),
    st.binary(max_size=5),
)
def test_keys_are_equal_where_frames_differ_in_the_correlation_id_alone(
    one: bytes, other: bytes, before: bytes, behind: bytes
) -> None:
    def key(frame: bytes) -> bytes:
        buffer = bytearray(before + frame + behind)
        return key_of(buffer, len(before), len(before) + len(frame))

    assert key(one) == key(one[:4] + other[4:8] + one[8:])
    assert (key(one) == key(other)) == (one[:4] + one[8:] == other[:4] + other[8:])


def test_the_oldest_goes_first() -> None:
    known: Known[int, str] = Known(3)
    for number in range(5):
        known.keep(number, str(number))
    assert known == {2: "2", 3: "3", 4: "4"}
    known.keep(3, "again")
    assert known == {2: "2", 3: "again", 4: "4"}


def test_a_meaning_lives_as_long_as_its_topic() -> None:
    topic: Any = SimpleNamespace(topic_id=b"id")

    acls: dict[bytes, Any] = {}

    def image(*topics: Any, acls: Any = acls) -> Any:
        security = SimpleNamespace(acls=acls)
        return SimpleNamespace(
            topics_by_id={one.topic_id: one for one in topics}, security=security
        )

    meaning = TopicMeaning()
    meaning.image, meaning.topic_image = image(topic), topic
    newer = image(topic)
    assert meaning.holds(newer) and meaning.image is newer
    for later in (image(), image(SimpleNamespace(topic_id=b"id")), image(topic, acls={})):
        meaning.image, meaning.topic_image = newer, topic
        assert not meaning.holds(later)
        assert meaning.image is not newer and not meaning.holds(newer)


def test_what_does_not_hold_is_forgotten() -> None:
    security = SimpleNamespace(acls={})
    topics: Any = [SimpleNamespace(topic_id=b"stays"), SimpleNamespace(topic_id=b"goes")]

    def image(*there: Any) -> Any:
        return SimpleNamespace(topics_by_id={one.topic_id: one for one in there}, security=security)

    known: Known[int, TopicMeaning] = Known(9)
    for number, topic in enumerate(topics):
        meaning = TopicMeaning()
        meaning.image, meaning.topic_image = image(*topics), topic
        known.keep(number, meaning)
    newer = image(topics[0])
    forget_gone(known, newer)
    assert list(known) == [0] and known[0].image is newer
