"""Client quotas in a gateway: who is over a bound is answered at once, told for how long, and not
read from until then (KIP-13, KIP-124, KIP-219); addresses that connect too often (KIP-612).

   frame ─► Quotas.submit ─► what serves it ─► answer complete ─► Throttle.charge ─► sent
             whose limits?                                          │ over a bound:
             a Bill with its size                                   └ throttle_time_ms, muted

   what          is counted                                    against
   Produce       bytes of its frame, when it is answered       producer_byte_rate
   Fetch         bytes of its answer, before it is built       consumer_byte_rate
   any           time that this worker took to start it        request_percentage
   connecting    connections of the address                    connection_creation_rate

Rules of this file:
* While there is no quota of users or client ids at all, nothing of this is in the way of a request:
  `submits` is the table of the APIs as it is, and no connection has a Throttle.
* A Fetch that is over a bound is answered without records, and its bytes are not counted.
* Quotas hold for each broker, as in Kafka: what is counted together is known by the broker as well.
  All workers see what each has counted (`shm.quota_counts`).
* A client of the control socket is held to nothing.
* An address that connects too often is not told so: its connection is closed, a little later.
* Partitions that are made and deleted are counted by the controller (`controller.mutation_quotas`);
  its answer says for how long its client is muted.
"""

from __future__ import annotations

from functools import partial
from math import ceil
from typing import NamedTuple

from shmbroker.metadata.quota_image import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from shmbroker.security.quotas import quota_of
from shmbroker.shm.address_counts import packed_address
from shmbroker.wire import api_keys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable
    from typing import Any

    from shmbroker.clock import Clock
    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.event_loop import EventLoop
    from shmbroker.gateway.inflight import Request
    from shmbroker.gateway.later import Later
    from shmbroker.gateway.ports import Submit
    from shmbroker.metadata.image import MetadataImage
    from shmbroker.shm.counters import Tally
    from shmbroker.shm.quota_counts import QuotaCounts

NS_OF_ONE_PERCENT = 10_000_000
"""One percent of each second."""

KNOWN_MAX = 4096
"""Users with their client ids whose limits are remembered."""
KNOWN_ID_BYTES_MAX = 255
"""The longest client id of them: one may have 32 KiB, and each request another."""

LATE_MAX = 256
"""Connections that wait for being closed; beyond that the first of them is closed at once."""

MUTED_LOOK_S = 30.0
"""The longest that a connection is kept for being unmuted which has ended meanwhile."""

INT_MAX = (1 << 31) - 1

_OF_CLIENTS = frozenset(
    (
        PRODUCER_BYTE_RATE,
        CONSUMER_BYTE_RATE,
        REQUEST_PERCENTAGE,
        CONTROLLER_MUTATION_RATE,
    )
)
_COUNTED_BY_CONTROLLER = frozenset(
    (api_keys.CREATE_TOPICS, api_keys.DELETE_TOPICS, api_keys.CREATE_PARTITIONS)
)
"""The APIs whose answers begin with the throttle time."""
_EXEMPT = frozenset((api_keys.WRITE_TXN_MARKERS,))
"""What coordinators ask each other counts for no client's time, as in Kafka."""
_CLIENT_ID_AT = 8
_KEY_BYTES = 8


class Bound(NamedTuple):
    """A bound of one client: what is counted together with it, and how much it may be."""

    key: int
    per_second: float


class ClientLimits(NamedTuple):
    """What holds for a user with a client id, on one broker."""

    produce: Bound | None
    fetch: Bound | None
    request: Bound | None
    """The bound on request time, in nanoseconds."""
    fetch_bytes_most: int
    """More in one answer would be over the bound after any rest."""


class Bill(NamedTuple):
    """What a request is to be charged when its answer is complete."""

    limits: ClientLimits
    frame_bytes: int
    used_ns: int


class Throttle:
    """What one connection has to be charged for."""

    __slots__ = ("_bills", "_connection", "_known", "_quotas", "began_ns", "until")

    def __init__(self, quotas: Quotas, connection: Connection) -> None:
        self._quotas = quotas
        self._connection = connection
        self._bills: dict[Request, Bill] = {}
        self._known: tuple[bytes | None, ClientLimits | None] | None = None
        """The client id that was asked for last, and its limits."""
        self.began_ns = 0
        """When the request that is being started was; 0: none is."""
        self.until = 0.0
        """Monotonic seconds up to which it is not read from."""

    def forget_limits(self) -> None:
        """The quotas have changed."""
        self._known = None

    def limits(self, client_id: bytes | None) -> ClientLimits | None:
        """The limits of its user with a client id; None: it has none."""
        known = self._known
        if known is None or known[0] != client_id:
            connection = self._connection
            broker_id, principal = connection.listener.broker_id, connection.principal
            limits = self._quotas.limits_of(broker_id, principal, client_id or b"")
            self._known = known = client_id, limits
        return known[1]

    def expect(self, request: Request, bill: Bill) -> None:
        """Note that a request is to be charged when its answer is complete."""
        self._bills[request] = bill

    def charge(self, inflight: Iterable[Request]) -> None:
        """Charge the next answers that are complete: what they used is counted, and they say for
        how long this connection is not read from."""
        bills = self._bills
        if not bills:
            return
        for request in inflight:
            if request.response is None:
                return
            bill = bills.pop(request, None)
            if bill is None or request.api_key == api_keys.FETCH:
                continue
            frame_bytes = bill.frame_bytes if request.api_key == api_keys.PRODUCE else 0
            used_ns = 0 if request.api_key in _EXEMPT else bill.used_ns
            throttle_ms = self.use(bill.limits, frame_bytes, used_ns)
            if throttle_ms:
                request.mend(partial(_with_throttle_time, request, throttle_ms))

    def use(self, limits: ClientLimits, frame_bytes: int, used_ns: int) -> int:
        """Count this; milliseconds for which the connection is muted, 0: it is not."""
        quotas = self._quotas
        produce_ms = quotas.record(limits.produce, frame_bytes) if frame_bytes else 0
        request_ms = quotas.record_time(limits.request, used_ns)
        if not (produce_ms or request_ms):
            return 0
        kind = "produce" if produce_ms >= request_ms else "request"
        return quotas.mute(self._connection, max(produce_ms, request_ms), kind)

    def fetch_bytes_most(self, client_id: bytes | None) -> int:
        """What a READ may be answered with at most."""
        limits = self.limits(client_id)
        return INT_MAX if limits is None else limits.fetch_bytes_most

    def use_fetch(self, request: Request, answer_bytes: int) -> int:
        """Count an answer with so many bytes, unless it is to be given without them: milliseconds
        for which the connection is muted then; 0: it may be given."""
        limits = self.limits(request.client_id)
        if limits is None:
            return 0
        quotas = self._quotas
        bill = self._bills.pop(request, None)
        if bill is not None:
            used_ns = bill.used_ns
        else:  # answered as it is started, or started before there was a quota for it
            used_ns = quotas.now_ns() - self.began_ns if self.began_ns else 0
        request_ms = quotas.record_time(limits.request, used_ns)
        fetch_ms = quotas.record(limits.fetch, answer_bytes)
        if not (fetch_ms or request_ms):
            return 0
        if limits.fetch is not None:
            quotas.take_back(limits.fetch, answer_bytes)
        kind = "fetch" if fetch_ms >= request_ms else "request"
        return quotas.mute(self._connection, max(fetch_ms, request_ms), kind)


class Quotas:
    """The quotas of one gateway."""

    def __init__(
        self,
        clock: Clock,
        loop: EventLoop,
        later: Later,
        counts: QuotaCounts,
        tally: Tally,
        submits: dict[int, Submit],
        image: MetadataImage,
    ) -> None:
        """submits: what clients may ask for. The quotas stand in it while there are any."""
        self._later = later
        self._submits = submits
        self._without = dict(submits)
        self._clock = clock
        self._loop = loop
        self._counts = counts
        self._tally = tally
        self._image = image
        self.is_active = False
        """Whether there are quotas of users or client ids."""
        self.has_rates = False
        """Whether there are quotas of addresses."""
        self._late: dict[socket.socket, None] = {}
        """Connections that are closed a little later, the oldest first."""
        self._known: dict[tuple[int, str, bytes], ClientLimits | None] = {}
        self._rates: dict[bytes, float] = {}
        self._default_rate: float | None = None
        self._look()

    # ── who has which ───────────────────────────────────────────────────────────────────────────

    def on_image(self, image: MetadataImage) -> None:
        """The metadata have changed."""
        before, self._image = self._image, image
        if image.security is before.security or image.security.quotas == before.security.quotas:
            return
        was_active = self.is_active
        self._look()
        for connection in self._loop.connections.values():
            if not self.is_active:
                connection.throttle = None
            elif connection.throttle is not None:
                connection.throttle.forget_limits()
            elif not was_active and connection.stranger is None:
                self.begin(connection)

    def _look(self) -> None:
        quotas = self._image.security.quotas
        self._known.clear()
        self._rates.clear()
        self._default_rate = None
        self.is_active = any(not _OF_CLIENTS.isdisjoint(values) for values in quotas.values())
        for entity, values in quotas.items():
            rate = values.get(CONNECTION_CREATION_RATE)
            if rate is None or len(entity) > 1 or entity[0][0] != IP:
                continue
            if (address := entity[0][1]) is None:
                self._default_rate = rate
                continue
            try:
                self._rates[packed_address(address)] = rate
            except OSError:
                continue  # a host's name, out of a directory of Kafka's
        self.has_rates = bool(self._rates) or self._default_rate is not None
        if self.is_active:
            for key, submit in self._without.items():
                self._submits[key] = partial(self.submit, key, submit)
        else:
            self._submits.update(self._without)

    def begin(self, connection: Connection) -> None:
        """Charge a connection from now on: it is known who it is."""
        if self.is_active and not connection.listener.is_control:
            connection.throttle = Throttle(self, connection)

    def limits_of(self, broker_id: int, principal: str, client_id: bytes) -> ClientLimits | None:
        """What holds for a client on a broker; None: nothing does."""
        place = broker_id, principal, client_id
        if place in self._known:
            return self._known[place]
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        user = principal.partition(":")[2]
        name = client_id.decode(errors="replace")

        def bound(key: str, unit: float = 1.0) -> Bound | None:
            held = quota_of(self._image.security.quotas, key, user, name)
            if held is None:
                return None
            return Bound(_key(key, broker_id, held.user, held.client_id), held.bound * unit)

        limits: ClientLimits | None = None
        produce, fetch = bound(PRODUCER_BYTE_RATE), bound(CONSUMER_BYTE_RATE)
        request = bound(REQUEST_PERCENTAGE, NS_OF_ONE_PERCENT)
        if produce or fetch or request:
            limits = ClientLimits(produce, fetch, request, self._most(fetch))
        if len(client_id) <= KNOWN_ID_BYTES_MAX:
            self._known[place] = limits
        return limits

    def _most(self, fetch: Bound | None) -> int:
        if fetch is None:
            return INT_MAX
        windows = self._counts.windows
        seconds = max(1, windows.number - 1) * windows.length_ms / 1000
        most = fetch.per_second * seconds
        return int(most) if most < INT_MAX else INT_MAX

    # ── requests ────────────────────────────────────────────────────────────────────────────────

    def submit(
        self,
        api_key: int,
        inner: Submit,
        connection: Connection,
        buffer: bytearray,
        start: int,
        end: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        """What stands before that of an API (`apis.contexts.Submit`)."""
        throttle = connection.throttle
        limits = None
        if throttle is not None:
            limits = throttle.limits(_client_id(buffer, start, end))
        if throttle is None or limits is None:
            return inner(connection, buffer, start, end, version, correlation_id)
        inflight = connection.inflight
        before = len(inflight)
        throttle.began_ns = began_ns = self.now_ns()
        is_started = inner(connection, buffer, start, end, version, correlation_id)
        throttle.began_ns = 0
        if not is_started:
            return False
        used_ns = self.now_ns() - began_ns
        if len(inflight) > before:
            request = inflight[-1]
            if api_key != api_keys.FETCH or request.response is None:
                throttle.expect(request, Bill(limits, end - start, used_ns))
        elif api_key == api_keys.PRODUCE and not connection.is_closed:
            throttle.use(limits, end - start, 0)  # acks=0: its time is nobody's, as in Kafka
        return True

    def record(self, bound: Bound | None, amount: int) -> int:
        """Count so much; how many milliseconds it is too early, 0: it is within the bound."""
        if bound is None:
            return 0
        now_ms = self.now_ns() // 1_000_000
        return self._counts.record(bound.key, amount, now_ms).throttle_ms(bound.per_second)

    def record_time(self, bound: Bound | None, used_ns: int) -> int:
        """Record time that was used, as `record` does: nobody is muted for longer than a window."""
        return min(self.record(bound, used_ns), self._counts.windows.length_ms)

    def take_back(self, bound: Bound, amount: int) -> None:
        """What was counted last was not given."""
        self._counts.take_back(bound.key, amount, self.now_ns() // 1_000_000)

    def now_ns(self) -> int:
        """The time of this moment, not of this turn."""
        return self._clock.monotonic_ns()

    # ── what is due later ───────────────────────────────────────────────────────────────────────

    def on_answer(self, request: Request, body: bytes) -> None:
        """The controller has answered this."""
        if request.api_key in _COUNTED_BY_CONTROLLER:
            throttle_ms = int.from_bytes(body[:4], "big")
            if throttle_ms and request.connection.throttle is not None:
                self.mute(request.connection, throttle_ms, "mutation")

    def mute(self, connection: Connection, throttle_ms: int, kind: str) -> int:
        """Read nothing more from it for so long; the same number."""
        self._tally.add(f"throttled_{kind}")
        self._tally.add(f"throttled_{kind}_ms", throttle_ms)
        throttle = connection.throttle
        if not connection.is_closed and throttle is not None:
            self._mute(connection, throttle, throttle_ms)
        return throttle_ms

    def _mute(self, connection: Connection, throttle: Throttle, throttle_ms: int) -> None:
        until = self._clock.monotonic() + throttle_ms / 1000
        if until > throttle.until:
            throttle.until = until
            self._unmute_later(connection, until)
        self._loop.mute(connection)

    def muted_ms(self, connection: Connection) -> int:
        """For how long it is not to be read from yet."""
        throttle = connection.throttle
        if throttle is None:
            return 0
        return max(0, ceil((throttle.until - self._clock.monotonic()) * 1000))

    def keep_muted(self, connection: Connection, throttle_ms: int) -> None:
        """It was told so elsewhere, perhaps of a quota that is not known here yet."""
        if connection.throttle is None:
            connection.throttle = Throttle(self, connection)
        self._mute(connection, connection.throttle, throttle_ms)

    def read_on(self, connection: Connection) -> None:
        """Have a muted connection read again, unless a quota has muted it, too."""
        if not self.muted_ms(connection):
            self._loop.unmute(connection)

    def _unmute_later(self, connection: Connection, until: float) -> None:
        due = min(until, self._clock.monotonic() + MUTED_LOOK_S)
        self._later.at(due, partial(self._unmute, connection, until))

    def _unmute(self, connection: Connection, until: float) -> None:
        throttle = connection.throttle
        if connection.is_closed or (throttle is not None and throttle.until > until):
            return
        if self._clock.monotonic() < until:
            self._unmute_later(connection, until)
        else:
            self._loop.unmute(connection)

    def hold_back(self, accepted: socket.socket, address: str, broker_id: int) -> bool:
        """Whether a new connection is one too many of its address in this time: then it is closed
        when the time is over."""
        packed = packed_address(address)
        rate = self._rates.get(packed, self._default_rate)
        if rate is None:
            return False
        bound = Bound(_key(CONNECTION_CREATION_RATE, broker_id, packed.hex(), ""), rate)
        throttle_ms = self.record_time(bound, 1)
        if not throttle_ms:
            return False
        self.take_back(bound, 1)
        self._tally.add("connections_refused_for_rate")
        self._late[accepted] = None
        if len(self._late) > LATE_MAX:
            self._end_late(next(iter(self._late)))
        until = self._clock.monotonic() + throttle_ms / 1000
        self._later.at(until, partial(self._end_late, accepted))
        return True

    def _end_late(self, accepted: socket.socket) -> None:
        self._late.pop(accepted, None)
        accepted.close()

    def close(self) -> None:
        """End what waits for being closed."""
        for accepted in list(self._late):
            self._end_late(accepted)


def _client_id(buffer: bytearray, start: int, end: int) -> bytes | None:
    """The client id of a frame, None where it has none; of a frame that has no room for it, too:
    who decodes it says what is wrong with it."""
    at = start + _CLIENT_ID_AT
    length = int.from_bytes(buffer[at : at + 2], "big", signed=True)
    if length < 0 or at + 2 + length > end:
        return None
    return bytes(buffer[at + 2 : at + 2 + length])


def _with_throttle_time(request: Request, throttle_ms: int, body: bytes) -> bytes:
    """An answer with the time in it, in versions that have room for it."""
    from shmbroker.wire import codec

    name = api_keys.name_of(request.api_key) + "Response"
    answer: dict[str, Any] = codec.decode_all(name, request.api_version, body)
    if "throttle_time_ms" not in answer:
        return body
    answer["throttle_time_ms"] = max(throttle_ms, answer["throttle_time_ms"])
    return codec.encode(name, request.api_version, answer)


def _key(*parts: object) -> int:
    """A number for what is counted together; never 0."""
    packed = repr(parts).encode()
    from hashlib import blake2b  # OpenSSL is a few MiB: nothing for a start

    return int.from_bytes(blake2b(packed, digest_size=_KEY_BYTES).digest(), "little") or 1
