"""ConsumerGroupHeartbeat (key 68): join, stay in or leave a group of the new consumer protocol.

Versions: 0-1.
Where: the I/O worker of the connection's port, if it coordinates the group.
Version notes: KIP-848; 1 subscription by regular expression, members make their own id (KIP-1082).
UNSUPPORTED_VERSION while the feature group.version is at level 0.
"""

from typing import Any

from shmbroker.apis.broker.join_group import NAME_CHARACTERS_MAX
from shmbroker.apis.contexts import BrokerContext
from shmbroker.groups.consumer.answers import refusal
from shmbroker.ipc.operation_adapter import Call, Steps
from shmbroker.metadata.features import GROUP_VERSION
from shmbroker.wire import error_codes

API_KEY = 68
NAME = "ConsumerGroupHeartbeat"
VERSION_MIN = 0
VERSION_MAX = 1
VERSION_MIN_ADVERTISED = 0


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> Steps | None:
    """The member's epoch, and its assignment where that is another now.

    Where nothing is new, the network worker gives the answer again while it stands.
    """
    if not broker.image.features.get(GROUP_VERSION):
        call.reply(refusal(error_codes.UNSUPPORTED_VERSION))
    elif broker.groups.consumers.converts_in_steps(body, call.api_version):
        return _answer_in_steps(broker, call, body)
    else:
        _answer(broker, call, body)
    return None


def _answer_in_steps(broker: BrokerContext, call: Call, body: dict[str, Any]) -> Steps:
    yield from broker.groups.consumers.convert(body["group_id"])
    yield
    _answer(broker, call, body)
    return None


def _answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> None:
    client_id = call.client_id.decode(errors="replace")[:NAME_CHARACTERS_MAX]
    client = client_id, f"/{call.identity.host}"
    consumers = broker.groups.consumers
    found = consumers.heartbeat(body, call.api_version, *client, call.identity)
    is_plain = not found.get("error_code") and found.get("assignment") is None
    call.reply(found, consumers.grant(body, *client) if is_plain else None)
