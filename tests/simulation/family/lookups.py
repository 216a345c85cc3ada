"""A client of a simulated family that looks offsets up by time, and asks where a log's copies end.

What must hold, of what is not deleted meanwhile:

    a lookup gives the first record that isn't older, or none where none was readable
    the record with the largest timestamp has it
    what is local begins at or before the end, and copies end there, too
"""

from __future__ import annotations

from collections.abc import Generator

from shmbroker.apis.broker.list_offsets import (
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)
from shmbroker.records.batch import iterate_batches, iterate_records
from tests.simulation.family.clients import FamilyClient, check_retried
from tests.simulation.family.history import Place, Seen
from tests.simulation.family.network import Body, Disconnected, Network, Script, Wait

VERSION = 11


class TimeReader(FamilyClient):
    """Reads partitions, and looks up times of what it has read."""

    def __init__(self, network: Network, name: str, seen: Seen) -> None:
        self.times: dict[Place, dict[int, int]] = {}
        """Of each offset."""
        super().__init__(network, name, seen)

    def script(self) -> Script:
        while not self.is_told_to_end:
            yield self.pause(0.0, 0.2)
            if not self.seen.places:
                continue
            place = self.random.choice(self.seen.places)
            times = self.times.setdefault(place, {})
            draw = self.random.random()
            if draw < 0.3 or not times:
                yield from self.read(place, self.random.choice((0, max(times, default=0))))
            elif draw < 0.5:
                yield from self._ask_ends(place)
            elif draw < 0.6:
                yield from self._find_newest(place, times)
            else:
                yield from self._find(place, times)

    def on_row(self, place: Place, row: Body) -> None:
        """Note the times of what was read."""
        times = self.times.setdefault(place, {})
        records = bytes(row["records"] or b"")
        for position, _ in iterate_batches(records):
            for offset, timestamp, *_ in iterate_records(records, position):
                known = times.setdefault(offset, timestamp)
                assert known == timestamp, f"{place}: {offset} is of {known}, and of {timestamp}"

    def _find(self, place: Place, times: dict[int, int]) -> Script:
        wanted = self.random.choice(list(times.values())) + self.random.choice((-1, 0, 0, 1))
        readable = dict(times)
        row = yield from self._list(place, wanted)
        start = yield from self.start(place)
        if row is None or start < 0:
            return
        start = max(start, self.seen.delete_asked(place))
        found = row["offset"]
        end = found if found >= 0 else 1 << 62
        missed = [at for at, when in readable.items() if start <= at < end and when >= wanted]
        assert not missed, f"{place}: {found} is the first from {wanted} on, and not {missed[0]}"
        if found >= 0:
            assert row["timestamp"] >= wanted, f"{place}: {row} is older than {wanted}"
            known = times.get(found, row["timestamp"])
            assert row["timestamp"] == known, f"{place}: {row}, and it is of {known}"

    def _find_newest(self, place: Place, times: dict[int, int]) -> Script:
        readable = dict(times)
        row = yield from self._list(place, MAX_TIMESTAMP)
        start = yield from self.start(place)
        if row is None or start < 0:
            return
        start = max(start, self.seen.delete_asked(place))
        newest = max((when for at, when in readable.items() if at >= start), default=-1)
        if row["offset"] >= 0:  # else it is not committed yet
            assert row["timestamp"] >= newest, f"{place}: {row} is the newest, not of {newest}"
            known = times.get(row["offset"], row["timestamp"])
            assert row["timestamp"] == known, f"{place}: {row}, and it is of {known}"

    def _ask_ends(self, place: Place) -> Script:
        which = self.random.choice((EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD))
        row = yield from self._list(place, which)
        end = yield from self.watermark(place)
        if row is not None and end >= 0:
            assert row["offset"] <= end, f"{place} ends at {end}, and {which} is {row['offset']}"

    def _list(self, place: Place, timestamp: int) -> Generator[Wait, None, Body | None]:
        """What ListOffsets says of it; None where it is not known now."""
        port = yield from self.leader(place)
        partition = {
            "partition_index": place[1],
            "current_leader_epoch": -1,
            "timestamp": timestamp,
        }
        body = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": place[0], "partitions": [partition]}],
            "timeout_ms": 30_000,
        }
        try:
            answer = yield from self.ask(port, "ListOffsets", VERSION, body)
        except Disconnected:
            self.leaders.pop(place, None)
            return None
        row: Body = answer["topics"][0]["partitions"][0]
        if row["error_code"]:
            check_retried(row["error_code"], "ListOffsets")
            self.leaders.pop(place, None)
            return None
        return row
