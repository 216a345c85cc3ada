"""Controllers on memory of their own, one or several, with brokers that the test is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from shmbroker.controller.boot import open_voter
from shmbroker.controller.controller import Controller, ControllerPeers
from shmbroker.controller.raft.quorum_messages import (
    AnswerCame,
    EpochAnswer,
    News,
    NoAnswer,
    QuorumFetchAnswer,
    RequestCame,
    SnapshotAnswer,
    VoteAnswer,
)
from shmbroker.ipc.member import FamilyMember
from shmbroker.ipc.operation_layout import EXECUTE, EXECUTE_HEAD, EXECUTED, EXECUTED_HEAD
from shmbroker.log.file_names import META_PROPERTIES
from shmbroker.log.meta_properties import MetaProperties, write_meta_properties
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.shm.counters import (
    ANNOUNCEMENTS_WORD,
    DOORBELL,
    INCARNATION,
    LIVENESS_NS,
    METADATA_APPLIED,
    METADATA_END_OFFSET_WORD,
    STATE,
    STATE_RUNNING,
    Counters,
    layout_size,
)
from shmbroker.shm.doorbell import Doorbell, make_eventfd
from shmbroker.wire import codec
from tests.support.family_memory import FarEnd, VirtualClock

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
ANSWERS = (VoteAnswer, EpochAnswer, QuorumFetchAnswer, SnapshotAnswer)
STEP_S = 0.01
"""What passes while a voter waits."""


class Wires:
    """What the voters say to each other: at once, and always heard."""

    def __init__(self) -> None:
        self.ends: dict[int, WiredLinks] = {}
        self.let_others_run: Callable[[int, float], None] = lambda _node_id, _timeout_s: None
        """While a voter waits: (its id, for how many seconds at most)."""


class WiredLinks:
    """One voter's end of them."""

    def __init__(self, wires: Wires, node_id: int) -> None:
        self._wires = wires
        self._node_id = node_id
        self._told: list[News] = []
        wires.ends[node_id] = self

    @property
    def has_news(self) -> bool:
        return bool(self._told)

    def send(self, voter: int, request_id: Any, message: Any, /) -> None:
        if isinstance(message, ANSWERS):
            asked, its_id = request_id
            if (end := self._wires.ends.get(asked)) is not None:
                end._told.append(AnswerCame(self._node_id, its_id, message))
        elif (end := self._wires.ends.get(voter)) is not None:
            end._told.append(RequestCame(self._node_id, (self._node_id, request_id), message))
        else:
            self._told.append(NoAnswer(voter, request_id))

    def take(self) -> list[News]:
        told, self._told = self._told, []
        return told

    def wait(self, timeout_s: float, /) -> None:
        if not self._told:
            self._wires.let_others_run(self._node_id, timeout_s)

    def close(self) -> None:
        self._wires.ends.pop(self._node_id, None)


class ControllerFamily:
    """So many controllers and brokers; each broker has rings to each controller. Ids count from 1;
    slot 0 is the supervisor's."""

    def __init__(self, directory: Path, brokers: int, controllers: int, **settings: str) -> None:
        self.ids = range(1, controllers + 1)
        static = {
            "shmbroker.io.workers": str(brokers),
            "shmbroker.controllers": str(controllers),
        } | {name.replace("_", "."): text for name, text in settings.items()}
        self.config = BrokerConfig(static)
        for number in range(1, brokers + 1):
            node = self.config.nodes[number] = str(directory / f"node-{number}")
            os.makedirs(node, exist_ok=True)
            identity = MetaProperties(number, CLUSTER_ID, bytes(15) + bytes([number]))
            write_meta_properties(f"{node}/{META_PROPERTIES}", identity)
        self.brokers = {number: number for number in range(1, brokers + 1)}
        self.slots = {number: brokers + number for number in self.ids}
        """Of the controllers."""
        slots = 1 + brokers + controllers
        self.counters = Counters(memoryview(bytearray(layout_size(slots))), slots)
        self.words = self.counters.words
        self.eventfds = [make_eventfd() for _ in range(slots)]
        at = self.counters.at
        self.doorbells = [
            Doorbell(fd, self.words, at(slot, DOORBELL)) for slot, fd in enumerate(self.eventfds)
        ]
        self.clock = VirtualClock()
        self.wires = Wires()
        self.wires.let_others_run = self._let_others_run
        self.ends: dict[tuple[int, int], FarEnd] = {}
        """The brokers' ends of the rings, by the ids of broker and controller."""
        for slot in range(1, slots):
            self.words[at(slot, INCARNATION)] = 1
        for broker in self.brokers.values():
            self.words[at(broker, STATE)] = STATE_RUNNING
            for slot in self.slots.values():
                self.words[self.counters.acknowledgement(slot, broker)] = 1
        self.sign()
        self.words[ANNOUNCEMENTS_WORD] = 1
        self.results: dict[int, tuple[int, bytes]] = {}
        """Flags and body, by token."""
        self._token = 0
        self.controllers: dict[int, Controller] = {}
        self._waiting: set[int] = set()
        """Controllers in the middle of a turn."""
        for number in self.ids:
            self.start(number)

    def start(self, number: int) -> Controller:
        """A controller's process, the first or a successor."""
        slot = self.slots[number]
        links = WiredLinks(self.wires, number) if len(self.ids) > 1 else None
        ends = [
            FarEnd(broker, "io-worker", broker_id, self.doorbells[broker])
            for broker_id, broker in self.brokers.items()
        ]
        self.ends |= {(end.peer.number, number): end for end in ends}
        member = FamilyMember(
            slot,
            self.counters,
            self.doorbells[slot],
            self.doorbells[0],
            [end.peer for end in ends],
        )
        voter = open_voter(
            self.clock,
            self.config,
            number,
            self.ids,
            CLUSTER_ID,
            links,
            is_successor=member.incarnation > 1,
            chance=Random(number),
        )
        others = {other: at for other, at in self.slots.items() if other != number}
        family = ControllerPeers(self.brokers, others, self.doorbells[1:])
        made = Controller(self.clock, member, self.config, voter, CLUSTER_ID, family)
        self.controllers[number] = made
        made.begin()
        return made

    def end(self, number: int) -> None:
        """A controller's process ends, and the supervisor says so."""
        self.controllers.pop(number).close()
        self._dies(self.slots[number])

    def close(self) -> None:
        for controller in self.controllers.values():
            controller.close()
        for fd in self.eventfds:
            os.close(fd)

    # ── turns ───────────────────────────────────────────────────────────────────────────────────

    def turn(self) -> None:
        """One of each, and a moment that passes."""
        for controller in list(self.controllers.values()):
            controller.turn()
        self.clock.sleep(STEP_S)

    def until(self, condition: Callable[[], Any], seconds: float = 60.0) -> Any:
        """Turns, until it is true; of brokers that live."""
        deadline = self.clock.now + seconds
        while not (found := condition()):
            assert self.clock.now < deadline
            self.sign()
            self.turn()
        return found

    def _let_others_run(self, node_id: int, timeout_s: float) -> None:
        self.clock.sleep(min(timeout_s, STEP_S))
        self._waiting.add(node_id)
        for number, controller in list(self.controllers.items()):
            if number not in self._waiting:
                controller.turn()
        self._waiting.remove(node_id)

    def active(self) -> Controller | None:
        """The one that brokers are sent to."""
        _, number, is_active = self.counters.metadata_leader()
        return self.controllers.get(number) if is_active else None

    # ── brokers ─────────────────────────────────────────────────────────────────────────────────

    def sign(self, *hanging: int) -> None:
        """Signs of life of all brokers but these; those live and have applied all."""
        at = self.counters.at
        for number, broker in self.brokers.items():
            if number not in hanging:
                self.words[at(broker, LIVENESS_NS)] = int(self.clock.now * 1e9)

    def apply(self, *numbers: int) -> None:
        """These brokers have applied what is committed; all if none is named."""
        for number in numbers or self.brokers:
            index = self.counters.at(self.brokers[number], METADATA_APPLIED)
            self.words[index] = self.words[METADATA_END_OFFSET_WORD]

    def die(self, number: int) -> None:
        """The supervisor says that a broker is dead."""
        self._dies(self.brokers[number])

    def succeed(self, number: int) -> None:
        """A dead broker has a successor, as all controllers have seen the death."""
        for (broker, _), end in self.ends.items():
            if broker == number:
                end.attach()
        self.words[self.counters.at(self.brokers[number], STATE)] = STATE_RUNNING
        self.words[ANNOUNCEMENTS_WORD] += 1

    def _dies(self, slot: int) -> None:
        at = self.counters.at
        self.words[at(slot, STATE)] = 0
        self.words[at(slot, INCARNATION)] += 1
        self.words[ANNOUNCEMENTS_WORD] += 1

    def ask(
        self,
        key: int,
        version: int,
        name: str,
        body: dict[str, Any],
        *,
        broker: int = 1,
        of: int = 1,
        client_id: bytes = b"",
        flags: int = 0,
    ) -> Asked:
        """Put a request of a broker on its ring to a controller."""
        self._token += 1
        head = EXECUTE_HEAD.pack(self._token, key, version, len(client_id), flags, 0)
        encoded = codec.encode(f"{name}Request", version, body)
        self.ends[broker, of].send(EXECUTE, head + client_id + encoded)
        return Asked(self, self._token, name, version)

    def next_token(self) -> int:
        """That of the next request."""
        return self._token + 1

    def take_results(self) -> None:
        """What the rings to the brokers hold."""
        for end in self.ends.values():
            for operation, payload in end.taken():
                assert operation == EXECUTED
                token, flags, _ = EXECUTED_HEAD.unpack_from(payload)
                self.results[token] = flags, payload[EXECUTED_HEAD.size :]

    def register(self, number: int, *, of: int = 1, previous_epoch: int = -1) -> Asked:
        """BrokerRegistration of a broker that starts; -1 if it did not stop cleanly before."""
        body = {
            "broker_id": number,
            "cluster_id": CLUSTER_ID,
            "incarnation_id": bytes([number]) * 16,
            "listeners": [
                {"name": "PLAINTEXT", "host": "h", "port": 9000 + number, "security_protocol": 0}
            ],
            "features": [],
            "rack": None,
            "is_migrating_zk_broker": False,
            "log_dirs": [b"d" * 15 + bytes([number])],
            "previous_broker_epoch": previous_epoch,
        }
        return self.ask(62, 4, "BrokerRegistration", body, broker=number, of=of)


class Asked:
    """A request, as who has sent it waits for its answer."""

    def __init__(self, family: ControllerFamily, token: int, name: str, version: int) -> None:
        self._family = family
        self._token = token
        self._name, self._version = name, version

    def flags(self) -> int | None:
        """Those of the result; None while there is none."""
        self._family.take_results()
        found = self._family.results.get(self._token)
        return found[0] if found else None

    def answer(self) -> dict[str, Any] | None:
        """The answer; None while there is none."""
        if self.flags() != 0:
            return None
        content = self._family.results[self._token][1]
        return codec.decode_all(f"{self._name}Response", self._version, content)
