"""Every message and version of the table, filled at random.

Round trips here; the same bytes and the same values in two other implementations, kio and
kafka-python, for whatever they know. A message is grown from one drawn seed: a strategy for each of
its fields would find no more and take minutes.
"""

import dataclasses
import datetime
import enum
import functools
import importlib
import io
import pkgutil
import random
import re
import uuid
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmbroker.wire import codec, error_codes, schema
from tests.support.unknown_keys import unknown_keys

pytestmark = pytest.mark.thorough

NAMES = schema.names()
BOUNDS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint16": (0, 2**16 - 1),
    "uint32": (0, 2**32 - 1),
}
ERROR_CODES = range(error_codes.UNKNOWN_SERVER_ERROR, error_codes.SHARE_SESSION_LIMIT_REACHED + 1)
LETTERS = "abcxyz019._-äß€𝄞"

seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=4, derandomize=True, deadline=None, database=None)


def versions(name):
    first, last = schema.message(name).versions
    return range(first, last + 1)


def random_value(field, version, rng, is_element=False):
    if not is_element and schema.is_within(version, field.nullable) and rng.random() < 0.2:
        return None
    if not is_element and field.is_array:
        count = rng.choice((0, 1, 1, 2, 3))
        if field.type in BOUNDS and rng.random() < 0.1:
            count = rng.choice((16, 17, 126, 127, 300))  # around what the codec treats otherwise
        return [random_value(field, version, rng, True) for _ in range(count)]
    if field.name.endswith("error_code") and not field.is_array:
        return rng.choice(ERROR_CODES)
    if field.name.endswith(("_ms", "timestamp")):
        return rng.randrange(10**9)  # kio makes dates and durations of these
    if field.type in BOUNDS:
        return rng.choice((rng.randint(*BOUNDS[field.type]), rng.randint(0, 99)))
    if field.type == "bool":
        return rng.random() < 0.5
    if field.type == "float64":
        return rng.choice((rng.uniform(-1e9, 1e9), 0.0))
    if field.type == "string":
        size = rng.choice((0, 1, 5, 9)) if rng.random() < 0.95 else rng.choice((60, 127, 200))
        return "".join(rng.choice(LETTERS) for _ in range(size))
    if field.type == "uuid":
        return rng.randbytes(16)
    if field.type in ("bytes", "records"):
        return rng.randbytes(rng.choice((0, 1, 7, 200)))
    return random_struct(field.fields, version, rng)


def random_struct(fields, version, rng):
    """Values for the fields of this version; tagged ones are left out now and then."""
    return {
        field.name: random_value(field, version, rng)
        for field in fields
        if schema.is_within(version, field.versions) and (field.tag is None or rng.random() < 0.7)
    }


def random_message(name, version, seed):
    return random_struct(schema.message(name).fields, version, random.Random(seed))


def with_defaults(fields, message):
    """What decoding gives back: every field of the message."""
    filled = {}
    for field in fields:
        value = message.get(field.name, field.default)
        if field.type == "{}" and value is not None:
            if field.is_array:
                value = [with_defaults(field.fields, element) for element in value]
            else:
                value = with_defaults(field.fields, value)
        filled[field.name] = value
    return filled


@pytest.mark.parametrize("name", NAMES)
@few
@given(seeds)
def test_random_message_comes_back_with_every_field(name, seed):
    fields = schema.message(name).fields
    for version in versions(name):
        message = random_message(name, version, seed)
        encoded = codec.encode(name, version, message)
        for buffer in (encoded, memoryview(bytearray(encoded))):
            decoded = codec.decode_all(name, version, buffer)
            assert decoded == with_defaults(fields, message)
        assert codec.encode(name, version, decoded) == encoded
        padded = b"***" + encoded + b"***"
        assert codec.decode(name, version, padded, 3) == (decoded, 3 + len(encoded))
        assert unknown_keys(name, decoded) == []


@pytest.mark.parametrize("name", NAMES)
def test_empty_dict_stands_for_all_defaults(name):
    for version in versions(name):
        decoded = codec.decode_all(name, version, codec.encode(name, version, {}))
        assert decoded == with_defaults(schema.message(name).fields, {})


# kio


@functools.cache
def kio_class(name, version):
    """kio's dataclass for a message, or None."""
    from kio.schema.index import schema_name_map
    from kio.static.constants import EntityType

    for entity_type in EntityType:
        suffix = entity_type.name.capitalize()
        base = name.removesuffix(suffix) if suffix in ("Request", "Response", "Header") else name
        base = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", base.replace("KRaft", "K_Raft")).lower()
        for key in (base, re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()):
            path = schema_name_map.get(key, {}).get(version, {}).get(entity_type)
            if path and path.endswith(f":{name}"):
                return pkgutil.resolve_name(path)
    return None


def positional(fields, version, message):
    """The values of this version, without names, in the order of the table."""
    values = []
    for field in fields:
        if not schema.is_within(version, field.versions):
            continue
        value = message[field.name]
        if field.type == "uuid" and value == bytes(16):
            value = None  # as kio has it
        if field.type == "{}" and value is not None:
            if field.is_array:
                value = [positional(field.fields, version, element) for element in value]
            else:
                value = positional(field.fields, version, value)
        values.append(value)
    return values


def kio_positional(value):
    """The same of one of kio's entities."""
    if isinstance(value, tuple):
        return [kio_positional(element) for element in value]
    if isinstance(value, enum.Enum):
        return int(value.value)
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, uuid.UUID):
        return value.bytes
    if dataclasses.is_dataclass(value):
        return [kio_positional(getattr(value, f.name)) for f in dataclasses.fields(value)]
    return value


@pytest.mark.parametrize("name", NAMES)
@few
@given(seeds)
def test_random_message_is_the_same_in_kio(name, seed):
    from kio.serial import entity_reader, entity_writer

    for version in versions(name):
        entity = kio_class(name, version)
        if entity is None:
            continue
        encoded = codec.encode(name, version, random_message(name, version, seed))
        decoded = codec.decode_all(name, version, encoded)
        theirs, size = entity_reader(entity)(encoded, 0)
        assert size == len(encoded)
        assert kio_positional(theirs) == positional(schema.message(name).fields, version, decoded)
        out = io.BytesIO()
        entity_writer(entity)(out, theirs)
        assert out.getvalue() == encoded


# kafka-python

NOT_IN_KAFKA_PYTHON = {
    "ApiVersionsResponse",  # reads version 0 whenever the error is UNSUPPORTED_VERSION
    "ConsumerProtocolAssignment",  # not classes by version
    "ConsumerProtocolSubscription",
    "DeleteTopicsRequest",  # a decoded one can't be encoded
}


@functools.cache
def kafka_python_classes():
    """kafka-python's message classes by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it reads its schemas by a deprecated function
        packages = [
            importlib.import_module(f"kafka.protocol.{package}")
            for package in ("admin", "consumer", "metadata", "producer")
        ]
    return {
        name: item
        for package in packages
        for name, item in vars(package).items()
        if name in NAMES and name not in NOT_IN_KAFKA_PYTHON
    }


@pytest.mark.parametrize("name", NAMES)
@few
@given(seeds)
def test_random_message_is_the_same_in_kafka_python(name, seed):
    theirs = kafka_python_classes().get(name)
    for version in versions(name) if theirs else ():
        if version <= theirs.max_version:
            encoded = codec.encode(name, version, random_message(name, version, seed))
            assert theirs[version].decode(encoded).encode() == encoded


def test_the_other_implementations_know_most_messages():
    everything = [(name, version) for name in NAMES for version in versions(name)]
    in_kio = [pair for pair in everything if kio_class(*pair)]
    classes = kafka_python_classes()
    in_kafka_python = [
        (name, version)
        for name, version in everything
        if name in classes and version <= classes[name].max_version
    ]
    assert len(in_kio) >= 600
    assert len(in_kafka_python) >= 450
