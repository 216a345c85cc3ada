"""Many requests at once on one connection: none of those answered at once waits for a timer."""

from pathlib import Path

from shmbroker.testing.broker import Broker
from shmbroker.wire.frame import request_frame
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

COUNT = 2000


def sleeps(broker: Broker) -> int:
    """How often the network workers have gone to sleep so far."""
    total = 0
    for title, pid in broker.children().items():
        if title.startswith("network-worker"):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            (line,) = (line for line in lines if line.startswith("voluntary_ctxt_switches"))
            total += int(line.split()[1])
    return total


def test_answers_that_wait_to_be_sent_do_not_hold_up_the_next_requests() -> None:
    with Broker() as broker, RawClient(broker.address) as client:
        keys = {"key_type": 0, "coordinator_keys": ["g"]}
        wait_until(
            lambda: not client.ask("FindCoordinator", 6, keys)["coordinators"][0]["error_code"],
            "a coordinator",
        )
        before = sleeps(broker)
        client.socket.sendall(b"".join(request_frame(18, 2, n, "raw", b"") for n in range(COUNT)))
        for _ in range(COUNT):
            assert client.receive("ApiVersions", 2)["error_code"] == 0
        # It may sleep when the client is slow to read; not after each 17 requests, as it once did.
        assert sleeps(broker) - before < COUNT / 40
