"""The page's Avro decoder, run by node: against fastavro, and with bytes that are anything."""

import io
import json
import shutil
import subprocess
from typing import Any

import pytest

from shmbroker.console.server import STATIC

fastavro = pytest.importorskip("fastavro")

SCHEMA = {
    "type": "record",
    "name": "Reading",
    "namespace": "plant",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "ratio", "type": "double"},
        {"name": "is_good", "type": "boolean"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "raw", "type": "bytes"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "sum", "type": {"type": "fixed", "name": "Sum", "size": 2}},
        {"name": "parts", "type": {"type": "array", "items": ["int", "null"]}},
        {"name": "tags", "type": {"type": "map", "values": "float"}},
        {"name": "next", "type": ["null", "Reading"]},
    ],
}
INNER = {
    "id": -(2**63),
    "name": 'ü"\n',
    "ratio": 0.1,
    "is_good": True,
    "note": None,
    "raw": b"\x00\xff",
    "kind": "B",
    "sum": b"\x01\x02",
    "parts": [1, None, -3],
    "tags": {"t": 0.5},
    "next": None,
}
OUTER = INNER | {"note": "so", "next": INNER, "is_good": False}
NULLS = {"type": "array", "items": "null"}
PROGRAM = """
import { decodeAvro } from %s;
const cases = JSON.parse(await new Promise((done) => {
  let text = "";
  process.stdin.on("data", (part) => { text += part; }).on("end", () => done(text));
}));
console.log(JSON.stringify(cases.map(([hex, schema]) => {
  try {
    return [decodeAvro(Uint8Array.from(Buffer.from(hex, "hex")), schema), null];
  } catch (error) { return [null, error.message]; }
})));
"""


def decoded(*cases: tuple[bytes, object]) -> list[tuple[str | None, str | None]]:
    """(JSON, reason) of each of these values with its schema."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node to run the page's decoder")
    given = [(data.hex(), schema if schema == "" else json.dumps(schema)) for data, schema in cases]
    program = PROGRAM % json.dumps((STATIC / "avro.js").as_uri())
    ran = subprocess.run(
        [node, "--experimental-default-type=module", "--input-type=module", "-e", program],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    found: list[tuple[str | None, str | None]] = json.loads(ran.stdout)
    return found


def encoded(schema: object, value: object) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def as_shown(value: Any) -> Any:
    """Bytes are hex in the page."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {key: as_shown(each) for key, each in value.items()}
    return [as_shown(each) for each in value] if isinstance(value, list) else value


def test_values_are_decoded_as_fastavro_encodes_them() -> None:
    data = encoded(SCHEMA, OUTER)
    container = io.BytesIO()
    fastavro.writer(container, fastavro.parse_schema(SCHEMA), [INNER, OUTER])
    heads = (b"", b"\x00\x00\x00\x00\x07", b"\xc3\x01" + bytes(8))
    found = decoded(*[(head + data, SCHEMA) for head in heads], (container.getvalue(), ""))
    assert [reason for _, reason in found] == [None] * 4
    for text, _ in found[:3]:
        assert json.loads(text or "") == as_shown(OUTER)
    assert json.loads(found[3][0] or "") == as_shown([INNER, OUTER])


def test_other_bytes_are_told_and_bounded() -> None:
    data = encoded(SCHEMA, OUTER)
    many_nulls = encoded("long", 2**62) + b"\x00"
    cuts = [(data[:at], SCHEMA) for at in range(len(data))]
    changed = [
        (data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :], SCHEMA) for at in range(len(data))
    ]
    found = decoded(
        (many_nulls, NULLS),
        (data + b"x", SCHEMA),
        (data, ""),
        (data, {"type": "Unknown"}),
        (data, {"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]}),
        *cuts,
        *changed,
    )
    reasons = [reason or "" for _, reason in found]
    assert "items" in reasons[0]
    assert "1 bytes are left over" in reasons[1]
    assert "give one" in reasons[2]
    assert "unknown type" in reasons[3]
    assert "nested too deep" in reasons[4]
    assert all(reasons[5 : 5 + len(cuts)])
