"""When a family is ready, and what is said when it is not."""

import pytest

from shmbroker.metadata.image import MetadataImage
from shmbroker.shm.counters import (
    LIVENESS_NS,
    STATE,
    STATE_NONE,
    STATE_STARTING,
    STATE_STOPPING,
)
from tests.unit.observe.families import NOW_S, family, image, snapshot, store


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ([], []),
        ([("network-worker-1", STATE, STATE_NONE)], []),
        (
            [(f"network-worker-{number}", STATE, STATE_NONE) for number in (1, 2)],
            ["network-worker-1 is none", "network-worker-2 is none"],
        ),
        ([("io-worker-2", STATE, STATE_STARTING)], ["io-worker-2 is starting"]),
        (
            [("io-worker-1", LIVENESS_NS, int((NOW_S - 8) * 1e9))],
            ["io-worker-1 gives no sign of life for 8 s"],
        ),
        ([("controller-3", STATE, STATE_NONE)], []),
        (
            [(f"controller-{number}", STATE, STATE_STOPPING) for number in (2, 3)],
            ["controller-2 is stopping", "controller-3 is stopping"],
        ),
        ([("cleaner-1", STATE, STATE_NONE)], []),
    ],
)
def test_processes_that_are_needed_run_and_give_signs(stored, expected):
    made = family()
    for what in stored:
        store(made, *what)
    assert snapshot(made, image()).reasons_not_ready == expected


def test_brokers_are_registered_and_a_controller_is_active():
    made = family()
    assert snapshot(made, image(2)).reasons_not_ready == ["broker 2 is fenced or stops"]
    assert snapshot(made, MetadataImage("c")).reasons_not_ready == [
        "broker 1 is not registered",
        "broker 2 is not registered",
    ]
    made.counters.store_metadata_leader(3, 1, is_active=False)
    assert snapshot(made, image()).reasons_not_ready == ["no controller is active"]
