"""Memory for frames that are still arriving: who gets it, who pays, who waits."""

from hypothesis import given
from hypothesis import strategies as st

from shmbroker.gateway.arriving import (
    FAST_BYTES_PER_S,
    GRACE_S,
    HELD_GRACE_S,
    LOOK_AGAIN_S,
    ArrivingMemory,
    Sender,
    first_room,
    next_room,
    pages,
)

KIB, MIB = 1 << 10, 1 << 20
READING = 256 * KIB
BOUND = 24 * MIB
NOW = 1000.0


def memory_of(*senders: Sender) -> ArrivingMemory[Sender]:
    memory: ArrivingMemory[Sender] = ArrivingMemory(BOUND, READING)
    for sender in senders:
        memory.hold(sender, sender.room or pages(sender.arrived), NOW)
    return memory


def sender(arrived: int, whole: int = MIB, age_s: float = 0.0) -> Sender:
    """One whose frame began so long ago, of which so much is here."""
    made = Sender()
    made.arrive(arrived, whole, True, NOW - age_s)
    return made


def filled(*, arrived: int, age_s: float, room: int = BOUND * 3 // 4) -> list[Sender]:
    """Senders alike, with all the usual room between them."""
    return [sender(arrived, age_s=age_s) for _ in range(room // pages(arrived))]


def test_whoever_asks_gets_what_is_usual() -> None:
    memory = memory_of()
    newcomer = sender(14)
    assert memory.allowed(newcomer, 4 * KIB, NOW) == 4 * KIB
    memory.hold(newcomer, 4 * KIB, NOW)
    assert (memory.used, memory.is_short) == (4 * KIB, False)
    memory.hold(newcomer, 17 * MIB, NOW)
    assert not memory.is_short
    memory.hold(newcomer, 18 * MIB - READING + 4 * KIB, NOW)
    assert memory.is_short
    memory.release(newcomer)
    assert (memory.used, memory.is_short, memory.senders) == (0, False, set())


def test_room_goes_by_what_is_here_not_by_what_is_announced() -> None:
    assert first_room(14, 100 * MIB) == 4 * KIB
    assert first_room(59_000, MIB) == pages(118_000)
    assert first_room(59_000, 60_000) == pages(60_000)
    assert first_room(3, 0) == 4 * KIB
    assert next_room(4 * KIB, 100 * MIB) == 8 * KIB
    assert next_room(512 * KIB, 600_000) == pages(600_000)
    memory = memory_of(*filled(arrived=59_000, age_s=0))
    assert memory.allowed(sender(59_000), 118_000, NOW) == 0, "though it would fit to its end"


def test_the_slowest_pay_for_one_that_is_faster() -> None:
    drippers = filled(arrived=100 * KIB, age_s=10)
    slowest = [sender(100 * KIB, age_s=60), sender(10 * KIB, age_s=10)]
    memory = memory_of(*drippers[2:], *slowest)
    newcomer = sender(130 * KIB, whole=30 * MIB)
    assert memory.allowed(newcomer, 260 * KIB, NOW) == 0
    paying = memory.payers(newcomer, 260 * KIB, NOW)
    assert paying[:2] == sorted(slowest, key=lambda one: one.arrived)[:2]
    freed = sum(one.room for one in paying)
    assert 260 * KIB <= freed <= 260 * KIB + BOUND // 16 + 100 * KIB, "no more than is needed"
    for one in paying:
        memory.release(one)
    assert memory.allowed(newcomer, 260 * KIB, NOW) == 260 * KIB


def test_who_waits_for_memory_can_pay_too() -> None:
    drippers = filled(arrived=100 * KIB, age_s=10)
    memory = memory_of(*drippers)
    for one in drippers:
        memory.wait(one, 200 * KIB, NOW)
    assert memory.payers(sender(130 * KIB), 200 * KIB, NOW)


def test_nobody_pays_for_one_as_slow() -> None:
    memory = memory_of(*filled(arrived=100 * KIB, age_s=10))
    assert memory.payers(sender(100 * KIB, age_s=10), 200 * KIB, NOW) == []


def test_nobody_pays_who_is_innocent() -> None:
    fast = filled(arrived=MIB, age_s=MIB / FAST_BYTES_PER_S, room=6 * MIB)
    begun = filled(arrived=14, age_s=GRACE_S * 0.9, room=6 * MIB)
    blocked = filled(arrived=100 * KIB, age_s=100, room=3 * MIB)
    ordered = filled(arrived=100 * KIB, age_s=HELD_GRACE_S * 0.9, room=3 * MIB)
    for one in blocked:
        one.is_held = one.is_blocked = True
    for one in ordered:
        one.is_held = True
    memory = memory_of(*fast, *begun, *blocked, *ordered)
    newcomer = sender(MIB, whole=40 * MIB)
    assert memory.payers(newcomer, 2 * MIB, NOW) == []
    late = NOW + LOOK_AGAIN_S + HELD_GRACE_S
    newcomer.arrive(MIB, 40 * MIB, True, late)
    paying = memory.payers(newcomer, 2 * MIB, late)
    assert paying, "in time all but those that the broker holds up are judged"
    assert not set(paying) & set(blocked)


def test_nobody_pays_where_it_would_not_help() -> None:
    dripper = sender(MIB, age_s=100)
    memory = memory_of(dripper, *filled(arrived=MIB, age_s=0, room=17 * MIB))
    assert memory.payers(sender(8 * MIB, whole=40 * MIB), 16 * MIB, NOW) == []


def test_the_last_quarter_is_for_frames_of_which_a_good_part_is_here() -> None:
    memory = memory_of(*filled(arrived=256 * KIB, age_s=0))
    assert memory.allowed(sender(50_000, whole=200_000), 100_000, NOW) == pages(200_000)
    assert memory.allowed(sender(40_000, whole=200_000), 80_000, NOW) == 0
    assert memory.allowed(sender(50_000, whole=200_000, age_s=1), 100_000, NOW) == 0, "it is slow"
    assert memory.allowed(sender(2 * MIB, whole=7 * MIB), 4 * MIB, NOW) == 0, "it does not fit"


def test_time_stands_still_for_who_waits() -> None:
    memory = memory_of(*filled(arrived=256 * KIB, age_s=0))
    waiting = sender(100 * KIB, age_s=0.1)
    memory.wait(waiting, 200 * KIB, NOW)
    assert not waiting.is_slow(NOW + 1000)
    memory.hold(waiting, 200 * KIB, NOW + 1000)
    assert waiting.elapsed(NOW + 1000.05) < 0.2
    assert waiting.moved == NOW + 1000, "nor has it stalled"


def test_who_needs_the_least_has_its_turn_first() -> None:
    memory = memory_of(*filled(arrived=256 * KIB, age_s=0))
    askers = [sender(100, whole=size) for size in (3 * MIB, 100 * KIB, MIB)]
    for asker in askers:
        memory.wait(asker, 4 * KIB, NOW)
    assert [asker.whole for asker in memory.in_turn()] == [100 * KIB, MIB, 3 * MIB]


def test_those_that_wait_for_each_other_finish_one_by_one() -> None:
    senders = filled(arrived=100 * KIB, age_s=0)
    memory = memory_of(*senders)
    for one in senders:
        assert memory.allowed(one, 200 * KIB, NOW) == 0
        memory.wait(one, 200 * KIB, NOW)
    first, second = memory.in_turn()[:2]
    assert memory.allowed(second, 200 * KIB, NOW) == 0
    assert memory.allowed(first, 200 * KIB, NOW) == MIB
    memory.hold(first, MIB, NOW)
    assert memory.deadlocked() is None


def test_of_large_frames_that_wait_for_each_other_one_is_given_up() -> None:
    senders = [sender(8 * MIB, whole=size * MIB) for size in (30, 50)]
    memory = memory_of(*senders)
    for one in senders:
        assert memory.allowed(one, 16 * MIB, NOW) == 0
        memory.wait(one, 16 * MIB, NOW)
    assert memory.deadlocked() is senders[1]
    memory.release(senders[1])
    assert memory.allowed(senders[0], 16 * MIB, NOW) == 16 * MIB
    memory.hold(senders[0], 16 * MIB, NOW)
    assert memory.allowed(senders[0], 30 * MIB, NOW) == 30 * MIB, "larger than all, but alone"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["new", "grow", "finish", "pause", "block"]),
        st.integers(0, 30),
        st.integers(1, 40 * MIB),
        st.floats(0, 2),
    ),
    max_size=150,
)


@given(STEPS)
def test_at_most_the_bound_is_held_and_somebody_always_gets_on(steps: list) -> None:  # type: ignore[type-arg]
    """As the event loop does it: ask, close who is to pay, ask again, wait."""
    memory: ArrivingMemory[Sender] = ArrivingMemory(BOUND, READING)
    senders: list[Sender] = []
    now = NOW

    def ask(asker: Sender, size: int) -> None:
        allowed = memory.allowed(asker, size, now)
        if not allowed:
            for paying in memory.payers(asker, size, now):
                assert paying is not asker
                assert not paying.is_blocked
                assert paying.arrived < FAST_BYTES_PER_S * paying.elapsed(now)
                memory.release(paying)
                senders.remove(paying)
            allowed = memory.allowed(asker, size, now)
        if allowed:
            assert size <= allowed <= max(size, pages(asker.whole))
            memory.hold(asker, allowed, now)
        else:
            memory.wait(asker, size, now)

    def look_after() -> None:
        for waiting in memory.in_turn():
            if waiting in memory.waiting:
                ask(waiting, waiting.wanted)
        if (given_up := memory.deadlocked()) is not None:
            memory.release(given_up)
            senders.remove(given_up)

    for what, which, size, passed in steps:
        now += passed
        reading = [one for one in senders if not one.waits_since]
        if what == "new" or not reading:
            made = Sender()
            made.arrive(min(size, READING), size, True, now)
            senders.append(made)
            ask(made, first_room(made.arrived, made.whole))
        elif what == "grow":
            one = reading[which % len(reading)]
            one.arrive(one.room, one.whole, False, now)
            if one.room < one.whole:
                ask(one, next_room(one.room, one.whole))
        elif what == "finish":
            one = reading[which % len(reading)]
            memory.release(one)
            senders.remove(one)
        elif what == "block":
            reading[which % len(reading)].is_blocked ^= True
        look_after()
        rooms = sorted(one.room for one in senders)
        assert memory.used == sum(rooms)
        assert memory.used <= BOUND or sum(rooms[:-1]) <= BOUND // 4
        assert memory.waiting.keys() == {one for one in senders if one.waits_since}
    for _ in range(2 * len(senders)):  # whoever is not held up by others finishes
        for one in [one for one in senders if not one.waits_since]:
            memory.release(one)
            senders.remove(one)
        now += 1
        look_after()
    assert not senders
    assert memory.used == 0
