"""`python -m shmbroker` is the command `shmbroker`.

The first lines are for a Python that is too old for all others: it could read no more than these.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - see above
    sys.exit(
        "shmbroker: this is Python %d.%d, and 3.11 is the oldest that will do: run it with a newer "  # noqa: UP031
        "one, such as `python3.11 -m shmbroker`" % sys.version_info[:2]
    )

from shmbroker.cli import main

if __name__ == "__main__":
    main(prog_name="shmbroker")
