"""Batches of a guest that have come whole: they go from where they were read into the log, without
the rings between its gateway and the broker.

   take_frames ──► ProduceApi.submit ──► StraightAppends ──► Appender.append ──► segment
                     known bytes           │ stored                │ waits, or refused
                                           ▼                       ▼
                                         answer                  APPENDED, as of any other

Rules of this file:
* Nothing of the connection may be under way, as that would be overtaken.
* Nothing is appended on an older image than that of the family.
* The log is here: the gateway and the broker of this process have one thread. Those who wait for
  records are looked at in the broker's turn, which comes after the answers of this one.
* What the kernel of `guests.straight` takes, but for now, is left to the rings: soon it is taken
  there again. What is taken here is counted as usual: its client goes home when this process has
  too little rest.
"""

from __future__ import annotations

from shmbroker.gateway.produce import begin_known
from shmbroker.gateway.produce_known import SMALL_BYTES_MAX
from shmbroker.guests.brokers_image import is_current
from shmbroker.wire.api_keys import PRODUCE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.broker.broker import Broker
    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.gateway import Gateway
    from shmbroker.gateway.guests import Guests
    from shmbroker.gateway.produce_known import FastProduce
    from shmbroker.ipc.peer import Peer


BYTES_MIN = 4 << 10
"""The size from which batches are taken here: of smaller ones, who waits for them is answered
first, and then the ack is sent."""


class StraightAppends:
    """What a guest gateway's Produce asks first. answers: the gateway, as the broker reaches it."""

    def __init__(self, gateway: Gateway, broker: Broker, guests: Guests, answers: Peer) -> None:
        self._gateway = gateway
        self._broker = broker
        self._guests = guests
        self._answers = answers

    def __call__(
        self,
        connection: Connection,
        fast: FastProduce,
        buffer: bytearray,
        batch_at: int,
        length: int,
        correlation_id: int,
    ) -> bool:
        """Append the batch in buffer[batch_at:], of so many bytes; False: nothing was done."""
        gateway, broker, key = self._gateway, self._broker, fast.partition_key
        if (
            length < BYTES_MIN
            or (length <= SMALL_BYTES_MAX and key not in broker.purgatory.watched)
            or connection.inflight
            or connection.unanswered
            or connection.throttle is not None
            or not fast.acks
            or fast.named
            or not is_current(gateway, broker)
        ):
            return False
        if connection.asked_large_at != connection.last_active:  # once for what was read together
            connection.asked_large_at = connection.last_active
            self._guests.note_usual(connection)
        partitions = broker.partitions
        partition = partitions.get(key) or partitions.open_due(key)
        gateway.token = token = gateway.token + 1
        broker.look_at_clocks()
        with memoryview(buffer) as data:
            base_offset = broker.appender.append(
                self._answers, token, fast.acks, fast.flags, fast.timeout_ms, partition,
                data, batch_at, batch_at + length,
            )  # fmt: skip
        if base_offset < 0 or partition is None:
            begin_known(gateway, connection, fast, token, correlation_id)
            return True
        start = partition.log.log_start_offset
        connection.out.append(fast.answered(correlation_id, base_offset, -1, start))
        now, then = gateway.now(), connection.traffic.monotonic()
        connection.answered.append((PRODUCE, now, PRODUCE, now, 1, then))
        return True
