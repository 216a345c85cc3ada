"""What is doubtful about listeners and secrets as the settings have them: sentences for a start and
for `shmbroker config check`. Nothing of it stops a start."""

from __future__ import annotations

from shmbroker.settings.listeners import address_text
from shmbroker.settings.table import broker_setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from shmbroker.settings.broker_config import BrokerConfig
    from shmbroker.settings.listeners import ListenerConfig

READABLE_BY_OTHERS = 0o004
WRITABLE_BY_OTHERS = 0o002
IN_CLEAR = ("PLAIN", "OAUTHBEARER")
"""Mechanisms that send what opens the door as it is."""


def asks_who(config: BrokerConfig, one: ListenerConfig) -> bool:
    """Whether a listener knows who comes."""
    return (
        one.is_unix
        or one.has_sasl
        or (one.has_tls and config.of_listener(one.name, "ssl.client.auth") == "required")
    )


def doubts(config: BrokerConfig, one: ListenerConfig, where: str = "") -> Iterator[str]:
    """Sentences about one listener. where: the address that it is bound to, if it is."""
    where = where or address_text(one.host or "*", one.port)
    if not one.is_local and not asks_who(config, one):
        may = "is User:ANONYMOUS" if config.has_authorizer else "may do everything"
        yield (
            f"listener {one.name} leaves this host and asks nobody who they are: whoever reaches "
            f"{where} {may}"
        )
    if one.has_sasl and not one.has_tls and not one.is_local:
        offered = config.of_listener(one.name, "sasl.enabled.mechanisms")
        if shown := [each for each in IN_CLEAR if each in offered]:
            yield (
                f"listener {one.name} sends passwords or tokens of {' and '.join(shown)} in clear "
                f"beyond this host: give it SASL_SSL, or SCRAM alone"
            )
    if one.is_unix and not config.has_authorizer:
        mode = config.of_listener(one.name, "shmbroker.unix.mode")
        if int(mode, 8) & WRITABLE_BY_OTHERS:
            yield (
                f"listener {one.name} lets in every user of this host (shmbroker.unix.mode is "
                f"{mode}), and there is no authorizer: each may do everything"
            )


def nobody_is_super(config: BrokerConfig) -> str:
    """A sentence where the first ACL can be added by nobody; else ""."""
    if not config.needs_acls:
        return ""
    return (
        "there is an authorizer and super.users is empty: where no ACL allows anybody to alter the "
        "cluster yet, nobody may add one"
    )


def unresolved(one: ListenerConfig, resolves: Callable[[str], bool]) -> str:
    """A sentence where clients are told a host that has no address here; else "". resolves:
    whether a host has one."""
    if not one.told_host or resolves(one.told_host):
        return ""
    return (
        f"listener {one.name} tells its clients the host {one.told_host}, which has no address on "
        "this host: theirs have to know it"
    )


def readable_secrets(path: str, mode: int, values: Mapping[str, str]) -> str:
    """A sentence where a file of settings has passwords and lets others read them; else "". mode:
    its permissions. A reference (`${file:…}`) is no password."""
    if not mode & READABLE_BY_OTHERS:
        return ""
    for name, text in values.items():
        setting = broker_setting(name.lower() if name.startswith("listener.") else name)
        if setting is not None and setting.is_secret and text and not text.startswith("${"):
            return (
                f"{path} has {name} in it, and everybody on this host may read it: chmod o= {path}"
            )
    return ""
