"""What an ingest does, as its tasks and its checkpoint know it. Pure but for the schema."""

import json
import os.path
from typing import Any, NamedTuple

import pyarrow as pa

from shmbroker.errors import ConfigFault
from shmbroker.spark.ingest import values

PARQUET = "parquet"
DELTA = "delta"
JSON = "json"
FORMATS = (PARQUET, DELTA, JSON)
COMPRESSIONS = ("snappy", "zstd", "gzip", "lz4", "none")

RAW_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The columns of the files where values stay as they are."""

_RECORD_TYPES = {
    "key": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
}
RECORD_COLUMNS = tuple(_RECORD_TYPES)
"""What may stand beside a value's columns, with "record_" before the name."""


class IngestPlan(NamedTuple):
    """All that tasks need; small enough to go to each."""

    ingest_id: str
    topic: str
    path: str
    format: str = PARQUET
    values: str = values.RAW
    schema: str = ""
    """DDL, or JSON for Avro; empty for raw values."""
    delimiter: str = ","
    record_columns: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    compression: str = "snappy"
    target_bytes: int = 128 << 20
    dead_letter_topic: str = ""
    dead_letter_path: str = ""
    bootstrap_servers: str = ""
    profile: str = ""
    """How the cluster is entered, by its name (`client.profiles`)."""
    skips_bad: bool = False
    """Bad records are left out, and counted."""
    since: int = 0
    """The first micro-batch of these settings: those before are done, with others."""
    checkpoint: str = ""

    def arrow_schema(self) -> pa.Schema:
        """The columns of the rows, partition columns included."""
        if self.values == values.RAW:
            kinds = _RECORD_TYPES | {"value": pa.binary(), "timestampType": pa.int32()}
            return pa.schema([(name, kinds[name]) for name in RAW_COLUMNS])
        columns = list(values.columns_of(self.values, self.schema))
        columns += [pa.field(f"record_{name}", _RECORD_TYPES[name]) for name in self.record_columns]
        return pa.schema([field.with_nullable(True) for field in columns])

    def given_columns(self) -> set[str]:
        """The columns that have a value in each row."""
        if self.values == values.RAW:
            return set(RAW_COLUMNS) - {"key", "value"}
        columns = values.columns_of(self.values, self.schema)
        given = {field.name for field in columns if not field.nullable}
        return given | {f"record_{name}" for name in self.record_columns if name != "key"}

    def check(self) -> None:
        """ConfigFault for what does not go together."""
        if self.format not in FORMATS:
            raise ConfigFault(f"the format is one of {', '.join(FORMATS)}, not {self.format!r}")
        if self.values not in values.KINDS:
            raise ConfigFault(f"values are one of {', '.join(values.KINDS)}, not {self.values!r}")
        if self.values != values.RAW and not self.schema:
            others = "" if "avro" in self.values else ", or --infer finds the columns out"
            raise ConfigFault(f"--values {self.values} needs --schema{others}")
        if self.values == values.RAW and self.record_columns:
            raise ConfigFault(
                "--record-columns stand beside the columns of --schema or --infer; raw files have"
                " all of them"
            )
        if "," in self.topic:
            raise ConfigFault(f"topics are given one by one, with spaces: {self.topic}")
        if self.dead_letter_topic == self.topic:
            raise ConfigFault(f"dead letters into {self.topic} would be read again, without end")
        if self.dead_letter_path:
            paths = (self.path, self.dead_letter_path)
            if os.path.commonpath(paths) in paths:
                raise ConfigFault(
                    f"dead letters in {paths[1]} and rows in {paths[0]} would be read as one table:"
                    " give them directories beside each other"
                )
        for name in self.record_columns:
            if name not in RECORD_COLUMNS:
                raise ConfigFault(
                    f"a record has no column {name}; it has {', '.join(RECORD_COLUMNS)}"
                )
        if self.values != values.RAW:
            values.decoder(self.values, self.schema, self.delimiter)
        schema = self.arrow_schema()
        twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if twice:
            raise ConfigFault(f"the table would have two columns {twice[0]}")
        for name in self.partition_by:
            if name not in schema.names:
                raise ConfigFault(
                    f"--partition-by names {name}, but the columns are {', '.join(schema.names)}"
                )
            if name[0] in "_.":
                raise ConfigFault(
                    f"--partition-by can't take {name}: readers leave out directories that begin"
                    ' with "_" or "."'
                )
            kind = schema.field(name).type
            if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_floating(kind):
                raise ConfigFault(f"--partition-by can't take {name}, which is of type {kind}")
        if len(self.partition_by) == len(schema.names):
            raise ConfigFault("--partition-by leaves no column for the files")


def cluster_options(plan: IngestPlan) -> dict[str, str]:
    """What a source or sink needs to reach the plan's cluster."""
    profile = {"profile": plan.profile} if plan.profile else {}
    return {"kafka.bootstrap.servers": plan.bootstrap_servers, **profile}


def to_json(plan: IngestPlan) -> str:
    """The text that `from_json` makes this plan of."""
    return json.dumps(plan._asdict(), indent=1, ensure_ascii=False)


def from_json(text: str) -> IngestPlan:
    """A plan of its text; ConfigFault if it is none."""
    try:
        given: dict[str, Any] = json.loads(text)
        fields = {name: value for name, value in given.items() if name in IngestPlan._fields}
        for name in ("record_columns", "partition_by"):
            fields[name] = tuple(fields[name])
        return IngestPlan(**fields)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigFault(f"ingest.json of the checkpoint is damaged: {error}") from error
