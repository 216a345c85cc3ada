"""The thread that sends: closed batches to the leaders, answers back, again where that may help.

    turn    late answers ─► close what lingers ─► plan ─► compress, seal, send ─► leaders looked up
            ─► sleep until an answer, the bell, or something is due
    end     wait for answers to what was sent ─► close the connections

Rules

* Only this thread touches connections. It begins with the first record, and again with the first
  one behind an abort.
* The lock of the backlog is held for plans and for answers, not while a batch is compressed and not
  while anybody waits for a broker.
* Whatever the end, answers to what was sent are waited for a moment: a request that is read after
  its connection has ended is appended all the same.
* A fault that nobody has foreseen ends the producer too, and is told by the next call.

Order, retries and what an answer means: `delivery`.
"""

from __future__ import annotations

import selectors
import threading

from shmbroker import clock
from shmbroker.client.cluster import Cluster
from shmbroker.client.faults import AuthenticationFault
from shmbroker.client.producer import delivery
from shmbroker.client.producer.backlog import Backlog
from shmbroker.client.producer.connection import LeaderConnection, Sent
from shmbroker.client.producer.delivery import NO_IDENTITY, Batch, PartitionQueue, ProducerIdentity
from shmbroker.client.producer.leaders import RETRY_S, Leaders
from shmbroker.client.producer.questions import new_producer_id
from shmbroker.client.producer.settings import ProducerSettings
from shmbroker.errors import Fault, ProtocolFault
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.wire.codec import Message

REQUEST_BYTES = 4 << 20
"""A request is closed when its batches are this large together."""

SETTLE_S = 1.0
"""At its end a producer waits this long for answers to what it has sent."""


class Sending:
    """Sends what is in a backlog. `identity`: who batches are from, NO_IDENTITY: not known yet."""

    def __init__(
        self,
        backlog: Backlog,
        cluster: Cluster,
        settings: ProducerSettings,
        identity: ProducerIdentity,
    ) -> None:
        self.identity = identity
        self.thread: threading.Thread | None = None
        self._backlog = backlog
        self._buffers = backlog.buffers
        self._bell = backlog.bell
        self._leaders = Leaders(cluster, settings)
        self._cluster = cluster
        self._codec = settings.codec
        self._acks = settings.acks
        self._idempotence = settings.idempotence
        self._delivery_s = settings.delivery_s
        self._request_s = settings.request_s
        self._block_s = settings.block_s

    # --- the caller's thread ---------------------------------------------------------------------

    def start(self) -> None:
        """Get the producer id and start the sending thread, at the first send."""
        if self._idempotence and self.identity == NO_IDENTITY:
            self.identity = ProducerIdentity(*new_producer_id(self._cluster, self._block_s))
        self._bell.open()
        self._leaders.open(self._bell)
        self.thread = threading.Thread(target=self._run, name="shmbroker-producer", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """End the sending thread."""
        backlog = self._backlog
        with backlog.lock:
            backlog.is_ending = True
            self._bell.ring()
            backlog.lock.notify_all()
        if self.thread is not None:
            self.thread.join()
            self.thread = None

    def drop(self) -> None:
        """Forget all records that are not delivered, and numbers and faults with them."""
        self.stop()
        self._leaders.forget()
        self._backlog.restart()

    # --- the sending thread ----------------------------------------------------------------------

    def _run(self) -> None:
        backlog = self._backlog
        try:
            while self._turn():
                pass
            self._settle()
        except Exception as error:
            with backlog.lock:
                if isinstance(error, AuthenticationFault):
                    backlog.fault = error
                elif backlog.fault is None:
                    backlog.fault = Fault(f"the producer's sending thread ended: {error!r}")
                    backlog.fault.__cause__ = error
                backlog.lock.notify_all()
        finally:
            self._leaders.close()
            with backlog.lock:
                self._bell.close()

    def _settle(self) -> None:
        """Wait for the answers to what was sent, but not for long."""
        until_s = clock.monotonic() + SETTLE_S
        while any(each.requests for each in self._leaders.connections.values()):
            left_s = until_s - clock.monotonic()
            if left_s <= 0:
                break
            self._wait(left_s)

    def _turn(self) -> bool:
        """Close, plan, send, wait, take answers; False: it is over."""
        backlog = self._backlog
        bell = self._bell
        now_s = clock.monotonic()
        for broker_id, connection in list(self._leaders.connections.items()):
            requests = connection.requests
            if requests and now_s - requests[0].sent_s > self._request_s:
                self._lose(broker_id)
        with backlog.lock:
            if backlog.is_ending or backlog.fault is not None:
                return False
            bell.has_news = bell.is_asleep = False
            wait_s = backlog.close_lingering(now_s)
            if self._expire(now_s):
                return False
            plans, retry_s = self._plan(now_s)
            wait_s = min(wait_s, retry_s)
        for broker_id, batches in plans.items():
            self._send(broker_id, batches)
        wait_s = min(wait_s, self._leaders.maybe_refresh(now_s, backlog.queues))
        with backlog.lock:
            # After a request there may be room for another.
            bell.is_asleep = not plans and not bell.has_news
            if not bell.is_asleep:
                wait_s = 0.0
            bell.wakes_s = clock.monotonic() + wait_s
        self._wait(wait_s)
        return True

    def _expire(self, now_s: float) -> bool:
        """Whether something took too long: it has failed."""
        for queue in self._backlog.busy:
            oldest = queue.oldest()
            if oldest is not None and now_s - oldest.created_s > self._delivery_s:
                code = oldest.error
                text = f"not delivered in {self._delivery_s:.0f} s"
                if code:
                    text += f", at last {error_codes.name_of(code)}"
                self._backlog.fail(queue, error_codes.REQUEST_TIMED_OUT, text)
                return True
        return False

    def _plan(self, now_s: float) -> tuple[dict[int, Sent], float]:
        """What to send to whom; seconds until a queue may be tried again."""
        busy = self._backlog.busy
        leaders = self._leaders
        plans: dict[int, Sent] = {}
        sizes: dict[int, int] = {}
        wait_s = 1.0
        for queue in list(busy):
            if not queue.waiting:
                continue
            leader = leaders.leader_of(queue)
            if leader < 0:
                continue
            connection = leaders.connections.get(leader)
            if connection is not None and (connection.is_writing or not connection.can_send()):
                continue
            not_before = max(queue.retry_s, leaders.not_before_s(leader))
            if not_before > now_s:
                wait_s = min(wait_s, not_before - now_s)
                continue
            if sizes.get(leader, 0) >= REQUEST_BYTES or not queue.is_sendable(leader, now_s):
                continue
            batch = queue.send(leader)
            plans.setdefault(leader, []).append((queue, batch))
            sizes[leader] = sizes.get(leader, 0) + batch.size
            del busy[queue]  # to the end: everybody has his turn
            busy[queue] = None
        return plans, wait_s

    def _send(self, broker_id: int, batches: Sent) -> None:
        self._seal(batches)
        connection = self._leaders.connections.get(broker_id)
        try:
            if connection is None:
                connection = self._leaders.connect(broker_id)
            timeout_ms = int(self._request_s * 1000)
            connection.send(batches, self._acks, timeout_ms, clock.monotonic())
        except OSError:
            if connection is None:
                self._return(batches)
                self._leaders.rest(broker_id)
            else:
                if not connection.requests or connection.requests[-1].batches is not batches:
                    self._return(batches)
                self._lose(broker_id)
            return
        self._watch(connection)

    def _seal(self, batches: Sent) -> None:
        """Make the bytes of those that are sent for the first time."""
        before = after = 0
        for _, batch in batches:
            if batch.frame is None:
                buffer, held = batch.buffer, batch.size
                batch.seal(self.identity, self._codec)
                if batch.buffer is not buffer:
                    # Compressed: the plain records are not needed any more.
                    before += held
                    after += len(batch.buffer)
                    self._buffers.keep(buffer)
        if before:
            with self._backlog.lock:
                self._buffers.memory += after - before
                self._backlog.lock.notify_all()

    def _watch(self, connection: LeaderConnection) -> None:
        """Look for what the connection waits for; without acks, what is sent is delivered."""
        self._leaders.watch(connection)
        if self._acks == 0 and not connection.is_writing:
            while connection.requests:
                request = connection.requests.popleft()
                with self._backlog.lock:
                    for queue, batch in request.batches:
                        self._on_answer(queue, batch, error_codes.NONE, -1)
                    self._backlog.lock.notify_all()

    def _wait(self, wait_s: float) -> None:
        for key, events in self._leaders.ready(wait_s):
            connection = key.data
            if connection is None:
                self._bell.hear()
                continue
            try:
                if events & selectors.EVENT_WRITE:
                    connection.on_writable()
                if events & selectors.EVENT_READ:
                    for request, answer in connection.on_readable():
                        self._take(request.batches, answer)
            except (OSError, ProtocolFault):
                self._lose(connection.broker_id)
                continue
            self._watch(connection)
        with self._backlog.lock:
            self._bell.is_asleep = False

    def _take(self, batches: Sent, answer: Message) -> None:
        found = {
            (topic["name"], p["index"]): (p["error_code"], p["base_offset"], p["error_message"])
            for topic in answer["responses"]
            for p in topic["partition_responses"]
        }
        with self._backlog.lock:
            for queue, batch in batches:
                error, base_offset, text = found.get(
                    (queue.topic, queue.partition), (error_codes.UNKNOWN_SERVER_ERROR, -1, None)
                )
                self._on_answer(queue, batch, error, base_offset, text)
            self._backlog.lock.notify_all()

    def _on_answer(
        self,
        queue: PartitionQueue,
        batch: Batch,
        error: int,
        base_offset: int,
        text: str | None = None,
    ) -> None:
        """Needs the lock."""
        backlog = self._backlog
        if backlog.fault is not None:
            return
        outcome = queue.on_answer(batch, error, base_offset, clock.monotonic() + RETRY_S)
        if outcome == delivery.DELIVERED:
            self._buffers.release(batch)
            if queue.is_idle():
                backlog.busy.pop(queue, None)
            self._leaders.end_rests(queue.broker_id)
        elif outcome == delivery.RETURNED:
            if error != error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER:
                self._leaders.wants_metadata = True
        elif outcome == delivery.SPLIT:
            first, second = batch.halves(self.identity, self._codec)
            self._buffers.memory += first.size + second.size
            queue.on_split(batch, first, second)
            self._buffers.release(batch)
        else:
            backlog.fail(queue, error, text or error_codes.message_of(error))

    def _lose(self, broker_id: int) -> None:
        """A connection ended: what was in flight on it is sent again."""
        for request in self._leaders.lose(broker_id):
            self._return(request.batches)

    def _return(self, batches: Sent) -> None:
        with self._backlog.lock:
            for queue, batch in batches:
                if batch.error == error_codes.NONE:
                    batch.error = error_codes.NETWORK_EXCEPTION
                queue.on_returned(batch, 0.0)
        self._leaders.wants_metadata = True
