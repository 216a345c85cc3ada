"""The simulation of the family: laws that any queue obeys, order, and that it repeats itself."""

from dataclasses import replace

import pytest

from perf import family_model
from perf.calibration import PLACES
from perf.family_model import Family, simulate
from perf.family_terms import LARGE, Costs, Host, Load, Places
from perf.machines import best_split

COSTS = Costs()
REMOTE = Host(8, 2, 1, has_remote_clients=True)


@pytest.mark.parametrize("cores", [1, 2, 8])
@pytest.mark.parametrize(("size", "depth"), [(100, 1), (100, 16), (16384, 4), (LARGE, 16)])
def test_requests_in_flight_are_rate_times_time(cores, size, depth):
    # A client that needs no time between an answer and its next request: none is in neither's time.
    costs = replace(COSTS, client_request=0.0, client_send=0.0, client_kib=0.0)
    outcome = simulate(costs, Host(cores), Load(size, depth), 2000 if size < LARGE else 300)
    assert outcome.rate * outcome.mean_us / 1e6 == pytest.approx(depth, rel=0.05)


@pytest.mark.parametrize("networks", [4, 6])
def test_saturated_io_worker_serves_as_fast_as_its_work_takes(networks):
    """So busy that turns, doorbells and sleeps are shared by many requests."""
    outcome = simulate(COSTS, Host(8, networks, 1, True), Load(100, 64, 4 * networks, 10.0), 20_000)
    assert outcome.full == "I/O workers"
    each_us = COSTS.io_request + 100 / 1024 * COSTS.io_kib
    assert outcome.rate * each_us / 1e6 == pytest.approx(1, rel=0.05)


def test_one_core_is_never_more_than_busy():
    outcome = simulate(COSTS, Host(1), Load(100, 16), 3000)
    cpu_us = outcome.client_us + outcome.network_us + outcome.io_us
    assert outcome.rate * cpu_us / 1e6 == pytest.approx(1, rel=0.03)


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("depth", [1, 16])
def test_no_core_is_more_than_busy(where, depth):
    places = PLACES[where]
    outcome = simulate(COSTS, Host(places.cores, places=places), Load(100, depth), 3000)
    spent = {"client": outcome.client_us, "network": outcome.network_us, "io": outcome.io_us}
    for core in range(places.cores):
        on_it = sum(spent[role] for role, number in places._asdict().items() if number == core)
        assert outcome.rate * on_it / 1e6 < 1.03


def test_who_has_a_core_keeps_it_for_a_slice(monkeypatch):
    """An I/O worker beside a client gets the core when that sleeps, for all that has come by then;
    more often where slices are short."""
    beside = Host(2, places=PLACES["client beside I/O worker"])

    def turns_of_io() -> int:
        turns = []
        begin = Family._turn

        def turn(family, process):
            turns.append(process.role)
            begin(family, process)

        with monkeypatch.context() as patch:
            patch.setattr(Family, "_turn", turn)
            simulate(COSTS, beside, Load(100, 16), 2000)
        return turns.count("io")

    long = turns_of_io()
    monkeypatch.setattr(family_model, "SLICE_US", 0.0)
    assert turns_of_io() > long


@pytest.mark.parametrize("where", PLACES)
def test_whoever_shares_a_core_all_is_answered_once_and_in_order(where):
    places = PLACES[where]
    family = Family(COSTS, Host(places.cores, places=places), Load(100, 16))
    family.run(1000)
    assert family.answered == list(range(len(family.answered)))


def test_network_card_is_the_limit_where_it_is_slow():
    outcome = simulate(COSTS, REMOTE._replace(network_gbit_s=1), Load(65536, 8, 4, 10.0), 2000)
    assert outcome.full == "network"
    assert outcome.rate * 65536 * 8 == pytest.approx(1e9, rel=0.03)


def test_memory_is_the_limit_where_it_is_slow():
    outcome = simulate(COSTS, REMOTE._replace(memory_gb_s=1), Load(65536, 8, 4, 10.0), 2000)
    assert outcome.full == "memory"
    assert outcome.rate * 65536 * 7 == pytest.approx(1e9, rel=0.03)


@pytest.mark.parametrize("depth", [1, 16])
@pytest.mark.parametrize("size", [100, LARGE])
def test_answers_of_a_connection_come_in_order(size, depth):
    family = Family(COSTS, Host(2), Load(size, depth))
    family.run(200)
    assert family.answered == list(range(len(family.answered)))


def test_same_seed_gives_the_same_and_another_one_does_not():
    first, second = (simulate(COSTS, Host(2), Load(100, 16), 500, seed=5) for _ in range(2))
    assert first == second
    assert simulate(COSTS, Host(2), Load(100, 16), 500, seed=6) != first


def test_more_in_flight_make_a_request_cheaper():
    alone, many = (simulate(COSTS, Host(2), Load(100, depth), 2000) for depth in (1, 16))
    assert many.io_us < alone.io_us
    assert many.network_us < alone.network_us
    assert many.rate > alone.rate


def test_second_core_does_not_make_it_slower():
    one, two = (simulate(COSTS, Host(cores), Load(100, 16), 2000) for cores in (1, 2))
    assert two.rate > one.rate


def test_look_takes_cpu_and_saves_the_wake_up(monkeypatch):
    costs = replace(COSTS, wake=50.0)
    quick = simulate(costs, Host(4), Load(100, 1), 1000)
    monkeypatch.setattr(family_model, "WAITS_US", 0.0)
    monkeypatch.setattr(family_model, "AFTER_US", 0.0)
    slow = simulate(costs, Host(4), Load(100, 1), 1000)
    assert quick.p50_us < slow.p50_us
    assert quick.network_us > slow.network_us


@pytest.mark.parametrize("think_us, pays", [(5.0, True), (500.0, False)])
def test_looks_end_where_they_do_not_pay(monkeypatch, think_us, pays):
    """A client that comes again before a look is over keeps the workers awake, one that thinks for
    longer lets them sleep, but for one time of many in which they try."""
    looks = []
    begin = Family._look_us
    monkeypatch.setattr(Family, "_look_us", lambda *given: looks.append(begin(*given)) or looks[-1])
    simulate(COSTS, REMOTE, Load(100, 1, 1, think_us), 1000)
    after = [us for us in looks if us != family_model.WAITS_US]
    assert (sum(map(bool, after)) > len(after) / 2) == pays


@pytest.mark.parametrize(
    ("places", "colder_us"), [(PLACES["workers on one core"], 20), (Places(0, 1, 2), 0)]
)
def test_process_that_takes_a_core_from_another_finds_cold_caches(places, colder_us):
    """Each turn, where both workers have one core; never, where each has its own."""
    cold, warm = (
        simulate(replace(COSTS, switch=us), Host(3, places=places), Load(100, 1), 1000)
        for us in (20.0, 0.0)
    )
    assert cold.io_us - warm.io_us == pytest.approx(colder_us, abs=2)


@pytest.mark.parametrize("size", [1024, LARGE])
def test_split_uses_the_cores_that_are_there(size):
    networks, ios = best_split(COSTS, 8, size)
    assert networks >= 1
    assert ios >= 1
    assert networks + ios <= 7
