"""How a client enters a cluster: TLS, and who it says it is. Names of settings are Kafka's.

    security.protocol                        PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
    ssl.ca.location                          PEM file or directory; unset: the system's
    ssl.certificate.location, ssl.key.location, ssl.key.password      this client's own
    ssl.endpoint.identification.algorithm    https, or none: the broker's name is not compared
    sasl.mechanism                           PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER
    sasl.username, sasl.password
    sasl.tokenauth                           true: they are a delegation token's id and HMAC
    sasl.oauthbearer.token.endpoint.url      file:///… with a token, or an https address that gives
                                             one for sasl.oauthbearer.client.id, .client.secret and
                                             .scope (client credentials, RFC 6749)
    sasl.jaas.config                         Java's way to say the name and password
    ssl.truststore.location, ssl.keystore.location     Java's way to say files, of type PEM

What is asked of a cluster stays in the clear where nothing of this is set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shmbroker.client.nearest import nearest
from shmbroker.client.secrets import Reference, Secret, resolved
from shmbroker.errors import ConfigFault

PLAINTEXT = "PLAINTEXT"
PROTOCOLS = (PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = (PLAIN, *SCRAM, OAUTHBEARER)

Value = str | Secret | Reference
"""The value of a setting."""

_OWN = "security.protocol"
_PREFIXES = ("security.", "ssl.", "sasl.")
_SAME = {
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}
"""Other names of the same setting: librdkafka's, and those of Kafka since 4.1."""

SETTINGS = frozenset(
    {
        _OWN,
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "ssl.truststore.location",
        "ssl.truststore.type",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.keystore.password",
        "ssl.truststore.password",
        "sasl.mechanism",
        "sasl.username",
        "sasl.password",
        "sasl.tokenauth",
        "sasl.jaas.config",
        "sasl.oauthbearer.method",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.scope",
        *_SAME,
    }
)


class Security(NamedTuple):
    """All of it, checked. Printed without its secrets, which are pickled with it."""

    protocol: str = PLAINTEXT
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: Secret | None = None
    checks_name: bool = True
    mechanism: str = ""
    username: str = ""
    password: Secret | None = None
    is_by_token: bool = False
    token_url: str = ""
    client_id: str = ""
    client_secret: Secret | None = None
    scope: str = ""

    @property
    def is_encrypted(self) -> bool:
        """Whether TLS is spoken."""
        return self.protocol.endswith("SSL")

    @property
    def is_named(self) -> bool:
        """Whether the client says by SASL who it is."""
        return self.protocol.startswith("SASL_")

    def plain(self) -> dict[str, object]:
        """The settings with their secrets, for a channel that nobody else reads."""
        return {
            name: value.reveal() if isinstance(value, Secret) else value
            for name, value in self._asdict().items()
        }


_SECRETS = ("key_password", "password", "client_secret")


def from_plain(told: Mapping[str, Any]) -> Security:
    """What `Security.plain` tells of."""
    secrets = {name: Secret(told[name]) for name in _SECRETS if told[name] is not None}
    return Security(**{**told, **secrets})


OPEN = Security()
"""A cluster that anybody may enter who reaches it."""


def is_security(setting: str) -> bool:
    """Whether a setting, without a prefix "kafka.", is one of those here, or means to be."""
    return setting.startswith(_PREFIXES)


def security_of(settings: Mapping[str, Value]) -> Security:
    """What these settings say, of which others than `is_security` are left alone; ConfigFault in
    one sentence, without values of secrets."""
    given: dict[str, Value] = {}
    for name, value in settings.items():
        if is_security(name):
            if name not in SETTINGS:
                raise ConfigFault(f"{name} is not known here{nearest(name, SETTINGS)}")
            given[_SAME.get(name, name)] = value
    found = {name: resolved(value, name) for name, value in given.items()}
    text = {name: value.strip() for name, value in found.items() if isinstance(value, str)}
    secrets = {name: value for name, value in found.items() if isinstance(value, Secret)}
    if "sasl.jaas.config" in secrets:
        _take_jaas(secrets.pop("sasl.jaas.config").reveal(), text, secrets)
    protocol = _one_of(text, _OWN, PROTOCOLS, PLAINTEXT)
    if protocol == PLAINTEXT and (rest := sorted({*text, *secrets} - {_OWN})):
        raise _without_protocol(rest, _OWN in text)
    checks_name = _one_of(text, "ssl.endpoint.identification.algorithm", ("https", "none", ""))
    security = Security(
        protocol,
        _pem(text, "ssl.ca.location", "ssl.truststore"),
        _pem(text, "ssl.certificate.location", "ssl.keystore"),
        _pem(text, "ssl.key.location", "ssl.keystore"),
        secrets.get("ssl.key.password"),
        checks_name == "https",
        username=text.get("sasl.username", ""),
        password=secrets.get("sasl.password"),
        is_by_token=_one_of(text, "sasl.tokenauth", ("false", "true")) == "true",
        token_url=text.get("sasl.oauthbearer.token.endpoint.url", ""),
        client_id=text.get("sasl.oauthbearer.client.id", ""),
        client_secret=secrets.get("sasl.oauthbearer.client.secret"),
        scope=text.get("sasl.oauthbearer.scope", ""),
    )
    if not security.is_named:
        return security
    if "sasl.mechanism" not in text:
        raise ConfigFault(f"{protocol} needs sasl.mechanism: one of {', '.join(MECHANISMS)}")
    mechanism = _one_of(text, "sasl.mechanism", MECHANISMS)
    _check_named(security, mechanism)
    return security._replace(mechanism=mechanism)


def _without_protocol(idle: Sequence[str], is_said: bool) -> ConfigFault:
    """The fault where settings would do nothing, as no protocol asks for them. is_said: whether
    PLAINTEXT was, which is the default."""
    is_sasl = any(name.startswith("sasl.") for name in idle)
    wanted = "SASL_SSL (or SASL_PLAINTEXT, without TLS)" if is_sasl else "SSL (or SASL_SSL)"
    now = PLAINTEXT if is_said else f"{PLAINTEXT} where it is not set"
    return ConfigFault(f"{idle[0]} has no effect, as {_OWN} is {now}: set it to {wanted}")


def _check_named(security: Security, mechanism: str) -> None:
    if mechanism == OAUTHBEARER:
        url = security.token_url
        if not url:
            raise ConfigFault(f"{OAUTHBEARER} needs sasl.oauthbearer.token.endpoint.url")
        if not url.startswith(("file:", "https:", "http:")):
            raise ConfigFault(
                "sasl.oauthbearer.token.endpoint.url is file:///PATH or https://…, not"
                f" {url.split(':')[0]}:…"
            )
        if not url.startswith("file:") and not (security.client_id and security.client_secret):
            raise ConfigFault(
                "sasl.oauthbearer.token.endpoint.url needs sasl.oauthbearer.client.id and"
                " sasl.oauthbearer.client.secret"
            )
        return
    if not security.username:
        raise ConfigFault(f"{mechanism} needs sasl.username")
    if not security.password:
        raise ConfigFault(f"{mechanism} needs sasl.password")
    if security.is_by_token and mechanism not in SCRAM:
        raise ConfigFault(f"sasl.tokenauth goes with {' or '.join(SCRAM)}, not with {mechanism}")


def _one_of(
    text: Mapping[str, str], name: str, words: tuple[str, ...], default: str | None = None
) -> str:
    value = text.get(name, words[0] if default is None else default)
    for word in words:
        if value.upper() == word.upper():
            return word
    raise ConfigFault(f"{name} is one of {', '.join(filter(None, words))}, not {value!r}")


def _pem(text: Mapping[str, str], name: str, store: str) -> str | None:
    """A file by its own setting or by Java's; those of Java's own formats are not read."""
    if text.get(name):
        return os.path.expanduser(text[name])
    location = text.get(f"{store}.location")
    if location and text.get(f"{store}.type", "JKS").upper() != "PEM":
        raise ConfigFault(
            f"{store}.location: Java's key stores are not read here: give a PEM file, and"
            f" {store}.type=PEM"
        )
    return location and os.path.expanduser(location)


_LOGIN = re.compile(
    r"\s*(?:[\w.]*\.)?(\w+)LoginModule\s+(?:required|requisite|sufficient|optional)\b(.*);\s*",
    re.DOTALL,
)
_ENTRY = re.compile(
    r"""\s*([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';]+))"""
)


def _take_jaas(jaas: str, text: dict[str, str], secrets: dict[str, Secret]) -> None:
    """Take name and password of a login module of Kafka's, where they are not set by themselves."""
    found = _LOGIN.fullmatch(jaas)
    if found is None or found[1] not in ("Plain", "Scram", "OAuthBearer"):
        raise ConfigFault(
            'sasl.jaas.config is not …LoginModule required username="…" password="…"; of Plain,'
            " Scram or OAuthBearer"
        )
    position = 0
    entries = {}
    while match := _ENTRY.match(found[2], position):
        position = match.end()
        quoted = match[2] if match[2] is not None else match[3]
        entries[match[1]] = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else match[4]
    if found[2][position:].strip():
        raise ConfigFault('sasl.jaas.config can\'t be read: KEY="VALUE" are what it takes')
    for entry, setting in (
        ("username", "sasl.username"),
        ("tokenauth", "sasl.tokenauth"),
        ("clientId", "sasl.oauthbearer.client.id"),
        ("scope", "sasl.oauthbearer.scope"),
    ):
        if entry in entries:
            text.setdefault(setting, entries[entry])
    for entry, setting in (
        ("password", "sasl.password"),
        ("clientSecret", "sasl.oauthbearer.client.secret"),
    ):
        if entry in entries:
            secrets.setdefault(setting, Secret(entries[entry]))
