"""The heap of timers of one coordinator."""

from shmbroker.groups.timers import TIDY_FROM, Timers


def test_timers_that_are_all_wanted_are_seldom_looked_through() -> None:
    looks = []

    def is_wanted(due_ms: int, what: str) -> bool:
        looks.append(due_ms)
        return True

    timers: Timers[str] = Timers(lambda due_ms: None, is_wanted)
    count = 4 * TIDY_FROM
    for due_ms in range(count):
        timers.push(due_ms, "group")
    assert len(timers) == count
    assert len(looks) < count


def test_timers_go_in_order_after_those_that_nobody_wants_were_taken_out() -> None:
    timers: Timers[int] = Timers(lambda due_ms: None, lambda due_ms, what: what % 2 == 1)
    mixed = [n * 5 % (TIDY_FROM + 1) for n in range(TIDY_FROM + 1)]
    for due_ms in mixed:
        timers.push(due_ms, due_ms)
    assert len(timers) < TIDY_FROM
    due = [timer.due_ms for timer in timers.take_due(2 * TIDY_FROM)]
    assert due == sorted(due) and len(due) > 1
