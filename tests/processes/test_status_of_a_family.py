"""`shmbroker status` of families on this host: their processes, and its exit status for scripts."""

import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from shmbroker.cli.commands import main
from shmbroker.testing.broker import Broker
from tests.support.waiting import wait_until

pytest.importorskip("confluent_kafka")

OK, DEGRADED, NOT_RUNNING, NOT_TOLD = range(4)


def status(*words: str) -> Result:
    return CliRunner().invoke(main, ["status", *words])


def told(*words: str) -> tuple[int, dict[str, Any]]:
    ran = status("--json", *words)
    return ran.exit_code, json.loads(ran.stdout)


def test_family_with_replicas_and_controllers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = ("--replicas", "3", "--controllers", "3", "--network-workers", "1")
    with Broker(*sizes, data=tmp_path) as broker:
        code, report = told("-b", broker.address)
        assert (code, report["status"], report["problems"]) == (OK, "ok", [])
        family = report["family"]
        assert family["pid"] == broker.pid and family["is_ready"]
        assert {row["process"] for row in family["processes"]} == {
            "supervisor",
            *broker.children(),
        }
        assert report["quorum"]["voters"] == [1, 2, 3]
        for name in ("confluent_kafka", "confluent_kafka.admin"):
            monkeypatch.setitem(sys.modules, name, None)
        code, seen = told("-b", broker.address)
        assert (code, seen["problems"]) == (OK, [])
        for name in ("cluster_id", "partitions", "under_replicated", "groups"):
            assert seen[name] == report[name], name
        monkeypatch.undo()
        os.kill(broker.children()["io-worker-3"], signal.SIGKILL)

        def is_well_again() -> str | None:
            ran = status("--data", str(tmp_path))
            return ran.stdout if ran.exit_code == OK and "1 restart," in ran.stdout else None

        shown = wait_until(is_well_again, "its successor").splitlines()
        assert any(line.split()[::3] == ["io-worker-3", "1"] for line in shown)
        assert any("8 of 8 processes run, 1 restart, up" in line for line in shown)


def test_family_that_answers_nothing_is_seen_from_outside(tmp_path: Path) -> None:
    off = ("--set", "shmbroker.watchdog.kill.ms=0")
    with Broker("--network-workers", "1", *off, data=tmp_path) as broker:
        pid = broker.children()["network-worker-1"]
        os.kill(pid, signal.SIGSTOP)
        try:
            ran = status("-b", broker.address)
            assert ran.exit_code == DEGRADED
            assert "no answer" in ran.stderr or "no Kafka answer" in ran.stderr
            assert "network-worker-1 gives no sign of life" in ran.stderr
            assert f"{tmp_path}/node-1" in ran.stdout
        finally:
            os.kill(pid, signal.SIGCONT)


def test_partition_that_cannot_be_opened_is_a_problem(tmp_path: Path) -> None:
    with Broker("--network-workers", "1", data=tmp_path) as broker:
        broker.create_topic("t")
    partition = tmp_path / "node-1" / "t-0"
    partition.rename(tmp_path / "t-0")
    partition.write_text("what no log can be in")
    with Broker("--network-workers", "1", data=tmp_path) as broker:
        code, report = told("-b", broker.address)
        assert (code, report["unopened"]) == (DEGRADED, ["t-0"])
        assert "1 partition is not open at its leader (t-0)" in report["problems"][0]
        partition.unlink()
        (tmp_path / "t-0").rename(partition)
        wait_until(lambda: told("-b", broker.address)[0] == OK, "t-0 is opened")


def test_nothing_runs(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        for words in (("-b", address), ("--data", str(tmp_path))):
            code, report = told(*words)
            assert (code, report["status"]) == (NOT_RUNNING, "not running")
            ran = status(*words)
            assert (ran.exit_code, ran.stdout) == (NOT_RUNNING, "")
            assert ran.stderr.startswith("shmbroker: ") and ran.stderr.count("\n") == 1


def test_something_else_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"

        def answer() -> None:
            while True:
                try:
                    with other.accept()[0] as client:
                        client.recv(100)
                        client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                except OSError:
                    return

        threading.Thread(target=answer, daemon=True).start()
        code, report = told("-b", address)
        assert (code, report["status"]) == (NOT_TOLD, "not told")
        other.shutdown(socket.SHUT_RDWR)
