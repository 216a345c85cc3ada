"""Options of the source: what is taken, and one clear sentence for everything else."""

from pathlib import Path

import pyarrow as pa
import pytest

from shmbroker.client.profiles import ProfileEntry
from shmbroker.client.reader.planning import Piece
from shmbroker.client.reader.reading import Reading
from shmbroker.client.secrets import Secret
from shmbroker.client.security import OPEN, Security
from shmbroker.errors import ConfigFault
from shmbroker.spark.options import (
    EARLIEST,
    LATEST,
    QUERY_ID,
    TOPIC_IDS,
    ignored,
    parse,
    parse_any,
)
from shmbroker.spark.ranges import pieces_of, to_batch

BASE = {"kafka.bootstrap.servers": "h:9092", "subscribe": "a"}


def batch(**more: str):
    return parse({**BASE, **more}, is_stream=False)


def stream(**more: str):
    return parse({**BASE, **more}, is_stream=True)


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    assert batch().start.everywhere == EARLIEST
    assert batch().end.everywhere == LATEST
    options = stream()
    assert options.start.everywhere == LATEST
    assert options.fails_on_data_loss
    assert options.offsets_per_trigger_max is None
    assert options.offsets_per_trigger_min is None
    assert options.trigger_delay_ms_max == 15 * 60 * 1000
    assert options.records_per_task_max is None
    assert not options.has_headers
    assert not options.consumer.is_read_committed
    assert options.commits_offsets
    assert options.read_way == "auto"
    assert options.hold_ms == 10 * 60 * 1000


def test_the_largest_numbers_are_those_of_java() -> None:
    most = (1 << 63) - 1
    options = stream(
        startingTimestamp=str(most),
        maxOffsetsPerTrigger=f" {most} ",
        startingOffsets=f'{{"a": {{"0": {most}}}}}',
    )
    assert options.start.everywhere == options.offsets_per_trigger_max == most


def test_names_do_not_mind_case() -> None:
    options = parse(
        {
            "KAFKA.BOOTSTRAP.SERVERS": "h:1",
            "SubScribe": "b, a,b",
            "MINPARTITIONS": "7",
            "INCLUDEHEADERS": "True",
        },
        False,
    )
    assert options.topics == ("a", "b")
    assert options.tasks_min == 7
    assert options.has_headers


@pytest.mark.parametrize(
    ("more", "is_stream"),
    [
        ({}, True),
        ({"startingOffsets": "latest"}, True),
        ({"EndingOffsets": "latest"}, False),
        ({"emit": "ranges"}, True),
    ],
)
def test_what_one_kind_of_query_can_have_is_taken_of_any(
    more: dict[str, str], is_stream: bool
) -> None:
    assert parse_any({**BASE, **more}) == parse({**BASE, **more}, is_stream=is_stream)


@pytest.mark.parametrize("end", [{}, {"endingTimestamp": "5"}])
def test_what_no_query_can_have_is_refused_of_any(end: dict[str, str]) -> None:
    with pytest.raises(ConfigFault, match="minPartitions must be positive"):
        parse_any({**BASE, **end, "minPartitions": "0"})


def test_what_is_read_follows_the_one_strategy() -> None:
    pattern = parse({"kafka.bootstrap.servers": "h:1", "subscribePattern": " ev "}, False)
    names = ("ev", "events", "my-ev", "e-v")
    assert [name for name in names if pattern.wants(name, 0)] == ["ev", "events", "my-ev"]
    anchored = parse({"kafka.bootstrap.servers": "h:1", "subscribePattern": "^ev$"}, False)
    assert [name for name in names if anchored.wants(name, 0)] == ["ev"]
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
    own = f'"{TOPIC_IDS}": {{"a": "x"}}, "{QUERY_ID}": "q"'
    options = stream(startingOffsets=f'{{"a": {{"0": 6, "1": -1}}, {own}}}')
    assert options.start.each == {"a": {0: 6, 1: -1}}
    assert options.start.topic_ids == {"a": "x"}


def test_what_is_not_named_has_a_place_only_if_that_is_asked_for() -> None:
    assert batch(startingOffsets='{"a": {"0": 6}}').start.everywhere is None
    options = batch(
        startingOffsets='{"a": {"0": 6}}', endingOffsets='{"a": {"1": 9}}', partialOffsets="true"
    )
    assert options.start.everywhere == EARLIEST
    assert options.end.everywhere == LATEST


def test_settings_of_a_consumer_that_apply_are_applied() -> None:
    consumer = batch(
        **{
            "kafka.client.id": "me",
            "kafka.isolation.level": "READ_COMMITTED",
            "kafka.max.partition.fetch.bytes": "1000",
            "kafka.fetch.max.wait.ms": "0",
            "kafka.default.api.timeout.ms": "2500",
            "kafka.request.timeout.ms": "700",
            "kafka.max.poll.records": "5",  # taken
        }
    ).consumer
    assert consumer == ("h:9092", "me", 2.5, 0.7, True, 1000, 0, OPEN, ProfileEntry())


PROFILE = """
[work]
bootstrap.servers = "w:1"
security.protocol = "SASL_SSL"
sasl.mechanism = "PLAIN"
sasl.username = "anna"
sasl.password = "hush"
"""


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "profiles.toml"
    path.write_text(PROFILE)
    path.chmod(0o600)
    monkeypatch.setenv("SHMBROKER_PROFILES", str(path))
    return path


def test_profile_and_settings_above_it(profile: Path) -> None:
    found = parse(
        {"profile": "work", "subscribe": "a", "kafka.sasl.username": "otto"}, is_stream=False
    ).consumer
    assert found.bootstrap_servers == "w:1"
    assert found.security == Security(
        "SASL_SSL", mechanism="PLAIN", username="otto", password=Secret("hush")
    )
    assert "hush" not in repr(found)
    assert batch(profile="work").consumer.bootstrap_servers == "h:9092"


def test_rows_of_ranges_have_no_secrets_but_lead_to_them(profile: Path) -> None:
    piece = Piece("a", 0, bytes(16), "", 0, 0, 9, 0, 0, 5)

    def rows(**more: str) -> pa.RecordBatch:
        given = {"subscribe": "a", "emit": "ranges", **more}
        reading = Reading(parse(given, is_stream=False).consumer)
        return to_batch([piece], reading)

    written = rows(profile="work")
    assert "hush" not in str(written.to_pylist())
    ((_, reading),) = pieces_of([written])
    assert reading.consumer.security is None
    assert reading.consumer.entering().password == Secret("hush")
    direct = {"kafka.bootstrap.servers": "h:1", "kafka.security.protocol": "SASL_SSL"}
    direct |= {"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.username": "anna"}
    with pytest.raises(ConfigFault, match=r"would put kafka\.sasl\.password into rows") as fault:
        rows(**direct, **{"kafka.sasl.password": "hush"})
    assert "hush" not in str(fault.value)
    referred = {"kafka.sasl.password": f"${{file:{profile}}}"}
    ((_, reading),) = pieces_of([rows(**direct, **referred)])
    assert reading.consumer.entering().password == Secret(PROFILE.removesuffix("\n"))


@pytest.mark.parametrize(
    ("text", "ms"),
    [("90", 90), ("90ms", 90), ("30s", 30_000), ("5m", 300_000), ("2min", 120_000), ("1h", 3.6e6)],
)
def test_times_are_written_as_sparks(text: str, ms: int) -> None:
    assert stream(maxTriggerDelay=text).trigger_delay_ms_max == ms


@pytest.mark.parametrize(
    ("text", "size"), [("90", 90), ("5k", 5120), ("64m", 64 << 20), ("1GB", 1 << 30)]
)
def test_sizes_are_written_as_sparks(text: str, size: int) -> None:
    assert stream(maxBytesPerTrigger=text).bytes_per_trigger_max == size


def test_what_has_no_effect_is_known() -> None:
    limits = dict.fromkeys(("maxOffsetsPerTrigger", "minOffsetsPerTrigger"), "5")
    assert ignored(limits, is_stream=False) == list(limits)
    assert ignored(limits, is_stream=True) == []
    both = {"KAFKA.group.id": "g", "groupIdPrefix": "p"}
    assert ignored(both, is_stream=True) == ["groupIdPrefix"]
    for is_stream in (False, True):
        assert ignored({"pushdown": "true"}, is_stream) == ["pushdown"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"subscribePattern": "x"}, "Only one of the following options can be specified"),
        ({"subscribe": " , "}, "No topics to subscribe"),
        ({"startingOffsets": "latest"}, "starting offset can't be latest for batch queries"),
        ({"startingOffsets": '{"a": {"0": -1}}'}, "startingOffsets for a-0 can't be latest"),
        ({"endingOffsets": "earliest"}, "ending offset can't be earliest for batch queries"),
        ({"endingOffsets": '{"a": {"0": -2}}'}, "ending offset for a-0 can't be earliest"),
        ({"startingOffsets": "soon"}, "Expected e.g. .*, got soon"),
        ({"startingOffsets": ""}, "Expected e.g. .*, got  for option startingOffsets"),
        ({"endingOffsets": " "}, "Expected e.g."),
        ({"startingOffsets": "[1]"}, "Expected e.g."),
        ({"startingOffsets": "{}"}, "Expected e.g."),
        ({"startingOffsets": '{"a": 5}'}, "Expected e.g."),
        ({"startingOffsets": '{"a": {"0": 5}, ":topic_ids": 5}'}, "Expected e.g."),
        ({"startingOffsets": '{"a": {"0": "5"}}'}, "Expected e.g."),
        ({"startingOffsets": '{"a": {"0": true}}'}, "Expected e.g."),
        ({"startingOffsets": '{"a": {"x": 5}}'}, "Expected e.g."),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "Expected e.g."),
        ({"startingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "Expected e.g. .*123456789"),
        (
            {"startingOffsets": '{"a": {"0": 5}}', "endingOffsets": '{"a": {"0": 4}}'},
            "start offset 5 is greater than the end offset 4 for topic a partition 0",
        ),
        (
            {"startingOffsets": '{"a": {"0": 5}}', "endingOffsets": '{"a": {"1": 7}}'},
            "should have the same topic-partitions",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"a": {"0": 5}}',
                "endingOffsetsByTimestamp": '{"a": {"0": 4}}',
            },
            "start timestamp 5 is greater than the end timestamp 4 for topic a partition 0",
        ),
        (
            {"startingTimestamp": "5", "endingTimestamp": "4"},
            "start timestamp 5 is greater than the end timestamp 4",
        ),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "one of error, latest"),
        ({"startingTimestamp": "yesterday"}, "Expected a single long value, got yesterday"),
        ({"startingTimestamp": "-1"}, "from 1970"),
        ({"startingTimestamp": str(1 << 63)}, "Expected a single long value"),
        ({"startingOffsets": f'{{"a": {{"0": {1 << 63}}}}}'}, "Expected e.g."),
        ({"startingOffsetsByTimestamp": f'{{"a": {{"0": {1 << 63}}}}}'}, "Expected e.g."),
        ({"minPartitions": str(1 << 63)}, "minPartitions must be a whole number"),
        ({"minPartitions": "9" * 5000}, "minPartitions must be a whole number"),
        ({"fetchOffset.numRetries": str(1 << 63)}, "numRetries must be a whole number"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"minPartitions": "0"}, "minPartitions must be positive"),
        ({"minPartitions": "few"}, "minPartitions must be a whole number"),
        ({"maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition must be positive"),
        ({"fetchOffset.numRetries": "-1"}, "numRetries must be a whole number"),
        ({"shmbroker.read": "magic"}, "one of auto, files, fetch"),
        ({"shmbroker.hold": "long"}, "30s or 15m"),
        ({"shmbroker.hold": "25h"}, "a day at most"),
        ({"emit": "rows"}, "one of records, ranges"),
        ({"startingOffset": "earliest"}, "startingoffset is not known.*mean startingOffsets"),
        ({"whatever": "1"}, "whatever is not known here; known are"),
        ({"provider": "shmbroker"}, "CREATE TEMPORARY VIEW instead of CREATE TABLE"),
        ({"kafka.auto.offset.reset": "earliest"}, "'auto.offset.reset' is not supp.*startingOff"),
        ({"kafka.key.deserializer": "x"}, "'key.deserializer' is not supported.*cast"),
        ({"kafka.enable.auto.commit": "true"}, "'enable.auto.commit' is not supported"),
        ({"kafka.isolation.level": "serial"}, "one of read_uncommitted, read_committed"),
        ({"kafka.security.protocol": "TLS"}, "is one of PLAINTEXT, SSL"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "sasl.mechanism has no effect, as security.pro"),
        ({"kafka.sasl.mechanismus": "PLAIN"}, "did you mean kafka.sasl.mechanism"),
        ({"profile": "no-such"}, "there is no profile no-such"),
        ({"kafka.max.pol.records": "5"}, "did you mean kafka.max.poll.records"),
        ({"kafka.bootstrap.servers": " "}, "'kafka.bootstrap.servers' must be specified"),
    ],
)
def test_a_bad_batch_option_is_refused(more: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigFault, match=words):
        batch(**more)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"endingOffsets": "latest"}, "ending offset not valid in streaming queries"),
        ({"endingTimestamp": "5"}, "ending timestamp not valid in streaming queries"),
        ({"endingOffsetsByTimestamp": "{}"}, "ending timestamp not valid in streaming queries"),
        ({"maxOffsetsPerTrigger": "-5"}, "must be positive"),
        ({"maxOffsetsPerTrigger": "many"}, "whole number"),
        (
            {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"},
            r"minOffsetPerTrigger\(6\) is higher than the maxOffsetsPerTrigger\(5\)",
        ),
        ({"maxTriggerDelay": "soon"}, "30s or 15m"),
        ({"maxTriggerDelay": "3 weeks"}, "30s or 15m"),
        ({"maxBytesPerTrigger": "0"}, "500k or 64m"),
        ({"maxBytesPerTrigger": "9" * 5000}, "500k or 64m"),
        ({"maxBytesPerTrigger": "9999999t"}, "500k or 64m"),
    ],
)
def test_a_bad_stream_option_is_refused(more: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigFault, match=words):
        stream(**more)


def test_no_strategy_is_refused() -> None:
    with pytest.raises(ConfigFault, match="One of the following options must be specified"):
        parse({"kafka.bootstrap.servers": "h:1"}, False)


@pytest.mark.parametrize(
    "value", ['{"t": []}', "{}", '{"t": [-1]}', '{"t": 3}', "t", '{"t": [true]}']
)
def test_a_bad_assignment_is_refused(value: str) -> None:
    with pytest.raises(ConfigFault, match=r"topicpartitions to assign|Expected e.g."):
        parse({"kafka.bootstrap.servers": "h:1", "assign": value}, False)


@pytest.mark.parametrize(("value", "words"), [("(", "no expression"), (" ", "is empty")])
def test_a_bad_pattern_is_refused(value: str, words: str) -> None:
    with pytest.raises(ConfigFault, match=words):
        parse({"kafka.bootstrap.servers": "h:1", "subscribePattern": value}, False)
