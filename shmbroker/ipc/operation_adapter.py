"""Answering requests that another process forwards: EXECUTE to a handler, its answer to EXECUTED.

Rules of this file:
* A handler gets a `Call` and the decoded body and returns the answer's body, or None if it answers
  later through `Call.reply`. Every call is answered exactly once.
* What takes longer than some milliseconds is done in steps: such a handler is a generator, which
  yields after each and returns the answer. The first step is taken at once, each further one by
  `advance`, in other turns of the owner; between them other requests are served.
* Some requests come again and again: an API's `Shortcut` is asked before anything is decoded, and
  told what was answered.
* A body that does not parse is answered with the flag CLOSE: the client's connection is closed.
"""

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

from shmbroker.errors import ProtocolFault, StorageFault
from shmbroker.ipc.operation_layout import (
    EXECUTE,
    EXECUTE_FLAG_BY_USE,
    EXECUTE_FLAG_PARTS,
    EXECUTE_HEAD,
    EXECUTE_PART,
    EXECUTED,
    EXECUTED_FLAG_CLOSE,
    EXECUTED_FLAG_NOT_EXECUTED,
    EXECUTED_FLAG_STANDING,
    EXECUTED_HEAD,
    EXECUTED_PART,
    STANDING_GRANT,
    TOKEN,
    unpack_identity,
)
from shmbroker.ipc.peer import Peer
from shmbroker.logs import seldom
from shmbroker.security.identity import OF_FAMILY, Identity
from shmbroker.wire import codec

logger = logging.getLogger(__name__)

Hold = Callable[[list[str] | None, "Call", dict[str, Any], tuple[int, int] | None], bool]
Answer = dict[str, Any] | None
Steps = Generator[None, None, Answer]
Handler = Callable[["Call", dict[str, Any]], Answer | Steps]

Learn = Callable[[bytes], None]


class Shortcut(Protocol):
    """Requests of one API that are known by their bytes (`groups.known_requests`)."""

    def answer(self, version: int, request: bytes) -> bytes | None:
        """The encoded answer, after what the request asks for was done; None: decode it."""

    def learn(self, version: int, request: bytes, body: dict[str, Any], answer: bytes) -> None:
        """A request was decoded, and is answered so at this moment."""


STEP_ROWS = 500
"""Rows of an answer (partitions, groups …) in one step: some 5 ms at 10 us each."""


class Call:
    """One request to a handler: what was asked, by whom, and the way back."""

    __slots__ = (
        "api_key",
        "api_name",
        "api_version",
        "client_id",
        "hold",
        "hold_names",
        "identity",
        "is_by_use",
    )

    def __init__(
        self, api_key: int, api_name: str, api_version: int, client_id: bytes, identity: Identity
    ) -> None:
        self.api_key = api_key
        self.api_name = api_name
        self.api_version = api_version
        self.client_id = client_id
        self.identity = identity
        """The identity of the client that asks, as the network worker has found it."""
        self.is_by_use = False
        """The client did not ask for it: a network worker does, as it uses what is not there."""
        self.hold: Hold | None = None
        """What may take an answer and reply with it later; asked once."""
        self.hold_names: list[str] | None = None
        """What `hold` is asked about: groups or transactions; None: about all."""

    def reply(self, body: dict[str, Any], grant: tuple[int, int] | None = None) -> None:
        """Give the answer, or let it be held first.

        grant: (word, value) of `shm.standing`, if the same answer may be given again.
        """
        hold, self.hold = self.hold, None
        if hold is not None and hold(self.hold_names, self, body, grant):
            self._on_held()
        else:
            self._answer(body, grant)

    def _on_held(self) -> None:
        """The answer is given later, by another `reply`."""

    def _answer(self, body: dict[str, Any], grant: tuple[int, int] | None) -> None:
        raise NotImplementedError

    def send(self, encoded: bytes, grant: tuple[int, int] | None = None) -> None:
        """Send the answer, encoded already; nothing holds it back."""
        raise NotImplementedError

    def refuse(self) -> None:
        """Nothing was done here; who asked may ask another process."""
        raise NotImplementedError

    def close(self, reason: str) -> None:
        """No answer: the client's connection is to be closed, and the reason logged there."""
        raise NotImplementedError


class ForwardedCall(Call):
    """A request that another process has forwarded."""

    __slots__ = ("deaths", "learn", "peer", "token")

    def __init__(
        self,
        peer: Peer,
        token: int,
        api_key: int,
        api_name: str,
        api_version: int,
        client_id: bytes,
        identity: Identity,
    ) -> None:
        super().__init__(api_key, api_name, api_version, client_id, identity)
        self.peer = peer
        self.deaths = peer.deaths
        self.token = token
        self.learn: Learn | None = None
        """What is told the encoded answer, if that was not held."""

    def _on_held(self) -> None:
        self.learn = None

    def _answer(self, body: dict[str, Any], grant: tuple[int, int] | None) -> None:
        """Encode and send it, in pieces if it is larger than an entry may be."""
        if self.peer.deaths == self.deaths:
            encoded = codec.encode_response(self.api_name, self.api_version, body)
            self.send(encoded, grant)
            if self.learn is not None:
                self.learn(encoded)

    def send(self, encoded: bytes, grant: tuple[int, int] | None = None) -> None:
        if self.peer.deaths != self.deaths:
            return  # the process that asked is dead
        if grant is not None:
            head = EXECUTED_HEAD.pack(self.token, EXECUTED_FLAG_STANDING, 0)
            self.peer.send(EXECUTED, head + STANDING_GRANT.pack(*grant) + encoded)
            return
        head = EXECUTED_HEAD.pack(self.token, 0, 0)
        largest = self.peer.writer.payload_bytes_max - EXECUTED_HEAD.size
        at = 0
        while len(encoded) - at > largest:
            self.peer.send(EXECUTED_PART, head + encoded[at : at + largest])
            at += largest
        self.peer.send(EXECUTED, head + encoded[at:])

    def refuse(self) -> None:
        self.peer.send(EXECUTED, EXECUTED_HEAD.pack(self.token, EXECUTED_FLAG_NOT_EXECUTED, 0))

    def close(self, reason: str) -> None:
        head = EXECUTED_HEAD.pack(self.token, EXECUTED_FLAG_CLOSE, 0)
        self.peer.send(EXECUTED, head + reason.encode()[:1024])


class OwnCall(Call):
    """A request of this process to itself: its answer is not encoded. Nobody is there to be told
    anything else."""

    __slots__ = ("_on_answer",)

    def __init__(
        self, api_key: int, name: str, version: int, on_answer: Callable[[dict[str, Any]], None]
    ) -> None:
        super().__init__(api_key, name, version, b"", OF_FAMILY)
        self._on_answer = on_answer

    def _answer(self, body: dict[str, Any], grant: tuple[int, int] | None) -> None:
        self._on_answer(body)


class Executor:
    """Executes the requests that reach one process. handlers: by api key (name, handler)."""

    def __init__(self, handlers: Mapping[int, tuple[str, Handler]] | None = None) -> None:
        self.handlers = handlers or {}
        self.shortcuts: dict[int, Shortcut] = {}
        self.parts: dict[tuple[int, int], bytearray] = {}
        self.unfinished: deque[tuple[Call, Steps]] = deque()
        """Requests with steps left, the next to advance first."""

    def take(self, peers: Iterable[Peer]) -> bool:
        """Execute every forwarded request that the rings hold; True if there was one."""
        had_work = False
        for peer in peers:
            reader = peer.reader
            if not reader.poll():
                continue
            had_work = True
            while (entry := reader.next()) is not None:
                operation, index, length = entry
                if operation == EXECUTE_PART:
                    self.on_part(peer, reader.data, index, length)
                    continue
                assert operation == EXECUTE, operation
                self.on_execute(peer, reader.data, index, length)
            reader.release()
        return had_work

    def on_part(self, peer: Peer, data: memoryview, index: int, length: int) -> None:
        """One EXECUTE_PART entry."""
        token = TOKEN.unpack_from(data, index)[0]
        piece = data[index + TOKEN.size : index + length]
        self.parts.setdefault((peer.slot, token), bytearray()).extend(piece)

    def drop_parts(self, slot: int) -> None:
        """The process that asked is dead: the rest of its request will not come."""
        self.parts = {key: part for key, part in self.parts.items() if key[0] != slot}

    def on_execute(self, peer: Peer, data: memoryview, index: int, length: int) -> None:
        """One EXECUTE entry."""
        token, api_key, version, name_bytes, flags, identity_bytes = EXECUTE_HEAD.unpack_from(
            data, index
        )
        body_at = name_bytes + identity_bytes
        content = bytes(data[index + EXECUTE_HEAD.size : index + length])
        if flags & EXECUTE_FLAG_PARTS:
            content = bytes(self.parts.pop((peer.slot, token), b"")) + content
        shortcut = self.shortcuts.get(api_key)
        request = b""
        if shortcut is not None:
            request = content[body_at:]
            known = self.known(api_key, version, request)
            if known is not None:
                peer.send(EXECUTED, EXECUTED_HEAD.pack(token, 0, 0) + known)
                return
        name, handler = self.handlers[api_key]
        identity = unpack_identity(content[name_bytes:body_at])
        call = ForwardedCall(peer, token, api_key, name, version, content[:name_bytes], identity)
        call.is_by_use = bool(flags & EXECUTE_FLAG_BY_USE)
        try:
            body = codec.decode_request(name, version, content, body_at)
        except ProtocolFault as fault:
            call.close(str(fault))
            return
        if shortcut is not None:
            call.learn = partial(shortcut.learn, version, request, body)
        try:
            answer = handler(call, body)
            if isinstance(answer, dict):
                call.reply(answer)
            elif answer is not None:
                self._take_step(call, answer)
        except Exception as fault:
            self._on_failed(call, fault)

    def known(self, api_key: int, version: int, request: bytes) -> bytes | None:
        """Execute a request of an API that has a shortcut, if its bytes are known: the answer."""
        try:
            return self.shortcuts[api_key].answer(version, request)
        except Exception:
            logger.exception("a known request failed", extra=seldom("a known request failed"))
            return None  # the ordinary way says what is wrong

    def execute_own(self, call: OwnCall, body: dict[str, Any]) -> None:
        """Execute a request of this process; one that is answered in steps is none for this."""
        answer = self.handlers[call.api_key][1](call, body)
        if answer is not None:
            assert isinstance(answer, dict)
            call.reply(answer)

    def advance(self) -> None:
        """Take one more step of the request whose turn it is."""
        call, steps = self.unfinished.popleft()
        try:
            self._take_step(call, steps)
        except Exception as fault:
            self._on_failed(call, fault)

    def _take_step(self, call: Call, steps: Steps) -> None:
        try:
            next(steps)
        except StopIteration as end:
            if end.value is not None:
                call.reply(end.value)
        else:
            self.unfinished.append((call, steps))

    def _on_failed(self, call: Call, fault: Exception) -> None:
        """One request that we can't answer must not take the others' process with it."""
        what = f"{call.api_name} v{call.api_version} failed"
        if isinstance(fault, OSError | StorageFault):  # the disk's: it says all there is to say
            logger.error("%s: %s", what, fault, extra=seldom(what))
        else:
            logger.exception("%s", what, extra=seldom(what))
        call.close(f"{call.api_name} version {call.api_version} failed")
