"""What a broker tells the controller of its logs (TellLogEnds): where they end, while it is in
doubt who has what; that one lacks what it had; that its leader lacks what it has.

Rules of this file:
* One request under way, of PARTITIONS_MAX at most; what is not answered is told again.
* A replica that lacks something does not lead until the controller has answered: by then it has
  decided with that knowledge (`Partition.leads_from_epoch`). Where nobody leads then, it is told
  again now and then, as the controller that knew may be another one now.
"""

from __future__ import annotations

from shmbroker.apis.controller.tell_log_ends import HAS, LACKS
from shmbroker.ids import partition_key
from shmbroker.wire.error_codes import NONE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from shmbroker.ipc.asking import OnAnswer
    from shmbroker.replica.partition import Partition

PARTITIONS_MAX = 1000
"""The partitions in one request: what fits onto the controller's ring several times."""

EPOCHS_MAX = 16
"""Leader epochs of one log that are told."""

NO_EPOCH = 1 << 31
"""More than any leader epoch."""


class LogEnds:
    """What one broker has to tell.

    ask: sends a TellLogEnds request but for the broker's own id and epoch, and tells the
    answer. on_decided(partition): it may lead now, if the metadata says so.
    """

    __slots__ = ("_ask", "_asked", "_broker_id", "_in_sync", "_is_last_asked", "_is_starting",
                 "_lacking", "_on_decided", "_rests", "is_told", "waiting")  # fmt: skip

    def __init__(
        self,
        broker_id: int,
        ask: Callable[[dict[str, Any], OnAnswer], bool],
        on_decided: Callable[[Partition], None],
    ) -> None:
        self._broker_id = broker_id
        self._ask = ask
        self._on_decided = on_decided
        self.waiting: dict[Partition, int] = {}
        """Partitions to tell of, with the state to tell."""
        self._asked: dict[Partition, int] | None = None
        self._in_sync: set[bytes] = set()
        self._rests = False
        """Whether a refusal makes it rest, until `look_again`."""
        self._is_starting = False
        """What is told is all that this broker has, and the controller waits for the last of it."""
        self._is_last_asked = False
        self.is_told = False
        """Whether all of it was told."""
        self._lacking: set[Partition] = set()
        """Partitions of which it was told that they lack something, until somebody leads them."""

    def tell_all(self, partitions: Iterable[Partition], in_sync: set[bytes]) -> None:
        """Tell, at a start in doubt, where these end, which are all that have other replicas; of
        those that are not `in_sync` (by their keys) the last leader epochs, too."""
        self.waiting.update((partition, HAS) for partition in partitions)
        self._in_sync = in_sync
        self._is_starting, self.is_told = True, False

    def tell(self, partition: Partition, state: int) -> None:
        """Tell of one of which more is known than where it ends."""
        if state == LACKS:
            partition.leads_from_epoch = NO_EPOCH
            self._lacking.add(partition)
        self.waiting[partition] = state

    def forget(self, partition: Partition) -> None:
        """Forget a partition whose log goes."""
        self.waiting.pop(partition, None)
        self._lacking.discard(partition)

    def look_again(self) -> None:
        """Try again now and then, and tell again of what nobody leads."""
        self._rests = False
        for partition in list(self._lacking):
            if partition.leader_id >= 0 and partition.leads_from_epoch != NO_EPOCH:
                self._lacking.discard(partition)
            else:
                self.waiting.setdefault(partition, LACKS)

    def run(self) -> None:
        """Tell what waits, unless an answer is still to come."""
        if self._rests or self._asked is not None or not (self.waiting or self._is_starting):
            return
        asked = dict(list(self.waiting.items())[:PARTITIONS_MAX])
        topics: dict[bytes, list[dict[str, Any]]] = {}
        for partition, state in asked.items():
            log = partition.log
            topics.setdefault(partition.topic_id, []).append(
                {
                    "partition_index": partition.partition,
                    "state": state,
                    "leader_epoch": partition.leader_epoch,
                    "last_epoch": log.leader_epochs.epoch_at(log.log_end_offset - 1),
                    "end_offset": log.log_end_offset,
                    "epochs": self._epochs(partition, state),
                }
            )
        is_last = self._is_starting and len(asked) == len(self.waiting)
        rows = [{"topic_id": topic_id, "partitions": rows} for topic_id, rows in topics.items()]
        if self._ask({"is_last": is_last, "topics": rows}, self.on_answer):
            self._asked, self._is_last_asked = asked, is_last
            for partition in asked:
                del self.waiting[partition]

    def _epochs(self, partition: Partition, state: int) -> list[dict[str, int]]:
        if state != HAS or partition.key in self._in_sync:
            return []
        last = partition.log.leader_epochs.entries[-EPOCHS_MAX:]
        return [{"epoch": epoch, "start_offset": start} for epoch, start in last]

    def on_answer(self, answer: dict[str, Any] | None) -> None:
        """The controller has answered; None: it is dead, or another one is asked."""
        asked, self._asked = self._asked or {}, None
        if answer is None or answer["error_code"] != NONE:
            self.waiting = asked | self.waiting
            self._rests = True
            return
        if self._is_last_asked:
            self._is_starting, self.is_told = False, True
        leaders = {
            partition_key(topic["topic_id"], row["partition_index"]): row
            for topic in answer["topics"]
            for row in topic["partitions"]
        }
        for partition, state in asked.items():
            row = leaders.get(partition.key)
            if state != LACKS or row is None:
                continue
            # Who is the leader now is that by a decision that knows of it; so is every later one.
            is_elected = row["leader_id"] == self._broker_id
            partition.leads_from_epoch = row["leader_epoch"] + (not is_elected)
            self._on_decided(partition)
