"""The tier process's decisions, turn by turn: what is swept, dropped, refused and said."""

from __future__ import annotations

import itertools
import logging
import queue
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from shmbroker.crc32c import crc32c
from shmbroker.log.config import LogConfig
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.transaction_index import AbortedTransaction, encode_entries
from shmbroker.metadata.changes import ConfigChanged, MetadataChange, TopicDeleted
from shmbroker.metadata.image import TOPIC_RESOURCE, MetadataImage, TopicImage
from shmbroker.records.batch import encode_batch
from shmbroker.tier.manifest import (
    LEADER_EPOCHS,
    MANIFEST,
    TXN_INDEX,
    PartitionName,
    encode_manifest,
    partition_prefix,
    stem_of,
    topic_prefix,
)
from shmbroker.tier.remote_log import RemoteSegment
from shmbroker.tier.service import LINE_INTERVAL_S, RETRY_S, TierService
from shmbroker.tier.store_workers import Body, answer_of
from shmbroker.wire.api_keys import TIER_ABORTED, TIER_DELETE, TIER_FETCH, TIER_FIND
from shmbroker.wire.error_codes import (
    CORRUPT_MESSAGE,
    KAFKA_STORAGE_ERROR,
    NONE,
    UNKNOWN_SERVER_ERROR,
)
from tests.unit.tier.stores import MemoryStore

CLUSTER = "cluster"
TOPIC_ID = bytes(range(16))
PLACE = {"topic": "t", "topic_id": TOPIC_ID, "partition": 0}
TOPIC = topic_prefix(CLUSTER, "t", TOPIC_ID)
PREFIX = partition_prefix(CLUSTER, PartitionName("t", TOPIC_ID, 0))
STEM = f"{PREFIX}{stem_of(0, 10, 0)}"
ABORTED = AbortedTransaction(7, 1, 5, 0)


def image_of(*, switch: str | None) -> MetadataImage:
    """A cluster of one broker; with a topic, if its remote storage is switched somehow."""
    image = MetadataImage(CLUSTER)
    image.brokers = {1: None}  # type: ignore[dict-item]
    if switch is not None:
        topic = TopicImage("t", TOPIC_ID, ())
        image.topics_by_name, image.topics_by_id = {"t": topic}, {TOPIC_ID: topic}
        image.configs = {(TOPIC_RESOURCE, "t"): {"remote.storage.enable": switch}}
    return image


class Metadata:
    """A metadata log whose next image, and what has changed in it, a test gives."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.next: tuple[MetadataImage, list[MetadataChange]] | None = None

    def is_behind(self) -> bool:
        return self.next is not None

    def catch_up(self) -> list[MetadataChange] | None:
        assert self.next is not None
        (self.image, changes), self.next = self.next, None
        return changes


class Asked:
    """One request's answers."""

    def __init__(self) -> None:
        self.answers: list[Body] = []

    def reply(self, body: Body, /) -> None:
        self.answers.append(body)


class Process:
    """A tier process without threads: work waits until a test has it done."""

    def __init__(self, image: MetadataImage) -> None:
        self.store = MemoryStore()
        self.metadata = Metadata(image)
        self.jobs: list[tuple[Callable[[], Body], Callable[[Body], None]]] = []
        self.done: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.counts: Counter[str] = Counter()
        self.service = TierService(
            CLUSTER, self.store, self.metadata, self, self, self.done, self.count
        )

    def count(self, name: str, by: int) -> None:
        self.counts[name] += by

    def submit(self, work: Callable[[], Body], on_done: Callable[[Body], None], /) -> None:
        self.jobs.append((work, on_done))

    def work(self) -> None:
        """What was submitted so far is done; the next turn is told."""
        jobs, self.jobs = self.jobs, []
        for work, on_done in jobs:
            self.done.put(partial(on_done, answer_of(work)))

    def turns(self, now: float) -> None:
        """Turns at this time, until nothing is left to be done at it."""
        self.service.turn(now)
        while self.jobs:
            self.work()
            self.service.turn(now)

    def load(self, now: float = 1.0) -> Body:
        asked = Asked()
        assert self.service.on_load(asked, PLACE) is None
        self.turns(now)
        (answer,) = asked.answers
        return answer

    def begin_copy(self, directory: str) -> Body | Asked:
        """The refusal, or where the answer comes."""
        asked = Asked()
        segment = {
            "base_offset": 0,
            "end_offset": 9,
            "leader_epoch": 0,
            "size": 10,
            "max_timestamp": 1,
            "has_aborted": False,
        }
        body = {**PLACE, **segment, "directory": directory, "epochs": []}
        return self.service.on_copy(asked, body) or asked

    def delete_topic(self) -> None:
        topic = self.metadata.image.topics_by_name["t"]
        self.metadata.next = image_of(switch=None), [TopicDeleted(topic)]


@pytest.fixture
def process() -> Process:
    """One that has looked through the store already, and found nothing."""
    made = Process(image_of(switch="true"))
    made.turns(0.0)
    return made


def test_a_copy_before_the_partition_is_loaded_is_refused(process: Process, tmp_path) -> None:
    refusal = process.begin_copy(str(tmp_path))
    assert isinstance(refusal, dict)
    assert refusal["error_code"] == KAFKA_STORAGE_ERROR
    assert not process.jobs


def test_only_the_first_load_removes_what_an_interrupted_copy_left(process: Process) -> None:
    orphan = f"{PREFIX}{0:020d}-{9:020d}-0.index"
    process.store.objects[orphan] = b"x"
    assert process.load()["error_code"] == NONE
    assert orphan not in process.store.objects
    process.store.objects[orphan] = b"x"
    assert process.load()["error_code"] == NONE
    assert orphan in process.store.objects, "a copy may be under way"


def test_a_load_that_failed_is_followed_by_one_that_sweeps(process: Process) -> None:
    process.store.is_down = True
    assert process.load()["error_code"] == KAFKA_STORAGE_ERROR
    process.store.is_down = False
    orphan = f"{PREFIX}{0:020d}-{9:020d}-0.index"
    process.store.objects[orphan] = b"x"
    assert process.load()["error_code"] == NONE
    assert not process.store.objects


def test_what_a_failed_copy_left_is_removed_by_the_next_load(process: Process, tmp_path) -> None:
    process.load()
    orphan = f"{PREFIX}{0:020d}-{9:020d}-0.index"
    process.store.objects[orphan] = b"x"
    first, second = process.begin_copy(str(tmp_path)), process.begin_copy(str(tmp_path))
    assert isinstance(first, Asked) and isinstance(second, Asked)
    jobs = process.jobs
    process.jobs = jobs[:1]
    process.turns(1.0)
    assert first.answers[0]["error_code"], "there is no such segment"
    assert process.load()["error_code"] == NONE
    assert orphan in process.store.objects, "the other copy is under way"
    assert isinstance(process.begin_copy(str(tmp_path)), dict)
    process.jobs = jobs[1:]
    process.turns(2.0)
    assert process.load()["error_code"] == NONE
    assert not process.store.objects
    assert isinstance(process.begin_copy(str(tmp_path)), Asked)


def test_a_deleted_topic_is_dropped_and_asks_for_it_are_refused_meanwhile(
    process: Process, tmp_path
) -> None:
    process.load()
    process.store.objects[f"{PREFIX}a.log"] = b"x"
    process.delete_topic()
    process.service.turn(2.0)
    refusal = process.service.on_load(Asked(), PLACE)
    assert refusal is not None
    assert refusal["error_code"] == KAFKA_STORAGE_ERROR
    assert isinstance(process.begin_copy(str(tmp_path)), dict)
    process.turns(2.0)
    assert not process.store.objects
    # It is forgotten with what was swept: a topic of that place is loaded before it is copied.
    assert isinstance(process.begin_copy(str(tmp_path)), dict)


def test_a_topic_is_dropped_after_the_copy_that_is_under_way(process: Process, tmp_path) -> None:
    process.load()
    asked = process.begin_copy(str(tmp_path))
    assert isinstance(asked, Asked)
    process.store.objects[f"{PREFIX}a.log"] = b"x"
    process.delete_topic()
    process.service.turn(2.0)
    assert len(process.jobs) == 1, "the copy alone"
    process.turns(3.0)
    assert [answer["error_code"] for answer in asked.answers] == [UNKNOWN_SERVER_ERROR]
    assert not process.store.objects


def test_a_drop_that_failed_is_tried_again_later(process: Process) -> None:
    process.store.objects[f"{PREFIX}a.log"] = b"x"
    process.store.is_down = True
    process.delete_topic()
    process.turns(2.0)
    process.store.is_down = False
    process.turns(2.0 + RETRY_S - 0.1)
    assert process.store.objects
    process.turns(2.0 + RETRY_S)
    assert not process.store.objects


@pytest.mark.parametrize(("switch", "is_dropped"), [("false", True), ("true", False)])
def test_a_topic_whose_remote_storage_is_switched_off_is_dropped(
    process: Process, switch: str, is_dropped: bool
) -> None:
    process.store.objects[f"{PREFIX}a.log"] = b"x"
    process.metadata.next = image_of(switch=switch), [ConfigChanged(TOPIC_RESOURCE, "t")]
    process.turns(2.0)
    assert (not process.store.objects) == is_dropped


@pytest.mark.parametrize(
    ("switch", "is_dropped"), [(None, True), ("false", True), ("true", False), (" TRUE ", False)]
)
def test_at_the_start_what_belongs_to_no_tiered_topic_is_dropped(
    switch: str | None, is_dropped: bool
) -> None:
    process = Process(image_of(switch=switch))
    other = f"{CLUSTER}/no-topic/x"
    process.store.objects = {f"{PREFIX}a.log": b"x", other: b"x"}
    process.turns(0.0)
    assert (f"{PREFIX}a.log" not in process.store.objects) == is_dropped
    assert other in process.store.objects


def test_the_store_is_not_looked_through_before_the_brokers_are_there() -> None:
    process = Process(MetadataImage(CLUSTER))
    process.store.objects = {f"{PREFIX}a.log": b"x"}
    process.turns(0.0)
    assert process.store.objects, "the image may lack topics"
    process.metadata.next = image_of(switch=None), []
    process.turns(1.0)
    assert not process.store.objects


def test_a_store_that_fails_is_said_once_when_it_begins_and_once_when_it_is_over(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shmbroker.tier")
    process.store.is_down = True
    process.load(2.0)
    process.load(3.0)
    process.store.is_down = False
    process.load(4.0)
    process.store.is_down = True
    process.load(5.0)
    assert [record.message for record in caplog.records] == [
        "the remote store fails: the store is down; tried again",
        "the remote store answers again",
    ]
    process.load(2.0 + LINE_INTERVAL_S)
    assert len(caplog.records) == 3
    assert process.counts["tier_faults"] == 4


def test_what_was_known_where_a_copy_ends_is_read(process: Process) -> None:
    def state(offset: int) -> Body:
        asked = Asked()
        assert process.service.on_state(asked, PLACE | {"offset": offset}) is None
        process.turns(1.0)
        (answer,) = asked.answers
        return answer

    assert state(8) == {"error_code": NONE, "offset": -1}
    segment = RemoteSegment(5, 9, 2, 1, 1)
    stem = f"{PREFIX}{stem_of(*segment[:3])}"
    whole = {"log": b"x", "snapshot": b"producers", LEADER_EPOCHS: b"0\n2\n0 0\n2 6\n"}
    names = {kind: (len(data), crc32c(data)) for kind, data in whole.items()}
    objects = whole | {MANIFEST: encode_manifest(PartitionName("t", TOPIC_ID, 0), segment, names)}
    process.store.objects |= {f"{stem}.{kind}": data for kind, data in objects.items()}
    epochs = [{"epoch": 0, "start_offset": 0}, {"epoch": 2, "start_offset": 6}]
    found = {"error_code": NONE, "offset": 9, "epochs": epochs, "snapshot": b"producers"}
    assert state(8) == found
    assert state(4)["offset"] == -1
    assert state(9) == found | {"offset": 10, "epochs": [], "snapshot": b""}
    process.store.objects[f"{stem}.snapshot"] = b"PRODUCERS"
    assert state(8)["error_code"] == CORRUPT_MESSAGE
    process.store.is_down = True
    assert state(8)["error_code"] == KAFKA_STORAGE_ERROR


@pytest.fixture
def copied(process: Process, tmp_path: Path) -> Iterator[Process]:
    """One that has copied a segment of ten records, of the times 1000 to 1009."""
    log = PartitionLog.open(str(tmp_path / "t-0"), LogConfig(), file_ids=itertools.count(1))
    for at in range(10):
        batch = encode_batch([(1000 + at, None, b"value", ())], base_offset=at, leader_epoch=0)
        log.append(memoryview(batch), 0, 1000 + at, 0, 1)
    log.roll(1)
    segment = log.segments[0]
    process.load()
    copy = RemoteSegment(0, 10, 0, segment.size, segment.max_timestamp)
    asked = Asked()
    body = {**PLACE, **copy._asdict(), "directory": log.directory, "epochs": []}
    assert process.service.on_copy(asked, body) is None
    process.turns(2.0)
    assert asked.answers == [{"error_code": NONE}]
    assert process.counts == {"tier_copies": 1, "tier_copied_bytes": segment.size}
    process.counts.clear()
    process.store.objects[f"{STEM}.{TXN_INDEX}"] = encode_entries([ABORTED])
    yield process
    log.close(clean=False)


@pytest.mark.parametrize(
    ("key", "more", "found", "counted"),
    [
        (TIER_FETCH, {"offset": 3}, {"end_offset": 10}, {"tier_fetches": 1}),
        (TIER_FIND, {"timestamp": 1004}, {"timestamp": 1004, "offset": 4}, {}),
        (TIER_FIND, {"timestamp": 0, "start_offset": 6}, {"timestamp": 1006, "offset": 6}, {}),
        (TIER_FIND, {"timestamp": 1010}, {"timestamp": -1, "offset": -1}, {}),
        (TIER_ABORTED, {}, {"aborted": [ABORTED._asdict()]}, {}),
        (TIER_DELETE, {}, {}, {"tier_deletes": 1}),
    ],
)
@pytest.mark.parametrize("is_down", [False, True])
def test_what_is_asked_of_a_copy_is_answered_by_what_the_store_has(
    copied: Process,
    tmp_path: Path,
    key: int,
    more: dict[str, int],
    found: Body,
    counted: dict[str, int],
    is_down: bool,
) -> None:
    copied.store.is_down = is_down
    cache = tmp_path / "cache"
    cache.mkdir()
    body: Body = {"directory": str(cache), "index_interval_bytes": 4096, "start_offset": 0}
    segment = RemoteSegment(0, 10, 0, len(copied.store.objects[f"{STEM}.log"]), 1009)._asdict()
    body |= {**PLACE, **segment, "segments": [segment], **more}
    asked = Asked()
    _, handler = copied.service.handlers[key]
    assert handler(asked, body) is None
    copied.turns(3.0)
    (answer,) = asked.answers
    if is_down:
        assert answer["error_code"] == KAFKA_STORAGE_ERROR
        assert copied.counts == {"tier_faults": 1}
        return
    assert answer["error_code"] == NONE and found.items() <= answer.items()
    size = copied.counts.pop("tier_fetched_bytes", 0)
    assert copied.counts == counted
    assert size == sum(one.stat().st_size for one in cache.glob("*.log"))
    assert bool(copied.store.objects) is (key != TIER_DELETE)


def test_a_topic_without_remote_storage_costs_the_store_nothing_when_it_is_deleted() -> None:
    process = Process(image_of(switch="false"))
    process.turns(0.0)
    process.delete_topic()
    process.service.turn(1.0)
    assert not process.jobs and not process.service.to_drop


def test_of_loads_at_the_same_time_one_sweeps(process: Process) -> None:
    process.store.objects[f"{PREFIX}{stem_of(0, 9, 0)}.log"] = b"of an interrupted copy"
    first, second = Asked(), Asked()
    for asked in (first, second):
        assert process.service.on_load(asked, PLACE) is None
    (sweep, on_swept), other = process.jobs
    process.jobs = [other]
    process.work()
    process.service.turn(1.0)
    assert second.answers and process.store.objects, "a copy may be begun by whom it answers"
    process.jobs = [(sweep, on_swept)]
    process.turns(2.0)
    assert first.answers and not process.store.objects


def test_a_store_that_can_not_be_looked_through_is_looked_through_later() -> None:
    process = Process(image_of(switch="false"))
    process.store.objects[f"{PREFIX}x"] = b"of a topic that is not tiered"
    process.store.is_down = True
    process.turns(1.0)
    process.store.is_down = False
    process.turns(1.0 + RETRY_S - 0.1)
    assert process.store.objects
    process.turns(1.0 + RETRY_S)
    assert not process.store.objects
