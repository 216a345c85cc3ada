"""What others may see of a gateway: its counters and gauges, and how long answers take
(`shm.counters`, `shm.latencies`)."""

from __future__ import annotations

from shmbroker.shm.latencies import STAGE_ANSWER, STAGE_NETWORK
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.clock import Clock
    from shmbroker.gateway.connection import Answered
    from shmbroker.gateway.event_loop import EventLoop
    from shmbroker.ipc.member import FamilyMember
    from shmbroker.shm.latencies import Latencies

REFUSALS = {
    error_codes.NOT_LEADER_OR_FOLLOWER: "appends_refused_not_leader",
    error_codes.NOT_ENOUGH_REPLICAS: "appends_refused_not_in_sync",
    error_codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "appends_refused_not_in_sync",
    error_codes.KAFKA_STORAGE_ERROR: "appends_refused_storage",
}
"""The counter of each error; any other error is the batch's own."""


class GatewayShown:
    """What one gateway shows."""

    def __init__(self, clock: Clock, member: FamilyMember, latencies: Latencies) -> None:
        self._clock = clock
        self._member = member
        self._latencies = latencies

    def sample(self, since: float) -> None:
        """Follow what a turn has put on rings through the stages; since: when it began."""
        now = self._clock.monotonic()
        if self._member.stamp(now):
            self._latencies.of(STAGE_NETWORK).add(int((now - since) * 1e6))

    def on_stamp(self, stamp_ns: int) -> None:
        """A result that is taken now was stamped by its broker."""
        self._latencies.of(STAGE_ANSWER).add((self._clock.monotonic_ns() - stamp_ns) // 1000)

    def count_refusal(self, error_code: int) -> None:
        """An append was answered with an error."""
        self._member.tally.add(REFUSALS.get(error_code, "appends_refused_invalid"))

    def measure(self, answered: list[Answered]) -> None:
        """Measure how long these answers took, from the turn that has read their requests until
        they were sent; the list is empty afterwards. What one connection gets together counts as
        its first."""
        latencies = self._latencies
        histograms = latencies.histograms
        for first, received, api_key, last_received, count, now in answered:
            if first != api_key:
                latencies.of(first).add(int((now - received) * 1e6))
                received, count = last_received, count - 1
            took_us = int((now - received) * 1e6)
            found = histograms.get(api_key)
            if found is None:
                found = latencies.of(api_key)
            found.counts[took_us.bit_length()] += count
            found.sum_us += took_us * count
        answered.clear()

    def show(self, turns: int, loop: EventLoop, in_flight: int) -> None:
        """Show what was counted and measured by now; in_flight: requests that wait for a result."""
        traffic, tally = loop.traffic, self._member.tally
        self.measure(traffic.answered)
        self._member.show_claims()
        tally.show("turns", turns)
        tally.show("requests_held", loop.held)
        tally.show("received_bytes", traffic.received_bytes)
        tally.show("sent_bytes", traffic.sent_bytes)
        tally.show("sent_file_bytes", traffic.sent_file_bytes)
        tally.set("requests_in_flight", in_flight)
        tally.set("arriving_bytes", loop.memory.used)
        tally.set("answers_unsent", loop.slow_readers.unsent)
        self._latencies.show()
