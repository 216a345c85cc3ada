"""A simulated family with a remote store: its settings, what befalls the store, and what must be
true of it at the end.

The store is a directory on the same simulated disk, "archive/store", so a power cut hits it, too.
Besides all other faults:

kill_tier    the tier process, mostly in one of its threads, at any system call
unmount      the store's directory is away for a while: there is none, or an empty one
fill_store   the store has no room
refuse_store it refuses to write or to flush, a few times
unread_store it refuses to read, a few times

Checked at the end (docs/tiered-storage.md), beside all that `history` says of what is read:

    M  each copy is whole, and of offsets that are not all deleted
    N  nothing else is in the store: no half of a copy, nothing of a topic that was deleted, or has
       no remote storage any more
    O  while it was away no more was written in its place than what was on its way
    P  no log's copies begin with one that is older than its topic keeps records. Later ones may be,
       as in Apache Kafka, where the wall clock has jumped back between the two
"""

from __future__ import annotations

import os
import shutil
from random import Random
from typing import Any

from shmbroker.ids import uuid_text
from shmbroker.ipc.slots import TIER
from shmbroker.metadata.image import TOPIC_RESOURCE
from shmbroker.processes.tier import COPIERS
from shmbroker.tier import manifest
from shmbroker.tier.remote_log import RemoteSegment
from shmbroker.tier.store_mark import KNOWN, MARK
from tests.simulation.family.family import Family
from tests.simulation.family.faults import Faults

ARCHIVE = "archive"
"""The directory of the root that the store is mounted in."""


def settings(root: str, random: Random) -> dict[str, str]:
    """Of a broker that looks often for what is to be copied and dropped."""
    return {
        "shmbroker.tier.store": f"file://{root}/{ARCHIVE}/store",
        "remote.log.manager.task.interval.ms": str(random.choice((50, 300))),
        "log.retention.check.interval.ms": str(random.choice((50, 300))),
    }


def topic_configs(random: Random) -> dict[str, str]:
    """Of a topic with small segments, most of which are soon in the store alone."""
    return {
        "remote.storage.enable": "true",
        "segment.ms": str(random.choice((20, 200, 1000))),
        "retention.ms": "-1",
        "local.retention.ms": str(random.choice((0, 100, 1000))),
        "local.retention.bytes": str(random.choice((0, 500, 5000))),
    }


def expiry_configs(random: Random) -> dict[str, str]:
    """Of a topic whose copies expire."""
    configs = {
        "retention.ms": random.choice(("-1", "500", "2000")),
        "retention.bytes": random.choice(("-1", "-1", "3000")),
    }
    if configs["retention.ms"] == "500":
        configs["local.retention.ms"] = random.choice(("0", "100", "-2"))
    if configs["retention.bytes"] != "-1":
        configs["local.retention.bytes"] = random.choice(("0", "500", "-2"))
    return configs


class StoreFaults(Faults):
    """What befalls a family with a store."""

    KINDS = ("kill_tier", "kill_tier", "unmount", "fill_store", "refuse_store", "unread_store")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._place = os.path.join(self._disk.root, ARCHIVE)
        self._store = os.path.join(self._place, "store")
        self._away = os.path.join(self._place, "away")
        os.mkdir(self._place)
        self._disk.sync_names(self._disk.root)

    def heal(self) -> None:
        """The tier process starts once more at the end: what is left over goes then at the
        latest."""
        super().heal()
        self._mount()
        self._kill_tier(False)

    def cut(self) -> None:
        self._mount()
        super().cut()

    def kill_tier(self) -> None:
        self._kill_tier(self._random.random() < 0.8)

    def _kill_tier(self, is_amid: bool) -> None:
        for member in self._family.members.values():
            process = member.process
            if member.slot.role != TIER or process is None:
                continue
            if is_amid and process.threads:
                victim = self._random.choice(process.threads)
                victim.calls_left = self._random.randrange(60)
                self._trace("kill", f"{victim.title} after {victim.calls_left} calls")
            else:
                self._trace("kill", process.title)
                process.kill()

    def unmount(self) -> None:
        known = os.path.join(self._disk.root, KNOWN)
        if os.path.exists(self._away) or not os.path.exists(known):
            return
        is_bare = self._random.random() < 0.7
        self._trace("unmount", "the store: " + ("an empty directory" if is_bare else "nothing"))
        self._disk.full.discard(ARCHIVE)
        os.rename(self._store, self._away)
        if is_bare:
            os.mkdir(self._store)
        self._disk.sync_names(self._place)
        self._scheduler.after(self._random.uniform(0.1, 2.0), self._mount)

    def _mount(self) -> None:
        if not os.path.exists(self._away):
            return
        self._trace("mount", "the store")
        found = [name for _, _, names in os.walk(self._store) for name in names]
        assert len(found) <= COPIERS, f"written where the store should have been: {found}"  # O
        shutil.rmtree(self._store, ignore_errors=True)
        os.rename(self._away, self._store)
        self._disk.sync_names(self._place)

    def fill_store(self) -> None:
        self._trace("full", "the store")
        self._disk.full.add(ARCHIVE)
        self._scheduler.after(
            self._random.uniform(0.1, 1.5), lambda: self._disk.full.discard(ARCHIVE)
        )

    def refuse_store(self) -> None:
        self._trace("refuse", "the store")
        self._disk.failing[ARCHIVE] = self._random.randrange(1, 4)
        self._end_soon(self._disk.failing)

    def unread_store(self) -> None:
        self._trace("unread", "the store")
        self._disk.unreadable[ARCHIVE] = self._random.randrange(1, 4)
        self._end_soon(self._disk.unreadable)

    def _end_soon(self, faults: dict[str, int]) -> None:
        def end() -> None:
            faults.pop(ARCHIVE, None)

        self._scheduler.after(self._random.uniform(0.1, 1.0), end)


def wrong_with(family: Family, now_ms: int) -> str:
    """What is in the store, and should not be in the end; "" if nothing."""
    image = family.image()
    if image is None:
        return "the metadata are not known"
    store = os.path.join(family.disk.root, ARCHIVE, "store")
    kept = {
        f"{topic.name}.{uuid_text(topic.topic_id)}": topic
        for topic in image.topics_by_id.values()
        if image.config(TOPIC_RESOURCE, topic.name).get("remote.storage.enable") == "true"
    }
    starts = {
        (partition.topic_id, partition.partition): partition.log.log_start_offset
        for partition in family.led()
    }
    kinds: dict[str, set[str]] = {}
    first: dict[manifest.PartitionName, RemoteSegment] = {}
    for directory, _, names in os.walk(store):
        for name in names:
            key = os.path.relpath(os.path.join(directory, name), store)
            parts = manifest.split_key(key)
            if parts is None:
                if name == MARK:
                    continue
                return f"{key} is no object"
            kinds.setdefault(f"{os.path.dirname(key)}/{parts[0]}", set()).add(parts[1])
    for path, there in kinds.items():
        _, place, number, _ = path.split("/")
        topic = kept.get(place)
        if topic is None:
            return f"{path} is of a topic that is gone, or has no remote storage"  # N
        partition = manifest.PartitionName(topic.name, topic.topic_id, int(number))
        if manifest.MANIFEST not in there:
            return f"{path} has no manifest, but {there}"  # N
        key = f"{path}.{manifest.MANIFEST}"
        with open(os.path.join(store, key), "rb") as file:
            segment, objects = manifest.parse_manifest(key, file.read(), partition)
        if there != {*objects, manifest.MANIFEST}:
            return f"{path} should have {sorted(objects)} and has {there}"  # M
        start = starts.get((topic.topic_id, int(number)))
        if start is None:
            return f"{path}: nobody leads it"
        if segment.end_offset <= start:
            return f"{path} is deleted below {start}"  # M
        if segment.base_offset <= first.setdefault(partition, segment).base_offset:
            first[partition] = segment
    for partition, segment in first.items():
        limit_ms = int(image.config(TOPIC_RESOURCE, partition.topic).get("retention.ms", "-1"))
        if 0 <= limit_ms < now_ms - segment.max_timestamp:
            return f"{partition}: {segment} is kept for {limit_ms} ms"  # P
    return ""
