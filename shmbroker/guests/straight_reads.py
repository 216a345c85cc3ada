"""Fetches of a guest that are looked up at once: they wait in the purgatory, and are answered from
there, without the rings between its gateway and the broker.

   take_frames ──► FetchApi.submit ──► StraightReads ──► Reader.begin ──► the log, or the purgatory
                     known bytes                                             │
                                         answer ◄── GuestRead.finish ◄───────┘
                                                          │ what is no plain slice
                                                          └──► READ_DONE, as of any other

Rules of this file:
* Only a Fetch of known bytes goes this way: of one partition, without a session. It is pending as
  one that went over the ring, so whoever leaves cancels it, and what is left to the ring finds it.
* Nothing is looked up on an older image than that of the family.
* The log is here: the gateway and the broker of this process have one thread. So no slices are told
  ahead (`gateway.fetch_ahead`): to ask for one costs no more.
"""

from __future__ import annotations

from shmbroker.broker.read import INLINE_SLICE_BYTES, DelayedRead
from shmbroker.broker.read_lookup import P_OFFSET, ReadRefusal
from shmbroker.guests.brokers_image import is_current
from shmbroker.ipc.operation_layout import READ_COMMITTED
from shmbroker.log.places import remember

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.broker.broker import Broker
    from shmbroker.broker.read_lookup import Result
    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.fetch_known import KnownFetch
    from shmbroker.gateway.fetch_request import FetchRequest
    from shmbroker.gateway.gateway import Gateway
    from shmbroker.gateway.inflight import Part
    from shmbroker.ipc.passed_files import FileTable
    from shmbroker.ipc.peer import Peer
    from shmbroker.log.segment import Segment
    from shmbroker.replica.partition import Partition


class GuestRead(DelayedRead):
    """A read that answers its request by itself."""

    __slots__ = ("files", "gateway", "known", "request")
    files: FileTable
    gateway: Gateway
    known: KnownFetch
    request: FetchRequest

    def finish(self, results: list[Result]) -> None:
        """Answer with a slice, or leave that to `Reader.answer`."""
        self.is_done = True
        result = results[0] if results else None
        if isinstance(result, tuple) and not isinstance(result, ReadRefusal):
            partition, segment, position, length, diverging, aborted = result
            if (
                segment is not None
                and diverging is None
                and not aborted
                and self._has_answered(partition, segment, position, length)
            ):
                gateway, connection = self.gateway, self.request.connection
                gateway.touched.add(connection)
                gateway.results.flushed_first = connection
                return
        self.reader.answer(self, results)

    def has_answered_with_end(self, partition: Partition) -> bool:
        """Answer with all that was appended since it waits, where that is what `finish` would do;
        False: nothing was done."""
        log, (_, partition_max_bytes, epoch, _) = partition.log, self.known.row
        segment, end = log.active, partition.high_watermark
        found, position = log.boundaries.get(self.partitions[0][P_OFFSET], (None, 0))
        length = segment.size - position
        if (
            found is not segment
            or end != log.log_end_offset
            or partition.last_stable_offset != end
            or (self.isolation == READ_COMMITTED and log.aborted)
            or not self.min_bytes <= length <= min(self.max_bytes, partition_max_bytes)
            or position < segment.unjudged_bytes
            or self.results is None
            or 0 <= epoch != partition.leader_epoch
            or not self._has_answered(partition, segment, position, length, is_hot=True)
        ):
            return False
        remember(log.boundaries, end, segment, segment.size)
        self.reader.purgatory.cancel(self)
        return True

    def _has_answered(
        self,
        partition: Partition,
        segment: Segment,
        position: int,
        length: int,
        is_hot: bool = False,
    ) -> bool:
        """Answer with this slice; False where its client has left, or the file is not here."""
        known, request, reader = self.known, self.request, self.reader
        pending = self.gateway.pending
        if self.token not in pending:
            return False
        start = partition.log.log_start_offset
        numbers = partition.high_watermark, partition.last_stable_offset, start
        if length <= INLINE_SLICE_BYTES and segment.map is not None:
            records = segment.map[position : position + length]
            parts: list[Part] = [known.answer_of_bytes(request, numbers, records)]
        else:
            file = self.files.find(segment.file_id)
            if file is None:
                return False
            parts = known.answer_of_slice(request, numbers, file, position, length, is_hot)
        del pending[self.token]
        request.response = parts
        reader.note_answered(self)
        reader.count(partition, 0, length)
        return True


class StraightReads:
    """What a guest gateway's known Fetch asks first. answers: the gateway, as the broker reaches
    it."""

    def __init__(self, gateway: Gateway, broker: Broker, answers: Peer) -> None:
        self._gateway = gateway
        self._broker = broker
        self._answers = answers
        self.served = 0
        """Reads of sockets that brought a Fetch which was looked up at once."""

    def __call__(
        self,
        connection: Connection,
        known: KnownFetch,
        peer: Peer,
        offset: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        """Look it up, and answer it now or later; False: nothing was done."""
        gateway, broker = self._gateway, self._broker
        if connection.throttle is not None or not is_current(gateway, broker):
            return False
        connection.ahead = None
        self.served += not connection.inflight
        gateway.token = token = gateway.token + 1
        request = known.request(connection, version, correlation_id)
        request.token = token
        request.peer = peer
        gateway.pending[token] = request
        connection.inflight.append(request)
        rows = [(*known.row, offset, -1, -1)]
        read = GuestRead(
            broker.reader, self._answers, token, rows, known.min_bytes, known.max_bytes,
            known.isolation,
        )  # fmt: skip
        read.gateway = gateway
        read.files = gateway.files[peer.slot]
        read.known = known
        read.request = request
        broker.look_at_clocks()
        broker.reader.begin(read, known.max_wait_ms)
        return True
