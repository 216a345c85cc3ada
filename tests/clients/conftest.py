"""One broker for all tests with client libraries."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from shmbroker.testing.broker import Broker


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """Where a broker listens that all these tests share: each makes topics of its own."""
    with Broker() as broker:
        yield broker.address
        assert "Traceback" not in broker.log, broker.log


@pytest.fixture(
    scope="module",
    params=[
        "ours",
        pytest.param(
            "kafka",
            marks=[
                pytest.mark.oracle,
                pytest.mark.skipif("KAFKA_ORACLE" not in os.environ, reason="no Apache Kafka"),
            ],
        ),
    ],
)
def servers(request: Any, address: str) -> str:
    """The broker that they share, and Apache Kafka where there is one to ask."""
    return address if request.param == "ours" else os.environ["KAFKA_ORACLE"]
