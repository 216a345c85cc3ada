"""TLS of clients: a context of a `Security`, and a socket that the rest of the client uses like one
without TLS, blocking or not."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterable
from functools import lru_cache

from shmbroker.client.faults import AuthenticationFault
from shmbroker.client.security import Security
from shmbroker.errors import ConfigFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_JOINED_BYTES = 64 << 10
"""Small parts are handed to TLS together up to this; it makes records of 16 KiB of them."""


class TlsSocket(ssl.SSLSocket):
    """A TLS socket that, when it does not block, raises BlockingIOError as others do, and gives all
    that has come."""

    def sendmsg(self, buffers: Iterable[memoryview]) -> int:  # type: ignore[override]
        """How many bytes of these buffers were taken."""
        parts = iter(buffers)
        first: memoryview | bytearray = next(parts)
        if len(first) < _JOINED_BYTES:
            joined = bytearray(first)
            for part in parts:
                joined += part[: _JOINED_BYTES - len(joined)]
                if len(joined) == _JOINED_BYTES:
                    break
            first = joined
        try:
            return self.send(first)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Up to so many bytes, b"" at the end."""
        parts: list[bytes] = []
        left = buflen
        while left:
            try:
                part = self.read(left)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if not parts:
                    raise BlockingIOError from None
                break
            except ssl.SSLError as error:
                _refuse_alert(error)
                raise
            if not part:
                break
            parts.append(part)
            left -= len(part)
            if self.gettimeout() != 0.0:
                break
        return b"".join(parts)

    def recv_into(self, buffer: WriteableBuffer, nbytes: int | None = None, flags: int = 0) -> int:
        """Blocking only."""
        try:
            return super().recv_into(buffer, nbytes, flags)
        except ssl.SSLError as error:
            _refuse_alert(error)
            raise


def encrypted(connected: socket.socket, host: str, security: Security, name: str) -> TlsSocket:
    """TLS over a connected socket that blocks, after the handshake. AuthenticationFault if one side
    does not trust the other, or TLS is not spoken there; OSError if the connection ends."""
    context = context_of(security)
    try:
        made = context.wrap_socket(connected, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise AuthenticationFault(
            f"the certificate of {name} is not trusted: {error.verify_message.rstrip('.')};"
            f" {_cure(error, security)}"
        ) from None
    except ssl.SSLEOFError:
        raise ConnectionError(f"{name} closed the connection in the TLS handshake") from None
    except ssl.SSLError as error:
        _refuse_alert(error, name)
        if error.reason in (
            "WRONG_VERSION_NUMBER",
            "RECORD_LAYER_FAILURE",
            "PACKET_LENGTH_TOO_LONG",
        ):
            raise AuthenticationFault(
                f"{name} does not speak TLS: set security.protocol without it, or name its TLS port"
            ) from None
        raise AuthenticationFault(f"{name}: TLS failed: {_words(error)}") from None
    assert isinstance(made, TlsSocket)
    return made


_OUT_OF_TIME = (9, 10)
"""OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""


def _cure(error: ssl.SSLCertVerificationError, security: Security) -> str:
    if error.verify_code == 62 or "match" in error.verify_message:
        return "connect by a name that the certificate has"
    if error.verify_code in _OUT_OF_TIME:
        return "give the broker a new one, or set this host's clock right"
    if security.ca is None:
        return "ssl.ca.location names the file of its authority"
    return f"ssl.ca.location is {security.ca}"


def _refuse_alert(error: ssl.SSLError, name: str = "the broker") -> None:
    """AuthenticationFault for an alert by which the other side refuses our certificate."""
    reason = error.reason or ""
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        cure = "get a new one into" if "EXPIRED" in reason else "set"
        raise AuthenticationFault(
            f"{name} refuses this client's certificate ({_words(error)}):"
            f" {cure} ssl.certificate.location and ssl.key.location"
        ) from None


def _words(error: ssl.SSLError) -> str:
    if error.reason:
        return error.reason.replace("_", " ").lower()
    return "no PEM files that go together, or another password"


@lru_cache(16)
def _made(security: Security, _changed: tuple[int, ...]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = TlsSocket
    context.check_hostname = security.checks_name
    try:
        if security.ca is None:
            context.load_default_certs()
        elif os.path.isdir(security.ca):
            context.load_verify_locations(capath=security.ca)
        else:
            context.load_verify_locations(cafile=security.ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigFault(f"ssl.ca.location: {_unread(security.ca or '', error)}") from None
    if security.certificate is None:
        return context

    def password() -> str:
        # Without one OpenSSL would ask at the terminal.
        if security.key_password is None:
            raise ConfigFault(f"{security.key} is encrypted: set ssl.key.password")
        return security.key_password.reveal()

    try:
        context.load_cert_chain(security.certificate, security.key, password)
    except (OSError, ssl.SSLError) as error:
        path = f"{security.certificate} and {security.key or security.certificate}"
        raise ConfigFault(f"ssl.certificate.location: {_unread(path, error)}") from None
    return context


def context_of(security: Security) -> ssl.SSLContext:
    """The context of these settings, read once for each change of its files."""
    changed = []
    for path in (security.ca, security.certificate, security.key):
        try:
            changed.append(os.stat(path).st_mtime_ns if path else 0)
        except OSError:
            changed.append(-1)
    return _made(security, tuple(changed))


def _unread(path: str, error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"{path} can't be used: {_words(error)}"
    return f"{path} can't be read: {error.strerror or error}"
