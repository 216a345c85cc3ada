"""References in the values of settings to where a secret lies (KIP-297, KIP-421, KIP-887).

   ${file:/etc/shmbroker/secrets.properties:key}   a key of a file of Java properties
   ${dir:/etc/shmbroker/secrets:name}              a file of a directory
   ${env:NAME}                                     a variable of the environment
   ${credential:name}                              a file of $CREDENTIALS_DIRECTORY (systemd)

So a secret is in no file of settings, on no command line, and in no answer of DescribeConfigs:
those have the reference. It is looked up where it is used, each time.
"""

from __future__ import annotations

import re

from shmbroker.errors import ConfigFault
from shmbroker.settings.java_properties import properties

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

CREDENTIALS_DIRECTORY = "CREDENTIALS_DIRECTORY"

_REFERENCE = re.compile(r"\$\{(file|dir|env|credential):(?:([^}]*):)?([^}:]*)\}")


def resolved(text: str, env: Mapping[str, str], what: str) -> str:
    """The text with each reference replaced by what it leads to; `what` names the setting in the
    ConfigFault where it leads to nothing."""

    def replaced(match: re.Match[str]) -> str:
        provider, path, key = match.groups()
        try:
            return _found(provider, path or "", key, env)
        except KeyError:
            raise ConfigFault(f"{what}: {match[0]} leads to nothing: there is no {key}.") from None
        except OSError as fault:
            raise ConfigFault(f"{what}: {match[0]} can't be read: {fault.strerror}.") from None
        except ValueError:
            raise ConfigFault(
                f"{what}: {match[0]} can't be read: it is not as it must be."
            ) from None

    return _REFERENCE.sub(replaced, text)


def is_reference(text: str) -> bool:
    """Whether all of a text is one reference."""
    return _REFERENCE.fullmatch(text.strip()) is not None


def _found(provider: str, path: str, key: str, env: Mapping[str, str]) -> str:
    if provider == "env":
        return env[key]
    if provider == "file":
        return properties(_content(path))[key]
    if "/" in key or key in ("", ".", ".."):
        raise KeyError(key)
    if provider == "credential":
        path = env[CREDENTIALS_DIRECTORY]
    return _content(f"{path}/{key}").removesuffix("\n")


def _content(path: str) -> str:
    with open(path, "rb") as file:
        return file.read().decode()
