"""The rights that hold now: an authorizer of the newest ACLs, made when it is first asked."""

from __future__ import annotations

from functools import partial

from shmbroker.security.acls import DESCRIBE, TOPIC
from shmbroker.security.authorizer import Authorizer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.metadata.image import MetadataImage
    from shmbroker.security.identity import Identity
    from shmbroker.settings.broker_config import BrokerConfig


class Rights:
    """What one process judges by, where `authorizer.class.name` is set."""

    def __init__(self, config: BrokerConfig, image: MetadataImage) -> None:
        self._super_users = config.super_users
        self._is_open = config["allow.everyone.if.no.acl.found"]
        self._image = image
        self._authorizer: Authorizer | None = None

    def on_image(self, image: MetadataImage) -> None:
        """The metadata have changed."""
        before, self._image = self._image, image
        if image.security.acls is not before.security.acls:
            self._authorizer = None

    @property
    def authorizer(self) -> Authorizer:
        """The authorizer of the ACLs of now."""
        found = self._authorizer
        if found is None:
            acls = self._image.security.acls.values()
            found = self._authorizer = Authorizer(acls, self._super_users, self._is_open)
        return found

    def may_see(self, identity: Identity) -> Callable[[str], bool]:
        """Whether somebody may describe a topic, by its name. Who comes by the control socket may
        open the files as well, and sees all."""
        if not identity.listener:
            return sees_all
        return partial(self.authorizer.allows, identity.principal, identity.host, DESCRIBE, TOPIC)


def sees_all(_topic: str) -> bool:
    """See every topic: there is no authorizer."""
    return True
