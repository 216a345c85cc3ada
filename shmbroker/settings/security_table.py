"""The settings of listeners, TLS, SASL, tokens and quotas: Kafka's names, types and defaults.

* Those in PER_LISTENER may be said for one listener: `listener.name.<its name>.<setting>`, in lower
  case; those of SASL for one mechanism of it, too: `listener.name.<l>.scram-sha-256.<setting>`.
* A PASSWORD is shown to nobody: see `Setting.is_secret`.
"""

from __future__ import annotations

from shmbroker.settings.setting import (
    BOOLEAN,
    INT,
    LIST,
    LONG,
    PASSWORD,
    STRING,
    Setting,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SECURITY_SETTINGS: dict[str, Setting] = {}
PER_LISTENER = {"max.connections", "num.network.threads"}
"""Settings that one listener may have a value of its own of."""

PROTOCOL_MAP = (
    "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,UNIX:UNIX"
)


def _row(
    name: str,
    type_: int,
    default: str | None,
    documentation: str,
    *,
    is_of_listener: bool = False,
    **rules: Any,
) -> None:
    SECURITY_SETTINGS[name] = Setting(name, type_, default, documentation, **rules)
    if is_of_listener:
        PER_LISTENER.add(name)


def _of_listener(
    name: str, type_: int, default: str | None, documentation: str, **rules: Any
) -> None:
    _row(name, type_, default, documentation, is_of_listener=True, **rules)


# -- listeners -------------------------------------------------------------------------------------

_row(
    "listeners",
    LIST,
    None,
    "Addresses to listen on, as NAME://HOST:PORT; an empty host is every interface, [::1] an IPv6 "
    "address, port 0 a free one, and UNIX:///path a Unix socket. With several brokers the i-th has "
    "the i-th port from there. Unset: PLAINTEXT on shmbroker.host and shmbroker.port.",
)
_row(
    "advertised.listeners",
    LIST,
    None,
    "Addresses that clients are told, for listeners that they reach by another one than that on "
    "which it listens (a container's port map, a name). Unset: the address that a client dialled.",
)
_row(
    "listener.security.protocol.map",
    LIST,
    PROTOCOL_MAP,
    "What is spoken on each listener, as NAME:PROTOCOL: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, "
    "or UNIX for a Unix socket.",
)
_of_listener(
    "shmbroker.unix.mode",
    STRING,
    "0660",
    "Mode of a Unix socket that clients use: who may connect.",
    check=lambda text: (
        None
        if len(text) in (3, 4) and all(digit in "01234567" for digit in text)
        else "Must be an octal mode such as 0660"
    ),
)
_of_listener("shmbroker.unix.group", STRING, None, "Group of a Unix socket that clients use.")

# -- TLS -------------------------------------------------------------------------------------------

_of_listener(
    "ssl.keystore.type",
    STRING,
    "PEM",
    "Form of the key store: PEM or PKCS12. Apache Kafka's default is JKS, which is not read.",
)
_of_listener("ssl.keystore.location", STRING, None, "File with the private key and certificates.")
_of_listener("ssl.keystore.password", PASSWORD, None, "Password of a PKCS12 key store.")
_of_listener(
    "ssl.keystore.certificate.chain", PASSWORD, None, "Certificates as PEM, instead of a file."
)
_of_listener("ssl.keystore.key", PASSWORD, None, "The private key as PEM, instead of a file.")
_of_listener("ssl.key.password", PASSWORD, None, "Password of the private key.")
_of_listener("ssl.truststore.type", STRING, "PEM", "Form of the trust store: PEM or PKCS12.")
_of_listener(
    "ssl.truststore.location", STRING, None, "File with the certificates that clients' must have."
)
_of_listener("ssl.truststore.password", PASSWORD, None, "Password of a PKCS12 trust store.")
_of_listener(
    "ssl.truststore.certificates", PASSWORD, None, "Trusted certificates as PEM, without a file."
)
_of_listener("ssl.protocol", STRING, "TLSv1.3", "Kept for Kafka's sake: the newest in common wins.")
_of_listener(
    "ssl.enabled.protocols",
    LIST,
    "TLSv1.2,TLSv1.3",
    "Versions of TLS that clients may use.",
    allowed=("TLSv1.2", "TLSv1.3"),
)
_of_listener("ssl.cipher.suites", LIST, "", "Cipher suites that may be used; empty: OpenSSL's own.")
_of_listener(
    "ssl.client.auth",
    STRING,
    "none",
    "Whether clients show a certificate: none, requested or required.",
    allowed=("none", "requested", "required"),
)
_of_listener(
    "ssl.principal.mapping.rules",
    STRING,
    "DEFAULT",
    "Rules that make a user's name of the subject of a certificate: "
    "RULE:pattern/replacement/[LU] and DEFAULT, the first that fits wins.",
)

# -- SASL ------------------------------------------------------------------------------------------

_of_listener(
    "sasl.enabled.mechanisms",
    LIST,
    "GSSAPI",
    "Ways to authenticate that are offered: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER. "
    "Apache Kafka's default, GSSAPI, is not served.",
)
_of_listener(
    "sasl.jaas.config",
    PASSWORD,
    None,
    "Users of a mechanism in JAAS's form; to be said for a listener and its mechanism, as in "
    "listener.name.sasl_ssl.plain.sasl.jaas.config.",
)
_of_listener(
    "connections.max.reauth.ms",
    LONG,
    "0",
    "Time after which a client has to authenticate again on its connection (KIP-368); 0: never.",
    least=0,
)
_of_listener(
    "sasl.server.max.receive.size",
    INT,
    "524288",
    "Largest request of a client that has not authenticated; more than 65536 counts as that.",
)
_of_listener(
    "sasl.oauthbearer.jwks.endpoint.url", STRING, None, "URL (https:, file:) of the keys of tokens."
)
_of_listener(
    "sasl.oauthbearer.jwks.endpoint.refresh.ms", LONG, "3600000", "How often keys are read again."
)
_of_listener(
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
    LONG,
    "100",
    "First wait before the keys are asked for again.",
)
_of_listener(
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
    LONG,
    "10000",
    "Longest wait before the keys are asked for again.",
)
_of_listener(
    "sasl.oauthbearer.expected.audience", LIST, None, "Audiences of which a token has to name one."
)
_of_listener("sasl.oauthbearer.expected.issuer", STRING, None, "Issuer that a token has to name.")
_of_listener("sasl.oauthbearer.scope.claim.name", STRING, "scope", "Claim with a token's scopes.")
_of_listener("sasl.oauthbearer.sub.claim.name", STRING, "sub", "Claim with a token's user.")
_of_listener(
    "sasl.oauthbearer.clock.skew.seconds",
    INT,
    "30",
    "How far the clocks of whoever issues tokens and this host may be apart.",
)
_row(
    "connection.failed.authentication.delay.ms",
    INT,
    "100",
    "How long a client waits for the answer that it could not be authenticated.",
    least=0,
)

# -- delegation tokens -----------------------------------------------------------------------------

_row(
    "delegation.token.secret.key",
    PASSWORD,
    None,
    "Key that delegation tokens are signed with; unset: there are none.",
)
_row(
    "delegation.token.max.lifetime.ms",
    LONG,
    "604800000",
    "How long a token may be renewed.",
    least=1,
)
_row(
    "delegation.token.expiry.time.ms",
    LONG,
    "86400000",
    "How long a token holds before it has to be renewed.",
    least=1,
)
_row(
    "delegation.token.expiry.check.interval.ms",
    LONG,
    "3600000",
    "How often tokens that have expired are removed.",
    least=1,
)

# -- quotas ----------------------------------------------------------------------------------------

for _what, _seconds in (("quota", "bandwidth and request time"), ("controller.quota", "mutations")):
    _row(f"{_what}.window.num", INT, "11", f"Windows in which {_seconds} are measured.", least=1)
    _row(f"{_what}.window.size.seconds", INT, "1", "Length of each window.", least=1)

# -- audit -----------------------------------------------------------------------------------------

_row(
    "shmbroker.audit",
    BOOLEAN,
    None,
    "Whether there is a line in the log, by the logger shmbroker.audit, for each request that ACLs "
    "deny and each change of topics, settings, ACLs, users, quotas, tokens, groups. Unset: where "
    "there is an authorizer.",
)

# -- between brokers -------------------------------------------------------------------------------

_row(
    "inter.broker.listener.name",
    STRING,
    None,
    "The listener by which brokers reach each other.",
)
_row(
    "security.inter.broker.protocol",
    STRING,
    "PLAINTEXT",
    "What brokers speak with each other.",
)
_row(
    "max.connection.creation.rate",
    INT,
    "2147483647",
    "New connections a second that are let in.",
    least=0,
    is_dynamic=True,
    is_of_listener=True,
)
_of_listener(
    "shmbroker.authentication.timeout.ms",
    LONG,
    "30000",
    "How long a new connection may take to show who it is, TLS included; then it is closed.",
    least=1,
)
_row(
    "ssl.allow.dn.changes",
    BOOLEAN,
    "false",
    "Whether a certificate that is read again may have another subject.",
)
