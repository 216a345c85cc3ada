"""Records and other messages against the bytes and values of Apache Kafka's own classes."""

import base64
import json
import pathlib

import pytest

from shmbroker.wire import codec, schema

BLOCKS = (pathlib.Path(__file__).parent / "kafka_bytes.txt").read_text("utf-8").split("\n\n")[1:]


def plain(key):
    """A field's name, however it is spelled: leaderEpoch, leader_epoch."""
    return key.replace("_", "").lower()


def is_default(field, value):
    if field.type == "{}" and not field.is_array and field.default is not None and value:
        return all(is_default(nested, value[nested.name]) for nested in field.fields)
    return value == field.default


def as_kafka_shows_it(field, value, version, is_element=False):
    if value is None:
        return None
    if field.is_array and not is_element:
        return [as_kafka_shows_it(field, element, version, True) for element in value]
    if field.type == "uuid":
        return base64.urlsafe_b64encode(value).decode().rstrip("=")
    if field.type == "bytes":
        return base64.b64encode(value).decode()
    if field.type == "{}":
        return struct_as_kafka_shows_it(field.fields, value, version)
    return value


def struct_as_kafka_shows_it(fields, message, version):
    """Only the fields of this version; tagged ones only if they are not the default."""
    return {
        plain(field.name): as_kafka_shows_it(field, message[field.name], version)
        for field in fields
        if schema.is_within(version, field.versions)
        and (field.tag is None or not is_default(field, message[field.name]))
    }


def plain_keys(value):
    if isinstance(value, dict):
        return {plain(key): plain_keys(item) for key, item in value.items()}
    return [plain_keys(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.partition("\n")[0])
def test_kafka_bytes_have_kafkas_values_and_come_back(block):
    head, encoded, expected = block.splitlines()
    name, version = head.split()
    version, encoded = int(version), bytes.fromhex(encoded)
    message = codec.decode_all(name, version, encoded)
    fields = schema.message(name).fields
    assert struct_as_kafka_shows_it(fields, message, version) == plain_keys(json.loads(expected))
    assert codec.encode(name, version, message) == encoded


def test_every_message_that_is_no_request_or_response_is_there():
    kinds = {name: schema.message(name).kind for name in schema.names()}
    others = {name for name, kind in kinds.items() if kind not in ("request", "response")}
    assert {block.split()[0] for block in BLOCKS} == others
