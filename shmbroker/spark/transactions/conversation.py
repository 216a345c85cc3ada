"""What one attempt of a task asks of its run, once it has entered, and the answers.

    claim       this attempt sends; others of the task wait
    lease       a partition that nobody else sends to now
    sending     a window of batches is on its way; sent: it is there
    give_back   others may have the partition
    done        all of the task's rows are sent; failed: they can't be

A question that must wait is answered "not yet" after a while, and the task asks again. `leases`
decides; here it is asked under the lock of the run's transaction. LostFault if another run has
begun meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from shmbroker import clock
from shmbroker.spark.transactions.leases import LostFault
from shmbroker.spark.transactions.messages import Fields
from shmbroker.spark.transactions.series import SeriesState

PATIENCE_S = 1.0
"""A question that can't be answered yet is answered so after this time, and asked again: so it is
noticed that nobody is there any more."""

T = TypeVar("T")


class Conversation:
    """The conversation with one attempt of a task."""

    def __init__(self, transaction: SeriesState, run: int, task: int, attempt: int) -> None:
        self._transaction = transaction
        self._run = run
        self._task = task
        self._attempt = attempt

    def answer(self, asked: Fields) -> Fields:
        """The answer to one question."""
        task, one = self._task, self._transaction
        what = asked["what"]
        with one.of(self._run) as leases:
            if what == "claim":
                mine = self._until(lambda: leases.try_claim(task, self._attempt), False)
                if not mine:
                    return {"is_mine": mine}
                one.add([(topic, index) for topic, index in asked["partitions"]])
                return {"is_mine": True} | one.identity()
            if what == "lease":
                wanted = [(topic, index) for topic, index in asked["wanted"]]
                granted = self._until(
                    lambda: leases.try_lease(task, wanted, clock.monotonic()),
                    None,
                    PATIENCE_S if asked["waits"] else 0.0,
                )
                if granted is None:
                    return {"partition": None}
                progress = leases.progress(task, granted)
                window = None if progress.window is None else progress.window[0]
                return {"partition": granted, "batches": progress.batches, "window": window}
            if what == "done":
                digests = {(topic, index): digest for topic, index, digest in asked["digests"]}
                return {"records": leases.done(task, digests)}
            if what == "failed":
                leases.fail(asked["reason"])
                return {}
            topic, index = asked["partition"]
            if what == "sending":
                sequence = leases.sending(
                    task,
                    (topic, index),
                    asked["batches"],
                    asked["records"],
                    asked["before"],
                    asked["after"],
                )
                return {"sequence": sequence}
            if what == "sent":
                leases.sent(task, (topic, index))
            else:
                assert what == "give_back"
                leases.give_back(task, (topic, index))
            return {}

    def _until(self, try_: Callable[[], T], not_yet: object, patience_s: float = PATIENCE_S) -> T:
        """What `try_` gives, tried at each change, for a while. Needs the lock."""
        deadline = clock.monotonic() + patience_s
        while True:
            found = try_()
            left_s = deadline - clock.monotonic()
            if found is not not_yet or left_s <= 0:
                return found
            self._transaction.changed.wait(left_s)
            if self._transaction.run != self._run:
                raise LostFault("another run of this write has begun")
