"""What all tests share: nothing may be left in /dev/shm when the last one is done, and no example
fails because the machine is busy."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from shmbroker.testing.broker import Broker

OUR_NAMES = "shmbroker-"

settings.register_profile("without-deadline", parent=settings(), deadline=None)
settings.load_profile("without-deadline")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that run side by side: a file stays together, and all of Spark, which has one JVM."""
    for item in items:
        is_spark = item.get_closest_marker("spark") is not None
        item.add_marker(pytest.mark.xdist_group("spark" if is_spark else str(item.path)))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """No test leaves a name of ours behind."""
    if hasattr(session.config, "workerinput"):
        return  # the others still run
    left = [name for name in os.listdir("/dev/shm") if name.startswith(OUR_NAMES)]
    if left:
        print(f"\nleft in /dev/shm: {left}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker of the test's own, on an empty directory."""
    with Broker() as started:
        yield started
