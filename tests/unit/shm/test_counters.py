"""The counters region: nothing overlaps, and a tool sees what the family stored."""

import pytest

from shmbroker.errors import ConfigFault
from shmbroker.shm import counters as layout
from shmbroker.shm.counters import COUNTERS, GAUGES, Counters, Tally, layout_size

SLOTS = 5
FIELDS = (
    layout.PID,
    layout.STARTED_MS,
    layout.INCARNATION,
    layout.DOORBELL,
    layout.LIVENESS_NS,
    layout.STATE,
    layout.OPEN_CONNECTIONS,
    layout.METADATA_APPLIED,
)


@pytest.fixture
def view():
    return memoryview(bytearray(layout_size(SLOTS)))


def test_every_word_has_one_place(view):
    counters = Counters(view, SLOTS)
    indexes = [
        layout.MAGIC_WORD,
        layout.SLOTS_WORD,
        layout.COUNTERS_WORD,
        layout.ANNOUNCEMENTS_WORD,
        layout.METADATA_LEADER_WORD,
        layout.METADATA_END_OFFSET_WORD,
    ]
    for slot in range(SLOTS):
        indexes += [counters.at(slot, field) for field in FIELDS]
        indexes += [counters.counter(slot, name) for name, _ in COUNTERS + GAUGES]
        indexes += [counters.acknowledgement(slot, peer) for peer in range(SLOTS)]
    assert len(set(indexes)) == len(indexes)
    assert max(indexes) == len(counters.words) - 1


def test_counter_names_are_words_with_a_meaning():
    both = COUNTERS + GAUGES
    assert len({name for name, _ in both}) == len(both)
    assert all(name.isidentifier() and meaning for name, meaning in both)


def test_tally_adds_what_has_grown_and_a_successor_goes_on(view):
    counters = Counters(view, SLOTS)
    turns = counters.counter(2, "turns")
    tally = Tally(counters, 2)
    for total in (5, 5, 9):
        tally.show("turns", total)
    assert counters.words[turns] == 9
    Tally(counters, 2).show("turns", 3)
    assert counters.words[turns] == 12
    tally.set("boot_ms", -4)
    assert counters.words[counters.counter(2, "boot_ms")] == 0


def test_a_tool_sees_what_was_stored(view):
    counters = Counters(view, SLOTS)
    index = counters.counter(3, "turns")
    counters.words[index] += 2
    counters.words[counters.counter(1, "turns")] += 5
    tool = Counters.attach(view.toreadonly())
    assert tool.slots == SLOTS
    assert tool.words[tool.counter(3, "turns")] == 2
    assert tool.totals()["turns"] == 7
    assert tool.totals()["flushes"] == 0


def test_a_region_of_another_version_is_refused(view):
    with pytest.raises(ConfigFault, match="another version"):
        Counters.attach(view)
    Counters(view, SLOTS)
    with pytest.raises(ConfigFault, match="another version"):
        Counters.attach(view[:-8])
    Counters.attach(view).words[layout.COUNTERS_WORD] += 1
    with pytest.raises(ConfigFault, match="another version"):
        Counters.attach(view)


def test_the_metadata_leader_is_one_word(view):
    counters = Counters(view, SLOTS)
    assert counters.metadata_leader() == (0, 0, False)
    counters.store_metadata_leader(7, 3)
    assert counters.metadata_leader() == (7, 3, True)
    counters.store_metadata_leader(7, 3, is_active=False)
    assert counters.metadata_leader() == (7, 3, False)


def test_a_slot_or_counter_that_is_not_there_is_refused(view):
    counters = Counters(view, SLOTS)
    with pytest.raises(AssertionError):
        counters.at(SLOTS, layout.PID)
    with pytest.raises(AssertionError):
        counters.acknowledgement(0, -1)
    with pytest.raises(KeyError):
        counters.counter(0, "turn")
