"""What a follower makes of an answer: what it takes, what it refuses, and when it asks again."""

import os
import struct
from collections.abc import Iterable
from typing import Any

import pytest
from three_brokers import KEY

from shmbroker.broker.replication.followed import RETRY_MS, STORAGE_RETRY_MS
from shmbroker.broker.replication.replica_fetcher import ROWS_LOOKED_AT_MAX, SCRATCH_BYTES
from shmbroker.ipc.operation_layout import (
    NEED_FILE,
    READ_DONE_HEAD,
    READ_SLICE,
    TOKEN,
)
from shmbroker.ipc.passed_files import OpenFile
from shmbroker.records.batch import encode_batch
from shmbroker.records.end_marker import EndMarker, encode_marker
from shmbroker.wire.error_codes import KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER

LEADER = 1
EPOCH = 3
PRODUCER = 0
"""The least producer id there is."""


def batch(base_offset: int, count: int = 1, **more: Any) -> bytearray:
    """As the leader of this epoch has it."""
    records = [(1, None, b"%d" % n, ()) for n in range(count)]
    return bytearray(encode_batch(records, base_offset=base_offset, leader_epoch=EPOCH, **more))


def patched(at: int, form: str, value: int, change: int = 0) -> bytearray:
    """A batch of offset 0 with another number at a position."""
    made = batch(0)
    (was,) = struct.unpack_from(form, made, at)
    struct.pack_into(form, made, at, value or was + change)
    return made


@pytest.fixture
def follower(nodes: Any) -> Any:
    """Follows broker 1, and has asked it once."""
    node = nodes[1]
    node.lead(LEADER, EPOCH)
    node.fetcher.send_all()
    return node


def answer(
    node: Any, data: Iterable[bytes] = (), *, high: int = 0, start: int = 0, epoch: int = EPOCH,
    length: int = 0, file_id: int = 0, position: int = 0, error: int = 0,
) -> None:  # fmt: skip
    """Take a READ_DONE with one slice, in the entry or in a file."""
    link = node.fetcher.links[LEADER]
    inline = b"".join(data)
    row = READ_SLICE.pack(
        error, 0, length or len(inline), high, high, start, file_id, position, -1, epoch, -1
    )
    head = READ_DONE_HEAD.pack(link.token, 1, 0)
    node.fetcher.on_read_done(node.peers[LEADER], memoryview(head + row + inline), 0)


def end(node: Any) -> int:
    offset: int = node.partition.log.log_end_offset
    return offset


def of_a_later_epoch(base_offset: int) -> bytes:
    """As the next leader has it."""
    return bytes(
        encode_batch([(1, None, b"x", ())], base_offset=base_offset, leader_epoch=EPOCH + 1)
    )


def due_ms(node: Any) -> int | None:
    """How long it rests until it asks again; None: it does not rest."""
    due = node.fetcher.retries.next_ms
    return None if due is None else due - node.now


@pytest.mark.parametrize(
    ("data", "end_offset", "why"),
    [
        ([batch(0, 2), batch(2)], 3, None),
        ([batch(0), batch(0), batch(1)], 2, None),  # read twice
        ([batch(0)[:-1]], 0, "no whole batch"),
        ([batch(0), batch(1)[:60]], 1, "middle of a batch"),
        ([patched(16, ">b", 1)], 0, "no whole batch"),  # magic
        ([patched(8, ">i", 48)], 0, "no whole batch"),
        ([patched(8, ">i", 0, change=1)], 0, "no whole batch"),
        ([patched(17, ">I", 0, change=1)], 0, "damaged"),
        ([batch(0), patched(61, ">b", 0, change=1)], 1, "damaged"),
        ([batch(0), of_a_later_epoch(1)], 1, "a later leader epoch"),
        ([batch(0, 2), batch(1, 3)], 2, "offset 1 is here already"),
    ],
)  # fmt: skip
def test_whole_batches_that_go_on_where_the_log_ends_are_taken(
    follower: Any, caplog: Any, data: list[bytes], end_offset: int, why: str | None
) -> None:
    answer(follower, data, high=9)
    assert end(follower) == end_offset
    assert (follower.partition in follower.appended) is (end_offset > 0)
    is_taken = why is None
    assert follower.partition.high_watermark == (end_offset if is_taken else 0)
    assert due_ms(follower) == (None if is_taken else STORAGE_RETRY_MS)
    (row,) = follower.fetcher.rows.values()
    assert (row in row.link.changed) is row.is_compared is is_taken
    assert [(why or "") in record.message for record in caplog.records] == [True] * (not is_taken)
    if is_taken:
        assert follower.fetcher.copied_bytes == sum(map(len, data))


def test_producers_and_their_transactions_are_taken_with_the_batches(follower: Any) -> None:
    said = {"producer_id": PRODUCER, "producer_epoch": 0}
    marker = bytearray(encode_marker(EndMarker(PRODUCER, 0, True, 0), 1))
    struct.pack_into(">q", marker, 0, 4)
    producers = follower.partition.producers
    answer(follower, [batch(0, 2, base_sequence=0, **said)])
    assert not producers.open
    answer(follower, [batch(2, 2, base_sequence=2, is_transactional=True, **said)])
    assert producers.open == {PRODUCER: 2}
    answer(follower, [marker])
    assert end(follower) == 5 and not producers.open


@pytest.mark.parametrize(
    ("high", "start", "begins_at"),
    [(3, 2, 2), (2, 3, 2), (0, 2, 0)],
)
def test_a_log_begins_where_the_leaders_does_but_not_above_what_is_committed(
    follower: Any, high: int, start: int, begins_at: int
) -> None:
    answer(follower, [batch(0), batch(1), batch(2)], high=high, start=start)
    assert follower.partition.log.log_start_offset == begins_at


def test_nothing_of_another_epoch_is_taken(follower: Any) -> None:
    answer(follower, [batch(0)], epoch=EPOCH + 1)
    assert end(follower) == 0 and due_ms(follower) == RETRY_MS


@pytest.mark.parametrize(
    ("error", "due"),
    [(KAFKA_STORAGE_ERROR, STORAGE_RETRY_MS), (NOT_LEADER_OR_FOLLOWER, RETRY_MS)],
)
def test_a_leader_whose_disk_refuses_is_asked_as_seldom_as_ones_own(
    follower: Any, error: int, due: int
) -> None:
    answer(follower, error=error)
    assert due_ms(follower) == due


def test_an_answer_that_comes_after_the_lead_or_the_disk_is_lost_changes_nothing(
    follower: Any,
) -> None:
    for name in ("is_leader", "is_offline"):
        setattr(follower.partition, name, True)
        answer(follower, [batch(0)], high=1)
        assert end(follower) == 0 and due_ms(follower) is None
        setattr(follower.partition, name, False)


def test_a_slice_of_a_file_is_read_once_its_descriptor_is_here(
    follower: Any, tmp_path: Any
) -> None:
    """Also one that is larger than any before."""
    large = bytearray(encode_batch([(1, None, bytes(SCRATCH_BYTES), ())], leader_epoch=EPOCH))
    path = tmp_path / "leader.log"
    path.write_bytes(bytes(7) + large)
    slice_ = {"length": len(large), "file_id": 5, "position": 7}
    answer(follower, **slice_)
    assert follower.peers[LEADER].entries[-1] == (NEED_FILE, TOKEN.pack(5))
    assert end(follower) == 0 and due_ms(follower) == RETRY_MS
    fd = os.open(path, os.O_RDONLY)
    follower.files[LEADER].passed[5] = OpenFile(fd)
    answer(follower, **slice_ | {"position": 8})
    assert end(follower) == 0, "the file ends before the slice does"
    rest = follower.fetcher.retries.waiting[-1][0] - follower.now
    assert rest == RETRY_MS, "as one whose descriptor is not here: it is not damaged"
    answer(follower, **slice_)
    assert end(follower) == 1


def test_the_next_read_waits_for_the_answer_unless_something_has_changed(follower: Any) -> None:
    sent = follower.peers[LEADER].entries
    link = follower.fetcher.links[LEADER]
    first = link.token
    follower.fetcher.send_all()
    assert len(sent) == 1 and first
    answer(follower)
    assert link.token == 0
    follower.fetcher.send_all()
    second = link.token
    assert len(sent) == 2 and second > first
    link.changed[follower.fetcher.rows[KEY]] = None
    follower.fetcher.send_all()
    third = link.token
    assert third > second
    head = READ_DONE_HEAD.pack(second, 0, 0)
    follower.fetcher.on_read_done(follower.peers[LEADER], memoryview(head), 0)
    assert link.token == third, "the other one is under way yet"


@pytest.mark.parametrize("is_followed", [True, False])
def test_what_a_disk_has_to_have_first_is_flushed_once_and_told_then(
    nodes: Any, is_followed: bool
) -> None:
    follower = nodes[1]
    fetcher = follower.fetcher
    follower.partition.is_fsync = True
    flushes: list[Any] = []
    fetcher._flush = lambda _logs, on_done: flushes.append(on_done)
    follower.lead(LEADER, EPOCH)
    fetcher.send_all()
    answer(follower, [batch(0)])
    for _ in range(2):
        fetcher.send_all()
    (on_done,) = flushes
    link = fetcher.links[LEADER]
    assert not link.changed
    told = [fetcher.rows[KEY]] if is_followed else []
    if not is_followed:
        fetcher.unfollow(KEY)
    on_done(None)
    assert list(link.changed) == told


@pytest.mark.parametrize("count", [1, ROWS_LOOKED_AT_MAX, ROWS_LOOKED_AT_MAX + 1])
@pytest.mark.parametrize("is_worth_one", [False, True])
def test_the_leader_is_rung_where_a_row_is_worth_it_or_there_are_too_many_to_look_at(
    follower: Any, count: int, is_worth_one: bool
) -> None:
    link, peer = follower.fetcher.links[LEADER], follower.peers[LEADER]
    looked_at = []
    follower.fetcher._is_worth_a_ring = lambda one: looked_at.append(one) or is_worth_one
    rows = [follower.fetcher.rows[KEY], *(link.add(follower.partition) for _ in range(count - 1))]
    for row in rows:
        row.is_compared, row.told_start = True, 0
        link.changed[row] = None
    publications = []
    peer.writer.publish = lambda: publications.append(len(looked_at))
    peer.outbox.clear()
    follower.fetcher.send_all()
    is_few = count <= ROWS_LOOKED_AT_MAX
    assert publications == ([0] if is_few else []), "before it looks"
    assert bool(looked_at) is is_few
    assert (peer in peer.outbox) is (is_worth_one or not is_few)
