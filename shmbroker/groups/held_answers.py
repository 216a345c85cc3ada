"""Answers of a group coordinator that wait until nothing in them can be lost.

A coordinator answers from memory, and memory is what its log says, up to its end. While in-sync
replicas lack some of that, a leader that takes over may lack it too: an offset that somebody was
told would go back. So an answer waits until they have what the log held when it was given.

* They leave in the order in which they came, for each partition.
* When the partition gets another leader, each goes out as an error that clients retry.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.groups.caller import HeldCaller
    from shmbroker.replica.partition import Partition

    Needs = list[tuple[Partition, int]]


class _Held(NamedTuple):
    """An answer that waits for one partition, and then for others."""

    end_offset: int
    """The high watermark that it waits for."""
    call: HeldCaller
    body: dict[str, Any]
    grant: tuple[int, int] | None
    needs: Needs
    """What is left after this partition."""


class HeldAnswers:
    """Those of one coordinator, by the partition they wait for."""

    __slots__ = ("_by_partition",)

    def __init__(self) -> None:
        self._by_partition: dict[Partition, deque[_Held]] = {}
        """In the order of their offsets."""

    def __len__(self) -> int:
        return sum(map(len, self._by_partition.values()))

    def hold(
        self,
        partitions: list[Partition],
        call: HeldCaller,
        body: dict[str, Any],
        grant: tuple[int, int] | None,
    ) -> bool:
        """Keep an answer that rests on these partitions; False if it may go out at once."""
        needs = [
            (partition, partition.log.log_end_offset)
            for partition in partitions
            if partition.high_watermark < partition.log.log_end_offset
        ]
        return self._hold(needs, call, body, grant)

    def _hold(
        self, needs: Needs, call: HeldCaller, body: dict[str, Any], grant: tuple[int, int] | None
    ) -> bool:
        for number, (partition, end_offset) in enumerate(needs):
            if partition.high_watermark < end_offset:
                held = self._by_partition.setdefault(partition, deque())
                held.append(_Held(end_offset, call, body, grant, needs[number + 1 :]))
                return True
        return False

    def release(self, partition: Partition) -> None:
        """Its high watermark has moved: send what has waited for that."""
        held = self._by_partition.get(partition)
        if held is None:
            return
        while held and held[0].end_offset <= partition.high_watermark:
            _, call, body, grant, needs = held.popleft()
            if not self._hold(needs, call, body, grant):
                call.reply(body, grant)
        if not held:
            self._by_partition.pop(partition, None)

    def fail(self, partition: Partition, error_code: int) -> None:
        """It has another leader: what waits for it may never be true."""
        for each in self._by_partition.pop(partition, ()):
            _set_errors(each.body, error_code)
            each.call.reply(each.body)


def _set_errors(body: Any, error_code: int) -> None:
    """Every error code in an answer, as deep as it goes."""
    if isinstance(body, dict):
        if "error_code" in body:
            body["error_code"] = error_code
        body = list(body.values())
    if isinstance(body, list):
        for part in body:
            _set_errors(part, error_code)
