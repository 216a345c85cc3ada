"""What each path answers: JSON for the page, streams of events, the files of the page itself.

    /                      the page; /static/… its files
    /api/session           what this is, whether it may change something, and the token for that
    /api/snapshot          processes, rings, latencies, brokers, topics without their partitions
    /api/topic             one topic with its partitions and settings
    /api/groups            groups and their lag; /api/group one of them, with members and history
    /api/messages          a page of records; /api/message one of them, whole
    /api/search, /api/tail records as they are found, or appended: server-sent events
    /api/settings          settings of a broker or topic, and where each has its value from
    /api/faults            what is wrong now, and what has happened
    /api/write/…           `writes`

Rules of this file:
* Nothing of a request goes into an answer but as JSON, which is never shown as a page.
* An answer has ANSWER_BYTES at most for keys and values, a list LIST_MAX entries; what is left out
  is counted. A fault of the cluster is 502 with its sentence, a wrong parameter 400.
* It is called by many threads at once; streams are counted, the rest is short.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

from shmbroker import clock
from shmbroker.client.addresses import Address
from shmbroker.client.cluster import Cluster
from shmbroker.client.reader.asking import EARLIEST, LATEST
from shmbroker.console import group_details, shown
from shmbroker.console.access import Access, Request
from shmbroker.console.history import Events, LagHistory
from shmbroker.console.messages import (
    ANSWER_S,
    CLIENT_ID,
    At,
    Messages,
    Progress,
    Wanted,
    is_number,
    parse_offsets,
)
from shmbroker.console.put_aside import put_aside
from shmbroker.console.settings_shown import settings_of
from shmbroker.console.writes import Writes
from shmbroker.errors import Fault
from shmbroker.metadata.image import MetadataImage
from shmbroker.observe.about import About
from shmbroker.observe.snapshot import Snapshot, plain
from shmbroker.settings.broker_config import BrokerConfig

ANSWER_BYTES = 4 << 20
MESSAGE_BYTES = 1 << 20
"""Of each field of one record that is shown alone."""
LIST_MAX = 1000
PARTITIONS_MAX = 2000
STREAMS_MAX = 6
TEXT_MAX = 1000
LOOK_S = 0.4
LOOK_SHARE = 10
"""However many pages are open, the family is looked at once in so long, and where that takes long
(thousands of partitions) for a tenth of the time at most."""
_JSON = "application/json"
_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_WHERES = ("any", "key", "value", "header")


class Looks(Protocol):
    """What is asked of an `observe.observer.Observer`."""

    about: About

    @property
    def image(self) -> MetadataImage:
        """The cluster as of the last `follow`."""

    def follow(self) -> None:
        """Catch up with the metadata log."""

    def look(self, are_groups_wanted: bool = True) -> Snapshot:
        """All of it, as it is now."""


class Answer(NamedTuple):
    """What goes back."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class Stream(NamedTuple):
    """Server-sent events, (name, JSON); who sends them calls `close`, once, also where none was."""

    events: Iterator[tuple[str, object]]
    close: Callable[[], None]


class BadRequest(Exception):
    """A parameter is not what it must be."""


def as_json(value: object, status: int = 200) -> Answer:
    """An answer. All of it is ASCII, so nothing in it can be taken for anything else."""
    return Answer(status, _JSON, json.dumps(value, separators=(",", ":")).encode())


def refused(status: int, reason: str) -> Answer:
    """An answer that says why there is none."""
    return as_json({"error": reason}, status)


class Console:
    """Answers requests."""

    def __init__(
        self,
        observer: Looks,
        config: BrokerConfig,
        access: Access,
        files: Mapping[str, Answer],
    ) -> None:
        self.observer = observer
        self.config = config
        self.access = access
        self.events = Events()
        self.lags = LagHistory()
        self.bootstrap: list[Address] = [
            (_ANY_HOST.get(host, host), port) for host, port in observer.about.addresses.values()
        ]
        self._files = files
        self._writes = Writes(self.bootstrap)
        self._streams = threading.BoundedSemaphore(STREAMS_MAX)
        self._seen: Snapshot | None = None
        self._look_lock = threading.Lock()
        self._looks: dict[str, Callable[[Request], Answer | Stream]] = {
            "/api/session": self._session,
            "/api/snapshot": self._snapshot,
            "/api/topic": self._topic,
            "/api/groups": self._groups,
            "/api/group": self._group,
            "/api/messages": self._messages,
            "/api/message": self._message,
            "/api/search": self._search,
            "/api/tail": self._tail,
            "/api/settings": self._settings,
            "/api/faults": self._faults,
        }

    def answer(self, request: Request) -> Answer | Stream:
        """Judge the request, then answer it."""
        refusal = self.access.refusal(request)
        if refusal is not None:
            return refused(*refusal)
        if request.path in self._files:
            file = self._files[request.path]
            tag = next((value for name, value in file.headers if name == "ETag"), None)
            if tag is not None and request.headers.get("if-none-match") == tag:
                return file._replace(status=304, body=b"")
            return file
        try:
            if request.method == "POST":
                return self._write(request)
            look = self._looks.get(request.path)
            if look is None:
                return refused(404, "there is no such page")
            return look(request)
        except BadRequest as bad:
            return refused(400, str(bad))
        except (Fault, OSError) as fault:
            return refused(502, str(fault))

    # ── the family ──────────────────────────────────────────────────────────────────────────────

    def look(self) -> Snapshot:
        """A snapshot, that of another page if it is not old; what is new in it is remembered."""
        with self._look_lock:
            seen = self._seen
            now_s = clock.monotonic()
            if seen is None or now_s > seen.monotonic_s + max(LOOK_S, LOOK_SHARE * seen.took_s):
                seen = self._seen = self.observer.look()
                self.lags.note(seen)
            return seen

    def _session(self, _request: Request) -> Answer:
        about = self.observer.about
        may_write = self.access.may_write
        return as_json(
            {
                "version": about.version,
                "cluster_id": about.cluster_id,
                "data_directory": about.data_directory,
                "may_write": may_write,
                "token": self.access.token if may_write else "",
            }
        )

    def _snapshot(self, _request: Request) -> Answer:
        snapshot = self.look()
        topics = [
            {
                "name": topic.name,
                "is_internal": topic.is_internal,
                "partitions": len(topic.partitions),
                "records": topic.records,
                "size_bytes": topic.size_bytes,
                "replicas": len(topic.partitions[0].replicas) if topic.partitions else 0,
                "without_leader": sum(each.leader < 0 for each in topic.partitions),
                "under_replicated": sum(each.is_under_replicated for each in topic.partitions),
                "read_bytes": sum(each.read_bytes or 0 for each in topic.partitions),
            }
            for topic in snapshot.topics[:LIST_MAX]
        ]
        return as_json(
            {
                "at_ms": snapshot.at_ms,
                "started_ms": snapshot.started_ms,
                "monotonic_s": snapshot.monotonic_s,
                "processes": plain(snapshot.processes),
                "rings": plain(snapshot.rings),
                "latencies": plain(snapshot.latencies),
                "controllers": plain(snapshot.controllers),
                "brokers": plain(snapshot.brokers),
                "topics": topics,
                "topics_left_out": max(0, len(snapshot.topics) - LIST_MAX),
                "groups": len(snapshot.groups.groups),
                "lag": sum(group.lag for group in snapshot.groups.groups),
                "reasons_not_ready": list(snapshot.reasons_not_ready),
            }
        )

    def _topic(self, request: Request) -> Answer:
        name = self._topic_name(request)
        snapshot = self.look()
        for topic in snapshot.topics:
            if topic.name == name:
                break
        else:
            return refused(404, f"there is no topic {name}")
        found = topic.partitions[:PARTITIONS_MAX]
        return as_json(
            {
                "name": topic.name,
                "topic_id": topic.topic_id,
                "is_internal": topic.is_internal,
                "min_in_sync": topic.min_in_sync,
                "partitions": [plain(each) for each in found],
                "partitions_left_out": len(topic.partitions) - len(found),
                "groups": sorted(
                    group.name
                    for group in snapshot.groups.groups
                    if any(lag.topic == name for lag in group.lags)
                )[:LIST_MAX],
            }
        )

    def _groups(self, _request: Request) -> Answer:
        groups = self.look().groups
        return as_json(
            {
                "age_s": groups.age_s,
                "groups": [
                    {
                        "name": group.name,
                        "kind": group.kind,
                        "state": group.state,
                        "members": group.members,
                        "coordinator": group.coordinator,
                        "lag": group.lag,
                        "partitions": len(group.lags),
                        "history": self.lags.of(group.name)[-60:],
                    }
                    for group in groups.groups[:LIST_MAX]
                ],
                "left_out": max(0, len(groups.groups) - LIST_MAX),
            }
        )

    def _group(self, request: Request) -> Answer:
        name = _text(request, "name")
        for group in self.look().groups.groups:
            if group.name == name:
                break
        else:
            return refused(404, f"there is no group {name}")
        with Cluster(self.bootstrap, CLIENT_ID, ANSWER_S, group_details.VERSIONS) as cluster:
            members = group_details.members(cluster, group, self.observer.image)
        return as_json(
            {
                **{key: getattr(group, key) for key in ("name", "kind", "state", "coordinator")},
                "lag": group.lag,
                "lags": [
                    {
                        "topic": lag.topic,
                        "partition": lag.partition,
                        "committed": lag.committed,
                        "end_offset": lag.end_offset,
                        "lag": lag.lag,
                    }
                    for lag in group.lags[:LIST_MAX]
                ],
                "lags_left_out": max(0, len(group.lags) - LIST_MAX),
                "members": members,
                "history": self.lags.of(name),
            }
        )

    def _settings(self, request: Request) -> Answer:
        topic = request.query.get("topic")
        self.observer.follow()
        image = self.observer.image
        if topic is not None and topic not in image.topics_by_name:
            return refused(404, f"there is no topic {topic}")
        numbers = sorted(self.observer.about.addresses)
        broker = _number(request, "broker", numbers[0])
        if broker not in numbers:
            return refused(404, f"there is no broker {broker}")
        about = self.observer.about
        identity = self.config.identity(broker, *about.addresses[broker], about.directories[broker])
        rows = settings_of(image, self.config, broker, identity, topic)
        return as_json({"brokers": numbers, "broker": broker, "settings": rows})

    def _faults(self, _request: Request) -> Answer:
        snapshot = self.look()
        partitions: list[dict[str, object]] = []
        count = 0
        for topic in snapshot.topics:
            for each in topic.partitions:
                wrong = ""
                if each.leader < 0:
                    wrong = "no leader"
                elif len(each.in_sync) < min(topic.min_in_sync, len(each.replicas)):
                    wrong = "fewer in-sync replicas than min.insync.replicas"
                elif each.is_under_replicated:
                    wrong = "a replica is not in sync"
                if wrong:
                    count += 1
                    if len(partitions) < LIST_MAX:
                        row = {"topic": topic.name, "partition": each.number, "wrong": wrong}
                        partitions.append(row)
        counted = [
            {"process": process.title, "name": name, "count": process.counted[name]}
            for process in snapshot.processes
            for name in _FAULT_COUNTERS
            if process.counted.get(name)
        ]
        restarts = [
            {"process": each.title, "restarts": each.restarts, "started_ms": each.started_ms}
            for each in snapshot.processes
            if each.restarts
        ]
        return as_json(
            {
                "reasons_not_ready": list(snapshot.reasons_not_ready),
                "partitions": partitions,
                "partitions_count": count,
                "counted": counted,
                "restarts": restarts,
                "put_aside": put_aside(self.observer.about.directories.values()),
                "events": list(self.events.events)[::-1],
            }
        )

    # ── records ─────────────────────────────────────────────────────────────────────────────────

    def _open(self, request: Request) -> Messages:
        partition = _number(request, "partition", -1)
        is_committed = request.query.get("isolation") == "read_committed"
        name = self._topic_name(request)
        return Messages(self.bootstrap, name, None if partition < 0 else partition, is_committed)

    def _topic_name(self, request: Request) -> str:
        """BadRequest for a topic that there is not."""
        name = _text(request, "topic")
        self.observer.follow()
        if name not in self.observer.image.topics_by_name:
            raise BadRequest(f"there is no topic {name}")
        return name

    def _messages(self, request: Request) -> Answer:
        is_back = request.query.get("direction") == "back"
        at, count = _place(request), _number(request, "count", 50)
        with self._open(request) as messages:
            page = messages.page(at, count, is_back)
        room = shown.Room(ANSWER_BYTES)
        return as_json(
            {
                "records": [shown.record(number, row, room) for number, row in page.records],
                "following": _as_text(page.following),
                "is_bounded": page.is_bounded,
                "left_out": page.left_out,
                "starts": page.starts,
                "ends": page.ends,
            }
        )

    def _message(self, request: Request) -> Answer:
        partition, offset = _number(request, "partition", -1), _number(request, "offset", -1)
        if partition < 0 or offset < 0:
            raise BadRequest("a record is named by partition and offset")
        with self._open(request) as messages:
            page = messages.page({partition: offset}, 1, is_back=False)
        if not page.records or page.records[0][1][0] != offset:
            return refused(404, f"there is no record at offset {offset} (any more)")
        room = shown.Room(ANSWER_BYTES)
        return as_json(shown.record(partition, page.records[0][1], room, MESSAGE_BYTES))

    def _search(self, request: Request) -> Answer | Stream:
        text = _text(request, "text").encode("utf-8", "surrogatepass")
        where = request.query.get("in", "any")
        if where not in _WHERES:
            raise BadRequest(f"in is one of {', '.join(_WHERES)}")
        if request.query.get("hex") == "1":
            try:
                text = bytes.fromhex(text.decode())
            except ValueError:
                raise BadRequest("these are no bytes in hex") from None
        is_exact = request.query.get("case") == "1" or request.query.get("hex") == "1"
        wanted = Wanted(text, where, not is_exact, _number(request, "count", 50))
        at = _place(request)
        return self._stream(request, lambda messages: messages.search(wanted, at))

    def _tail(self, request: Request) -> Answer | Stream:
        text = request.query.get("text", "")[:TEXT_MAX].encode("utf-8", "surrogatepass")
        return self._stream(request, lambda messages: messages.tail(text))

    def _stream(
        self, request: Request, begin: Callable[[Messages], Iterator[At | Progress]]
    ) -> Answer | Stream:
        if not self._streams.acquire(blocking=False):
            return refused(503, f"{STREAMS_MAX} searches and live tails run already: end one")
        try:
            messages = self._open(request)
        except BaseException:
            self._streams.release()
            raise

        def close() -> None:
            messages.close()
            self._streams.release()

        return Stream(_streamed(messages, begin), close)

    # ── changes ─────────────────────────────────────────────────────────────────────────────────

    def _write(self, request: Request) -> Answer:
        try:
            body = json.loads(request.body)
        except (ValueError, RecursionError):
            raise BadRequest("the body is not JSON") from None
        if not isinstance(body, dict):
            raise BadRequest("the body is no JSON object")
        change = self._writes.by_path.get(request.path)
        if change is None:
            return refused(404, "there is no such page")
        try:
            return as_json(change(body))
        except ValueError as bad:
            raise BadRequest(str(bad)) from None


_FAULT_COUNTERS = (
    "log_damage",
    "partitions_lost",
    "storage_faults",
    "logs_not_compacted",
    "tier_faults",
    "tier_damaged",
    "protocol_faults",
    "appends_refused_storage",
    "appends_refused_not_in_sync",
)


def _streamed(
    messages: Messages, begin: Callable[[Messages], Iterator[At | Progress]]
) -> Iterator[tuple[str, object]]:
    try:
        yield "opened", {"partitions": len(messages.partitions)}
        for found in begin(messages):
            if isinstance(found, Progress):
                yield "progress", found._asdict() | {"following": _as_text(found.following)}
            else:
                yield "record", shown.record(*found, shown.Room(ANSWER_BYTES))
    except (Fault, OSError) as fault:
        yield "failed", {"error": str(fault)}


def _text(request: Request, name: str) -> str:
    text = request.query.get(name, "")
    if not text or len(text) > TEXT_MAX:
        raise BadRequest(f"{name} has 1 to {TEXT_MAX} characters")
    return text


def _number(request: Request, name: str, default: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not is_number(text):
        raise BadRequest(f"{name} is a number")
    return int(text)


def _place(request: Request) -> dict[int, int] | int:
    """Where to begin: from=earliest, from=latest, time=MS, or at=PARTITION:OFFSET,…"""
    query = request.query
    if "at" in query:
        try:
            return dict(parse_offsets(query["at"]))
        except ValueError as bad:
            raise BadRequest(str(bad)) from None
    if "time" in query:
        return _number(request, "time", 0)
    start = query.get("from", "latest")
    if start not in ("earliest", "latest"):
        raise BadRequest("from is earliest or latest")
    return EARLIEST if start == "earliest" else LATEST


def _as_text(offsets: Mapping[int, int]) -> str:
    return ",".join(f"{partition}:{offset}" for partition, offset in offsets.items())
