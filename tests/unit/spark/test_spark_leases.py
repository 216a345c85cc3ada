"""Leases of partitions: one task at a time, windows in doubt, attempts that go on or must not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmbroker.spark.transactions.leases import START, Leases, LostFault
from tests.support.examples import examples

A, B = ("t", 0), ("t", 1)


def begun(*tasks: int) -> Leases:
    leases = Leases(doubt_s=60)
    for task in tasks:
        assert not leases.enter(task, task * 10)
        assert leases.try_claim(task, task * 10)
    return leases


def test_a_partition_is_one_tasks_until_it_gives_it_back() -> None:
    leases = begun(1, 2)
    assert leases.try_lease(1, [A, B], 0) == A
    assert leases.try_lease(2, [A], 0) is None
    assert leases.try_lease(2, [A, B], 0) == B
    assert leases.sending(1, A, 3, 100, START, "x") == 0
    leases.sent(1, A)
    assert leases.sending(1, A, 1, 7, "x", "y") == 100
    leases.sent(1, A)
    leases.give_back(1, A)
    assert leases.try_lease(2, [A], 0) == A
    assert leases.sending(2, A, 1, 1, START, "z") == 107
    leases.sent(2, A)
    leases.give_back(2, A)
    assert (leases.done(1, {A: "y"}), leases.done(2, {B: START, A: "z"})) == (107, 1)
    leases.check_all_done([1, 2])


def test_another_attempt_waits_until_the_first_is_done() -> None:
    leases = begun(1)
    leases.enter(1, 11)
    assert leases.try_claim(1, 11) is False
    leases.done(1, {})
    assert leases.try_claim(1, 11) is None
    assert leases.enter(1, 12)


def test_the_next_attempt_sends_the_window_in_doubt_again_with_its_sequence() -> None:
    leases = begun(1, 2)
    leases.try_lease(1, [A, B], 0)
    leases.sending(1, A, 2, 20, START, "x")
    leases.sent(1, A)
    assert leases.sending(1, A, 2, 20, "x", "y") == 20
    assert leases.try_lease(1, [B], 0) == B
    leases.leave(1, 10, 5)
    assert leases.try_lease(2, [A], 5) is None  # in doubt
    assert leases.try_lease(2, [B], 5) == B  # nothing of it was on its way
    leases.enter(1, 11)
    assert leases.try_claim(1, 11)
    assert leases.try_lease(1, [B, A], 6) == A
    progress = leases.progress(1, A)
    assert (progress.batches, progress.window) == (2, (2, 20, "y"))
    assert leases.sending(1, A, 2, 20, "x", "y") == 20
    leases.sent(1, A)
    leases.give_back(1, A)
    assert leases.try_lease(2, [A], 7) == A
    assert leases.sending(2, A, 1, 1, START, "z") == 40


@pytest.mark.parametrize(
    "window", [(2, 20, "x", "other"), (2, 21, "x", "y"), (1, 20, "x", "y"), (2, 20, "other", "y")]
)
def test_other_rows_behind_a_window_in_doubt_fail_the_transaction(
    window: tuple[int, int, str, str],
) -> None:
    leases = begun(1)
    leases.try_lease(1, [A], 0)
    leases.sending(1, A, 1, 1, START, "x")
    leases.sent(1, A)
    leases.sending(1, A, 2, 20, "x", "y")
    leases.leave(1, 10, 0)
    leases.enter(1, 11)
    leases.try_claim(1, 11)
    leases.try_lease(1, [A], 0)
    with pytest.raises(LostFault, match="task 1 has other rows for t-0"):
        leases.sending(1, A, *window)
    with pytest.raises(LostFault):
        leases.enter(3, 30)
    with pytest.raises(LostFault):
        leases.check_all_done([1])


def test_a_next_attempt_without_the_rows_that_are_sent_fails_the_transaction() -> None:
    leases = begun(1)
    leases.try_lease(1, [A], 0)
    leases.sending(1, A, 1, 1, START, "x")
    leases.sent(1, A)
    leases.leave(1, 10, 0)
    leases.enter(1, 11)
    leases.try_claim(1, 11)
    with pytest.raises(LostFault, match="other rows for t-0"):
        leases.done(1, {B: START})


def test_what_is_in_doubt_is_not_waited_for_for_ever() -> None:
    leases = begun(1, 2)
    leases.try_lease(1, [A], 0)
    leases.sending(1, A, 1, 1, START, "x")
    leases.leave(1, 10, 100)
    assert leases.try_lease(2, [A], 159) is None
    with pytest.raises(LostFault, match="task 1 ended while it wrote to t-0"):
        leases.try_lease(2, [A], 161)


def test_it_is_committed_with_just_the_tasks_that_have_written() -> None:
    leases = begun(1, 2, 3)
    leases.done(1, {})
    with pytest.raises(LostFault, match="task 2 is not done"):
        leases.check_all_done([1, 2])
    leases.check_all_done([1])  # 2 and 3 sent nothing
    leases.try_lease(3, [A], 0)
    with pytest.raises(LostFault, match="task 3 is not done"):
        leases.check_all_done([1])


class Log:
    """A partition as a broker keeps it: batches in order of sequences, repeated ones dropped."""

    def __init__(self) -> None:
        self.next = 0
        self.batches: list[tuple[int, int, str]] = []

    def append(self, sequence: int, count: int, content: str) -> None:
        if (sequence, count, content) in self.batches:
            return
        assert sequence == self.next, "out of order"
        assert all(one[2] != content for one in self.batches)
        self.batches.append((sequence, count, content))
        self.next += count


@pytest.mark.thorough
@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_every_batch_is_there_once_whichever_attempts_die_where(data: st.DataObject) -> None:
    tasks, partitions = 3, [("t", p) for p in range(3)]
    rows = {
        (task, tp): [data.draw(st.integers(1, 4)) for _ in range(data.draw(st.integers(0, 9)))]
        for task in range(tasks)
        for tp in partitions
    }
    leases, logs = Leases(60), {tp: Log() for tp in partitions}
    attempts = {task: task * 100 for task in range(tasks)}
    held: dict[int, tuple[str, int]] = {}
    at: dict[tuple[int, tuple[str, int]], int] = {}
    entered: set[int] = set()
    done: set[int] = set()
    deaths = 6
    while len(done) < tasks:
        task = data.draw(st.sampled_from([t for t in range(tasks) if t not in done]))
        if task not in entered:
            leases.enter(task, attempts[task])
            assert leases.try_claim(task, attempts[task])
            entered.add(task)
            held.pop(task, None)
            for tp in partitions:
                at.pop((task, tp), None)
        if task not in held:
            wanted = [tp for tp in partitions if rows[task, tp] and (task, tp) not in at]
            if not wanted:
                leases.done(task, {tp: name(len(rows[task, tp])) for tp in partitions})
                done.add(task)
                continue
            granted = leases.try_lease(task, wanted, 0)
            if granted is None:
                continue
            held[task] = granted
        tp = held[task]
        progress = leases.progress(task, tp)
        first, counts = progress.batches, rows[task, tp]
        if first == len(counts):
            at[task, tp] = first
            leases.give_back(task, tp)
            del held[task]
            continue
        size = progress.window[0] if progress.window else data.draw(st.integers(1, 5))
        last = min(first + size, len(counts))
        records = sum(counts[first:last])
        sequence = leases.sending(task, tp, last - first, records, name(first), name(last))
        dies = deaths and data.draw(st.booleans())
        arrived = data.draw(st.integers(0, last - first)) if dies else last - first
        for i in range(first, first + arrived):
            logs[tp].append(sequence, counts[i], f"{task} {i}")
            sequence += counts[i]
        if dies:
            deaths -= 1
            leases.leave(task, attempts[task], 0)
            attempts[task] += 1
            entered.discard(task)
        else:
            leases.sent(task, tp)
    leases.check_all_done(range(tasks))
    for tp, log in logs.items():
        for task in range(tasks):
            mine = [text for _, _, text in log.batches if text.startswith(f"{task} ")]
            assert mine == [f"{task} {i}" for i in range(len(rows[task, tp]))]


def name(batches: int) -> str:
    return f"digest {batches}" if batches else START
