"""A client of a simulated family that reads in fetch sessions (KIP-227), and what must be true of
those that brokers keep."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from shmbroker.broker.broker import Broker
from shmbroker.broker.read_sessions import ReadSession
from shmbroker.gateway.fetch import NO_SESSION
from shmbroker.wire import error_codes
from tests.simulation.family.clients import (
    FamilyClient,
    batches_of,
    check_retried,
    records_of,
)
from tests.simulation.family.history import Place
from tests.simulation.family.network import Body, Disconnected, Script, Wait

WHOLE_TURNS = 2
"""Of one of them it is sure that it began and ended meanwhile."""
OVER = (error_codes.FETCH_SESSION_ID_NOT_FOUND, error_codes.INVALID_FETCH_SESSION_EPOCH)
"""The client begins a new session."""


class Session:
    """What one broker was told."""

    def __init__(self) -> None:
        self.id = self.epoch = 0
        self.named: dict[Place, int] = {}


class SessionReader(FamilyClient):
    """Reads all partitions, each from its start, in a session with each broker; it ends when it has
    read to the end of all."""

    def script(self) -> Script:
        offsets: dict[Place, int] = {}
        sessions: dict[int, Session] = {}
        while not self.is_told_to_end or not (yield from self._is_at_end(offsets)):
            for place in self.seen.places:
                offsets.setdefault(place, 0)
                yield from self.leader(place)
            for port in sorted({self.leaders[place] for place in offsets if place in self.leaders}):
                session = sessions.setdefault(port, Session())
                if not (yield from self._fetch(port, session, offsets)):
                    del sessions[port]
            yield self.pause(0.0, 0.05)

    def _is_at_end(self, offsets: dict[Place, int]) -> Generator[Wait, None, bool]:
        for place in self.seen.places:
            end = yield from self.watermark(place)
            if end < 0 or offsets.get(place, 0) < end:
                return False
        return True

    def _fetch(
        self, port: int, session: Session, offsets: dict[Place, int]
    ) -> Generator[Wait, None, bool]:
        """One Fetch; False where the session is over."""
        mine = {place: at for place, at in offsets.items() if self.leaders.get(place) == port}
        changed = {place: at for place, at in mine.items() if session.named.get(place) != at}
        forgotten = [place for place in session.named if place not in mine]
        session.named = mine
        body = session_body(session, changed, forgotten, self.random.choice((0, 20, 200)))
        try:
            answer = yield from self.ask(port, "Fetch", 11, body)
        except Disconnected:
            for place in mine:
                self.leaders.pop(place, None)
            return False
        if answer["error_code"]:
            assert answer["error_code"] in OVER, error_codes.name_of(answer["error_code"])
            return False
        session.id, session.epoch = answer["session_id"], session.epoch + 1
        for topic in answer["responses"]:
            for row in topic["partitions"]:
                self._take((topic["topic"], row["partition_index"]), row, offsets)
        return bool(session.id)

    def _take(self, place: Place, row: Body, offsets: dict[Place, int]) -> None:
        offset = offsets[place]
        if row["error_code"]:
            check_retried(row["error_code"], f"Fetch of {place} from {offset} in a session")
            self.leaders.pop(place, None)
            return
        if found := records_of(row, offset):
            self.seen.on_read(place, offset, found)
            self.seen.on_batches(place, offset, batches_of(row))
            offsets[place] = found[-1][0] + 1


def session_body(
    session: Session, changed: dict[Place, int], forgotten: list[Place], wait_ms: int
) -> Body:
    return {
        "replica_id": -1,
        "max_wait_ms": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "session_id": session.id,
        "session_epoch": session.epoch,
        "topics": [
            {
                "topic": topic,
                "partitions": [
                    {"partition": index, "fetch_offset": offset, "partition_max_bytes": 1 << 16}
                ],
            }
            for (topic, index), offset in changed.items()
        ],
        "forgotten_topics_data": [
            {"topic": topic, "partitions": [index]} for topic, index in forgotten
        ],
    }


class FullReader(SessionReader):
    """Reads as a client that knows of no sessions: each Fetch names all partitions of a broker,
    from another one on each time, and each answer tells of all."""

    def _fetch(
        self, port: int, session: Session, offsets: dict[Place, int]
    ) -> Generator[Wait, None, bool]:
        mine = [place for place in offsets if self.leaders.get(place) == port]
        self.random.shuffle(mine)
        asked = {place: offsets[place] for place in mine}
        body = session_body(session, asked, [], self.random.choice((0, 20, 200)))
        body["session_epoch"] = NO_SESSION
        try:
            answer = yield from self.ask(port, "Fetch", 11, body)
        except Disconnected:
            for place in mine:
                self.leaders.pop(place, None)
            return False
        assert (answer["error_code"], answer["session_id"]) == (0, 0)
        told = {
            (topic["topic"], row["partition_index"]): row
            for topic in answer["responses"]
            for row in topic["partitions"]
        }
        assert told.keys() == asked.keys()
        for place, row in told.items():
            self._take(place, row, offsets)
        return True


class Watch:
    """What must be true of the sessions that brokers keep: whoever is not looked at has nothing to
    tell, and is attended to."""

    def __init__(self) -> None:
        self.rows = 0
        """That had nothing to tell, each time that they were looked at."""
        self._doubted: dict[tuple[int, int], int] = {}
        """A broker's turns when a row of it had more: others run amid a turn."""

    def look(self, brokers: Iterable[Broker]) -> None:
        before, self._doubted = self._doubted, {}
        for broker in brokers:
            for session in broker.read_sessions._sessions.values():
                for place in range(len(session.rows)):
                    if place in session._ready:
                        continue
                    self.rows += 1
                    if said := self._what_is_wrong(broker, session, place):
                        row, turns = (id(session), place), broker.turns
                        first = self._doubted[row] = before.get(row, turns)
                        assert turns < first + WHOLE_TURNS, said

    def _what_is_wrong(self, broker: Broker, session: ReadSession, place: int) -> str:
        key, _, _, _, offset, known, _ = session.rows[place]
        partition = broker.partitions.get(key)
        if partition is None or not partition.is_leader:
            return "a partition is not led here any more"
        if session not in broker.purgatory.watched.get(key, ()):
            return "a row is not attended to"
        end = partition.high_watermark
        return f"{partition.topic} has more, to {end}" if offset < end or known != end else ""
