"""What is to go wrong, as the proxy asks for it."""

import pytest

from shmbroker.testing.proxy import FaultRules

API, OTHER = 1, 3


@pytest.mark.parametrize("ended_first", [0, 1, 2])
def test_newest_delay_counts_and_the_others_outlive_its_end(ended_first: int) -> None:
    rules = FaultRules()
    ends = [rules.delay(API, delay_s) for delay_s in (0.1, 0.2, 0.2)]
    left = [0.1, 0.2, 0.2]
    assert (rules.delay_s(API), rules.delay_s(OTHER)) == (0.2, 0.0)
    for place in (ended_first, *({0, 1, 2} - {ended_first})):
        ends[place]()
        ends[place]()  # a second time does nothing
        left[place] = 0.0
        assert rules.delay_s(API) == next((each for each in reversed(left) if each), 0.0)


def test_end_of_an_inner_failure_leaves_the_outer_one() -> None:
    rules = FaultRules()
    nothing = rules.next_failure(API)
    outer, inner = rules.fail(API, 56), rules.fail(API, 6)
    rules.fail_next(API, 7, 1)
    assert [rules.next_failure(API) for _ in range(2)] == [7, 6]
    inner()
    assert rules.next_failure(API) == 56
    outer()
    assert rules.next_failure(API) == nothing


def test_end_that_comes_after_a_clear_ends_nothing_newer() -> None:
    rules = FaultRules()
    end = rules.delay(API, 0.1)
    rules.clear()
    rules.delay(API, 0.2)
    end()
    assert rules.delay_s(API) == 0.2
