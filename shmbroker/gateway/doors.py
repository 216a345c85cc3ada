"""The doors of one gateway: which stands before each listener, and how long one may stand there.

The brokers of the family have the same settings, so there is one SASL door for the ports of all of
them. Who has no listener with SASL does without OpenSSL, which is a few MiB.
"""

from __future__ import annotations

import os

from shmbroker.errors import ConfigFault
from shmbroker.gateway.door import PeerDoor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shmbroker.gateway.door import Door
    from shmbroker.gateway.gateway import Gateway
    from shmbroker.gateway.listener import Listener
    from shmbroker.gateway.sasl_door import SaslDoor
    from shmbroker.metadata.security_image import SecurityImage

STRANGER_FRAME_BYTES_MAX = 64 << 10
"""What a client may send in one frame before it has authenticated, whatever the setting says."""


class Doors:
    """The doors of the listeners that a gateway has."""

    def __init__(
        self,
        gateway: Gateway,
        listeners: Iterable[Listener],
        stranger_secret: bytes,
        do_aside: Callable[[Callable[[], None]], None],
    ) -> None:
        """stranger_secret: see `ScramUsers`. do_aside: see `TokenUsers`."""
        self._gateway = gateway
        self._stranger_secret = stranger_secret
        self._do_aside = do_aside
        self._sasl: dict[str, SaslDoor] = {}
        """The doors for SASL, by the name of their listener."""
        config = gateway.config
        self.patience_s = {
            name: config.of_listener(name, "shmbroker.authentication.timeout.ms") / 1000
            for name in dict.fromkeys(each.config.name for each in listeners if not each.is_control)
        }
        """How long who comes by a listener may take to show who it is."""

    def before(self, listener: Listener) -> Door | None:
        """What stands before a listener; None: it admits everybody."""
        if listener.is_control:
            return None
        if listener.config.is_unix:
            return PeerDoor(self._gateway.clients.admit)
        if listener.config.has_sasl:
            name = listener.config.name
            if name not in self._sasl:
                self._sasl[name] = self._sasl_door(name)
            return self._sasl[name]
        return None

    def _sasl_door(self, name: str) -> SaslDoor:
        from shmbroker.gateway.sasl_door import SaslDoor
        from shmbroker.gateway.token_users import TokenUsers
        from shmbroker.security.sasl.offered import offered
        from shmbroker.security.sasl.scram_users import ScramUsers

        gateway = self._gateway
        config = gateway.config
        token_users = TokenUsers(
            self._security,
            gateway.token_key,
            gateway.clock.now_ms,
            os.urandom,
            self._do_aside,
        )
        scram_users = ScramUsers(self._security, self._stranger_secret, token_users.token)
        frame_bytes_max = config.of_listener(name, "sasl.server.max.receive.size")
        return SaslDoor(
            gateway,
            offered(config, name, os.environ),
            scram_users,
            min(frame_bytes_max, STRANGER_FRAME_BYTES_MAX),
            config["connection.failed.authentication.delay.ms"] / 1000,
        )

    def _security(self) -> SecurityImage:
        """Users and tokens as they are now."""
        return self._gateway.image.security

    def renew(self) -> Iterator[tuple[str, ConfigFault]]:
        """Take the users that the settings name now; the listeners that keep those they had, as
        the settings are at fault."""
        for name, door in self._sasl.items():
            from shmbroker.security.sasl.offered import offered

            try:
                door.renew(offered(self._gateway.config, name, os.environ))
            except ConfigFault as fault:
                yield name, fault
