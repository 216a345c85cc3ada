"""Keys of a message that no version of it knows: the codec does not look at them."""

from collections.abc import Iterator
from typing import Any

from shmbroker.wire import schema


def unknown_keys(name: str, message: dict[str, Any]) -> list[str]:
    """Their paths, of a message by its name in the schema table."""
    return list(_unknown_keys(schema.message(name).fields, message, name))


def _unknown_keys(fields: list[schema.Field], value: dict[str, Any], path: str) -> Iterator[str]:
    known = {field.name: field for field in fields}
    for key, item in value.items():
        field = known.get(key)
        if field is None:
            yield f"{path}.{key}"
        elif field.type == "{}" and item is not None:
            for nested in item if field.is_array else (item,):
                yield from _unknown_keys(field.fields, nested, f"{path}.{key}")
