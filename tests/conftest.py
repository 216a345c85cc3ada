"""What all tests share: nothing may be left in /dev/shm when the last one is done."""

import os
from collections.abc import Iterator

import pytest

from shmbroker.testing.broker import Broker

OUR_NAMES = "shmbroker-"


@pytest.fixture(scope="session", autouse=True)
def nothing_left_in_shared_memory() -> Iterator[None]:
    """No test leaves a name of ours behind."""
    yield
    assert [name for name in os.listdir("/dev/shm") if name.startswith(OUR_NAMES)] == []


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker of the test's own, on an empty directory."""
    with Broker() as started:
        yield started
