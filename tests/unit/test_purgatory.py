"""The purgatory, one situation at a time."""

import pytest

from shmbroker.purgatory import HEAP_BYPASS, DelayedOperation, Purgatory


class Operation(DelayedOperation):
    """Completes when told that it can; notes how it ended."""

    def __init__(self, can_complete=False, effect=None):
        super().__init__()
        self.can_complete = can_complete
        self.effect = effect
        self.ends = []
        self.tries = 0

    def try_complete(self):
        self.tries += 1
        if not self.can_complete:
            return False
        self.is_done = True
        self.ends.append("completed")
        if self.effect:
            self.effect()
        return True

    def on_expire(self):
        assert self.is_done
        self.ends.append("expired")
        if self.effect:
            self.effect()


@pytest.fixture
def purgatory():
    return Purgatory()


def test_a_check_completes_what_can_be(purgatory):
    first, second, elsewhere = Operation(), Operation(), Operation(can_complete=True)
    purgatory.watch(first, ["a"], 10)
    purgatory.watch(second, ["a"], 10)
    purgatory.watch(elsewhere, ["b"], 10)
    assert purgatory.check("a") == 0
    second.can_complete = True
    assert purgatory.check("a") == 1
    assert purgatory.check("a") == 0
    assert (first.ends, second.ends, elsewhere.ends) == ([], ["completed"], [])
    assert first.tries == 3
    assert purgatory.check("nobody") == 0
    assert len(purgatory) == 2


def test_operations_are_asked_in_the_order_in_which_they_came(purgatory):
    order = []
    for number in range(5):
        operation = Operation(True, lambda number=number: order.append(number))
        purgatory.watch(operation, ["a"], 10 - number)
    purgatory.check("a")
    assert order == [0, 1, 2, 3, 4]


def test_a_completed_operation_is_gone_from_all_its_keys(purgatory):
    operation = Operation(can_complete=True)
    purgatory.watch(operation, ["a", "b", "a"], 10)
    assert purgatory.check("b") == 1
    assert purgatory.watched == {}
    assert purgatory.check("a") == 0
    assert purgatory.expire(10) == []
    assert purgatory.next_deadline() is None
    assert operation.ends == ["completed"]


def test_a_deadline_ends_an_operation_when_it_is_reached(purgatory):
    operation, later = Operation(), Operation()
    purgatory.watch(later, ["a"], 11)
    purgatory.watch(operation, ["a"], 10)
    assert purgatory.next_deadline() == 10
    assert purgatory.expire(9) == []
    assert purgatory.expire(10) == [operation]
    assert operation.ends == ["expired"]
    assert purgatory.next_deadline() == 11
    operation.can_complete = True
    assert purgatory.check("a") == 0
    assert purgatory.watched == {"a": {later: None}}


def test_an_operation_without_keys_waits_for_its_deadline(purgatory):
    operation = Operation()
    purgatory.watch(operation, [], 10)
    assert purgatory.expire(12) == [operation]


def test_a_cancelled_operation_does_nothing_more(purgatory):
    operation = Operation(can_complete=True)
    purgatory.watch(operation, ["a"], 10)
    assert purgatory.cancel(operation)
    assert not purgatory.cancel(operation)
    assert purgatory.check("a") == 0
    assert purgatory.expire(10) == []
    assert operation.ends == []
    assert operation.is_done


def test_drop_where_cancels_what_is_picked(purgatory):
    operations = [Operation(can_complete=True) for _ in range(4)]
    for operation in operations:
        purgatory.watch(operation, ["a"], 10)
    assert purgatory.drop_where(lambda operation: operation in operations[:3]) == 3
    assert purgatory.check("a") == 1
    assert [len(operation.ends) for operation in operations] == [0, 0, 0, 1]


def test_one_that_its_owner_has_ended_is_neither_asked_nor_expired(purgatory):
    checked, expired = Operation(can_complete=True), Operation()
    purgatory.watch(checked, ["a"], 10)
    purgatory.watch(expired, ["b"], 10)
    checked.is_done = expired.is_done = True
    assert purgatory.check("a") == 0
    assert purgatory.expire(10) == []
    assert (checked.ends, expired.ends) == ([], [])
    assert len(purgatory) == 0 and purgatory.watched == {}


def test_watching_twice_or_when_done_is_a_broken_invariant(purgatory):
    operation = Operation()
    purgatory.watch(operation, ["a"], 10)
    with pytest.raises(AssertionError):
        purgatory.watch(operation, ["b"], 10)
    purgatory.expire(10)
    with pytest.raises(AssertionError):
        purgatory.watch(operation, ["b"], 10)


def test_a_completion_may_check_the_same_key(purgatory):
    inner = []
    operations = [Operation(True, lambda: inner.append(purgatory.check("a"))) for _ in range(3)]
    for operation in operations:
        purgatory.watch(operation, ["a"], 10)
    assert purgatory.check("a") + sum(inner) == 3
    assert all(operation.ends == ["completed"] for operation in operations)
    assert purgatory.watched == {}


def test_a_completion_may_watch_the_same_key(purgatory):
    """A follower whose fetch completes reads again, and waits again, at once."""
    again = Operation()
    operation = Operation(True, lambda: purgatory.watch(again, ["a"], 20))
    purgatory.watch(operation, ["a"], 10)
    assert purgatory.check("a") == 1
    assert again.tries == 0
    assert purgatory.watched == {"a": {again: None}}


def test_a_completion_may_cancel_another(purgatory):
    other = Operation(can_complete=True)
    operation = Operation(True, lambda: purgatory.cancel(other))
    purgatory.watch(operation, ["a"], 10)
    purgatory.watch(other, ["a"], 10)
    assert purgatory.check("a") == 1
    assert other.ends == []


def test_an_expiry_may_complete_another_that_is_due_as_well(purgatory):
    other = Operation(can_complete=True)
    operation = Operation(effect=lambda: purgatory.check("b"))
    purgatory.watch(operation, ["a"], 10)
    purgatory.watch(other, ["b"], 10)
    assert purgatory.expire(10) == [operation]
    assert other.ends == ["completed"]


def test_deadlines_of_the_completed_are_tidied_up(purgatory):
    """Long deadlines and quick completions, as with acks=all, must not pile up."""
    for number in range(10_000):
        operation = Operation(can_complete=True)
        purgatory.watch(operation, ["a"], 1_000_000 + number)
        purgatory.check("a")
        assert len(purgatory._heap) <= HEAP_BYPASS + 1


def test_tidying_keeps_the_deadlines_of_those_that_wait_in_order(purgatory):
    operations = [Operation() for _ in range(1000)]
    for number, operation in enumerate(operations):
        purgatory.watch(operation, ["a"], number * 377 % 1009)
    for number, operation in enumerate(operations):
        if number % 10:
            purgatory.cancel(operation)
    assert len(purgatory._heap) <= 2 * len(purgatory)
    for deadline_ms in sorted(number * 377 % 1009 for number in range(0, 1000, 10)):
        assert purgatory.next_deadline() == deadline_ms
        assert len(purgatory.expire(deadline_ms)) == 1


class Told(Operation):
    """Notes the keys that it is told of."""

    def __init__(self, can_complete=False):
        super().__init__(can_complete)
        self.told = []

    def try_complete_of(self, keys):
        self.told.append(list(keys))
        return super().try_complete_of(keys)


def test_keys_checked_together_are_told_at_once_to_who_watches_several(purgatory):
    several, one, elsewhere, done = Told(), Told(can_complete=True), Told(), Told()
    purgatory.watch(several, ["a", "b", "c"], 10)
    purgatory.watch(one, ["b"], 10)
    purgatory.watch(elsewhere, ["d"], 10)
    purgatory.watch(done, ["c"], 10)
    done.is_done = True
    assert purgatory.check_together(["a", "c", "b", "nobody"]) == 1
    assert (several.told, one.told, elsewhere.told, done.told) == (
        [["a", "c", "b"]],
        [["b"]],
        [],
        [],
    )
    assert len(purgatory) == 2
    assert purgatory.check("c") == purgatory.check_together(["a"]) == 0
    assert several.told[1:] == [["c"], ["a"]]
