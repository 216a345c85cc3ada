"""A short walk over backups and restores. Many and long ones: `scripts/backup_walks`."""

import pytest

from tests.histories import backup_walk

# A seed that ever failed is added here.
SEEDS = (1,)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.timeout(240)
def test_what_is_restored_is_what_was_acknowledged(seed: int) -> None:
    walk = backup_walk.run(seed, 1, 15)
    assert walk.faults == [], "\n".join(walk.events)
    assert walk.backups
