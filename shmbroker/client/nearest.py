"""Which known name was meant."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """`: did you mean X?` where one of these names is near, else nothing."""
    spelt = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), spelt, 1, 0.7)
    return f": did you mean {spelt[near[0]]}?" if near else ""
