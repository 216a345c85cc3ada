"""Options of the source: what is taken, and one clear sentence for everything else."""

import pytest

from shmbroker.errors import ConfigFault
from shmbroker.spark.options import EARLIEST, LATEST, TOPIC_IDS, has_headers, parse

BASE = {"kafka.bootstrap.servers": "h:9092", "subscribe": "a"}


def batch(**more: str):
    return parse({**BASE, **more}, is_stream=False)


def stream(**more: str):
    return parse({**BASE, **more}, is_stream=True)


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    assert batch().start.everywhere == EARLIEST
    assert batch().end.everywhere == LATEST
    assert stream().start.everywhere == LATEST
    assert batch().fails_on_data_loss
    assert batch().offsets_per_trigger_max is None
    assert not batch().has_headers


def test_names_do_not_mind_case() -> None:
    options = parse(
        {"KAFKA.BOOTSTRAP.SERVERS": "h:1", "SubScribe": "b, a,b", "MINPARTITIONS": "7"}, False
    )
    assert options.topics == ("a", "b")
    assert options.tasks_min == 7
    assert has_headers({"INCLUDEHEADERS": "True"})


def test_what_is_read_follows_the_one_strategy() -> None:
    pattern = parse({"kafka.bootstrap.servers": "h:1", "subscribePattern": "ev.*"}, False)
    assert [name for name in ("ev", "events", "my-ev") if pattern.wants(name, 0)] == [
        "ev",
        "events",
    ]
    assert pattern.names is None
    assigned = parse({"kafka.bootstrap.servers": "h:1", "assign": '{"t": [2, 0, 2]}'}, False)
    assert [p for p in range(4) if assigned.wants("t", p)] == [0, 2]
    assert not assigned.wants("u", 0)
    assert assigned.names == ["t"]


def test_timestamps_come_before_offsets() -> None:
    options = batch(
        startingTimestamp="5",
        startingOffsetsByTimestamp='{"a": {"0": 6}}',
        startingOffsets="earliest",
    )
    assert options.start.is_timestamp
    assert options.start.everywhere == 5
    options = batch(endingOffsetsByTimestamp='{"a": {"0": 6}}', endingOffsets="latest")
    assert options.end.is_timestamp
    assert options.end.each == {"a": {0: 6}}


def test_offsets_of_a_checkpoint_are_taken_with_their_ids() -> None:
    options = stream(startingOffsets=f'{{"a": {{"0": 6, "1": -1}}, "{TOPIC_IDS}": {{"a": "x"}}}}')
    assert options.start.each == {"a": {0: 6, 1: -1}}
    assert options.start.topic_ids == {"a": "x"}


def test_consumer_options_are_taken() -> None:
    assert batch(**{"kafka.max.poll.records": "5", "kafka.isolation.level": "read_uncommitted"})


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"subscribePattern": "x"}, "exactly one"),
        ({"subscribe": " , "}, "no topic"),
        ({"startingOffsets": "latest"}, "latest in a batch"),
        ({"startingOffsets": '{"a": {"0": -1}}'}, "a-0"),
        ({"endingOffsets": "earliest"}, "earliest in a batch"),
        ({"endingOffsets": '{"a": {"0": -2}}'}, "a-0"),
        ({"startingOffsets": "soon"}, "startingOffsets is not JSON"),
        ({"startingOffsets": "[1]"}, "JSON object"),
        ({"startingOffsets": '{"a": 5}'}, "must look like"),
        ({"startingOffsets": '{"a": {"0": "5"}}'}, "must look like"),
        ({"startingOffsets": '{"a": {"0": true}}'}, "must look like"),
        ({"startingOffsets": '{"a": {"x": 5}}'}, "must look like"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "must look like"),
        ({"startingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "must look like"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "'error' or 'latest'"),
        ({"startingTimestamp": "yesterday"}, "whole number"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"minPartitions": "0"}, "at least 1"),
        ({"maxOffsetsPerTrigger": "5"}, "no meaning in a batch"),
        ({"startingOffset": "earliest"}, "startingoffset is not known"),
        ({"kafka.auto.offset.reset": "earliest"}, "startingOffsets"),
        ({"kafka.isolation.level": "read_committed"}, "read_uncommitted"),
        ({"kafka.security.protocol": "SSL"}, "PLAINTEXT"),
        ({"kafka.bootstrap.servers": " "}, "bootstrap.servers is missing"),
    ],
)
def test_a_bad_batch_option_is_refused(more: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigFault, match=words):
        batch(**more)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"endingOffsets": "latest"}, "no meaning in a streaming"),
        ({"endingTimestamp": "5"}, "no meaning in a streaming"),
        ({"maxOffsetsPerTrigger": "-5"}, "whole number"),
        ({"maxOffsetsPerTrigger": "0"}, "at least 1"),
    ],
)
def test_a_bad_stream_option_is_refused(more: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigFault, match=words):
        stream(**more)


@pytest.mark.parametrize(
    "value", ['{"t": []}', "{}", '{"t": [-1]}', '{"t": 3}', "t", '{"t": [true]}']
)
def test_a_bad_assignment_is_refused(value: str) -> None:
    with pytest.raises(ConfigFault):
        parse({"kafka.bootstrap.servers": "h:1", "assign": value}, False)


@pytest.mark.parametrize("value", ["(", "*"])
def test_a_bad_pattern_is_refused(value: str) -> None:
    with pytest.raises(ConfigFault, match="no expression"):
        parse({"kafka.bootstrap.servers": "h:1", "subscribePattern": value}, False)
