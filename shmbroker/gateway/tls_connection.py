"""A connection with TLS: its handshake, and its bytes, encrypted and decrypted.

   socket ──► incoming ──► SSLObject ──► the loop's buffers          reading: `recv_into`
   socket ◄── sealed ◄── outgoing ◄── SSLObject ◄── `out`            sending: `send`

OpenSSL works on memory (`ssl.MemoryBIO`), the socket stays ours: a large read is one system call
for many records, a large answer one for each 64 KiB, and how much is taken from the kernel is
decided here. Rules of this file:

* A handshake is a few reads like any other. It takes nobody's time but its own: so many steps of
  handshakes a turn (`TlsSide.may_step`), the others' bytes stay in the kernel.
* All records that a read has brought whole are opened at once. What doesn't fit into the reader's
  buffer waits in the SSLObject, where no poller sees it: such a connection `is_unread`, and is read
  again in the next turn (`tls.Unread`).
* While the worker's memory is short, the loop looks at bytes before it takes them. OpenSSL can't
  peek: up to PEEKED_BYTES of a connection are kept here meanwhile.
* `out` is not empty while sealed bytes wait for the socket: it holds DONE at the end.
* File slices are read into memory piece by piece, only as far as they are in the page cache.
* A client that leaves without a word (no close_notify) has left: frames have lengths, nothing is
  cut short unnoticed.

Source: RFC 8446, RFC 5246.
"""

from __future__ import annotations

import ssl
from typing import cast

from shmbroker.errors import TlsFault
from shmbroker.gateway.connection import SEND_BYTES_PER_TURN, Connection
from shmbroker.ipc.passed_files import ColdSlice, FileSlice

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from shmbroker.gateway.connection import Traffic
    from shmbroker.gateway.listener import Listener
    from shmbroker.gateway.ports import Submit
    from shmbroker.gateway.tls import TlsSide

PIECE_BYTES = 64 * 1024
"""Sealed and sent at once: four records, which the processor's cache holds."""

RECORD_BYTES_MAX = 5 + 16384 + 256
"""A record with its head and what encryption adds."""

RECORDS_PER_READ = 128
"""Opened at once: they may hold a byte each."""

PEEKED_BYTES = 16 * 1024

UNASKED_BYTES_MAX = 64 * 1024
"""What OpenSSL may have to say on its own (key updates) to a client that doesn't read."""

HANDSHAKE = 0x16
"""First byte of who speaks TLS."""

DONE = b""
NOTHING = memoryview(b"")


class TlsConnection(Connection):
    """A connection of a listener with TLS."""

    __slots__ = (
        "_has_ended",
        "_incoming",
        "_is_greeted",
        "_kept",
        "_outgoing",
        "_sealed",
        "_side",
        "_tls",
        "is_unread",
        "rules",
    )

    def __init__(
        self,
        accepted: socket.socket,
        listener: Listener,
        now: float,
        submit: Mapping[int, Submit],
        traffic: Traffic,
        side: TlsSide,
    ) -> None:
        super().__init__(accepted, listener, now, submit, traffic)
        self._side = side
        self.rules = side.loaded.rules
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = side.loaded.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._sealed = NOTHING
        """Encrypted bytes that are yet to be sent."""
        self._kept = bytearray()
        """Decrypted bytes that were looked at and not taken."""
        self._is_greeted = False
        """Whether the client's first byte is here."""
        self._has_ended = False
        """Whether the client said that it sends no more."""
        self.is_unread = False
        self.recv_into = self._shake

    # ── the handshake ───────────────────────────────────────────────────────────────────────────

    def _shake(self, view: memoryview, size: int = 0, flags: int = 0) -> int:
        """A step of the handshake; once it is done, as `_read`."""
        side = self._side
        if not side.may_step():
            raise BlockingIOError
        count = self.socket.recv_into(side.cipher[:RECORD_BYTES_MAX])
        if count == 0:
            return 0
        if not self._is_greeted:
            self._is_greeted = True
            if side.cipher[0] != HANDSHAKE:
                raise TlsFault(self._odd_greeting(side.cipher[0]))
        self._incoming.write(side.cipher[:count])
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._say()
            raise BlockingIOError from None
        except ssl.SSLError as fault:
            self._say()
            raise TlsFault(f"its TLS handshake failed: {_reason(fault)}") from None
        self._say()
        self.recv_into = self._read
        side.on_secured(self, self._tls.getpeercert(binary_form=True))
        self.is_unread = True  # perhaps: its first request may have come along
        return self._read(view, size, flags)

    def _odd_greeting(self, first: int) -> str:
        name = self.listener.config.name
        if first == 0:  # the length of a request
            return (
                f"it speaks Kafka without TLS, but listener {name} with it: the client needs "
                f"security.protocol={self.listener.config.protocol}"
            )
        return f"it does not speak TLS, but listener {name} does"

    def _say(self) -> None:
        """Send what OpenSSL has to say on its own. What the socket does not take goes along with
        the next answer."""
        if not self._outgoing.pending:
            return
        if not self._sealed:
            sealed = memoryview(self._outgoing.read())
            try:
                sent = self.socket.send(sealed)
            except BlockingIOError:
                sent = 0
            self._sealed = sealed[sent:]
        if self._outgoing.pending > UNASKED_BYTES_MAX or (self._sealed and self._is_shaking()):
            raise TlsFault("it does not read what TLS has to tell it")

    def _is_shaking(self) -> bool:
        return self.recv_into == self._shake

    # ── bytes in ────────────────────────────────────────────────────────────────────────────────

    def _read(self, view: memoryview, _size: int = 0, flags: int = 0) -> int:
        """Read as `socket.recv_into`, decrypted; with any flag it is MSG_PEEK."""
        if flags:
            return self._look(view)
        if not self._kept:
            return self._open(view)
        count = min(len(self._kept), len(view))
        view[:count] = self._kept[:count]
        del self._kept[:count]
        if self._kept or self.is_unread:
            self.come_back()
        return count

    def _look(self, view: memoryview) -> int:
        kept = self._kept
        if len(kept) < PEEKED_BYTES:
            room = self._side.plain[: PEEKED_BYTES - len(kept)]
            try:
                kept += room[: self._open(room)]
            except BlockingIOError:
                if not kept:
                    raise
        count = len(kept)
        view[:count] = kept
        if count:
            self.come_back()
        return count

    def _open(self, view: memoryview) -> int:
        """Read and decrypt once. BlockingIOError: no whole record is here; 0: the end."""
        count = self._decrypt(view) if self.is_unread else 0
        room = len(view) - count
        if self._has_ended or room == 0:
            return count
        # No more than there is room for, unless a record is larger than that.
        cipher = self._side.cipher[: max(room - self._incoming.pending, RECORD_BYTES_MAX)]
        try:
            size = self.socket.recv_into(cipher)
        except BlockingIOError:
            if count:
                return count
            raise
        if size == 0:
            return count
        self._incoming.write(cipher[:size])
        count += self._decrypt(view[count:])
        if not count and not self._has_ended:
            raise BlockingIOError
        return count

    def _decrypt(self, view: memoryview) -> int:
        """Open the records that are whole, as far as there is room."""
        read = cast("Callable[[int, memoryview], int]", self._tls.read)
        room = len(view)
        count = 0
        is_left = True
        try:
            for _ in range(RECORDS_PER_READ):
                size = read(room - count, view[count:])
                if size == 0:
                    self._has_ended = True
                    is_left = count > 0  # the end is told by another read
                    break
                count += size
                is_left = self._incoming.pending > 0 or self._tls.pending() > 0
                if count == room or not is_left:
                    break  # to be told that there is nothing costs as much as to decrypt a little
        except ssl.SSLWantReadError:
            is_left = False
        except ssl.SSLError as fault:
            self._say()
            raise TlsFault(f"its TLS can't be understood: {_reason(fault)}") from None
        self._say()
        self.is_unread = is_left
        if is_left:
            self.come_back()
        return count

    def come_back(self) -> None:
        """Have the loop come back to it: it has bytes that no poller sees."""
        self.is_unread = True
        self._side.unread.add(self)

    def bytes_in_kernel(self) -> int:
        """How much has come that was not taken yet, as far as one can tell."""
        return len(self._kept) + self._tls.pending() + super().bytes_in_kernel()

    # ── bytes out ───────────────────────────────────────────────────────────────────────────────

    def send(self) -> bool:
        """Send as a plain connection does."""
        out = self.out
        budget = SEND_BYTES_PER_TURN
        while out:
            if not self._sealed:
                if out[0] is DONE:
                    out.popleft()
                    continue
                try:
                    self._seal()
                except ColdSlice:
                    self.is_cold = True
                    return False
            sealed = self._sealed
            try:
                sent = self.socket.send(sealed)
            except BlockingIOError:
                return False
            self.traffic.sent_bytes += sent
            self._sealed = sealed[sent:]
            if sent < len(sealed):
                return False
            budget -= sent
            if budget <= 0 and out[0] is not DONE:
                return False
        return True

    def unsent_bytes(self) -> int:
        """What is yet to be sent."""
        return len(self._sealed) + super().unsent_bytes()

    def _seal(self) -> None:
        """Encrypt a piece of what is to be sent. ColdSlice: its first bytes are on the disk."""
        out = self.out
        plain = self._side.plain
        filled = 0
        while out and filled < PIECE_BYTES:
            part = out[0]
            if type(part) is FileSlice:
                try:
                    count = part.read_into(plain[filled:])
                except ColdSlice:
                    if filled:
                        break
                    raise
                self.traffic.sent_file_bytes += count
                left = part.length
            else:
                count = min(len(part), PIECE_BYTES - filled)
                plain[filled : filled + count] = part[:count]
                left = len(part) - count
                if left:
                    out[0] = memoryview(part)[count:]
            filled += count
            if not left:
                out.popleft()
        if not out:
            out.append(DONE)
        write = self._tls.write
        at = 0
        while at < filled:
            at += write(plain[at:filled])
        self._sealed = memoryview(self._outgoing.read())

    def close(self) -> None:
        """Say so, if the socket takes it at once, and close it."""
        self._side.forget(self)
        if not self._is_shaking() and not self._sealed:
            try:
                self._tls.unwrap()
            except OSError:
                pass  # it has not said so itself, or is gone
            try:
                self.socket.send(self._outgoing.read())
            except OSError:
                pass
        super().close()


def _reason(fault: ssl.SSLError) -> str:
    if isinstance(fault, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {fault.verify_message}"
    return (fault.reason or str(fault)).lower().replace("_", " ")
