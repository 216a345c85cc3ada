"""What the tests of hostile input share: one broker, a bystander, and what must not change.

`Besieged` is a running broker that is under attack. Leaving a `quiet` block checks that every
connection that was to be closed left one line in the log and nothing else did, that the same
processes are alive, and that a client who was there all the time is still served.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shmbroker.testing.broker import Broker
from tests.support.acknowledged_load import batch_now
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

COUNTED_LINE = re.compile(r"network-worker-\d \d+ more like this: ")
OPENED_LINE = re.compile(r"network-worker-\d (a|the) connection of ")
CLOSED_LINE = re.compile(r"network-worker-\d closed the connection of (127\.0\.0\.1:\d+): (.+)")
LENT_ENDED_LINE = re.compile(r"io-worker-\d the connection of 127\.0\.0\.1:\d+ has ended: ?$")
"""A client that was quiet for a while has left."""
TOPIC = "bystander"


class Besieged:
    """A broker with a topic, and a client that works with it all the time."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.address = broker.address
        self.children = broker.children()
        self.bystander = RawClient(broker.address)
        self.bystander.create_topic(TOPIC)
        self.produced = 0
        self.opened: set[str] = set()

    def client(self, timeout: float = 15.0) -> RawClient:
        """A new connection."""
        client = RawClient(self.address, timeout)
        self.opened.add(end_of(client))
        return client

    @contextmanager
    def quiet(self) -> Iterator["Expected"]:
        """In it, `expected.closed(client)` says which connections are to be closed, and why."""
        mark = len(self.broker.lines)
        self.opened.clear()  # lines about earlier connections may still be on their way
        expected = Expected()
        yield expected
        self.serves()
        wait_until(lambda: self._closed_since(mark).keys() >= expected.reasons.keys(), "a log line")
        told = self._closed_since(mark)
        assert told.keys() == expected.reasons.keys(), told
        for client, reason in expected.reasons.items():
            assert re.search(reason, told[client]), f"{told[client]!r} is not {reason!r}"

    def _closed_since(self, mark: int) -> dict[str, str]:
        """{connection: reason} of what the log says about those that were opened since then."""
        told: dict[str, str] = {}
        for line in self.broker.lines[mark:]:
            if any(each.search(line) for each in (COUNTED_LINE, OPENED_LINE, LENT_ENDED_LINE)):
                continue
            found = CLOSED_LINE.search(line)
            assert found, f"unexpected in the log: {line}"
            if found[1] in self.opened:
                assert found[1] not in told, f"told twice: {line}"
                told[found[1]] = found[2]
        return told

    def serves(self) -> None:
        """The bystander produces and fetches, and nobody has died."""
        assert self.bystander.produce(TOPIC, batch_now(b"still here"))["error_code"] == 0
        self.produced += 1
        found = self.bystander.fetch(TOPIC, self.produced - 1)
        assert (found["error_code"], found["high_watermark"]) == (0, self.produced)
        assert self.broker.children() == self.children, "a process has died"

    def memory_bytes(self) -> int:
        """What the family holds, without pages of files."""
        pids = [self.broker.pid, *self.children.values()]
        return sum(_held_bytes(pid) for pid in pids)


class Expected:
    """Connections that the broker is to close, with a pattern of the reason."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def closed(self, client: RawClient, reason: str = "") -> None:
        """Wait until the broker has ended this connection without another byte."""
        self.reasons[end_of(client)] = reason
        assert client.is_closed_by_broker()
        client.close()


def end_of(client: RawClient) -> str:
    """The client's end of its connection, as the log names it."""
    host, port = client.socket.getsockname()[:2]
    return f"{host}:{port}"


def _held_bytes(pid: int) -> int:
    found = dict.fromkeys(("Pss_Anon", "Pss_Shmem"), 0)
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in found:
            found[name] = int(rest.split()[0]) * 1024
    return sum(found.values())
