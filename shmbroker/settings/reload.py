"""Settings that were read again while the family runs: what holds at once, what waits. Pure.

Live are the settings that clients may change while a broker runs (`Setting.is_dynamic`), as far as
they have an effect here, and LIVE_TOO. All others hold from the next start on, and are named. What
follows from another setting (`shmbroker.replicas`) follows from the one that holds.
"""

from typing import NamedTuple

from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.settings.table import BROKER_SETTINGS, broker_setting
from shmbroker.settings.without_effect import WITHOUT_EFFECT

LIVE_TOO = frozenset(
    (
        "connections.max.idle.ms",
        "shmbroker.logger.format",
        "shmbroker.logger.levels",
        "shmbroker.watchdog.kill.ms",
        "shmbroker.watchdog.warn.ms",
    )
)
"""Settings that clients can't change, but that are looked up whenever they are needed, or told to
everybody."""

NEW_CONNECTIONS_GO_BY = ("ssl.", "sasl.jaas.config")
"""How such settings begin: not for clients to change either."""


class Reload(NamedTuple):
    """What becomes of settings that were read again."""

    config: BrokerConfig
    """What holds now."""
    changed: list[str]
    """Names of those that hold at once."""
    waiting: list[str]
    """Names of those that take a restart."""

    def __str__(self) -> str:
        if not self.changed and not self.waiting:
            return "settings read again: nothing has changed"
        parts = []
        if self.changed:
            parts.append(f"{', '.join(self.changed)} changed")
        if self.waiting:
            verb = "take" if len(self.waiting) > 1 else "takes"
            parts.append(f"{', '.join(self.waiting)} {verb} a restart")
        return f"settings read again: {'; '.join(parts)}"


def is_live(name: str) -> bool:
    """Whether a change of this setting holds at once."""
    if name in LIVE_TOO:
        return True
    setting = broker_setting(name)
    if setting is None or setting.name in WITHOUT_EFFECT:
        return False
    return setting.is_dynamic or setting.name.startswith(NEW_CONNECTIONS_GO_BY)


def judge(now: BrokerConfig, read: BrokerConfig) -> Reload:
    """What to do about settings that were `read` while those of `now` hold. ConfigFault if the new
    ones do not go together with the old ones that take a restart."""
    holds = {name: text for name, text in now.given.items() if not is_live(name)}
    holds |= {name: text for name, text in read.given.items() if is_live(name)}
    config = BrokerConfig(holds)
    special = {*now.given, *read.given} - BROKER_SETTINGS.keys()
    differ = [name for name in (*BROKER_SETTINGS, *sorted(special)) if now[name] != read[name]]
    return Reload(
        config,
        [name for name in differ if now[name] != config[name]],
        [name for name in differ if read[name] != config[name]],
    )
