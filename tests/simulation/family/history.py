"""What clients of a simulated family have seen, and what Kafka promises of it.

Looked at as soon as a client learns it:

    A  what is read at an offset is the same whoever reads it, whenever
    B  a read goes on where the last one ended: no offset below the end is left out
    C  the end that consumers are told never goes back
    D  a group's committed offset is never less than one whose commit was answered
    E  in a generation of a group no partition has two owners, and a member has one assignment
    F  a producer id is given once
    G  in a group of the new protocol no partition has two owners whose sessions last
    H  what is acknowledged with acks=all is in as many logs as min.insync.replicas says
    K  behind a batch or marker of a producer id comes none of an earlier epoch
    L  what was deleted, as DeleteRecords has answered, is never read again, whoever leads

At the end, when everything works again (`check_end`):

    I  what was acknowledged with acks=all is there once, in order, and where it was said to be, but
       for what somebody asked to delete
    J  topics whose creation was answered are there
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

Place = tuple[str, int]
"""Topic and partition."""
Value = tuple[int, int]
"""Producer and number."""


class Batch(NamedTuple):
    """Whose it is."""

    base_offset: int
    producer_id: int
    epoch: int


class Seen:
    """The history of one seed."""

    def __init__(
        self, now_ms: Callable[[], int], check_copies: Callable[[Place, int], None]
    ) -> None:
        """check_copies(place, offset): whether enough replicas have what lies before it."""
        self.now_ms = now_ms
        self.check_copies = check_copies
        self.topics: dict[str, int] = {}
        """Partitions of each that was created."""
        self.places: list[Place] = []
        self.acked: dict[Place, dict[Value, int]] = {}
        """Offset of each value; -1 where the answer did not say."""
        self._content: dict[Place, dict[int, Value]] = {}
        self._read_to: dict[Place, int] = {}
        self._watermarks: dict[Place, int] = {}
        self._epochs: dict[Place, dict[int, int]] = {}
        self._batches_end: dict[Place, int] = {}
        self._committed: dict[tuple[str, Place], int] = {}
        self._owners: dict[tuple[str, int, Place], str] = {}
        self._assignments: dict[tuple[str, int, str], list[Place]] = {}
        self._producer_ids: set[int] = set()
        self._producers = 0
        self._deleted: dict[Place, int] = {}
        self._delete_asked: dict[Place, int] = {}
        self.shrinks = False
        """Records go without being asked for: by retention, and with their copies."""
        self.deletes = 0
        self._owned: dict[str, dict[str, tuple[list[Place], float]]] = {}
        self.commits = 0
        self.generations = 0

    # ── topics and producers ────────────────────────────────────────────────────────────────────

    def on_created(self, topic: str, partitions: int) -> None:
        self.topics[topic] = partitions
        self.places += [(topic, partition) for partition in range(partitions)]

    def new_producer(self) -> int:
        self._producers += 1
        return self._producers

    def check_producer_id(self, producer_id: int) -> None:
        assert producer_id not in self._producer_ids, (
            f"producer id {producer_id} is given twice"
        )  # F
        self._producer_ids.add(producer_id)

    def on_acked(self, place: Place, producer: int, first: int, end: int, offset: int) -> None:
        """Numbers from `first` to before `end`, which begin at an offset."""
        rows = self.acked.setdefault(place, {})
        for number in range(first, end):
            rows[producer, number] = offset + number - first if offset >= 0 else -1
        if offset >= 0:
            self.check_copies(place, offset + end - first)  # H

    # ── readers ─────────────────────────────────────────────────────────────────────────────────

    def read_to(self, place: Place) -> int:
        """Up to where somebody has read."""
        return self._read_to.get(place, 0)

    def on_read(self, place: Place, offset: int, found: list[tuple[int, Value]]) -> None:
        """Records that were given from `offset` on."""
        content = self._content.setdefault(place, {})
        for at, value in found:
            assert at == offset, f"{place}: {at} is given after {offset - 1}"  # B
            known = content.setdefault(at, value)
            assert known == value, f"{place} held {known} at {at}, and holds {value}"  # A
            offset += 1
        self._read_to[place] = max(offset, self.read_to(place))
        self._watermarks[place] = max(offset, self.watermark(place))

    def watermark(self, place: Place) -> int:
        """The highest end that anybody was told so far: to be asked before a request is sent."""
        return self._watermarks.get(place, 0)

    def on_watermark(self, place: Place, known: int, told: int) -> None:
        assert told >= known, f"{place}: the high watermark goes back from {known} to {told}"  # C
        self._watermarks[place] = max(told, self.watermark(place))

    def on_batches(self, place: Place, offset: int, batches: list[Batch]) -> None:
        """Those that were given from `offset` on."""
        epochs, end = self._epochs.setdefault(place, {}), self._batches_end.get(place, 0)
        for base_offset, producer_id, epoch in batches:
            if offset > end or base_offset < end or producer_id < 0:
                continue
            before = epochs.get(producer_id, -1)
            assert epoch >= before, (
                f"{place}: epoch {epoch} of {producer_id} at {base_offset}, after {before}"
            )  # K
            epochs[producer_id] = epoch
        if batches and offset <= end:
            self._batches_end[place] = max(end, batches[-1].base_offset + 1)

    # ── deleted records ─────────────────────────────────────────────────────────────────────────

    def deleted(self, place: Place) -> int:
        """Where a partition begins at least: to be asked before a request is sent."""
        return self._deleted.get(place, 0)

    def delete_asked(self, place: Place) -> int:
        """Below it everything may be gone."""
        return self._delete_asked.get(place, 0)

    def on_delete_asked(self, place: Place, offset: int) -> None:
        self._delete_asked[place] = max(offset, self.delete_asked(place))

    def on_deleted(self, place: Place, low_watermark: int) -> None:
        """DeleteRecords is answered."""
        self.deletes += 1
        self._deleted[place] = max(low_watermark, self.deleted(place))

    def on_start(self, place: Place, deleted: int, start: int) -> None:
        """A partition begins there, as somebody was told. deleted: as of when it was asked."""
        assert start >= deleted, f"{place}: deleted below {deleted}, and begins at {start}"  # L
        if self.shrinks:
            self.on_delete_asked(place, start)
        asked = self.delete_asked(place)
        assert start <= asked, f"{place} begins at {start}, and was to be deleted below {asked}"
        self._batches_end[place] = max(start, self._batches_end.get(place, 0))

    # ── groups ──────────────────────────────────────────────────────────────────────────────────

    def committed(self, group: str, place: Place) -> int:
        return self._committed.get((group, place), 0)

    def on_committed(self, group: str, place: Place, offset: int) -> None:
        self.commits += 1
        self._committed[group, place] = max(offset, self.committed(group, place))

    def on_fetched_offsets(
        self, group: str, known: dict[Place, int], offsets: dict[Place, int]
    ) -> None:
        for place, least in known.items():
            found = offsets[place]
            assert found >= least, f"{group}: {least} was committed of {place}, now {found}"  # D

    def on_assigned(self, group: str, generation: int, member_id: str, places: list[Place]) -> None:
        self.generations += 1
        known = self._assignments.setdefault((group, generation, member_id), places)
        assert known == places, f"{group} {generation}: {known}, then {places} for a member"  # E
        for place in places:
            owner = self._owners.setdefault((group, generation, place), member_id)
            assert owner == member_id, f"{group} {generation}: {place} has two owners"  # E

    def on_owned(
        self, group: str, member_id: str, places: list[Place], until: float, now: float
    ) -> None:
        """A member owns these places and no others, until its session ends if not told again."""
        rows = self._owned.setdefault(group, {})
        rows[member_id] = (places, until)
        for other, (others, lasts) in rows.items():
            if other != member_id and min(lasts, until) > now:
                both = set(places) & set(others)
                assert not both, f"{group}: {both} is owned by {other} and {member_id}"  # G

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def check_end(self, place: Place) -> None:
        """`place` was read whole."""
        content = self._content.get(place, {})
        offsets: dict[Value, int] = {}
        newest: dict[int, int] = {}
        for offset, value in sorted(content.items()):
            assert value not in offsets, f"{place}: {value} at {offsets[value]} and {offset}"  # I
            offsets[value] = offset
            producer, number = value
            assert number > newest.get(producer, -1), f"{place}: {value} after a later one"  # I
            newest[producer] = number
        deleted = self.delete_asked(place)
        for value, offset in self.acked.get(place, {}).items():
            if offset < deleted and value not in offsets:
                continue
            assert value in offsets, f"{place}: {value} was acknowledged and is lost"  # I
            told = offsets[value]
            assert offset in (-1, told), f"{place}: {value} is at {told}, not {offset}"  # I
