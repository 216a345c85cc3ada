"""Limits of connections: of all, of an address, of the control socket."""

import pytest

from shmbroker.gateway.connection_limits import ConnectionLimits, Rate
from shmbroker.shm.address_counts import AddressCounts, table_bytes

NO_LIMIT = 2**31 - 1


class Family:
    """Two workers, whose open connections are counted by hand."""

    def __init__(self) -> None:
        tables = [memoryview(bytearray(table_bytes())) for _ in range(2)]
        self.open = 0
        self.workers = [
            ConnectionLimits(
                AddressCounts(tables[which], {1 - which: tables[1 - which]}),
                lambda: self.open,
                lambda which=which: [1 - which],  # type: ignore[misc]
                ["WIDE", "LOCAL"],
            )
            for which in range(2)
        ]

    def set(self, of_all: int, of_each: int, overrides: str = "") -> None:
        for worker in self.workers:
            worker.set(of_all, of_each, overrides)

    def take(self, worker: int, address: str) -> str:
        refusal = self.workers[worker].take(address)
        self.open += not refusal
        return refusal


@pytest.fixture
def family() -> Family:
    return Family()


def test_an_address_is_counted_over_all_workers(family: Family) -> None:
    family.set(NO_LIMIT, 2)
    assert [family.take(which, "10.0.0.1") for which in (0, 1)] == ["", ""]
    for which in (0, 1, 1):
        assert family.take(which, "10.0.0.1") == "max.connections.per.ip is 2 for 10.0.0.1"
    assert family.take(0, "10.0.0.2") == ""
    family.workers[1].release("10.0.0.1")
    assert family.take(0, "10.0.0.1") == "", "who was refused was not counted"
    assert family.take(1, "10.0.0.1") != ""


def test_all_connections_are_counted_together(family: Family) -> None:
    family.set(2, NO_LIMIT)
    assert [family.take(which, f"10.0.0.{which}") for which in (0, 1)] == ["", ""]
    assert family.take(0, "10.0.0.3") == "max.connections is 2"
    family.open -= 1
    assert family.take(0, "10.0.0.3") == ""


def test_an_address_may_have_a_limit_of_its_own(family: Family) -> None:
    family.set(NO_LIMIT, 0, "10.0.0.1:2, ::1:1")
    taken = [family.take(0, address) for address in ("10.0.0.1", "10.0.0.1", "::1")]
    assert taken == ["", "", ""]
    assert family.take(0, "10.0.0.1") == "max.connections.per.ip.overrides is 2 for 10.0.0.1"
    assert family.take(1, "0:0::1") != ""
    assert family.take(1, "10.0.0.2") == "max.connections.per.ip is 0 for 10.0.0.2"


def test_a_change_counts_what_was_there_before(family: Family) -> None:
    assert [family.take(0, "10.0.0.1") for _ in range(3)] == [""] * 3
    family.set(NO_LIMIT, 3)
    assert family.take(1, "10.0.0.1") != ""
    family.set(NO_LIMIT, 4)
    assert family.take(1, "10.0.0.1") == ""


def test_the_control_socket_is_always_open(family: Family) -> None:
    family.set(1, 0)
    family.open = 5
    assert family.take(0, "") == ""
    assert family.take(0, "127.0.0.1") == "max.connections is 1"


def test_a_listener_has_a_limit_of_its_own_over_all_workers(family: Family) -> None:
    for worker in family.workers:
        worker.set_listeners({"WIDE": 2, "LOCAL": NO_LIMIT}, {}, 0.0)
    first, second = family.workers
    assert first.take("10.0.0.1", "WIDE") == second.take("10.0.0.2", "WIDE") == ""
    assert first.take("10.0.0.3", "WIDE") == "max.connections is 2 for listener WIDE"
    assert first.take("10.0.0.3", "LOCAL") == first.take("", "WIDE") == ""
    second.release("10.0.0.2", "WIDE")
    assert first.take("10.0.0.3", "WIDE") == ""


def test_new_connections_of_all_workers_share_a_rate(family: Family) -> None:
    for worker in family.workers:
        worker.set_listeners({}, {"": 4}, 0.0)
    taken = 0
    while not (rest_s := family.workers[taken % 2].rest_s("WIDE", 0.0)):
        family.take(taken % 2, "10.0.0.1")
        taken += 1
    assert (taken, rest_s) == (4, 0.25)
    assert family.workers[1].rest_s("LOCAL", 0.0) == 0.25
    assert family.workers[0].rest_s("WIDE", 0.25) == 0
    for _ in range(2):  # refused ones have come as well
        family.take(0, "10.0.0.1")
    assert family.workers[1].rest_s("WIDE", 0.25) == 0.5
    assert family.workers[1].rest_s("WIDE", 100.0) == 0, (
        "what was not used is gone, but for one second"
    )


def test_a_listener_has_a_rate_of_its_own(family: Family) -> None:
    worker = family.workers[0]
    worker.set_listeners({}, {"": NO_LIMIT, "WIDE": 1, "SHUT": 0}, 0.0)
    worker.take("10.0.0.1", "WIDE")
    rests = {name: worker.rest_s(name, 0.5) for name in ("WIDE", "LOCAL", "SHUT")}
    assert rests == {"WIDE": 0.5, "LOCAL": 0, "SHUT": 1}
    worker.set_listeners({}, {"": NO_LIMIT}, 0.5)
    assert worker.rest_s("SHUT", 0.5) == 0


def test_a_worker_that_is_started_again_gives_nobody_more_room() -> None:
    """What it had counted is gone then: fewer were taken than before."""
    taken = 8
    rate = Rate(4, lambda: taken, 0.0)
    taken = 12
    assert rate.rest_s(0.0) == 0.25
    taken = 5
    assert rate.rest_s(0.0) == 0.25
    taken = 6
    assert rate.rest_s(0.0) == 0.5
    assert rate.rest_s(0.5) == 0
