"""Transactions over replicas, by seed. More of them: `scripts/simulate --of transactions`."""

from pathlib import Path

import pytest

from tests.simulation.transaction_simulation import TransactionalWorld, simulate_transactions

SEEDS = 200
STEPS = 350
PER_TEST = 50
KEPT = [
    int(line.split()[1])
    for line in (Path(__file__).parent / "kept_seeds.txt").read_text().splitlines()
    if line.startswith("transactions ")
]


@pytest.mark.parametrize("seed", KEPT)
def test_seeds_that_once_failed(seed: int) -> None:
    simulate_transactions(seed)


@pytest.mark.parametrize("first", range(0, SEEDS, PER_TEST))
def test_seeds(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        try:
            simulate_transactions(seed, STEPS)
        except AssertionError as fault:
            raise AssertionError(
                f"seed {seed}: {fault}; again: simulate_transactions({seed}, {STEPS}) of "
                "tests/simulation/transaction_simulation.py"
            ) from fault


def test_something_happens_in_them() -> None:
    """Transactions end in both ways, over changes of leader."""
    committed = aborted = epochs = 0
    for seed in range(20):
        world = simulate_transactions(seed, STEPS)
        assert isinstance(world, TransactionalWorld)
        committed += len(world.committed)
        aborted += len(world.aborted)
        epochs += world.image.leader_epoch
    assert committed > 50 and aborted > 50 and epochs > 5, (committed, aborted, epochs)
