"""The tier process: carries segments into the remote store and back, for all I/O workers.

Rules of this file:
* There from the start where there is a remote store, so that nobody else ever waits for it. What it
  is asked is done by threads, as a store takes its time: copies and deletes by few, what readers
  wait for by others. The main loop asks, answers, and signs.
* It decides little: I/O workers say which segments (`broker.tiering`), and take what is done.
  Only what belongs to no tiered topic any more it removes by itself, as the metadata log says it:
  when a topic is deleted, or its remote storage switched off, and at its start.
* It may die at any point (`tier.transfer`), and is simply killed at a stop. It keeps nothing: after
  a restart each partition is loaded before anything of it is copied, and what an interrupted copy
  left is removed then, while nobody copies.
* A store that fails: one line when it begins, one when it is over; who asked tries again.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from shmbroker import clock, logs
from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.ids import uuid_from_text
from shmbroker.ipc.member import BACKLOG_RETRY_S
from shmbroker.ipc.operation_adapter import Call, Executor
from shmbroker.metadata.changes import ConfigChanged, TopicDeleted
from shmbroker.metadata.image import TOPIC_RESOURCE
from shmbroker.processes.active_link import ActiveLink
from shmbroker.processes.child import REST_S, SleepingChild
from shmbroker.processes.shared_resources import SharedResources, Slot
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.tier import transfer
from shmbroker.tier.manifest import PartitionName, partition_prefix, stem_of, topic_prefix
from shmbroker.tier.object_store import StoreFault, open_store, store_url
from shmbroker.tier.remote_log import RemoteSegment
from shmbroker.tier.store_mark import KNOWN
from shmbroker.wire.api_keys import (
    TIER_ABORTED,
    TIER_COPY,
    TIER_DELETE,
    TIER_FETCH,
    TIER_FIND,
    TIER_LOAD,
)
from shmbroker.wire.error_codes import (
    CORRUPT_MESSAGE,
    KAFKA_STORAGE_ERROR,
    NONE,
    UNKNOWN_SERVER_ERROR,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.ipc.peer import Peer
    from shmbroker.metadata.image import MetadataImage, TopicImage

logger = logging.getLogger(__name__)

COPIERS = 4
READERS = 8
LINE_INTERVAL_S = 10.0
"""The time between two lines about a store that fails: one that works by halves would fill the
log."""
RETRY_S = 5.0
"""The time after which what belongs to nobody is tried to be removed once more."""

Body = dict[str, Any]


class TierProcess(SleepingChild):
    """The main loop."""

    def __init__(
        self,
        shared: SharedResources,
        slot: Slot,
        config: BrokerConfig,
        data_directory: Path,
        cluster_id: str,
    ) -> None:
        super().__init__(shared, slot)
        self.cluster_id = cluster_id
        self.store = open_store(
            store_url(config["shmbroker.tier.store"], str(data_directory)),
            config["shmbroker.tier.s3.endpoint"],
            config["shmbroker.tier.s3.region"],
            known=str(data_directory / KNOWN),
        )
        self.indexes = transfer.Indexes()
        self.done: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.copiers = Workers(COPIERS, self.done, self.doorbell.eventfd)
        self.readers = Workers(READERS, self.done, self.doorbell.eventfd)
        self.executor = Executor(
            {
                TIER_LOAD: ("TierLoad", self.on_load),
                TIER_COPY: ("TierCopy", self.on_copy),
                TIER_DELETE: ("TierDelete", self.on_delete),
                TIER_FETCH: ("TierFetch", self.on_fetch),
                TIER_FIND: ("TierFind", self.on_find),
                TIER_ABORTED: ("TierAborted", self.on_aborted),
            }
        )
        self.link = ActiveLink(
            self.counters,
            (),
            config,
            cluster_id,
        )
        self.swept: set[str] = set()
        """Prefixes of partitions in which no interrupted copy is left."""
        self.sweeping: set[str] = set()
        self.copying: dict[str, int] = {}
        """Copies under way, by the prefix of their topic."""
        self.to_drop: dict[str, float] = {}
        """Prefixes of topics that are to go as a whole, and when that is tried (next)."""
        self.dropping: set[str] = set()
        self.next_look = 0.0
        """When the store is looked through for topics that are not there any more."""
        self.is_failing = False
        self.next_line = 0.0

    def run(self) -> None:
        """Serve until asked to stop; what is under way then is left as it is."""
        self.say_running()
        while not self.must_stop:
            self.look_at_control(self)
            self.follow_metadata()
            had_work = self.executor.take(self.peers)
            while not self.done.empty():
                self.done.get()()
                had_work = True
            now = clock.monotonic()
            if now >= self.next_look and self.link.follower.image.brokers:
                self.look_through()
            if self.to_drop:
                self.drop_some(now)
            self.publish()
            logs.flush()
            self.sign(now)
            if not had_work:
                self.sleep(BACKLOG_RETRY_S if self.has_backlog() else REST_S)
        self.say_stopping()

    def on_peer_lost(self, peer: Peer) -> None:
        self.executor.drop_parts(peer.slot)

    # ── what belongs to nobody ──────────────────────────────────────────────────────────────────

    def follow_metadata(self) -> None:
        """Note the topics whose copies are to go."""
        if not self.link.is_behind():
            return
        before = self.link.follower.image
        while (changes := self.link.catch_up()) is None:
            pass  # nobody waits for this process
        for change in changes:
            if isinstance(change, TopicDeleted):
                was: TopicImage | None = change.topic
            elif isinstance(change, ConfigChanged) and change.resource_type == TOPIC_RESOURCE:
                was = before.topics_by_name.get(change.name)
            else:
                continue
            if was is not None and _is_tiered(before, was) and not self._is_kept(was.topic_id):
                self._drop(topic_prefix(self.cluster_id, was.name, was.topic_id))

    def _is_kept(self, topic_id: bytes) -> bool:
        image = self.link.follower.image
        topic = image.topics_by_id.get(topic_id)
        return topic is not None and _is_tiered(image, topic)

    def _drop(self, prefix: str) -> None:
        self.to_drop.setdefault(prefix, 0.0)
        self.swept = {kept for kept in self.swept if not kept.startswith(prefix)}

    def look_through(self) -> None:
        """Look, once, for what a deletion that was interrupted, or that nobody saw, has left. By
        now the I/O workers of this start are registered, so all topics are in the image.

        By now the I/O workers of this start are registered, so all topics are in the image.
        """
        self.next_look = float("inf")

        def work() -> Body:
            names = list(self.store.list_directories(f"{self.cluster_id}/"))
            return {"error_code": NONE, "names": names}

        def on_done(body: Body) -> None:
            if body["error_code"]:
                self.next_look = clock.monotonic() + RETRY_S
                return
            for name in body["names"]:
                try:
                    topic_id = uuid_from_text(name.rpartition(".")[2])
                except ValueError:
                    continue
                if not self._is_kept(topic_id):
                    self._drop(f"{self.cluster_id}/{name}/")

        self.submit(self.copiers, work, on_done)

    def drop_some(self, now: float) -> None:
        """Remove all objects of such topics, once no copy of them is under way."""
        for prefix, when in self.to_drop.items():
            if now < when or prefix in self.dropping or self.copying.get(prefix):
                continue
            self.dropping.add(prefix)

            def work(prefix: str = prefix) -> Body:
                count = transfer.delete_everything(self.store, prefix)
                return {"error_code": NONE, "count": count}

            def on_done(body: Body, prefix: str = prefix) -> None:
                self.dropping.discard(prefix)
                if body["error_code"]:
                    self.to_drop[prefix] = clock.monotonic() + RETRY_S
                    return
                del self.to_drop[prefix]
                if body["count"]:
                    logger.info("%s: %d objects removed from the store", prefix, body["count"])

            self.submit(self.copiers, work, on_done)

    # ── what I/O workers ask ────────────────────────────────────────────────────────────────────

    def on_load(self, call: Call, body: Body) -> Body | None:
        """TierLoad: the segments of a partition that are in the store."""
        name, prefix = self._place(body)
        if refusal := self._refusal(body):
            return refusal
        is_swept = prefix not in self.swept and prefix not in self.sweeping
        if is_swept:
            self.sweeping.add(prefix)

        def work() -> Body:
            found = transfer.load_segments(self.store, prefix, name, is_swept=is_swept)
            return {
                "error_code": NONE,
                "complaints": found.complaints,
                "damaged": [copy._asdict() for copy in found.damaged],
                "segments": [segment._asdict() for segment in found.segments],
            }

        def on_done(answer: Body) -> None:
            if is_swept:
                self.sweeping.discard(prefix)
                if not answer["error_code"]:
                    self.swept.add(prefix)
            for complaint in answer.get("complaints", ()):
                lost = "what it names counts as not copied"
                logger.error("%s; %s", complaint, lost, extra=logs.seldom(lost))
                self.count("tier_damaged")
            call.reply(answer)

        self.submit(self.readers, work, on_done)
        return None

    def on_copy(self, call: Call, body: Body) -> Body | None:
        """TierCopy: one closed segment into the store."""
        name, prefix = self._place(body)
        refusal = self._refusal(body)
        if refusal is None and prefix not in self.swept:
            refusal = _fault(KAFKA_STORAGE_ERROR, f"{prefix} is not loaded")
        if refusal is not None:
            return refusal
        segment = RemoteSegment(**{field: body[field] for field in RemoteSegment._fields})
        epochs = [(entry["epoch"], entry["start_offset"]) for entry in body["epochs"]]
        topic = topic_prefix(self.cluster_id, name.topic, name.topic_id)
        self.copying[topic] = self.copying.get(topic, 0) + 1

        def work() -> Body:
            transfer.copy_segment(
                self.store, prefix, name, body["directory"], segment, epochs, _no_progress
            )
            return {"error_code": NONE}

        def on_done(answer: Body) -> None:
            self.copying[topic] -= 1
            if not self.copying[topic]:
                del self.copying[topic]
            if not answer["error_code"]:
                self.count("tier_copies")
                self.count("tier_copied_bytes", segment.size)
            call.reply(answer)

        self.submit(self.copiers, work, on_done)
        return None

    def on_delete(self, call: Call, body: Body) -> Body | None:
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
                self.count("tier_deletes", len(stems))
            call.reply(answer)

        self.submit(self.copiers, work, on_done)
        return None

    def on_fetch(self, call: Call, body: Body) -> Body | None:
        """TierFetch: batches from an offset on, into a file of the asking worker's cache."""
        _, prefix = self._place(body)
        segment = _segment_of(body)

        def work() -> Body:
            chunk = transfer.fetch_chunk(
                self.store, prefix, segment, body["offset"], body["directory"], self.indexes
            )
            return {"error_code": NONE, **chunk._asdict()}

        def on_done(answer: Body) -> None:
            if not answer["error_code"]:
                self.count("tier_fetches")
                self.count("tier_fetched_bytes", answer["size"])
            call.reply(answer)

        self.submit(self.readers, work, on_done)
        return None

    def on_find(self, call: Call, body: Body) -> Body | None:
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

        self.submit(self.readers, work, call.reply)
        return None

    def on_aborted(self, call: Call, body: Body) -> Body | None:
        """TierAborted: the aborted transactions whose markers lie in a segment."""
        _, prefix = self._place(body)
        segment = _segment_of(body)

        def work() -> Body:
            found = transfer.read_aborted(self.store, prefix, segment)
            return {"error_code": NONE, "aborted": [entry._asdict() for entry in found]}

        self.submit(self.readers, work, call.reply)
        return None

    def _place(self, body: Body) -> tuple[PartitionName, str]:
        name = PartitionName(body["topic"], body["topic_id"], body["partition"])
        return name, partition_prefix(self.cluster_id, name)

    def _refusal(self, body: Body) -> Body | None:
        """The refusal of what belongs to a topic that is about to go."""
        prefix = topic_prefix(self.cluster_id, body["topic"], body["topic_id"])
        if prefix in self.to_drop:
            return _fault(KAFKA_STORAGE_ERROR, f"{prefix} is being removed from the store")
        return None

    # ── threads ─────────────────────────────────────────────────────────────────────────────────

    def submit(
        self, workers: Workers, work: Callable[[], Body], on_done: Callable[[Body], None]
    ) -> None:
        """Have a thread do it; then `on_done` with its answer, in the main loop."""

        def judged(body: Body) -> None:
            self._note_health(body)
            on_done(body)

        workers.submit(work, judged)

    def _note_health(self, body: Body) -> None:
        error = body["error_code"]
        now = clock.monotonic()
        if error == KAFKA_STORAGE_ERROR:
            self.count("tier_faults")
            if not self.is_failing and now >= self.next_line:
                self.is_failing = True
                self.next_line = now + LINE_INTERVAL_S
                logger.error("the remote store fails: %s; tried again", body["error_message"])
        elif error == UNKNOWN_SERVER_ERROR:
            again = "tried again"
            logger.warning("%s; %s", body["error_message"], again, extra=logs.seldom(again))
        elif error == CORRUPT_MESSAGE:
            self.count("tier_damaged")
            damaged = "damaged in the remote store"
            logger.error("%s", body["error_message"], extra=logs.seldom(damaged))
        elif not error and self.is_failing:
            self.is_failing = False
            logger.info("the remote store answers again")

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter of this process."""
        self.tally.add(name, by)


class Workers:
    """Threads that run what may take long; answers come back through a queue and the doorbell."""

    def __init__(
        self, count: int, done: queue.SimpleQueue[Callable[[], None]], eventfd: int
    ) -> None:
        self._left = count
        self._done = done
        self._eventfd = eventfd
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Body], Callable[[Body], None]]] = (
            queue.SimpleQueue()
        )

    def submit(self, work: Callable[[], Body], on_done: Callable[[Body], None]) -> None:
        """Submit work; from the main loop only."""
        self._jobs.put((work, on_done))
        if self._left:
            self._left -= 1
            threading.Thread(target=self._run, name="store", daemon=True).start()

    def _run(self) -> None:
        while True:
            work, on_done = self._jobs.get()
            body = _answer_of(work)
            self._done.put(partial(on_done, body))
            os.eventfd_write(self._eventfd, 1)


def _answer_of(work: Callable[[], Body]) -> Body:
    """The answer of a piece of work, faults as error codes."""
    try:
        return work()
    except CorruptFault as fault:
        return _fault(CORRUPT_MESSAGE, str(fault))
    except StoreFault as fault:
        return _fault(KAFKA_STORAGE_ERROR, str(fault))
    except StorageFault as fault:  # of a disk here; of a log that is deleted by now, too
        return _fault(UNKNOWN_SERVER_ERROR, str(fault))
    except Exception as fault:
        # A library may raise anything; it must not take the thread with it.
        what = "the store's library failed"
        logger.exception("%s", what, extra=logs.seldom(what))
        return _fault(UNKNOWN_SERVER_ERROR, repr(fault))


def _fault(error_code: int, message: str) -> Body:
    return {"error_code": error_code, "error_message": message[:1000]}


def _segment_of(body: Body) -> RemoteSegment:
    return RemoteSegment(
        body["base_offset"], body["end_offset"], body["leader_epoch"], body["size"], -1
    )


def _is_tiered(image: MetadataImage, topic: TopicImage) -> bool:
    text = image.config(TOPIC_RESOURCE, topic.name).get("remote.storage.enable", "")
    return bool(text.strip().lower() == "true")


def _no_progress(_count: int) -> None:
    """A copy runs through; it may be killed."""
