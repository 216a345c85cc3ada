"""Lag over time, and events: what is noted, and that it is bounded."""

from dataclasses import replace

from shmbroker.console.history import EVENTS_MAX, GROUPS_MAX, LAGS_MAX, Events, LagHistory
from shmbroker.metadata.image import MetadataImage, PartitionImage, TopicImage
from shmbroker.observe.snapshot import Group, Groups, Lag, Snapshot
from shmbroker.shm.counters import INCARNATION, STATE, STATE_UNABLE
from tests.unit.observe import families


def asked(at_s: float, *lags: tuple[str, int], age_s: float = 0.0) -> Snapshot:
    groups = [
        Group(name, "classic", "empty", 0, 1, [Lag("t", 0, 0, behind)]) for name, behind in lags
    ]
    found = families.snapshot(families.family(), groups=Groups(age_s, 0, groups))
    return replace(found, monotonic_s=at_s, at_ms=round(at_s * 1000))


def test_lag_is_noted_once_for_each_time_that_it_was_asked() -> None:
    history = LagHistory()
    history.note(asked(100.0, ("g", 5)))
    history.note(asked(103.0, ("g", 6), age_s=3.0))  # the same answer, looked at again
    history.note(asked(110.0, ("g", 7)))
    assert history.of("g") == [(100_000, 5), (110_000, 7)]
    assert history.of("nobody") == []


def test_history_is_bounded() -> None:
    history = LagHistory()
    for turn in range(LAGS_MAX + 10):
        history.note(asked(10.0 * turn, ("g", turn)))
    assert len(history.of("g")) == LAGS_MAX
    for turn in range(5):
        names = [(f"g{turn}-{number}", 1) for number in range(GROUPS_MAX)]
        history.note(asked(1e6 + 10.0 * turn, *names))
    known = sum(bool(history.of(f"g{t}-{n}")) for t in range(5) for n in range(GROUPS_MAX))
    assert GROUPS_MAX <= known <= 2 * GROUPS_MAX


def whats(events: Events) -> list[tuple[str, str]]:
    return [(str(each["level"]), str(each["what"])) for each in events.events]


def test_deaths_states_and_faults_of_processes_are_events() -> None:
    family = families.family()
    events = Events()

    def see() -> None:
        events.see_processes(5, list(families.snapshot(family).processes))

    see()
    assert whats(events) == [], "what was before is no event"
    families.store(family, "io-worker-1", INCARNATION, 2)
    see()
    families.store(family, "io-worker-2", STATE, STATE_UNABLE)
    counters = family.counters
    counters.words[counters.counter(families.slot_of(family, "io-worker-1"), "log_damage")] = 2
    see()
    see()
    assert whats(events) == [
        ("error", "io-worker-1 has died and is replaced"),
        ("error", "io-worker-1: 2 places of logs are damaged, missing or impossible"),
        ("error", "io-worker-2 is unable, it was running"),
    ]


def partition(leader: int, *in_sync: int) -> PartitionImage:
    return PartitionImage(0, (1, 2), in_sync, leader, 1, 1, ())


def image(**topics: PartitionImage) -> MetadataImage:
    made = families.image()
    made.offset = 10
    for name, row in topics.items():
        topic = TopicImage(name, name.encode().ljust(16), (row,))
        made.topics_by_name[name] = topic
    return made


def test_what_becomes_of_partitions_is_an_event() -> None:
    events = Events()
    events.see_image(1, image(t=partition(1, 1, 2)))
    events.see_image(2, image(t=partition(-1, 2), u=partition(1, 1, 2)))
    events.see_image(3, image(t=partition(2, 1, 2)))
    assert whats(events) == [
        ("error", "t-0 has no leader, it was 1"),
        ("warning", "t-0: 1 left the in-sync replicas"),
        ("info", "topic u is made, of 1 partitions"),
        ("info", "t-0 has leader 2, it was -1"),
        ("info", "t-0: 1 joined the in-sync replicas"),
        ("info", "topic u is deleted"),
    ]


def test_events_are_bounded() -> None:
    events = Events()
    for at in range(EVENTS_MAX + 5):
        events.put(at, "info", "x")
    assert len(events.events) == EVENTS_MAX and events.events[0]["at_ms"] == 5
