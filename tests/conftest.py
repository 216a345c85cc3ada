"""What all tests share: nothing may be left in /dev/shm when the last one is done, and no example
fails because the machine is busy."""

import ast
import gc
import os
import signal
import threading
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import settings

from shmbroker.testing.broker import Broker
from tests.support.examples import examples

OUR_NAMES = "shmbroker-"

settings.register_profile(
    "without-deadline", parent=settings(), deadline=None, max_examples=examples(100)
)
settings.load_profile("without-deadline")


# A job in a shell's background ignores SIGINT, and so would all whom tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Java programs of tests end before its second compiler has earned what it costs: half their CPU.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")


# Before CPython 3.11.5 two threads that parse at the same time count one depth together
# (gh-106905): pytest parses what is imported, and clients' threads import, too.
_parse, _one_parses = ast.parse, threading.RLock()


def _parse_alone(*arguments: Any, **more: Any) -> Any:
    with _one_parses:
        return _parse(*arguments, **more)


ast.parse = _parse_alone  # type: ignore[assignment]


# Directories whose files take minutes: begun first, none of them is left alone at the end.
LONGEST = ("spark", "simulation", "exactly_once", "documents", "clients", "processes")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, None, None]:
    """Files of the LONGEST directories come first, behind whoever shuffles."""
    yield
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.parent.name, len(LONGEST)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which tests stay together where they run side by side (`_unit_of`)."""
    from xdist.scheduler import LoadScopeScheduling

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = _unit_of
    return scheduler


def _unit_of(nodeid: str) -> str:
    """A file's tests share what it sets up, those of Spark one JVM; seeds share nothing."""
    path = nodeid.split("::", 1)[0]
    if path.startswith("tests/simulation/"):
        return nodeid
    return "spark" if path.startswith("tests/spark/") else path


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


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Tests are collected without the garbage collector, and it never looks at them later: there
    are so many that each look at all of them takes half a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
