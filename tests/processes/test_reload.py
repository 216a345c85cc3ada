"""SIGHUP: the settings are read again, and hold in every process that goes by them."""

import os
import select
import signal
import socket
from pathlib import Path

from shmbroker.testing.broker import Broker
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

TOPIC = "reloaded"
LIMIT = "max.connections.per.ip"
FIXED = "shmbroker.disk.reserve.bytes"
FLAG = "shmbroker.replicas"


def _effective(client: RawClient, kind: int, name: str, key: str) -> str:
    asked = [{"resource_type": kind, "resource_name": name, "configuration_keys": [key]}]
    (result,) = client.ask("DescribeConfigs", 4, {"resources": asked})["results"]
    (row,) = result["configs"]
    return str(row["value"])


def test_what_may_change_holds_at_once_and_the_rest_is_named(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("'log.retention.ms' = 1000000\n")
    with Broker("--config", str(file), "--replicas", "2", data=tmp_path / "data") as broker:

        def reload(text: str, line: str) -> None:
            file.write_text(text)
            before = broker.log.count(line)
            os.kill(broker.pid, signal.SIGHUP)
            wait_until(lambda: broker.log.count(line) > before, line)

        with RawClient(broker.address) as client:
            client.create_topic(TOPIC)
            assert _effective(client, 2, TOPIC, "retention.ms") == "1000000"
            reload(
                f"'log.retention.ms' = 2000000\n'{LIMIT}' = 3\n'{FIXED}' = 1\n'{FLAG}' = 1\n",
                f"log.retention.ms, {LIMIT} changed; {FIXED} takes a restart",
            )
            wait_until(
                lambda: _effective(client, 2, TOPIC, "retention.ms") == "2000000", "retention"
            )
            assert _effective(client, 4, "1", LIMIT) == "3"
            assert FLAG not in broker.log, "the flag counts more than the file"
            _wait_for_refusal(broker.address, 3)
            # A successor goes by them, too.
            os.kill(broker.children()["network-worker-1"], signal.SIGKILL)
            wait_until(lambda: "starting another" in broker.log, "its end")
            _wait_for_refusal(broker.address, 3)
        reload("'log.retention.ms' = 'soon'\n", "the settings stay as they are: ")
        reload(f"'log.retention.ms' = 2000000\n'{FIXED}' = 1\n", f"again: {LIMIT} changed")
        levels = "shmbroker.logger.levels"
        reload(f"'{levels}' = ['shmbroker.gateway=DEBUG']\n", f"log.retention.ms, {levels} changed")
        RawClient(broker.address).close()
        wait_until(lambda: "DEBUG" in broker.log, "a line of that level")
        with RawClient(broker.address) as client:
            assert _effective(client, 2, TOPIC, "retention.ms") == "604800000"
        assert broker.stop() == 0


def _wait_for_refusal(address: str, most: int) -> None:
    """Until no more than so many connections are let in."""
    host, port = address.rsplit(":", 1)

    def is_refused() -> bool:
        opened = [socket.create_connection((host, int(port)), 10) for _ in range(most + 1)]
        try:
            return any(one.recv(1) == b"" for one in opened if _is_readable(one))
        finally:
            for one in opened:
                one.close()

    wait_until(is_refused, "a refusal")


def _is_readable(one: socket.socket) -> bool:
    return bool(select.select([one], [], [], 0.05)[0])
