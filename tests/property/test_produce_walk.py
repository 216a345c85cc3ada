"""Produce requests of several partitions: what `walk` finds is what the codec decodes, and an
answer that was put together is the one that the codec would encode."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shmbroker.gateway import produce_many
from shmbroker.gateway.produce_many import (
    PLACE,
    ManyProduce,
    WalkedTopic,
    answers_of,
    encode_answer,
    walk,
)
from shmbroker.records.batch import encode_batch
from shmbroker.wire import codec

VERSIONS = st.integers(produce_many.VERSION_MIN, 13)
SIZES = st.sampled_from((0, 1, 50, 60, 61, 62, 300, 16_250, 16_320, 20_000))


def batch_of(size: int) -> bytes:
    return encode_batch([(1_700_000_000_000, None, bytes(size), ())])


def batches_of(topic: WalkedTopic) -> list[tuple[int, ...]]:
    """(partition, position, bytes) of each."""
    numbers = topic.places.tolist()
    return [tuple(numbers[at : at + PLACE]) for at in range(0, len(numbers), PLACE)]


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    topics = []
    for number in range(draw(st.integers(1, 4))):
        rows = [
            {"index": draw(st.integers(-1, 70_000)), "records": batch_of(draw(SIZES))}
            for _ in range(draw(st.integers(1, 5)))
        ]
        name = draw(st.sampled_from(("t", "topic-with-a-longer-name", "ü" * 20))) + str(number)
        topics.append({"name": name, "topic_id": bytes([number + 1]) * 16, "partition_data": rows})
    acks = draw(st.integers(-1, 1))
    return {"acks": acks, "timeout_ms": draw(st.integers(-1, 60_000)), "topic_data": topics}


@given(requests(), VERSIONS, st.binary(max_size=5), st.binary(max_size=5))
def test_a_plain_request_is_walked(
    body: dict[str, Any], version: int, before: bytes, behind: bytes
) -> None:
    encoded = codec.encode("ProduceRequest", version, body)
    buffer = bytearray(before + encoded + behind)
    end = len(before) + len(encoded)
    walked = walk(buffer, len(before), end, version)
    assert walked is not None
    assert (walked.acks, walked.timeout_ms) == (body["acks"], body["timeout_ms"])
    assert len(walked.topics) == len(body["topic_data"])
    for found, asked in zip(walked.topics, body["topic_data"], strict=True):
        if version >= produce_many.TOPIC_IDS_FROM:
            assert found.topic_id == asked["topic_id"]
        else:
            assert found.name == asked["name"]
        assert [
            {"index": index, "records": bytes(buffer[at : at + size])}
            for index, at, size in batches_of(found)
        ] == asked["partition_data"]


@given(requests(), VERSIONS, st.data())
def test_other_bytes_are_left_to_the_codec_or_mean_the_same_to_it(
    body: dict[str, Any], version: int, data: st.DataObject
) -> None:
    encoded = bytearray(codec.encode("ProduceRequest", version, body))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.sampled_from((len(encoded), len(encoded) - 1, len(encoded) // 2)))
    walked = walk(encoded, 0, end, version)
    if walked is None:
        return
    view = memoryview(encoded)[:end]
    decoded = codec.decode_request("Produce", version, view, 0)
    assert decoded["transactional_id"] is None
    assert [
        [(row["index"], bytes(row["records"])) for row in topic["partition_data"]]
        for topic in decoded["topic_data"]
    ] == [
        [(index, bytes(view[at : at + size])) for index, at, size in batches_of(topic)]
        for topic in walked.topics
    ]


@given(requests(), VERSIONS, st.data())
def test_an_answer_without_errors_is_the_codecs(
    body: dict[str, Any], version: int, data: st.DataObject
) -> None:
    encoded = codec.encode("ProduceRequest", version, body)
    walked = walk(bytearray(encoded), 0, len(encoded), version)
    assert walked is not None
    many = ManyProduce(walked, 7)
    numbers = st.integers(-1, 1 << 40)
    for n in range(len(many.results) // produce_many.RESULT):
        many.put(n, data.draw(numbers), data.draw(numbers), data.draw(numbers))
    expected = codec.encode("ProduceResponse", version, {"responses": answers_of(many)})
    assert encode_answer(many, version) == expected
