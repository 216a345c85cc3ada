"""A session that the broker keeps tells what a READ of all partitions would tell, and when."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from shmbroker.broker.read_sessions import REFRESH_MS
from shmbroker.ipc.operation_layout import READ_HEAD, READ_PARTITION
from tests.support.reading import Reading

COUNT = 4
some_partition = st.integers(0, COUNT - 1)


class Machine(RuleBasedStateMachine):
    """Two brokers of the same partitions: one keeps the session, the other is asked for all."""

    def __init__(self) -> None:
        super().__init__()
        self.kept, self.plain = Reading(COUNT), Reading(COUNT)
        self.offsets, self.known = [0] * COUNT, [(-1, -1)] * COUNT
        self.changed: set[int] | None = None
        """Whose offsets the next READ names; None: it names all."""
        self.waits = False
        self.isolation = 0

    def both(self, which: int) -> list[Any]:
        return [self.kept.partition(which), self.plain.partition(which)]

    def told(self, which: int) -> None:
        for reading in (self.kept, self.plain):
            reading.purgatory.check_together([reading.keys[which]])
        self.take()

    # ── the partitions ──────────────────────────────────────────────────────────────────────────

    @rule(which=some_partition, is_stable=st.booleans())
    def append(self, which: int, is_stable: bool) -> None:
        for partition in self.both(which):
            partition.log.log_end_offset += 1
            partition.high_watermark = partition.log.log_end_offset
            if is_stable:
                partition.last_stable_offset = partition.high_watermark
        self.told(which)

    @precondition(lambda self: not self.waits)
    @rule(which=some_partition)
    def cut_the_beginning(self, which: int) -> None:
        """Nobody is told, but some time goes by. (A READ of all that waits keeps what it has found,
        where the session looks again.)"""
        for partition in self.both(which):
            log = partition.log
            log.log_start_offset = min(log.log_start_offset + 1, partition.high_watermark)
            log.local_start_offset = log.log_start_offset
        for reading in (self.kept, self.plain):
            reading.now_ms += REFRESH_MS

    @rule(which=some_partition)
    def lead_or_not(self, which: int) -> None:
        for partition in self.both(which):
            partition.is_leader = not partition.is_leader
        self.told(which)

    # ── the client ──────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: not self.waits)
    @rule(max_wait_ms=st.sampled_from([0, 500]), min_bytes=st.sampled_from([1, 250]))
    def read(self, max_wait_ms: int, min_bytes: int) -> None:
        rows = [(which, self.offsets[which], *self.known[which]) for which in range(COUNT)]
        changed = rows if self.changed is None else [rows[which] for which in self.changed]
        limits = {"max_wait_ms": max_wait_ms, "min_bytes": min_bytes, "isolation": self.isolation}
        self.kept.read(*changed, new=self.changed is None, **limits)
        self.plain.token = self.kept.token
        data = READ_HEAD.pack(
            self.plain.token, max_wait_ms, min_bytes, 1 << 20, self.isolation, 0, COUNT, 0
        ) + b"".join(
            READ_PARTITION.pack(self.plain.keys[which], 1000, -1, -1, offset, *known)
            for which, offset, *known in rows
        )
        peer: Any = self.plain
        self.plain.reader.on_read(peer, memoryview(data), 0)
        self.changed, self.waits = set(), True
        self.take()

    @precondition(lambda self: self.waits)
    @rule()
    def wait_in_vain(self) -> None:
        for reading in (self.kept, self.plain):
            reading.now_ms += 500
            reading.purgatory.expire(reading.now_ms)
        self.take()
        assert not self.waits

    @precondition(lambda self: not self.waits)
    @rule(which=some_partition, back=st.integers(0, 2))
    def seek(self, which: int, back: int) -> None:
        self.offsets[which] = max(0, self.offsets[which] - back)
        if self.changed is not None:
            self.changed.add(which)

    @precondition(lambda self: not self.waits)
    @rule()
    def begin_anew(self) -> None:
        self.changed = None

    @precondition(lambda self: not self.waits)
    @rule()
    def read_otherwise(self) -> None:
        self.isolation = 1 - self.isolation

    def take(self) -> None:
        """What both have answered is the same; the client goes on behind it."""
        kept, plain = self.kept.sent, self.plain.sent
        assert _anywhere(kept) == _anywhere(plain)
        if not kept:
            return
        ((_, _, found),) = kept
        self.kept.sent, self.plain.sent = [], []
        self.waits = False
        for which, (error, _, length, high_watermark, _, log_start, *_) in found.items():
            self.known[which] = (-1 if error else high_watermark), log_start
            if length and self.changed is not None:
                self.offsets[which] += length // 100
                self.changed.add(which)
            elif error == 1:  # OFFSET_OUT_OF_RANGE
                self.offsets[which] = self.both(which)[0].log.log_start_offset
                assert self.changed is not None
                self.changed.add(which)


def _anywhere(sent: list[Any]) -> list[Any]:
    """Without where the bytes stand, which goes by the order of the slices."""
    return [
        (token, count, {which: (*one[:7], *one[8:]) for which, one in found.items()})
        for token, count, found in sent
    ]


TestReadSessions = Machine.TestCase
