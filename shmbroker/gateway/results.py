"""The results that come back over the rings, to the requests that wait for them.

Rules of this file:
* `pending` maps the token of each operation to its request; a token is used once in the life of
  this process. A result whose token is not there belongs to a closed connection.
* Nobody is answered from an older image than a result's: the metadata log is followed first, as far
  as it is committed. Where that takes several turns, a controller's results wait for the last one:
  its clients use what they have just made. Appends and reads go on.
"""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.gateway import produce
from shmbroker.gateway.fetch_request import FetchRequest
from shmbroker.gateway.inflight import PlainRequest
from shmbroker.ipc.operation_layout import (
    APPENDED,
    APPENDED_HEAD,
    APPENDED_MANY,
    APPENDED_MANY_HEAD,
    APPENDED_ROW,
    DROP_FILE,
    EXECUTED,
    EXECUTED_FLAG_CLOSE,
    EXECUTED_FLAG_NOT_EXECUTED,
    EXECUTED_FLAG_STANDING,
    EXECUTED_PART,
    NEED_FILE,
    READ_AHEAD,
    READ_DONE,
    TOKEN,
    unpack_detail,
)
from shmbroker.ipc.operation_proxy import PartialResults
from shmbroker.ipc.peer import Peer
from shmbroker.shm.counters import ANNOUNCEMENTS_WORD, METADATA_END_OFFSET_WORD
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.gateway import Gateway

ASK_AGAIN_S = 1.0
"""The time between two requests for a file's descriptor."""
RESTARTED = "the broker process restarted"
"""Why connections end whose clients are at no fault."""


class WaitingRead(NamedTuple):
    """A read that is done, and waits for descriptors."""

    request: FetchRequest
    peer: Peer
    read_done: bytes
    missing: tuple[int, ...]
    """The files whose descriptors are not here."""


class Results:
    """Completes the requests of a gateway, or fails them."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.partial = PartialResults()
        self.waiting_reads: list[WaitingRead] = []
        self.asked_files: set[int] = set()
        self.flushed_first: Connection | None = None
        """A connection among those touched whose read is done."""
        self._ask_again_at = 0.0

    def take(self) -> None:
        """Everything that the rings hold now."""
        gateway = self.gateway
        member = gateway.member
        words = member.words
        if words[ANNOUNCEMENTS_WORD] != member.announcements:
            member.look_at_announcements(gateway)
        touched = gateway.touched
        ready = member.rings.ready()
        if not ready and not touched:
            return
        pending = gateway.pending
        on_appended = gateway.produce.on_appended
        ProduceRequest = produce.ProduceRequest
        unpack_appended = APPENDED_HEAD.unpack_from
        for which in ready:
            peer = member.peers[which]
            reader = peer.reader
            reader.poll()
            if stamp := reader.stamped():
                gateway.shown.on_stamp(stamp)
            # After the poll: the sender of these has seen at most what is committed by now.
            if words[METADATA_END_OFFSET_WORD] != gateway.image.offset:
                gateway.follow_metadata()
                if gateway.is_midway and peer.slot not in gateway.files:
                    continue
            data = reader.data
            while (entry := reader.next()) is not None:
                operation, index, length = entry
                if operation == APPENDED:
                    token, error, detail_bytes, indexes, base, time, start = unpack_appended(
                        data, index
                    )
                    request = pending.pop(token, None)
                    if type(request) is not ProduceRequest:
                        continue
                    detail = None
                    if error:
                        gateway.shown.count_refusal(error)
                        detail = unpack_detail(data, index, detail_bytes, indexes)
                    on_appended(request, token, error, base, time, start, detail)
                    touched.add(request.connection)
                else:
                    self._take_other(peer, operation, data, index, length)
            reader.release()
        if touched:
            flush = gateway.loop.flush
            if self.flushed_first is not None:
                # A consumer before the producer's ack that came with its records: somebody waits
                # for the first, and each send takes some 10 us. Only one: acks wait meanwhile.
                flush(self.flushed_first)
                touched.discard(self.flushed_first)
                self.flushed_first = None
            # What a flush starts may find that a broker hangs, and answer those who wait for it.
            while touched:
                flush(touched.pop())

    def has_taken(self, appended: bytes) -> bool:
        """Take an APPENDED that is told without a ring; False where that has to bring it: an error
        is told by the image of who refuses."""
        gateway = self.gateway
        token, error, _, _, base_offset, append_time, start = APPENDED_HEAD.unpack_from(appended)
        request = gateway.pending.get(token)
        if error or type(request) is not produce.ProduceRequest or request.token != token:
            return False
        del gateway.pending[token]
        gateway.produce.on_appended(request, token, error, base_offset, append_time, start, None)
        gateway.touched.add(request.connection)
        return True

    def _take_other(
        self, peer: Peer, operation: int, data: memoryview, index: int, length: int
    ) -> None:
        if operation == READ_DONE:
            token = TOKEN.unpack_from(data, index)[0]
            request = self.gateway.pending.pop(token, None)
            if type(request) is FetchRequest:
                self._finish_read(request, peer, data, index, length)
        elif operation == APPENDED_MANY:
            token = TOKEN.unpack_from(data, index)[0]
            packed = data[index + APPENDED_MANY_HEAD.size : index + length]
            first_which = APPENDED_ROW.unpack_from(packed)[0]
            request = self.gateway.pending.get(token + first_which)
            if type(request) is produce.ProduceRequest:
                self.gateway.produce.on_appended_many(request, token, packed)
                self.gateway.touched.add(request.connection)
        elif operation == EXECUTED_PART:
            self.partial.add(peer, data, index, length)
        elif operation == EXECUTED:
            token, flags, body = self.partial.finish(peer, data, index, length)
            request = self.gateway.pending.pop(token, None)
            if type(request) is not PlainRequest:
                return
            if flags & EXECUTED_FLAG_CLOSE:
                self.gateway.close_connection(request.connection, body.decode(errors="replace"))
            elif flags & EXECUTED_FLAG_NOT_EXECUTED:
                self.gateway.plain.ask_again(request, self.gateway.now())
            elif request.finish is not None:
                request.finish(body)
            else:
                if flags & EXECUTED_FLAG_STANDING:
                    body = self.gateway.standing.keep(request, peer, body)
                request.answer(body)
                if request.connection.throttle is not None:
                    self.gateway.quotas.on_answer(request, body)
            self.gateway.touched.add(request.connection)
        elif operation == READ_AHEAD:
            self.gateway.fetch.ahead.on_read_ahead(peer, data, index, length)
        elif operation == DROP_FILE:
            self._drop_file(peer, TOKEN.unpack_from(data, index)[0])

    def _drop_file(self, peer: Peer, file_id: int) -> None:
        """A file is deleted: close it, and let those who wait for its descriptor ask again."""
        self.gateway.files[peer.slot].drop(file_id)
        for waiting in list(self.waiting_reads):
            if waiting.peer is peer and file_id in waiting.missing:
                self.waiting_reads.remove(waiting)
                self._fail_read(waiting.request)

    def _finish_read(
        self, request: FetchRequest, peer: Peer, data: memoryview, index: int, length: int
    ) -> None:
        missing = self.gateway.fetch.on_read_done(request, peer, data, index)
        if not missing:
            self.gateway.touched.add(request.connection)
            self.flushed_first = request.connection
            return
        # Descriptors that the LRU has dropped, or that did not fit into the socket pair: ask for
        # them, look again when they are here.
        for file_id in missing:
            if file_id not in self.asked_files:
                if not self.asked_files:
                    self._ask_again_at = self.gateway.clock.monotonic() + ASK_AGAIN_S
                self.asked_files.add(file_id)
                peer.send(NEED_FILE, TOKEN.pack(file_id))
        result = bytes(data[index : index + length])
        self.waiting_reads.append(WaitingRead(request, peer, result, tuple(missing)))

    def retry_reads(self) -> None:
        """Reads that waited for descriptors."""
        waiting_reads, self.waiting_reads = self.waiting_reads, []
        if self.gateway.clock.monotonic() >= self._ask_again_at:
            self.asked_files.clear()
        for request, peer, result, missing in waiting_reads:
            if not request.connection.is_closed:
                self._finish_read(request, peer, memoryview(result), 0, len(result))
                if request.response is not None:
                    # They are here. With more files than are kept, they may be missed again soon.
                    self.asked_files.difference_update(missing)

    # ── reads that nobody waits for ─────────────────────────────────────────────────────────────

    def cancel_reads(self, connection: Connection) -> None:
        """A client has gone: nobody waits for its reads."""
        gateway = self.gateway
        for request in connection.inflight:
            if type(request) is FetchRequest and request.token:
                token = request.token
                peer = request.peer
                if gateway.pending.pop(token, None) is not None and peer and peer.incarnation:
                    gateway.fetch.cancel(request, token)

    def end_waiting_reads(self) -> None:
        """Answer them: a Produce that passed one is answered behind it."""
        gateway = self.gateway
        for token, request in list(gateway.pending.items()):
            if type(request) is FetchRequest:
                del gateway.pending[token]
                gateway.fetch.on_failed(request, error_codes.NOT_LEADER_OR_FOLLOWER)
                gateway.loop.flush(request.connection)

    # ── failures ────────────────────────────────────────────────────────────────────────────────

    def on_peer_lost(self, peer: Peer) -> None:
        """Note that a peer's process is dead: nothing of it comes any more."""
        self.partial.drop_peer(peer)
        if peer.slot in self.gateway.files:
            self._on_broker_lost(peer)
        self.fail_pending(peer)

    def _on_broker_lost(self, peer: Peer) -> None:
        """Drop the descriptors of a dead broker, which are of no use any more, and the reads that
        wait for one."""
        self.gateway.files[peer.slot].clear()
        for waiting in self.waiting_reads:
            if waiting.peer is peer:
                self._fail_read(waiting.request)
        self.waiting_reads = [each for each in self.waiting_reads if each.peer is not peer]

    def _fail_read(self, request: FetchRequest) -> None:
        self.gateway.fetch.on_failed(request, error_codes.NOT_LEADER_OR_FOLLOWER)
        self.gateway.touched.add(request.connection)

    def fail_pending(self, peer: Peer) -> None:
        """Fail what waits for a result of that peer, in a way that clients retry."""
        gateway = self.gateway
        for token, request in list(gateway.pending.items()):
            if request.peer is not peer:
                continue
            del gateway.pending[token]
            if type(request) is produce.ProduceRequest:
                if request.acks == 0:
                    gateway.loop.close(request.connection, RESTARTED)
                else:
                    code = error_codes.NOT_LEADER_OR_FOLLOWER
                    gateway.produce.on_appended(request, token, code, -1, -1, -1, (None, ()))
            elif type(request) is FetchRequest:
                gateway.fetch.on_failed(request, error_codes.NOT_LEADER_OR_FOLLOWER)
            elif type(request) is PlainRequest and request.finish is not None:
                gateway.plain.finish_again(request)
            elif type(request) is PlainRequest and peer.slot not in gateway.files:  # a controller
                gateway.plain.fail_at_controller(request)
            else:
                gateway.loop.close(request.connection, RESTARTED)
            gateway.touched.add(request.connection)
