"""Looking before sleeping: as long as something comes most of the times, then now and then."""

from shmbroker.ipc.streak import TRIED_AGAIN, Streak


def looked(streak: Streak, has_come: list[bool]) -> list[bool]:
    """Whether it looked each time; what would have come."""
    found = []
    for each in has_come:
        found.append(streak.pays())
        if found[-1]:
            streak.note(each)
    return found


def test_one_miss_among_many_ends_nothing() -> None:
    streak = Streak()
    assert all(looked(streak, [True] * 20 + [False] + [True] * 20))


def test_it_is_tried_until_nothing_comes_and_then_now_and_then() -> None:
    streak = Streak()
    first = looked(streak, [False] * 10)
    assert first[0] and not first[-1]
    rest = looked(streak, [False] * 10 * TRIED_AGAIN)
    assert sum(rest) == 10


def test_what_comes_every_second_time_does_not_pay() -> None:
    streak = Streak()
    found = looked(streak, [bool(at % 2) for at in range(40 * TRIED_AGAIN)])
    assert sum(found) < len(found) / 8


def test_it_pays_again_when_something_comes() -> None:
    streak = Streak()
    looked(streak, [False] * 50)
    assert all(looked(streak, [True] * 20 * TRIED_AGAIN)[-10:])
