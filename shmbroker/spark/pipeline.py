"""`shmbroker pipeline run`: stream jobs from topics to topics, in SQL or Python.

SQL: statements with ";" between them. Spark's own, and two more:

    CREATE STREAM name (columns) FROM TOPIC topic [WITH (option = 'value', option = word, …)]
    INSERT INTO TOPIC topic [WITH (option = 'value', …)] SELECT …

A stream is a view that SELECT may name. Its columns are those of the values, JSON objects, beside
them the record's `record_key`, `record_topic`, `record_partition`, `record_offset` and
`record_timestamp`. Without (columns) there is `value` as text. Options:

    watermark = 'column 10 minutes'     how late rows may be; windows need it
    startingOffsets = 'latest', …       of the source; earliest where nothing is said, and of
                                        transactions those that are committed

INSERT starts a query that goes on. A column `value` is written as it is, else the row as JSON; a
column `key` is the key, and not in the JSON. Options: `mode` (append, update, complete), and those
of the sink. What goes before `INSERT` is made before the first query starts: files as tables by
Spark's `CREATE TEMPORARY VIEW … USING csv OPTIONS (…)`.

Python: the file defines `def pipeline(job)`, which gets a `Job`.

`${name}` in SQL is replaced by a variable: `--set name=value`, and `here`, the file's directory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from shmbroker.errors import ConfigFault
from shmbroker.spark import producer_options
from shmbroker.spark.running import QueryFault, sentence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_ISOLATION = "kafka.isolation.level"
RECORD_COLUMNS = ("key", "topic", "partition", "offset", "timestamp")

_STREAM = re.compile(
    r"\s*CREATE\s+STREAM\s+(?P<name>\w+)\s*(?P<rest>.*)", re.IGNORECASE | re.DOTALL
)
_FROM = re.compile(
    r"\s*FROM\s+TOPIC\s+(?P<topic>[\w.-]+|`[^`]+`|'[^']+')\s*(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_INSERT = re.compile(
    r"\s*INSERT\s+INTO\s+TOPIC\s+(?P<topic>[\w.-]+|`[^`]+`|'[^']+')\s*(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_WITH = re.compile(r"\s*WITH\s*(?=\()", re.IGNORECASE)
_OPTION = re.compile(r"\s*([\w.]+|'[^']+')\s*=\s*(?:'((?:[^']|'')*)'|([\w.:-]+))\s*(?:,|$)")
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_OUTPUT_MODES = ("append", "update", "complete")


class Stream(NamedTuple):
    """CREATE STREAM."""

    name: str
    columns: str
    topic: str
    options: dict[str, str]


class Insert(NamedTuple):
    """INSERT INTO TOPIC."""

    topic: str
    options: dict[str, str]
    select: str


class SparkStatement(NamedTuple):
    """A statement of Spark's."""

    text: str


Statement = Stream | Insert | SparkStatement


def parse(text: str, variables: Mapping[str, str]) -> list[Statement]:
    """The statements of a file; ConfigFault for one that can't be read. Pure."""

    def value_of(match: re.Match[str]) -> str:
        if match[1] not in variables:
            raise ConfigFault(f"${{{match[1]}}} has no value: --set {match[1]}=VALUE")
        return variables[match[1]]

    return [_statement(each) for each in split(_VARIABLE.sub(value_of, text))]


def split(text: str) -> list[str]:
    """Statements without comments: cut at ";" outside of quotes. Pure."""
    found: list[str] = []
    current: list[str] = []
    pattern = re.compile(
        r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|;|.", re.DOTALL
    )
    for match in pattern.finditer(text):
        piece = match[0]
        if piece == ";":
            found.append("".join(current))
            current.clear()
        elif piece.startswith(("--", "/*")):
            current.append(" ")
        else:
            current.append(piece)
    found.append("".join(current))
    return [statement.strip() for statement in found if statement.strip()]


def _statement(text: str) -> Statement:
    if match := _STREAM.match(text):
        columns, rest = _brackets(match["rest"])
        source = _FROM.match(rest)
        if source is None:
            raise ConfigFault(
                f"CREATE STREAM {match['name']}: FROM TOPIC is missing before {rest[:30]!r}"
            )
        options, rest = _options(source["rest"])
        if rest.strip():
            raise ConfigFault(f"CREATE STREAM {match['name']}: {rest.strip()[:30]!r} is too much")
        return Stream(match["name"], columns, source["topic"].strip("`'"), options)
    if match := _INSERT.match(text):
        options, rest = _options(match["rest"])
        if not rest.strip():
            raise ConfigFault(f"INSERT INTO TOPIC {match['topic']}: the SELECT is missing")
        return Insert(match["topic"].strip("`'"), options, rest.strip())
    return SparkStatement(text)


def _brackets(text: str) -> tuple[str, str]:
    """What is in the parentheses at the beginning, and what follows; nothing without them."""
    if not text.startswith("("):
        return "", text
    depth = 0
    in_quotes = False
    for place, letter in enumerate(text):
        in_quotes ^= letter == "'"
        depth += 0 if in_quotes else (letter == "(") - (letter == ")")
        if not depth:
            return text[1:place].strip(), text[place + 1 :]
    raise ConfigFault(f"')' is missing: {text[:30]!r}")


def _options(text: str) -> tuple[dict[str, str], str]:
    """The options of WITH (…), and what follows."""
    match = _WITH.match(text)
    if match is None:
        return {}, text
    inside, rest = _brackets(text[match.end() :])
    options = {}
    position = 0
    while position < len(inside):
        found = _OPTION.match(inside, position)
        if found is None:
            raise ConfigFault(f"WITH takes name = 'value', …, not {inside[position:][:30]!r}")
        value = found[3] if found[2] is None else found[2].replace("''", "'")
        options[found[1].strip("'")] = value
        position = found.end()
    return options, rest


class Job:
    """What a pipeline is made with; `queries` are those that it has started."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: Mapping[str, str],
        checkpoint: Path,
        trigger: Mapping[str, Any],
        variables: Mapping[str, str],
    ) -> None:
        self.spark = spark
        self.cluster = dict(cluster)
        """Options that name the cluster, of sources and sinks."""
        self.checkpoint = checkpoint
        self.variables = variables
        self.queries: list[StreamingQuery] = []
        self._trigger = trigger

    def stream(
        self, topic: str, columns: str = "", watermark: str = "", **options: str
    ) -> DataFrame:
        """A topic as a streaming DataFrame; `columns` (DDL) of its JSON values, `watermark` as
        "column 10 minutes", the options are the source's."""
        from pyspark.sql import functions as F

        given = {
            **self.cluster,
            "subscribe": topic,
            "startingOffsets": "earliest",
        } | options
        if _ISOLATION not in {name.lower() for name in options}:
            given[_ISOLATION] = "read_committed"
        if not {name.lower() for name in options} & {"groupidprefix", "kafka.group.id"}:
            given["groupIdPrefix"] = f"pipeline-{self.checkpoint.name.partition('.')[0]}"
        rows = self.spark.readStream.format("shmbroker").options(**given).load()
        value = F.col("value").cast("string")
        beside = [F.col(name).alias(f"record_{name}") for name in RECORD_COLUMNS]
        beside[0] = F.col("key").cast("string").alias("record_key")
        if columns:
            rows = rows.select(F.from_json(value, columns).alias("row"), *beside)
            rows = rows.select("row.*", *(f"record_{name}" for name in RECORD_COLUMNS))
        else:
            rows = rows.select(value.alias("value"), *beside)
        if watermark:
            column, _, delay = watermark.strip().partition(" ")
            if not delay:
                raise ConfigFault(f"watermark takes 'column 10 minutes', not {watermark!r}")
            rows = rows.withWatermark(column, delay)
        return rows

    def write(
        self, rows: DataFrame, topic: str, mode: str = "append", **options: str
    ) -> StreamingQuery:
        """Start a query that writes rows into a topic, each once."""
        from pyspark.sql import functions as F

        if mode not in _OUTPUT_MODES:
            raise ConfigFault(f"mode is one of {', '.join(_OUTPUT_MODES)}, not {mode!r}")
        columns = rows.columns
        if "value" not in columns:
            names = [name for name in columns if name != "key"]
            rows = rows.withColumn("value", F.to_json(F.struct(*(f"`{name}`" for name in names))))
        picked = [F.col(name).cast("string") for name in ("key", "value") if name in rows.columns]
        name = self._name_of(topic)
        sink = self.cluster | {"topic": topic} | options
        writer = (
            rows.select(*picked)
            .writeStream.outputMode(mode)
            .queryName(name)
            .option("checkpointLocation", str(self.checkpoint / name))
            .trigger(**self._trigger)
        )
        if mode == "update":  # which Spark refuses to hand to a sink in Python
            writer = writer.foreachBatch(_batch_writer(sink))
        else:
            writer = writer.format("shmbroker").options(**sink)
        query = writer.start()
        self.queries.append(query)
        return query

    def _name_of(self, topic: str) -> str:
        """The name of the next query into a topic, and of its checkpoint.

        It counts those into the same topic only, so that a query that is added to the file, or
        taken out, leaves the others their checkpoints. Earlier versions counted all queries of the
        file: what they have made is taken in its order.
        """
        before = sum(query.name.partition("-")[2] == topic for query in self.queries)
        numbers = sorted(
            int(path.name.partition("-")[0])
            for path in self.checkpoint.glob("[0-9]*-*")
            if path.name.partition("-")[2] == topic and path.name.partition("-")[0].isdecimal()
        )
        if before < len(numbers):
            return f"{numbers[before]}-{topic}"
        return f"{max([*numbers, before - 1]) + 1}-{topic}"


def _batch_writer(sink: Mapping[str, str]) -> Callable[[DataFrame, int], None]:
    """What writes the rows of a micro-batch by a batch write, each once, too."""
    is_exactly_once = producer_options.parse(sink, is_stream=True).is_exactly_once

    def write(rows: DataFrame, batch: int) -> None:
        writer = rows.write.format("shmbroker").options(**sink)
        if is_exactly_once:
            query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
            writer = writer.options(txnAppId=query, txnVersion=str(batch))
        writer.mode("append").save()

    return write


def start(job: Job, file: Path, text: str) -> None:
    """Start the queries of a file; QueryFault or ConfigFault if it can't be run."""
    try:
        if file.suffix == ".py":
            _start_python(job, file, text)
        else:
            _start_sql(job, text)
    except (ConfigFault, QueryFault):
        raise
    except Exception as error:  # of Spark's analysis, of the user's program
        raise QueryFault(f"{file}: {sentence(error)}") from error
    if not job.queries:
        raise ConfigFault(f"{file} starts no query: INSERT INTO TOPIC in SQL, job.write in Python")


def _start_sql(job: Job, text: str) -> None:
    for statement in parse(text, job.variables):
        if isinstance(statement, Stream):
            rows = job.stream(statement.topic, statement.columns, **statement.options)
            rows.createOrReplaceTempView(statement.name)
        elif isinstance(statement, Insert):
            job.write(job.spark.sql(statement.select), statement.topic, **statement.options)
        else:
            job.spark.sql(statement.text)


def _start_python(job: Job, file: Path, text: str) -> None:
    names: dict[str, Any] = {"__name__": "pipeline", "__file__": str(file)}
    exec(compile(text, str(file), "exec"), names)
    if "pipeline" not in names:
        raise ConfigFault(f"{file} has no function pipeline(job)")
    names["pipeline"](job)
