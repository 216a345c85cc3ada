"""The kernel ends a process for want of memory (a unit's MemoryMax, a container's limit): really.

The family lives in a memory cgroup of its own, whose limit is then drawn in until a network worker
that fills with requests has no room. Needs cgroups that can be made, as root has them.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from shmbroker.testing.broker import Broker
from tests.support.acknowledged_load import Load
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

TOPIC = "memory"
ROOM = 48 << 20
"""What the family may take beside what it has after its start."""

REQUEST = 90 << 20


PLACES = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
)
"""Version 1, version 2."""


class Group:
    """A memory cgroup."""

    def __init__(self, parent: Path, limit: str, used: str) -> None:
        self.path = parent / f"shmbroker-test-{os.getpid()}"
        self.parent = parent
        self.path.mkdir()
        self.limit, self.used = self.path / limit, self.path / used
        if not self.limit.exists():
            self.path.rmdir()
            raise OSError("it limits no memory")

    def enter(self) -> None:
        """This process, and those that it starts."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def leave(self) -> None:
        """This process alone."""
        (self.parent / "cgroup.procs").write_text(str(os.getpid()))

    def draw_in(self) -> None:
        """Let there be ROOM for more, after what can be had back."""
        self.limit.write_text(str(int(self.used.read_text()) + ROOM))


@pytest.fixture
def group() -> Iterator[Group]:
    made = None
    for place in PLACES:
        try:
            made = Group(*place)
            break
        except OSError:
            continue
    if made is None:
        pytest.skip("no memory cgroup can be made here")
    yield made
    wait_until(lambda: not (made.path / "cgroup.procs").read_text(), "an empty cgroup")
    made.path.rmdir()


def test_what_is_acknowledged_outlives_a_process_that_the_kernel_ends(group: Group) -> None:
    with ExitStack() as after:
        group.enter()
        try:
            broker = after.enter_context(Broker("--replicas", "3"))
        finally:
            group.leave()
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC, 3)
        load = Load(broker.address, TOPIC)
        load.wait_for_more()
        before = broker.children()
        group.draw_in()
        host, port = broker.address.rsplit(":", 1)
        for _ in range(4):
            hungry = after.enter_context(socket.create_connection((host, int(port))))
            hungry.settimeout(10)
            try:
                hungry.sendall(REQUEST.to_bytes(4, "big") + bytes(REQUEST - 1))
            except OSError:
                break
        wait_until(lambda: "ended with signal 9 (the kernel's OOM killer" in broker.log, "it")
        assert any("network-worker" in line for line in broker.lines if "ended with" in line)
        load.wait_for_more()
        wait_until(lambda: broker.children().keys() == before.keys(), "the successors")
        load.finish()
        load.check(broker.address)
        assert broker.stop() == 0
