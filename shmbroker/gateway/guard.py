"""Rights, asked before anybody acts on a request, where an authorizer is configured.

   frame ──► rule of its API ──┬─ all is allowed: on, as it came
                               ├─ a part is: on without the rest, and the answer is mended
                               └─ nothing is: answered here

Rules of this file:
* It stands around what the gateway does with each API (`submits`). Without an authorizer there is
  no guard, and nothing is asked.
* Produce and Fetch ask it row by row where they are decoded; what they recognise by its bytes was
  allowed under the same ACLs (`recogniser.TopicMeaning`).
* A client of the control socket may open the files as well: no right of it is asked for.
"""

from __future__ import annotations

from functools import partial

from shmbroker.gateway.inflight import Request
from shmbroker.security.access.asker import Asker, Refused
from shmbroker.security.access.rules import RULES
from shmbroker.security.acls import CLUSTER, WILDCARD
from shmbroker.security.authorizer import Authorizer
from shmbroker.security.rights import Rights
from shmbroker.wire import codec
from shmbroker.wire.frame import parse_request_header

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from shmbroker.apis.contexts import Api
    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.ports import Submit
    from shmbroker.metadata.image import MetadataImage
    from shmbroker.security.access.asker import Message, Rule
    from shmbroker.settings.broker_config import BrokerConfig

    Denial = tuple[int, int, str]
    """Operation, resource type and name."""


class Guard:
    """The rights of a gateway's clients; `submits` is what stands before that of the APIs."""

    def __init__(
        self,
        config: BrokerConfig,
        image: MetadataImage,
        apis: Iterable[Api],
        submits: Mapping[int, Submit],
        on_denied: Callable[[Connection, str, list[Denial]], None] = lambda *_: None,
    ) -> None:
        self._rights = Rights(config, image)
        """on_denied: told of what a request of an API was denied."""
        self._on_denied = on_denied
        self._super_users = config.super_users
        self._is_open = config["allow.everyone.if.no.acl.found"]
        self._image = image
        self._authorizer = self._rights.authorizer
        self.submits: dict[int, Submit] = dict(submits)
        for api in apis:
            rule = RULES[api.API_KEY]
            if rule is not None:
                self.submits[api.API_KEY] = partial(self._judge, api, rule, submits[api.API_KEY])

    def on_image(self, image: MetadataImage) -> None:
        """The metadata have changed."""
        self._image = image
        self._rights.on_image(image)
        self._authorizer = self._rights.authorizer

    def asker(self, connection: Connection) -> Asker:
        """The client that asks by a connection."""
        who = connection.identity
        return Asker(who.principal, who.host, self._authorizer, self._image, who.may_have_tokens)

    def may(
        self, connection: Connection, api: str, operation: int, resource_type: int, name: str
    ) -> bool:
        """Whether the client of a connection may do this, as a request of this API asks for."""
        is_allowed = self.lets(connection, operation, resource_type, name)
        if not is_allowed:
            self._on_denied(connection, api, [(operation, resource_type, name)])
        return is_allowed

    def lets(self, connection: Connection, operation: int, resource_type: int, name: str) -> bool:
        """Whether the client may, as `may` says, but told to nobody: where it may not, `may` is
        asked again."""
        return self._authorizer.allows(
            connection.principal, connection.address, operation, resource_type, name
        )

    def _judge(
        self,
        api: Api,
        rule: Rule,
        submit: Submit,
        connection: Connection,
        buffer: bytearray,
        start: int,
        end: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        if not api.VERSION_MIN <= version <= api.VERSION_MAX:
            return submit(connection, buffer, start, end, version, correlation_id)
        view = memoryview(buffer)[start:end]
        body_at = parse_request_header(view, 0, end - start)[-1]
        body = codec.decode_request(api.NAME, version, view, body_at)
        head = bytes(view[:body_at])
        view.release()
        outcome = rule(self.asker(connection), version, body)
        if outcome is None:
            return submit(connection, buffer, start, end, version, correlation_id)
        if isinstance(outcome, Refused) or outcome.body is not None:
            self._tell(connection, api, rule, version, body)
        if isinstance(outcome, Refused):
            request = Request(connection, api.API_KEY, version, correlation_id)
            connection.inflight.append(request)
            request.answer(codec.encode_response(api.NAME, version, outcome.answer))
            return True
        if outcome.body is not None:
            buffer = bytearray(head + codec.encode(api.NAME + "Request", version, outcome.body))
            start, end = 0, len(buffer)
        if not submit(connection, buffer, start, end, version, correlation_id):
            return False
        connection.inflight[-1].mend(_mended(api, version, outcome.after))
        return True

    def _tell(
        self, connection: Connection, api: Api, rule: Rule, version: int, body: Message
    ) -> None:
        """Ask once more, and note what was denied: only who is denied something pays for it."""
        noted = Noted(self._authorizer)
        rule(self.asker(connection)._replace(authorizer=noted), version, body)
        self._on_denied(connection, api.NAME, noted.told())


class Noted(Authorizer):
    """Decides as another one does, and remembers what it denies."""

    def __init__(self, other: Authorizer) -> None:
        self._other = other
        self.denials: list[Denial] = []

    def told(self) -> list[Denial]:
        """The denials, without the right on the cluster that would have stood for one on each
        thing."""
        of_things = {operation for operation, type_, _ in self.denials if type_ != CLUSTER}
        return [each for each in self.denials if each[1] != CLUSTER or each[0] not in of_things]

    def allows(
        self, principal: str, host: str, operation: int, resource_type: int, name: str
    ) -> bool:
        """Ask the other one, and note what it denies."""
        is_allowed = self._other.allows(principal, host, operation, resource_type, name)
        if not is_allowed:
            self.denials.append((operation, resource_type, name))
        return is_allowed

    def allows_some(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        """Ask the other one, and note what it denies."""
        is_allowed = self._other.allows_some(principal, host, operation, resource_type)
        if not is_allowed:
            self.denials.append((operation, resource_type, WILDCARD))
        return is_allowed

    def operations(self, principal: str, host: str, resource_type: int, name: str) -> int:
        """Ask the other one."""
        return self._other.operations(principal, host, resource_type, name)

    def is_super(self, principal: str) -> bool:
        """Ask the other one."""
        return self._other.is_super(principal)


def _mended(
    api: Api, version: int, after: Callable[[Message], Message]
) -> Callable[[bytes], bytes]:
    """What a rule does to an answer, to its encoded body."""
    name = api.NAME + "Response"

    def mend(body: bytes) -> bytes:
        return codec.encode(name, version, after(codec.decode_all(name, version, body)))

    return mend
