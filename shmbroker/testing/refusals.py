"""The answer that refuses a request: an error code in each place that the answer has for one. Pure.

There is no table of APIs. An answer is walked by its schema: each error code gets the error, and
an array that has some below it gets an element for each element that the request named, in the
array of the request whose elements have most fields in common with it; elements that name nothing
stand for those of its only array. Fields that both have (the topic, the partition, the group) are
copied; all others have their defaults.

   request    topic_data      [{name, partition_data [{index, records}]}]
   answer     responses       [{name, partition_responses [{index, error_code, …}]}]
"""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.wire import schema
from shmbroker.wire.api_keys import name_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from shmbroker.wire.codec import Message
    from shmbroker.wire.schema import Field

ERRORS = ("error_code", "partition_error_code")
"""Names of an error's field; AddPartitionsToTxn has the second."""
_ONE_NAME = {
    "index": "partition",
    "partition_index": "partition",
    "partition_id": "partition",
    "topic": "name",
    "topic_name": "name",
    "user": "name",
    "groups_names": "group_id",
}
"""Kafka names the same thing differently from one message to another."""
_UNKNOWN = {
    "base_offset": -1,
    "committed_offset": -1,
    "high_watermark": -1,
    "log_start_offset": -1,
    "records": b"",
    "timestamp": -1,
}
"""What a broker says of what it did not look up, where it isn't the default."""


def refusal_of(api_key: int, version: int, request: Message, error: int) -> Message | None:
    """The answer; None if this request's answer has no place for an error."""
    name = name_of(api_key)
    asked = _Asked(_of(schema.message(f"{name}Request").fields, version), request)
    answer, is_placed = _filled(schema.message(f"{name}Response").fields, version, asked, error)
    return answer if is_placed else None


class _Asked(NamedTuple):
    """A part of the request: its fields, and their values."""

    fields: list[Field]
    values: Message


def _filled(
    fields: Iterable[Field], version: int, asked: _Asked, error: int
) -> tuple[Message, bool]:
    """A part of the answer, and whether the error is in it."""
    answer: Message = {}
    is_placed = False
    known = {_plain(field.name): field for field in asked.fields}
    for field in _of(fields, version):
        twin = known.get(_plain(field.name))
        if field.name in ERRORS:
            answer[field.name] = error
            is_placed = True
        elif field.name in _UNKNOWN:
            answer[field.name] = _UNKNOWN[field.name]
        elif field.is_array and _has_error(field, version):
            rows = [
                _filled(field.fields, version, each, error)
                for each in _elements(field, version, asked)
            ]
            answer[field.name] = [row for row, _ in rows]
            is_placed = is_placed or any(placed for _, placed in rows)
        elif twin and twin.type == field.type and not twin.is_array and not field.is_array:
            answer[field.name] = asked.values[twin.name]
    return answer, is_placed


def _by_position(field: Field, version: int, asked: _Asked) -> list[_Asked]:
    """Elements of an answer that name nothing are those of the only array of the request."""
    own = {each.name for each in _of(field.fields, version) if not each.is_array}
    arrays = [each for each in asked.fields if each.is_array]
    if not own <= {*ERRORS, "error_message"} or len(arrays) != 1:
        return []
    return [_Asked([], {}) for _ in asked.values[arrays[0].name] or ()]


def _elements(field: Field, version: int, asked: _Asked) -> list[_Asked]:
    """What the request named for the elements of an array of the answer."""
    names = {_plain(each.name) for each in _of(field.fields, version)}
    best: tuple[int, Field | None] = (0, None)
    for each in asked.fields:
        if not each.is_array or each.name.startswith("forgotten"):
            continue
        if each.type == "{}":
            common = len(names & {_plain(inner.name) for inner in _of(each.fields, version)})
        else:
            common = int(_holder(field, version, each) is not None)
        if common > best[0]:
            best = common, each
    source = best[1]
    if source is None:
        return _by_position(field, version, asked)
    values = asked.values[source.name] or ()
    if source.type == "{}":
        return [_Asked(_of(source.fields, version), value) for value in values]
    holder = _holder(field, version, source)
    return [_Asked([holder], {holder.name: value}) for value in values] if holder else []


def _holder(field: Field, version: int, source: Field) -> Field | None:
    """Where an element of the answer's array has what the request's array of plain values names."""
    for each in _of(field.fields, version):
        if each.type == source.type and each.name not in (*ERRORS, "error_message"):
            return each
    return None


def _has_error(field: Field, version: int) -> bool:
    return any(
        inner.name in ERRORS or _has_error(inner, version) for inner in _of(field.fields, version)
    )


def _of(fields: Iterable[Field], version: int) -> list[Field]:
    return [field for field in fields if schema.is_within(version, field.versions)]


def _plain(name: str) -> str:
    return _ONE_NAME.get(name, name)


def names_addresses(api_key: int) -> bool:
    """Whether an answer of this API may name addresses of brokers."""
    fields = schema.message(f"{name_of(api_key)}Response").fields
    return any(_has_port(field) for field in fields)


def _has_port(field: Field) -> bool:
    return field.name == "port" or any(map(_has_port, field.fields))


def move_ports(value: object, ports: dict[int, int]) -> bool:
    """Put other ports into an answer, where there are; whether there were any."""
    if isinstance(value, list):
        moved = [move_ports(each, ports) for each in value]
        return any(moved)
    if not isinstance(value, dict):
        return False
    is_moved = value.get("port") in ports
    if is_moved:
        value["port"] = ports[value["port"]]
    inner = [move_ports(each, ports) for each in value.values()]
    return is_moved or any(inner)
