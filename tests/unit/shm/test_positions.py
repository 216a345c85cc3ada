"""The position table: slots, successors, and a kill at every store."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmbroker.ids import partition_key
from shmbroker.shm.positions import PositionSlot, PositionTable, SiblingPositions, table_bytes

KEYS = [partition_key(bytes([number]) * 16, number) for number in range(1, 10)]


class Killed(BaseException):
    """The worker is gone, and what it stored stays."""


class Deadly:
    """Words that kill whoever stores once too often."""

    def __init__(self, words, stores_left):
        self.words = words
        self.obj = words.obj
        self.stores_left = stores_left

    def __getitem__(self, index):
        return self.words[index]

    def __setitem__(self, index, value):
        if not self.stores_left:
            raise Killed
        self.stores_left -= 1
        self.words[index] = value


def make_table(entries=4):
    return PositionTable(memoryview(bytearray(table_bytes(entries))), entries)


def memory_of(table):
    """What every process sees of it."""
    return memoryview(table.words.obj)


def successor_of(table):
    return PositionTable(memory_of(table), table.entries)


def test_what_was_stored_last_is_loaded_by_a_successor():
    table = make_table()
    slot = table.allocate(KEYS[0])
    assert table.load(slot) is None
    position = PositionSlot(table, slot)
    for number in range(5):
        position.store(number, 2**40 + number, 2**62 + number)
        assert table.load(slot) == (number, 2**40 + number, 2**62 + number)
    successor = successor_of(table)
    assert successor.find(KEYS[0]) == slot
    assert successor.load(slot) == (4, 2**40 + 4, 2**62 + 4)
    PositionSlot(successor, slot).store(5, 6, 7)
    assert successor.load(slot) == table.load(slot) == (5, 6, 7)


def test_a_full_table_has_no_slot_until_one_is_freed():
    table = make_table(entries=2)
    slots = [table.allocate(key) for key in KEYS[:2]]
    assert slots == [0, 1]
    assert table.allocate(KEYS[2]) is None
    table.store(0, 1, 2, 3)
    table.free(0)
    assert table.find(KEYS[0]) is None
    assert table.allocate(KEYS[2]) == 0
    assert table.load(0) is None  # nothing of the partition before
    assert table.allocate(KEYS[3]) is None


def keys_of(table):
    """The partitions that have a slot, of those in KEYS."""
    return {key for key in KEYS if table.find(key) is not None}


def test_partitions_of_a_topic_are_told_apart():
    table = make_table()
    topic_id = b"\xff" * 16
    keys = [partition_key(topic_id, number) for number in (0, 1, 2**31 - 1)]
    slots = [table.allocate(key) for key in keys]
    assert len(set(slots)) == 3
    successor = successor_of(table)
    assert [successor.find(key) for key in keys] == slots


@pytest.mark.parametrize("stores_before", range(4))
def test_a_kill_at_any_store_leaves_the_old_or_the_new_position(stores_before):
    old = (0, 100, 10) if stores_before else None
    seen = set()
    for stores in range(20):
        table = make_table()
        slot = table.allocate(KEYS[0])
        for number in range(stores_before):
            table.store(slot, *((9, 9, 9) if number < stores_before - 1 else old))
        table.words = Deadly(table.words, stores)
        position = PositionSlot(table, slot)
        try:
            position.store(1 << 40, 200, 20)
            was_killed = False
        except Killed:
            was_killed = True
        loaded = successor_of(table).load(slot)
        assert loaded == old if was_killed else loaded == (1 << 40, 200, 20)
        seen.add(loaded)
        if not was_killed:
            break
    assert seen == {old, (1 << 40, 200, 20)}


@pytest.mark.parametrize("from_freed", [False, True])
def test_a_kill_at_any_store_of_an_allocation_leaves_no_half_of_it(from_freed):
    for stores in range(20):
        table = make_table()
        table.allocate(KEYS[0])
        table.store(0, 1, 2, 3)
        if from_freed:
            table.free(table.allocate(KEYS[1]))
        table.words = Deadly(table.words, stores)
        try:
            slot = table.allocate(KEYS[2])
        except Killed:
            successor = successor_of(table)
            assert keys_of(successor) == {KEYS[0]}
            assert successor.load(0) == (1, 2, 3)
            slot = successor.allocate(KEYS[3])
            assert slot != 0 and successor.load(slot) is None
            assert len({successor.allocate(key) for key in KEYS[4:6]} - {None}) >= 1
        else:
            assert successor_of(table).find(KEYS[2]) == slot
            assert stores > 1
            return
    raise AssertionError("never ended")


@given(
    st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from("asf"), st.integers(0, 2**63 - 1)))
)
def test_a_table_behaves_as_a_dict(steps):
    table, model = make_table(4), {}
    for key, step, number in steps:
        slot = table.find(key)
        assert (slot is not None) == (key in model)
        if step == "a" and slot is None:
            if table.allocate(key) is None:
                assert len(model) == 4
            else:
                model[key] = None
        elif step == "s" and slot is not None:
            model[key] = (number, number, number)
            table.store(slot, *model[key])
        elif step == "f" and slot is not None:
            table.free(slot)
            del model[key]
        successor = successor_of(table)
        keys = keys_of(successor)
        assert {key: successor.load(successor.find(key)) for key in keys} == model


def test_a_sibling_finds_entries_wherever_they_are_now():
    table = make_table()
    sibling = SiblingPositions(memory_of(table))
    assert sibling.end_offset(KEYS[0]) is None
    first, second = table.allocate(KEYS[0]), table.allocate(KEYS[1])
    PositionSlot(table, first).store(0, 0, 5)
    PositionSlot(table, second).store(0, 0, 6)
    PositionSlot(table, second).store_high_watermark(4)
    assert sibling.end_offset(KEYS[0]) is None  # not looked for again at each question
    sibling.may_look_again()
    assert (sibling.end_offset(KEYS[0]), sibling.end_offset(KEYS[1])) == (5, 6)
    assert sibling.high_watermark(KEYS[1]) == 4
    table.free(first)
    third = table.allocate(KEYS[2])
    assert third == first
    PositionSlot(table, third).store(0, 0, 7)
    # Another partition lies there now: neither its end nor an old one is told.
    assert sibling.end_offset(KEYS[0]) is None
    assert (sibling.end_offset(KEYS[1]), sibling.end_offset(KEYS[2])) == (6, 7)
