"""Looking before sleeping: as long as something comes, then now and then."""

from shmbroker.ipc.streak import MISSES_MAX, TRIED_AGAIN, Streak


def test_it_is_tried_until_nothing_comes_and_then_now_and_then() -> None:
    streak = Streak()
    for has_come in (True, False, True):
        assert streak.pays()
        streak.note(has_come)
    for _ in range(MISSES_MAX):
        assert streak.pays()
        streak.note(False)
    assert [streak.pays() for _ in range(TRIED_AGAIN)] == [False] * (TRIED_AGAIN - 1) + [True]
    streak.note(False)
    assert not streak.pays()
    while not streak.pays():
        pass
    streak.note(True)
    assert streak.pays() and streak.pays()
