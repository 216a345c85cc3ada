"""A gateway: client connections on one side, rings on the other. A network worker runs one.

A turn:
  1  handle what came from sockets: read frames, start requests; their operations go to rings
  2  publish them, ring the doorbells of those who sleep
  3  take results from the rings; first follow the metadata log as far as it is committed, so that
     nobody is answered from an older image than the result's
  4  complete requests, send answers in request order

Rules of this file:
* Clock, sockets, rings and files are arguments: who runs a gateway builds them, and sleeps.
* What the broker of a connection does not serve while it is down, the gateway answers itself:
  Produce and Fetch with NOT_LEADER_OR_FOLLOWER at once; what only that broker can answer waits for
  its return on its connection.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from shmbroker import logs, signs
from shmbroker.apis import table
from shmbroker.apis.broker import join_group, sync_group
from shmbroker.apis.contexts import MetadataLink
from shmbroker.audit import Audit
from shmbroker.clock import Clock
from shmbroker.errors import ProtocolFault
from shmbroker.gateway import fetch, produce
from shmbroker.gateway import forwarding as plain
from shmbroker.gateway.answer_times import measure
from shmbroker.gateway.audited import Audited, who_is
from shmbroker.gateway.brokers_told import BrokersTold
from shmbroker.gateway.connection import NEVER, Connection, Traffic
from shmbroker.gateway.connection_limits import ConnectionLimits
from shmbroker.gateway.crowd import Crowd
from shmbroker.gateway.doors import Doors
from shmbroker.gateway.drain import Drain
from shmbroker.gateway.ends import IDLE, is_slow
from shmbroker.gateway.event_loop import EventLoop
from shmbroker.gateway.fetch_request import FetchRequest
from shmbroker.gateway.guard import Guard
from shmbroker.gateway.inflight import Request
from shmbroker.gateway.later import Later
from shmbroker.gateway.listener import Listener
from shmbroker.gateway.poller import Poller
from shmbroker.gateway.quotas import Quotas
from shmbroker.gateway.results import Results
from shmbroker.gateway.standing import StandingRepeats
from shmbroker.ipc.awake import Awake
from shmbroker.ipc.core import EVENTS, NOTHING, Core
from shmbroker.ipc.member import BACKLOG_RETRY_S, FamilyMember
from shmbroker.ipc.passed_files import FileTable
from shmbroker.ipc.peer import Peer
from shmbroker.metadata.changes import BrokerChanged, ConfigChanged
from shmbroker.metadata.image import BROKER_RESOURCE, TopicImage
from shmbroker.security.acls import ANONYMOUS
from shmbroker.security.tokens import key_of
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.settings.layers import broker_layers
from shmbroker.shm.address_counts import AddressCounts
from shmbroker.shm.counters import (
    METADATA_APPLIED,
    METADATA_END_OFFSET_WORD,
    OPEN_CONNECTIONS,
    STATE,
    STATE_RUNNING,
    STATE_UNABLE,
)
from shmbroker.shm.doorbell import Doorbell
from shmbroker.shm.latencies import (
    SAMPLED,
    STAGE_ANSWER,
    STAGE_NETWORK,
    Latencies,
    table_bytes,
)
from shmbroker.shm.quota_counts import QuotaCounts
from shmbroker.wire import error_codes
from shmbroker.wire.api_keys import (
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    LIST_SEGMENTS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from shmbroker.apis.contexts import Submit
    from shmbroker.gateway.lending import Lending
    from shmbroker.gateway.tls import TlsListeners

logger = logging.getLogger(__name__)

SWEEP_INTERVAL_S = 1.0
PARTIAL_FRAME_S = 10.0
"""Half a frame that does not move for this long ends its connection."""
WAITING_APIS = (join_group.API_KEY, sync_group.API_KEY)
"""Requests that wait for other clients: their senders look for another coordinator anyway."""
APPEND_BYTES_MAX = 64 * 1024
"""Of an append whose answer is waited for awake: that of more takes several times as long."""
SOCKETS_BETWEEN = (16, 2)
"""An answer comes from a ring, the request after it from a socket."""
SOON_ANSWERED = (ADD_PARTITIONS_TO_TXN, END_TXN, OFFSET_COMMIT, OFFSET_FETCH)
"""Requests that take about as long as a small append: most are one, to a coordinator's topic."""
RETRY_S = 0.02
FRAMES_BUFFERED_BYTES_MAX = 48 << 20
"""What all network workers hold of frames that are still arriving, unless queued.max.request.bytes
says otherwise."""
REFUSALS = {
    error_codes.NOT_LEADER_OR_FOLLOWER: "appends_refused_not_leader",
    error_codes.NOT_ENOUGH_REPLICAS: "appends_refused_not_in_sync",
    error_codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "appends_refused_not_in_sync",
    error_codes.KAFKA_STORAGE_ERROR: "appends_refused_storage",
}
"""By which counter; any other error is the batch's own."""
PROTOCOL_FAULT = "a client's bytes or requests that can't be answered"
NOT_AUTHENTICATED = "clients that did not authenticate"
MEASURED_TOGETHER = 64
"""So many answers are looked at in one go: it is cheaper, and no client waits for it."""
MUCH_BYTES = 4 << 20
"""Where frames had this much memory lately, what is free of it is given back to the system."""


class Siblings(NamedTuple):
    """The gateways of the family: which of them this one is, and the others."""

    place: int
    """From 0."""
    doorbells: Mapping[int, Doorbell]
    """Those of the others, by slot."""
    address_counts: AddressCounts
    quota_counts: QuotaCounts
    guests: int = 0
    """How many gateways there are besides, with guests (`gateway.guests`). `place` of one of those
    is behind all others."""


class Brokers(NamedTuple):
    """The I/O workers, as a gateway reaches them."""

    peers: Mapping[int, Peer]
    """By broker id."""
    files: Mapping[int, FileTable]
    """Descriptors that they have passed, by their slot."""
    standing: Mapping[int, memoryview]
    """The words of their standing answers, by their slot."""


class Gateway:
    """The turns of a network worker, and what the API modules ask of it."""

    def __init__(
        self,
        clock: Clock,
        member: FamilyMember,
        config: BrokerConfig,
        link: MetadataLink,
        poller: Poller,
        listeners: Iterable[Listener],
        brokers: Brokers,
        siblings: Siblings,
        give_back: Callable[[], None] = lambda: None,
        latencies: Latencies | None = None,
        log_levels: Callable[[], Mapping[str, str]] = lambda: logs.effective(logs.DEFAULTS),
        stranger_secret: bytes = b"",
        do_aside: Callable[[Callable[[], None]], None] = lambda work: work(),
    ) -> None:
        """latencies: the table that others read; without it what is measured is for nobody.
        log_levels: those that the family's loggers go by now. stranger_secret: see `ScramUsers`.
        do_aside: see `TokenUsers`."""
        self.clock = clock
        self.member = member
        self.words = member.words
        self.config = config
        self.link = link
        self.poller = poller
        self.must_stop = False
        """Set by who runs this: let the requests in flight finish, start no more."""
        self.is_over = False
        self.token = member.incarnation << 48
        self.append_bytes = 0
        """What the last request with appends has brought: as many as take so long."""
        self.pending: dict[int, Request] = {}
        self.touched: set[Connection] = set()
        self.fetch_bytes_max = config["fetch.max.bytes"]
        self.token_key = key_of(config, os.environ)
        self.io_peers = brokers.peers
        self.files = brokers.files
        self.image = link.follower.image
        self.advertised = table.advertised()
        self._siblings = siblings
        self.log_levels = log_levels
        self._give_back = give_back
        listeners = list(listeners)
        self._build_told(brokers, listeners)
        self._build_apis(brokers)
        listener_names = list(
            dict.fromkeys(each.config.name for each in listeners if not each.is_control)
        )
        self._doors = Doors(self, listener_names, stranger_secret, do_aside)
        self._build_loop(listeners)
        self._build_limits(listener_names)
        self._latencies = latencies or Latencies(memoryview(bytearray(table_bytes())))
        self._turns = 0
        self._now = clock.monotonic()
        self._next_sweep = self._now + SWEEP_INTERVAL_S
        self._apply_configs()
        self.awake = Awake(
            Core(clock.monotonic, member.rings, poller), sockets_between=SOCKETS_BETWEEN
        )
        self._crowd = Crowd()
        self._drain: Drain | None = None
        self.lending: Lending | None = None
        """Told of the connections, where some go from one process to another."""
        self._has_stepped = False
        """`follow_metadata` has done its step of this turn, and there are more."""
        self.is_midway = False
        """More is committed than the image has, and some of it was read."""
        self.words[self._open_index] = 0

    def _build_told(self, brokers: Brokers, listeners: list[Listener]) -> None:
        """What clients are told of the brokers. What the API modules ask is answered by who knows
        it."""
        link = self.link
        self.told = told = BrokersTold(
            self.image, self.config, brokers.peers, listeners, lambda: link.number
        )
        self.ports = told.ports
        self.io_peer = told.io_peer
        self.live_brokers = told.live_brokers
        self.controller_broker_id = told.controller_broker_id
        self.broker_rows = told.broker_rows
        self.identity_of = told.identity_of
        self.leader_hint = told.leader_hint
        self.node_endpoints = told.node_endpoints
        self.add_leader_hints = told.add_leader_hints

    def _build_apis(self, brokers: Brokers) -> None:
        """Who takes the requests of each API, and who judges and notes them."""
        config, siblings = self.config, self._siblings
        self.guard: Guard | None = None
        self.produce = produce.ProduceApi(self)
        self.fetch = fetch.FetchApi(
            self, siblings.place, len(siblings.doorbells) + 1, siblings.guests
        )
        self.standing = StandingRepeats(brokers.standing)
        self.plain = plain.PlainApis(self, self.standing)
        self.results = Results(self)
        self.submit: dict[int, Submit] = self.plain.submit | {
            produce.API_KEY: self.produce.submit,
            fetch.API_KEY: self.fetch.submit,
        }
        self.submit_of_readers = {key: self.submit[key] for key in table.FOR_READERS}
        self.submit_of_readers[LIST_SEGMENTS] = self._list_segments_of_readers
        if config.has_authorizer:
            self.guard = Guard(config, self.image, table.JUDGED, self.submit, self._on_denied)
        self._told_denied: object = None
        self.audit: Audit | None = None
        self.audited: Audited | None = None
        if config.is_audited:
            self.audit = Audit()
            self.audited = Audited(self.audit, table.JUDGED)
            self.submit = self.audited.around(self.submit)
            if self.guard is not None:
                self.guard.submit = self.audited.around(self.guard.submit)

    def _build_loop(self, listeners: list[Listener]) -> None:
        """The event loop, its listeners, and what stands before each of them."""
        config, siblings, clock = self.config, self._siblings, self.clock
        arriving_bytes_max = config["queued.max.request.bytes"]
        if arriving_bytes_max <= 0:
            arriving_bytes_max = FRAMES_BUFFERED_BYTES_MAX
        self.loop = EventLoop(
            self,
            config["socket.request.max.bytes"],
            arriving_bytes_max // (len(siblings.doorbells) + 1),
            self.poller,
            Traffic(clock.monotonic),
        )
        self.later = Later()
        for listener in listeners:
            listener.door = self._doors.before(listener)
            self.loop.acceptor.add(listener)
        self.tls: TlsListeners | None = None
        if any(listener.tls is not None for listener in listeners):
            from shmbroker.gateway.tls import TlsListeners  # OpenSSL is a few MiB

            self.tls = TlsListeners(
                listeners, self.loop, config, self.admit, siblings.place == 0, clock.now_ms
            )

    def _build_limits(self, listener_names: list[str]) -> None:
        """What is counted together with the siblings: quotas and connections."""
        member, siblings, words = self.member, self._siblings, self.words
        submit = self.submit if self.guard is None else self.guard.submit
        self.quotas = Quotas(
            self.clock,
            self.loop,
            self.later,
            siblings.quota_counts,
            member.tally,
            submit,
            self.image,
        )
        at = member.counters.at
        self._applied_index = at(member.index, METADATA_APPLIED)
        self._open_index = at(member.index, OPEN_CONNECTIONS)
        self._others = [(at(n, OPEN_CONNECTIONS), at(n, STATE)) for n in siblings.doorbells]
        self.limits = ConnectionLimits(
            siblings.address_counts,
            self.open_connections,
            lambda: [n for n in siblings.doorbells if words[at(n, STATE)] == STATE_RUNNING],
            listener_names,
        )

    # ── turns ───────────────────────────────────────────────────────────────────────────────────

    def _list_segments_of_readers(
        self,
        connection: Connection,
        buffer: bytearray,
        start: int,
        end: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        """Another user lists files; later versions make a broker stand still, and are not his."""
        if version:
            raise ProtocolFault(f"ListSegments version {version} of another user")
        submit = self.submit[LIST_SEGMENTS]
        return submit(connection, buffer, start, end, version, correlation_id)

    def may_begin(self) -> bool:
        """Follow the metadata log: nobody is accepted before the brokers of this start are known,
        but for those that can't boot."""
        self.member.look_at_control(self)
        self._has_stepped = False
        self.follow_metadata()
        at = self.member.counters.at
        able = {
            number: peer
            for number, peer in self.io_peers.items()
            if self.words[at(peer.slot, STATE)] != STATE_UNABLE
        }
        if able and all(
            peer.incarnation and number in self.image.brokers for number, peer in able.items()
        ):
            return True
        # A successor serves what is there.
        return bool(self.image.brokers) and self.member.incarnation > 1

    def begin(self) -> None:
        """Take part in accepting connections."""
        self.loop.acceptor.watch(self.may_accept())

    def turn(self, events: list[tuple[int, int]]) -> float:
        """One pass over what the poller has returned: for how long nothing is due after it."""
        self.read(events)
        return self.answer()

    def read(self, events: list[tuple[int, int]]) -> None:
        """The first half of a turn: what came from sockets goes to the rings."""
        loop = self.loop
        self._turns += 1
        self._now = self.clock.monotonic()
        self._has_stepped = False
        # Before the frames: a client may use what another was told a moment ago.
        if self.words[METADATA_END_OFFSET_WORD] != self.image.offset:
            self.follow_metadata()
        loop.handle(events)
        if not loop.acceptor.is_watching and not self.must_stop and self.may_accept():
            loop.acceptor.watch(True)
        if self._turns % SAMPLED == 0:
            self._sample()
        self.member.publish()

    def answer(self) -> float:
        """The second half: what is on the rings goes to the sockets. For how long nothing is due
        after it."""
        loop = self.loop
        plain = self.plain
        results = self.results
        member = self.member
        now = self._now
        if results.unread:
            results.retry_reads()  # before the others: these send what is answered
        results.take()
        if plain.to_ask_again:
            plain.retry_asking(now)
        if loop.cold:
            loop.retry_cold()
        if loop.blocked:
            loop.resume_blocked()
        if loop.memory.waiting:
            loop.feed_starved()
        if loop.acceptor.resting:
            loop.acceptor.wake(now)
        if now >= self.later.due:
            self.later.run(now)
        member.publish()
        if len(loop.traffic.answered) >= MEASURED_TOGETHER:
            measure(loop.traffic.answered, self._latencies)
        if now >= self._next_sweep:
            self._sweep(now)
        if self.lending is not None:
            self.lending.run(now)
        member.sign(now)
        rest_s = self._crowd.rest_s(now, self.standing.repeated, self.token)
        if rest_s and not self.pending:
            self.clock.sleep(rest_s)
        if self.must_stop:
            self._stop()
        return self._rest()

    def has_news(self) -> bool:
        """Whether something came for which nobody rings, as this was awake: to be asked after
        `Doorbell.say_sleeping`."""
        return self.member.has_news() or self.link.has_news()

    def _rest(self) -> float:
        loop = self.loop
        if loop.cold or self.member.has_backlog():
            return BACKLOG_RETRY_S
        if (
            loop.blocked
            or loop.memory.waiting
            or self.results.unread
            or self.plain.to_ask_again
            or self.must_stop
        ):
            return RETRY_S
        due = min(self._next_sweep, self.later.due)
        if loop.acceptor.resting:
            due = min(due, *loop.acceptor.resting.values())
        return max(0.001, due - self._now)

    def _stop(self) -> None:
        """Start no more requests; it is over when those in flight are answered."""
        loop = self.loop
        now = self.clock.monotonic()
        if self._drain is None:
            self._drain = Drain(now)
            self.member.say_stopping()
            loop.stop_reading()
            self._end_waiting_fetches()
        requests = sum(request.api_key not in WAITING_APIS for request in self.pending.values())
        unread = [one.unsent_bytes() for one in loop.connections.values() if one.out]
        if self._drain.is_over(now, requests, sum(unread)):
            self.is_over = True
            return
        signs.at_work(signs.ANSWERING, requests + len(unread))

    def close(self) -> None:
        """End every connection."""
        for connection in list(self.loop.connections.values()):
            self.loop.close(connection, "")
        self.quotas.close()
        self._show_counts()

    def _end_waiting_fetches(self) -> None:
        """Answer them: a Produce that passed one is answered behind it."""
        for token, request in list(self.pending.items()):
            if type(request) is FetchRequest:
                del self.pending[token]
                self.fetch.on_failed(request, error_codes.NOT_LEADER_OR_FOLLOWER)
                self.loop.flush(request.connection)

    def look_before_sleep(self) -> list[tuple[int, int]] | None:
        """What came from sockets while this stayed awake for it; None where it is time to sleep."""
        pending = self.pending
        waits = False
        if pending:
            api_key = pending[next(reversed(pending))].api_key
            is_small = self.append_bytes <= APPEND_BYTES_MAX
            waits = is_small if api_key == produce.API_KEY else api_key in SOON_ANSWERED
        came = self.awake.look(waits)
        if came == NOTHING:
            return None
        return self.awake.core.events if came == EVENTS else []

    def _sweep(self, now: float) -> None:
        self._next_sweep = now + SWEEP_INTERVAL_S
        self.loop.sweep(now, self.config["connections.max.idle.ms"] / 1000, PARTIAL_FRAME_S)
        logs.flush()
        if self.tls is not None:
            self.tls.sweep(now)
        if self.audit is not None:
            self.audit.flush()
        memory = self.loop.memory
        if memory.peak >= MUCH_BYTES:
            memory.peak = memory.used
            self._give_back()
        for files in self.files.values():
            files.receive()  # a full socket pair has its broker try again, though nobody reads now
        if self.told.forget_gone(now):
            self.plain.cache.clear()
        self._show_counts()

    # ── what others may see ─────────────────────────────────────────────────────────────────────

    def _sample(self) -> None:
        """Follow what this turn has put on rings through the stages."""
        now = self.clock.monotonic()
        if self.member.stamp(now):
            self._latencies.of(STAGE_NETWORK).add(int((now - self._now) * 1e6))

    def on_stamp(self, stamp_ns: int) -> None:
        """A result that is taken now was stamped by its broker."""
        self._latencies.of(STAGE_ANSWER).add((self.clock.monotonic_ns() - stamp_ns) // 1000)

    def count_refusal(self, error_code: int) -> None:
        """An append was answered with an error."""
        self.member.tally.add(REFUSALS.get(error_code, "appends_refused_invalid"))

    def _show_counts(self) -> None:
        """See `shm.counters` and `shm.latencies`."""
        loop, traffic, tally = self.loop, self.loop.traffic, self.member.tally
        measure(traffic.answered, self._latencies)
        self.member.show_claims()
        tally.show("turns", self._turns)
        tally.show("requests_held", loop.held)
        tally.show("received_bytes", traffic.received_bytes)
        tally.show("sent_bytes", traffic.sent_bytes)
        tally.show("sent_file_bytes", traffic.sent_file_bytes)
        tally.set("requests_in_flight", len(self.pending))
        tally.set("arriving_bytes", loop.memory.used)
        tally.set("answers_unsent", loop.slow_readers.unsent)
        self._latencies.show()

    # ── peers ───────────────────────────────────────────────────────────────────────────────────

    def on_peer_lost(self, peer: Peer) -> None:
        """Fail what was pending with it, in a way that clients retry."""
        self.results.partial.clear()
        if peer.slot in self.files:
            self.told.on_lost(peer.number, self._now)
            if self.lending is not None:
                self.lending.on_broker_lost(peer.number)
            self.results.on_broker_lost(peer)
        self.results.fail_pending(peer)
        self.plain.cache.clear()

    def on_peer_running(self, peer: Peer) -> None:
        self.plain.cache.clear()

    def follow_metadata(self) -> None:
        """Apply what the controller has committed; cached answers are of the image before. Much at
        once is read in several turns, a step in each: until then the image is the one before."""
        if not self._has_stepped and self.link.is_behind():
            epoch = self.link.epoch
            changes = self.link.catch_up()
            if self.link.epoch != epoch:
                for peer in self.link.others():
                    self.results.fail_pending(peer)
            self.is_midway = self._has_stepped = changes is None
            if changes is None:
                return
            self.image = self.told.image = self.link.follower.image
            self.plain.cache.clear()
            if self.guard is not None:
                self.guard.on_image(self.image)
            self.quotas.on_image(self.image)
            if any(
                isinstance(change, ConfigChanged) and change.resource_type == BROKER_RESOURCE
                for change in changes
            ):
                self._apply_configs()
            if any(isinstance(change, BrokerChanged) for change in changes):
                self._look_at_fences()
            self.words[self._applied_index] = self.image.offset

    def _look_at_fences(self) -> None:
        """Nobody waits for a broker that has been fenced; what it still answers is not wanted."""
        for number in self.told.look_at_fences(self._now):
            peer = self.io_peers[number]
            if peer.incarnation:
                self.results.fail_pending(peer)
            if self.lending is not None:
                self.lending.on_broker_fenced(number)

    @property
    def fenced(self) -> frozenset[int]:
        """Ids of brokers that run, but hang or stop: others lead in their place."""
        return self.told.fenced

    def on_settings(self) -> None:
        """The settings that this was started with have other values."""
        self._apply_configs()
        if self.tls is not None:
            self.tls.on_settings()
        for name, fault in self._doors.renew():
            logger.warning("listener %s keeps the users that it had: %s", name, fault)
        self.plain.cache.clear()  # DescribeConfigs tells them

    def _apply_configs(self) -> None:
        """Settings that may change while this runs; those of the first broker count for all."""
        image = self.image
        layers = broker_layers(
            self.config,
            image.config(BROKER_RESOURCE, str(min(self.ports))),
            image.config(BROKER_RESOURCE, ""),
        )
        self.limits.apply(self.config, layers, self._now)

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
        """The connections of the whole family, as far as the others have said."""
        words = self.words
        others = (words[count] for count, state in self._others if words[state] == STATE_RUNNING)
        away = 0 if self.lending is None else self.lending.away
        return len(self.loop.connections) + away + sum(others)

    def rest_s(self, listener: Listener) -> float:
        """For how long a listener accepts nobody: more come than are let in a second."""
        rest_s = self.limits.rest_s(listener.config.name, self._now)
        if rest_s:
            self.member.tally.add("listeners_rested")
        return rest_s

    def admits(self, address: str, listener: Listener) -> bool:
        """Whether a connection of this address ("": the control socket) is within the limits."""
        if refusal := self.limits.take(address, listener.config.name):
            whom = "address" if refusal.startswith("max.connections.per.ip") else "all"
            self.member.tally.add(f"connections_refused_for_{whom}")
            line = f"closed a new connection of {address} at once: {refusal}"
            kind = f"closed at once by {refusal.partition(' ')[0]}"
            logger.warning("%s", line, extra=logs.seldom(kind))
        return not refusal

    def holds_back(self, accepted: socket.socket, broker_id: int, address: str) -> bool:
        """Whether a new connection of this address comes too early (connection_creation_rate)."""
        quotas = self.quotas
        return quotas.has_rates and quotas.hold_back(accepted, address, broker_id)

    def on_left_accepting(self) -> None:
        """Somebody else has fewer connections: it must be watching."""
        for doorbell in self._siblings.doorbells.values():
            doorbell.ring()

    def on_opened(self, connection: Connection) -> None:
        self.show_open()
        self.member.tally.add("connections_accepted")
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("a connection of %s", connection.peer_name())
        listener = connection.listener
        if listener.door is not None:
            self.wait_for_who(connection)
            listener.door.open(connection)
        elif (self.guard is not None or self.quotas.is_active) and not listener.is_control:
            self.admit(connection, ANONYMOUS)

    def show_open(self) -> None:
        """Let others see how many connections this has, those included that it has lent."""
        lending = self.lending
        away = 0 if lending is None else lending.away
        self.words[self._open_index] = len(self.loop.connections) + away

    def wait_for_who(self, connection: Connection) -> None:
        """It has to show who it is within shmbroker.authentication.timeout.ms."""
        connection.deadline = self._now + self._doors.patience_s[connection.listener.config.name]

    def admit(self, connection: Connection, principal: str, is_by_token: bool = False) -> None:
        """It is known who a connection is: it may ask for what its principal may. is_by_token: a
        delegation token was what it has shown."""
        connection.principal = principal
        connection.is_by_token = is_by_token
        connection.packed_identity = b""
        connection.deadline = NEVER
        guard = self.guard
        connection.submit = self.submit if guard is None else guard.submit
        if guard is not None:
            connection.scope = (connection.listener.broker_id, principal, connection.address)
        if self.quotas.is_active:
            self.quotas.begin(connection)

    def on_refused(self, connection: Connection, why: str) -> None:
        """A client could not show who it is; its connection is about to end."""
        self.member.tally.add("authentications_failed")
        where = f"{connection.peer_name()} on listener {connection.listener.config.name}"
        line = f"did not authenticate {where}: {why}"
        logger.warning("%s", line, extra=logs.seldom(NOT_AUTHENTICATED))

    def _on_denied(
        self, connection: Connection, api: str, denials: list[tuple[int, int, str]]
    ) -> None:
        """ACLs have denied a request, or a part of it: told once, though it may be asked again in
        the same turn."""
        told = (self._now, connection, api, denials)
        if told == self._told_denied:
            return
        self._told_denied = told
        self.member.tally.add("requests_denied")
        if self.audit is not None:
            self.audit.denied(who_is(connection), api, denials)

    def on_closed(self, connection: Connection, reason: str, is_fault: bool) -> None:
        self.limits.release(connection.address, connection.listener.config.name)
        tally = self.member.tally
        tally.add("connections_closed")
        if reason == IDLE:
            tally.add("connections_closed_idle")
        if is_fault:
            is_too_slow = is_slow(reason)
            tally.add("connections_closed_slow" if is_too_slow else "protocol_faults")
            line = f"closed the connection of {connection.peer_name()}: {reason}"
            kind = reason if is_too_slow else PROTOCOL_FAULT
            logger.warning("%s", line, extra=logs.seldom(kind))
        elif logger.isEnabledFor(logging.DEBUG):
            logger.debug("the connection of %s has ended: %s", connection.peer_name(), reason)
        if self.lending is not None:
            self.lending.on_closed(connection)
        self.show_open()
        for request in connection.inflight:
            if type(request) is FetchRequest and request.tokens:
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

    def topic_of(self, topic: Mapping[str, Any], by_id: bool) -> TopicImage | None:
        """The image of a topic that a request names or gives the id of; None if unknown."""
        if by_id:
            return self.image.topics_by_id.get(topic["topic_id"])
        return self.image.topics_by_name.get(topic["name"] if "name" in topic else topic["topic"])

    def create_topics(self, request: Request, names: list[str]) -> None:
        """Have the controller create topics with their defaults; `request` is answered after."""
        self.plain.create_topics(request, names)
        finish = request.finish
        if self.audited is not None and finish is not None:
            who, created = who_is(request.connection), self.audited.created

            def told(body: bytes) -> None:
                created(who, body)
                finish(body)

            request.finish = told
