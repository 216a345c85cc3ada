"""The SQL of a pipeline: statements, streams, inserts."""

import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from py4j.protocol import Py4JError

from shmbroker.errors import ConfigFault
from shmbroker.spark.pipeline import Insert, Job, SparkStatement, Stream, parse, split
from shmbroker.spark.running import QueryFault, follow, lock_when_free, only_one

CLUSTER = {"kafka.bootstrap.servers": "h:1"}
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("", []),
        (" ; ;", []),
        ("a; b", ["a", "b"]),
        ("a -- b; c\n; d", ["a", "d"]),
        ("a /* b; */ c", ["a   c"]),
        ("a ';' b; c", ["a ';' b", "c"]),
        ("a 'it''s; --' ; b", ["a 'it''s; --'", "b"]),
        (r"a 'x\';y' ; b", [r"a 'x\';y'", "b"]),
        ("`a;b`", ["`a;b`"]),
    ],
)
def test_statements_are_cut_outside_of_quotes(text: str, statements: list[str]) -> None:
    assert split(text) == statements


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("select 1", SparkStatement("select 1")),
        ("create stream s from topic t", Stream("s", "", "t", {})),
        (
            "CREATE STREAM s (a int, b decimal(3, 1)) FROM TOPIC `a-b.c`"
            " WITH (watermark = 'at 1 day', startingOffsets='latest')",
            Stream(
                "s",
                "a int, b decimal(3, 1)",
                "a-b.c",
                {"watermark": "at 1 day", "startingOffsets": "latest"},
            ),
        ),
        ("CREATE STREAM s(a int) FROM TOPIC t", Stream("s", "a int", "t", {})),
        (
            "CREATE STREAM s FROM TOPIC t WITH (maxBytesPerTrigger=64m, kafka.group.id = g-1)",
            Stream("s", "", "t", {"maxBytesPerTrigger": "64m", "kafka.group.id": "g-1"}),
        ),
        (
            "INSERT INTO TOPIC t WITH (mode = 'update') SELECT 1",
            Insert("t", {"mode": "update"}, "SELECT 1"),
        ),
        (
            "insert into topic t with (a.b = 'it''s (x') with q as (select 1) select * from q",
            Insert("t", {"a.b": "it's (x"}, "with q as (select 1) select * from q"),
        ),
        (
            "INSERT INTO TOPIC t WITH q AS (SELECT 1) SELECT * FROM q",
            Insert("t", {}, "WITH q AS (SELECT 1) SELECT * FROM q"),
        ),
    ],
)
def test_a_statement_is_read(text: str, statement: object) -> None:
    assert parse(text, {}) == [statement]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("CREATE STREAM s (a int", "')' is missing"),
        ("CREATE STREAM s (a int)", "FROM TOPIC is missing"),
        ("CREATE STREAM s FROM TOPIC t WITH (a = 1 + 1)", "WITH takes"),
        ("CREATE STREAM s FROM TOPIC t AND MORE", "too much"),
        ("INSERT INTO TOPIC t", "SELECT is missing"),
        ("select ${x}", "--set x=VALUE"),
    ],
)
def test_what_can_not_be_read_is_told(text: str, told: str) -> None:
    with pytest.raises(ConfigFault) as fault:
        parse(text, {})
    assert told in str(fault.value)


def test_the_example_is_read() -> None:
    text = (EXAMPLES / "flights.sql").read_text()
    flights, airlines, delays = parse(text, {"here": "/somewhere"})
    assert isinstance(flights, Stream)
    assert flights.topic == "flights"
    assert isinstance(airlines, SparkStatement)
    assert "/somewhere/airlines.csv" in airlines.text
    assert isinstance(delays, Insert)
    assert delays.topic == "delays"


def test_the_document_shows_the_example() -> None:
    document = (EXAMPLES.parent / "docs" / "pipeline.md").read_text()
    (shown,) = re.findall(r"```sql\n(.*?)```", document, re.DOTALL)
    assert split(shown) == split((EXAMPLES / "flights.sql").read_text())


def test_a_query_keeps_its_checkpoint_when_others_come_and_go(tmp_path: Path) -> None:
    class Query:
        def __init__(self, name: str) -> None:
            self.name = name

    def named(*topics: str) -> list[str]:
        job = Job(None, CLUSTER, tmp_path, {}, {})
        for topic in topics:
            job.queries.append(Query(job._name_of(topic)))
            (tmp_path / job.queries[-1].name).mkdir(exist_ok=True)
        return [query.name for query in job.queries]

    assert named("a", "b-c") == ["0-a", "0-b-c"]
    assert named("new", "b-c", "a") == ["0-new", "0-b-c", "0-a"]
    assert named("b-c", "b-c", "b-c") == ["0-b-c", "1-b-c", "2-b-c"]
    (tmp_path / "3-old").mkdir()
    (tmp_path / "5-old").mkdir()
    assert named("old", "a", "old", "old") == ["3-old", "0-a", "5-old", "6-old"]


@pytest.mark.parametrize("level", [None, "read_uncommitted"])
def test_a_stream_reads_what_is_committed_unless_the_other_is_asked_for(
    tmp_path: Path, level: str | None
) -> None:
    class Loaded(Exception):
        """What `load` is for is not looked at."""

    class Session:
        def __init__(self) -> None:
            self.given: dict[str, str] = {}
            self.readStream = self

        def format(self, _name: str) -> "Session":
            return self

        def options(self, **given: str) -> "Session":
            self.given = {name.lower(): value for name, value in given.items()}
            assert len(self.given) == len(given)
            return self

        def load(self) -> None:
            raise Loaded

    session = Session()
    asked = {} if level is None else {"Kafka.isolation.level": level}
    with pytest.raises(Loaded):
        Job(session, CLUSTER, tmp_path, {}, {}).stream("a", **asked)
    assert session.given["kafka.isolation.level"] == (level or "read_committed")


def test_the_jvm_of_a_killed_run_keeps_the_log_locked(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    with log.open("ab") as file:
        lock_when_free(file, 0)
        words = [sys.executable, "-c", "input()"]
        jvm = subprocess.Popen(words, stdin=subprocess.PIPE, stderr=file)
    with log.open("ab") as file:
        with pytest.raises(ConfigFault, match=r"JVM of a killed run .*spark\.log"):
            lock_when_free(file, 0)
        jvm.communicate(b"\n")
        lock_when_free(file, 60)


def test_a_checkpoint_has_one_run_at_a_time(tmp_path: Path) -> None:
    with only_one(tmp_path / "new" / "checkpoint"):
        again = only_one(tmp_path / "new" / "checkpoint")
        with pytest.raises(ConfigFault, match=r"another run uses .*checkpoint: stop it"), again:
            pass
        with only_one(tmp_path / "other"):
            pass
    with only_one(tmp_path / "new" / "checkpoint"):
        pass


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "Connection refused"), Py4JError()])
def test_a_jvm_that_has_ended_is_told(error: Exception) -> None:
    class Query:
        @property
        def isActive(self) -> bool:
            raise error

        def stop(self) -> None:
            raise error

    stopping = types.SimpleNamespace(signal=None)
    with pytest.raises(QueryFault, match="JVM has ended; the next run does the micro-batch again"):
        follow([Query()], stopping, lambda: None)  # type: ignore[arg-type]
