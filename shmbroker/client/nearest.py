"""The known name that was probably meant."""

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """`: did you mean X?` where one of these names is near, else nothing."""
    import difflib  # when it is needed: that is no part of a task's start

    spelt = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), spelt, 1, 0.7)
    return f": did you mean {spelt[near[0]]}?" if near else ""
