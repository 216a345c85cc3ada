"""Does what a classic group wants done: sends its answers, and stores it.

Rules of this file:
* Effects take place in their order. A store writes the group's record, and what follows from it
  comes before the next effect: so what is answered is in the log.
* An answer that can't be sent keeps nobody else from theirs.
"""

from __future__ import annotations

import logging

from shmbroker import logs
from shmbroker.errors import Fault
from shmbroker.groups import group_log
from shmbroker.groups.classic.effects import Reply, StoreAssigned, StoreEmptied
from shmbroker.groups.classic.group_value import value_of
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from shmbroker.groups.classic.effects import Effect, Store
    from shmbroker.groups.classic.group import ClassicGroup
    from shmbroker.groups.group_table import GroupTable

logger = logging.getLogger(__name__)


class Execution:
    """Carries out what the classic groups of one coordinator decide."""

    def __init__(self, table: GroupTable) -> None:
        self._table = table

    def run(self, group: ClassicGroup, effects: Iterable[Effect]) -> None:
        """Carry out the effects, and those that storing has; then settle the group."""
        table = self._table
        if group.grants:
            table.grants.review(group)
        for effect in effects:
            if isinstance(effect, Reply):
                self._reply(effect)
            else:
                error = self._store(group, effect)
                self.run(group, group.on_stored(effect, error, table.steady_ms()))
        table.settle(group)

    def reply(self, effects: Iterable[Effect]) -> None:
        """Send the answers only: nothing is stored of a group that is gone."""
        for effect in effects:
            if isinstance(effect, Reply):
                self._reply(effect)

    def _reply(self, effect: Reply) -> None:
        try:
            effect.call.reply(effect.body)
        except Fault:
            # Of one member; the others' answers must go out all the same.
            what = "an answer can't be sent"
            logger.exception("%s", what, extra=logs.seldom(what))

    def _store(self, group: ClassicGroup, store: Store) -> int:
        assignments = store.assignments if isinstance(store, StoreAssigned) else None
        value = value_of(group, assignments, self._table.wall_ahead_ms())
        error = self._table.append(group.owner, [group_log.group_record(group.group_id, value)])
        if error and isinstance(store, StoreEmptied):
            logger.warning(
                "group %s is empty, which could not be stored: %s",
                group.group_id,
                error_codes.name_of(error),
                extra=logs.seldom("a group's end could not be stored"),
            )
        return error
