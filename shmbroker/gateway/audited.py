"""The audit of a gateway: what its clients were denied and have changed (`shmbroker.audit`).

   frame ──► Audited._submit ──► guard ──► what answers
                  ▲                            │
                  └── a line ◄──── answer ─────┘

Rules of this file:
* It stands around the APIs that change something, outside of the guard, where both request and
  answer are whole. It decodes both once more: changes are rare.
* Without `shmbroker.audit` there is none of it; and nothing stands around any other API.
"""

from __future__ import annotations

from functools import partial

from shmbroker.audit import Audit, Who
from shmbroker.gateway.door import peer_credentials
from shmbroker.security.changes import CHANGES
from shmbroker.wire import codec
from shmbroker.wire.api_keys import CREATE_TOPICS
from shmbroker.wire.frame import parse_request_header

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shmbroker.apis.contexts import Api
    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.ports import Submit

AUTO_CREATE_VERSION = 7
"""The version of CreateTopics that a gateway asks with."""
CONTROL = "the control socket"


def who_is(connection: Connection) -> Who:
    """The client that asks by a connection."""
    listener = connection.listener
    if listener.is_control:
        user = peer_credentials(connection.socket)[1]
        return Who(f"uid:{user}", CONTROL, connection.peer_name())
    return Who(connection.principal, f"listener {listener.config.name}", connection.client)


class Audited:
    """Around the `submits` of a gateway."""

    def __init__(self, audit: Audit, apis: Iterable[Api]) -> None:
        self._audit = audit
        self._apis = {api.API_KEY: api for api in apis if api.API_KEY in CHANGES}

    def around(self, submits: Mapping[int, Submit]) -> dict[int, Submit]:
        """A table of the same functions, which note what changes something."""
        return dict(submits) | {
            key: partial(self._submit, api, submits[key])
            for key, api in self._apis.items()
            if key in submits
        }

    def created(self, who: Who, answer: bytes) -> None:
        """Topics were made as a client named them in Metadata: the controller's answer."""
        said = codec.decode_all("CreateTopicsResponse", AUTO_CREATE_VERSION, answer)
        self._audit.changed(who, "Metadata", CREATE_TOPICS, CHANGES[CREATE_TOPICS]({}, said))

    def _submit(
        self,
        api: Api,
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
        frame = bytes(buffer[start:end])
        if not submit(connection, buffer, start, end, version, correlation_id):
            return False
        connection.inflight[-1].mend(partial(self._told, who_is(connection), api, version, frame))
        return True

    def _told(self, who: Who, api: Api, version: int, frame: bytes, answer: bytes) -> bytes:
        """The answer as it is, when it has been told of."""
        view = memoryview(frame)
        body_at = parse_request_header(view, 0, len(frame))[-1]
        asked = codec.decode_request(api.NAME, version, view, body_at)
        said = codec.decode_all(f"{api.NAME}Response", version, answer)
        if not asked.get("validate_only"):
            self._audit.changed(who, api.NAME, api.API_KEY, CHANGES[api.API_KEY](asked, said))
        return answer
