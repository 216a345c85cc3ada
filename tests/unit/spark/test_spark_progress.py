"""How far queries are, of what Spark reports, on a terminal and in a log."""

import io
from typing import Any

import pytest

pytest.importorskip("pyspark")

from shmbroker.spark.progress import LINE_S, Reporter


class Query:
    name = "0-delays"

    def __init__(self) -> None:
        self.recentProgress: list[dict[str, Any]] = []

    @property
    def lastProgress(self) -> Any:
        return self.recentProgress[-1] if self.recentProgress else None

    def report(self, batch: int, rows: int, is_idle: bool = False, end: int = 0) -> None:
        source = {
            "latestOffset": '{"t": {"0": 10}, ":topic_ids": {"t": "AAAAAAAAAAAAAAAAAAAAAQ"}}',
            "endOffset": f'{{"t": {{"0": {end}}}}}',
        }
        other = {"latestOffset": '{"logOffset": 3}', "endOffset": '{"logOffset": 3}'}
        times = {} if is_idle else {"addBatch": 5}
        self.recentProgress.append(
            {
                "batchId": batch,
                "numInputRows": rows,
                "durationMs": times,
                "sources": [source, other],
            }
        )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_micro_batches_are_counted_once_and_idle_reports_not_at_all() -> None:
    query, log, now = Query(), io.StringIO(), [0.0]
    reporter = Reporter([query], log, lambda: now[0])
    reporter.look()
    query.report(0, 4, end=4)
    query.report(1, 3, end=7)  # two since the last look
    reporter.look()
    reporter.look()
    query.report(2, 0, is_idle=True, end=7)
    reporter.look()
    query.report(2, 2, end=9)
    assert log.getvalue() == ""
    now[0] = LINE_S
    reporter.look()
    reporter.look()
    line = "0-delays: 3 micro-batches, 9 records read, 1 behind"
    assert log.getvalue() == f"shmbroker: {line}\n"
    assert reporter.summary() == f"{line}, 60.0 s"


def test_a_terminal_has_one_line_that_changes() -> None:
    query, terminal = Query(), Terminal()
    reporter = Reporter([query], terminal, lambda: 0.0)
    query.report(0, 10, end=10)
    reporter.look()
    assert terminal.getvalue() == "\r0-delays: 1 micro-batch, 10 records read\x1b[K"
