"""The metadata log, as a broker follows it: topics and leaders go to its placement, settings to the
parts that use them, and the controller is told how far all of it is done.

   link ──► image, changes ──► placement.add, add_new, delete ──► a few milliseconds in each turn
                          └──► on_configured, groups.on_image

Rules of this file:
* Only what is committed is followed. Much at once is read in several turns, a step in each.
* A broker that is not registered follows nothing: what is there is of those before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shmbroker.metadata.changes import (
    ConfigChanged,
    PartitionChanged,
    TopicCreated,
    TopicDeleted,
)
from shmbroker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE
from shmbroker.shm.counters import METADATA_APPLIED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.apis.contexts import MetadataLink
    from shmbroker.broker.placement import Placement
    from shmbroker.broker.registration import Registration
    from shmbroker.groups.coordinator import GroupCoordinator
    from shmbroker.ipc.member import FamilyMember
    from shmbroker.metadata.changes import MetadataChange


class LiveMetadata:
    """Follows the log; `link.follower` has the image of it.

    on_configured: told the topics whose settings have changed, "" for the broker's own.
    on_applied: told each time that some logs were opened or deleted.
    """

    def __init__(
        self,
        member: FamilyMember,
        link: MetadataLink,
        registration: Registration,
        placement: Placement,
        groups: GroupCoordinator,
        *,
        on_configured: Callable[[set[str]], None],
        on_applied: Callable[[], None],
    ) -> None:
        self.words = member.words
        self.link = link
        self.registration = registration
        self.placement = placement
        self.groups = groups
        self.has_stepped = False
        """`follow` has done its step of this turn, and there are more."""
        self._applied_index = member.counters.at(member.index, METADATA_APPLIED)
        self._on_configured = on_configured
        self._on_applied = on_applied
        self.on_followed: Callable[[Sequence[MetadataChange]], None] = lambda _changes: None
        """What is told of changes, once the image has them."""

    def follow(self) -> None:
        """Create, open and delete logs as the committed metadata says, and say how far we are."""
        link, placement = self.link, self.placement
        if self.has_stepped or self.registration.epoch < 0 or not link.is_behind():
            return
        epoch = link.epoch
        changes = link.catch_up()
        if link.epoch != epoch:
            for peer in link.others():
                self.registration.on_controller_lost(peer)
        if changes is None:
            self.has_stepped = True
            return
        self.on_followed(changes)
        placement.on_image()
        image = link.follower.image
        self.groups.consumers.on_image(image, changes)
        configured: set[str] = set()
        deleted = [change.topic for change in changes if isinstance(change, TopicDeleted)]
        if deleted:
            placement.delete(deleted)
        for change in changes:
            if isinstance(change, TopicCreated):
                placement.add_new(change.topic)
            elif isinstance(change, PartitionChanged):
                placement.add(change.topic, change.after)
            elif isinstance(change, ConfigChanged):
                if change.resource_type == TOPIC_RESOURCE:
                    configured.add(change.name)
                elif change.resource_type == BROKER_RESOURCE:
                    configured.add("")
        if configured:
            self._on_configured(configured)
        if placement.is_in_doubt and self._is_decided():
            placement.end_doubt(image)
        placement.look_for_coordinators()
        self.apply_some()

    def _is_decided(self) -> bool:
        """Whether the controller lets this broker serve."""
        registration = self.registration
        own = self.link.follower.image.brokers.get(registration.broker_id)
        return own is not None and not own.is_fenced and own.broker_epoch == registration.epoch

    def apply_some(self) -> None:
        """Delete and open some logs; say how far we are when clients find everything."""
        placement = self.placement
        placement.apply_some()
        self._on_applied()
        # While it is in doubt, a controller counts it as one that has not come.
        if placement.is_applied and not placement.is_in_doubt:
            self.words[self._applied_index] = self.link.follower.image.offset
            if (controller := self.link.peer()) is not None:
                controller.doorbell.ring()
