"""Connections by address, over several workers' tables."""

import random

import pytest

from shmbroker.shm import address_counts
from shmbroker.shm.address_counts import AddressCounts, packed_address, table_bytes


def workers(count: int) -> list[AddressCounts]:
    tables = [memoryview(bytearray(b"\xff" * table_bytes())) for _ in range(count)]
    return [
        AddressCounts(own, {which: other for which, other in enumerate(tables) if other is not own})
        for own in tables
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("127.0.0.1", "::ffff:127.0.0.1"),
        ("::1", "0:0::1"),
        ("fe80::1%eth0", "fe80::1"),
    ],
)
def test_one_address_in_two_ways(one: str, other: str) -> None:
    assert packed_address(one) == packed_address(other)


def test_sums_are_those_of_a_model() -> None:
    chance = random.Random(1)
    three = workers(3)
    addresses = [packed_address(f"10.0.{which // 250}.{which % 250}") for which in range(900)]
    addresses += [packed_address(f"2001:db8::{which:x}") for which in range(100)]
    open_: list[tuple[int, bytes]] = []
    for _ in range(20_000):
        if open_ and chance.random() < 0.48:
            worker, address = open_.pop(chance.randrange(len(open_)))
            three[worker].remove(address)
        else:
            open_.append((chance.randrange(3), chance.choice(addresses)))
            three[open_[-1][0]].add(open_[-1][1])
    for address in addresses:
        of = [sum(1 for one in open_ if one == (worker, address)) for worker in range(3)]
        assert three[0].total(address, [1, 2]) == sum(of)
        assert three[1].total(address, [2]) == of[1] + of[2], "the first one does not run"


def test_a_successor_begins_with_none() -> None:
    table = memoryview(bytearray(table_bytes()))
    address = packed_address("1.2.3.4")
    AddressCounts(table, {}).add(address)
    assert AddressCounts(table, {}).total(address, []) == 0


def test_a_full_bucket_leaves_further_addresses_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_counts, "_bucket", lambda _key: 0)
    (counts,) = workers(1)
    addresses = [packed_address(f"10.0.0.{which}") for which in range(20)]
    for address in addresses:
        counts.add(address)
    assert sum(counts.total(address, []) for address in addresses) == 16
    for address in addresses:
        counts.remove(address)
    counts.add(addresses[-1])
    assert counts.total(addresses[-1], []) == 1
