"""Closing many logs cleanly: what they hold is made durable by several threads at once.

   main thread   cut the files to their content, snapshot ──► queue ──► fdatasync, by threads
                 recovery point, let go of the files       ◄── queue ◄──

One after the other, each fdatasync waits for a journal commit of its own; together they share them,
and the disk has a queue to sort. A few thousand logs with some files each are a matter of seconds
then, where the disk takes milliseconds for each.

The threads see descriptors alone, LOTS_MAX logs' worth of them at once.
"""

import queue
import threading

from shmbroker.errors import StorageFault
from shmbroker.log.flushing import Flush, begin_close, end_close, sync_and_close
from shmbroker.log.partition_log import PartitionLog
from shmbroker.signs import FLUSHING, at_work, sign

SYNCERS = 16
FEW = 4
"""The most logs that are not worth a thread."""
LOTS_MAX = 32
"""Logs that wait for a thread or have one: with some six descriptors each, more would reach the
limit of open files."""
LOOK_S = 0.1


def close_all(logs: list[PartitionLog]) -> None:
    """Close them cleanly; StorageFault, with some of them closed, if the disk refuses."""
    if len(logs) <= FEW:
        for log in logs:
            at_work(FLUSHING, len(logs))
            log.close(clean=True)
        return
    syncers = _Syncers()
    try:
        for left in range(len(logs), 0, -1):
            at_work(FLUSHING, left - 1 + syncers.under_way)
            syncers.make_room()
            flush = begin_close(logs[left - 1])
            if flush.begin():
                syncers.give(flush)
            else:
                end_close(flush)
        while syncers.under_way:
            at_work(FLUSHING, syncers.under_way)
            syncers.take()
    finally:
        syncers.stop()


class _Syncers:
    """The threads and what they have."""

    def __init__(self) -> None:
        self.under_way = 0
        self._jobs: queue.SimpleQueue[Flush | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Flush, OSError | None]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def make_room(self) -> None:
        """Wait for one where many are under way. Before the next has descriptors: a fault here
        would leave them open."""
        if self.under_way >= LOTS_MAX:
            self.take()

    def give(self, flush: Flush) -> None:
        """Have a log synced."""
        if len(self._threads) < SYNCERS:
            thread = threading.Thread(target=self._run, name="syncer", daemon=True)
            thread.start()
            self._threads.append(thread)
        self.under_way += 1
        self._jobs.put(flush)

    def take(self) -> None:
        """Wait for one, and close it; StorageFault if the disk has refused."""
        while True:
            try:
                flush, fault = self._done.get(timeout=LOOK_S)
                break
            except queue.Empty:
                sign()
        self.under_way -= 1
        if fault is not None:
            directory = flush.log.directory
            raise StorageFault(f"fdatasync in {directory}: {fault}", directory) from fault
        end_close(flush)

    def _run(self) -> None:
        while (flush := self._jobs.get()) is not None:
            fault = None
            for descriptor in flush.descriptors:
                fault = sync_and_close(descriptor) or fault
            self._done.put((flush, fault))

    def stop(self) -> None:
        """End the threads; after a fault, when they are through with what they have: nobody syncs
        or closes a descriptor behind the back of whoever is told of it."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            while thread.is_alive():
                thread.join(LOOK_S)
                sign()
