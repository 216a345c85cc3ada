"""The audit log: a line for each request that was denied and for each change, by the logger
`shmbroker.audit`.

A line says who asked (principal, listener, the client's address), by which API, what for, and how
that went; as JSON it has a field for each. Denials are limited, the rest of them is counted; of
changes there is a line for each request and outcome. Passwords, tokens and values of settings are
never in it.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from shmbroker import logs
from shmbroker.security.acls import name_of_operation, name_of_resource
from shmbroker.security.changes import by_error, operation_of, shown
from shmbroker.wire.error_codes import name_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

logger = logging.getLogger(__name__)

KINDS_MAX = 200
"""How many principals have denials of their own counted, at a time."""
DENIED = "denied"
DONE = "done"


class Who(NamedTuple):
    """The client that asked."""

    principal: str
    listener: str
    client: str
    """Address and port."""

    def __str__(self) -> str:
        return f"{shown(self.principal)} from {self.client} by {self.listener}"


class Audit:
    """Writes the lines of one process."""

    def __init__(self) -> None:
        self._kinds: set[str] = set()

    def denied(self, who: Who, api: str, denials: Iterable[tuple[int, int, str]]) -> None:
        """A request was denied, or a part: (operation, resource type, name) of each."""
        kind = self._kind(who.principal)
        for operation, resource_type, name in dict.fromkeys(denials):
            what = f"{name_of_resource(resource_type)} {shown(name)}"
            verb = name_of_operation(operation)
            line = f"denied: {who}, {api}: {verb} on {what}"
            more = _fields(who, api) | {"operation": verb, "resource": what, "outcome": DENIED}
            extra = logs.seldom(kind) | logs.fields(kind=kind, **more)
            logger.info("%s", line, extra=extra)

    def changed(self, who: Who, api: str, api_key: int, rows: Iterable[tuple[str, int]]) -> None:
        """A request has changed something, or was to: what, and the error of each."""
        for error, names in by_error(rows).items():
            outcome = name_of(error) if error else DONE
            what = ", ".join(names)
            verb = operation_of(api_key)
            more = _fields(who, api) | {"operation": verb, "resource": what, "outcome": outcome}
            logger.info("%s, %s: %s: %s", who, api, what, outcome, extra=logs.fields(**more))

    def flush(self) -> None:
        """Forget whose denials were counted; to be called now and then."""
        self._kinds.clear()

    def _kind(self, principal: str) -> str:
        if principal not in self._kinds and len(self._kinds) >= KINDS_MAX:
            return "denied to others"
        self._kinds.add(principal)
        return f"denied to {shown(principal)}"


def _fields(who: Who, api: str) -> dict[str, str]:
    return {
        "principal": who.principal,
        "listener": who.listener,
        "client": who.client,
        "api": api,
    }
