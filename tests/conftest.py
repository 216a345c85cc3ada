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


# Directories whose files take minutes: begun first, none of them is left alone at the end.
LONGEST = ("spark", "simulation", "exactly_once", "documents", "clients", "processes")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that run side by side: a file stays together, and all that share Spark's one JVM."""
    for item in items:
        shares_jvm = "spark" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("spark" if shares_jvm else str(item.path)))
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.parent.name, len(LONGEST)))


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
