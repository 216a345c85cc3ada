"""A gateway: client connections on one side, rings on the other. A network worker runs one.

A turn:
  1  follow the metadata log as far as it is committed, as a client may use what another was told a
     moment ago; then handle what came from sockets: read frames, start requests, whose operations
     go to rings
  2  publish them, ring the doorbells of those who sleep
  3  take results from the rings
  4  complete requests, send answers in request order

    Gateway             takes the turns, follows the metadata
    ├─ .loop            the sockets                                  event_loop.py
    ├─ .clients         who may come, who it is, what ends with it   clients.py
    ├─ .tables          who starts which request                     submit_tables.py
    ├─ .produce         what is done with it                         produce.py
    ├─ .fetch                                                        fetch.py
    ├─ .plain                                                        forwarding.py
    ├─ .results         what comes back over the rings               results.py
    ├─ .told            what clients are told of the brokers         brokers_told.py
    └─ .shown           what others may see                          shown.py

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
from typing import Any

from shmbroker import logs, signs
from shmbroker.apis import table
from shmbroker.apis.contexts import MetadataLink
from shmbroker.clock import Clock
from shmbroker.gateway import fetch, produce
from shmbroker.gateway.brokers_told import BrokersTold
from shmbroker.gateway.clients import Clients
from shmbroker.gateway.connection import Connection, Traffic
from shmbroker.gateway.crowd import Crowd
from shmbroker.gateway.doors import Doors
from shmbroker.gateway.drain import Drain
from shmbroker.gateway.event_loop import EventLoop
from shmbroker.gateway.forwarding import PlainApis
from shmbroker.gateway.inflight import PlainRequest, Request
from shmbroker.gateway.later import Later
from shmbroker.gateway.listener import Listener
from shmbroker.gateway.poller import Poller
from shmbroker.gateway.quotas import Quotas
from shmbroker.gateway.results import Results
from shmbroker.gateway.shown import GatewayShown
from shmbroker.gateway.standing import StandingRepeats
from shmbroker.gateway.submit_tables import SubmitTables
from shmbroker.gateway.sweep import Sweep
from shmbroker.ipc.awake import Awake
from shmbroker.ipc.core import EVENTS, NOTHING, Core
from shmbroker.ipc.member import BACKLOG_RETRY_S, FamilyMember
from shmbroker.ipc.peer import Peer
from shmbroker.metadata.changes import BrokerChanged, ConfigChanged
from shmbroker.metadata.image import BROKER_RESOURCE, TopicImage
from shmbroker.security.tokens import key_of
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.settings.layers import broker_layers
from shmbroker.shm.counters import (
    METADATA_APPLIED,
    METADATA_END_OFFSET_WORD,
    STATE,
    STATE_UNABLE,
)
from shmbroker.shm.latencies import SAMPLED, Latencies, table_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.gateway.lending import Lending
    from shmbroker.gateway.ports import Brokers, Siblings, Submit
    from shmbroker.gateway.standing_ready import StandingReady
    from shmbroker.gateway.tls import TlsListeners

logger = logging.getLogger(__name__)

SWEEP_INTERVAL_S = 1.0
APPEND_BYTES_MAX = 64 * 1024
"""The largest append whose answer is waited for awake: a larger one takes several times as long."""
SOCKETS_BETWEEN = (16, 2)
"""An answer comes from a ring, the request after it from a socket."""
RETRY_S = 0.02
FRAMES_BUFFERED_BYTES_MAX = 48 << 20
"""What all network workers hold of frames that are still arriving, unless queued.max.request.bytes
says otherwise."""
MEASURED_TOGETHER = 64
"""The number of answers that are looked at in one go: it is cheaper, and no client waits for it."""


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
        self.ahead_ends = brokers.ahead_ends
        self.image = link.follower.image
        self.advertised = table.advertised()
        self.log_levels = log_levels
        self._sweep = Sweep(self, give_back)
        listeners = list(listeners)
        self._build_told(brokers, listeners)
        served = self._build_apis(brokers, siblings)
        self.tables = SubmitTables(served, config, self.image, member.tally, self.now)
        self.guard = self.tables.guard
        self._doors = Doors(self, listeners, stranger_secret, do_aside)
        self.clients = Clients(self, self.tables, siblings, self._doors.patience_s)
        self._build_loop(listeners, siblings)
        self._applied_index = member.counters.at(member.index, METADATA_APPLIED)
        latencies = latencies or Latencies(memoryview(bytearray(table_bytes())))
        self.shown = GatewayShown(clock, member, latencies)
        self.turns = 0
        """How many it has taken."""
        self._now = clock.monotonic()
        self._next_sweep = self._now + SWEEP_INTERVAL_S
        self._apply_configs()
        self.awake = Awake(
            Core(clock.monotonic, member.rings, poller), sockets_between=SOCKETS_BETWEEN
        )
        self._crowd = Crowd()
        self.crowd_rest_s = 0.0
        """How long to stay away before the next turn, so that more heartbeats come together."""
        self._drain: Drain | None = None
        self.lending: Lending | None = None
        """What is told of the connections, where some go from one process to another."""
        self.standing_ready: StandingReady | None = None
        """What takes the events that standing answers are enough for; None beside a broker."""
        self._has_stepped = False
        """`follow_metadata` has done its step of this turn, and there are more."""
        self.is_midway = False
        """More is committed than the image has, and some of it was read."""

    def _build_told(self, brokers: Brokers, listeners: list[Listener]) -> None:
        """What clients are told of the brokers. What the API modules ask is answered by who knows
        it."""
        self.told = told = BrokersTold(self.image, self.config, brokers.peers, listeners, self.link)
        self.ports = told.ports
        self.io_peer = told.io_peer
        self.live_brokers = told.live_brokers
        self.controller_broker_id = told.controller_broker_id
        self.broker_rows = told.broker_rows
        self.identity_of = told.identity_of
        self.leader_hint = told.leader_hint
        self.node_endpoints = told.node_endpoints
        self.add_leader_hints = told.add_leader_hints

    def _build_apis(self, brokers: Brokers, siblings: Siblings) -> dict[int, Submit]:
        """What serves each API, by its key; and who takes the results."""
        self.produce = produce.ProduceApi(self)
        self.fetch = fetch.FetchApi(
            self, siblings.place, len(siblings.doorbells) + 1, siblings.guests
        )
        self.standing = StandingRepeats(brokers.standing)
        self.plain = PlainApis(self, self.standing)
        self.results = Results(self)
        return self.plain.submits | {
            produce.API_KEY: self.produce.submit,
            fetch.API_KEY: self.fetch.submit,
        }

    def _build_loop(self, listeners: list[Listener], siblings: Siblings) -> None:
        """The event loop, its listeners, and what stands before each of them; the quotas of those
        who come by them."""
        config = self.config
        arriving_bytes_max = config["queued.max.request.bytes"]
        if arriving_bytes_max <= 0:
            arriving_bytes_max = FRAMES_BUFFERED_BYTES_MAX
        self.loop = EventLoop(
            self.clients,
            config["socket.request.max.bytes"],
            arriving_bytes_max // (len(siblings.doorbells) + 1),
            self.poller,
            Traffic(self.clock.monotonic),
        )
        self.later = Later()
        for listener in listeners:
            listener.door = self._doors.before(listener)
            self.loop.acceptor.add(listener)
        self.tls: TlsListeners | None = None
        if any(listener.tls is not None for listener in listeners):
            from shmbroker.gateway.tls import TlsListeners  # OpenSSL is a few MiB

            self.tls = TlsListeners(
                listeners,
                self.loop,
                config,
                self.clients.admit,
                siblings.place == 0,
                self.clock.now_ms,
            )
        self.quotas = Quotas(
            self.clock,
            self.loop,
            self.later,
            siblings.quota_counts,
            self.member.tally,
            self.tables.of_admitted,
            self.image,
        )

    # ── turns ───────────────────────────────────────────────────────────────────────────────────

    def may_begin(self) -> bool:
        """Follow the metadata log: nobody is accepted before the brokers of this start are known,
        but for those that can't boot."""
        self.member.look_at_announcements(self)
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
        self.loop.acceptor.watch(self.clients.may_accept())

    def turn(self, events: list[tuple[int, int]]) -> float:
        """One pass over what the poller has returned: for how long nothing is due after it."""
        self.read(events)
        return self.answer()

    def read(self, events: list[tuple[int, int]]) -> None:
        """Do the first half of a turn: what came from sockets goes to the rings."""
        loop = self.loop
        self.turns += 1
        self._now = self.clock.monotonic()
        self._has_stepped = False
        # Before the frames: a client may use what another was told a moment ago.
        if self.words[METADATA_END_OFFSET_WORD] != self.image.offset:
            self.follow_metadata()
        if self.fetch.ahead.awaited_turns:
            self.fetch.ahead.awaited_turns -= 1
            self.results.take()
        if self.standing_ready is not None:
            events = self.standing_ready.take(events)
        loop.handle(events)
        if not loop.acceptor.is_watching and not self.must_stop and self.clients.may_accept():
            loop.acceptor.watch(True)
        if self.turns % SAMPLED == 0:
            self.shown.sample(self._now)
        self.member.publish()

    def answer(self) -> float:
        """The second half: what is on the rings goes to the sockets. For how long nothing is due
        after it."""
        loop = self.loop
        plain = self.plain
        results = self.results
        member = self.member
        now = self._now
        if results.waiting_reads:
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
            self.shown.measure(loop.traffic.answered)
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_INTERVAL_S
            self._sweep.run(now)
        if self.lending is not None:
            self.lending.run(now)
        member.sign(now)
        rest_s = self._crowd.rest_s(now, self.standing.repeated, self.token)
        self.crowd_rest_s = 0.0 if self.pending else rest_s
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
            or self.results.waiting_reads
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
            self.results.end_waiting_reads()
        requests = sum(request.api_key not in table.WAITING for request in self.pending.values())
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
        self.shown.show(self.turns, self.loop, len(self.pending))

    def look_before_sleep(self) -> list[tuple[int, int]] | None:
        """What came from sockets while this stayed awake for it; None where it is time to sleep."""
        pending = self.pending
        waits = False
        if pending:
            api_key = pending[next(reversed(pending))].api_key
            is_small = self.append_bytes <= APPEND_BYTES_MAX
            waits = is_small if api_key == produce.API_KEY else api_key in table.SOON_ANSWERED
        came = self.awake.look(waits)
        if came == NOTHING:
            return None
        return self.awake.core.events if came == EVENTS else []

    # ── peers ───────────────────────────────────────────────────────────────────────────────────

    def on_peer_lost(self, peer: Peer) -> None:
        """Fail what was pending with it, in a way that clients retry."""
        if peer.slot in self.files:
            self.told.on_lost(peer.number, self._now)
            if self.lending is not None:
                self.lending.on_broker_lost(peer.number)
        self.results.on_peer_lost(peer)
        self.plain.cache.clear()

    def on_peer_running(self, peer: Peer) -> None:
        if peer.slot in self.files:
            self.told.on_running(peer.number)
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
        """End the waits for brokers that have been fenced; what they still answer is not wanted."""
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
        self.clients.limits.apply(self.config, layers, self._now)

    # ── what the API modules ask ────────────────────────────────────────────────────────────────

    def now(self) -> float:
        return self._now

    def flush(self, connection: Connection) -> None:
        """Send the answers that are complete."""
        self.loop.flush(connection)

    def close_connection(self, connection: Connection, reason: str) -> None:
        """End a connection for a fault of its client."""
        self.loop.close(connection, reason, is_fault=True)

    def topic_of(self, topic: Mapping[str, Any], by_id: bool) -> TopicImage | None:
        """The image of a topic that a request names or gives the id of; None if unknown."""
        if by_id:
            return self.image.topics_by_id.get(topic["topic_id"])
        return self.image.topics_by_name.get(topic["name"] if "name" in topic else topic["topic"])

    def create_topics(self, request: PlainRequest, names: list[str]) -> None:
        """Have the controller create topics with their defaults; `request` is answered after."""
        self.plain.create_topics(request, names)
        self.tables.note_created(request)
