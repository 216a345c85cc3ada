"""Old bugs, put back one at a time: does the simulation find them?

Each was in shmbroker once, or is what a change of one line would make of it. `seeds` name histories
that find it, as of when they were last looked for (`scripts/simulate --old-bugs`); a change
elsewhere may lead a seed another way, so the test looks at further seeds where the named ones miss.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from types import FunctionType
from typing import Any, NamedTuple

from tests.simulation.family.simulate import AHEAD, DELETES, SESSIONS, TIER, TRANSACTIONS, Plan


class Change(NamedTuple):
    """Code of now, and what stands in its place while the bug is back."""

    where: str
    """module:Class.function"""
    code: str
    before: str


class OldBug(NamedTuple):
    """What brings a bug back, and where to look for it."""

    name: str
    what: str
    """What clients suffer."""
    changes: tuple[Change, ...]
    plan: Plan
    """In which kind of histories it is found soonest; any may find it."""
    seeds: tuple[int, ...] = ()
    is_rare: bool = False
    """Less than one seed in twenty finds it: `scripts/simulate --old-bugs` looks for it, the suite
    does not."""


CALM = Plan(fault_s=0.0)
CALM_TRANSACTIONS = Plan(fault_s=0.0, has_transactions=True)
DELETE_KILLS = Plan(True, False, 0.1, ("kill",), has_deletes=True)
KILLS = Plan(True, False, 0.3, ("kill", "kill_amid"), has_transactions=True)

TIER_KILLS = Plan(True, False, 0.2, ("freeze", "kill", "kill_tier"), has_tier=True)


OLD_BUGS = (
    OldBug(
        "asleep-too-soon",
        "a process does not look at its rings again before it sleeps: a lost wake-up",
        (
            Change(
                "shmbroker.processes.child:SleepingChild.sleep",
                "    if self.has_news():\n",
                "    if False:\n",
            ),
        ),
        CALM,
        (17, 50, 77),
    ),
    OldBug(
        "groups-not-flushed",
        "where acks wait for the disk, members of groups wait for a flush that nobody asks for",
        (
            Change(
                "shmbroker.broker.append_acks:AppendAcks.on_stored",
                "self.group_commit.want(partition)",
                "pass",
            ),
        ),
        Plan(True, True, 0.0),
        (1, 2, 3),
    ),
    OldBug(
        "answered-before-the-disk",
        "with one replica, members are told what a power cut undoes",
        (
            Change(
                "shmbroker.broker.served_apis:handler_of",
                "if module.API_KEY in table.GROUPS_OF:",
                "if broker.peers.siblings and module.API_KEY in table.GROUPS_OF:",
            ),
            Change(
                "shmbroker.broker.append_acks:AppendAcks.on_stored",
                "self.group_commit.want(partition)",
                "pass",
            ),
        ),
        Plan(False, True, 0.3, ("cut",)),
        (1, 2, 3),
    ),
    OldBug(
        "ack-before-min-isr",
        "acks=all is answered though fewer replicas than min.insync.replicas have it",
        (
            Change(
                "shmbroker.replica.partition:Partition.count_in_sync",
                "self.is_under_min_in_sync = len(self.in_sync_replicas) < "
                "self.effective_min_in_sync",
                "self.is_under_min_in_sync = False",
            ),
        ),
        Plan(True, False, 0.3, ("freeze",)),
        (2, 3, 6),
    ),
    OldBug(
        "high-watermark-goes-back",
        "a new leader tells the end that it knows, which is behind what was told before (KIP-207)",
        (
            Change(
                "shmbroker.replica.partition:Partition.is_high_watermark_behind",
                "return self.high_watermark < self.epoch_start_offset",
                "return False",
            ),
            Change(
                "shmbroker.replica.partition:Partition.take_over",
                "self.high_watermark = max(self.high_watermark, min(high_watermark, "
                "self.log.log_end_offset))",
                "pass",
            ),
        ),
        Plan(True, False, 0.3, ("kill", "freeze")),
        (4,),
        is_rare=True,
    ),
    OldBug(
        "answered-twice",
        "a network worker ends where a topic can't be created while no controller is there",
        (
            Change(
                "shmbroker.gateway.forwarding:PlainApis._answer_here",
                "            request.decoded = (module, decoded)  # for `finish_again`, perhaps "
                "at once\n"
                "            answer = module.answer(self.gateway, request, decoded)\n"
                "            if answer is None:\n",
                "            answer = module.answer(self.gateway, request, decoded)\n"
                "            if answer is None:\n"
                "                request.decoded = (module, decoded)\n",
            ),
        ),
        Plan(fault_s=0.3, faults=("kill",)),
        (4, 25, 36),
    ),
    OldBug(
        "asked-while-booting",
        "who asks while it boots gets no answer once it runs",
        (
            Change(
                "shmbroker.ipc.operation_adapter:ForwardedCall._answer",
                "if self.peer.deaths == self.deaths:",
                "if self.peer.incarnation == self.deaths + 1:",
            ),
        ),
        CALM,
        (0, 2, 3),
    ),
    OldBug(
        "sequences-forgotten",
        "a log that is opened again does not know its producers: a retry is stored twice",
        (
            Change(
                "shmbroker.log.recovery.producers:_rebuild",
                "    log.producers.clear()\n",
                "    return\n",
            ),
        ),
        Plan(fault_s=0.3, faults=("kill", "kill_amid")),
        (7, 8, 23),
    ),
    OldBug(
        "followed-too-soon",
        "a successor starts before all have acknowledged the death: its rings are reset under it",
        (
            Change(
                "shmbroker.processes.acknowledgements:Acknowledgements.late",
                "words[counters.acknowledgement(other, index)] != incarnation",
                "False",
            ),
        ),
        Plan(fault_s=0.3, faults=("kill", "kill_amid")),
        (0, 1, 2),
    ),
    OldBug(
        "lost-peer-not-failed",
        "requests that were with a broker that died get no answer",
        (
            Change(
                "shmbroker.gateway.results:Results.on_peer_lost",
                "self.fail_pending(peer)",
                "pass",
            ),
        ),
        Plan(fault_s=0.3, faults=("kill", "kill_amid")),
        (8, 0, 1),
    ),
    OldBug(
        "decision-not-flushed",
        "a controller answers before its disk has the decision: a power cut takes a topic away",
        (
            Change(
                "shmbroker.controller.raft.voter:Voter.append",
                "self.log.flush()",
                "pass",
            ),
        ),
        Plan(False, True, 0.3, ("cut",)),
        (2, 3, 4),
    ),
    OldBug(
        "held-for-ever",
        "answers that wait for replicas are not sent when these have what is needed",
        (
            Change(
                "shmbroker.broker.coordinators:Coordinators.on_high_watermark",
                "        self.groups.on_high_watermark(partition)\n",
                "        pass\n",
            ),
        ),
        Plan(True, None, 0.0),
        (1, 2, 3),
    ),
    OldBug(
        "damage-not-seen",
        "a start after a power cut takes torn batches for whole ones",
        (
            Change(
                "shmbroker.log.segment:Segment.good_batches",
                "if crc32c(data[at + ATTRIBUTES_POSITION : at + size]) != header[H_CRC]:",
                "if False:",
            ),
        ),
        Plan(None, True, 0.3, ("cut",)),
        (10, 12, 15),
    ),
    OldBug(
        "stable-ahead",
        "the end of what is committed is told as if no transaction were open",
        (
            Change(
                "shmbroker.log.producer_state:ProducerState.stable_end",
                "first = next(iter(self.open.values()), high_watermark)",
                "first = high_watermark",
            ),
        ),
        CALM_TRANSACTIONS,
        (0, 1, 2),
    ),
    OldBug(
        "prepare-forgotten",
        "a coordinator that takes over does not end what its predecessor had decided",
        (
            Change(
                "shmbroker.groups.transactions.coordinator:TransactionCoordinator._load",
                "            self.endings.begin(entry)\n",
                "            pass\n",
            ),
        ),
        KILLS,
        (4, 5, 8),
    ),
    OldBug(
        "marker-twice",
        "a marker is written once more some time later, and ends a part of the next transaction",
        (
            Change(
                "shmbroker.broker.transaction_exchange:TransactionExchange._on_written",
                "        left.discard(where)\n",
                "        left.discard(where)\n        self._write_later(markers, [where])\n",
            ),
            Change(
                "shmbroker.broker.transaction_exchange:TransactionExchange._ask_for_markers",
                "if markers.is_void or markers not in self._left:",
                "if markers.is_void:",
            ),
        ),
        CALM_TRANSACTIONS,
        (6, 7, 10),
    ),
    OldBug(
        "end-not-repeated",
        "a producer that has not heard that its end was done is fenced when it asks again",
        (
            Change(
                "shmbroker.groups.transactions.transaction:is_retry_of_end",
                "if not known.bumps_epoch:",
                "if known:",
            ),
        ),
        Plan(None, None, 0.05, ("leave",), has_transactions=True),
        (39, 57),
        is_rare=True,
    ),
    OldBug(
        "pending-offsets-shown",
        "members are told offsets of a transaction that is not ended, or was aborted",
        (
            Change(
                "shmbroker.groups.offset_coordinator:OffsetCoordinator._commit",
                "            if producer is None:\n                store.put",
                "            if True:\n                store.put",
            ),
        ),
        CALM_TRANSACTIONS,
        (0, 1, 2),
    ),
    OldBug(
        "not-verified",
        "a leader takes batches of a transaction that no coordinator knows of",
        (
            Change(
                "shmbroker.broker.transaction_exchange:TransactionExchange.verify",
                "if not may_add and not self.is_verifying:",
                "if True:",
            ),
        ),
        CALM_TRANSACTIONS,
        (2, 5, 8),
    ),
    OldBug(
        "aborted-not-told",
        "readers of committed records get those of aborted transactions",
        (
            Change(
                "shmbroker.broker.read_lookup:Lookup._read",
                "if isolation != READ_COMMITTED or not log.aborted or not found[2]:",
                "if True:",
            ),
        ),
        CALM_TRANSACTIONS,
        (0, 1, 3),
    ),
    OldBug(
        "promised-id-unknown",
        "a producer whose epochs are used up is refused while its last transaction ends",
        (
            Change(
                "shmbroker.groups.transactions.transaction:Transaction.is_promised",
                "return self.state in PREPARED and producer_id == self.next_producer_id",
                "return False",
            ),
        ),
        TRANSACTIONS,
        (153,),
        is_rare=True,
    ),
    OldBug(
        "flushed-a-turn-later",
        "the first batch of a transaction waits for the next turn of an idle broker",
        (
            Change(
                "shmbroker.broker.broker:Broker.run_once",
                "    had_work |= self.coordinators.run_due(self._steady_ms)\n"
                "    commit = self.acks.group_commit\n"
                "    if commit.waiting or commit.wanted:\n"
                "        commit.start()  # behind all that may append\n",
                "    commit = self.acks.group_commit\n"
                "    if commit.waiting or commit.wanted:\n        commit.start()\n"
                "    had_work |= self.coordinators.run_due(self._steady_ms)\n",
            ),
        ),
        Plan(False, True, 0.0, has_transactions=True),
        (9, 12, 26),
    ),
    OldBug(
        "settled-unattended",
        "a fetch session is not told of records in a partition that had none before",
        (
            Change(
                "shmbroker.broker.read_sessions:ReadSession._settle",
                "self.reader.purgatory.attend(self, (self.rows[place][P_KEY],))",
                "pass",
            ),
        ),
        SESSIONS,
        (0, 1, 2),
    ),
    OldBug(
        "offline-untold",
        "whoever waits for records is not told that the disk has failed",
        (
            Change(
                "shmbroker.broker.partition_store:PartitionStore.fence",
                "self.on_readable(partition.key)",
                "pass",
            ),
        ),
        SESSIONS,
        (2, 18, 29),
        is_rare=True,
    ),
    OldBug(
        "ahead-of-the-watermark",
        "who reads on is told of records that are not committed",
        (
            Change(
                "shmbroker.broker.read_ahead:ReadAhead.run",
                "end = partition.high_watermark",
                "end = log.log_end_offset",
            ),
        ),
        AHEAD,
        (34, 45),
    ),
    OldBug(
        "deleted-at-the-leader",
        "DeleteRecords is answered before other replicas know: the next leader has the records",
        (
            Change(
                "shmbroker.broker.replicated:Deleted._low_watermark",
                "partition.low_watermark(counted)",
                "partition.low_watermark(())",
            ),
        ),
        DELETE_KILLS,
        (20, 1, 3),
    ),
    OldBug(
        "deleted-until-it-dies",
        "a follower that is killed has forgotten what was deleted, and leads",
        (
            Change(
                "shmbroker.broker.partition_store:PartitionStore.raise_log_start",
                "    raise_start(partition.log, offset)\n",
                "    from shmbroker.log.retiring import advance_log_start\n"
                "    advance_log_start(partition.log, offset)\n",
            ),
        ),
        DELETES,
        (40, 58),
    ),
    OldBug(
        "begins-amid-a-batch",
        "a new replica of a log that begins amid a batch, as records were deleted, copies nothing",
        (
            Change(
                "shmbroker.broker.replication.replica_fetcher:ReplicaFetcher._append",
                "log.log_start_offset < log.log_end_offset",
                "True",
            ),
        ),
        Plan(True, False, 1.0, ("lose",), has_deletes=True),
        (1, 12, 49),
    ),
    OldBug(
        "list-from-before-a-copy",
        "a list of the store that is older than a copy hides it, and the segment is gone here",
        (
            Change(
                "shmbroker.broker.tiering.lists:Lists._take",
                "for copy in remote.copied:",
                "for copy in ():",
            ),
        ),
        TIER_KILLS,
        (5,),
        is_rare=True,
    ),
    OldBug(
        "gone-before-the-copy",
        "local retention does not wait for copies: what only it has is lost",
        (
            Change(
                "shmbroker.broker.tiering.retention:_retain_local",
                "elif number < covered:",
                "else:",
            ),
        ),
        TIER,
        (0, 1, 3),
    ),
    OldBug(
        "halves-stay",
        "what an interrupted copy has left is in the store for ever",
        (
            Change(
                "shmbroker.tier.transfer:load_segments",
                "if orphans:",
                "if False:",
            ),
        ),
        TIER,
        (15, 18, 22),
        is_rare=True,
    ),
)


@contextlib.contextmanager
def put_back(bug: OldBug) -> Iterator[None]:
    """While in here, the bug is back; AssertionError if the code has changed too much."""
    with contextlib.ExitStack() as stack:
        for change in bug.changes:
            stack.enter_context(_changed(change))
        yield


@contextlib.contextmanager
def _changed(change: Change) -> Iterator[None]:
    module_name, _, path = change.where.partition(":")
    module = importlib.import_module(module_name)
    owner: Any = module
    *owners, name = path.split(".")
    for each in owners:
        owner = getattr(owner, each)
    now = inspect.getattr_static(owner, name)
    function = now.fget if isinstance(now, property) else now
    assert isinstance(function, FunctionType), change.where
    source = textwrap.dedent(inspect.getsource(function)).removeprefix("@property\n")
    assert source.count(change.code) == 1, f"{change.where} has no such code any more"
    source = source.replace(change.code, change.before)
    made: dict[str, Any] = {}
    annotated = "from __future__ import annotations\n" + source
    exec(compile(annotated, module.__file__ or "", "exec"), module.__dict__, made)
    new: Any = made[name]
    setattr(owner, name, property(new) if isinstance(now, property) else new)
    try:
        yield
    finally:
        setattr(owner, name, now)
