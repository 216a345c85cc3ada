"""What must be true of a log that a crash has left: A to F, and T, of `crash_workload`."""

from typing import Any

from shmbroker.log.lookups import offset_for_timestamp
from shmbroker.log.places import locate
from shmbroker.records.batch import iterate_batches, iterate_records
from shmbroker.records.batch_layout import (
    CONTROL_BIT,
    H_ATTRIBUTES,
    H_PRODUCER_ID,
    LOG_OVERHEAD,
    TRANSACTIONAL_BIT,
)
from shmbroker.records.end_marker import parse_marker
from tests.support.crash_model import Topic


def check_log(topic: Topic, log: Any, checkpointed: int) -> None:
    """A to F, and T, for one log."""
    name = topic.name
    end = log.log_end_offset
    assert topic.durable_end <= end <= max([topic.end, *_ends(topic)]), (
        f"A: {name} ends at {end}, durable were {topic.durable_end} of {topic.end}"
    )
    start = log.log_start_offset
    assert min(topic.start_least, end) <= start <= topic.start_most, (
        f"C: {name} begins at {start}, not in {topic.start_least} to {topic.start_most}"
    )
    assert checkpointed <= end, f"E: {name} is flushed to {checkpointed} and ends at {end}"
    served = _read_all(log)
    if topic.is_compacted:
        _check_compacted(topic, served, end)
    else:
        _check_plain(topic, served, start, end)
    _check_lookups(log, served)
    for epoch in {header[2] for header, _ in served}:
        last = max(header[0] + header[6] for header, _ in served if header[2] == epoch)
        if last >= topic.start_most:  # Else DeleteRecords has begun to forget it.
            found = log.leader_epochs.epoch_at(last)
            assert found == epoch, f"E: {last} of {name} is of epoch {epoch}, not {found}"
    _check_producers(topic, log, served)
    if not topic.is_compacted:
        _check_transactions(topic, log)


def _ends(topic: Topic) -> list[int]:
    return [batch[0] for batch in (topic.before or {}).values()]


def _read_all(log: Any) -> list[tuple[tuple[int, ...], bytes]]:
    served = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        segment, position, length = log.read(offset, 4000, log.log_end_offset)
        if not length:
            break
        data = segment.read_bytes(position, length)
        for at, header in iterate_batches(data):
            size = header[1] + LOG_OVERHEAD
            served.append((header, data[at : at + size]))
            offset = header[0] + header[6] + 1
    return served


def _check_plain(topic: Topic, served: Any, start: int, end: int) -> None:
    expected = start
    for header, data in served:
        base, epoch = header[0], header[2]
        assert base <= start if expected == start else base == expected, (
            f"B: {topic.name} has a gap from {expected} to {base}"
        )
        known = [
            batches[base] for batches in (topic.batches, topic.before or {}) if base in batches
        ]
        assert (base + header[6] + 1, data[16:], epoch) in known, (
            f"B: {topic.name} serves at {base} what was never there"
        )
        expected = base + header[6] + 1
    assert expected == end or start == end, f"B: {topic.name} is readable to {expected} of {end}"


def _check_compacted(topic: Topic, served: Any, end: int) -> None:
    written = {}
    last = {}
    for base, (batch_end, body, _) in topic.batches.items():
        if base >= end:
            continue
        for offset, _, key, value, *_ in _records(_whole(base, body)):
            written[offset] = key, value
            last[key] = offset
        assert batch_end <= end
    found = {}
    for _, data in served:
        for offset, _, key, value, *_ in _records(data):
            assert offset not in found, f"B: offset {offset} comes twice"
            found[offset] = key, value
    assert list(found) == sorted(found)
    for offset, pair in found.items():
        assert written.get(offset) == pair, f"B: offset {offset} holds what was never there"
    missing = [offset for offset in last.values() if offset not in found]
    assert not missing, f"B: the last records of their keys at {missing} are gone"


def _whole(base: int, body: bytes) -> bytes:
    return base.to_bytes(8, "big") + (len(body) + 4).to_bytes(4, "big") + bytes(4) + body


def _records(batch: bytes) -> list[Any]:
    return list(iterate_records(batch))


def _check_lookups(log: Any, served: Any) -> None:
    for header, data in served[:: max(1, len(served) // 12)]:
        segment, position = locate(log, header[0] + header[6])
        assert segment.read_bytes(position, len(data)) == data, f"D: {header[0]} is not there"
        if header[0] < log.log_start_offset or not header[12]:
            continue
        newest = header[8]
        first = next(
            (record[1], record[0])
            for later, batch in served
            if later[8] >= newest
            for record in _records(batch)
            if record[1] >= newest and record[0] >= log.log_start_offset
        )
        found = offset_for_timestamp(log, newest)
        assert found == first, f"D: the first at {newest} is {first}, not {found}"


def _check_producers(topic: Topic, log: Any, served: Any) -> None:
    expected = {}
    for header, _ in served:
        if header[9] >= 0 and header[11] >= 0:
            expected[header[9]] = header[11] + header[6] + 1
    for producer_id, sequence in expected.items():
        error, duplicate, _ = log.producers.check(producer_id, 0, sequence, 0)
        assert (error, duplicate) == (0, -1), (
            f"F: {topic.name}: producer {producer_id} can't go on with {sequence}"
        )


def _check_transactions(topic: Topic, log: Any) -> None:
    """Of those that began before the first segment, less may be known."""
    began: dict[int, int] = {}
    aborted = []
    for base, (_, body, _) in sorted((topic.before or topic.batches).items()):
        batch = _whole(base, body)
        ((_, header),) = iterate_batches(batch)
        producer_id = header[H_PRODUCER_ID]
        if base >= log.log_end_offset or not header[H_ATTRIBUTES] & TRANSACTIONAL_BIT:
            continue
        if not header[H_ATTRIBUTES] & CONTROL_BIT:
            began.setdefault(producer_id, base)
            continue
        first_offset = began.pop(producer_id, -1)
        marker = parse_marker(batch)
        if first_offset >= 0 and marker is not None and not marker.is_commit:
            aborted.append((producer_id, first_offset, base))
    first = log.segments[0].base_offset
    earlier = [row for row in aborted if row[1] < first]
    log.aborted.check()
    found = [
        entry[:3]
        for segment in log.segments
        for entry in log.aborted.stored(segment.base_offset)
        if entry.last_offset not in [row[2] for row in earlier]
    ]
    expected = [row for row in aborted if row not in earlier]
    assert found == expected, f"T: {topic.name} knows as aborted {found}, not {expected}"
    known = {
        producer_id: offset
        for producer_id, offset in log.producers.open.items()
        if began.get(producer_id, first) >= first
    }
    open_now = {producer_id: offset for producer_id, offset in began.items() if offset >= first}
    assert known == open_now, f"T: {topic.name} knows as open {known}, not {open_now}"
