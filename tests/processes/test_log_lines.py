"""Logs of a real family: levels that change while it runs, and lines that are JSON."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shmbroker.cli.commands import main
from shmbroker.logs import LOGGERS
from shmbroker.testing.broker import Broker
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

LOGGER = 8
SET, DELETE = 0, 1
OPENED = "a connection of"


def levels(client: RawClient, broker_id: int = 1) -> dict[str, str]:
    body = {
        "resources": [
            {
                "resource_type": LOGGER,
                "resource_name": str(broker_id),
                "configuration_keys": None,
            }
        ],
        "include_synonyms": False,
        "include_documentation": False,
    }
    (result,) = client.ask("DescribeConfigs", 4, body)["results"]
    assert result["error_code"] == 0
    return {row["name"]: row["value"] for row in result["configs"]}


def change(client: RawClient, *rows: tuple[str, int, str | None], validate_only: bool = False):
    configs = [
        {"name": name, "config_operation": operation, "value": value}
        for name, operation, value in rows
    ]
    resource = {"resource_type": LOGGER, "resource_name": "1", "configs": configs}
    body: dict[str, Any] = {"resources": [resource], "validate_only": validate_only}
    (result,) = client.ask("IncrementalAlterConfigs", 1, body)["responses"]
    return result["error_code"]


def test_levels_change_in_every_process_while_it_runs(tmp_path: Path) -> None:
    with Broker("--network-workers", "1", data=tmp_path) as broker:
        with RawClient(broker.address) as client:
            assert set(levels(client)) == set(LOGGERS)
            assert levels(client)["shmbroker.processes.supervisor"] == "INFO"
            assert change(client, ("shmbroker", SET, "FATAL"), validate_only=True) == 0
            assert levels(client)["shmbroker"] == "INFO"
            # A network worker's, and in the same request the supervisor's.
            rows = ("shmbroker.gateway", SET, "DEBUG"), ("shmbroker.processes", SET, "FATAL")
            assert change(client, *rows) == 0
            assert levels(client)["shmbroker.gateway.gateway"] == "DEBUG"

            def is_heard() -> bool:
                with RawClient(broker.address):
                    return OPENED in broker.log

            wait_until(is_heard, "a line about a connection")
            children = broker.children()
            os.kill(children["io-worker-1"], signal.SIGKILL)
            wait_until(
                lambda: broker.children().get("io-worker-1") not in (None, children["io-worker-1"]),
                "its successor",
            )
        assert "starting another" not in broker.log
        # A successor goes by them, too; taken back, they are what they were.
        os.kill(broker.children()["network-worker-1"], signal.SIGKILL)

        def is_heard_again() -> bool:
            before = broker.log.count(OPENED)
            try:
                with RawClient(broker.address) as again:
                    levels(again)
            except OSError:
                return False
            return broker.log.count(OPENED) > before

        wait_until(is_heard_again, "a line about a connection to the successor")
        with RawClient(broker.address) as client:
            rows = tuple((name, DELETE, None) for name, _, _ in rows)
            assert change(client, *rows) == 0
            assert levels(client)["shmbroker.gateway.gateway"] == "INFO"


def test_command_shows_and_changes_levels(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka")
    with Broker(data=tmp_path) as broker:

        def run(*words: str) -> str:
            ran = CliRunner().invoke(main, [*words, "-b", broker.address])
            assert ran.exit_code == 0, ran.output
            return ran.output

        run("config", "set", "logger", "1", "--set", "shmbroker.broker=TRACE")
        shown = run("config", "get", "logger", "1", "shmbroker.broker.placement")
        assert shown.splitlines()[1].split() == ["shmbroker.broker.placement", "TRACE", "logger"]
        run("config", "set", "logger", "1", "--delete", "shmbroker.broker")
        assert "TRACE" not in run("config", "get", "logger", "1")
        refused = CliRunner().invoke(
            main, ["config", "set", "logger", "1", "--set", "no.such=INFO", "-b", broker.address]
        )
        assert refused.exit_code == 1
        assert "Logger no.such does not exist!" in refused.output


def test_settings_that_are_read_again_hold_in_every_process(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("'log.retention.hours' = 100\n")
    with Broker("--network-workers", "1", "--config", str(file), data=tmp_path / "data") as broker:
        file.write_text(
            "'shmbroker.logger.format' = 'json'\n"
            "'shmbroker.logger.levels' = 'shmbroker.gateway=DEBUG,root=ERROR'\n"
        )
        os.kill(broker.pid, signal.SIGHUP)

        def line() -> str | None:
            with RawClient(broker.address) as client:
                assert levels(client)["shmbroker.gateway"] in ("INFO", "DEBUG")
            return next((each for each in broker.log.splitlines() if OPENED in each), None)

        row = json.loads(wait_until(line, "a line about a connection"))
        assert row["process"] == "network-worker-1"
        with RawClient(broker.address) as client:
            assert levels(client)["root"] == "ERROR"
        assert broker.stop() == 0
        assert '"message": "stopping"' in broker.log


def test_lines_are_objects_of_all_processes(tmp_path: Path) -> None:
    with Broker(
        *("--log-format", "json", "--set", "shmbroker.logger.levels=shmbroker.gateway=DEBUG"),
        data=tmp_path,
    ) as broker:
        pid = broker.children()["io-worker-1"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: "starting another" in broker.log, "the line")
        wait_until(lambda: OPENED in broker.log or not RawClient(broker.address).close(), "a line")
        assert broker.stop() == 0
        lines = broker.log.splitlines()
        rows = [json.loads(line) for line in lines if "shmbroker: ready on" not in line]
    died = next(row for row in rows if "starting another" in row["message"])
    assert died["process"] == died["role"] == "supervisor"
    assert died["level"] == "WARNING"
    assert died["logger"] == "shmbroker.processes.supervisor"
    assert (died["child"], died["child_pid"], died["ended"]) == ("io-worker-1", pid, "signal 9")
    opened = next(row for row in rows if row["message"].startswith(OPENED))
    assert (opened["role"], opened["level"]) == ("network-worker", "DEBUG")
