"""What each path answers: JSON for the page, streams of events, the files of the page itself.

    /                      the page; /static/… its files
    /api/session           what this is, whether it may change something, and the token for that
    /api/snapshot          processes, rings, latencies, brokers, topics without their partitions
    /api/topic             one topic with its partitions and settings
    /api/groups            groups and their lag; /api/group one of them, with members and history
    /api/messages          a page of records; /api/message one of them, whole (`record_pages`)
    /api/search, /api/tail records as they are found, or appended: server-sent events
    /api/settings          settings of a broker or topic, and where each has its value from
    /api/faults            what is wrong now, and what has happened
    /api/write/…           `writes`

Rules of this file:
* Nothing of a request goes into an answer but as JSON, which is never shown as a page.
* A list has LIST_MAX entries at most; what is left out is counted. A fault of the cluster is 502
  with its sentence, a wrong parameter 400.
* It is called by many threads at once.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from shmbroker import clock
from shmbroker.client.addresses import Address
from shmbroker.console import group_details
from shmbroker.console.access import Access, HttpRequest
from shmbroker.console.answers import (
    BadRequest,
    EventStream,
    HttpAnswer,
    as_json,
    number_of,
    refused,
    text_of,
)
from shmbroker.console.history import Events, LagHistory
from shmbroker.console.put_aside import put_aside
from shmbroker.console.record_pages import RecordPages
from shmbroker.console.settings_shown import settings_of
from shmbroker.console.writes import Writes
from shmbroker.errors import Fault
from shmbroker.metadata.image import MetadataImage
from shmbroker.observe.about import About
from shmbroker.observe.groups import ask_once
from shmbroker.observe.snapshot import Snapshot, plain
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.settings.listeners import address_text

LIST_MAX = 1000
PARTITIONS_MAX = 2000
LOOK_S = 0.4
LOOK_SHARE = 10
"""However many pages are open, the family is looked at once in so long, and where that takes long
(thousands of partitions) for a tenth of the time at most."""


class Observing(Protocol):
    """What is asked of an `observe.observer.Observer`."""

    about: About

    @property
    def image(self) -> MetadataImage:
        """The cluster as of the last `follow`."""

    def follow(self) -> None:
        """Catch up with the metadata log."""

    def look(self, are_groups_wanted: bool = True) -> Snapshot:
        """All of it, as it is now."""


class Console:
    """Answers requests."""

    def __init__(
        self,
        observer: Observing,
        config: BrokerConfig,
        access: Access,
        files: Mapping[str, HttpAnswer],
    ) -> None:
        self.observer = observer
        self.config = config
        self.access = access
        self.events = Events()
        self.lags = LagHistory()
        self.bootstrap: list[Address] = [*observer.about.reached().values()]
        self._files = files
        self._writes = Writes(self.bootstrap)
        self.records = RecordPages(self.bootstrap, self._topic_name)
        self._seen: Snapshot | None = None
        self._look_lock = threading.Lock()
        self._looks: dict[str, Callable[[HttpRequest], HttpAnswer | EventStream]] = {
            "/api/session": self._session,
            "/api/snapshot": self._snapshot,
            "/api/topic": self._topic,
            "/api/groups": self._groups,
            "/api/group": self._group,
            "/api/messages": self.records.messages,
            "/api/message": self.records.message,
            "/api/search": self.records.search,
            "/api/tail": self.records.tail,
            "/api/settings": self._settings,
            "/api/faults": self._faults,
        }

    def answer(self, request: HttpRequest) -> HttpAnswer | EventStream:
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

    def _session(self, _request: HttpRequest) -> HttpAnswer:
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

    def _snapshot(self, _request: HttpRequest) -> HttpAnswer:
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
                "up_s": snapshot.up_s,
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

    def _topic(self, request: HttpRequest) -> HttpAnswer:
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

    def _groups(self, _request: HttpRequest) -> HttpAnswer:
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

    def _group(self, request: HttpRequest) -> HttpAnswer:
        name = text_of(request, "name")
        for group in self.look().groups.groups:
            if group.name == name:
                break
        else:
            return refused(404, f"there is no group {name}")
        ask = partial(ask_once, self.observer.about.data_directory)
        members = group_details.members(ask, group, self.observer.image)
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

    def _settings(self, request: HttpRequest) -> HttpAnswer:
        topic = request.query.get("topic")
        self.observer.follow()
        image = self.observer.image
        if topic is not None and topic not in image.topics_by_name:
            return refused(404, f"there is no topic {topic}")
        numbers = sorted(self.observer.about.addresses)
        broker = number_of(request, "broker", numbers[0])
        if broker not in numbers:
            return refused(404, f"there is no broker {broker}")
        about = self.observer.about
        first = f"{self.config.listeners[0].name}://{address_text(*about.addresses[broker])}"
        identity = self.config.identity(broker, [first], [first], about.directories[broker])
        rows = settings_of(image, self.config, broker, identity, topic)
        return as_json({"brokers": numbers, "broker": broker, "settings": rows})

    def _faults(self, _request: HttpRequest) -> HttpAnswer:
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

    def _topic_name(self, request: HttpRequest) -> str:
        """BadRequest for a topic that there is not."""
        name = text_of(request, "topic")
        self.observer.follow()
        if name not in self.observer.image.topics_by_name:
            raise BadRequest(f"there is no topic {name}")
        return name

    # ── changes ─────────────────────────────────────────────────────────────────────────────────

    def _write(self, request: HttpRequest) -> HttpAnswer:
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
