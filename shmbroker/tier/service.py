"""What the tier process does: carries segments into the remote store and back, for all I/O workers.

Rules of this file:
* What it is asked is done by workers, as a store takes its time: copies and deletes by one set of
  them, what readers wait for by another. `turn` takes what they have done, and looks what is due.
* It decides little: I/O workers say which segments (`broker.tiering`), and take what is done.
  Only what belongs to no tiered topic any more it removes by itself, as the metadata log says it:
  when a topic is deleted, or its remote storage switched off, and at its start.
* It may be killed at any point (`tier.transfer`). It keeps nothing: after a restart, and after a
  copy that has failed, a partition is loaded before anything of it is copied, and what such a copy
  left is removed then, while nobody copies.
* A store that fails: one line when it begins, one when it is over; who asked tries again.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Protocol

from shmbroker import logs
from shmbroker.ids import uuid_from_text
from shmbroker.metadata.changes import ConfigChanged, TopicDeleted
from shmbroker.metadata.image import TOPIC_RESOURCE
from shmbroker.settings.table import TOPIC_SETTINGS
from shmbroker.tier import transfer
from shmbroker.tier.manifest import PartitionName, partition_prefix, stem_of, topic_prefix
from shmbroker.tier.remote_log import ABSENT, RemoteSegment
from shmbroker.tier.states import read_state
from shmbroker.tier.store_workers import fault_of
from shmbroker.wire.api_keys import (
    TIER_ABORTED,
    TIER_COPY,
    TIER_DELETE,
    TIER_FETCH,
    TIER_FIND,
    TIER_LOAD,
    TIER_STATE,
)
from shmbroker.wire.error_codes import (
    CORRUPT_MESSAGE,
    KAFKA_STORAGE_ERROR,
    NONE,
    UNKNOWN_SERVER_ERROR,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.metadata.changes import MetadataChange
    from shmbroker.metadata.image import MetadataImage, TopicImage
    from shmbroker.tier.object_store import ObjectStore
    from shmbroker.tier.store_workers import Body, Done

logger = logging.getLogger(__name__)

LINE_INTERVAL_S = 10.0
"""The time between two lines about a store that fails: one that works by halves would fill the
log."""
RETRY_S = 5.0
"""The time after which what belongs to nobody is tried to be removed once more."""


class TierRequest(Protocol):
    """One request, and the way back."""

    def reply(self, body: Body, /) -> None:
        """Send the answer."""


class Metadata(Protocol):
    """What is committed of the metadata log."""

    @property
    def image(self) -> MetadataImage:
        """The topics as far as they were followed."""

    def is_behind(self) -> bool:
        """Whether more is committed than the image has."""

    def catch_up(self) -> list[MetadataChange] | None:
        """One step towards what is committed; the changes, once it is there."""


class StoreWorkers(Protocol):
    """What does work that may take long (`tier.store_workers`)."""

    def submit(self, work: Callable[[], Body], on_done: Callable[[Body], None], /) -> None:
        """Have the work done; then `on_done` with its answer, by `Done`."""


class TierService:
    """The part of the tier process that decides. `count`: adds to a counter of the process."""

    def __init__(
        self,
        cluster_id: str,
        store: ObjectStore,
        metadata: Metadata,
        copiers: StoreWorkers,
        readers: StoreWorkers,
        done: Done,
        count: Callable[[str, int], None],
    ) -> None:
        self.cluster_id = cluster_id
        self.store = store
        self.metadata = metadata
        self.copiers = copiers
        self.readers = readers
        self.done = done
        self._count = count
        self.indexes = transfer.Indexes()
        self.handlers = {
            TIER_LOAD: ("TierLoad", self.on_load),
            TIER_COPY: ("TierCopy", self.on_copy),
            TIER_DELETE: ("TierDelete", self.on_delete),
            TIER_FETCH: ("TierFetch", self.on_fetch),
            TIER_FIND: ("TierFind", self.on_find),
            TIER_ABORTED: ("TierAborted", self.on_aborted),
            TIER_STATE: ("TierState", self.on_state),
        }
        """By api key: a handler answers at once, or None and later by `TierRequest.reply`."""
        self.now = 0.0
        """The time of this turn."""
        self.swept: set[str] = set()
        """Prefixes of partitions in which no interrupted copy is left."""
        self.sweeping: set[str] = set()
        self.copying: dict[str, int] = {}
        """Copies under way, by the prefix of their partition."""
        self.to_drop: dict[str, float] = {}
        """Prefixes of topics that are to go as a whole, and when that is tried (next)."""
        self.dropping: set[str] = set()
        self.next_look = 0.0
        """When the store is looked through for topics that are not there any more."""
        self.is_failing = False
        self.next_line = 0.0

    def turn(self, now: float) -> bool:
        """Tell what workers have done, follow the metadata, and remove what belongs to nobody; True
        if something was done."""
        self.now = now
        had_work = False
        while not self.done.empty():
            self.done.get()()
            had_work = True
        self._follow_metadata()
        if now >= self.next_look and self.metadata.image.brokers:
            self._look_through()
        if self.to_drop:
            self._drop_some()
        return had_work

    # ── what belongs to nobody ──────────────────────────────────────────────────────────────────

    def _follow_metadata(self) -> None:
        """Note the topics whose copies are to go."""
        if not self.metadata.is_behind():
            return
        before = self.metadata.image
        while (changes := self.metadata.catch_up()) is None:
            pass  # nobody waits for this process
        for change in changes:
            if isinstance(change, TopicDeleted):
                was: TopicImage | None = change.topic
            elif isinstance(change, ConfigChanged) and change.resource_type == TOPIC_RESOURCE:
                was = before.topics_by_name.get(change.name)
            else:
                continue
            if was is not None and _is_switched_on(before, was) and not self._is_kept(was.topic_id):
                self._drop(topic_prefix(self.cluster_id, was.name, was.topic_id))

    def _is_kept(self, topic_id: bytes) -> bool:
        image = self.metadata.image
        topic = image.topics_by_id.get(topic_id)
        return topic is not None and _is_switched_on(image, topic)

    def _drop(self, prefix: str) -> None:
        self.to_drop.setdefault(prefix, 0.0)
        self.swept = {kept for kept in self.swept if not kept.startswith(prefix)}

    def _look_through(self) -> None:
        """Look, once, for what a deletion that was interrupted, or that nobody saw, has left.

        By now the I/O workers of this start are registered, so all topics are in the image.
        """
        self.next_look = float("inf")

        def work() -> Body:
            names = list(self.store.list_directories(f"{self.cluster_id}/"))
            return {"error_code": NONE, "names": names}

        def on_done(body: Body) -> None:
            if body["error_code"]:
                self.next_look = self.now + RETRY_S
                return
            for name in body["names"]:
                try:
                    topic_id = uuid_from_text(name.rpartition(".")[2])
                except ValueError:
                    continue
                if not self._is_kept(topic_id):
                    self._drop(f"{self.cluster_id}/{name}/")

        self._submit(self.copiers, work, on_done)

    def _drop_some(self) -> None:
        """Remove all objects of such topics, once no copy of them is under way."""
        for prefix, when in self.to_drop.items():
            is_copied = any(one.startswith(prefix) for one in self.copying)
            if self.now < when or prefix in self.dropping or is_copied:
                continue
            self.dropping.add(prefix)

            def work(prefix: str = prefix) -> Body:
                count = transfer.delete_everything(self.store, prefix)
                return {"error_code": NONE, "count": count}

            def on_done(body: Body, prefix: str = prefix) -> None:
                self.dropping.discard(prefix)
                if body["error_code"]:
                    self.to_drop[prefix] = self.now + RETRY_S
                    return
                del self.to_drop[prefix]
                if body["count"]:
                    logger.info("%s: %d objects removed from the store", prefix, body["count"])

            self._submit(self.copiers, work, on_done)

    # ── what I/O workers ask ────────────────────────────────────────────────────────────────────

    def on_load(self, call: TierRequest, body: Body) -> Body | None:
        """TierLoad: the segments of a partition that are in the store."""
        name, prefix = self._place(body)
        if refusal := self._refusal(body):
            return refusal
        must_sweep = (
            prefix not in self.swept and prefix not in self.sweeping and prefix not in self.copying
        )
        if must_sweep:
            self.sweeping.add(prefix)

        def work() -> Body:
            found = transfer.load_segments(self.store, prefix, name, must_sweep=must_sweep)
            return {
                "error_code": NONE,
                "complaints": found.complaints,
                "damaged": [copy._asdict() for copy in found.damaged],
                "segments": [segment._asdict() for segment in found.segments],
            }

        def on_done(answer: Body) -> None:
            if must_sweep:
                self.sweeping.discard(prefix)
                if not answer["error_code"]:
                    self.swept.add(prefix)
            for complaint in answer.get("complaints", ()):
                lost = "what it names counts as not copied"
                logger.error("%s; %s", complaint, lost, extra=logs.seldom(lost))
                self._count("tier_damaged", 1)
            call.reply(answer)

        self._submit(self.readers, work, on_done)
        return None

    def on_copy(self, call: TierRequest, body: Body) -> Body | None:
        """TierCopy: one closed segment into the store."""
        name, prefix = self._place(body)
        refusal = self._refusal(body)
        if refusal is None and prefix not in self.swept:
            refusal = fault_of(KAFKA_STORAGE_ERROR, f"{prefix} is not loaded")
        if refusal is not None:
            return refusal
        segment = RemoteSegment(**{field: body[field] for field in RemoteSegment._fields})
        epochs = [(entry["epoch"], entry["start_offset"]) for entry in body["epochs"]]
        self.copying[prefix] = self.copying.get(prefix, 0) + 1

        def work() -> Body:
            transfer.copy_segment(
                self.store, prefix, name, body["directory"], segment, epochs, _no_progress
            )
            return {"error_code": NONE}

        def on_done(answer: Body) -> None:
            self.copying[prefix] -= 1
            if not self.copying[prefix]:
                del self.copying[prefix]
            if answer["error_code"]:
                self.swept.discard(prefix)  # of what this one has left, with the next list
            else:
                self._count("tier_copies", 1)
                self._count("tier_copied_bytes", segment.size)
            call.reply(answer)

        self._submit(self.copiers, work, on_done)
        return None

    def on_delete(self, call: TierRequest, body: Body) -> Body | None:
        """TierDelete: segments out of the store."""
        _, prefix = self._place(body)
        stems = [
            stem_of(entry["base_offset"], entry["end_offset"], entry["leader_epoch"])
            for entry in body["segments"]
        ]

        def work() -> Body:
            transfer.delete_segments(self.store, prefix, stems)
            return {"error_code": NONE}

        def on_done(answer: Body) -> None:
            if not answer["error_code"]:
                self._count("tier_deletes", len(stems))
            call.reply(answer)

        self._submit(self.copiers, work, on_done)
        return None

    def on_fetch(self, call: TierRequest, body: Body) -> Body | None:
        """TierFetch: batches from an offset on, into a file of the asking worker's cache."""
        _, prefix = self._place(body)
        segment = _segment_of(body)

        def work() -> Body:
            chunk = transfer.fetch_chunk(
                self.store,
                prefix,
                segment,
                body["offset"],
                body["directory"],
                self.indexes,
                body["index_interval_bytes"],
                transfer.FETCH_BYTES,
            )
            return {"error_code": NONE, **chunk._asdict()}

        def on_done(answer: Body) -> None:
            if not answer["error_code"]:
                self._count("tier_fetches", 1)
                self._count("tier_fetched_bytes", answer["size"])
            call.reply(answer)

        self._submit(self.readers, work, on_done)
        return None

    def on_find(self, call: TierRequest, body: Body) -> Body | None:
        """TierFind: the first record that isn't older than a time; offset -1 if there is none."""
        _, prefix = self._place(body)
        segment = _segment_of(body)

        def work() -> Body:
            found = transfer.find_timestamp(
                self.store,
                prefix,
                segment,
                body["timestamp"],
                body["start_offset"],
                self.indexes,
            )
            timestamp, offset = found or (-1, -1)
            return {"error_code": NONE, "timestamp": timestamp, "offset": offset}

        self._submit(self.readers, work, call.reply)
        return None

    def on_aborted(self, call: TierRequest, body: Body) -> Body | None:
        """TierAborted: the aborted transactions whose markers lie in a segment."""
        _, prefix = self._place(body)
        segment = _segment_of(body)

        def work() -> Body:
            found = transfer.read_aborted(self.store, prefix, segment)
            return {"error_code": NONE, "aborted": [entry._asdict() for entry in found]}

        self._submit(self.readers, work, call.reply)
        return None

    def on_state(self, call: TierRequest, body: Body) -> Body | None:
        """TierState: what was known at the end of a copy; offset -1 if nothing is copied."""
        name, prefix = self._place(body)

        def work() -> Body:
            state = read_state(self.store, prefix, name, body["offset"])
            if state is None:
                return {"error_code": NONE, "offset": ABSENT}
            epochs = [{"epoch": epoch, "start_offset": start} for epoch, start in state.epochs]
            producers = state.snapshot or b""
            return {
                "error_code": NONE,
                "offset": state.offset,
                "epochs": epochs,
                "snapshot": producers,
            }

        self._submit(self.readers, work, call.reply)
        return None

    def _place(self, body: Body) -> tuple[PartitionName, str]:
        name = PartitionName(body["topic"], body["topic_id"], body["partition"])
        return name, partition_prefix(self.cluster_id, name)

    def _refusal(self, body: Body) -> Body | None:
        """The refusal of what belongs to a topic that is about to go."""
        prefix = topic_prefix(self.cluster_id, body["topic"], body["topic_id"])
        if prefix in self.to_drop:
            return fault_of(KAFKA_STORAGE_ERROR, f"{prefix} is being removed from the store")
        return None

    # ── workers ─────────────────────────────────────────────────────────────────────────────────

    def _submit(
        self, workers: StoreWorkers, work: Callable[[], Body], on_done: Callable[[Body], None]
    ) -> None:
        """Have a worker do it; then `on_done` with its answer, in a turn."""
        workers.submit(work, partial(self._on_done, on_done))

    def _on_done(self, on_done: Callable[[Body], None], body: Body) -> None:
        self._note_health(body)
        on_done(body)

    def _note_health(self, body: Body) -> None:
        error = body["error_code"]
        if error == KAFKA_STORAGE_ERROR:
            self._count("tier_faults", 1)
            if not self.is_failing and self.now >= self.next_line:
                self.is_failing = True
                self.next_line = self.now + LINE_INTERVAL_S
                logger.error("the remote store fails: %s; tried again", body["error_message"])
        elif error == UNKNOWN_SERVER_ERROR:
            again = "tried again"
            logger.warning("%s; %s", body["error_message"], again, extra=logs.seldom(again))
        elif error == CORRUPT_MESSAGE:
            self._count("tier_damaged", 1)
            damaged = "damaged in the remote store"
            logger.error("%s", body["error_message"], extra=logs.seldom(damaged))
        elif not error and self.is_failing:
            self.is_failing = False
            logger.info("the remote store answers again")


def _segment_of(body: Body) -> RemoteSegment:
    return RemoteSegment(
        body["base_offset"], body["end_offset"], body["leader_epoch"], body["size"], -1
    )


def _is_switched_on(image: MetadataImage, topic: TopicImage) -> bool:
    """Whether a topic has the remote storage switched on.

    It is this alone and not `LogConfig.is_tiered`: what a topic has copied stays its own while
    other settings say that nothing is read from the store.
    """
    name = "remote.storage.enable"
    text = image.config(TOPIC_RESOURCE, topic.name).get(name)
    return text is not None and bool(TOPIC_SETTINGS[name].parse(text))


def _no_progress(_count: int) -> None:
    """A copy runs through; it may be killed."""
