"""Profiles: what a client says to enter a cluster, by a name.

They stand in `~/.config/shmbroker/profiles.toml` ($XDG_CONFIG_HOME, $SHMBROKER_PROFILES), a table
for each, with the settings of `client.security` and other settings of librdkafka:

    [work]
    bootstrap.servers = "kafka.example.org:9093"
    security.protocol = "SASL_SSL"
    ssl.ca.location = "/etc/ssl/kafka.pem"
    sasl.mechanism = "SCRAM-SHA-512"
    sasl.username = "anna"
    sasl.password = { file = "~/.config/shmbroker/work.password" }

A secret is there by a reference (`client.secrets`), or itself: then others may not read the file.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from shmbroker.client.nearest import nearest
from shmbroker.client.secrets import SENSITIVE, Reference, reference_of
from shmbroker.client.security import SETTINGS, Security, Value, is_security, security_of
from shmbroker.errors import ConfigFault

VARIABLE = "SHMBROKER_PROFILE"
"""Names the profile that is taken where none is named."""
FILE_VARIABLE = "SHMBROKER_PROFILES"
SERVERS = "bootstrap.servers"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Profile(NamedTuple):
    """One of them; printed without its secrets."""

    name: str
    path: str
    settings: dict[str, Value]
    """Settings by Kafka's names; secrets are `Reference`s or text, as the file has them."""

    def __repr__(self) -> str:
        return f"Profile({self.name!r}, {self.path!r})"

    @property
    def servers(self) -> str | None:
        """`bootstrap.servers`, if it names them."""
        found = self.settings.get(SERVERS)
        return found if isinstance(found, str) else None

    @property
    def security(self) -> dict[str, Value]:
        """The settings of `client.security` among them."""
        return {name: value for name, value in self.settings.items() if is_security(name)}

    def shown(self) -> dict[str, str]:
        """The settings as text, secrets hidden."""
        return {
            name: f"({value})"
            if isinstance(value, Reference)
            else "(hidden)"
            if name in SENSITIVE
            else str(value)
            for name, value in sorted(self.settings.items())
        }


class ProfileEntry(NamedTuple):
    """How a cluster is entered, as it was said: nothing is read yet, so it may be shown to others
    and travel to other processes unless `shows_secret`."""

    profile: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    """The settings of `client.security`, above the profile's."""

    def servers(self) -> str | None:
        """The profile's bootstrap servers; ConfigFault if there is no such profile."""
        return load(self.profile).servers if self.profile else None

    def security(self) -> Security:
        """What it leads to; ConfigFault if that can't be used."""
        below = load(self.profile).security if self.profile else {}
        return security_of({**below, **dict(self.settings)})

    def shows_secret(self) -> str | None:
        """A setting that holds a secret itself."""
        for name, value in self.settings:
            if name in SENSITIVE and reference_of(value) is None:
                return name
        return None


def path() -> str:
    """The file of profiles."""
    if found := os.environ.get(FILE_VARIABLE):
        return os.path.expanduser(found)
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(home, "shmbroker", "profiles.toml")


def load(name: str) -> Profile:
    """A profile by its name; ConfigFault if there is none, or others may read its secrets."""
    file = path()
    found = load_all(file)
    if name not in found:
        if not os.path.exists(file):
            raise ConfigFault(f"there is no profile {name}: {file} is not there")
        listed = ", ".join(sorted(found)) or "none"
        meant = nearest(name, found) or f", which has {listed}"
        raise ConfigFault(f"there is no profile {name} in {file}{meant}")
    return found[name]


def load_all(file: str) -> dict[str, Profile]:
    """All profiles of a file, none if it isn't there; ConfigFault if it can't be used."""
    import tomllib  # where there is a file, as no other command needs it

    try:
        with open(file, "rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            tables = tomllib.loads(opened.read().decode())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigFault(f"{file} can't be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        # Where it is wrong, and not the text, which may be a secret.
        place = re.search(r"\(at .*\)$", str(error))
        raise ConfigFault(f"{file} is no TOML {place[0] if place else ''}".rstrip()) from None
    except UnicodeDecodeError:
        raise ConfigFault(f"{file} is no text in UTF-8") from None
    profiles = {}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigFault(f"{file}: {name} stands outside of a profile: begin with [NAME]")
        settings = dict(_flat("", table, f"{file}: profile {name}"))
        plain = [each for each in settings if _is_plain_secret(each, settings[each])]
        if plain and mode & _OTHERS:
            raise ConfigFault(
                f"{file} holds {plain[0]}, and others may read it (mode {stat.S_IMODE(mode):04o}):"
                f" chmod 600 {file}"
            )
        profiles[name] = Profile(name, file, settings)
    return profiles


def _is_plain_secret(name: str, value: Value) -> bool:
    return name in SENSITIVE and not isinstance(value, Reference)


def _flat(prefix: str, table: Mapping[str, Any], where: str) -> Iterator[tuple[str, Value]]:
    """ "a.b" for {"a": {"b": …}}; a table that is a setting's value refers to a secret."""
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, Mapping):
            if name in SETTINGS or name in SENSITIVE:
                reference = reference_of(value)
                if reference is None:
                    raise ConfigFault(
                        f'{where}: {name} is a text, or {{ file = "…" }}, {{ env = "…" }} or'
                        ' { credential = "…" }'
                    )
                yield name, reference
            else:
                yield from _flat(f"{name}.", value, where)
            continue
        if isinstance(value, bool):
            value = str(value).lower()
        if not isinstance(value, str | int | float):
            raise ConfigFault(f"{where}: {name} is text or a number")
        if is_security(name) and name not in SETTINGS:
            raise ConfigFault(f"{where}: {name} is not known here{nearest(name, SETTINGS)}")
        text = str(value)
        yield name, reference_of(text) or text


def entered_by(
    servers: str | None, profile: str | None, security: Security | Mapping[str, str] | None
) -> tuple[str, Security]:
    """Bootstrap servers and how they are entered, by what a caller of the library gives."""
    if isinstance(security, Security):
        entry, entering = ProfileEntry(), security
    else:
        for name in security or ():
            if name not in SETTINGS:
                raise ConfigFault(f"security: {name} is not known{nearest(name, SETTINGS)}")
        entry = ProfileEntry(profile or "", tuple((security or {}).items()))
        entering = entry.security()
    found = servers if servers is not None else entry.servers()
    if found is None:
        raise ConfigFault(
            "bootstrap_servers is not given: give HOST:PORT, or a profile that has it"
        )
    return found, entering
