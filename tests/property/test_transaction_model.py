"""Transactional ids against a model that says in a few lines what each may be told, and when.

Producers come, add, end, ask again with what they had before, and come as successors; time passes,
markers are written or take long, the replicas lag, and coordinators move. All the while: no
decision is undone, no epoch goes back, and every marker of an epoch is of one kind.
"""

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shmbroker.groups.transactions.producer_requests import WAIT_MS
from shmbroker.groups.transactions.transaction import NO_ID, STATE_NAMES, Transaction
from shmbroker.wire.error_codes import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    PRODUCER_FENCED,
    TRANSACTIONAL_ID_NOT_FOUND,
)
from tests.support.examples import examples
from tests.unit.groups.transactions_at_work import Answer, Broker

TIMEOUT_MS = 60_000
NAMES = st.sampled_from("xyz")
PARTITIONS = st.tuples(st.sampled_from("tu"), st.integers(0, 2))


class Known:
    """What the model knows of one id."""

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.epoch = 0
        self.open: set[tuple[str, int]] = set()
        self.since_ms = 0
        self.ending: bool | None = None
        """Whether what is ending is committed; None: nothing is."""
        self.last: bool | None = None
        """How the last transaction ended; None: a producer has begun since."""

    def end(self, is_commit: bool) -> None:
        self.ending = is_commit
        self.epoch += 1

    def marked(self) -> None:
        self.last, self.ending = self.ending, None
        self.open = set()


class TransactionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.broker = Broker(Path(self.directory.name), partitions=2)
        self.ids: dict[str, Known] = {}
        self.kinds: dict[tuple[int, int], bool] = {}

    def teardown(self) -> None:
        self.settle()
        for name, known in self.ids.items():
            assert known.ending is None
            self.compare(name, known)
        self.directory.cleanup()

    # ── help ────────────────────────────────────────────────────────────────────────────────────

    def settle(self) -> None:
        """Replicas catch up, markers are written: what is ending is over."""
        while True:
            self.broker.catch_up()
            sent = self.broker.mark()
            for markers in sent:
                known = self.ids[markers.entry.transactional_id]
                if known.ending is None:
                    continue
                assert (markers.producer_id, markers.producer_epoch) == (
                    known.producer_id,
                    known.epoch,
                )
                assert markers.is_commit == known.ending
                assert markers.partitions == known.open
                self.check_kind(markers.producer_id, markers.producer_epoch, markers.is_commit)
            for known in self.ids.values():
                if known.ending is not None:
                    known.marked()
            if not sent:
                return

    def check_kind(self, producer_id: int, epoch: int, is_commit: bool) -> None:
        assert self.kinds.setdefault((producer_id, epoch), is_commit) == is_commit

    def finish(self, answer: Answer, known: Known | None, is_quick: bool) -> bool:
        """Have a waiting operation told; whether what it waited for came in time."""
        if not answer.is_waiting:
            return False
        assert known is not None and known.ending is not None
        if not is_quick:
            self.broker.wait(WAIT_MS)
            assert answer.error == CONCURRENT_TRANSACTIONS
            return False
        known.marked()
        self.broker.catch_up()
        for each in self.ids.values():
            if each.ending is not None and not each.open:
                each.marked()  # there was nothing to mark, and the replica has it now
        for markers in self.broker.mark():
            entry = markers.entry.transactional_id
            self.check_kind(markers.producer_id, markers.producer_epoch, markers.is_commit)
            other = self.ids[entry]
            if other.ending is not None:
                other.marked()
        assert not answer.is_waiting
        return True

    def compare(self, name: str, known: Known) -> None:
        found = self.broker.state(name)
        assert isinstance(found, Transaction)
        assert (found.producer_id, found.producer_epoch) == (known.producer_id, known.epoch)
        state = STATE_NAMES[found.state]
        if known.ending is not None:
            assert state == ("PrepareCommit" if known.ending else "PrepareAbort")
        elif known.open:
            assert state == "Ongoing"
        elif known.last is None:
            assert state == "Empty"
        else:
            assert state == ("CompleteCommit" if known.last else "CompleteAbort")
        assert found.partitions == known.open

    @invariant()
    def is_as_the_model(self) -> None:
        for name, known in self.ids.items():
            if not known.open and known.ending is not None and not self.lags():
                known.marked()  # there was nothing to mark
            self.compare(name, known)

    def lags(self) -> bool:
        return any(each.followers for each in self.broker.partitions)

    # ── rules ───────────────────────────────────────────────────────────────────────────────────

    @rule(name=NAMES, is_quick=st.booleans())
    def a_producer_comes(self, name: str, is_quick: bool) -> None:
        answer = self.broker.init(name, timeout_ms=TIMEOUT_MS)
        known = self.ids.get(name)
        if known is None:
            made = answer.known
            assert made.producer_epoch == 0
            self.ids[name] = Known(made.producer_id)
            return
        if known.open and known.ending is None:
            known.end(is_commit=False)
        if known.ending is not None and not self.finish(answer, known, is_quick):
            return
        known.epoch += 1
        known.last = None
        assert (answer.known.producer_id, answer.known.producer_epoch) == (
            known.producer_id,
            known.epoch,
        )

    @rule(name=NAMES, where=PARTITIONS, is_quick=st.booleans(), back=st.integers(0, 2))
    def it_adds(self, name: str, where: tuple[str, int], is_quick: bool, back: int) -> None:
        known = self.ids.get(name)
        answer = Answer()
        producer_id = known.producer_id if known is not None else NO_ID
        epoch = known.epoch - back if known is not None else 0
        self.broker.transactions.requests.add_partitions(
            name, producer_id, epoch, [where], 2, answer
        )
        if known is None:
            assert answer.error == INVALID_PRODUCER_ID_MAPPING
        elif back:
            assert answer.error == PRODUCER_FENCED
        else:
            if known.ending is not None and not self.finish(answer, known, is_quick):
                return
            assert answer.error == 0
            if not known.open:
                known.since_ms = self.broker.now_ms
            known.open.add(where)

    @rule(
        name=NAMES, is_commit=st.booleans(), is_quick=st.booleans(), back=st.sampled_from([0, 1, 2])
    )
    def it_ends(self, name: str, is_commit: bool, is_quick: bool, back: int) -> None:
        known = self.ids.get(name)
        if known is None:
            return
        answer = Answer()
        epoch = known.epoch - back
        self.broker.transactions.requests.end(name, known.producer_id, epoch, is_commit, 2, answer)
        if known.ending is not None and not self.finish(answer, known, is_quick):
            return  # whoever asks is told so, and is decided when the last end is over
        is_open, last = bool(known.open), known.last
        if back == 2 or (back == 1 and (is_open or last is None)):
            assert answer.error == PRODUCER_FENCED
        elif back == 1:
            assert answer.error == (0 if last == is_commit else INVALID_TXN_STATE)
        elif is_open or not is_commit:
            known.end(is_commit)
            if not is_open and not self.lags():
                known.marked()
            assert answer.known.producer_epoch == known.epoch
        else:
            assert answer.error == INVALID_TXN_STATE

    @rule(ms=st.integers(1, TIMEOUT_MS + 1))
    def time_passes(self, ms: int) -> None:
        end_ms = self.broker.now_ms + ms
        self.broker.wait(ms)
        for known in self.ids.values():
            late = known.since_ms + TIMEOUT_MS <= end_ms
            if known.open and known.ending is None and late:
                known.end(is_commit=False)

    @rule()
    def markers_are_written(self) -> None:
        self.settle()

    @rule()
    def a_replica_lags(self) -> None:
        self.settle()
        self.broker.replicate_slowly()

    @rule()
    def the_replica_goes(self) -> None:
        self.settle()
        for partition in self.broker.partitions:
            partition.replicas = partition.in_sync_replicas = (1,)
            partition.followers = {}
            partition.count_in_sync()

    @rule()
    def the_coordinator_moves(self) -> None:
        for partition in self.broker.partitions:
            partition.leader_epoch += 1
        self.broker.restart()
        # What had nothing to mark is complete, unless the replicas lag.
        assert self.broker.state("nobody") == TRANSACTIONAL_ID_NOT_FOUND


TransactionMachine.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=40)
TestTransactions = TransactionMachine.TestCase


def test_nothing_to_mark_is_over_when_another_id_has_the_replica_catch_up() -> None:
    """Found by the machine: y's producer has the replica catch up, and so x's end is complete."""
    machine = TransactionMachine()
    try:
        machine.a_replica_lags()
        machine.a_producer_comes("x", is_quick=False)
        machine.a_producer_comes("y", is_quick=False)
        machine.it_adds("y", ("t", 0), is_quick=False, back=0)
        machine.it_ends("x", is_commit=False, is_quick=False, back=0)
        machine.a_producer_comes("y", is_quick=True)
        machine.is_as_the_model()
    finally:
        machine.teardown()


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("back", [0, 1, 2])
def test_who_ends_while_the_last_end_is_not_over_waits(is_commit: bool, back: int) -> None:
    """Found by the machine: it is not fenced, whatever epoch it names."""
    machine = TransactionMachine()
    try:
        machine.a_replica_lags()
        machine.a_producer_comes("x", is_quick=False)
        machine.it_ends("x", is_commit=False, is_quick=False, back=0)
        machine.it_ends("x", is_commit=is_commit, is_quick=False, back=back)
        machine.is_as_the_model()
    finally:
        machine.teardown()
