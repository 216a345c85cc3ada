"""Replicas by seed. More of them: `scripts/simulate`."""

from pathlib import Path

import pytest

from tests.simulation.replica_simulation import simulate

SEEDS = 500
STEPS = 350
PER_TEST = 50
KEPT = [
    int(line.split()[1])
    for line in (Path(__file__).parent / "kept_seeds.txt").read_text().splitlines()
    if line.startswith("replicas ")
]


@pytest.mark.parametrize("seed", KEPT)
def test_seeds_that_once_failed(seed: int) -> None:
    simulate(seed)


@pytest.mark.parametrize("first", range(0, SEEDS, PER_TEST))
def test_seeds(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        try:
            simulate(seed, STEPS)
        except AssertionError as fault:
            raise AssertionError(
                f"seed {seed}: {fault}; again: "
                f"simulate({seed}, {STEPS}) of tests/simulation/replica_simulation.py"
            ) from fault


def test_something_happens_in_them() -> None:
    """Acknowledged, over a change of leader and a cut, with replicas equal at the end."""
    acked = epochs = 0
    for seed in range(20):
        world = simulate(seed, STEPS)
        acked += len(world.acked)
        epochs += world.image.leader_epoch
    assert acked > 200 and epochs > 10, (acked, epochs)
