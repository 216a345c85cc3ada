"""Streaming queries that a command runs: a session, an end in order, a fault in one sentence.

    with session(master, log) as (spark, terminal):
        stopping = Stopping()
        query = …start()
        follow([query], stopping, on_progress)

Spark and its JVM write to stderr as they like; it goes into a log file as long as the session
lives, and the command writes to `terminal` instead. The JVM has that file as long as it lives,
which after kill -9 of the command is some seconds more, in which it goes on with the micro-batch.
So the file is locked, too, and the next run waits until nobody has it: two JVMs in one checkpoint
would end each other.

The first SIGTERM or Ctrl-C lets the micro-batch that is running end and stops the query then; what
a later one has begun by that time is thrown away, and done again by the next run. The second one
ends at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TextIO

from shmbroker import clock
from shmbroker.errors import ConfigFault, Fault
from shmbroker.spark.offsets import from_json
from shmbroker.spark.options import TOPIC_IDS
from shmbroker.spark.session import java_home, session_conf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql.streaming.query import StreamingQuery

NEEDS_PYSPARK = "this needs PySpark: pip install 'pyspark>=4.2' pyarrow"
LOOK_S = 0.2
"""How often queries are looked at."""

JVM_S_MAX = 60.0
"""How long the JVM of a killed run is waited for."""

_FAULT = re.compile(r"shmbroker\.[\w.]+Fault: ([^\n]*)")
_CONDITION = re.compile(r"^\[[A-Z_.0-9]+\] ")


class QueryFault(Fault):
    """A query ended by a failure, or can't be made."""


class Stopping:
    """Whether the user wants an end; installs handlers of SIGTERM and SIGINT."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.install()

    def install(self) -> None:
        """Again, as Spark's context sets a handler of its own for SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number


@contextlib.contextmanager
def only_one(checkpoint: Path) -> Iterator[None]:
    """Let nobody else run queries from this checkpoint meanwhile; ConfigFault if somebody does.

    The kernel takes the lock from a process that dies.
    """
    checkpoint.mkdir(parents=True, exist_ok=True)
    with (checkpoint / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigFault(
                f"another run uses the checkpoint {checkpoint}: stop it, or wait until it has ended"
            ) from None
        yield


def check_arrow() -> None:
    """ConfigFault where pyarrow is not installed, which comes along with PySpark."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise ConfigFault(NEEDS_PYSPARK) from None


@contextlib.contextmanager
def session(
    master: str, name: str, log: Path, conf: dict[str, str]
) -> Iterator[tuple[Any, TextIO]]:
    """A Spark session, and the terminal to write to; stderr goes into the log meanwhile."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise ConfigFault(NEEDS_PYSPARK) from None
    os.environ["JAVA_HOME"] = java_home()
    is_local = master.startswith("local")
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Spark's Python processes look for pyspark_shmbroker in their path
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    settings: dict[str, bool | float | int | str | None] = {
        **session_conf(conf=conf),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        **conf,
    }
    log.parent.mkdir(parents=True, exist_ok=True)
    with _errors_into(log) as terminal:
        try:
            builder = SparkSession.builder.master(master).appName(name).config(map=settings)
            spark = builder.getOrCreate()
        except Exception as error:  # of py4j, of the launcher: no session, for whatever reason
            raise QueryFault(
                f"Spark does not start with --master {master}: {sentence(error)} ({log})"
            ) from error
        try:
            spark.sparkContext.setLogLevel("WARN")
            yield spark, terminal
        finally:
            with contextlib.suppress(Exception):  # the JVM may be gone
                spark.stop()


@contextlib.contextmanager
def _errors_into(log: Path) -> Iterator[TextIO]:
    sys.stderr.flush()
    saved = os.dup(2)
    with log.open("ab") as file, os.fdopen(os.dup(saved), "w") as terminal:
        if not _has_jvm():
            lock_when_free(file, JVM_S_MAX)
        os.dup2(file.fileno(), 2)
        try:
            yield terminal
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)


def _has_jvm() -> bool:
    """Whether this process has started its JVM before: an earlier session's lock is its own."""
    from pyspark import SparkContext

    return SparkContext._gateway is not None


def lock_when_free(file: IO[bytes], wait_s: float) -> None:
    """Lock a log for this process and those that get it as their stderr; ConfigFault if others
    keep it locked for `wait_s`."""
    deadline = clock.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock.monotonic() > deadline:
                raise ConfigFault(
                    f"the JVM of a killed run has lived for {wait_s:.0f} s and still writes"
                    f" {file.name}: end it (`fuser {file.name}` names it)"
                ) from None
            clock.sleep(LOOK_S)
        else:
            return


def follow(queries: Sequence[Any], stopping: Stopping, look: Callable[[], None]) -> None:
    """Wait until all queries end, or stop them when that is wanted; `look` is called now and then.

    QueryFault, with one sentence, if one fails; the others are stopped then.
    """
    try:
        while any(query.isActive for query in queries):
            for query in queries:
                if not query.isActive:
                    _raise_failure(query)
            if stopping.signal is not None:
                for query in queries:
                    _finish(query, look)
                break
            _wait(queries)
            look()
        for query in queries:
            _raise_failure(query)
        look()
    except QueryFault:
        raise
    except Exception as error:  # a signal to the whole process group ends the JVM, too
        # py4j hands on what the socket says where it connects anew
        if isinstance(error, ConnectionError) or type(error).__module__.startswith("py4j"):
            raise QueryFault(
                "Spark's JVM has ended; the next run does the micro-batch again"
            ) from error
        raise
    finally:
        for query in queries:
            with contextlib.suppress(Exception):  # the JVM may be gone
                query.stop()


def _wait(queries: Sequence[Any]) -> None:
    active = next((query for query in queries if query.isActive), None)
    if active is not None:
        try:
            active.awaitTermination(LOOK_S)
        except Exception:
            _raise_failure(active)
            raise


def _finish(query: StreamingQuery, look: Callable[[], None]) -> None:
    """Let the micro-batch that runs end, then stop."""
    begun = _last_batch(query)
    while query.isActive and query.status["isTriggerActive"] and _last_batch(query) == begun:
        _wait([query])
        look()
    query.stop()


def _last_batch(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def _raise_failure(query: StreamingQuery) -> None:
    error = query.exception()
    if error is not None:
        raise QueryFault(sentence(error)) from error


def sentence(error: BaseException) -> str:
    """What went wrong, without traceback: the fault that a task told, else Spark's first line."""
    text = str(error)
    told = _FAULT.findall(text)
    if told:
        return str(told[-1]).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [repr(error)]
    return _CONDITION.sub("", lines[0])[:400]


def lag(progress: Any) -> tuple[int, str]:
    """Records behind the topics' ends after a micro-batch, over all sources that tell, and by
    which way it was read."""
    from shmbroker.spark.lag import document_of

    behind, way = 0, ""
    for source in progress["sources"]:
        latest = document_of(source.get("latestOffset"))
        if TOPIC_IDS not in latest:
            continue  # of another kind
        ends = from_json(document_of(source.get("endOffset")))[0]
        for place, offset in from_json(latest)[0].items():
            behind += max(0, offset - ends.get(place, 0))
        way = str(latest.get(":read") or way)
    return behind, way
