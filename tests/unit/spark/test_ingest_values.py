"""Values to columns: every good one in its row, every bad one told."""

import io
import json
import random

import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa

from shmbroker.spark.ingest import values


def decoded(kind: str, schema: str, given: list, **more: str) -> tuple[list, dict]:
    batch, bad = values.decoder(kind, schema, **more)(pa.array(given, pa.binary()))
    return batch.to_pylist(), bad


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "null"),
        (b"", "empty"),
        (b" \n ", "empty"),
        (b"nonsense", "no JSON object"),
        (b"[1]", "no JSON object"),
        (b'{"a": 1', "no JSON object"),
        (b'{"a": }', "Invalid value"),
        (b'{"a": "x"}', "from number to string"),
        (b'{"a": 1.5}', "1.5"),
        (b'{"a": 3000000000}', "3000000000"),
        (b'{"a": 1}{"a": 2}', "2 documents in one value"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"s": "\xff"}', "UTF"),
        (b'{"s": "x\x01y"}', "Invalid encoding"),
        (b'{"s": "x\ny"}', "control character"),
        (b'{"d": "someday"}', "someday"),
        (b'{"at": "soon"}', "soon"),
        (b"{" * 3 + b"}", "Missing"),
    ],
)
@pytest.mark.parametrize("place", [0, 3, 6])
def test_a_bad_json_value_is_told_and_shifts_no_other(
    value: bytes | None, reason: str, place: int
) -> None:
    good = [b'{"a": %d, "s": "x%d", "d": "2026-01-02"}' % (n, n) for n in range(6)]
    given = [*good[:place], value, *good[place:]]
    rows, bad = decoded("json", "a int, s string, d date, at timestamp", given)
    assert list(bad) == [place]
    assert reason in bad[place]
    assert [row["a"] for row in rows] == list(range(6))
    assert [row["s"] for row in rows] == [f"x{n}" for n in range(6)]
    assert str(rows[0]["d"]) == "2026-01-02"


def test_space_and_line_ends_around_and_inside_of_json_are_taken() -> None:
    given = [b' {"a":\r\n 1}\n', b'{"a": 2}', b'\t{"a"\n:3, "more": [1]}']
    assert decoded("json", "a int", given) == ([{"a": 1}, {"a": 2}, {"a": 3}], {})


def test_what_a_value_lacks_is_null_unless_it_may_not_be() -> None:
    given = [b'{"a": 1}', b'{"b": 2}', b'{"a": null, "b": 3}', b"oops", b'{"a": 4, "b": 5}']
    rows, bad = decoded("json", "a int not null, b int", given)
    assert rows == [{"a": 1, "b": None}, {"a": 4, "b": 5}]
    assert list(bad) == [3, 1, 2]
    assert bad[1] == "a is missing, and may not be null"


def test_one_value_that_is_two_does_not_stand_in_for_one_that_is_none() -> None:
    rows, bad = decoded("json", "a int", [b'{"a": 1}{"a": 2}', b" ", b'{"a": 3}'])
    assert rows == [{"a": 3}]
    assert set(bad) == {0, 1}


def test_nothing_but_bad_values_and_no_values_at_all() -> None:
    assert decoded("json", "a int", []) == ([], {})
    rows, bad = decoded("json", "a int", [b"x"] * 5)
    assert rows == []
    assert len(bad) == 5


@pytest.mark.parametrize("seed", range(20))
def test_json_is_as_a_loop_over_single_values_has_it(seed: int) -> None:
    lot = random.Random(seed)
    pieces = [b'{"a": 1}', b'{"a": "x"}', b"{", b"}", b"\n", b" ", b'"', b",", b'{"a":[{"b":1}']
    given = [b"".join(lot.choices(pieces, k=lot.randint(0, 3))) for _ in range(60)]
    rows, bad = decoded("json", "a int", given)
    expected = []
    for place, value in enumerate(given):
        try:
            document = json.loads(value)
            is_good = document == {} or type(document["a"]) is int
        except (ValueError, TypeError):
            is_good = False
        assert (place not in bad) == is_good, value
        if is_good:
            expected.append({"a": document.get("a")})
    assert rows == expected


def test_a_slice_of_values_is_decoded_as_itself() -> None:
    array = pa.array([b"bad", b'{"a": 1}', b'{"a": 2}', b"bad"], pa.binary()).slice(1, 2)
    batch, bad = values.decoder("json", "a int")(array)
    assert batch.to_pylist() == [{"a": 1}, {"a": 2}]
    assert bad == {}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"1", "Expected 3 columns, got 1"),
        (b"x,y,z", "column"),
        (b'1,"un,closed', "3 columns"),
        (b"1,a,2\n2,b,3", "more than one line"),
        (b"", "empty"),
        (None, "null"),
    ],
)
def test_a_bad_csv_value_is_told_and_shifts_no_other(value: bytes | None, reason: str) -> None:
    good = [b"%d,n%d,0.5" % (n, n) for n in range(4)]
    rows, bad = decoded("csv", "a int, b string, c double", [*good[:2], value, *good[2:]])
    assert [row["a"] for row in rows] == [0, 1, 2, 3]
    assert list(bad) == [2]
    assert reason in bad[2]


def test_csv_has_quotes_nulls_and_other_delimiters() -> None:
    rows, bad = decoded("csv", "a int, b string", [b'1;"x;y"', b";", b"2;z\r\n"], delimiter=";")
    assert bad == {}
    assert rows == [{"a": 1, "b": "x;y"}, {"a": None, "b": ""}, {"a": 2, "b": "z"}]


AVRO = {
    "type": "record",
    "name": "r",
    "fields": [{"name": "n", "type": "long"}, {"name": "s", "type": ["null", "string"]}],
}


@pytest.mark.parametrize(("kind", "head"), [("avro", b""), ("confluent-avro", b"\0\0\0\0\7")])
def test_avro_is_decoded_and_garbage_is_told(kind: str, head: bytes) -> None:
    fastavro = pytest.importorskip("fastavro")

    def encoded(record: dict) -> bytes:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, AVRO, record)
        return head + stream.getvalue()

    records = [{"n": 5, "s": "x"}, {"n": -1, "s": None}]
    good = [encoded(record) for record in records]
    given = [good[0], good[0] + b"\0", None, head + b"\xff", good[1], b"\1" * 7]
    rows, bad = decoded(kind, json.dumps(AVRO), given)
    assert rows == records
    assert sorted(bad) == [1, 2, 3, 5]
    assert bad[1] == "1 bytes are left over"


def test_a_quote_that_is_not_closed_is_told() -> None:
    given = [b'x,"y', b'"q""r",s', b'z"', b'a"b,"c"', b'u,"v']
    rows, bad = decoded("csv", "a string, b string", given)
    assert rows == [{"a": 'q"r', "b": "s"}, {"a": 'a"b', "b": "c"}]
    assert sorted(bad) == [0, 2, 4]
    assert "quote is not closed" in bad[0]
    assert "quote is not closed" in bad[4]
    assert decoded("csv", "a string", [b'"', b"x"])[0] == [{"a": "x"}]


def test_times_of_csv_without_a_zone_are_utc() -> None:
    given = [b"2026-01-02 03:04:05,1", b",2", b"2026-01-02T04:04:05.5+01:00,3", b"soon,4"]
    rows, bad = decoded("csv", "at timestamp, n int", given)
    assert [row["at"] and row["at"].isoformat() for row in rows] == [
        "2026-01-02T03:04:05+00:00",
        None,
        "2026-01-02T03:04:05.500000+00:00",
    ]
    assert list(bad) == [3]


def avro_record(kind: object) -> str:
    return json.dumps({"type": "record", "name": "r", "fields": [{"name": "a", "type": kind}]})


@pytest.mark.parametrize(
    ("kind", "given", "found"),
    [
        ({"type": "string", "logicalType": "uuid"}, b"\x06abc", "abc"),
        ({"type": "int", "logicalType": "time-millis"}, b"\x04", 2),
        ({"type": "long", "logicalType": "time-micros"}, b"\x04", 2),
        ({"type": "array", "items": {"type": "int", "logicalType": "time-millis"}}, b"\2\4\0", [2]),
    ],
)
def test_avro_of_logical_types_that_no_column_has_is_as_its_bytes_are(
    kind: object, given: bytes, found: object
) -> None:
    pytest.importorskip("fastavro")
    assert decoded("avro", avro_record(kind), [given]) == ([{"a": found}], {})


@pytest.mark.parametrize(
    ("kind", "column", "value"),
    [
        ("json", "decimal(5, 2)", '{"a": %s}'),
        ("json", "array<decimal(5, 2)>", '{"a": [%s]}'),
        ("json", "struct<b: decimal(5, 2)>", '{"a": {"b": %s}}'),
        ("csv", "decimal(5, 2)", "%s"),
    ],
)
def test_a_decimal_with_more_digits_than_its_column_is_told(
    kind: str, column: str, value: str
) -> None:
    # five digits as they are written, six and more at the column's scale
    given = [(value % n).encode() for n in ("999.99", "1234.5", "1", "-1000", "12345", "-999.99")]
    rows, bad = decoded(kind, f"a {column}", given)
    assert [str(row["a"]).count("999.99") for row in rows] == [1, 0, 1]
    assert sorted(bad) == [1, 3, 4]
    assert bad[1].startswith("Decimal value 123450 does not fit in precision of decimal128(5, 2)")


def test_an_avro_union_without_such_a_type_is_told() -> None:
    pytest.importorskip("fastavro")
    rows, bad = decoded("avro", avro_record(["null", "int"]), [b"\2\2", b"\x08\2"])
    assert (rows, bad) == ([{"a": 1}], {1: "it names a place that its union or enum has not"})


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("int", b"\xff\xff\xff\xff\xff\xff\x01"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3}, b"\x08\x7f\x7f\x7f\x7f"),
    ],
)
def test_an_avro_number_that_its_column_can_not_hold_is_told(kind: object, given: bytes) -> None:
    pytest.importorskip("fastavro")
    good = b"\2\2" if isinstance(kind, dict) else b"\2"
    rows, bad = decoded("avro", avro_record(kind), [good, given, good, b""])
    assert [int(row["a"]) for row in rows] == [1 + isinstance(kind, dict)] * 2
    assert sorted(bad) == [1, 3]
