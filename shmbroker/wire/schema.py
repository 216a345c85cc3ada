"""The table of all messages, and how to read it.

`schema_table.txt` holds the messages of Apache Kafka 4.2.1 (made by `scripts/make_schema_table`),
`private_table.txt` those of this project, in one notation. A message is a block of lines, blocks
are set apart by an empty line; a block that begins with "#" is a comment:

    FetchResponse response 1 4-18 flexible 12+     name, kind, api key or "-", versions, flexible
      session_id int32 7+ ignorable                field: name, type, then what applies of
      responses []{}                                 3+ 3-9 3     versions that have the field
        partitions []{}                              ?12+         versions in which it may be null
          high_watermark int64                       @2           it is the tagged field 2
          diverging_epoch {} 12+ @0                  =-1 =null    default (else 0, "", [], false)
            epoch int32 =-1
          records records?                           key          part of a collection's key
                                                     ignorable    dropped where a version lacks it
                                                     plain        never in the compact form

Deeper lines belong to the `{}` (struct) or `[]{}` (array of structs) above them; `[]` before a type
makes it an array; `?` after it says that it may be null in all its versions. Version ranges that
are left out are the owner's. "flexible none" has no compact types and no tagged fields.
Kinds: request, response, header, data, metadata, remote-log, and {group,share,transaction}-{key,
value}; an api key is unique within its kind.

Source: KIP-482 (flexible versions), Kafka's `org.apache.kafka.message` generator.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LAST_VERSION = 32767
NO_VERSION = (1, 0)
"""A range of versions is (first, last), both inclusive; this one holds none."""

_TABLES = ("schema_table.txt", "private_table.txt")
_IMPLIED_DEFAULTS = {"bool": False, "string": "", "bytes": b"", "records": None, "uuid": bytes(16)}

_blocks: dict[str, str] = {}
_messages: dict[str, Message] = {}


class Field:
    """One field of a message or struct.

    type      "int32", "string", … or "{}"; the element's where `is_array`
    versions  that have the field; `nullable`: those in which it may be null
    tag       of a tagged field, else None
    default   None, bool, int, str, bytes; [] for arrays; for structs None or {} (their defaults)
    fields    of the struct, or of the array's structs
    """

    __slots__ = (
        "default",
        "fields",
        "is_array",
        "is_ignorable",
        "is_plain",
        "name",
        "nullable",
        "tag",
        "type",
        "versions",
    )

    def __init__(self, line: str, owner_versions: tuple[int, int]) -> None:
        name, type_, *tokens = line.split()
        self.name = name
        self.is_array = type_.startswith("[]")
        self.type = type_.removeprefix("[]").removesuffix("?")
        self.fields: list[Field] = []
        self.versions = owner_versions
        self.nullable = NO_VERSION
        self.tag: int | None = None
        self.is_ignorable = "ignorable" in tokens
        self.is_plain = "plain" in tokens
        self.default: Any = [] if self.is_array else {} if self.type == "{}" else 0
        if not self.is_array:
            self.default = _IMPLIED_DEFAULTS.get(self.type, self.default)
        for token in tokens:
            if token[0].isdigit():
                self.versions = _range(token)
        if type_.endswith("?"):
            self.nullable = self.versions
        for token in tokens:
            if token[0] == "?":
                self.nullable = _range(token[1:])
            elif token[0] == "=":
                self.default = _DEFAULTS[token] if token in _DEFAULTS else int(token[1:])
            elif token[0] == "@":
                self.tag = int(token[1:])


class Message:
    """One message: its head, and its fields in wire order."""

    __slots__ = ("api_key", "fields", "flexible", "kind", "name", "versions")

    def __init__(self, block: str) -> None:
        head, *lines = block.splitlines()
        self.name, self.kind, api_key, versions, _, flexible = head.split()
        self.api_key = None if api_key == "-" else int(api_key)
        self.versions = _range(versions)
        self.flexible = NO_VERSION if flexible == "none" else _range(flexible)
        self.fields: list[Field] = []
        owners: list[tuple[list[Field], tuple[int, int]]] = [(self.fields, self.versions)]
        for line in lines:
            depth = (len(line) - len(line.lstrip())) // 2
            del owners[depth:]
            fields, owner_versions = owners[-1]
            field = Field(line, owner_versions)
            fields.append(field)
            owners.append((field.fields, field.versions))


def message(name: str) -> Message:
    """The message of this name; KeyError if there is none. Only this one is parsed."""
    found = _messages.get(name)
    if found is None:
        found = _messages[name] = Message(_table()[name])
    return found


def names() -> list[str]:
    """The names of all messages, Kafka's first."""
    return list(_table())


def names_of_kind(kind: str) -> dict[int, str]:
    """Message names of a kind by api key."""
    heads = (block.partition("\n")[0].split() for block in _table().values())
    return {int(head[2]): head[0] for head in heads if head[1] == kind}


def is_within(version: int, versions: tuple[int, int]) -> bool:
    """Whether a range of versions holds this one."""
    return versions[0] <= version <= versions[1]


_DEFAULTS = {"=null": None, "=true": True}


def _range(text: str) -> tuple[int, int]:
    """(first, last) of "3-9", "3+" or "3"."""
    if text[-1] == "+":
        return int(text[:-1]), LAST_VERSION
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def _table() -> dict[str, str]:
    """Blocks by message name, read once."""
    if not _blocks:
        directory = __file__.rpartition("/")[0]
        for table in _TABLES:
            with open(f"{directory}/{table}", encoding="utf-8") as file:
                for block in file.read().split("\n\n"):
                    if block[0] != "#":
                        _blocks[block.partition(" ")[0]] = block
    return _blocks
