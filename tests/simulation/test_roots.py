"""Directories of simulations: those of processes that were killed do not fill the memory."""

import os
from pathlib import Path

from tests.simulation.family.simulate import make_root

ABOVE_ANY_PID = 2**22 + 1


def test_what_a_killed_simulation_has_left_goes_with_the_next_start(tmp_path: Path) -> None:
    left = tmp_path / f"family-{ABOVE_ANY_PID:07}-abc"
    (left / "node-1").mkdir(parents=True)
    others = [tmp_path / name for name in ("family-photos-old", "family-123", "else")]
    for other in others:
        other.mkdir()
    mine, again = make_root(tmp_path), make_root(tmp_path)
    assert not left.exists()
    assert Path(mine).is_dir()
    assert mine != again
    assert len(mine) == len(again)
    assert f"-{os.getpid():07}-" in mine
    assert all(other.is_dir() for other in others)
