"""Hundreds of histories of the quorum; more with SHMBROKER_SEEDS."""

import os

import pytest
from quorum_simulation import simulate

SEEDS = int(os.environ.get("SHMBROKER_SEEDS", "100"))


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_history_of_a_seed_keeps_every_promise(first: int) -> None:
    for seed in range(first, min(first + 50, SEEDS)):
        try:
            simulate(seed)
        except AssertionError as broken:
            raise AssertionError(f"simulate({seed}): {broken}") from broken
