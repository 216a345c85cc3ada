"""The cleaner: reads closed segments of compacted logs and writes what is to be left of them.

Rules of this file:
* Forked when an I/O worker first has something to clean, as numpy costs 25 MiB and most families
  never need it. From then on it stays.
* It changes no log: it writes `.cleaned` files beside the segments it was told of, and answers. The
  worker that asked renames them (`operations.compaction`).
* One request at a time. After every few MiB it looks who died and whether it is to stop: when the
  worker that asked is gone, nothing is written any more before that death is acknowledged.
"""

import logging
from typing import Any

from shmbroker import clock
from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.ipc.operation_adapter import Call, Executor
from shmbroker.ipc.peer import Peer
from shmbroker.log.cleaned_files import remove_cleaned
from shmbroker.processes.child import BACKLOG_RETRY_S, LIVENESS_INTERVAL_S, SleepingChild
from shmbroker.processes.shared_resources import SharedResources, Slot
from shmbroker.wire.api_keys import CLEAN_LOG
from shmbroker.wire.error_codes import CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR, NONE

logger = logging.getLogger("shmbroker")

THROTTLE_STEP_S = 0.1


class Abandoned(Exception):
    """Nobody wants the answer any more."""


class Cleaner(SleepingChild):
    """The main loop; `config` gives the memory for keys and the throttle."""

    def __init__(self, shared: SharedResources, slot: Slot, config: Any) -> None:
        super().__init__(shared, slot)
        self.map_bytes = config["log.cleaner.dedupe.buffer.size"]
        self.bytes_per_s = config["log.cleaner.io.max.bytes.per.second"]
        self.executor = Executor({CLEAN_LOG: ("CleanLog", self.on_call)})
        self._call: Call | None = None
        self._directory = ""
        self._is_abandoned = False
        self._began = 0.0
        self._bytes = 0

    def run(self) -> None:
        """Serve until asked to stop."""
        self.say_running()
        while not self.must_stop:
            self.check_control()
            had_work = self.execute_waiting(self.executor)
            self.publish()
            self.sign(clock.monotonic())
            if not had_work:
                self.sleep(BACKLOG_RETRY_S if self.has_backlog() else LIVENESS_INTERVAL_S)
        self.say_stopping()

    def on_peer_lost(self, peer: Peer) -> None:
        """An I/O worker is dead; its successor must find nothing half done."""
        self.executor.drop_parts(peer.slot)
        if self._call is not None and self._call.peer is peer:
            self._is_abandoned = True
            remove_cleaned(self._directory)

    def on_call(self, call: Call, body: dict[str, Any]) -> dict[str, Any] | None:
        """One CleanLog request."""
        from shmbroker.log.compactor import Settings, Source, compact

        self._call, self._is_abandoned = call, False
        self._directory = body["directory"]
        self._began, self._bytes = clock.monotonic(), 0
        settings = Settings(
            body["now_ms"],
            body["delete_retention_ms"],
            body["segment_bytes"],
            body["segment_index_bytes"],
            body["index_interval_bytes"],
            self.map_bytes,
        )
        try:
            report = compact(
                self._directory,
                [Source(s["base_offset"], s["size"], s["end_offset"]) for s in body["segments"]],
                body["dirty_offset"],
                {p["producer_id"]: p["last_offset"] for p in body["producers"]},
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
        """Between two chunks: signs of life, deaths, and no more bytes a second than allowed."""
        self._bytes += count
        due = self._began + self._bytes / self.bytes_per_s
        while True:
            now = clock.monotonic()
            self.sign(now)
            self.check_control()
            if self._is_abandoned or self.must_stop:
                raise Abandoned
            if now >= due:
                return
            clock.sleep(min(due - now, THROTTLE_STEP_S))
