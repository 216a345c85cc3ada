"""Runs of appends: many batches in one call of a compiled kernel.

   APPEND, APPEND …    small ones of several requests, entry after entry     take_plain
   APPEND_MANY         small ones of one request, row after row              on_append_many

Rules of this file:
* The kernel (`kernels/plain.c`) takes a batch only where nothing but its header is to be looked at,
  and stops before any other: that one goes through `Appender`, which alone has all rules.
* Without the kernels there are no runs: each batch goes through `Appender`.
"""

from __future__ import annotations

from shmbroker.ipc.operation_layout import (
    APPEND_MANY_HEAD,
    APPEND_ROW,
    APPENDED_MANY,
    APPENDED_MANY_HEAD,
    APPENDED_ROW,
)
from shmbroker.kernels import native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.broker.append import Appender
    from shmbroker.broker.append_acks import Waiting
    from shmbroker.ipc.peer import Peer

append_plain = None if native is None else native.append_plain
append_rows = None if native is None else native.append_rows


class AppendRuns:
    """Runs of small appends of one I/O worker, stored beside its appender."""

    def __init__(self, appender: Appender) -> None:
        self._appender = appender
        self.partitions = appender.partitions
        self.now_ms = appender.now_ms
        self.appended = appender.appended
        self._let_wait = appender.acks.let_wait

    def take_plain(self, peer: Peer, entries_max: int, bytes_max: int) -> int:
        """Take the APPENDs that come next on a peer's ring, as far as nothing of them is to be
        looked at closer, and answer them: how many. 0 without the compiled kernels."""
        appender = self._appender
        if append_plain is None or appender.is_disk_low or peer.backlog:
            return 0
        waiting: list[Waiting] = []
        entries, size = append_plain(
            peer.reader, peer.writer, self.partitions, self.now_ms(), entries_max, bytes_max,
            self.appended, waiting,
        )  # fmt: skip
        if entries:
            appender.batches_in += entries
            appender.bytes_in += size
            if entries > len(waiting):
                peer.outbox[peer] = None
            self._let_wait(peer, waiting)
        return int(entries)

    def on_append_many(self, peer: Peer, data: memoryview, index: int) -> None:
        """One APPEND_MANY entry, from its payload at data[index:] to its APPENDED_MANY."""
        token, acks, flags, timeout_ms, count, _ = APPEND_MANY_HEAD.unpack_from(data, index)
        at = index + APPEND_MANY_HEAD.size
        appender, partitions = self._appender, self.partitions
        unpack_row, pack_row = APPEND_ROW.unpack_from, APPENDED_ROW.pack
        rows = []
        which = 0
        while True:
            if append_rows is not None and not appender.is_disk_low:
                waiting: list[Waiting] = []
                done, behind, stored = append_rows(
                    data, at, which, count, token, acks, flags, timeout_ms, partitions,
                    self.now_ms(), self.appended, waiting,
                )  # fmt: skip
                appender.batches_in += done - which
                appender.bytes_in += behind - at - (done - which) * APPEND_ROW.size
                rows.append(stored)
                self._let_wait(peer, waiting)
                which, at = done, behind
            if which == count:
                break
            key, size = unpack_row(data, at)
            at += APPEND_ROW.size
            end = at + size
            partition = partitions.get(key) or partitions.open_due(key)
            base_offset = appender.append(
                peer, token + which, acks, flags, timeout_ms, partition, data, at, end
            )
            if base_offset >= 0 and partition is not None:
                rows.append(pack_row(which, base_offset, partition.log.log_start_offset))
            at = end
            which += 1
        if packed := b"".join(rows):
            head = APPENDED_MANY_HEAD.pack(token, len(packed) // APPENDED_ROW.size, 0)
            peer.send(APPENDED_MANY, head + packed)
