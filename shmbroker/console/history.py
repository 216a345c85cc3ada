"""What the console remembers: the lag of groups over time, and things that happened. Bounded; lost
with the process.

Lag is noted when brokers were asked for it, which is while a page is open: there are gaps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.metadata.image import MetadataImage, PartitionImage
    from shmbroker.observe.snapshot import Groups, Process, Snapshot

LAGS_MAX = 720
"""Two hours, at one in 10 s."""
GROUPS_MAX = 200
EVENTS_MAX = 500

ERROR, WARNING, INFO = "error", "warning", "info"


class LagHistory:
    """The lag of each group when it was asked for."""

    def __init__(self) -> None:
        self._of: dict[str, deque[tuple[int, int]]] = {}
        self._noted_s = -1.0

    def note(self, snapshot: Snapshot) -> None:
        """Note a snapshot with groups; one whose groups were noted before changes nothing."""
        groups = snapshot.groups
        if groups.age_s is None:
            return
        asked_s = snapshot.monotonic_s - groups.age_s
        if asked_s <= self._noted_s + 0.5:
            return
        self._noted_s = asked_s
        at_ms = snapshot.at_ms - round(groups.age_s * 1000)
        self._forget(groups)
        for group in groups.groups[:GROUPS_MAX]:
            lags = self._of.setdefault(group.name, deque(maxlen=LAGS_MAX))
            lags.append((at_ms, group.lag))

    def _forget(self, groups: Groups) -> None:
        """Groups that are gone, where there is no room for all."""
        if len(self._of) > GROUPS_MAX:
            named = {group.name for group in groups.groups[:GROUPS_MAX]}
            self._of = {name: lags for name, lags in self._of.items() if name in named}

    def of(self, group: str) -> list[tuple[int, int]]:
        """(milliseconds since 1970, records behind), the oldest first."""
        return list(self._of.get(group, ()))


class Events:
    """Things that happened to processes and partitions, since this process began."""

    def __init__(self) -> None:
        self.events: deque[dict[str, str | int]] = deque(maxlen=EVENTS_MAX)
        self._processes: dict[str, Process] = {}
        self._image: MetadataImage | None = None

    def put(self, at_ms: int, level: str, what: str) -> None:
        """Add one more."""
        self.events.append({"at_ms": at_ms, "level": level, "what": what})

    def see_processes(self, at_ms: int, processes: list[Process]) -> None:
        """Compare with those that were seen last."""
        before = self._processes
        self._processes = {each.title: each for each in processes}
        for title, now in self._processes.items():
            was = before.get(title)
            if was is None:
                continue
            if now.restarts > was.restarts:
                times = f", {now.restarts} times in all" if now.restarts > 1 else ""
                self.put(at_ms, ERROR, f"{title} has died and is replaced{times}")
            elif now.state != was.state:
                level = ERROR if now.state == "unable" else INFO
                self.put(at_ms, level, f"{title} is {now.state}, it was {was.state}")
            if now.disk != was.disk:
                level = INFO if now.disk == "room" else ERROR
                self.put(at_ms, level, f"the disk of {title}: {now.disk}, it was {was.disk}")
            for name, (what, level) in _COUNTED.items():
                more = now.counted.get(name, 0) - was.counted.get(name, 0)
                if more > 0:
                    self.put(at_ms, level, f"{title}: {more} {what}")

    def see_image(self, at_ms: int, image: MetadataImage) -> None:
        """Compare with the one that was seen last; what did not change is the same object."""
        before, self._image = self._image, image
        if before is None or before is image or not before.offset:
            return
        for name, topic in image.topics_by_name.items():
            was = before.topics_by_name.get(name)
            if was is None:
                self.put(
                    at_ms, INFO, f"topic {name} is made, of {len(topic.partitions)} partitions"
                )
            elif was is not topic and was.topic_id == topic.topic_id:
                for old, new in zip(was.partitions, topic.partitions, strict=False):
                    if old is not new:
                        self._partition(at_ms, f"{name}-{new.partition}", old, new)
        for name in before.topics_by_name.keys() - image.topics_by_name.keys():
            self.put(at_ms, INFO, f"topic {name} is deleted")
        for number, broker in image.brokers.items():
            earlier = before.brokers.get(number)
            if earlier is not None and earlier.is_fenced != broker.is_fenced:
                state = "is fenced" if broker.is_fenced else "serves"
                self.put(at_ms, WARNING if broker.is_fenced else INFO, f"broker {number} {state}")

    def _partition(self, at_ms: int, name: str, was: PartitionImage, now: PartitionImage) -> None:
        if was.leader_id != now.leader_id:
            level = ERROR if now.leader_id < 0 else INFO
            led = "no leader" if now.leader_id < 0 else f"leader {now.leader_id}"
            self.put(at_ms, level, f"{name} has {led}, it was {was.leader_id}")
        gone = sorted(set(was.in_sync_replicas) - set(now.in_sync_replicas))
        come = sorted(set(now.in_sync_replicas) - set(was.in_sync_replicas))
        if gone:
            self.put(at_ms, WARNING, f"{name}: {_numbers(gone)} left the in-sync replicas")
        if come:
            self.put(at_ms, INFO, f"{name}: {_numbers(come)} joined the in-sync replicas")


_COUNTED: Mapping[str, tuple[str, str]] = {
    "log_damage": ("places of logs are damaged, missing or impossible", ERROR),
    "partitions_lost": ("partitions are gone or set aside", ERROR),
    "storage_faults": ("refusals by the disk", ERROR),
    "logs_not_compacted": ("logs that compaction has given up", WARNING),
    "tier_faults": ("requests that the remote store has failed", WARNING),
    "tier_damaged": ("damaged segments or manifests of the remote store", ERROR),
}
"""Counters whose growth is an event: what is counted, and how bad it is."""


def _numbers(brokers: list[int]) -> str:
    return ", ".join(map(str, brokers))
