"""What is followed of each leader: rows, by the numbers that the session there knows them by.

    Link   one leader ── rows: number ──► CopiedRow   one partition
                         changed, gone: what the next READ says of them
    Retries              rows that are read again after a while

Rules of this file:
* A number that a READ has ended means nothing to the leader from the answer to that READ on, or to
  a later one: an answer that is on its way may still name it. Then another row may have it.
* A leader that has died has forgotten the session: every number is free, every row is named again.

Source: KIP-227 (sessions).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.ipc.passed_files import FileTable
    from shmbroker.ipc.peer import Peer
    from shmbroker.replica.partition import Partition

ROWS_MAX = 32767
"""Partitions that one broker can follow of one leader: `which` is an int16."""
RETRY_MS = 10
STORAGE_RETRY_MS = 1000
"""Where a disk has refused, the leader's or this one's."""


class CopiedRow:
    """A followed partition."""

    __slots__ = ("is_compared", "leader_epoch", "link", "partition", "refused_epoch", "told_start",
                 "which")  # fmt: skip

    def __init__(self, link: Link, partition: Partition, which: int) -> None:
        self.link = link
        self.partition = partition
        self.which = which
        self.leader_epoch = -1
        self.is_compared = False
        """The leader has found this log to be a part of its own, in this epoch."""
        self.told_start = -1
        """Where the log begins, as the leader knows it."""
        self.refused_epoch = -1
        """The epoch in which it was said that the leader lacks what is here."""


class Link:
    """One leader: the READ under way there, and what is followed of it."""

    __slots__ = ("_free", "_next_which", "changed", "files", "freeing", "gone", "is_new", "peer",
                 "rows", "token")  # fmt: skip

    def __init__(self, peer: Peer, files: FileTable) -> None:
        self.peer = peer
        self.files = files
        self.rows: dict[int, CopiedRow] = {}
        self.changed: dict[CopiedRow, None] = {}
        """Rows that the next READ names."""
        self.gone: list[int] = []
        """Numbers of rows that the leader is to forget."""
        self.token = 0
        """The token of the last READ; 0 once it is answered."""
        self.is_new = True
        self._next_which = 0
        self._free: list[int] = []
        """Numbers of rows that mean nothing to the leader any more."""
        self.freeing: list[tuple[int, list[int]]] = []
        """Numbers that a READ has ended, by its token."""

    def add(self, partition: Partition) -> CopiedRow | None:
        """A row for this partition; None if there are too many."""
        which = self._free.pop() if self._free else self._next_which
        if which > ROWS_MAX:
            return None
        self._next_which = max(self._next_which, which + 1)
        row = self.rows[which] = CopiedRow(self, partition, which)
        return row

    def remove(self, row: CopiedRow) -> None:
        """Stop following a partition: the next READ says so."""
        self.changed.pop(row, None)
        self.rows.pop(row.which, None)
        self.gone.append(row.which)

    def on_gone_told(self, token: int, gone: list[int]) -> None:
        """A READ has left, which tells these first ones to be gone."""
        del self.gone[: len(gone)]
        self.freeing.append((token, gone))

    def free_until(self, token: int) -> None:
        """Free the places that waited for this READ's answer."""
        freeing = self.freeing
        while freeing and freeing[0][0] <= token:
            self._free += freeing.pop(0)[1]

    def on_lost(self) -> None:
        """The leader is dead: its successor knows nothing of the session."""
        self.files.clear()
        self.token = 0
        self.is_new = True
        self._free += self.gone
        for _, numbers in self.freeing:
            self._free += numbers
        self.gone, self.freeing = [], []
        for row in self.rows.values():
            row.is_compared = False
            self.changed[row] = None


class Retries:
    """Rows that can't go on now, each with the time from which it is read again."""

    __slots__ = ("_steady_ms", "waiting")

    def __init__(self, steady_ms: Callable[[], int]) -> None:
        self._steady_ms = steady_ms
        self.waiting: list[tuple[int, CopiedRow]] = []
        """When, and which, in no order."""

    @property
    def next_ms(self) -> int | None:
        """When some row is due to be read again."""
        return min((due for due, _ in self.waiting), default=None)

    def again(self, row: CopiedRow, delay_ms: int) -> None:
        """Read it again after a while, and compare it first."""
        row.is_compared = False
        self.waiting.append((self._steady_ms() + delay_ms, row))

    def take_due(self) -> list[CopiedRow]:
        """Rows whose time has come."""
        steady_ms = self._steady_ms()
        due = [row for due_ms, row in self.waiting if due_ms <= steady_ms]
        if due:
            self.waiting = [retry for retry in self.waiting if retry[0] > steady_ms]
        return due

    def forget(self, row: CopiedRow) -> None:
        """Forget a row that is not followed any more."""
        self.waiting = [retry for retry in self.waiting if retry[1] is not row]
