"""Tests of the service need a machine that systemd runs, to themselves."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.systemd_machine import WHEELS, Machine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.systemd)
            item.add_marker(pytest.mark.timeout(900))
            if WHEELS is None:
                reason = "needs a machine with systemd to itself: scripts/systemd_test"
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def installed() -> Machine:
    """The service as `shmbroker systemd install` has left it."""
    return Machine()


@pytest.fixture
def machine(installed: Machine) -> Iterator[Machine]:
    """The same; stopped at the end."""
    yield installed
    installed.end()
