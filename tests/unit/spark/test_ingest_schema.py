"""Schemas of an ingest: DDL, what is found out, Avro."""

import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa

from shmbroker.errors import ConfigFault
from shmbroker.spark.ingest import schema as schemas

UTC = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("a string", [("a", pa.string())]),
        ("a: INT, b BIGINT", [("a", pa.int32()), ("b", pa.int64())]),
        ("`a b` long , `c``d` real", [("a b", pa.int64()), ("c`d", pa.float32())]),
        ("a decimal(10,2), b decimal", [("a", pa.decimal128(10, 2)), ("b", pa.decimal128(10, 0))]),
        ("at timestamp, on_day date", [("at", UTC), ("on_day", pa.date32())]),
        ("a array<array<int>>", [("a", pa.list_(pa.list_(pa.int32())))]),
        ("s struct<x: int, y string>", [("s", pa.struct([("x", pa.int32()), ("y", pa.string())]))]),
    ],
)
def test_a_schema_is_read_and_written_again(text: str, fields: list) -> None:
    found = schemas.parse(text)
    assert found == pa.schema(fields)
    assert schemas.parse(schemas.to_text(found)) == found


def test_not_null_is_kept() -> None:
    found = schemas.parse("a int NOT NULL, b int")
    assert [field.nullable for field in found] == [False, True]
    assert schemas.to_text(found) == "a int not null, b int"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "at least one column"),
        ("a", "nothing"),
        ("a int b int", "','"),
        ("a int,", "name is missing"),
        ("a varint", "varint"),
        ("a int, a int", "twice"),
        ("a array<int", "'>'"),
        ("a struct<>", "no fields"),
        ("a decimal(99)", "decimal(99, 0)"),
        ("a decimal(5, 6)", "decimal(5, 6)"),
        ("a int; drop", "not understood"),
        ("a struct<x: int not null>", "NOT NULL"),
        ("a " + "array<" * 50 + "int" + ">" * 50, "deep"),
    ],
)
def test_what_is_no_schema_is_told(text: str, told: str) -> None:
    with pytest.raises(ConfigFault) as fault:
        schemas.parse(text)
    assert told in str(fault.value)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1, 2, None], "bigint"),
        ([1, 2.5], "double"),
        ([True, False], "boolean"),
        (["2026-01-01"], "string"),
        ([None], "string"),
        ([1, 2, "x"], "bigint"),
        (["x", "y", 1], "string"),
        ([[1], [2.5], []], "array<double>"),
        ([[]], "array<string>"),
        ([{"x": 1}, {"y": "z"}], "struct<x: bigint, y: string>"),
        ([{}], "string"),
    ],
)
def test_a_column_is_found_out(values: list, text: str) -> None:
    found = schemas.infer_json([{"a": value} for value in values] + ["no object", 3])
    assert schemas.to_text(found) == f"a {text}"


def test_names_that_no_column_can_have_are_not_found_out() -> None:
    odd = {"": 1, "\ud800": 2}
    found = schemas.infer_json([{"a": 1, "s": {"b": 1} | odd} | odd])
    assert schemas.to_text(found) == "a bigint, s struct<b: bigint>"
    assert schemas.parse(schemas.to_text(found)) == found


def test_nothing_to_find_out_is_told() -> None:
    with pytest.raises(ConfigFault, match="give a --schema"):
        schemas.infer_json([1, [], None])


def test_avro_types_become_columns() -> None:
    document = schemas.avro_document(
        """{"type": "record", "name": "r", "fields": [
        {"name": "n", "type": "long"},
        {"name": "s", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal",
                               "precision": 8, "scale": 2}},
        {"name": "e", "type": {"type": "enum", "name": "colour", "symbols": ["RED"]}},
        {"name": "again", "type": "colour"},
        {"name": "list", "type": {"type": "array", "items": "int"}},
        {"name": "inner", "type": {"type": "record", "name": "i", "fields": [
            {"name": "x", "type": "double"}]}}]}"""
    )
    found = schemas.of_avro(document)
    assert found.field("n") == pa.field("n", pa.int64(), nullable=False)
    assert found.field("s") == pa.field("s", pa.string())
    assert found.field("at").type == UTC
    assert found.field("d").type == pa.decimal128(8, 2)
    assert found.field("e").type == found.field("again").type == pa.string()
    assert found.field("list").type.value_type == pa.int32()
    assert found.field("inner").type.field(0).name == "x"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not JSON"),
        ('"string"', "no record"),
        ('{"type": "record", "name": "r"}', "fields"),
        ('{"type": "record", "name": "r", "fields": [{"name": "a", "type": "nope"}]}', "nope"),
        (
            '{"type": "record", "name": "r", "fields": [{"name": "a", "type": ["int", "string"]}]}',
            "union",
        ),
        (
            '{"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "r"]}]}',
            "contains itself",
        ),
        (
            '{"type": "record", "name": "r", "fields": [{"name": "a", "type": '
            '{"type": "bytes", "logicalType": "decimal", "precision": 39}}]}',
            "precision should be between 1 and 38",
        ),
        (
            '{"type": "record", "name": "r", "fields": [{"name": "a", "type": '
            '{"type": "record", "name": "e", "fields": []}}]}',
            "the record e has no fields",
        ),
    ],
)
def test_what_is_no_avro_schema_is_told(text: str, told: str) -> None:
    with pytest.raises(ConfigFault) as fault:
        schemas.of_avro(schemas.avro_document(text))
    assert told in str(fault.value)
