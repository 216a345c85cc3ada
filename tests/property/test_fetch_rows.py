"""The walk over a Fetch gives what the codec gives, or leaves the request to it."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shmbroker.errors import ProtocolFault
from shmbroker.gateway import fetch_rows
from shmbroker.gateway.fetch import VERSION_MAX, VERSION_MIN
from shmbroker.wire import codec

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
SMALL = st.integers(-1, 5)
ROW = st.fixed_dictionaries(
    {
        "partition": INT32,
        "current_leader_epoch": INT32,
        "fetch_offset": INT64,
        "last_fetched_epoch": INT32,
        "log_start_offset": INT64,
        "partition_max_bytes": INT32,
    }
)
TOPIC = st.fixed_dictionaries(
    {
        "topic": st.text("abé-", min_size=0, max_size=5),
        "topic_id": st.binary(min_size=16, max_size=16),
        "partitions": st.lists(ROW, max_size=4),
    }
)
BODY = st.fixed_dictionaries(
    {
        "max_wait_ms": INT32,
        "min_bytes": INT32,
        "max_bytes": INT32,
        "isolation_level": st.integers(-128, 127),
        "session_id": SMALL,
        "session_epoch": SMALL,
        "topics": st.lists(TOPIC, max_size=3),
    }
)
SINCE = {"current_leader_epoch": 9, "last_fetched_epoch": 12, "forgotten_topics_data": 7}
VERSION = st.integers(VERSION_MIN, VERSION_MAX)


def told(asked: fetch_rows.Asked) -> list[object]:
    return [getattr(asked, name) for name in fetch_rows.Asked.__slots__]


def encoded(version: int, body: dict[str, Any]) -> bytes:
    """Without what this version does not have."""
    body = {key: value for key, value in body.items() if version >= SINCE.get(key, 0)}
    if version >= fetch_rows.STATE_FROM:
        body.pop("replica_id", None)
    body["topics"] = [
        topic
        | {
            "partitions": [
                {key: value for key, value in row.items() if version >= SINCE.get(key, 0)}
                for row in topic["partitions"]
            ]
        }
        for topic in body["topics"]
    ]
    return codec.encode("FetchRequest", version, body)


def by_codec(version: int, data: bytes) -> list[object] | None:
    try:
        return told(fetch_rows.of_body(codec.decode_request("Fetch", version, data, 0), version))
    except ProtocolFault:
        return None


def walked(version: int, data: bytes, before: int = 3, behind: bytes = b"") -> list[object] | None:
    buffer = bytearray(before) + data + behind
    found = fetch_rows.walk(buffer, before, before + len(data), version)
    return None if found is None else told(found)


@given(VERSION, BODY, st.binary(max_size=40))
def test_usual_request_is_walked_to_what_the_codec_gives(version, body, behind):
    data = encoded(version, body)
    found = walked(version, data, behind=behind)
    if all(topic["topic"].isascii() for topic in body["topics"]) or version >= 13:
        assert found is not None
        assert found == by_codec(version, data)
    else:
        assert found is None


UNUSUAL = st.fixed_dictionaries(
    {},
    optional={
        "replica_id": st.integers(-2, 2),
        "rack_id": st.text("rå", max_size=2),
        "forgotten_topics_data": st.lists(
            st.fixed_dictionaries(
                {
                    "topic": st.just("a"),
                    "topic_id": st.just(bytes(16)),
                    "partitions": st.lists(SMALL, max_size=2),
                }
            ),
            max_size=2,
        ),
    },
)


@given(VERSION, BODY, UNUSUAL)
def test_unusual_request_is_walked_to_the_same_or_left_to_the_codec(version, body, unusual):
    data = encoded(version, body | unusual)
    found = walked(version, data)
    assert found is None or found == by_codec(version, data)


@given(VERSION, BODY, st.data())
def test_bytes_changed_anywhere_are_walked_to_the_same_or_left_to_the_codec(version, body, data):
    frame = bytearray(encoded(version, body))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(frame) - 1))
        frame[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(frame)))
    for some in (bytes(frame), bytes(frame[:cut]), bytes(frame) + b"\0"):
        found = walked(version, some)
        assert found is None or found == by_codec(version, some)
