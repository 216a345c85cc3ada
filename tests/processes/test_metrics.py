"""Metrics of a real family: what is shown after some work, who shows it, and when it dies."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest

from shmbroker.metrics.catalogue import CATALOGUE
from shmbroker.processes.supervisor import EXIT_CONFIG
from shmbroker.testing.broker import Broker, free_ports
from tests.support.acknowledged_load import batch_now
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

pytest.importorskip("prometheus_client")

from prometheus_client import parser

TOPIC = "measured"
PAGE_S = 20
Rows = dict[str, dict[tuple[str, ...], float]]
"""By series, then by the values of its labels."""


class Measured(Broker):
    """A broker that shows metrics."""

    def __init__(self, *flags: str, data: Path) -> None:
        self.metrics_port = free_ports(1)
        address = f"127.0.0.1:{self.metrics_port}"
        super().__init__("--metrics", address, *flags, data=data)

    def page(self, path: str) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.metrics_port, timeout=PAGE_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def rows(self) -> Rows:
        status, text = self.page("/metrics")
        assert status == 200
        found: Rows = {}
        for family in parser.text_string_to_metric_families(text):
            for row in family.samples:
                labels = CATALOGUE[
                    row.name
                    if row.name in CATALOGUE
                    else row.name.removesuffix("_bucket")
                    .removesuffix("_sum")
                    .removesuffix("_count")
                ].labels
                key = tuple(row.labels[label] for label in labels)
                found.setdefault(row.name, {})[key] = row.value
        return found


def committed(client: RawClient) -> None:
    """Commit an offset of a group, without being a member."""
    client.ask("FindCoordinator", 4, {"key_type": 0, "coordinator_keys": ["readers"]})
    partition = {"partition_index": 0, "committed_offset": 2, "committed_leader_epoch": -1}
    body = {
        "group_id": "readers",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": TOPIC, "partitions": [partition | {"committed_metadata": ""}]}],
    }
    answer = client.ask("OffsetCommit", 8, body)
    assert answer["topics"][0]["partitions"][0]["error_code"] == 0


def test_metrics_show_what_was_done(tmp_path: Path) -> None:
    with Measured("--network-workers", "1", data=tmp_path) as broker:
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC)
            for _ in range(5):
                assert client.produce(TOPIC, batch_now(b"value"))["error_code"] == 0
            wait_until(lambda: _try(lambda: committed(client)), "the coordinator")

            def done() -> Rows | None:
                rows = broker.rows()
                requests = rows.get("kafka_network_requestmetrics_requests_total", {})
                is_shown = rows["shmbroker_batches_appended_total"]["1",] >= 5
                is_shown &= requests.get(("network-worker-1", "Produce")) == 5
                received = rows["kafka_server_socketservermetrics_incoming_byte_total"]
                is_shown &= received["network-worker-1",] > 0  # stored beside, not at once with it
                lag = rows.get("kafka_consumergroup_lag", {}).get(("readers", TOPIC, "0"))
                return rows if is_shown and lag == 3 else None

            rows = wait_until(done, "what was done")
        for expected, series, *labels in (
            (1, "shmbroker_ready"),
            (5, "kafka_log_log_logendoffset", TOPIC, "0"),
            (5, "kafka_server_brokertopicmetrics_messagesin_total", TOPIC),
            (5, "shmbroker_batches_appended_total", "1"),
            (5, "shmbroker_request_seconds_count", "network-worker-1", "Produce"),
            (2, "kafka_consumergroup_current_offset", "readers", TOPIC, "0"),
            (3, "kafka_server_kafkaserver_brokerstate", "1"),
            (1, "shmbroker_process_up", "metrics-1"),
            (0, "shmbroker_process_restarts_total", "io-worker-1"),
        ):
            assert rows[series][tuple(labels)] == expected, series
        log_bytes = rows["kafka_log_log_size"][TOPIC, "0"]
        assert log_bytes == rows["kafka_server_brokertopicmetrics_bytesin_total"][("1",)]
        for series in (
            "kafka_server_socketservermetrics_incoming_byte_total",
            "kafka_server_socketservermetrics_outgoing_byte_total",
        ):
            assert rows[series][("network-worker-1",)] > log_bytes / 2
        assert broker.page("/healthz") == (200, "ok\n")
        assert broker.page("/readyz") == (200, "ready\n")
        assert broker.stop() == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_dead_or_hanging_one_is_replaced_and_counts_go_on(
    tmp_path: Path, how: signal.Signals
) -> None:
    quick = ("--set", "shmbroker.watchdog.warn.ms=2000", "--set", "shmbroker.watchdog.kill.ms=3000")
    with Measured(*quick, data=tmp_path) as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC)
        assert client.produce(TOPIC, batch_now(b"value"))["error_code"] == 0
        series = "shmbroker_batches_appended_total"
        wait_until(lambda: broker.rows()[series]["1",] == 1, "the count")
        before = broker.children()
        os.kill(before["metrics-1"], how)
        if how == signal.SIGSTOP:
            wait_until(lambda: "metrics-1" in broker.log and "killed" in broker.log, "its end")
        # The kernel keeps who asks meanwhile.
        rows = wait_until(lambda: _try(broker.rows), "its successor")
        assert rows[series]["1",] == 1
        assert rows["shmbroker_process_restarts_total"]["metrics-1",] == 1
        after = broker.children()
        assert after.pop("metrics-1") != before.pop("metrics-1")
        assert after == before
        assert client.produce(TOPIC, batch_now(b"value"))["error_code"] == 0


def test_broker_that_hangs_is_not_ready(tmp_path: Path) -> None:
    off = ("--set", "shmbroker.watchdog.kill.ms=0")
    with Measured(*off, data=tmp_path) as broker:
        wait_until(lambda: broker.page("/readyz")[0] == 200, "the service")
        pid = broker.children()["io-worker-1"]
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(
                lambda: "io-worker-1 gives no sign of life" in broker.page("/readyz")[1],
                "the reason",
            )
            rows = broker.rows()
            assert rows["shmbroker_ready"][()] == 0
            assert broker.page("/healthz")[0] == 200
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: broker.page("/readyz")[0] == 200, "the service again")


def test_without_the_package_one_line_says_what_is_missing(tmp_path: Path) -> None:
    hidden = (
        "import sys; sys.modules['prometheus_client'] = None; from shmbroker.cli import main; "
        "sys.argv = ['shmbroker', 'serve', '--data', sys.argv[1], '--port', '0', "
        "'--metrics', '127.0.0.1:0']; main()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", hidden, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == EXIT_CONFIG
    assert ran.stderr.splitlines() == [
        "shmbroker: --metrics needs the package prometheus_client: install it (pip install "
        "prometheus_client), or start without --metrics."
    ]


def test_without_metrics_there_is_no_process_and_no_import(tmp_path: Path) -> None:
    with Broker(data=tmp_path) as broker:
        assert not {"metrics-1", "console-1"} & broker.children().keys()
        for pid in (broker.pid, *broker.children().values()):
            assert "prometheus" not in Path(f"/proc/{pid}/maps").read_text()


def _try(ask: Callable[[], Any]) -> Any:
    try:
        return ask() or True
    except (OSError, HTTPException, AssertionError):
        return None
