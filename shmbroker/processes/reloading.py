"""Settings that were read again (SIGHUP), as the family takes them over.

    read ──► judged (`settings.reload`), TLS loaded ──► posted to all, held here ──► announced

Rules of this file:
* Everything that can be refused is, before anything holds: after a fault the settings are those
  from before.
"""

from __future__ import annotations

import json

from shmbroker import logs
from shmbroker.errors import ConfigFault
from shmbroker.processes import listening
from shmbroker.settings import reload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.gateway.listener import Listener
    from shmbroker.processes.children import Children
    from shmbroker.processes.watchdog import Watchdog
    from shmbroker.settings.broker_config import BrokerConfig


class Reloading:
    """`config` is what holds; every process has it, and hears when that changes."""

    def __init__(
        self,
        config: BrokerConfig,
        children: Children,
        listeners: list[Listener],
        watchdog: Watchdog,
    ) -> None:
        self._config = config
        self._children = children
        self._listeners = listeners
        self._watchdog = watchdog

    def apply_log_settings(self) -> None:
        """Tell every process to log as the settings say (`shmbroker.logger.*`), and to look for
        others that were read again. What clients have changed since goes before them."""
        config, log_levels = self._config, self._children.shared.log_levels
        levels = logs.parse_levels(config["shmbroker.logger.levels"])
        log_levels.configure(levels, config["shmbroker.logger.format"])
        log_levels.apply()
        self._children.announce()

    def take_over(self, read: Callable[[], BrokerConfig]) -> reload.Reload:
        """Read the settings; what may change while the family runs holds at once. A Fault says why
        they stay as they are."""
        found = reload.judge(self._config, read())
        take_tls = listening.tls_again(found.config, self._listeners)
        try:
            self._children.shared.settings.post(json.dumps(found.config.given))
        except ValueError as fault:
            raise ConfigFault(f"They take too much room: {fault}.") from fault
        self._config.adopt(found.config)
        self._watchdog.set_limits(
            self._config["shmbroker.watchdog.warn.ms"], self._config["shmbroker.watchdog.kill.ms"]
        )
        self.apply_log_settings()  # which tells everybody
        take_tls()
        return found
