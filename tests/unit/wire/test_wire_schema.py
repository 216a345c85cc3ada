"""The notation of the schema table, its content, and the tables that must agree with it."""

import pytest

from shmbroker.wire import api_keys, error_codes, schema

TYPES = {
    *("bool", "int8", "int16", "int32", "int64", "uint16", "uint32", "float64"),
    *("string", "bytes", "records", "uuid", "{}"),
}


def all_fields(fields):
    for field in fields:
        yield field
        yield from all_fields(field.fields)


def test_line_is_read_as_the_notation_says():
    field = schema.Field("  error_message string 2-9 ?4+ =null key ignorable plain", (0, 9))
    assert (field.name, field.type, field.is_array) == ("error_message", "string", False)
    assert (field.versions, field.nullable) == ((2, 9), (4, schema.LAST_VERSION))
    assert (field.default, field.tag) == (None, None)
    assert field.is_ignorable and field.is_plain


def test_versions_left_out_are_the_owners():
    field = schema.Field("  leader_id int32? @3 =-1", (7, 12))
    assert (field.versions, field.nullable) == ((7, 12), (7, 12))
    assert (field.tag, field.default) == (3, -1)
    assert not (field.is_ignorable or field.is_plain)


@pytest.mark.parametrize(
    ("type_", "default"),
    [
        ("[]int32", []),
        ("[]{}", []),
        ("{}", {}),
        ("bool", False),
        ("string", ""),
        ("bytes", b""),
        ("records", None),
        ("uuid", bytes(16)),
        ("int64", 0),
    ],
)
def test_default_is_implied_by_the_type(type_, default):
    assert schema.Field(f"  name {type_}", (0, 0)).default == default


def test_fields_are_nested_by_their_depth():
    message = schema.Message(
        "X response 5 1-4 flexible 3+\n  a []{} 2+\n    b {}\n      c int8 3\n    d int8\n  e int8"
    )
    assert (message.name, message.kind, message.api_key) == ("X", "response", 5)
    assert (message.versions, message.flexible) == ((1, 4), (3, schema.LAST_VERSION))
    a, e = message.fields
    b, d = a.fields
    assert [field.name for field in (a, b, d, e)] == ["a", "b", "d", "e"]
    assert b.fields[0].versions == (3, 3)
    assert b.versions == d.versions == a.versions == (2, schema.LAST_VERSION)


def test_table_has_every_message_of_kafka_and_ours():
    names = schema.names()
    assert len(names) == len(set(names)) == 271 + 20


@pytest.mark.parametrize("name", schema.names())
def test_message_is_well_formed(name):
    message = schema.message(name)
    assert message.name == name
    assert 0 <= message.versions[0] <= message.versions[1] < 100
    for field in all_fields(message.fields):
        assert field.type in TYPES
        assert bool(field.fields) == (field.type == "{}")
        assert field.name == field.name.lower() and field.name.isidentifier()
        assert max(field.versions[0], message.versions[0]) <= message.versions[1]
        if field.default is None and field.type != "records":
            assert field.nullable != schema.NO_VERSION
        if field.tag is not None:
            assert message.flexible[0] <= field.versions[0]
    for fields in (message.fields, *(f.fields for f in all_fields(message.fields))):
        assert len({field.name for field in fields}) == len(fields)


@pytest.mark.parametrize("api_key", api_keys.TABLE)
def test_api_keys_agree_with_the_table(api_key):
    name, first, last, flexible_from = api_keys.TABLE[api_key]
    flexible = (flexible_from, schema.LAST_VERSION)
    assert api_keys.name_of(api_key) == name
    for message_name in (f"{name}Request", f"{name}Response"):
        message = schema.message(message_name)
        assert (message.api_key, message.versions) == (api_key, (first, last))
        expected = schema.NO_VERSION if flexible_from == api_keys.NO_VERSION else flexible
        assert message.flexible == expected


def test_every_request_has_an_api_key():
    requests = set(schema.names_of_kind("request").values())
    assert requests == {f"{name}Request" for name, *_ in api_keys.TABLE.values()}


def test_unknown_api_key_is_named_by_its_number():
    assert api_keys.name_of(999) == "999"


def test_error_codes_are_kafkas():
    assert error_codes.NOT_LEADER_OR_FOLLOWER == 6
    assert error_codes.name_of(6) == "NOT_LEADER_OR_FOLLOWER"
    assert error_codes.name_of(9999) == error_codes.message_of(9999) == "9999"
    assert error_codes.is_retriable(error_codes.NOT_LEADER_OR_FOLLOWER)
    assert not error_codes.is_retriable(error_codes.NONE)
    for code in range(-1, 134):
        assert error_codes.name_of(code).isidentifier()
        assert error_codes.message_of(code) != error_codes.name_of(code)
