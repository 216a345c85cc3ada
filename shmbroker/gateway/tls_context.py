"""Keys and certificates of a listener: from the settings `ssl.…` and the files that they name to
what Python's `ssl` makes connections with.

* PEM is what OpenSSL reads: text with the private key and the certificates, ours first. PKCS12 is
  read by the library cryptography, and goes on as PEM. Java's own JKS is not read.
* Everything is read once, and stays in memory: what is handed to OpenSSL, which wants a path, is a
  file in memory. Passwords and keys are in no message.
* `load` is asked at the start, and again when a file has changed: nothing is changed half.

Source: KIP-651 (PEM), KIP-684 (`ssl.client.auth` where there is SASL), `DefaultSslEngineFactory`.
"""

from __future__ import annotations

import base64
import os
import re
import ssl
from datetime import datetime
from typing import NamedTuple

from shmbroker import extras
from shmbroker.errors import ConfigFault
from shmbroker.security.certificate import SOON_DAYS, not_after
from shmbroker.security.principal_rules import PrincipalRules
from shmbroker.settings.secrets import resolved
from shmbroker.settings.table import BROKER_SETTINGS, LISTENER_PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from shmbroker.settings.broker_config import BrokerConfig
    from shmbroker.settings.listeners import ListenerConfig

CLIENT_AUTH = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}

SUITES_1_3 = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
"""The suites of TLS 1.3, in OpenSSL's order; Python before 3.15 can't leave out one of them."""

JKS_MAGICS = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_KEY = re.compile(r"-----BEGIN ([A-Z0-9 ]*PRIVATE KEY)-----.+?-----END \1-----", re.DOTALL)

Print = tuple[str, int, int, int]
"""What a change of a file is told by: path, inode, time and size."""


class TlsContext(NamedTuple):
    """What TLS on one listener is made of."""

    context: ssl.SSLContext
    rules: PrincipalRules
    """How a user is called after a certificate."""
    ends: datetime
    """When the first certificate of ours, or of its issuers that we send, ends."""
    prints: tuple[Print, ...]
    """What the files looked like that it was read from."""

    def prints_now(self) -> tuple[Print | None, ...]:
        """The prints of the files that are there now; None where there is none."""
        return tuple(_print(path) for path, *_ in self.prints)


class _Store(NamedTuple):
    """What was found in a key store or trust store."""

    where: str
    certificates: list[str]
    key: str = ""
    password: str = ""
    prints: tuple[Print, ...] = ()


def load(config: BrokerConfig, listener: ListenerConfig) -> TlsContext:
    """What a listener with TLS needs. ConfigFault, in one sentence with the fix, where its settings
    don't go together, or a file is not what it should be."""
    return _Loader(config, listener).load()


class _Loader:
    """The settings of one listener."""

    def __init__(self, config: BrokerConfig, listener: ListenerConfig) -> None:
        self._config = config
        self._listener = listener

    def load(self) -> TlsContext:
        keys = self._key_store()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Each network worker would have ticket keys of its own: no session is resumed.
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
        context.num_tickets = 0
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE | ssl.OP_NO_COMPRESSION
        self._choose(context)
        self._use(context, keys)
        prints = keys.prints
        wanted = CLIENT_AUTH[self._client_auth()]
        if wanted != ssl.CERT_NONE:
            prints += self._trust(context)
            context.verify_mode = wanted
        try:
            rules = PrincipalRules(self._of("ssl.principal.mapping.rules"))
        except ValueError as refusal:
            raise self._fault(f"ssl.principal.mapping.rules can't be used: {refusal}") from None
        return TlsContext(context, rules, min(map(_end, keys.certificates)), prints)

    # ── settings ────────────────────────────────────────────────────────────────────────────────

    def _of(self, name: str) -> Any:
        value = self._config.of_listener(self._listener.name, name)
        if value and BROKER_SETTINGS[name].is_secret:
            # Passwords and keys may lie elsewhere: ${file:…}, ${env:…}, ${credential:…}.
            value = resolved(value, os.environ, f"listener {self._listener.name}: {name}")
        return value

    def _fault(self, complaint: str) -> ConfigFault:
        return ConfigFault(f"listener {self._listener.name}: {complaint.rstrip('.')}.")

    def _client_auth(self) -> str:
        """What is asked of clients. With SASL, only what is said for this very listener counts, as
        in Kafka (KIP-684)."""
        name = "ssl.client.auth"
        own = f"{LISTENER_PREFIX}{self._listener.name.lower()}.{name}"
        if self._listener.has_sasl and own not in self._config.static:
            return "none"
        return str(self._of(name))

    def _choose(self, context: ssl.SSLContext) -> None:
        """Versions and cipher suites."""
        versions = {VERSIONS[name] for name in self._of("ssl.enabled.protocols")}
        names: list[str] = self._of("ssl.cipher.suites")
        if names:
            newer = [name for name in names if name in SUITES_1_3]
            older = [_openssl_name(name) for name in names if name not in SUITES_1_3]
            # Without a suite of its own, a version can't be spoken: so it is in Java.
            if not newer:
                versions.discard(ssl.TLSVersion.TLSv1_3)
            elif len(newer) < len(SUITES_1_3) and ssl.TLSVersion.TLSv1_3 in versions:
                self._choose_newer(context, newer)
            if not older:
                versions.discard(ssl.TLSVersion.TLSv1_2)
            for name in older:
                try:
                    context.set_ciphers(name)
                except ssl.SSLError:
                    raise self._fault(
                        f"ssl.cipher.suites names {name}, which this OpenSSL does not have: leave "
                        "it out (`openssl ciphers -stdname` lists what it has)"
                    ) from None
            if older:
                context.set_ciphers(":".join(older))
        if not versions:
            raise self._fault(
                "ssl.cipher.suites and ssl.enabled.protocols leave no version of TLS: name a "
                "cipher suite of one that is enabled"
            )
        context.minimum_version = min(versions)
        context.maximum_version = max(versions)

    def _choose_newer(self, context: ssl.SSLContext, names: list[str]) -> None:
        choose = getattr(context, "set_ciphersuites", None)
        if choose is None:
            raise self._fault(
                f"ssl.cipher.suites names {', '.join(names)}, but with this Python TLS 1.3 has all "
                f"of its suites or none: name {', '.join(SUITES_1_3)}, or use Python 3.15"
            )
        choose(":".join(names))

    # ── stores ──────────────────────────────────────────────────────────────────────────────────

    def _key_store(self) -> _Store:
        location, inline = self._of("ssl.keystore.location"), self._of("ssl.keystore.key")
        chain = self._of("ssl.keystore.certificate.chain")
        if location and (inline or chain):
            raise self._fault(
                "both ssl.keystore.location and ssl.keystore.key or ssl.keystore.certificate.chain "
                "are set: leave out one"
            )
        if location:
            store = self._from_file("ssl.keystore", location)
        elif inline and chain:
            where = "ssl.keystore.key"
            store = self._from_pem(where, f"{_unfolded(inline)}\n{_unfolded(chain)}", "key")
        elif inline or chain:
            raise self._fault(
                "ssl.keystore.key and ssl.keystore.certificate.chain go together: set both"
            )
        else:
            raise self._fault(
                "TLS needs a key and its certificate: set ssl.keystore.location to a PEM file with "
                "both"
            )
        if not store.certificates:
            raise self._fault(
                f"there is no certificate in {store.where}: it has to have the private key and its "
                "certificates"
            )
        if not store.key:
            raise self._fault(
                f"there is no private key in {store.where}: it has to have the private key and its "
                "certificates"
            )
        return store

    def _trust(self, context: ssl.SSLContext) -> tuple[Print, ...]:
        """Have certificates of clients judged; what they have to be signed by."""
        location = self._of("ssl.truststore.location")
        inline = self._of("ssl.truststore.certificates")
        if location and inline:
            raise self._fault(
                "both ssl.truststore.location and ssl.truststore.certificates are set: leave out "
                "one"
            )
        if location:
            store = self._from_file("ssl.truststore", location)
        elif inline:
            store = self._from_pem("ssl.truststore.certificates", _unfolded(inline), "truststore")
        else:
            raise self._fault(
                "ssl.client.auth wants certificates of clients, but it is not said who signs them: "
                "set ssl.truststore.location"
            )
        if not store.certificates:
            raise self._fault(f"there is no certificate in {store.where}")
        # Whatever is in the store is trusted, as in Java, also an issuer that has one itself.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_TRUSTED_FIRST
        try:
            context.load_verify_locations(cadata="\n".join(store.certificates))
        except ssl.SSLError as fault:
            raise self._fault(f"{store.where} can't be used: {_reason(fault)}") from None
        return store.prints

    def _from_file(self, setting: str, path: str) -> _Store:
        """A key store or trust store, as its type has it."""
        kind = self._of(f"{setting}.type").upper()
        password = self._of(f"{setting}.password") or ""
        try:
            found = _print(path)
            with open(path, "rb") as file:
                data = file.read()
        except OSError as fault:
            raise self._fault(
                f"{path}, which {setting}.location names, can't be read: {fault.strerror}"
            ) from None
        prints = (found,) if found else ()
        if data[:4] in JKS_MAGICS:
            new = f"{path.removesuffix('.jks')}.p12"
            raise self._fault(
                f"{path} is a JKS store, which is not read: convert it by `keytool "
                f"-importkeystore -srckeystore {path} -destkeystore {new} -deststoretype PKCS12`, "
                f"and set {setting}.location={new} and {setting}.type=PKCS12"
            )
        if kind == "PEM":
            if password:
                raise self._fault(
                    f"a PEM file has no {setting}.password: leave it out; a key in it may have "
                    "ssl.key.password"
                )
            try:
                text = data.decode()
            except UnicodeDecodeError:
                raise self._fault(
                    f"{path} is no PEM file: if it is a PKCS12 store, set {setting}.type=PKCS12"
                ) from None
            return self._from_pem(path, text, setting)._replace(prints=prints)
        if kind in ("PKCS12", "JKS"):  # Java reads PKCS12 by both names
            return self._from_pkcs12(path, data, password)._replace(prints=prints)
        raise self._fault(f"{setting}.type {kind} is not read: make it PEM or PKCS12")

    def _from_pem(self, where: str, text: str, setting: str) -> _Store:
        key = _KEY.search(text)
        password = self._of("ssl.key.password") or ""
        is_closed = key is not None and "ENCRYPTED" in key[0]
        if is_closed and not password and not setting.startswith("ssl.truststore"):
            raise self._fault(f"the private key in {where} has a password: set ssl.key.password")
        return _Store(where, _CERTIFICATE.findall(text), key[0] if key else "", password)

    def _from_pkcs12(self, path: str, data: bytes, password: str) -> _Store:
        try:
            from cryptography.hazmat.primitives.serialization import (
                Encoding,
                NoEncryption,
                PrivateFormat,
                pkcs12,
            )
        except ImportError as error:
            raise (
                extras.missing(error, f"listener {self._listener.name}: PKCS12") or error
            ) from None
        try:
            found = pkcs12.load_pkcs12(data, password.encode())
        except ValueError:
            raise self._fault(
                f"{path} can't be opened: it is no PKCS12 store, or its password is another one"
            ) from None
        own = [found.cert] if found.cert else []
        certificates = [
            each.certificate.public_bytes(Encoding.PEM).decode()
            for each in (*own, *found.additional_certs)
        ]
        key = ""
        if found.key is not None:
            key = found.key.private_bytes(
                Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
            ).decode()
        return _Store(path, certificates, key)

    def _use(self, context: ssl.SSLContext, store: _Store) -> None:
        """Give OpenSSL our key and certificates."""
        fd = os.memfd_create("tls", os.MFD_CLOEXEC)
        try:
            os.write(fd, "\n".join((store.key, *store.certificates, "")).encode())
            # A password is always given: without one OpenSSL asks the terminal.
            context.load_cert_chain(f"/proc/self/fd/{fd}", password=store.password)
        except ssl.SSLError as fault:
            reason = _reason(fault)
            if fault.reason == "KEY_VALUES_MISMATCH":
                reason = "its first certificate is not that of its key"
            elif not fault.reason and store.password:
                reason = "ssl.key.password is not the password of its key"
            elif not fault.reason:
                reason = "its private key or a certificate is broken"
            raise self._fault(f"{store.where} can't be used: {reason}") from None
        finally:
            os.close(fd)


def _reason(fault: ssl.SSLError) -> str:
    return (fault.reason or str(fault)).lower().replace("_", " ")


def _unfolded(text: str) -> str:
    """PEM as one line of a properties file has it: with spaces, or `\\n`, where lines end."""
    text = text.replace("\\n", "\n")
    return re.sub(
        r"(-----BEGIN [^-]+-----)(.+?)(-----END [^-]+-----)",
        lambda match: f"{match[1]}\n{_folded(match[2])}\n{match[3]}",
        text,
        flags=re.DOTALL,
    )


def _folded(text: str) -> str:
    if ":" in text:  # the head of an old kind of encrypted key: its lines count
        return text.strip()
    packed = "".join(text.split())
    return "\n".join(packed[at : at + 64] for at in range(0, len(packed), 64))


def _end(certificate: str) -> datetime:
    body = certificate.replace("-----BEGIN CERTIFICATE-----", "")
    return not_after(base64.b64decode(body.replace("-----END CERTIFICATE-----", "")))


def _print(path: str) -> Print | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return path, found.st_ino, found.st_mtime_ns, found.st_size


_AUTHENTICATED = {"ECDHE_RSA": "ECDHE-RSA-", "ECDHE_ECDSA": "ECDHE-ECDSA-", "DHE_RSA": "DHE-RSA-"}


def _openssl_name(name: str) -> str:
    """A suite's name of TLS 1.2 as OpenSSL has it: TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is
    ECDHE-RSA-AES128-GCM-SHA256. OpenSSL's own names stay."""
    exchange, found, cipher = name.removeprefix("TLS_").partition("_WITH_")
    if not found:
        return name
    cipher = re.sub(r"^(AES|ARIA|CAMELLIA)_(\d+)_", r"\1\2_", cipher).replace("_CBC_", "_")
    if cipher.startswith("CHACHA20_POLY1305"):
        cipher = "CHACHA20_POLY1305"
    prefix = _AUTHENTICATED.get(exchange, "" if exchange == "RSA" else f"{exchange}_")
    return (prefix + cipher).replace("_", "-")


def complaints(loaded: Iterable[tuple[str, TlsContext]], now_ms: int) -> list[str]:
    """A sentence for each listener, by name, whose certificate ends soon, or has ended."""
    found = []
    for name, one in loaded:
        days = (one.ends.timestamp() - now_ms / 1000) / 86400
        if days < SOON_DAYS:
            when = f"{one.ends:%Y-%m-%d %H:%M} UTC"
            ends = f"ends in {days:.0f} days, at {when}" if days > 0 else f"has ended, at {when}"
            found.append(f"the certificate of listener {name} {ends}")
    return found
