"""Tests of the service need a machine that systemd runs, to themselves."""

import os
from collections.abc import Iterator

import pytest

from tests.support.systemd_machine import WHEELS, Machine

HERE = os.path.dirname(__file__) + os.sep


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(HERE):
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
