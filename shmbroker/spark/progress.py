"""What the micro-batches of streaming queries have done, for who looks at a terminal or a log.

Spark reports each micro-batch by a progress. An idle query reports now and then, too, with the
number of the micro-batch that is yet to come: such a progress has no `addBatch` among its times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TextIO

from shmbroker import clock
from shmbroker.spark.running import lag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

LINE_S = 60.0
"""How often there is a line where stderr is no terminal."""


class QueryProgress:
    """One query, from its reports."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.micro_batches = 0
        self.records = 0
        self.behind: int | None = None
        self._last = -1

    def look(self, query: StreamingQuery) -> None:
        """Take in what is reported since the last look."""
        latest = query.lastProgress
        if latest is None:
            return
        self.behind = lag(latest)[0]
        if self._last < 0 or int(latest["batchId"]) > self._last + 1:
            reports = query.recentProgress  # some were missed; Spark keeps the last 100
        else:
            reports = [latest]
        for report in reports:
            batch = int(report["batchId"])
            if batch > self._last and "addBatch" in report["durationMs"]:
                self._last = batch
                self.micro_batches += 1
                self.records += int(report["numInputRows"])

    def line(self) -> str:
        """How far it is."""
        batches = "micro-batch" if self.micro_batches == 1 else "micro-batches"
        text = f"{self.name}: {self.micro_batches:,} {batches}, {self.records:,} records read"
        return text if not self.behind else f"{text}, {self.behind:,} behind"


class Reporter:
    """Tells of several queries: on a terminal in one line that changes, else by a line a minute."""

    def __init__(
        self, queries: Sequence[Any], terminal: TextIO, now: Callable[[], float] = clock.monotonic
    ) -> None:
        self.each = [QueryProgress(query.name) for query in queries]
        self._queries = queries
        self._terminal = terminal
        self._is_terminal = terminal.isatty()
        self._now = now
        self._began = self._told = now()

    def look(self) -> None:
        """Tell, if it is time."""
        for progress, query in zip(self.each, self._queries, strict=True):
            progress.look(query)
        if self._is_terminal:
            self._terminal.write("\r" + "; ".join(each.line() for each in self.each) + "\x1b[K")
        elif self._now() - self._told >= LINE_S:
            self._told = self._now()
            self._terminal.write("".join(f"shmbroker: {each.line()}\n" for each in self.each))
        self._terminal.flush()

    def summary(self) -> str:
        """A line for each query, at the end."""
        if self._is_terminal:
            self._terminal.write("\r\x1b[K")
            self._terminal.flush()
        seconds = self._now() - self._began
        return "\n".join(f"{each.line()}, {seconds:.1f} s" for each in self.each)
