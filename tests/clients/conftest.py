"""One broker for all tests with client libraries."""

from collections.abc import Iterator

import pytest

from shmbroker.testing.broker import Broker


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """Where a broker listens that all these tests share: each makes topics of its own."""
    with Broker() as broker:
        yield broker.address
        assert "Traceback" not in broker.log, broker.log
