"""The fixtures for pytest, which finds them by itself once shmbroker is installed.

   shmbroker_broker         a running broker, one for the session; `shmbroker_scope` says otherwise
   shmbroker_fresh_broker   one of the test's own, on an empty directory
   shmbroker_topic          the name of a new topic of `shmbroker_broker`, of the test's own;
                            `@pytest.mark.shmbroker_topic(partitions=3, retention_ms="1000")`

Rules:

* Who uses no fixture pays for importing this module alone: the protocol is loaded when it is used.
* Faults that a test leaves behind end with it, also those of a session's broker.
* Each worker of xdist has brokers of its own, at ports of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from shmbroker.testing.broker import Broker

    Scope = Literal["session", "package", "module", "class", "function"]

SCOPES = ("session", "package", "module", "class", "function")
_running = pytest.StashKey[list["Broker"]]()
_topics = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the settings for pytest.ini or pyproject.toml."""
    parser.addini(
        "shmbroker_scope",
        f"How long shmbroker_broker lives: {', '.join(SCOPES)}.",
        default="session",
    )
    parser.addini("shmbroker_flags", "More flags of `shmbroker serve`.", type="args", default=[])
    parser.addini(
        "shmbroker_faults",
        "Whether clients go through a proxy, as delay, fail_next and disk_full need.",
        type="bool",
        default=True,
    )


def pytest_configure(config: pytest.Config) -> None:
    """Add the marker, and note who runs."""
    config.addinivalue_line(
        "markers", "shmbroker_topic(partitions=1, **configs): what shmbroker_topic makes"
    )
    config.stash[_running] = []
    config.stash[_topics] = 0


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """What a test made go wrong ends with it."""
    for broker in item.config.stash[_running]:
        broker.calm()


def _scope(fixture_name: str, config: pytest.Config) -> Scope:
    said = str(config.getini("shmbroker_scope"))
    for scope in SCOPES:
        if scope == said:
            return scope  # type: ignore[return-value]
    raise pytest.UsageError(f"shmbroker_scope is {said!r}; it can be {', '.join(SCOPES)}")


@pytest.fixture(scope=_scope)
def shmbroker_broker(pytestconfig: pytest.Config) -> Iterator[Broker]:
    """A running broker: its `address` is for bootstrap.servers."""
    yield from _started(pytestconfig)


@pytest.fixture
def shmbroker_fresh_broker(pytestconfig: pytest.Config) -> Iterator[Broker]:
    """A broker of the test's own."""
    yield from _started(pytestconfig)


@pytest.fixture
def shmbroker_topic(request: pytest.FixtureRequest, shmbroker_broker: Broker) -> str:
    """The name of a new topic of the test's own."""
    import re

    config = request.config
    config.stash[_topics] += 1
    name = re.sub(r"[^\w.-]", "-", request.node.name, flags=re.ASCII)[:200]
    topic = f"{name}-{config.stash[_topics]}"
    marker = request.node.get_closest_marker("shmbroker_topic")
    said = marker.kwargs if marker else {}
    shmbroker_broker.create_topic(topic, **said)
    return topic


def _started(config: pytest.Config) -> Iterator[Broker]:
    from shmbroker.testing.broker import QUICK, Broker

    flags = config.getini("shmbroker_flags")
    with Broker(*QUICK, *flags, faults=config.getini("shmbroker_faults")) as broker:
        config.stash[_running].append(broker)
        try:
            yield broker
        finally:
            config.stash[_running].remove(broker)
