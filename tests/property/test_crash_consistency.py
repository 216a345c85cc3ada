"""Power is cut anywhere: nothing durable is lost, nothing wrong is served (see crash_workload).

Over 1,000 crashes, of five seeds. `SHMBROKER_CRASH_SEEDS=0-99` looks at more, `=17` at those of
one, `SHMBROKER_CRASH_KEEP=1` keeps what a crash left when something is wrong.
"""

import os
import shutil
import tempfile

import pytest

from tests.support.crash_workload import Life

pytestmark = pytest.mark.thorough

STEPS = 120
ASKED = os.environ.get("SHMBROKER_CRASH_SEEDS", "")
CRASH_RATE = 0.12
CRASHES_MIN = 100
"""Of a seed; most have about 250."""


def seeds() -> range:
    first, _, last = (ASKED or "0-4").partition("-")
    return range(int(first), int(last or first) + 1)


@pytest.mark.parametrize("seed", seeds())
def test_crash_at_any_change_of_the_disk(seed: int) -> None:
    # In memory: what is measured out is the order of things, not the disk.
    root = tempfile.mkdtemp(prefix=f"crash-{seed}-", dir="/dev/shm")
    try:
        crashes = Life(root, seed, STEPS, CRASH_RATE).run()
        assert crashes > CRASHES_MIN
    finally:
        if not os.environ.get("SHMBROKER_CRASH_KEEP"):
            shutil.rmtree(root)
