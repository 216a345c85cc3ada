"""Shares out memory for frames that are still arriving, and says who pays when it is short.

A worker has a bound of bytes for them. A frame asks for room as its bytes come, a little more each
time, whatever size it announces. Rules of this file:

* A  Up to `usual`, three quarters of the bound, every sender gets what it asks for.
* B  Beyond that the slowest senders are given up, if the asker is not one of them: those well
     slower than it and not fast, one by one from the slowest on, until there is room. Nobody pays
     whose frame has just begun, or who waits for the broker (a full ring, one that is down).
* C  The last quarter is for finishing: a sender that is not slow, and of whose frame a good part is
     here, gets all that it needs.
* D  A frame larger than the bound gets room while the others hold no more than the last quarter.
* E  Else it waits. It is not read from meanwhile, and this time does not count against it. Those
     that need the least to be whole have room first.
* F  Where all that hold memory wait for each other, the next one in turn gets all that it needs
     after all, if there is as much; else the one that needs the most is given up.

So at most the bound is held, or one large frame and a quarter of the bound.
Time comes in as an argument; who is to be closed goes out as a value.
"""

from typing import Generic, TypeVar

GRACE_S = 0.2
"""How long nobody knows how fast a sender is: one that shares a busy processor may pause."""

HELD_GRACE_S = 5.0
"""How long bytes may wait behind their connection's own earlier requests."""

FAST_BYTES_PER_S = 512 * 1024
"""A sender that is as fast as this pays for nobody."""

GOOD_PART = 4
"""A quarter of a frame."""

PAGE_BYTES = 4096

DOUBLED_BYTES_MAX = 4 << 20
"""Room that is more than this grows by a quarter at a time."""

LOOK_AGAIN_S = 0.02
"""The time between two looks through all senders that found none to pay."""

_LONG_AGO = float("-inf")


class Sender:
    """What a connection has of the memory, and how fast its present frame comes in."""

    __slots__ = (
        "arrived",
        "began",
        "is_blocked",
        "is_held",
        "moved",
        "room",
        "waits_since",
        "wanted",
        "whole",
    )

    def __init__(self) -> None:
        self.room = 0
        """Bytes of memory that it holds."""
        self.arrived = 0
        """Bytes of its frame that are here."""
        self.whole = 0
        """Bytes of the whole frame, as far as that is known."""
        self.began = 0.0
        """When its frame began, plus all the time that it has waited for memory."""
        self.moved = 0.0
        """When bytes came last, or it was allowed to send again."""
        self.waits_since = 0.0
        """The time at which it began to wait for memory; 0: it does not wait."""
        self.wanted = 0
        """The room that it waits for."""
        self.is_held = False
        """Whether it is not read from, for whatever reason."""
        self.is_blocked = False
        """Whether it is not read from because a ring is full, or its broker is down."""

    def arrive(self, size: int, whole: int, is_next: bool, now: float) -> None:
        """`size` bytes of its frame are here; `is_next`: not of the one before."""
        if is_next or not self.arrived:
            self.began = now
        self.arrived = size
        self.whole = max(size, whole)
        self.moved = now

    def rest(self) -> int:
        """What its frame needs to be whole."""
        return self.whole - self.room

    def elapsed(self, now: float) -> float:
        """Seconds that its frame took so far, without those in which it was to wait."""
        return (self.waits_since or now) - self.began

    def is_slow(self, now: float) -> bool:
        """Whether it is known not to be fast."""
        elapsed = self.elapsed(now)
        return elapsed >= GRACE_S and self.arrived < FAST_BYTES_PER_S * elapsed


S = TypeVar("S", bound=Sender)


class ArrivingMemory(Generic[S]):
    """The memory of one worker; `reading` is what one read may bring at once."""

    __slots__ = (
        "_look_again_at",
        "bound",
        "has_released",
        "is_short",
        "peak",
        "reading",
        "senders",
        "used",
        "usual",
        "waiting",
    )

    def __init__(self, bound: int, reading: int) -> None:
        self.bound = max(bound, 4 * reading)
        self.reading = reading
        self.usual = self.bound * 3 // 4
        self.used = 0
        """Bytes held: the sum of `room` over `senders`."""
        self.peak = 0
        """Most that was used since somebody set this back."""
        self.is_short = False
        """Another read may bring more than there is `usual` room for."""
        self.senders: set[S] = set()
        self.waiting: dict[S, None] = {}
        self.has_released = False
        """Whether memory was released since this was set back: another look at those who wait is
        worth it."""
        self._look_again_at = _LONG_AGO

    # ── those who ask ───────────────────────────────────────────────────────────────────────────

    def allowed(self, asker: S, size: int, now: float) -> int:
        """The room that the asker may have now, `size` or its whole frame's; 0: none."""
        if self.used + size - asker.room <= self.usual:
            return size  # A
        if asker.arrived * GOOD_PART >= asker.whole and (whole := self._all_of(asker, size, now)):
            return whole  # C
        if self.used - asker.room <= self.bound - self.usual:
            return size  # D
        if self._is_deadlocked() and self.in_turn()[:1] == [asker]:
            return self._all_of(asker, size, now)  # F
        return 0  # E

    def _all_of(self, asker: S, size: int, now: float) -> int:
        whole = max(size, pages(asker.whole))
        fits = self.used + whole - asker.room <= self.bound
        return whole if fits and not asker.is_slow(now) else 0

    def payers(self, asker: S, size: int, now: float) -> list[S]:
        """Rule B: who is to be given up so that the asker has room; nobody if it is not enough.

        Up to a sixteenth of the bound more than is needed, as the next one needs some, too.
        """
        if now < self._look_again_at:
            return []
        elapsed = asker.elapsed(now)
        limit = float(FAST_BYTES_PER_S)
        if elapsed >= GRACE_S:
            limit = min(limit, asker.arrived / elapsed / 2)
        slow = []
        for sender in self.senders:
            if sender is asker or sender.is_blocked or not sender.room:
                continue
            elapsed = sender.elapsed(now)
            is_ours = sender.is_held and not sender.waits_since
            if elapsed >= (HELD_GRACE_S if is_ours else GRACE_S):
                rate = sender.arrived / elapsed
                if rate < limit:
                    slow.append((rate, sender))
        slow.sort(key=lambda pair: pair[0])
        needed = self.used + size - asker.room - self.usual
        wanted = needed + self.bound // 16
        found = []
        freed = 0
        for _, sender in slow:
            if freed >= wanted:
                break
            found.append(sender)
            freed += sender.room
        if freed >= needed:
            return found
        self._look_again_at = now + LOOK_AGAIN_S
        return []

    def wait(self, asker: S, size: int, now: float) -> None:
        """Give it no room now: its time stands still until `hold` or `release`."""
        asker.wanted = size
        if not asker.waits_since:
            asker.waits_since = now
            self.waiting[asker] = None

    def in_turn(self) -> list[S]:
        """Connections that wait, the next one first."""
        return sorted(self.waiting, key=_rest)

    def deadlocked(self) -> S | None:
        """Rule F: who is to be given up as all that hold memory wait for each other."""
        return max(self.senders, key=_rest) if self._is_deadlocked() else None

    def _is_deadlocked(self) -> bool:
        return bool(self.senders) and all(sender.waits_since for sender in self.senders)

    # ── what they hold ──────────────────────────────────────────────────────────────────────────

    def hold(self, sender: S, size: int, now: float) -> None:
        """The sender has this much room now."""
        if sender.waits_since:
            sender.began += now - sender.waits_since
            sender.waits_since = 0.0
            sender.moved = now
            del self.waiting[sender]
        self.senders.add(sender)
        self._add(size - sender.room)
        sender.room = size

    def release(self, sender: S) -> None:
        """The sender has none any more: its frame is whole, or it was closed."""
        self.senders.discard(sender)
        self.waiting.pop(sender, None)
        self._add(-sender.room)
        sender.room = sender.arrived = sender.whole = 0
        sender.waits_since = 0.0
        self.has_released = True

    def _add(self, count: int) -> None:
        self.used += count
        self.peak = max(self.peak, self.used)
        self.is_short = self.used + self.reading > self.usual


def pages(size: int) -> int:
    """`size`, rounded up to whole pages."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def first_room(arrived: int, whole: int) -> int:
    """The room for the beginning of a frame: twice what is here, but no more than it needs."""
    return pages(max(arrived, min(whole, 2 * arrived), 1))


def next_room(room: int, whole: int) -> int:
    """The next room of a frame that has filled the one it had."""
    more = room if room <= DOUBLED_BYTES_MAX else room // 4
    return pages(min(room + more, max(whole, room + PAGE_BYTES)))


def _rest(sender: Sender) -> int:
    return sender.rest()
