"""What the active controller does when it is time, though nobody asks: elections, hand-overs from
brokers without room on their disk, the end of tokens.

`now_s` is of a clock that never goes back. Faults everywhere as of `Voter.append`.
"""

from __future__ import annotations

import logging

from shmbroker.controller.decisions import election, tokens
from shmbroker.controller.decisions.room import RoomWatch, given_back, handed_over

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from shmbroker.controller.decision_log import DecisionLog

logger = logging.getLogger(__name__)


class Due:
    """What is due, and when."""

    __slots__ = (
        "_log",
        "_preferred_due",
        "_room",
        "_sweep_due",
        "_token_rules",
        "_unclean_due",
    )

    def __init__(self, log: DecisionLog, token_rules: tokens.TokenRules) -> None:
        self._log = log
        self._token_rules = token_rules
        self._room = RoomWatch()
        self._preferred_due: float | None = None
        self._unclean_due: float | None = None
        self._sweep_due: float | None = None

    def look_at_room(
        self, full: AbstractSet[int], failed: AbstractSet[int], now_s: float, now_ms: int
    ) -> None:
        """Others lead what brokers lead whose disk is nearly full, or has failed; who has room
        again gets it back."""
        if not (full or failed or self._room.is_watching) or not self._log.image.is_replicated:
            return
        room = self._room.look(full, failed, now_s)
        self._log.short = room.handing
        records = handed_over(self._log.cluster(), room) if room.handing else []
        if records:
            logger.warning(
                "%d partitions are led or in sync elsewhere now: no room on the disk of broker %s, "
                "or it has failed",
                len(records), ", ".join(map(str, sorted(room.handing))),
            )  # fmt: skip
        elif room.returned and self._log.config["auto.leader.rebalance.enable"]:
            records = given_back(self._log.cluster(), room)
            if records:
                logger.warning(
                    "%d partitions are given back to brokers with room on their disk again: %s",
                    len(records), ", ".join(map(str, sorted(room.returned))),
                )  # fmt: skip
        self._log.commit(records, now_ms)

    def elect(self, now_s: float, now_ms: int) -> None:
        """Elections whose time has come: of preferred leaders, and unclean ones where topics want
        that."""
        config = self._log.config
        if self._preferred_due is None or self._unclean_due is None:
            self._preferred_due = now_s + config["leader.imbalance.check.interval.seconds"]
            self._unclean_due = now_s + config["unclean.leader.election.interval.ms"] / 1000
        if now_s >= self._preferred_due and config["auto.leader.rebalance.enable"]:
            records = election.preferred_leaders(self._log.cluster())
            self._log.commit(records, now_ms)
            if len(records) < election.ELECTIONS_MAX:
                self._preferred_due = now_s + config["leader.imbalance.check.interval.seconds"]
        if now_s >= self._unclean_due:
            records = election.unclean_leaders(self._log.cluster())
            self._log.commit(records, now_ms)
            if len(records) < election.ELECTIONS_MAX:
                self._unclean_due = now_s + config["unclean.leader.election.interval.ms"] / 1000

    def sweep_tokens(self, now_s: float, now_ms: int) -> None:
        """Remove the delegation tokens that have expired, if it is time to look for them."""
        if self._token_rules.key is None:
            return
        if self._sweep_due is not None and now_s >= self._sweep_due:
            records = tokens.expired_tokens(self._log.image.security.tokens, now_ms)
            self._log.commit(records, now_ms)
            if len(records) >= tokens.REMOVED_MAX:
                return
        if self._sweep_due is None or now_s >= self._sweep_due:
            self._sweep_due = (
                now_s + self._log.config["delegation.token.expiry.check.interval.ms"] / 1000
            )
