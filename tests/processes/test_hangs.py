"""Processes that hang: named, killed, replaced, whatever their role; also during a stop."""

import os
import signal
from pathlib import Path

from shmbroker.processes.supervisor import EXIT_UNCLEAN
from shmbroker.testing.broker import Broker
from tests.support.acknowledged_load import batch_now, read_values
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

TOPIC = "hangs"
QUICK = ("--set", "shmbroker.watchdog.warn.ms=2000", "--set", "shmbroker.watchdog.kill.ms=3000")
TIERED = ("--set", "remote.log.storage.system.enable=true")
ROLES = {"io-worker-1", "controller-1", "network-worker-1", "network-worker-2", "tier-1"}


def test_hanging_child_of_each_role_is_named_killed_and_replaced(tmp_path: Path) -> None:
    with Broker(*QUICK, *TIERED, "--network-workers", "2", data=tmp_path) as broker:
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC)
            assert client.produce(TOPIC, batch_now(b"before"))["error_code"] == 0
        before = wait_until(
            lambda: found if set(found := broker.children()) == ROLES else None, "all children"
        )
        for pid in before.values():
            os.kill(pid, signal.SIGSTOP)
        for title, pid in before.items():
            line = f"{title} (pid {pid}) gives no sign of life for"
            wait_until(lambda line=line: broker.log.count(line) == 2, f"two lines on {title}")
        wait_until(
            lambda: (
                set(after := broker.children()) == ROLES
                and not set(after.values()) & set(before.values())
            ),
            "their successors",
        )
        # It may be that some of them are up, and others boot.
        wait_until(lambda: _serves(broker), "the service")
        assert broker.log.count("it is stopped by a signal") >= len(ROLES)
        assert broker.stop() == 0


def test_stop_names_whom_it_waits_for_and_ends_who_hangs(tmp_path: Path) -> None:
    with Broker(*QUICK, data=tmp_path) as broker:
        os.kill(broker.children()["io-worker-1"], signal.SIGSTOP)
        assert broker.stop() == EXIT_UNCLEAN
        assert "stopping: waiting for io-worker-1" in broker.log
        assert "no sign of life" in broker.log


def _serves(broker: Broker) -> bool:
    try:
        with RawClient(broker.address) as client:
            if client.produce(TOPIC, batch_now(b"after"))["error_code"]:
                return False
            return read_values(client, TOPIC, 0)[0] == b"before"
    except OSError:
        return False
