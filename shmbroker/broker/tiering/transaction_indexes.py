"""The aborted transactions of what is read from the store, by the transaction indexes there.

The index of a copied segment is asked for by the first reader that needs it, and is kept for those
that follow. Of what is here as well, the log's own index tells.
"""

from __future__ import annotations

from shmbroker.log.transaction_index import AbortedTransaction
from shmbroker.wire.api_keys import TIER_ABORTED
from shmbroker.wire.error_codes import KAFKA_STORAGE_ERROR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.broker.tiering.remotes import Remote, RemoteTable
    from shmbroker.log.segment import Segment
    from shmbroker.tier.remote_log import RemoteSegment

INDEXES_KEPT = 64
"""The most indexes that are kept of one partition."""


class TransactionIndexes:
    """The transaction indexes of copies, as far as readers need them."""

    def __init__(self, table: RemoteTable) -> None:
        self.table = table

    def aborted_in(
        self, remote: Remote, offset: int, segment: Segment, position: int, end_offset: int
    ) -> list[AbortedTransaction] | int | None:
        """The aborted transactions, as `Tiering.aborted_in` gives them."""
        log = remote.partition.log
        if position == segment.size:
            end_offset = min(end_offset, segment.end_offset)
        else:
            end_offset = min(end_offset, segment.end_before(position))
        found: list[AbortedTransaction] = []
        for copy in remote.log.with_aborted(offset):
            if copy.base_offset >= log.local_start_offset:
                break  # here as well
            entries = self._index_of(remote, copy)
            if not isinstance(entries, list):
                return entries
            for entry in entries:
                if entry.last_offset >= offset and entry.first_offset < end_offset:
                    found.append(entry)
                if entry.last_stable_offset >= end_offset:
                    return list(dict.fromkeys(found))
        # A segment may be here and there, and copies overlap.
        return list(dict.fromkeys(found + log.aborted.find(offset, end_offset)))

    def _index_of(
        self, remote: Remote, copy: RemoteSegment
    ) -> list[AbortedTransaction] | int | None:
        """The transaction index of a copy, which is asked for where it is not here."""
        if copy in remote.aborted:
            remote.aborted.move_to_end(copy)
            return remote.aborted[copy]
        if self.table.steady_ms() < remote.fault_until_ms:
            return KAFKA_STORAGE_ERROR

        def on_answer(body: dict[str, Any]) -> None:
            if body["error_code"]:
                remote.aborted.pop(copy, None)
                remote.refuse_reads(self.table.steady_ms())
            else:
                rows = body["aborted"]
                fields = AbortedTransaction._fields
                remote.aborted[copy] = [
                    AbortedTransaction(*(row[name] for name in fields)) for row in rows
                ]
                while len(remote.aborted) > INDEXES_KEPT:
                    remote.aborted.popitem(last=False)
            self.table.wake(remote.partition.key)

        if self.table.ask(TIER_ABORTED, "TierAborted", remote.name() | copy._asdict(), on_answer):
            remote.aborted[copy] = None
        return None
