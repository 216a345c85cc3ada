"""Fetches without a session that name the same partitions each time: they get one that they don't
know of.

librdkafka, and so most clients outside Java, names all its partitions in each Fetch, in another
order each time. What differs from the request before is the offsets of the few that gave records.

    client ── Fetch, all its partitions ──►  what has changed  ── READ of a session ──►  broker
    client ◄── answer, all of them ──  kept rows, and those told  ◄──── READ_DONE ────  (what has)

A connection's large Fetch is noted by the partitions that it names. When the next one names the
same, a session begins (`fetch_session`), of which the broker is told, too (`broker.read_sessions`).
The requests that follow go on with it, as those do whose clients asked for one.

Rules of this file:
* The client sees nothing of it: an answer has no session, and a row for each partition.
* A request that names other partitions, another version or isolation level, is taken whole, and the
  session ends; so it does with its connection, and where it goes to another process.
* These sessions are counted apart: none takes the place of one that a client has asked for.
* The row of a partition with nothing to tell is kept packed, with what was told of it last.
"""

from __future__ import annotations

from shmbroker.gateway import fetch_session
from shmbroker.gateway.fetch_answer import (
    A_ERROR,
    A_INDEX,
    Untold,
    named,
    new_answer,
    no_aborted,
    no_records,
    packed_head,
)
from shmbroker.gateway.fetch_in_session import SessionFetches, end_at_broker
from shmbroker.gateway.fetch_request import Limits
from shmbroker.gateway.fetch_rows import FLEXIBLE_FROM, TOPIC_IDS_FROM
from shmbroker.gateway.fetch_session import PARAMETERS, FetchSessions
from shmbroker.metadata.topic_names import TOPIC_NAME_CHARACTERS_MAX
from shmbroker.wire.primitives import array_head

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.fetch_answer import Answer, Topics
    from shmbroker.gateway.fetch_request import FetchRequest
    from shmbroker.gateway.fetch_rows import Asked, Row
    from shmbroker.gateway.fetch_session import FetchSession
    from shmbroker.gateway.ports import RequestContext

    Name = str | bytes
    """A topic's name, or its id from version 13 on."""
    Rows = dict[Name, dict[int, Row]]
    """What a request asks for, by topic and partition."""

IMPLIED_MAX = 1000
"""Sessions of one gateway; more clients go on with full requests."""
IMPLIED_PARTITIONS_MAX = 20_000
"""Partitions of all of them together: half a KiB each."""


class KeptRows:
    """The rows of an answer about all partitions, as they are while there is nothing to tell."""

    def __init__(self, rows: Rows, version: int, isolation: int) -> None:
        """rows: the partitions."""
        self._version = version
        self._nothing = no_aborted(isolation, version) + no_records(version)
        self._rows = {
            name: {index: self._packed(index) for index in asked} for name, asked in rows.items()
        }
        self._topics = dict.fromkeys(rows, b"")
        """Each topic with its rows; empty of one in `_told_last`."""
        self._told_last = set(rows)

    def beside(self, topics: Topics) -> tuple[Topics, Untold]:
        """The topics that are told of, each once, and all that is as it was."""
        told: dict[Name, tuple[str, bytes, list[Answer]]] = {}
        for topic in topics:
            name = topic[1] if self._version >= TOPIC_IDS_FROM else topic[0]
            if name in told:
                told[name][2].extend(topic[2])
            else:
                told[name] = topic
        for name in self._told_last.difference(told):
            self._topics[name] = self._packed_topic(name)
        self._told_last = set(told)
        rest: list[tuple[int, bytes]] = []
        for name, (_, _, answers) in told.items():
            self._topics[name] = b""
            rows = self._rows[name]
            for answer in answers:
                rows[answer[A_INDEX]] = b""
            rest.append((len(rows) - len(answers), b"".join(rows.values())))
            for answer in answers:
                rows[answer[A_INDEX]] = self._packed(answer[A_INDEX], answer)
        others = len(self._topics) - len(told)
        return list(told.values()), Untold(others, b"".join(self._topics.values()), rest)

    def _packed(self, index: int, told: Answer | None = None) -> bytes:
        """A row with nothing but what was told last; after an error, that is nothing."""
        if told is None or told[A_ERROR]:
            told = new_answer(index)
        return packed_head(told, self._version) + self._nothing

    def _packed_topic(self, name: Name) -> bytes:
        rows = self._rows[name]
        is_flexible = self._version >= FLEXIBLE_FROM
        text, topic_id = (name, b"") if isinstance(name, str) else ("", name)
        head = named(text, topic_id, self._version) + array_head(len(rows), is_flexible)
        return head + b"".join(rows.values()) + (b"\0" if is_flexible else b"")


class ImpliedSession:
    """What a connection asks for each time, and the session that it has for that."""

    __slots__ = ("isolation", "rows", "session", "version")

    def __init__(self, session: FetchSession, rows: Rows, version: int, isolation: int) -> None:
        self.session = session
        self.rows = rows
        self.version = version
        self.isolation = isolation
        session.kept_rows = KeptRows(rows, version, isolation)

    def changed(self, rows: Rows) -> list[tuple[tuple[Name, int], bytes]] | None:
        """The partitions of which a request asks for something else, with their PARAMETERS; None
        if it does not name those of the session."""
        had = self.rows
        if rows.keys() != had.keys():
            return None
        changed = []
        for name, asked in rows.items():
            last = had[name]
            if asked.keys() != last.keys():
                return None
            changed += [
                ((name, index), _parameters(row))
                for index, row in asked.items()
                if row != last[index]
            ]
        return changed


class ImpliedSessions:
    """The connections of one gateway that name all their partitions in each Fetch."""

    def __init__(self, gateway: RequestContext, ids: range) -> None:
        """ids: the numbers of its sessions, of which no other gateway has one."""
        self._gateway = gateway
        self.sessions = FetchSessions(
            ids, 0, IMPLIED_MAX, IMPLIED_PARTITIONS_MAX, on_removed=end_at_broker
        )
        self._reads = SessionFetches(gateway, self.sessions)
        self._noted: dict[Connection, int | ImpliedSession] = {}
        """By connection its session; before it has one, a hash of the partitions that it named."""

    def submit(self, request: FetchRequest, body: Asked) -> bool | None:
        """Start it in the session of its connection; False if the ring has no room. None where it
        is to be taken whole."""
        connection, version = request.connection, request.api_version
        noted = self._noted.get(connection)
        rows = _by_partition(body, version)
        if rows is None:
            self.end(connection)
            return None
        if isinstance(noted, ImpliedSession):
            changed = None
            if (
                noted.version == version
                and noted.isolation == body.isolation
                and self.sessions.get(noted.session.id, connection.scope) is noted.session
            ):
                changed = noted.changed(rows)
            if changed is not None:
                noted.session.change(changed, ())
                noted.rows = rows
                return self._read(noted.session, request, body)
            self.end(connection)
        sketch = hash(
            (version, body.isolation, frozenset((one, frozenset(rows[one])) for one in rows))
        )
        if noted != sketch:
            self._noted[connection] = sketch
            return None
        session = self._begin(request, rows)
        return None if session is None else self._read(session, request, body)

    def end(self, connection: Connection) -> None:
        """It has gone, or asks for something else."""
        noted = self._noted.pop(connection, None)
        if isinstance(noted, ImpliedSession):
            self.sessions.remove(noted.session)

    def _begin(self, request: FetchRequest, rows: Rows) -> FetchSession | None:
        """A session of which the broker is told with its first READ; None if there is no room."""
        connection, version = request.connection, request.api_version
        session = self.sessions.try_create(
            connection.scope,
            version >= TOPIC_IDS_FROM,
            (
                ((name, index), _parameters(row), 0, -1, -1)
                for name, asked in rows.items()
                for index, row in asked.items()
            ),
            sum(map(len, rows.values())),
            int(self._gateway.now() * 1000),
        )
        if session is not None:
            self._noted[connection] = ImpliedSession(session, rows, version, request.isolation)
        return session

    def _read(self, session: FetchSession, request: FetchRequest, body: Asked) -> bool:
        limits = Limits(body, request.client_id, self._gateway.fetch_bytes_max)
        limits.version = request.api_version
        return self._reads.read(request.connection, session, limits, request.correlation_id)


def is_large(body: Asked) -> bool:
    """Whether a request names enough partitions for a session to be worth it."""
    return sum([len(rows) for _, _, rows in body.topics]) >= fetch_session.KEPT_MIN


def _by_partition(body: Asked, version: int) -> Rows | None:
    """What a request asks for; None if it names a partition twice, or what can't be."""
    by_id = version >= TOPIC_IDS_FROM
    found: Rows = {}
    count = 0
    for name, topic_id, rows in body.topics:
        if len(name) > TOPIC_NAME_CHARACTERS_MAX:
            return None
        count += len(rows)
        asked = {row[0]: row for row in rows}
        topic: Name = topic_id if by_id else name
        if topic in found:  # where the first of all stands amid its partitions
            found[topic].update(asked)
        else:
            found[topic] = asked
    return found if count == sum(map(len, found.values())) else None


def _parameters(row: Row) -> bytes:
    _, epoch, offset, last_fetched_epoch, max_bytes = row
    return PARAMETERS.pack(max_bytes, epoch, last_fetched_epoch, offset)
