"""Brokers come and go: they register, serve, are fenced, stop, and are in doubt after unclean ends.

* A broker that is fenced hands its partitions over to those who are in sync, in the same batch;
  what nobody else could lead it keeps (`partition_change`).
* One that may have lost records is fenced until it is known what everybody has (`doubts`).
"""

from __future__ import annotations

import logging

from shmbroker.controller.bootstrap import FEATURE_LEVELS
from shmbroker.controller.decisions import in_sync, lost_replicas
from shmbroker.controller.decisions.doubts import Doubts
from shmbroker.wire.error_codes import BROKER_ID_NOT_REGISTERED, NONE, STALE_BROKER_EPOCH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from shmbroker.controller.decision_log import DecisionLog
    from shmbroker.metadata.record import MetadataRecord

logger = logging.getLogger(__name__)

NAMES_MAX = 10
"""Partitions that a line of the log names."""


class Membership:
    """The brokers, as the active controller has them registered."""

    __slots__ = ("_log", "doubts")

    def __init__(self, log: DecisionLog) -> None:
        self._log = log
        self.doubts = Doubts()

    def take_over(self, now_ms: int) -> None:
        """Fence who is of an earlier, larger family; finish what the predecessor has begun."""
        log = self._log
        for broker_id, broker in list(log.image.brokers.items()):
            if broker_id not in log.config.broker_ids:
                self.fence_broker(broker_id, now_ms)
            elif broker.is_fenced:  # our predecessor may have ended halfway
                log.commit_in_parts(in_sync.broker_gone(log.cluster(), broker_id), now_ms)

    def register_broker(
        self,
        broker_id: int,
        host: str,
        port: int,
        incarnation_id: bytes,
        directories: list[bytes],
        now_ms: int,
        is_clean: bool = True,
        pending: AbstractSet[int] = frozenset(),
    ) -> int:
        """Register a broker that starts, fenced as yet; its broker epoch.

        `directories`: ids of its log directories; in another than before it has nothing, and is out
        of all ISRs before it is registered. `is_clean`: it has all records that it ever had, so it
        may be unfenced; else it is when all is known (`settle`). Faults: DiskFullFault,
        StorageFault.
        """
        anew = lost_replicas.begun_anew(self._log.cluster(), broker_id, directories)
        self._log.commit_in_parts(anew.records, now_ms)
        broker_epoch = self._log.voter.log_end_offset
        end_point = {"name": "PLAINTEXT", "host": host, "port": port, "security_protocol": 0}
        message = {
            "broker_id": broker_id,
            "incarnation_id": incarnation_id,
            "broker_epoch": broker_epoch,
            "end_points": [end_point],
            "features": [
                {"name": name, "min_supported_version": least, "max_supported_version": most}
                for name, _, least, most in FEATURE_LEVELS
            ],
            "rack": self._log.config["broker.rack"],
            "fenced": True,
            "log_dirs": directories,
        }
        self._log.commit([("RegisterBrokerRecord", 3, message)], now_ms)
        self.doubts.note(broker_id, is_clean)
        # Those who are still to come may lead; if nobody can in the end, `settle` says so.
        is_known = not (self.doubts.unclean or self.doubts.absent(pending))
        _say_begun_anew(broker_id, anew, is_known)
        return broker_epoch

    def unfence_broker(
        self, broker_id: int, now_ms: int, pending: AbstractSet[int] = frozenset()
    ) -> None:
        """The broker has caught up and serves: clients may be sent there. It leads what nobody at
        work leads, where it is in sync or eligible. `pending`: brokers of the family that may not
        have registered since it started."""
        doubts = self.doubts
        absent = doubts.absent(pending) - {broker_id}
        changes = in_sync.broker_back(
            self._log.cluster(),
            broker_id,
            absent=absent,
            are_all_known=not (doubts.unclean or absent),
        )
        self._set_fenced(broker_id, False, now_ms, changes)

    def settle(self, now_ms: int, pending: AbstractSet[int], is_waiting: bool = True) -> None:
        """Act on what is known of brokers that may have lost records; to be called after each
        registration, and now and then. `is_waiting`: for those, too, that have not registered."""
        doubts = self.doubts
        if not doubts.unclean:
            if not (pending and is_waiting):
                doubts.safe.clear()
            return
        self._log.commit_in_parts(doubts.withdrawn(self._log.cluster()), now_ms)
        if not doubts.can_be_settled(pending, is_waiting):
            return
        decided = doubts.settle(self._log.cluster(), pending)
        self._log.commit_in_parts(decided.records, now_ms)
        for broker_id in decided.brokers:
            self._set_fenced(broker_id, False, now_ms, [])
            doubts.forget(broker_id)  # not before: what a full disk refused is decided again
        if decided.waiting:
            brokers = sorted(set().union(*decided.waiting.values()))
            logger.error(
                "%s: nobody leads, as what was committed may be on brokers that are not here (%s)",
                _named(list(decided.waiting)),
                ", ".join(map(str, brokers)) or "none is known",
            )

    def fence_broker(self, broker_id: int, now_ms: int) -> None:
        """The broker is gone or hangs: clients are sent there no more, and others lead what it led,
        but for what only it can lead (`in_sync.broker_gone`)."""
        self.doubts.forget(broker_id)
        changes = in_sync.broker_gone(self._log.cluster(), broker_id)
        self._set_fenced(broker_id, True, now_ms, changes)

    def begin_shutdown(self, broker_id: int, broker_epoch: int, now_ms: int) -> int:
        """The broker is going to stop, and serves until then: others lead what they can, and it
        joins no ISR until it registers again (`BrokerHeartbeat` with WantShutDown); an error."""
        broker = self._log.image.brokers.get(broker_id)
        if broker is None:
            return BROKER_ID_NOT_REGISTERED
        if broker.broker_epoch != broker_epoch:
            return STALE_BROKER_EPOCH
        if not broker.in_controlled_shutdown and self._log.image.is_replicated:
            changes = in_sync.broker_gone(self._log.cluster(), broker_id)
            message = {
                "broker_id": broker_id,
                "broker_epoch": broker_epoch,
                "in_controlled_shutdown": 1,
            }
            records = [("BrokerRegistrationChangeRecord", 1, message), *changes]
            self._log.commit_in_parts(records, now_ms)
        return NONE

    def _set_fenced(
        self, broker_id: int, is_fenced: bool, now_ms: int, changes: list[MetadataRecord]
    ) -> None:
        broker = self._log.image.brokers.get(broker_id)
        if broker is None or broker.is_fenced == is_fenced:
            return
        message = {
            "broker_id": broker_id,
            "broker_epoch": broker.broker_epoch,
            "fenced": 1 if is_fenced else -1,
        }
        self._log.commit_in_parts(
            [("BrokerRegistrationChangeRecord", 0, message), *changes], now_ms
        )


def _named(partitions: list[str]) -> str:
    """The names of some of them, and how many there are."""
    names = ", ".join(partitions[:NAMES_MAX])
    more = len(partitions) - NAMES_MAX
    return f"{names} and {more} more" if more > 0 else names


def _say_begun_anew(broker_id: int, anew: lost_replicas.BegunAnew, is_known: bool) -> None:
    if anew.replicas:
        logger.warning(
            "broker %d has a new log directory and in it nothing of its %d replicas: it leads none "
            "of which there are others until it has copied them",
            broker_id, anew.replicas,
        )  # fmt: skip
    if anew.only:
        logger.error(
            "%s: broker %d had the only replica, and its log directory has a new id: what is in "
            "there is served; if it is a new disk, what the old one held is lost",
            _named(anew.only), broker_id,
        )  # fmt: skip
    if anew.leaderless and is_known:
        logger.error(
            "%s: nobody leads. Broker %d has a new log directory and with it nothing, and nobody "
            "else who is in sync or eligible is here",
            _named(anew.leaderless), broker_id,
        )  # fmt: skip
