"""Compaction against a plain model: keys, tombstones, codecs, producers, gaps, merges, passes."""

import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmbroker.log.lookups import offset_for_timestamp
from shmbroker.records.batch_layout import DELETE_HORIZON_BIT
from tests.support.compaction_logs import (
    append,
    batches_of,
    compact_log,
    last_batches,
    model,
    open_log,
    records_of,
)
from tests.support.examples import examples

pytestmark = pytest.mark.thorough

RECORD = st.tuples(
    st.integers(1, 2000),
    st.sampled_from([b"", b"a", b"b", b"key-8byt", b"key-9byte", b"x" * 40, b"long" * 70]),
    st.one_of(st.none(), st.binary(max_size=60)),
    st.sampled_from([(), ((b"h", b"1"), (b"n", None))]),
)
BATCH = st.tuples(
    st.lists(RECORD, min_size=1, max_size=5),
    st.sampled_from([0, 0, 0, 1, 2, 3, 4]),
    st.sampled_from([None, None, 7, 8]),
    st.sampled_from([None, None, None, 5000]),
)


@settings(max_examples=examples(60), deadline=None)
@given(
    rounds=st.lists(
        st.tuples(st.lists(BATCH, min_size=1, max_size=14), st.sampled_from([1, 200, 5000])),
        min_size=1,
        max_size=3,
    ),
    segment_bytes=st.sampled_from([300, 2000]),
    map_bytes=st.sampled_from([1 << 20, 24 * 6]),
)
def test_what_is_left_is_what_the_model_keeps(rounds, segment_bytes, map_bytes):
    with tempfile.TemporaryDirectory() as directory:
        check_rounds(directory + "/t-0", rounds, segment_bytes, map_bytes)


def check_rounds(directory, rounds, segment_bytes, map_bytes):
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": str(segment_bytes),
        "index.interval.bytes": "100",
    }
    log = open_log(directory, config)
    dirty_offset, now_ms, sequences = 0, 10_000, {}
    for batches, wait_ms in rounds:
        for records, codec, producer, append_time in batches:
            named = None
            if producer:
                named = (producer, 0, sequences.get(producer, 0))
                sequences[producer] = named[2] + len(records)
            append(log, records, codec, named, log_append_time=append_time)
        log.roll()
        now_ms += wait_ms
        before = batches_of(log)
        producers = last_batches(log)
        report = compact_log(
            log, dirty_offset, now_ms=now_ms, delete_retention_ms=1000, map_bytes=map_bytes
        )
        assert dirty_offset < report.end_offset <= log.log_end_offset
        after = batches_of(log)
        expected = model(
            [batch for batch in before if batch[0][0] < report.end_offset],
            dirty_offset,
            report.end_offset,
            now_ms,
            1000,
            producers,
        )
        assert [
            (
                header[0],
                header[0] + header[6],
                header[7] if header[5] & DELETE_HORIZON_BIT else None,
                records,
            )
            for header, records in after
            if header[0] < report.end_offset
        ] == expected
        assert [batch for batch in after if batch[0][0] >= report.end_offset] == [
            batch for batch in before if batch[0][0] >= report.end_offset
        ]
        dirty_offset = report.end_offset
        check_readers(log)
    check_reopened(log, directory, config, dirty_offset)


def check_readers(log):
    """Every reader of the log gets along with the gaps."""
    records = records_of(log)
    end = log.log_end_offset
    found, offset = [], 0
    while offset < end:
        place = log.read(offset, 1 << 20, end)
        assert place is not None
        segment, position, length = place
        if not length:
            break
        for _, header in segment.headers(position, position + length):
            found.append(header[0])
            offset = header[0] + header[6] + 1
    assert found == [header[0] for header, _ in batches_of(log)]
    newest = max((record[1] for record in records), default=-1)
    if newest >= 0:
        timestamp, offset = offset_for_timestamp(log, newest)
        assert timestamp == newest
        assert offset == min(record[0] for record in records if record[1] == newest)
    for segment in log.segments[:-1]:
        if segment.size:
            headers = [header for _, header in segment.headers(0, segment.size)]
            assert segment.max_timestamp == max(header[8] for header in headers)
            assert not segment.is_rebuilt


def check_reopened(log, directory, config, dirty_offset):
    """Recovery takes it as it is: by a scan, with the policy changed meanwhile too."""
    before, end = batches_of(log), log.log_end_offset
    producers = last_batches(log)
    log.close(clean=False)
    for policy in ("compact", "delete"):
        again = open_log(
            directory,
            config | {"cleanup.policy": policy},
            clean=False,
            cleaned_offset=dirty_offset,
        )
        assert again.log_end_offset == end
        assert batches_of(again) == before
        assert last_batches(again) == producers
        again.close(clean=False)
