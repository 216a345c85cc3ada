"""Hundreds of histories of the quorum; more with SHMBROKER_SEEDS."""

import os

import pytest

from tests.simulation.quorum_simulation import (
    lost_after_a_vote,
    raised_by_a_return,
    replacement_ms,
    simulate,
)

SEEDS = int(os.environ.get("SHMBROKER_SEEDS", "100"))


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
@pytest.mark.parametrize("loses", [False, True])
def test_history_of_a_seed_keeps_every_promise(first: int, loses: bool) -> None:
    for seed in range(first, min(first + 50, SEEDS)):
        try:
            simulate(seed, loses=loses)
        except AssertionError as broken:
            raise AssertionError(f"simulate({seed}, loses={loses}): {broken}") from broken


def test_who_has_lost_its_vote_gives_no_other_in_its_place() -> None:
    for seed in range(SEEDS // 5):
        try:
            lost_after_a_vote(seed)
        except AssertionError as broken:
            raise AssertionError(f"lost_after_a_vote({seed}): {broken}") from broken


REPLACED_MS_MAX = 350


def test_a_dead_leader_is_replaced_soon_whoever_hears_of_it_late() -> None:
    found = {seed: replacement_ms(seed) for seed in range(SEEDS * 3)}
    worst = max(found, key=lambda seed: found[seed])
    assert found[worst] <= REPLACED_MS_MAX, f"replacement_ms({worst}) is {found[worst]}"


def test_a_voter_that_comes_back_raises_no_epoch() -> None:
    assert [seed for seed in range(SEEDS // 2) if raised_by_a_return(seed)] == []
