"""Turns in each partition of a transaction that many tasks write, as a pure state machine.

A transaction has one producer id, and its batches must reach a partition in the order of their
sequences. So a task writes to a partition only while it has the lease of it:

    lease ──► sending (a window of batches, with a sequence) ──► sent ──► sending … ──► give back

Rules

* One task has a partition; one attempt of a task sends. Another attempt waits until the first has
  done everything, or is gone.
* A window is told before it is sent. An attempt that goes in the midst of one leaves its partitions
  in doubt: nobody knows how much of the window is there. They stay with the task; its next attempt
  sends the same window again, with the same sequences, and the broker drops what it has.
* The next attempt goes on behind what the first has sent, if its batches have the same digests up
  to there. If not, rows would be lost or be there twice: the transaction has failed.
* A window has at most WINDOW batches: so many a broker knows of a producer, to tell repeated ones.

Digests are of all of a task's batches for the partition, from the first one on. Times are seconds
of a clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shmbroker.errors import Fault
from shmbroker.ids import TopicPartition
from shmbroker.records.batch_layout import SEQUENCES

WINDOW = 5
"""Sequences wrap to 0 behind 2^31 - 1."""
START = ""
"""The digest of no batches."""


class LostFault(Fault):
    """The transaction can't be committed any more."""


class TaskProgress:
    """How far a task is in a partition: batches that are there, and a window that may be."""

    __slots__ = ("batches", "digest", "window")

    def __init__(self) -> None:
        self.batches = 0
        self.digest = START
        self.window: tuple[int, int, str] | None = None
        """Batches and records of it, and the digest with it."""


class _Task:
    __slots__ = ("attempt", "attempts", "is_done", "progress", "records", "waits_since_s")

    def __init__(self) -> None:
        self.attempt: int | None = None  # the one that sends
        self.attempts: set[int] = set()  # those that are there
        self.is_done = False
        self.records = 0
        self.progress: dict[TopicPartition, TaskProgress] = {}
        self.waits_since_s = 0.0  # for an attempt that resolves what is in doubt


class _Partition:
    __slots__ = ("holder", "next_sequence")

    def __init__(self) -> None:
        self.holder: int | None = None
        self.next_sequence = 0


class Leases:
    """The tasks and partitions of one transaction. `doubt_s`: how long the next attempt of a task
    is waited for, while others want what is in doubt."""

    def __init__(self, doubt_s: float) -> None:
        self._doubt_s = doubt_s
        self._tasks: dict[int, _Task] = {}
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._failure: str | None = None

    @property
    def partitions(self) -> list[TopicPartition]:
        """All that were written to, or were about to be."""
        return sorted(self._partitions)

    def fail(self, reason: str) -> None:
        """Note why the transaction can't be committed; the first reason counts."""
        self._failure = self._failure or reason

    def check(self) -> None:
        """LostFault if it can't be committed."""
        if self._failure is not None:
            raise LostFault(self._failure)

    def enter(self, task: int, attempt: int) -> bool:
        """An attempt begins; whether all of its task is sent, so that it has nothing to do."""
        self.check()
        found = self._tasks.setdefault(task, _Task())
        found.attempts.add(attempt)
        return found.is_done

    def try_claim(self, task: int, attempt: int) -> bool | None:
        """Whether this attempt may send; None: its task is done. False: another one sends."""
        self.check()
        found = self._tasks[task]
        if found.is_done:
            return None
        if found.attempt is None:
            found.attempt = attempt
        return found.attempt == attempt

    def try_lease(
        self, task: int, wanted: Sequence[TopicPartition], now_s: float
    ) -> TopicPartition | None:
        """The first of these that is free, or that an earlier attempt of the task has left in
        doubt; None: not yet."""
        self.check()
        mine = self._tasks[task].progress
        order = sorted(wanted, key=lambda one: one not in mine or mine[one].window is None)
        for topic_partition in order:
            partition = self._partitions.setdefault(topic_partition, _Partition())
            if partition.holder is None or partition.holder == task:
                partition.holder = task
                mine.setdefault(topic_partition, TaskProgress())
                return topic_partition
        for topic_partition in order:
            holder = self._partitions[topic_partition].holder
            assert holder is not None
            other = self._tasks[holder]
            if other.attempt is None and now_s - other.waits_since_s > self._doubt_s:
                self.fail(
                    f"task {holder} ended while it wrote to {topic_partition[0]}-"
                    f"{topic_partition[1]}, and was not begun again within {self._doubt_s:.0f} s"
                )
                self.check()
        return None

    def progress(self, task: int, topic_partition: TopicPartition) -> TaskProgress:
        """How far the task is in a partition that it has."""
        return self._tasks[task].progress[topic_partition]

    def sending(
        self,
        task: int,
        topic_partition: TopicPartition,
        batches: int,
        records: int,
        before: str,
        after: str,
    ) -> int:
        """The sequence of a window; `before` and `after`: the digests without and with it."""
        self.check()
        assert batches <= WINDOW
        partition = self._partitions[topic_partition]
        assert partition.holder == task
        progress = self.progress(task, topic_partition)
        window = (batches, records, after)
        if before != progress.digest or progress.window not in (None, window):
            self._fail_for_others(task, topic_partition)
        progress.window = window
        return partition.next_sequence

    def _fail_for_others(self, task: int, topic_partition: TopicPartition) -> None:
        name = f"{topic_partition[0]}-{topic_partition[1]}"
        self.fail(
            f"task {task} has other rows for {name} than when it was begun first, and a part of"
            " those is sent"
        )
        self.check()

    def sent(self, task: int, topic_partition: TopicPartition) -> None:
        """All of the window is there."""
        partition = self._partitions[topic_partition]
        progress = self.progress(task, topic_partition)
        assert progress.window is not None and partition.holder == task
        batches, records, digest = progress.window
        progress.batches += batches
        progress.digest = digest
        progress.window = None
        partition.next_sequence = (partition.next_sequence + records) % SEQUENCES
        self._tasks[task].records += records

    def give_back(self, task: int, topic_partition: TopicPartition) -> None:
        """The task has sent what it had for the partition."""
        assert self.progress(task, topic_partition).window is None
        self._partitions[topic_partition].holder = None

    def done(self, task: int, digests: Mapping[TopicPartition, str]) -> int:
        """The task has sent everything, with these digests at its ends; how many records. Another
        attempt may have done that already, whatever rows this one has."""
        self.check()
        found = self._tasks[task]
        if found.is_done:
            return found.records
        for topic_partition, progress in found.progress.items():
            if progress.window or progress.digest != digests.get(topic_partition, START):
                self._fail_for_others(task, topic_partition)
        found.is_done = True
        return found.records

    def leave(self, task: int, attempt: int, now_s: float) -> None:
        """An attempt is gone: what it has goes back, but for what is in doubt."""
        found = self._tasks[task]
        found.attempts.discard(attempt)
        if found.attempt != attempt:
            return
        found.attempt = None
        found.waits_since_s = now_s
        for topic_partition, progress in found.progress.items():
            partition = self._partitions[topic_partition]
            if partition.holder == task and progress.window is None:
                partition.holder = None

    def is_there(self) -> bool:
        """Whether an attempt of any task is."""
        return any(task.attempts for task in self._tasks.values())

    def check_all_done(self, tasks: Sequence[int]) -> None:
        """LostFault unless just these tasks have written, and are done."""
        self.check()
        open_ = [task for task in tasks if task not in self._tasks or not self._tasks[task].is_done]
        begun = set(self._tasks) - set(tasks)
        open_ += sorted(task for task in begun if self._tasks[task].progress)
        if open_:
            raise LostFault(f"task {open_[0]} is not done")
