"""Answers that come in pieces, and what is left of them when the one who sends them dies."""

from typing import Any

import pytest

from shmbroker.ipc.asking import Asking
from shmbroker.ipc.operation_layout import EXECUTED, EXECUTED_HEAD, EXECUTED_PART
from shmbroker.shm.doorbell import Doorbell
from shmbroker.shm.words import words_of
from shmbroker.wire import codec
from shmbroker.wire.api_keys import LIST_GROUPS
from shmbroker.wire.error_codes import NETWORK_EXCEPTION
from tests.support.family_memory import FarEnd

NAME, VERSION = "ListGroups", 4
GROUPS = [
    {"group_id": f"g-{at}", "protocol_type": "consumer", "group_state": "Stable"} for at in range(9)
]
ANSWER = codec.encode(f"{NAME}Response", VERSION, {"error_code": 0, "groups": GROUPS})


def far_end(slot: int) -> FarEnd:
    end = FarEnd(slot, "io-worker", slot, Doorbell(-1, words_of(memoryview(bytearray(64))), slot))
    end.peer.incarnation = 1
    return end


class Asker:
    """Has asked slots 1 and 2."""

    def __init__(self) -> None:
        self.asking = Asking(1 << 48)
        self.told: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
        self.ends = {slot: far_end(slot) for slot in (1, 2)}
        self.tokens: dict[int, int] = {}
        for slot, end in self.ends.items():
            asked = {"states_filter": []}
            assert self.asking.ask(
                end.peer, LIST_GROUPS, NAME, VERSION, asked, self.told[slot].append
            )
            self.tokens[slot] = self.asking.token

    def come(self, slot: int, operation: int, content: bytes) -> None:
        """An entry of that slot."""
        data = memoryview(EXECUTED_HEAD.pack(self.tokens[slot], 0, 0) + content)
        peer = self.ends[slot].peer
        take = {EXECUTED_PART: self.asking.on_executed_part, EXECUTED: self.asking.on_executed}
        take[operation](peer, data, 0, len(data))

    def is_anything_kept(self) -> bool:
        return len(self.asking.partial) > 0


@pytest.fixture
def asker() -> Asker:
    return Asker()


def test_pieces_are_put_together_though_another_peer_dies(asker: Asker) -> None:
    asker.come(1, EXECUTED_PART, ANSWER[:20])
    asker.come(2, EXECUTED_PART, ANSWER[:5])
    asker.asking.fail(asker.ends[2].peer, NETWORK_EXCEPTION)
    asker.come(1, EXECUTED, ANSWER[20:])
    assert asker.told[2] == [{"error_code": NETWORK_EXCEPTION}]
    [told] = asker.told[1]
    assert [group["group_id"] for group in told["groups"]] == [one["group_id"] for one in GROUPS]


@pytest.mark.parametrize("is_told", [False, True])
def test_nothing_is_kept_of_a_peer_that_answers_no_more(asker: Asker, is_told: bool) -> None:
    for slot in (1, 2):
        asker.come(slot, EXECUTED_PART, ANSWER[:20])
    for end in asker.ends.values():
        if is_told:
            asker.asking.fail(end.peer, NETWORK_EXCEPTION)
        else:
            assert len(asker.asking.forget(end.peer)) == 1
    assert not asker.is_anything_kept()
