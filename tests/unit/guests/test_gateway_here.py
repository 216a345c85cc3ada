"""What the gateway for guests is told at once, and what comes by its ring."""

from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.gateway.produce import ProduceRequest
from shmbroker.gateway.results import Results
from shmbroker.guests.gateway_here import GatewayHere
from shmbroker.ipc.operation_layout import APPENDED, APPENDED_HEAD, READ_DONE
from shmbroker.shm.doorbell import Doorbell, make_eventfd
from shmbroker.shm.words import words_of
from shmbroker.wire.api_keys import PRODUCE
from tests.support.family_memory import FarEnd

TOKEN = 9


@pytest.mark.parametrize(
    ("operation", "error", "token_of_request", "is_at_once"),
    [
        (APPENDED, 0, TOKEN, True),
        (APPENDED, 6, TOKEN, False),
        (APPENDED, 0, 0, False),  # not known to be stored when it was asked for
        (READ_DONE, 0, TOKEN, False),
    ],
)
def test_acks_that_have_waited_are_told_at_once(
    operation: int, error: int, token_of_request: int, is_at_once: bool
) -> None:
    doorbell = Doorbell(make_eventfd(), words_of(memoryview(bytearray(8))), 0)
    far = FarEnd(1, "network-worker", 0, doorbell)
    peer = GatewayHere(1, "network-worker", 0, far.peer.writer, far.peer.reader, doorbell)
    connection: Any = SimpleNamespace(last_active=1.0)
    request = ProduceRequest(connection, PRODUCE, 9, 7)
    request.token = token_of_request
    told: list[Any] = []
    gateway: Any = SimpleNamespace(
        pending={TOKEN: request},
        touched=SimpleNamespace(add=told.append),
        produce=SimpleNamespace(on_appended=lambda *of: told.append(of)),
    )
    peer.results = Results(gateway)
    payload = APPENDED_HEAD.pack(TOKEN, error, 0, 0, 20, -1, 3)
    peer.send(operation, payload)
    peer.publish()
    if is_at_once:
        assert told == [(request, TOKEN, 0, 20, -1, 3, None), connection]
        assert not gateway.pending and not far.taken()
    else:
        assert not told and far.taken() == [(operation, payload)]
        assert gateway.pending == {TOKEN: request}
    peer.results = None  # as before the gateway is built
    peer.send(APPENDED, payload)
    peer.publish()
    assert far.taken() == [(APPENDED, payload)]
