"""However small its elements, a request has no more of them than are read in some milliseconds."""

from collections.abc import Iterator
from typing import Any

import pytest

from shmbroker.apis import table
from shmbroker.errors import ProtocolFault
from shmbroker.wire import codec, frame, schema
from shmbroker.wire.schema import Field, is_within

FEW = 100
HOT_NAMES = {0: "Produce", 1: "Fetch"}


def served() -> Iterator[tuple[str, int]]:
    """Every API in every version."""
    modules = (
        *table.HOT,
        *table.IN_NETWORK_WORKER,
        *table.UNADVERTISED,
        *table.IN_IO_WORKER,
        *table.ON_CONTROL_SOCKET,
        *table.IN_CONTROLLER,
    )
    rows = [
        (
            getattr(module, "NAME", HOT_NAMES.get(module.API_KEY)),
            module.VERSION_MIN,
            module.VERSION_MAX,
        )
        for module in modules
    ]
    for name, low, high in rows:
        for version in range(low, high + 1):
            yield name, version


def arrays(fields: list[Field], version: int) -> Iterator[tuple[Field, ...]]:
    """The way to each array that a version has."""
    for field in fields:
        if is_within(version, field.versions):
            if field.is_array:
                yield (field,)
            for rest in arrays(field.fields, version):
                yield field, *rest


def with_elements(fields: list[Field], way: tuple[Field, ...], version: int, count: int) -> Any:
    """A message whose array at the end of `way` has so many of the smallest elements."""
    field, *rest = way
    empty = {"{}": {}, "string": "", "bytes": b"", "uuid": bytes(16)}.get(field.type, 0)
    if rest:
        inner = with_elements(field.fields, tuple(rest), version, count)
        return {field.name: [inner] if field.is_array else inner}
    return {field.name: [empty] * count}


CASES = [
    pytest.param(name, version, way, id=f"{name}-{version}-{'.'.join(f.name for f in way)}")
    for name, version in served()
    for way in arrays(schema.message(name + "Request").fields, version)
]


@pytest.mark.parametrize(("name", "version", "way"), CASES)
def test_no_array_of_any_request_has_more_elements_than_are_allowed(
    name: str, version: int, way: tuple[Field, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec, "REQUEST_ELEMENTS_MAX", FEW)
    fields = schema.message(name + "Request").fields
    around = sum(field.is_array for field in way[:-1])
    for count, is_allowed in ((FEW - around, True), (FEW - around + 1, False), (5000, False)):
        body = codec.encode(name + "Request", version, with_elements(fields, way, version, count))
        if is_allowed:
            codec.decode_request(name, version, body)
        else:
            with pytest.raises(ProtocolFault, match="more elements than are allowed"):
                codec.decode_request(name, version, body)


def test_elements_of_many_small_arrays_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "REQUEST_ELEMENTS_MAX", FEW)
    topics = [{"name": "t", "partition_indexes": [1] * 4}] * 20
    codec.decode_request(
        "OffsetFetch", 7, codec.encode("OffsetFetchRequest", 7, {"topics": topics})
    )
    topics.append(topics[0])
    with pytest.raises(ProtocolFault, match="more elements"):
        codec.decode_request(
            "OffsetFetch", 7, codec.encode("OffsetFetchRequest", 7, {"topics": topics})
        )


@pytest.mark.parametrize(("name", "version"), [("LeaveGroup", 4), ("Fetch", 12)])
def test_tagged_fields_count_as_well(
    name: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a struct without known ones, and of one with."""
    monkeypatch.setattr(codec, "REQUEST_ELEMENTS_MAX", FEW)
    body = codec.encode(name + "Request", version, {})
    assert body[-1] == 0
    codec.decode_request(name, version, body[:-1] + bytes([FEW]) + b"\x63\x00" * FEW)
    with pytest.raises(ProtocolFault, match="more elements"):
        codec.decode_request(name, version, body[:-1] + bytes([FEW + 1]) + b"\x63\x00" * (FEW + 1))


def test_tagged_fields_of_a_header_are_few() -> None:
    start = frame.REQUEST_HEADER.pack(3, 12, 1) + b"\xff\xff"
    for count, is_allowed in ((b"\xe8\x07", True), (b"\xe9\x07", False)):  # 1000, 1001
        content = start + count + b"\x63\x00" * 1001
        if is_allowed:
            assert frame.parse_request_header(content, 0, len(content))[0] == 3
        else:
            with pytest.raises(ProtocolFault, match="tagged fields"):
                frame.parse_request_header(content, 0, len(content))


def test_what_clients_of_a_full_broker_ask_for_is_allowed() -> None:
    """8,192 partitions, each named by itself, and as many as one request may make."""
    rows = [{"partition_index": index, "replicas": [1]} for index in range(8192)]
    for name, version, body in (
        ("Metadata", 12, {"topics": [{"name": f"t-{index}"} for index in range(8192)]}),
        ("AlterPartitionReassignments", 0, {"topics": [{"name": "t", "partitions": rows}]}),
        (
            "CreateTopics",
            7,
            {
                "topics": [
                    {
                        "name": "t",
                        "assignments": [
                            {"partition_index": index, "broker_ids": [1]} for index in range(9000)
                        ],
                    }
                ]
            },
        ),
    ):
        codec.decode_request(name, version, codec.encode(name + "Request", version, body))
