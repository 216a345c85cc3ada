"""Answers of a group coordinator that wait until nothing in them can be lost.

A coordinator answers from memory, and memory is what its log says, up to its end. While in-sync
replicas lack some of that, a leader that takes over may lack it too: an offset that somebody was
told would go back. So an answer waits until they have what the log held when it was given.

* They leave in the order in which they came, for each partition.
* When the partition gets another leader, each goes out as an error that clients retry; and so does
  one that was still being made, in steps.
"""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.replica.offset_waits import OffsetWaits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.groups.caller import HeldCaller
    from shmbroker.replica.partition import Partition

    Needs = list[tuple[Partition, int]]


_ERROR_FIELDS = ("error_code", "partition_error_code")


class _Held(NamedTuple):
    """An answer that waits for one partition, and then for others."""

    call: HeldCaller
    body: dict[str, Any]
    grant: tuple[int, int] | None
    needs: Needs
    """What is left after this partition."""


class HeldAnswers(OffsetWaits[_Held]):
    """The answers of one coordinator that wait until what they tell is replicated."""

    __slots__ = ()

    def hold(
        self, needs: Needs, call: HeldCaller, body: dict[str, Any], grant: tuple[int, int] | None
    ) -> bool:
        """Keep an answer until each of these (partition, end offset) is reached; False if all
        are."""
        return self._hold(_Held(call, body, grant, needs))

    def _hold(self, held: _Held) -> bool:
        for number, (partition, end_offset) in enumerate(held.needs):
            if partition.high_watermark < end_offset:
                rest = held.needs[number + 1 :]
                self.wait(partition, end_offset, held._replace(needs=rest))
                return True
        return False

    def release(self, partition: Partition) -> None:
        """Send the answers that have waited for a higher high watermark of this partition."""
        for held in self.due(partition):
            if not self._hold(held):
                held.call.reply(held.body, held.grant)

    def fail(self, partition: Partition, error_code: int) -> None:
        """Refuse what waits for a partition that has another leader: it may never be true."""
        for held in self.take(partition):
            refuse(held.body, error_code)
            held.call.reply(held.body)


def refuse(body: dict[str, Any], error_code: int) -> None:
    """Let an answer say nothing but an error."""
    body["error_code"] = error_code  # a good answer may have none
    _set_errors(body, error_code)


def _set_errors(body: Any, error_code: int) -> None:
    """Set every error code in an answer, as deep as it goes."""
    if isinstance(body, dict):
        for name in _ERROR_FIELDS:
            if name in body:
                body[name] = error_code
        body = list(body.values())
    if isinstance(body, list):
        for part in body:
            _set_errors(part, error_code)
