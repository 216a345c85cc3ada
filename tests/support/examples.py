"""How many examples a property test tries."""

import os

FEWER = 5


def examples(count: int) -> int:
    """`count`, or a fifth of it where $SHMBROKER_FEWER_EXAMPLES is set, as `make check` does."""
    return max(1, count // FEWER) if os.environ.get("SHMBROKER_FEWER_EXAMPLES") else count
