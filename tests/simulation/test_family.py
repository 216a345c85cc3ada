"""The whole family by seed. More of them: `scripts/simulate`."""

from pathlib import Path
from typing import Any

import pytest

from shmbroker.broker.replication.cutting import Cutting
from shmbroker.gateway.event_loop import EventLoop
from shmbroker.gateway.fetch_ahead import FetchAhead
from shmbroker.gateway.lending import Lender
from shmbroker.guests.straight import StraightWay
from shmbroker.kernels import native
from shmbroker.tier import transfer
from tests.simulation.family.old_bugs import OLD_BUGS, OldBug, put_back
from tests.simulation.family.simulate import (
    AHEAD,
    ANY,
    DELETES,
    GUESTS,
    MOVES,
    SESSIONS,
    TIER,
    TIER_SHIFTS,
    TIER_TRANSACTIONS,
    TRANSACTIONS,
    Plan,
    Simulation,
    simulate,
    simulate_ahead,
    simulate_deletes,
    simulate_guests,
    simulate_moves,
    simulate_sessions,
    simulate_tier,
    simulate_tier_shifts,
    simulate_tier_transactions,
    simulate_transactions,
)
from tests.simulation.family.transactional import Instance

ROOT = Path(__file__).parents[2]
SEEDS = 140
TRANSACTION_SEEDS = 20
"""A history with transactions takes two to three times as long."""
GUEST_SEEDS = SESSION_SEEDS = DELETE_SEEDS = 10
AHEAD_SEEDS = 6
TIER_SEEDS = 8
TIER_PER_TEST = 4
TIER_SHIFT_SEEDS = 5
TIER_TRANSACTION_SEEDS = (9,)
MOVES_SEEDS = (0, 1, 3, 5)
PER_TEST = 10
FURTHER_SEEDS = 60
"""Looked at where the named ones find nothing, as a change elsewhere leads them another way."""
PLANS = {
    "family": ANY,
    "transactions": TRANSACTIONS,
    "guests": GUESTS,
    "sessions": SESSIONS,
    "ahead": AHEAD,
    "deletes": DELETES,
    "tier": TIER,
    "tier-shifts": TIER_SHIFTS,
    "tier-transactions": TIER_TRANSACTIONS,
    "moves": MOVES,
}
KEPT = [
    (int(line.split()[1]), PLANS[line.split()[0]])
    for line in (Path(__file__).parent / "kept_seeds.txt").read_text().splitlines()
    if line.split()[0] in PLANS
]
KEPT_OF_A_KIND = [
    (7, Plan(True, False, 0.3, ("hang", "kill"))),
    (16, Plan(True, False, 0.3, ("hang", "kill"))),
    (15, Plan(True, False, 0.2, ("freeze", "kill", "kill_tier"), has_tier=True)),
]


@pytest.mark.parametrize("seed, plan", KEPT + KEPT_OF_A_KIND)
def test_seeds_that_once_failed(seed: int, plan: Plan) -> None:
    simulate(seed, plan)


@pytest.mark.parametrize("first", range(PER_TEST, SEEDS, PER_TEST))
def test_seeds(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        simulate(seed)


@pytest.mark.parametrize("first", range(PER_TEST, TRANSACTION_SEEDS, PER_TEST))
def test_seeds_with_transactions(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        simulate_transactions(seed)


def test_seeds_whose_connections_are_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    """They go, come home when they ask for other things, and when their hosts die."""
    seen: dict[str, int] = {}

    def counted(owner: type, name: str) -> None:
        do = getattr(owner, name)

        def count(*args: object) -> object:
            seen[name] += 1
            return do(*args)

        seen[name] = 0
        monkeypatch.setattr(owner, name, count)

    counted(EventLoop, "take_over")
    counted(Lender, "_take_home")
    counted(Lender, "_end")
    counted(StraightWay, "_serve_all")
    counted(StraightWay, "_let_wait")
    for seed in range(GUEST_SEEDS):
        simulate_guests(seed)
    assert seen["take_over"] - seen["_take_home"] > 7 * GUEST_SEEDS, seen
    assert seen["_take_home"] > 2 * GUEST_SEEDS and seen["_end"] > GUEST_SEEDS, seen
    assert native is None or seen["_serve_all"] > 5 * GUEST_SEEDS, seen
    assert native is None or seen["_let_wait"] > GUEST_SEEDS, seen


def test_seeds_with_fetch_sessions() -> None:
    """Most rows have nothing to tell most of the time, and all are read to their ends."""
    rows = sum(simulate_sessions(seed).sessions.rows for seed in range(SESSION_SEEDS))
    assert rows > 1000 * SESSION_SEEDS, rows


def test_seeds_whose_readers_are_told_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they are answered with is what the log has, whoever dies meanwhile."""
    answered = 0
    do = FetchAhead.has_answered

    def count(*args: Any) -> bool:
        nonlocal answered
        is_answered = do(*args)
        answered += is_answered
        return is_answered

    monkeypatch.setattr(FetchAhead, "has_answered", count)
    for seed in range(AHEAD_SEEDS):
        simulate_ahead(seed)
    assert answered > 20 * AHEAD_SEEDS, answered


def test_seeds_in_which_records_are_deleted() -> None:
    deletes = sum(simulate_deletes(seed).seen.deletes for seed in range(DELETE_SEEDS))
    assert deletes > 2 * DELETE_SEEDS, deletes


@pytest.mark.parametrize("first", range(0, TIER_SEEDS, TIER_PER_TEST))
def test_seeds_with_a_remote_store(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments go there, are read from there, and deleted, by a process that dies meanwhile."""
    done: dict[str, int] = {}

    def counted(name: str) -> None:
        do = getattr(transfer, name)

        def count(*args: Any, **more: Any) -> Any:
            found = do(*args, **more)
            done[name] += 1
            return found

        done[name] = 0
        monkeypatch.setattr(transfer, name, count)

    for name in ("copy_segment", "fetch_chunk", "delete_segments"):
        counted(name)
    for seed in range(first, first + TIER_PER_TEST):
        simulate_tier(seed)
    assert done["copy_segment"] > 4 * TIER_PER_TEST, done
    assert done["fetch_chunk"] > 2 * TIER_PER_TEST and done["delete_segments"], done


def test_seeds_whose_copies_come_and_go() -> None:
    """They expire, and remote storage is switched off and on."""
    starts = 0
    for seed in range(TIER_SHIFT_SEEDS):
        seen = simulate_tier_shifts(seed).seen
        starts += sum(seen.delete_asked(place) > 0 for place in seen.places)
    assert starts > TIER_SHIFT_SEEDS, starts


def test_seeds_whose_transactions_are_in_the_remote_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers are told there which were aborted."""
    indexes = 0
    do = transfer.read_aborted

    def count(*args: Any) -> Any:
        nonlocal indexes
        indexes += 1
        return do(*args)

    monkeypatch.setattr(transfer, "read_aborted", count)
    for seed in TIER_TRANSACTION_SEEDS:
        simulate_tier_transactions(seed)
    assert indexes > len(TIER_TRANSACTION_SEEDS), indexes


def test_seeds_whose_replicas_begin_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of them behind what the remote store has, and know it."""
    begun = 0
    do = Cutting.begin_behind

    def count(*args: Any) -> None:
        nonlocal begun
        begun += 1
        do(*args)

    monkeypatch.setattr(Cutting, "begin_behind", count)
    for seed in MOVES_SEEDS:
        simulate_moves(seed)
    assert begun > len(MOVES_SEEDS), begun


def test_transactions_end_in_every_way() -> None:
    """The first of these seeds: committed, aborted, fenced, with both versions, and seen."""
    told: list[bool | None] = []
    fenced = reads = 0
    versions: set[int] = set()
    for seed in range(PER_TEST):
        done = simulate_transactions(seed)
        seen = done.transactions
        told += [one.is_committed for one in seen.by_number.values()]
        fenced += seen.fenced
        reads += len(seen.reads)
        versions |= {one.version for one in done.network.clients if isinstance(one, Instance)}
    assert told.count(True) > 100 and told.count(False) > 50, told
    assert fenced > 8 and reads > 500 and versions == {1, 2}, (fenced, reads, versions)


def test_something_happens_in_them() -> None:
    """The first of these seeds: faults of each kind, and clients that get on all the same."""
    kinds: set[str] = set()
    acked = commits = generations = 0
    for seed in range(PER_TEST):
        done = simulate(seed)
        kinds |= done.faults.counts.keys()
        acked += sum(map(len, done.seen.acked.values()))
        commits += done.seen.commits
        generations += done.seen.generations
    assert acked > 500 and commits > 100 and generations > PER_TEST, (acked, commits, generations)
    assert len(kinds) > 7, kinds


@pytest.mark.parametrize("seed, plan", ((3, ANY), (8, ANY), (1, TRANSACTIONS)))
def test_a_seed_goes_the_same_way_again(seed: int, plan: Plan) -> None:
    runs = [Simulation(seed, plan), Simulation(seed, plan)]
    for run in runs:
        run.run()
    assert runs[0].lines == runs[1].lines and runs[0].line_count == runs[1].line_count > 200


@pytest.mark.parametrize(
    "bug", [bug for bug in OLD_BUGS if not bug.is_rare], ids=lambda bug: bug.name
)
def test_an_old_bug_is_found(bug: OldBug) -> None:
    """By a seed that is well without it."""
    with put_back(bug):
        found = next(
            (seed for seed in (*bug.seeds, *range(FURTHER_SEEDS)) if not is_well(seed, bug.plan)),
            None,
        )
    assert found is not None, "no seed finds it"
    assert is_well(found, bug.plan), f"seed {found} fails without it"


def is_well(seed: int, plan: Plan) -> bool:
    try:
        simulate(seed, plan)
    except AssertionError:
        return False
    return True


def test_the_document_names_them() -> None:
    document = (ROOT / "docs" / "testing.md").read_text()
    for bug in OLD_BUGS:
        seeds = ", ".join(map(str, bug.seeds))
        assert f"| `{bug.name}` | {bug.what} | {seeds} |" in document, bug.name
