"""Makes snapshots of a family, from within it or from outside. It stores nothing, and holds up
nobody: it reads shared memory, files, /proc and the metadata log; of groups alone it asks brokers,
as a client does (`groups`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from shmbroker import clock
from shmbroker.ipc.committed_log import CommittedLog
from shmbroker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage
from shmbroker.observe import shared_memory
from shmbroker.observe.about import About
from shmbroker.observe.groups import GroupAsker
from shmbroker.observe.health import reasons_not_ready
from shmbroker.observe.partitions import ChangeCounts, Directories, ObservedPartitions, brokers
from shmbroker.observe.shared_memory import Family
from shmbroker.observe.snapshot import Snapshot
from shmbroker.settings.layers import (
    SOURCE_DYNAMIC_DEFAULT_BROKER,
    SOURCE_STATIC_BROKER,
    effective_topic_value,
)
from shmbroker.shm.positions import SiblingPositions

_MIN_IN_SYNC = "min.insync.replicas"


class Observer:
    """Looks at one family. Any thread may ask; one lock is around all of it."""

    def __init__(
        self,
        about: About,
        family: Family,
        positions: Mapping[int, SiblingPositions],
        sign: Callable[[], None] = lambda: None,
    ) -> None:
        """positions: by broker id; `sign` is called while the metadata log is read."""
        self.about = about
        self.family = family
        self.link = CommittedLog(family.counters, about.metadata_directory, about.cluster_id)
        self.addresses = about.reached()
        """Where the brokers are reached from this host, by their ids."""
        self.groups = GroupAsker(about.data_directory, about.addresses)
        self._partitions = ObservedPartitions(
            positions, Directories(about.directories), self._min_in_sync
        )
        self._changes = ChangeCounts()
        self._is_first = True
        self._sign = sign
        self._lock = threading.Lock()

    @property
    def image(self) -> MetadataImage:
        """The cluster as of the last `follow`."""
        return self.link.follower.image

    def follow(self) -> None:
        """Catch up with the metadata log. Faults: CorruptFault, StorageFault."""
        with self._lock:
            self._follow()

    def look(self, are_groups_wanted: bool = True) -> Snapshot:
        """All of it, as it is now. With groups, the first look waits for them, for
        `groups.FIRST_WAIT_S` at most; `groups.start` has been called then."""
        if are_groups_wanted:
            self.groups.want()
        with self._lock:
            return self._look()

    def reasons_not_ready(self) -> list[str]:
        """Why it is not ready to serve; empty if it is."""
        with self._lock:
            self._follow()
            about = self.about
            return reasons_not_ready(
                shared_memory.processes(self.family, clock.monotonic(), is_usage_wanted=False),
                shared_memory.controllers(self.family),
                brokers(self.image, (), about.directories, about.addresses),
            )

    def _follow(self) -> None:
        while (changes := self.link.catch_up()) is None:
            self._sign()
        if self._is_first and self.image.offset:
            self._is_first = False  # what was before is no change
        else:
            self._changes.see(changes)

    def _look(self) -> Snapshot:
        began = clock.monotonic()
        now_ms = clock.now_ms()
        self._follow()
        family, about, image = self.family, self.about, self.image
        processes = shared_memory.processes(family, began)
        controllers = shared_memory.controllers(family)
        topics = self._partitions.look(image)
        found = brokers(image, topics, about.directories, about.addresses)

        def end_offset(topic: str, partition: int) -> int | None:
            return self._partitions.end_offset(image, topic, partition)

        return Snapshot(
            about.version,
            about.cluster_id,
            about.data_directory,
            now_ms,
            began,
            about.started_ms,
            began - about.started_s,
            processes,
            shared_memory.rings(family),
            shared_memory.latencies(family),
            controllers,
            found,
            sorted(image.brokers),
            sorted(each.broker_id for each in image.brokers.values() if each.is_fenced),
            topics,
            self.groups.look(began, end_offset),
            self._changes.taken(),
            reasons_not_ready(processes, controllers, found),
            clock.monotonic() - began,
        )

    def _min_in_sync(self, image: MetadataImage, topic: str) -> int:
        static = {} if self.about.min_in_sync is None else {_MIN_IN_SYNC: self.about.min_in_sync}
        layers = (
            (SOURCE_DYNAMIC_DEFAULT_BROKER, image.config(BROKER_RESOURCE, "")),
            (SOURCE_STATIC_BROKER, static),
        )
        overrides = image.config(TOPIC_RESOURCE, topic)
        return int(effective_topic_value(_MIN_IN_SYNC, overrides, layers))
