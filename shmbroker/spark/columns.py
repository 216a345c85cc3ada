"""The columns of a read: which there are, which of them a query wants, and which it says to be NOT
NULL.

Rules of this file:
* Names and types are those of Spark's Kafka source. That source lets every column be null; of one
  that is not, Spark doesn't ask for each cell whether it is.
* A narrower schema is taken as it is given, and a column that it can't have is a ConfigFault.
"""

from __future__ import annotations

from shmbroker.errors import ConfigFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from shmbroker.spark.options import Options

SCHEMA = (
    "key binary, value binary, topic string not null, partition int not null,"
    " offset bigint not null, timestamp timestamp not null, timestampType int not null"
)
HEADERS_SCHEMA = ", headers array<struct<key string, value binary>>"

_MAY_BE_NULL = frozenset({"key", "value", "headers"})


def columns_of(schema: StructType, options: Options) -> tuple[tuple[str, ...], frozenset[str]]:
    """The columns to decode, all or those of a narrower schema that the query was given; which of
    them it declares NOT NULL."""
    if options.emits_ranges:
        return tuple(schema.fieldNames()), frozenset()
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        DataType,
        IntegerType,
        LongType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    types: dict[str, DataType] = {
        "key": BinaryType(),
        "value": BinaryType(),
        "topic": StringType(),
        "partition": IntegerType(),
        "offset": LongType(),
        "timestamp": TimestampType(),
        "timestampType": IntegerType(),
        "headers": ArrayType(header),
    }
    for field in schema.fields:
        if field.name not in types:
            raise ConfigFault(f"column {field.name} is none of {', '.join(types)}")
        if field.dataType != types[field.name]:
            raise ConfigFault(
                f"column {field.name} is of type {types[field.name].simpleString()}, not"
                f" {field.dataType.simpleString()}: cast it in the query"
            )
        if not field.nullable and field.name in _MAY_BE_NULL:
            raise ConfigFault(f"column {field.name} may have nulls: declare it without NOT NULL")
    names = tuple(schema.fieldNames())
    if not names:
        raise ConfigFault("a schema without columns can't be read")
    return names, frozenset(field.name for field in schema.fields if not field.nullable)


def declared(
    batches: Iterable[pa.RecordBatch], required: frozenset[str]
) -> Iterator[pa.RecordBatch]:
    """The batches, with these columns declared to have no nulls."""
    import pyarrow as pa

    schema = None
    for batch in batches:
        if schema is None:
            fields = [field.with_nullable(field.name not in required) for field in batch.schema]
            schema = pa.schema(fields)
        yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
