"""The purgatory: where delayed operations wait for a condition or for their deadline.

As Kafka's DelayedOperationPurgatory. An operation is watched under some keys (a partition, a
group); whoever changes what a key stands for calls `check` with it, and the operations watched
there are asked whether they are complete now. Pure: the time comes in as an argument.

Rules
* Who attends to keys, between operations, is told of their changes, too, and does not count as
  waiting.
* Whoever watches many keys is told which of them changed (`try_complete_of`): it may leave the
  others as it found them last.
* An operation completes exactly once: by a check, by its deadline, or not at all because it was
  cancelled. `is_done` says that it has.
* `try_complete` and `on_expire` may call back into the purgatory: watch others, check other keys
  or the same one.
* A completed operation leaves the watch lists at once. Its deadline stays in the heap without
  it, until it comes up or until the heap is more than twice what waits: each deadline is moved
  once for each that was left behind, so the cost per operation stays constant.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence
    from typing import Any

NEVER_MS = 1 << 62
"""A time that does not come, in milliseconds; whoever has no deadline has this one."""

HEAP_BYPASS = 64
"""Deadlines that are not worth tidying up."""


class DelayedOperation:
    """What waits here; the base of each kind, hashed by identity."""

    __slots__ = ("is_done",)

    def __init__(self) -> None:
        self.is_done = False

    def try_complete(self) -> bool:
        """Complete if the condition holds now: set `is_done`, have the effect, answer True."""
        raise NotImplementedError

    def try_complete_of(self, keys: Sequence[Hashable]) -> bool:
        """Try as `try_complete` does: since it was last asked, only what these keys stand for
        changed."""
        return self.try_complete()

    def on_expire(self) -> None:
        """The deadline has passed and `is_done` was set: answer with what there is."""
        raise NotImplementedError


class Purgatory:
    """Delayed operations by watch key and by deadline."""

    __slots__ = ("_heap", "_sequence", "expired", "waiting", "watched")

    def __init__(self) -> None:
        self.watched: dict[Hashable, dict[DelayedOperation, None]] = {}
        """Operations by watch key; hot code asks `key in purgatory.watched` before a check."""
        # [deadline, sequence, operation or None]: the sequence keeps operations uncompared.
        self._heap: list[list[Any]] = []
        self._sequence = 0
        self.expired = 0
        """How many were ended by their deadline."""
        self.waiting: dict[DelayedOperation, tuple[list[Any], tuple[Hashable, ...]]] = {}
        """What has a deadline, with its place in the heap and its keys."""

    def __len__(self) -> int:
        return len(self.waiting)

    @property
    def delayed(self) -> int:
        """How many have waited here, or do."""
        return self._sequence

    def watch(
        self, operation: DelayedOperation, keys: Iterable[Hashable], deadline_ms: int
    ) -> None:
        """Let an operation wait; the caller has tried to complete it just before."""
        assert not operation.is_done and operation not in self.waiting
        self._sequence += 1
        entry = [deadline_ms, self._sequence, operation]
        keys = tuple(keys)
        self.waiting[operation] = (entry, keys)
        heappush(self._heap, entry)
        self.attend(operation, keys)

    def attend(self, operation: DelayedOperation, keys: Iterable[Hashable]) -> None:
        """Have it asked (`try_complete_of`) when one of these changes, until `leave`. Without
        `watch` it never completes, and has no deadline."""
        watched = self.watched
        for key in keys:
            operations = watched.get(key)
            if operations is None:
                watched[key] = {operation: None}
            else:
                operations[operation] = None

    def leave(self, operation: DelayedOperation, keys: Iterable[Hashable]) -> None:
        """Have it asked no more when these change."""
        watched = self.watched
        for key in keys:
            operations = watched.get(key)
            if operations is not None:  # None when the same key was given twice
                operations.pop(operation, None)
                if not operations:
                    del watched[key]

    def check(self, key: Hashable) -> int:
        """Something about `key` changed: complete what can be; returns how many did."""
        operations = self.watched.get(key)
        if operations is None:
            return 0
        keys = (key,)
        return sum([self._try(operation, keys) for operation in list(operations)])

    def check_together(self, keys: Sequence[Hashable]) -> int:
        """Check as `check` does for each key; who watches several of them is asked once."""
        if len(keys) == 1:
            return self.check(keys[0])
        watched = self.watched
        changed: dict[DelayedOperation, list[Hashable]] = {}
        for key in keys:
            for operation in watched.get(key, ()):
                changed.setdefault(operation, []).append(key)
        return sum([self._try(operation, theirs) for operation, theirs in changed.items()])

    def _try(self, operation: DelayedOperation, keys: Sequence[Hashable]) -> bool:
        # Done already: by a check inside one of these calls, or by its owner.
        if operation.is_done:
            self._forget(operation)
            return False
        if not operation.try_complete_of(keys):
            return False
        self._forget(operation)
        return True

    def expire(self, now_ms: int) -> list[DelayedOperation]:
        """End the operations whose deadline is not after now; returns them."""
        expired = []
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            operation = heappop(heap)[2]
            if operation is None:
                continue
            self._forget(operation)
            if not operation.is_done:
                operation.is_done = True
                operation.on_expire()
                expired.append(operation)
        self.expired += len(expired)
        return expired

    def next_deadline(self) -> int | None:
        """When `expire` has something to do, in ms; None while nothing waits."""
        heap = self._heap
        while heap and heap[0][2] is None:
            heappop(heap)
        return heap[0][0] if heap else None

    def cancel(self, operation: DelayedOperation) -> bool:
        """Let it neither complete nor expire; False if it was not waiting."""
        if operation not in self.waiting:
            return False
        operation.is_done = True
        self._forget(operation)
        return True

    def drop_where(self, predicate: Callable[[DelayedOperation], bool]) -> int:
        """Cancel every operation that the predicate picks; returns how many."""
        dropped = [operation for operation in self.waiting if predicate(operation)]
        for operation in dropped:
            self.cancel(operation)
        return len(dropped)

    def _forget(self, operation: DelayedOperation) -> None:
        waiting = self.waiting.pop(operation, None)
        if waiting is None:
            return
        entry, keys = waiting
        entry[2] = None
        self.leave(operation, keys)
        heap = self._heap
        if len(heap) > HEAP_BYPASS and len(heap) > 2 * len(self.waiting):
            heap[:] = [entry for entry in heap if entry[2] is not None]
            heapify(heap)
