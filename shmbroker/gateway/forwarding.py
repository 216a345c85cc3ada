"""Requests that are not hot: answered from the metadata image here, or sent to who can answer.

    answer_here   the image knows; the encoded answer is kept for the same bytes until it changes
    forward       an I/O worker or the controller knows: EXECUTE, its EXECUTED becomes the answer
    repeat        the I/O worker has granted a standing answer (`gateway.standing`): given again

Rules of this file:
* What cannot be sent now (a peer that is down, a full ring) holds its connection: `Submit` says
  False, and the frame is tried again.
* Produce and Fetch do not pass here.
"""

from __future__ import annotations

from functools import partial

from shmbroker.apis import table
from shmbroker.apis.controller import create_topics
from shmbroker.apis.gateway import api_versions
from shmbroker.errors import BrokerGoneFault, ProtocolFault
from shmbroker.gateway.audited import AUTO_CREATE_VERSION
from shmbroker.gateway.connection import Connection
from shmbroker.gateway.inflight import PlainRequest
from shmbroker.gateway.recogniser import key_of
from shmbroker.gateway.standing import REQUEST_BYTES_MAX, StandingRepeats
from shmbroker.ipc.control_socket import broker_of
from shmbroker.ipc.operation_layout import EXECUTE_FLAG_BY_USE, pack_identity
from shmbroker.ipc.operation_proxy import try_execute
from shmbroker.ipc.peer import Peer
from shmbroker.known import Known
from shmbroker.wire import codec
from shmbroker.wire.frame import flexible_from, parse_request_header, skip_request_header

ASK_AGAIN_S = 5.0
"""How long a request looks for the active controller before its client has to."""
CACHED_ANSWERS_MAX = 512
CACHED_REQUEST_BYTES_MAX = 1024
INTERNAL_KEYS_FROM = 20000
"""Api keys that only the control socket serves."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from shmbroker.apis.contexts import Api, GatewayApi
    from shmbroker.gateway.listener import Listener
    from shmbroker.gateway.ports import RequestContext, Submit


class PlainApis:
    """The APIs that are not hot. The event loop calls `submits[api key]` for each request."""

    def __init__(self, gateway: RequestContext, standing: StandingRepeats) -> None:
        self.gateway = gateway
        self.to_ask_again: list[tuple[float, PlainRequest]] = []
        """Requests for the active controller, with the time until which they look for it."""
        self.cache: Known[tuple[Listener, bytes, str], bytes] = Known(CACHED_ANSWERS_MAX)
        """Encoded answers of this image, by listener, the bytes that asked, and the address that
        was dialled."""
        self.standing = standing
        self.submits: dict[int, Submit] = {}
        submits = self.submits
        for here in table.IN_NETWORK_WORKER + table.UNADVERTISED:
            submits[here.API_KEY] = partial(self._answer_here, here)
        for module in (*table.IN_IO_WORKER, *table.ON_CONTROL_SOCKET, *table.IN_CONTROLLER):
            submits[module.API_KEY] = partial(self._forward, module, flexible_from(module.API_KEY))
        for module in table.WITH_STANDING_ANSWERS:
            key = module.API_KEY
            submits[key] = partial(self._forward_or_repeat, submits[key], key)

    # ── from the image ──────────────────────────────────────────────────────────────────────────

    def _answer_here(
        self,
        module: GatewayApi,
        connection: Connection,
        buffer: bytearray,
        start: int,
        end: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        """A request that the metadata image answers; its bytes are the key of a cached answer."""
        if end - start > CACHED_REQUEST_BYTES_MAX or module in table.AFRESH:
            key = None
        else:
            key = (connection.listener, key_of(buffer, start, end), connection.host)
        request = PlainRequest(connection, module.API_KEY, version, correlation_id)
        connection.asked_other_at = self.gateway.now()
        connection.inflight.append(request)
        self.gateway.follow_metadata()
        body = self.cache.get(key) if key is not None else None
        if body is None:
            view = memoryview(buffer)[start:end]
            if not module.VERSION_MIN <= version <= module.VERSION_MAX:
                if module is api_versions:
                    request.api_version = 0
                    body = api_versions.unsupported_version()
                else:
                    raise ProtocolFault(f"{module.NAME} version {version}")
            else:
                _, _, _, request.client_id, body_at = parse_request_header(view, 0, end - start)
                decoded = codec.decode_request(module.NAME, version, view, body_at)
                view.release()
                request.decoded = (module, decoded)  # for `finish_again`, perhaps at once
                answer = module.answer(self.gateway, request, decoded)
                if answer is None:
                    return True
                body = codec.encode_response(module.NAME, version, answer)
                if key is not None:
                    self.cache.keep(key, body)
        request.answer(body)
        return True

    def finish_again(self, request: PlainRequest) -> None:
        """What a request waited for is there, or can't be had: answer it from the image now."""
        assert request.decoded is not None, "it was to be answered here"
        module, decoded = request.decoded
        self.gateway.follow_metadata()
        answer = module.answer(self.gateway, request, decoded)
        assert answer is not None, "it asks for topics once"
        body = codec.encode_response(module.NAME, request.api_version, answer)
        request.answer(body)
        self.gateway.touched.add(request.connection)

    def create_topics(self, request: PlainRequest, names: list[str]) -> None:
        """Ask the controller for topics with their defaults; then answer `request` again."""
        version = AUTO_CREATE_VERSION
        body = codec.encode(
            "CreateTopicsRequest",
            version,
            {
                "topics": [
                    {"name": name, "num_partitions": -1, "replication_factor": -1} for name in names
                ],
                "timeout_ms": 10_000,
            },
        )
        controller = self.gateway.link.peer()
        if controller is not None:
            asked = request.client_id, body, _packed_identity(request.connection)
            api = create_topics.API_KEY, version
            if self._ask(request, controller, api, asked, EXECUTE_FLAG_BY_USE):
                request.finish = lambda _body: self.finish_again(request)
                return
        self.finish_again(request)

    # ── from another process ────────────────────────────────────────────────────────────────────

    def _ask(
        self,
        request: PlainRequest,
        peer: Peer,
        api: tuple[int, int],
        asked: tuple[bytes | None, bytes | bytearray, bytes],
        flags: int = 0,
    ) -> bool:
        """Send EXECUTE for a request; False if the ring has no room: then nothing was done.

        api: its key and version. asked: client id, body, packed identity.
        """
        gateway = self.gateway
        token = gateway.token + 1
        client_id, body, identity = asked
        if not try_execute(peer, token, *api, client_id, body, identity, flags):
            return False
        gateway.token = token
        request.token, request.peer = token, peer
        gateway.pending[token] = request
        return True

    def _forward(
        self,
        module: Api,
        flexible_since: int,
        connection: Connection,
        buffer: bytearray,
        start: int,
        end: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        """A request that an I/O worker or the controller answers; False while it can't be asked."""
        api_key = module.API_KEY
        if not module.VERSION_MIN <= version <= module.VERSION_MAX:
            raise ProtocolFault(f"{module.NAME} version {version}")
        listener = connection.listener
        if api_key >= INTERNAL_KEYS_FROM and not listener.is_control:
            raise ProtocolFault(f"unknown api key {api_key}")
        client_id, body_at = skip_request_header(buffer, start, end, version >= flexible_since)
        body = buffer[body_at:end]
        gateway = self.gateway
        identity = _packed_identity(connection)
        request = PlainRequest(connection, api_key, version, correlation_id)
        if api_key not in table.ASKED_BY_GUESTS:
            connection.asked_other_at = connection.last_active
        else:
            connection.asked_offsets_at = connection.last_active
        if api_key in table.CONTROLLER_APIS:
            peer = gateway.link.peer()
            request.forwarded = (client_id, bytes(body), identity)
            if peer is None:  # nobody is the active controller just now: somebody will be
                self.to_ask_again.append((gateway.now() + ASK_AGAIN_S, request))
                connection.inflight.append(request)
                return True
        elif listener.is_control:
            peer = self._control_target(api_key, module.NAME, version, body, client_id)
        else:
            peer = gateway.io_peers.get(listener.broker_id)
            if listener.broker_id in gateway.fenced and peer and peer.incarnation:
                raise BrokerGoneFault(f"broker {peer.number} hangs or stops")
        if peer is None or not peer.incarnation:
            return False
        if not self._ask(request, peer, (api_key, version), (client_id, body, identity)):
            return False
        connection.inflight.append(request)
        return True

    # ── when the active controller changes ──────────────────────────────────────────────────────

    def ask_again(self, request: PlainRequest, now: float) -> None:
        """Ask the active controller: the one that was asked is not, and did nothing."""
        if request.finish is not None:
            self.finish_again(request)
            return
        self.to_ask_again.append((now + ASK_AGAIN_S, request))
        self.retry_asking(now)

    def retry_asking(self, now: float) -> None:
        """Requests that wait for somebody to be the active controller."""
        waiting, self.to_ask_again = self.to_ask_again, []
        peer = self.gateway.link.peer()
        for deadline, request in waiting:
            if request.connection.is_closed:
                continue
            assert request.forwarded is not None
            api = request.api_key, request.api_version
            if peer is not None and self._ask(request, peer, api, request.forwarded):
                continue
            if now >= deadline:
                self.fail_at_controller(request)
                self.gateway.flush(request.connection)
            else:
                self.to_ask_again.append((deadline, request))

    def fail_at_controller(self, request: PlainRequest) -> None:
        """Say NOT_CONTROLLER, and the client will look: it can't be known whether it was done."""
        module, version = table.CONTROLLER_APIS[request.api_key], request.api_version
        assert request.forwarded is not None, "a controller was asked"
        _, asked, _ = request.forwarded
        decoded = codec.decode_request(module.NAME, version, asked)
        answer = module.not_controller(version, decoded)
        body = codec.encode_response(module.NAME, version, answer)
        request.answer(body)
        self.gateway.touched.add(request.connection)

    def _forward_or_repeat(
        self,
        forward: Submit,
        api_key: int,
        connection: Connection,
        buffer: bytearray,
        start: int,
        end: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        """A request that the I/O worker may have granted a standing answer to, or else forwards."""
        if end - start > REQUEST_BYTES_MAX:
            return forward(connection, buffer, start, end, version, correlation_id)
        key = self.standing.repeat(connection, api_key, version, buffer, start, end)
        if key is None:
            connection.asked_other_at = connection.last_active
            connection.has_standing = True
            return True
        if not forward(connection, buffer, start, end, version, correlation_id):
            return False
        request = connection.inflight[-1]
        assert type(request) is PlainRequest, "the one that was forwarded"
        request.standing_key = key
        return True

    def _control_target(
        self,
        api_key: int,
        name: str,
        version: int,
        body: bytearray,
        client_id: bytes | None,
    ) -> Peer:
        """The broker that the body or the client id names: the control socket has no port to tell
        it."""
        io_peers: Mapping[int, Peer] = self.gateway.io_peers
        if api_key < INTERNAL_KEYS_FROM:
            named = broker_of(client_id)
            number = min(io_peers) if named is None else named
        else:
            number = codec.decode_request(name, version, body)["broker_id"]
        peer = io_peers.get(number)
        if peer is None:
            raise ProtocolFault(f"{name} for the unknown broker {number}")
        return peer


def _packed_identity(connection: Connection) -> bytes:
    """The identity of a connection's client, packed once."""
    if not connection.packed_identity:
        connection.packed_identity = pack_identity(connection.identity)
    return connection.packed_identity
