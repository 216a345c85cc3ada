"""What a leader makes of the rows that a follower asks with: which it refuses, what it knows of the
follower then, and whom it answers at once."""

import pytest
from three_brokers import KEY, settle

from shmbroker.broker.replication import follower_reads
from shmbroker.broker.replication.follower_reads import (
    HIGH_WATERMARK_DELAY_MS,
    INLINE_SLICE_BYTES,
    LOOK_AGAIN_MS,
    LOOK_AGAIN_MS_MAX,
)
from shmbroker.ipc.operation_layout import (
    READ,
    READ_DONE,
    READ_DONE_HEAD,
    READ_FLAG_FOLLOWER,
    READ_FLAG_NEW,
    READ_HEAD,
    READ_PARTITION,
    READ_SLICE,
)
from shmbroker.wire import error_codes

FOLLOWER = 2
NONE_KNOWN = bytes(20)


def ask(leader, *, flags=0, key=KEY, epoch=1, last_epoch=1, offset=0, high=0, start=0, which=0):
    """One READ of one row."""
    row = READ_PARTITION.pack(key, which, epoch, last_epoch, offset, high, start)
    head = READ_HEAD.pack(7, 0, 0, 0, 0, flags | READ_FLAG_FOLLOWER, 1, 0)
    leader.reads.on_read(leader.peers[FOLLOWER], memoryview(head + row), 0)


def told(leader):
    """What the follower is answered: (error, length, epoch and offset where the logs part)."""
    leader.reads.answer_all()
    entries, found = leader.peers[FOLLOWER].entries, []
    while entries:
        operation, payload = entries.popleft()
        if operation == READ_DONE:
            _, count, _ = READ_DONE_HEAD.unpack_from(payload)
            for place in range(count):
                at = READ_DONE_HEAD.size + place * READ_SLICE.size
                row = READ_SLICE.unpack_from(payload, at)
                found.append((row[0], row[2] > 0, row[8], row[10]))
        else:
            assert operation != READ
    return found


@pytest.fixture
def leader(nodes):
    """Of epochs 1 (offsets 0 to 2) and 3 (3 and 4); nobody has been heard of."""
    node = nodes[0]
    for epoch, values in ((1, (b"a", b"b", b"c")), (3, (b"d", b"e"))):
        node.lead(1, epoch)
        for value in values:
            node.append(value)
    node.peers[FOLLOWER].entries.clear()
    return node


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"key": NONE_KNOWN}, error_codes.NOT_LEADER_OR_FOLLOWER),
        ({"epoch": 2}, error_codes.FENCED_LEADER_EPOCH),
        ({"epoch": 4}, error_codes.UNKNOWN_LEADER_EPOCH),
        ({"offset": 6, "last_epoch": -1}, error_codes.OFFSET_OUT_OF_RANGE),
    ],
)
def test_a_row_that_can_not_be_served_is_refused_and_says_nothing_of_the_follower(
    leader, row, error
):
    ask(leader, **({"flags": READ_FLAG_NEW, "epoch": 3, "offset": 5, "last_epoch": 3} | row))
    ((code, has_bytes, _, _),) = told(leader)
    assert (code, has_bytes) == (error, False)
    assert leader.partition.high_watermark == 0
    assert leader.partition.followers[FOLLOWER].log_end_offset < 0


def test_who_does_not_lead_refuses(leader):
    leader.lead(2, 4)
    ask(leader, flags=READ_FLAG_NEW, epoch=4, last_epoch=3, offset=5)
    ((code, has_bytes, _, _),) = told(leader)
    assert code == error_codes.NOT_LEADER_OR_FOLLOWER and not has_bytes


@pytest.mark.parametrize(
    ("last_epoch", "offset", "parts_at"),
    [
        (1, 3, None),
        (1, 2, None),
        (3, 5, None),
        (3, 4, None),
        (1, 4, (1, 3)),  # it has more of epoch 1 than is here
        (2, 4, (1, 3)),  # an epoch that is not here
        (2, 3, (1, 3)),
        (2, 2, (1, 3)),
    ],
)
def test_a_log_that_parts_from_this_one_is_told_where_and_is_not_counted(
    leader, last_epoch, offset, parts_at
):
    ask(leader, flags=READ_FLAG_NEW, epoch=3, last_epoch=last_epoch, offset=offset)
    answers = told(leader)
    if parts_at is not None:
        assert answers == [(0, False, *parts_at)]
        assert leader.partition.followers[FOLLOWER].log_end_offset < 0
    else:
        assert leader.partition.followers[FOLLOWER].log_end_offset == offset
        assert answers == ([] if offset == 5 else [(0, True, -1, -1)])


def test_a_late_row_takes_nothing_back_of_what_a_follower_has(leader):
    ask(leader, flags=READ_FLAG_NEW, epoch=3, last_epoch=3, offset=5)
    ask(leader, epoch=3, last_epoch=1, offset=2)
    assert leader.partition.followers[FOLLOWER].log_end_offset == 5


def test_who_has_all_is_caught_up_and_who_lacks_something_is_not(leader):
    follower = leader.partition.followers[FOLLOWER]
    leader.now += 500
    ask(leader, flags=READ_FLAG_NEW, epoch=3, last_epoch=3, offset=4)
    assert follower.caught_up_ms < leader.now
    ask(leader, epoch=3, last_epoch=3, offset=5)
    assert follower.caught_up_ms == leader.now


@pytest.mark.parametrize("is_pending", [False, True])
def test_who_has_all_may_join_unless_it_is_in_sync_or_a_change_is_under_way(nodes, is_pending):
    leader = nodes[0]
    leader.lead(1, 1, in_sync=(1,))
    leader.append(b"a")
    if is_pending:
        leader.partition.pending_in_sync = (1, 2)
    ask(leader, flags=READ_FLAG_NEW, last_epoch=-1, offset=0)
    assert leader.reads.may_join == set(), "it lacks what the others have"
    ask(leader, offset=1)
    assert leader.reads.may_join == (set() if is_pending else {leader.partition})


def test_who_is_in_sync_joins_nothing(leader):
    ask(leader, flags=READ_FLAG_NEW, epoch=3, last_epoch=3, offset=5)
    assert leader.reads.may_join == set()


def test_a_follower_that_begins_anew_has_only_the_rows_that_it_names(leader):
    """Its process was replaced: what the one before has asked for is not answered."""
    ask(leader, flags=READ_FLAG_NEW, epoch=3, last_epoch=1, offset=2, which=5)
    ask(leader, flags=READ_FLAG_NEW, epoch=3, last_epoch=1, offset=2, which=6)
    session = leader.reads.sessions[FOLLOWER]
    assert list(session.rows) == [6]
    assert [row.which for row in leader.partition.followed_rows] == [6]
    assert len(told(leader)) == 1


def test_a_row_that_is_named_no_more_is_answered_no_more(leader):
    ask(leader, flags=READ_FLAG_NEW, epoch=3, last_epoch=3, offset=5)
    ask(leader, offset=-1)
    leader.append(b"f")
    assert told(leader) == []
    assert leader.partition.followed_rows == []
    assert leader.reads.sessions[FOLLOWER].rows == {}


def test_who_waits_is_answered_once_for_an_append(leader):
    ask(leader, flags=READ_FLAG_NEW, epoch=3, last_epoch=3, offset=5)
    assert told(leader) == []
    leader.append(b"f")
    assert told(leader) == [(0, True, -1, -1)]
    leader.append(b"g")
    assert told(leader) == [], "it has not asked for more"


def test_a_leader_that_is_one_no_more_says_so_to_who_waits(nodes):
    leader = nodes[0]
    for node in nodes:
        node.lead(1, 1)
    settle(nodes)
    leader.lead(2, 2)
    ((code, has_bytes, _, _),) = told(leader)
    assert code == error_codes.NOT_LEADER_OR_FOLLOWER and not has_bytes
    assert told(leader) == []


def session_of(leader):
    return leader.reads.sessions[FOLLOWER]


@pytest.mark.parametrize(
    ("known", "is_behind"),
    [({}, False), ({"high": 1}, True), ({"start": 3}, True)],
)
def test_a_high_watermark_or_a_start_that_it_does_not_know_is_told_alone_a_while_later(
    leader, known, is_behind
):
    ask(leader, flags=READ_FLAG_NEW, epoch=3, last_epoch=3, offset=5, **known)
    due_ms = leader.now + HIGH_WATERMARK_DELAY_MS
    assert leader.reads.next_ms == (due_ms if is_behind else None)
    leader.now = due_ms - 1
    assert told(leader) == []
    leader.now = due_ms
    assert told(leader) == ([(0, False, -1, -1)] if is_behind else [])
    ask(leader, epoch=3, last_epoch=3, offset=5)
    leader.now += HIGH_WATERMARK_DELAY_MS
    assert told(leader) == [] and leader.reads.next_ms is None


def test_high_watermarks_that_an_answer_has_no_room_for_are_told_with_the_next(leader):
    leader.peers[FOLLOWER].writer.payload_bytes_max = 64 + READ_SLICE.size
    for which in (0, 1):
        new = 0 if which else READ_FLAG_NEW
        ask(leader, flags=new, epoch=3, last_epoch=3, offset=5, high=1, which=which)
    for _ in range(2):
        leader.now = leader.reads.next_ms
        assert told(leader) == [(0, False, -1, -1)]
        ask(leader, epoch=3, last_epoch=3, offset=5, which=2)
    leader.now += HIGH_WATERMARK_DELAY_MS
    assert told(leader) == [] and leader.reads.next_ms is None


def test_a_start_that_was_raised_is_told_at_once(leader):
    ask(leader, flags=READ_FLAG_NEW, epoch=3, last_epoch=3, offset=5)
    for is_told in (True, False):
        leader.partition.log.log_start_offset += 1
        leader.reads.on_log_start(leader.partition)
        assert session_of(leader).ready
        assert told(leader) == [(0, False, -1, -1)] * is_told, "each READ is answered once"


def test_what_came_after_an_answer_waits_for_the_next_read(leader):
    ask(leader, flags=READ_FLAG_NEW, epoch=3, last_epoch=3, offset=5)
    follower = leader.partition.followers[FOLLOWER]
    leader.now += 500
    leader.reads.on_appended(leader.partition)
    assert follower.caught_up_ms < leader.now and told(leader) == [], "it was refused"
    leader.append(b"f")
    assert follower.caught_up_ms == leader.now, "it had all until now"
    assert len(told(leader)) == 1
    leader.append(b"g")
    leader.reads.on_high_watermark(leader.partition)
    leader.reads.on_log_start(leader.partition)
    session = session_of(leader)
    assert not session.ready and not session.behind_since_ms


def test_a_read_that_may_have_come_without_a_ring_is_looked_for_for_a_while(leader):
    ask(leader, flags=READ_FLAG_NEW, epoch=3, last_epoch=3, offset=4, which=0)
    assert leader.reads.next_ms is None, "there is one: it is answered in this turn"
    assert len(told(leader)) == 1
    assert leader.reads.next_ms is None, "nothing is to be said"
    session = session_of(leader)
    session.ready[session.rows[0]] = None
    assert leader.reads.next_ms == leader.now + LOOK_AGAIN_MS
    leader.now += LOOK_AGAIN_MS_MAX - 1
    assert leader.reads.next_ms == leader.now + LOOK_AGAIN_MS
    leader.now += 1
    assert leader.reads.next_ms is None


def test_a_row_of_another_partition_is_none_of_the_first(leader):
    ask(leader, flags=READ_FLAG_NEW, epoch=3, last_epoch=3, offset=5)
    ask(leader, key=NONE_KNOWN, epoch=3, offset=5)
    assert leader.partition.followed_rows == []
    ask(leader, epoch=3, last_epoch=3, offset=5)
    assert len(leader.partition.followed_rows) == 1


def test_of_a_partition_that_is_deleted_nothing_is_left(leader):
    ask(leader, flags=READ_FLAG_NEW, epoch=3, last_epoch=3, offset=4)
    (row,) = leader.partition.followed_rows
    leader.reads.held[row] = None
    leader.reads.on_deleted(leader.partition)
    session = session_of(leader)
    assert not (session.rows or session.ready or leader.partition.followed_rows)
    assert not leader.reads.held and row.partition is None
    assert told(leader) == []


def test_who_waits_is_told_nothing_where_the_lead_stays(leader):
    ask(leader, flags=READ_FLAG_NEW, epoch=3, last_epoch=3, offset=5)
    leader.lead(1, 3, in_sync=(1, 2))
    assert told(leader) == []
    leader.append(b"f")
    assert told(leader) == [(0, True, -1, -1)]


def test_what_an_answer_has_no_room_for_is_in_the_next(leader, monkeypatch):
    size = leader.partition.log.size_bytes // 5
    monkeypatch.setattr(follower_reads, "ANSWER_BYTES_MAX", size + 1)
    for which in (1, 2):
        ask(leader, flags=which % 2 and READ_FLAG_NEW, epoch=3, last_epoch=-1, which=which)
    assert told(leader) == [(0, True, -1, -1)]
    assert [row.which for row in session_of(leader).ready] == [2]
    ask(leader, epoch=3, last_epoch=3, offset=5, which=3)
    assert told(leader) == [(0, True, -1, -1)]
    assert not session_of(leader).ready


@pytest.mark.parametrize(
    ("value_bytes", "is_in_a_file"),
    [(100, False), (INLINE_SLICE_BYTES - 100, False), (INLINE_SLICE_BYTES, True)],
)
def test_few_bytes_come_in_the_answer_and_many_in_a_file(leader, value_bytes, is_in_a_file):
    ask(leader, flags=READ_FLAG_NEW, epoch=3, last_epoch=3, offset=5)
    leader.append(bytes(value_bytes))
    leader.reads.answer_all()
    ((_, payload),) = leader.peers[FOLLOWER].entries
    row = READ_SLICE.unpack_from(payload, READ_DONE_HEAD.size)
    length, file_id = row[2], row[6]
    assert bool(file_id) is is_in_a_file
    inline = len(payload) - READ_DONE_HEAD.size - READ_SLICE.size
    assert inline == (0 if is_in_a_file else length)


def test_what_has_no_room_beside_the_rows_comes_in_a_file(leader):
    ask(leader, flags=READ_FLAG_NEW, epoch=3, last_epoch=3, offset=5)
    leader.append(bytes(200))
    ask(leader, epoch=3, last_epoch=3, offset=5, which=1)
    most = leader.peers[FOLLOWER].writer.payload_bytes_max = 800
    leader.reads.answer_all()
    ((_, payload),) = leader.peers[FOLLOWER].entries
    rows = [
        READ_SLICE.unpack_from(payload, READ_DONE_HEAD.size + READ_SLICE.size * at) for at in (0, 1)
    ]
    assert [row[6] > 0 for row in rows] == [False, True]
    assert len(payload) <= most


def test_an_answer_has_no_more_bytes_than_it_may(leader, monkeypatch):
    size = leader.partition.log.size_bytes // 5
    monkeypatch.setattr(follower_reads, "ANSWER_BYTES_MAX", 3 * size)
    ask(leader, flags=READ_FLAG_NEW, epoch=3, last_epoch=1, offset=3)
    ask(leader, epoch=3, last_epoch=-1, offset=0, which=1)
    leader.reads.answer_all()
    ((_, payload),) = leader.peers[FOLLOWER].entries
    places = [READ_DONE_HEAD.size + READ_SLICE.size * at for at in (0, 1)]
    assert [READ_SLICE.unpack_from(payload, place)[2] for place in places] == [2 * size, size]
