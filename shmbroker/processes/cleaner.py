"""The cleaner: reads closed segments of compacted logs and writes what is to be left of them.

Rules of this file:
* Forked when an I/O worker first has something to clean, as numpy takes memory and most families
  never need it. From then on it stays.
* It changes no log: it writes `.cleaned` files beside the segments it was told of, and answers. The
  worker that asked renames them (`broker.compaction`).
* One request at a time. After every few MiB it looks who died and whether it is to stop: when the
  worker that asked is gone, nothing is written any more before that death is acknowledged.
"""

import logging
from typing import Any

from shmbroker import clock
from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.ipc.operation_adapter import Call, Executor, ForwardedCall
from shmbroker.ipc.peer import Peer
from shmbroker.ipc.slots import Slot
from shmbroker.log.compaction.cleaned_files import try_remove_cleaned
from shmbroker.processes.child import Helper
from shmbroker.processes.shared_resources import SharedResources
from shmbroker.shm.counters import CLEANER_RATE
from shmbroker.wire.api_keys import CLEAN_LOG
from shmbroker.wire.error_codes import CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR, NONE

logger = logging.getLogger(__name__)

THROTTLE_STEP_S = 0.1


class Abandoned(Exception):
    """Raised where the answer is not wanted any more."""


class CleanerRate:
    """Bytes that were moved too early for the rate, which may change meanwhile."""

    __slots__ = ("_debt", "_last")

    def __init__(self, now: float) -> None:
        self._debt = 0.0
        self._last = now

    def add(self, count: int) -> None:
        """Count bytes that were moved."""
        self._debt += count

    def wait_s(self, bytes_per_s: int, now: float) -> float:
        """How long to wait before the next ones at this rate; time without bytes saves nothing."""
        self._debt = max(0.0, self._debt - (now - self._last) * bytes_per_s)
        self._last = now
        return self._debt / bytes_per_s


class Cleaner(Helper):
    """What it does when it is asked; memory and throttle are as the worker says that asks."""

    def __init__(self, shared: SharedResources, slot: Slot) -> None:
        super().__init__(shared, slot)
        self.executor = Executor({CLEAN_LOG: ("CleanLog", self.on_call)})
        self._call: ForwardedCall | None = None
        self._directory = ""
        self._is_abandoned = False
        self._began = 0.0
        self._throttle = CleanerRate(0.0)

    def on_peer_lost(self, peer: Peer) -> None:
        """An I/O worker is dead; its successor must find nothing half done."""
        super().on_peer_lost(peer)
        if self._call is not None and self._call.peer is peer:
            self._is_abandoned = True
            try_remove_cleaned(self._directory)

    def on_call(self, call: Call, body: dict[str, Any]) -> dict[str, Any] | None:
        """One CleanLog request."""
        from shmbroker.log.compaction.chunks import Source
        from shmbroker.log.compaction.compactor import LastRecord, Settings, compact

        assert isinstance(call, ForwardedCall), "the cleaner asks itself nothing"
        self._call, self._is_abandoned = call, False
        self._directory = body["directory"]
        self._began = clock.monotonic()
        self._throttle = CleanerRate(self._began)
        settings = Settings(
            body["now_ms"],
            body["delete_retention_ms"],
            body["segment_bytes"],
            body["segment_index_bytes"],
            body["index_interval_bytes"],
            body["map_bytes"],
        )
        try:
            report = compact(
                self._directory,
                [Source(s["base_offset"], s["size"], s["end_offset"]) for s in body["segments"]],
                body["dirty_offset"],
                {
                    p["producer_id"]: LastRecord(p["last_offset"], p["epoch"])
                    for p in body["producers"]
                },
                settings,
                self.on_progress,
            )
        except Abandoned:
            return None
        except CorruptFault as fault:
            return {"error_code": CORRUPT_MESSAGE, "error_message": str(fault)}
        except StorageFault as fault:
            return {"error_code": KAFKA_STORAGE_ERROR, "error_message": str(fault)}
        finally:
            self._call = None
        self.tally.add("compaction_read_bytes", report.bytes_read)
        self.tally.add("compaction_written_bytes", report.bytes_written)
        self.tally.add("compaction_removed_records", report.records - report.kept)
        logger.info(
            "%s: %d of %d records kept, %d bytes of %d, in %.1f s",
            self._directory,
            report.kept,
            report.records,
            report.bytes_written,
            report.bytes_read,
            clock.monotonic() - self._began,
        )
        return {
            "error_code": NONE,
            "end_offset": report.end_offset,
            "groups": [
                {"first": group.first, "count": group.length, "size": group.size}
                for group in report.groups
            ],
        }

    def on_progress(self, count: int) -> None:
        """Do what is due between two chunks: signs of life, deaths, and no more bytes a second than
        allowed."""
        assert self._call is not None
        rate_at = self.counters.at(self._call.peer.slot, CLEANER_RATE)
        self._throttle.add(count)
        while True:
            now = clock.monotonic()
            self.sign(now)
            self.look_at_announcements(self)
            if self._is_abandoned or self.must_stop:
                raise Abandoned
            wait_s = self._throttle.wait_s(self.words[rate_at], now)
            if not wait_s:
                return
            clock.sleep(min(wait_s, THROTTLE_STEP_S))
