"""How a broker begins: registered, its logs open, and then it serves.

   register ──► read the metadata log ──► open what it places here ──► load groups ──► running
                                                  │
                                                  └── in doubt who leads: the controllers are told
                                                      where the logs end, and decide

Rules of this file:
* Until it is running, a broker takes what is on its rings and follows the metadata log, but its
  turns are others: clients are answered by those who serve already.
* A successor does not wait until all is open: clients wait for what is.
"""

from __future__ import annotations

from shmbroker import signs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from shmbroker.broker.broker import Broker

LOAD_S = 0.2
"""How long clients wait for the groups to be loaded before they are told to wait."""
LOOK_S = 0.05
"""How long a broker that waits for the controller sleeps, at most."""
OPEN_S = 0.3
"""How long a successor opens logs (0.6 ms each) before it serves those that are open."""


class Boot:
    """The start of a broker, up to its first turn."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._clock = broker.clock
        self._member = broker.member
        self._metadata = broker.metadata
        self._placement = broker.placement

    def run(self) -> Iterator[float]:
        """Register, open what the metadata log says is here, and say that this broker runs.

        Yields for how long nothing is due; a process that is asked to stop goes on no more.
        """
        broker = self._broker
        yield from self._until_registered()
        while broker.link.is_behind():
            self._metadata.has_stepped = False
            self._metadata.follow()
            yield 0.0
        placement = self._placement
        deadline = self._clock.monotonic() + OPEN_S
        while placement.has_work:
            signs.at_work(signs.OPENING, len(placement.to_apply))
            self._metadata.apply_some()
            yield 0.0
            is_late = self._clock.monotonic() > deadline
            if self._member.incarnation > 1 and is_late and not placement.is_in_doubt:
                break  # clients wait for what is open already; the rest follows between turns
        if placement.is_in_doubt:
            yield from self._until_decided()
        broker.look_at_clocks()
        broker.store.take_stock(broker.image.topics_by_id)
        deadline = self._clock.monotonic() + LOAD_S
        for coordinator in (broker.groups, broker.transactions):
            while coordinator.loading and self._clock.monotonic() < deadline:
                coordinator.run_due()
        signs.at_work(signs.NOTHING)
        self._member.say_running()
        broker.producer_ids.fetch()

    def _until_registered(self) -> Iterator[float]:
        registration = self._broker.registration
        while True:
            registration.run()
            self._turn()
            if registration.epoch >= 0:
                return
            yield LOOK_S

    def _turn(self) -> None:
        """Take a turn of a broker that does not serve yet."""
        broker = self._broker
        broker.look_at_clocks()
        self._member.look_at_announcements(broker.peer_changes)
        broker.intake.take()
        broker.publish()
        self._member.sign(self._clock.monotonic())

    def _until_decided(self) -> Iterator[float]:
        """Say where the logs end, to each controller that is active meanwhile, until it is decided
        who leads (`controller.decisions.doubts`)."""
        broker, placement = self._broker, self._placement
        log_ends = broker.replication.log_ends
        told = -1
        while True:
            self._turn()
            while placement.has_work:
                self._metadata.apply_some()
                self._member.sign(self._clock.monotonic())
                yield 0.0
            epoch = self._member.counters.metadata_leader()[0]
            if placement.is_in_doubt and epoch != told and broker.link.peer() is not None:
                told = epoch
                log_ends.tell_all(*placement.copies(broker.image))
            log_ends.look_again()
            log_ends.run()
            if not placement.is_in_doubt and not placement.has_work:
                return
            yield LOOK_S
