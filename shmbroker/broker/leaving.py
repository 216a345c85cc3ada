"""How a broker stops: others lead what it leads, it answers what it has, and closes its logs."""

from __future__ import annotations

from shmbroker import signs
from shmbroker.shm.counters import STATE, STATE_RUNNING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from shmbroker.broker.broker import Broker

HAND_OVER_S = 5.0
"""How long a broker that is to stop alone waits for others to lead what it leads."""
TAKE_S = 5.0
"""How long it takes of each ring what is there."""


class Leaving:
    """The end of a broker, behind its last usual turn."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def hand_over(self) -> Iterator[float]:
        """Serve until others lead what they can, unless clients are gone, too: the family stops.

        Yields for how long nothing is due.
        """
        broker = self._broker
        words, at = broker.words, broker.member.counters.at
        has_clients = any(
            words[at(peer.slot, STATE)] == STATE_RUNNING
            for peer in broker.peers.gateways
            if peer.slot != broker.member.index
        )
        if broker.replication.is_alone or not has_clients:
            return
        answers: list[dict[str, Any]] = []
        deadline = broker.clock.monotonic() + HAND_OVER_S
        if broker.registration.ask_to_leave(broker.image.offset, answers.append):
            signs.at_work(signs.HANDING_OVER)
            while not answers and broker.clock.monotonic() <= deadline:
                yield broker.turn()

    def close(self) -> None:
        """Answer what is on the rings, then close the logs cleanly."""
        broker = self._broker
        broker.member.say_stopping()
        broker.intake.take(TAKE_S)
        while broker.executor.unfinished:
            broker.executor.advance()
        signs.at_work(signs.FLUSHING)
        broker.groups.close()
        broker.transactions.close()
        broker.acks.group_commit.start(at_once=True)
        broker.publish()
        broker.flusher.stop()
        broker.finish_flushes()
        broker.publish()
        broker.damage.restore_removed(broker.partitions.values())
        broker.store.close(broker.registration.epoch, broker.clock.monotonic)
