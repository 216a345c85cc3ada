"""A network worker: client connections on one side, rings on the other.

A turn:
  1  wait for sockets (and the doorbell), read frames, start requests: operations go to rings
  2  publish them, ring the doorbells of those who sleep
  3  take results from the rings; first follow the metadata log as far as it is committed, so that
     nobody is answered from an older image than the result's
  4  complete requests, send answers in request order

Rules of this file:
* `pending` maps the token of each operation to its request; a token is used once in the life of
  this process. A result whose token is not there belongs to a closed connection.
* What the broker of a connection does not serve while it is down, this worker answers itself:
  Produce and Fetch with NOT_LEADER_OR_FOLLOWER at once; what only that broker can answer waits for
  its return on its connection.
* A broker that is gone stays in Metadata for a while, without leading anything: its port is served
  all the time. librdkafka drops a broker that Metadata leaves out with all that it has for it, and
  if its partitions are just moving to their next leader, they lie with nobody for up to 1.5 s.
"""

import logging
import select
from collections.abc import Collection, Mapping
from os import sched_yield
from typing import Any

from shmbroker import clock, signs
from shmbroker.apis import table
from shmbroker.apis.broker import join_group, sync_group
from shmbroker.config import BrokerConfig, broker_layers, effective_broker_config
from shmbroker.gateway import fetch, produce
from shmbroker.gateway import forwarding as plain
from shmbroker.gateway.connection import Connection
from shmbroker.gateway.connection_limits import ConnectionLimits
from shmbroker.gateway.event_loop import SLOW, STALLED, EventLoop, Listener
from shmbroker.gateway.inflight import Request
from shmbroker.ipc.operation_layout import (
    APPENDED,
    APPENDED_HEAD,
    DROP_FILE,
    EXECUTED,
    EXECUTED_FLAG_CLOSE,
    EXECUTED_FLAG_NOT_EXECUTED,
    EXECUTED_FLAG_STANDING,
    EXECUTED_PART,
    NEED_FILE,
    READ_DONE,
    TOKEN,
    unpack_detail,
)
from shmbroker.ipc.operation_proxy import PartialResults
from shmbroker.ipc.passed_files import FileTable
from shmbroker.ipc.peer import Peer
from shmbroker.ipc.streak import Streak
from shmbroker.metadata.image import BROKER_CHANGED, BROKER_RESOURCE, CONFIG_CHANGED, TopicImage
from shmbroker.processes.active_link import ActiveLink
from shmbroker.processes.child import BACKLOG_RETRY_S, Child
from shmbroker.processes.heap import give_back_freed, keep_large_apart
from shmbroker.processes.seldom_log import SeldomLog
from shmbroker.processes.shared_resources import (
    CONTROLLER,
    IO_WORKER,
    NETWORK_WORKER,
    SharedResources,
    Slot,
)
from shmbroker.processes.stopping import Drain
from shmbroker.shm.address_counts import AddressCounts
from shmbroker.shm.counters import (
    CONTROL_GENERATION_WORD,
    METADATA_APPLIED,
    METADATA_END_OFFSET_WORD,
    OPEN_CONNECTIONS,
    STATE,
    STATE_RUNNING,
    STATE_UNABLE,
)
from shmbroker.shm.words import words_of
from shmbroker.wire import error_codes
from shmbroker.wire.frame import response_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.apis.contexts import Submit

logger = logging.getLogger("shmbroker")

SWEEP_INTERVAL_S = 1.0
PARTIAL_FRAME_S = 10.0
"""Half a frame that does not move for this long ends its connection."""
WAITING_APIS = (join_group.API_KEY, sync_group.API_KEY)
"""Requests that wait for other clients: their senders look for another coordinator anyway."""
RETRY_S = 0.02
LOOKS_BEFORE_SLEEP = 150
"""At rings, for an append: its answer comes in about the time that a wake-up takes,"""
LOOKS_BYTES_MAX = 64 * 1024
"""unless so much is appended that it takes several times as long."""
LOOKS_AFTER_ANSWER = 40
"""At sockets, for the next one: a client that waits for each answer sends it some 60 us later."""
CROWD_REST_S = 0.020
"""Between two turns that only repeat standing answers: nobody waits for a heartbeat's answer, and
any other request that comes into such quiet waits this long at most, and only the first one."""
ASK_AGAIN_S = 1.0
GONE_TOLD_S = 5.0
"""How long Metadata names a broker that is gone: until its successor has come, nearly always, and
until clients have heard who leads now."""
FRAMES_BUFFERED_BYTES_MAX = 48 << 20
"""Of all network workers together, for frames that are still arriving, unless
queued.max.request.bytes says otherwise."""
MUCH_BYTES = 4 << 20
"""Where frames had this much memory lately, what is free of it is given back to the system."""


class NetworkWorker(Child):
    """The main loop, and what the API modules ask of it."""

    def __init__(
        self,
        shared: SharedResources,
        slot: Slot,
        config: BrokerConfig,
        cluster_id: str,
        listeners: list[Listener],
    ) -> None:
        super().__init__(shared, slot)
        self.config = config
        self.token = self.incarnation << 48
        self.append_bytes = 0
        """Of the last request with appends."""
        self.pending: dict[int, Request] = {}
        self.fetch_bytes_max = config["fetch.max.bytes"]
        self.partial_results = PartialResults()
        self.asked_files: set[int] = set()
        self._ask_again_at = 0.0
        self.unread: list[tuple[fetch.FetchRequest, Peer, bytes, tuple[int, ...]]] = []
        """Reads that wait for descriptors: request, its peer, the READ_DONE, file ids."""
        self.touched: set[Connection] = set()
        self.io_peers: dict[int, Peer] = {}
        self.fenced: frozenset[int] = frozenset()
        """Ids of brokers that run, but hang or stop: others lead in their place."""
        self.gone: dict[int, float] = {}
        """Brokers that died or were fenced, and until when Metadata names them nevertheless."""
        self.files: dict[int, FileTable] = {}
        for peer in self.peers:
            if peer.role == IO_WORKER:
                self.io_peers[peer.number] = peer
                self.files[peer.slot] = FileTable(shared.passing[peer.slot, slot.index][1])
        self.link = ActiveLink(
            self.counters,
            self.peers,
            config,
            cluster_id,
        )
        self.follower = self.link.follower
        self.image = self.follower.image
        self.advertised = table.advertised()
        self.produce = produce.ProduceApi(self)
        self.fetch = fetch.FetchApi(self, slot.number - 1, len(shared.of_role(NETWORK_WORKER)))
        self.plain = plain.PlainApis(
            self,
            {
                other.index: words_of(shared.standing_of(other.index))
                for other in shared.of_role(IO_WORKER)
            },
        )
        self.submit: dict[int, Submit] = self.plain.submit | {
            produce.API_KEY: self.produce.submit,
            fetch.API_KEY: self.fetch.submit,
        }
        arriving_bytes_max = config["queued.max.request.bytes"]
        if arriving_bytes_max <= 0:
            arriving_bytes_max = FRAMES_BUFFERED_BYTES_MAX
        self.loop = EventLoop(
            self,
            config["socket.request.max.bytes"],
            arriving_bytes_max // len(shared.of_role(NETWORK_WORKER)),
        )
        self.loop.watch(
            self.doorbell.eventfd, select.EPOLLIN | select.EPOLLET, lambda _events: None
        )
        self.ports: dict[int, int] = {}
        self.hosts: dict[int, str] = {}
        for listener in listeners:
            self.loop.add_listener(listener)
            if not listener.is_control:
                host, port = listener.socket.getsockname()[:2]
                self.ports[listener.broker_id] = port
                self.hosts[listener.broker_id] = host
        self._now = clock.monotonic()
        self._next_sweep = self._now + SWEEP_INTERVAL_S
        self._open_index = self.counters.at(slot.index, OPEN_CONNECTIONS)
        others = [other.index for other in shared.of_role(NETWORK_WORKER) if other is not slot]
        self._others = [
            (self.counters.at(other, OPEN_CONNECTIONS), self.counters.at(other, STATE))
            for other in others
        ]
        tables = shared.address_counts
        self.limits = ConnectionLimits(
            AddressCounts(tables[slot.index], {other: tables[other] for other in others}),
            self.open_connections,
            lambda: [n for n in others if self.words[self.counters.at(n, STATE)] == STATE_RUNNING],
        )
        self._log_seldom = SeldomLog(logger)
        keep_large_apart()
        self._apply_configs()
        self._has_waited = False
        self._streak = Streak()
        words = self.words
        words[self._open_index] = 0

    # ── main loop ───────────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        """Serve until asked to stop, then let the requests in flight finish."""
        self._wait_for_metadata()
        self.say_running()
        loop = self.loop
        loop.watch_listeners(self.may_accept())
        words = self.words
        doorbell = self.doorbell
        drain: Drain | None = None
        plain = self.plain
        repeated = plain.repeated
        while True:
            events = self._look_before_sleep()
            if events is None:
                doorbell.say_sleeping()
                if (
                    self.has_entries()
                    or words[CONTROL_GENERATION_WORD] != self.generation
                    or self.link.has_news()
                ):
                    timeout = 0.0
                elif loop.cold or self.has_backlog():
                    timeout = BACKLOG_RETRY_S
                elif (
                    loop.blocked
                    or loop.memory.waiting
                    or self.unread
                    or plain.to_ask_again
                    or self.must_stop
                ):
                    timeout = RETRY_S
                else:
                    timeout = self._timeout()
                events = loop.epoll.poll(timeout)
                doorbell.awake()
            self._now = clock.monotonic()
            # Before the frames: a client may use what another was told a moment ago.
            if words[METADATA_END_OFFSET_WORD] != self.image.offset:
                self.follow_metadata()
            loop.handle(events)
            if not loop.is_watching and not self.must_stop and self.may_accept():
                loop.watch_listeners(True)
            self.publish()
            self.take_results()
            if self.unread:
                self.retry_reads()
            if plain.to_ask_again:
                plain.retry_asking(self._now)
            if loop.cold:
                loop.retry_cold()
            if loop.blocked:
                loop.resume_blocked()
            if loop.memory.waiting:
                loop.feed_starved()
            self.publish()
            now = self._now
            if now >= self._next_sweep:
                self._sweep(now)
            self.sign(now)
            if plain.repeated != repeated:
                repeated = plain.repeated
                if plain.is_crowd(now) and not self.pending:
                    clock.sleep(CROWD_REST_S)
            if self.must_stop:
                if drain is None:
                    drain = Drain(clock.monotonic())
                    self.say_stopping()
                    loop.stop_reading()
                    self._end_waiting_fetches()
                requests = sum(
                    request.api_key not in WAITING_APIS for request in self.pending.values()
                )
                unread = [one.unsent_bytes() for one in loop.connections.values() if one.out]
                if drain.is_over(clock.monotonic(), requests, sum(unread)):
                    break
                signs.at_work(signs.ANSWERING, requests + len(unread))
        for connection in list(loop.connections.values()):
            loop.close(connection, "")

    def _end_waiting_fetches(self) -> None:
        """Answer them: a Produce that passed one is answered behind it."""
        for token, request in list(self.pending.items()):
            if type(request) is fetch.FetchRequest:
                del self.pending[token]
                self.fetch.on_failed(request, error_codes.NOT_LEADER_OR_FOLLOWER)
                self.loop.flush(request.connection)

    def _waits_for_append(self) -> bool:
        """Whether the last that was asked for is an append, and one that is soon done."""
        pending = self.pending
        return (
            bool(pending)
            and pending[next(reversed(pending))].api_key == produce.API_KEY
            and self.append_bytes <= LOOKS_BYTES_MAX
        )

    def _look_before_sleep(self) -> list[tuple[int, int]] | None:
        """Wait awake where an answer or, after it, the client's next request comes in about the
        time that a wake-up takes: what came from sockets; None where it is time to sleep."""
        waits = self._waits_for_append()
        has_waited, self._has_waited = self._has_waited, waits
        if waits:
            looks, between = LOOKS_BEFORE_SLEEP, 16
        elif has_waited and self._streak.pays():
            looks, between = LOOKS_AFTER_ANSWER, 2
        else:
            return None
        poll = self.loop.epoll.poll
        events: list[tuple[int, int]] | None = None
        for look in range(looks):
            sched_yield()
            if self.has_entries():
                events = [] if look else poll(0)  # the sockets have their turn in every look
                break
            if not look % between and (found := poll(0)):
                events = found
                break
        if not waits:
            self._streak.note(events is not None)
        return events

    def _timeout(self) -> float:
        return max(0.001, self._next_sweep - clock.monotonic())

    def _wait_for_metadata(self) -> None:
        """Nobody is accepted before the brokers of this start are known, but for those that can't
        boot."""
        at = self.counters.at
        while not self.must_stop:
            self.check_control()
            self.follow_metadata()
            able = {
                number: peer
                for number, peer in self.io_peers.items()
                if self.words[at(peer.slot, STATE)] != STATE_UNABLE
            }
            if able and all(
                peer.incarnation and number in self.image.brokers for number, peer in able.items()
            ):
                return
            if self.image.brokers and self.incarnation > 1:
                return  # a successor serves what is there
            self.sign(clock.monotonic())
            self.doorbell.say_sleeping()
            if self.words[CONTROL_GENERATION_WORD] == self.generation and not self.link.has_news():
                self.loop.epoll.poll(0.05)
            self.doorbell.awake()

    def _sweep(self, now: float) -> None:
        self._next_sweep = now + SWEEP_INTERVAL_S
        self.loop.sweep(now, self.config["connections.max.idle.ms"] / 1000, PARTIAL_FRAME_S)
        self._log_seldom.flush(now)
        memory = self.loop.memory
        if memory.peak >= MUCH_BYTES:
            memory.peak = memory.used
            give_back_freed()
        if self.gone and min(self.gone.values()) <= now:
            self.gone = {number: until for number, until in self.gone.items() if until > now}
            self.plain.cache.clear()

    # ── results ─────────────────────────────────────────────────────────────────────────────────

    def take_results(self) -> None:
        """Everything that the rings hold now."""
        if self.words[CONTROL_GENERATION_WORD] != self.generation:
            self.check_control()
        pending = self.pending
        touched = self.touched
        on_appended = self.produce.on_appended
        ProduceRequest = produce.ProduceRequest
        unpack_appended = APPENDED_HEAD.unpack_from
        for peer in self.peers:
            reader = peer.reader
            if not reader.poll():
                continue
            # After the poll: whoever sent these has seen at most what is committed by now.
            if self.words[METADATA_END_OFFSET_WORD] != self.image.offset:
                self.follow_metadata()
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
                        detail = unpack_detail(data, index, detail_bytes, indexes)
                    on_appended(request, token, error, base, time, start, detail)
                    touched.add(request.connection)
                else:
                    self._take_other(peer, operation, data, index, length)
            reader.release()
        if touched:
            flush = self.loop.flush
            for connection in touched:
                flush(connection)
            touched.clear()

    def _take_other(
        self, peer: Peer, operation: int, data: memoryview, index: int, length: int
    ) -> None:
        if operation == READ_DONE:
            token = TOKEN.unpack_from(data, index)[0]
            request = self.pending.pop(token, None)
            if type(request) is fetch.FetchRequest:
                self._finish_read(request, peer, data, index, length)
        elif operation == EXECUTED_PART:
            self.partial_results.add(data, index, length)
        elif operation == EXECUTED:
            token, flags, body = self.partial_results.finish(data, index, length)
            request = self.pending.pop(token, None)
            if request is None:
                return
            if flags & EXECUTED_FLAG_CLOSE:
                self.close_connection(request.connection, body.decode(errors="replace"))
            elif flags & EXECUTED_FLAG_NOT_EXECUTED:
                self.plain.ask_again(request, self._now)
            elif request.finish is not None:
                request.finish(body)
            else:
                if flags & EXECUTED_FLAG_STANDING:
                    body = self.plain.keep_standing(request, peer, body)
                request.response = [
                    response_frame(
                        request.api_key, request.api_version, request.correlation_id, body
                    )
                ]
            self.touched.add(request.connection)
        elif operation == DROP_FILE:
            self._drop_file(peer, TOKEN.unpack_from(data, index)[0])

    def _drop_file(self, peer: Peer, file_id: int) -> None:
        """A file is deleted: close it, and let those who wait for its descriptor ask again."""
        self.files[peer.slot].drop(file_id)
        for waiting in list(self.unread):
            request, owner, _, missing = waiting
            if owner is peer and file_id in missing:
                self.unread.remove(waiting)
                self.fetch.on_failed(request, error_codes.NOT_LEADER_OR_FOLLOWER)
                self.touched.add(request.connection)

    def _finish_read(
        self, request: fetch.FetchRequest, peer: Peer, data: memoryview, index: int, length: int
    ) -> None:
        missing = self.fetch.on_read_done(request, peer, data, index)
        if not missing:
            self.touched.add(request.connection)
            return
        # Descriptors that the LRU has dropped, or that did not fit into the socket pair: ask for
        # them, look again when they are here.
        for file_id in missing:
            if file_id not in self.asked_files:
                self.asked_files.add(file_id)
                peer.send(NEED_FILE, TOKEN.pack(file_id))
        result = bytes(data[index : index + length])
        self.unread.append((request, peer, result, tuple(missing)))

    def retry_reads(self) -> None:
        """Reads that waited for descriptors."""
        unread, self.unread = self.unread, []
        now = clock.monotonic()
        if now >= self._ask_again_at:
            self._ask_again_at = now + ASK_AGAIN_S
            self.asked_files.clear()
        for request, peer, result, _ in unread:
            if not request.connection.is_closed:
                self._finish_read(request, peer, memoryview(result), 0, len(result))

    # ── peers ───────────────────────────────────────────────────────────────────────────────────

    def on_peer_lost(self, peer: Peer) -> None:
        """Fail what was pending with it, in a way that clients retry."""
        self.partial_results.clear()
        if peer.role == IO_WORKER:
            self.gone[peer.number] = self._now + GONE_TOLD_S
            self.files[peer.slot].clear()
            for request, owner, _, _ in self.unread:
                if owner is peer:
                    self.fetch.on_failed(request, error_codes.NOT_LEADER_OR_FOLLOWER)
                    self.touched.add(request.connection)
            self.unread = [waiting for waiting in self.unread if waiting[1] is not peer]
        self._fail_pending(peer)
        self.plain.cache.clear()

    def _fail_pending(self, peer: Peer) -> None:
        for token, request in list(self.pending.items()):
            if request.peer is not peer:
                continue
            del self.pending[token]
            if type(request) is produce.ProduceRequest:
                if request.acks == 0:
                    self.close_connection(request.connection, "the broker process restarted")
                else:
                    code = error_codes.NOT_LEADER_OR_FOLLOWER
                    self.produce.on_appended(request, token, code, -1, -1, -1, (None, ()))
            elif type(request) is fetch.FetchRequest:
                self.fetch.on_failed(request, error_codes.NOT_LEADER_OR_FOLLOWER)
            elif request.finish is not None:
                self.plain.finish_again(request)
            elif peer.role == CONTROLLER:
                self.plain.fail_at_controller(request)
            else:
                self.close_connection(request.connection, "the broker process restarted")
            self.touched.add(request.connection)

    def on_peer_running(self, peer: Peer) -> None:
        self.plain.cache.clear()

    def follow_metadata(self) -> None:
        """Apply what the controller has committed; cached answers are of the image before."""
        if self.link.is_behind():
            epoch = self.link.epoch
            changes = self.link.catch_up()
            self.image = self.follower.image
            if self.link.epoch != epoch:
                for peer in self.link.others():
                    self._fail_pending(peer)
            self.plain.cache.clear()
            if any(change[:2] == (CONFIG_CHANGED, BROKER_RESOURCE) for change in changes):
                self._apply_configs()
            if any(change[0] == BROKER_CHANGED for change in changes):
                self._look_at_fences()
            self.words[self.counters.at(self.slot.index, METADATA_APPLIED)] = self.image.offset

    def _look_at_fences(self) -> None:
        """Nobody waits for a broker that has been fenced; what it still answers is not wanted."""
        fenced = frozenset(
            number
            for number, broker in self.image.brokers.items()
            if not broker.is_active and number in self.io_peers
        )
        for number in fenced - self.fenced:
            self.gone[number] = self._now + GONE_TOLD_S
            peer = self.io_peers[number]
            if peer.incarnation:
                self._fail_pending(peer)
        self.fenced = fenced

    def _apply_configs(self) -> None:
        """Settings that may change while this runs; those of the first broker count for all."""
        image = self.image
        layers = broker_layers(
            self.config,
            image.config(BROKER_RESOURCE, str(min(self.ports))),
            image.config(BROKER_RESOURCE, ""),
        )
        self.limits.set(
            *(
                effective_broker_config(name, self.config, layers)
                for name in (
                    "max.connections",
                    "max.connections.per.ip",
                    "max.connections.per.ip.overrides",
                )
            )
        )

    # ── what the event loop asks ────────────────────────────────────────────────────────────────

    def now(self) -> float:
        return self._now

    def may_accept(self) -> bool:
        """Whether this worker has at most one connection more than the one with the fewest."""
        words = self.words
        fewest = min(
            (words[count] for count, state in self._others if words[state] == STATE_RUNNING),
            default=1 << 30,
        )
        return len(self.loop.connections) <= fewest + 1

    def open_connections(self) -> int:
        """Of the whole family, as far as the others have said."""
        words = self.words
        others = (words[count] for count, state in self._others if words[state] == STATE_RUNNING)
        return len(self.loop.connections) + sum(others)

    def admits(self, address: str) -> bool:
        """Whether a connection of this address ("": the control socket) is within the limits."""
        if refusal := self.limits.take(address):
            line = f"closed a new connection of {address} at once: {refusal}"
            self._log_seldom.warn(f"closed at once by {refusal.partition(' ')[0]}", line, self._now)
        return not refusal

    def on_left_accepting(self) -> None:
        """Somebody else has fewer connections: it must be watching."""
        for slot in self.shared.of_role(NETWORK_WORKER):
            if slot.index != self.slot.index:
                self.shared.doorbells[slot.index].ring()

    def on_opened(self, connection: Connection) -> None:
        self.words[self._open_index] = len(self.loop.connections)

    def on_closed(self, connection: Connection, reason: str, is_fault: bool) -> None:
        self.limits.release(connection.address)
        if is_fault:
            line = f"closed the connection of {connection.peer_name()}: {reason}"
            if reason == SLOW or reason.startswith(STALLED):
                self._log_seldom.warn(reason, line, self._now)
            else:
                logger.warning("%s", line)
        self.words[self._open_index] = len(self.loop.connections)
        for request in connection.inflight:
            if type(request) is fetch.FetchRequest and request.tokens:
                token = request.tokens[0]
                peer = request.peer
                if self.pending.pop(token, None) is not None and peer and peer.incarnation:
                    self.fetch.cancel(request, token)

    def flush(self, connection: Connection) -> None:
        """Send the answers that are complete."""
        self.loop.flush(connection)

    def close_connection(self, connection: Connection, reason: str) -> None:
        """End a connection for a fault of its client (or a broker that restarted)."""
        self.loop.close(connection, reason, is_fault=True)

    # ── what the API modules ask ────────────────────────────────────────────────────────────────

    def io_peer(self, connection: Connection) -> Peer | None:
        """The I/O worker of the connection's port, None while it is down."""
        number = connection.listener.broker_id
        return self.io_peers[number] if self.is_live(number) else None

    def topic_of(self, topic: Mapping[str, Any], by_id: bool) -> TopicImage | None:
        """The image of a topic that a request names or gives the id of; None if unknown."""
        if by_id:
            return self.image.topics_by_id.get(topic["topic_id"])
        return self.image.topics_by_name.get(topic["name"] if "name" in topic else topic["topic"])

    def live_brokers(self) -> set[int]:
        """Ids of the brokers that serve now."""
        return {number for number in self.io_peers if self.is_live(number)}

    def is_live(self, broker_id: int) -> bool:
        """Whether a broker serves now."""
        peer = self.io_peers.get(broker_id)
        return peer is not None and peer.incarnation > 0 and broker_id not in self.fenced

    def controller_broker_id(self) -> int:
        """Who clients are told is the controller: the broker beside the active one, if it lives;
        any broker passes such requests on."""
        told = self._told_brokers()
        return self.link.number if self.link.number in told else min(told)

    def _told_brokers(self) -> Collection[int]:
        """The live brokers; all of them while none lives, as librdkafka never connects again once
        it was told that there are none."""
        return self.live_brokers() or self.ports

    def broker_rows(
        self, connection: Connection, *, with_gone: bool = False
    ) -> list[dict[str, Any]]:
        """Node id, host, port, rack of the live brokers, as this client reaches them; `with_gone`:
        those that died lately, too."""
        rows = []
        for number in sorted({*self._told_brokers(), *(self.gone if with_gone else ())}):
            broker = self.image.brokers.get(number)
            rows.append(
                {
                    "node_id": number,
                    "host": connection.host or self.hosts[number],
                    "port": self.ports[number],
                    "rack": broker.rack if broker is not None else None,
                }
            )
        return rows

    def create_topics(self, request: Request, names: list[str]) -> None:
        """Have the controller create topics with their defaults; `request` is answered after."""
        self.plain.create_topics(request, names)

    def identity_of(self, broker_id: int) -> dict[str, str]:
        """What one broker is, as the settings that Kafka says it with."""
        return self.config.identity(
            broker_id,
            self.hosts[broker_id],
            self.ports[broker_id],
            self.config.nodes[broker_id],
        )

    def leader_hint(self, name: str, topic_id: bytes, index: int) -> tuple[int, int] | None:
        """Leader and leader epoch of a partition, for the CurrentLeader tag (KIP-951); None while
        it has none: nobody shall be sent back to the one that has died."""
        topic = self.image.topics_by_id.get(topic_id) or self.image.topics_by_name.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        partition = topic.partitions[index]
        if not self.is_live(partition.leader_id):
            return None
        return partition.leader_id, partition.leader_epoch

    def node_endpoints(self, leaders: set[int]) -> list[tuple[int, str, int, str | None]]:
        """(id, host, port, rack) of those of the leaders that are alive."""
        return [
            (node, self.hosts[node], self.ports[node], None)
            for node in sorted(leaders)
            if node in self.ports
        ]

    def add_leader_hints(
        self, topics: list[dict[str, Any]], rows: str, index: str, body: dict[str, Any]
    ) -> None:
        """Add CurrentLeader and NodeEndpoints where an answer says NOT_LEADER_OR_FOLLOWER."""
        leaders = set()
        for topic in topics:
            for row in topic[rows]:
                if row["error_code"] != error_codes.NOT_LEADER_OR_FOLLOWER:
                    continue
                hint = self.leader_hint(topic["name"], topic["topic_id"], row[index])
                if hint is not None:
                    row["current_leader"] = {"leader_id": hint[0], "leader_epoch": hint[1]}
                    leaders.add(hint[0])
        if leaders:
            body["node_endpoints"] = [
                {"node_id": node, "host": host, "port": port, "rack": rack}
                for node, host, port, rack in self.node_endpoints(leaders)
            ]
