"""Regular expressions that consumers subscribe by: RE2 syntax, matched against whole topic names.

RE2 takes time in proportion to the name, whatever the expression, so a client can't stop the broker
with one. The library is imported when the first expression comes; it has no use for most brokers,
and is not installed with them (the extra `regex`). Where it is missing, new expressions are refused
with a sentence that says so, and those of members that came with a log match nothing.

Source: KIP-848; Kafka uses the same language (RE2/J).
"""

from __future__ import annotations

import logging

from shmbroker import extras

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

logger = logging.getLogger(__name__)

MEMORY_BYTES_MAX = 1 << 20
"""The memory of a compiled expression; larger ones are refused like malformed ones."""


def fault_of(regex: str) -> str | None:
    """What is wrong with an expression, in Kafka's sentence; None if nothing is."""
    try:
        import re2
    except ImportError:
        lacking = extras.complaint("re2", "a subscription by a regular expression")
        logger.error("the expression %r matches nothing: %s", regex, lacking)
        return f"{lacking}, beside the broker"
    try:
        _compiled(regex)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        said = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        return f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {said}."
    return None


def matching(regexes: Iterable[str], names: Iterable[str]) -> dict[str, frozenset[str]]:
    """The names that match, by expression; of a malformed one none."""
    found = {}
    for regex in regexes:
        if fault_of(regex) is None:
            matches = _compiled(regex).fullmatch
            found[regex] = frozenset(name for name in names if matches(name))
        else:
            found[regex] = frozenset()
    return found


def _compiled(regex: str) -> Any:
    import re2

    options = re2.Options()
    options.max_mem = MEMORY_BYTES_MAX
    options.log_errors = False
    return re2.compile(regex, options)
