"""Secrets of clients: where they lie, and what hides them once they are read.

    sasl.password = { file = "/run/secrets/kafka" }   all of a file, without its last newline
    sasl.password = { env = "KAFKA_PASSWORD" }        a variable of the environment
    sasl.password = { credential = "kafka" }          a file of $CREDENTIALS_DIRECTORY (systemd)

In text, as options of commands and of Spark are, the same is ${file:…}, ${env:…}, ${credential:…}.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from shmbroker.errors import ConfigFault

KINDS = ("file", "env", "credential")
_TEXT = re.compile(r"\$\{(file|env|credential):([^}]+)\}")
_CREDENTIALS = "CREDENTIALS_DIRECTORY"

SENSITIVE = frozenset(
    {
        "sasl.password",
        "sasl.jaas.config",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.client.credentials.client.secret",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.key",
        "ssl.keystore.password",
        "ssl.truststore.password",
    }
)
"""Settings whose values are secrets."""


class Secret:
    """A text that is printed nowhere: `reveal` where it is used."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(…)"

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


class Reference:
    """Where a secret lies: `kind` is one of KINDS."""

    __slots__ = ("kind", "place")

    def __init__(self, kind: str, place: str) -> None:
        self.kind = kind
        self.place = place

    def __str__(self) -> str:
        return f"{self.kind} {self.place}"

    def read(self, setting: str) -> Secret:
        """The secret; ConfigFault, which names the setting, if it isn't there."""
        if self.kind == "env":
            if self.place not in os.environ:
                raise ConfigFault(f"{setting}: ${self.place} is not set")
            return Secret(os.environ[self.place])
        path = os.path.expanduser(self.place)
        if self.kind == "credential":
            directory = os.environ.get(_CREDENTIALS)
            if directory is None:
                raise ConfigFault(
                    f"{setting}: ${_CREDENTIALS} is not set, so there is no credential"
                    f" {self.place}: LoadCredential= in a unit gives it"
                )
            if os.path.basename(path) != path or path in ("", ".", ".."):
                raise ConfigFault(f"{setting}: {self.place!r} is no credential's name")
            path = os.path.join(directory, path)
        try:
            with open(path, encoding="utf-8") as file:
                return Secret(file.read().removesuffix("\n"))
        except OSError as error:
            raise ConfigFault(f"{setting}: {path} can't be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigFault(f"{setting}: {path} is no text") from None


def reference_of(value: object) -> Reference | None:
    """What a table of a profile, or ${…} in a text, refers to; None if it is neither."""
    if isinstance(value, Mapping):
        if len(value) == 1:
            ((kind, place),) = value.items()
            if kind in KINDS and isinstance(place, str) and place:
                return Reference(kind, place)
        return None
    if isinstance(value, str) and (found := _TEXT.fullmatch(value.strip())):
        return Reference(found[1], found[2])
    return None


def resolved(value: str | Secret | Reference, setting: str) -> str | Secret:
    """The value of a setting; of a reference, what lies there; ConfigFault if nothing does."""
    found: Reference | None = value if isinstance(value, Reference) else None
    if isinstance(value, str):
        found = reference_of(value)
    if found is not None:
        value = found.read(setting)
        return value if setting in SENSITIVE else value.reveal()
    assert not isinstance(value, Reference)
    return Secret(value) if setting in SENSITIVE and isinstance(value, str) else value
