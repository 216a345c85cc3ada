"""What all listing commands print: an aligned table, or JSON.

No colour, no frame, no trailing space: what a terminal shows is what `grep` and `awk` get. Where
there is nothing to list, one sentence on stderr says so, and stdout stays empty.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import click

from shmbroker.cli.outcome import say
from shmbroker.errors import one_line

WIDTH_MAX = 80
"""A longer cell sticks out rather than widen its column: a name may have thousands of letters."""


def print_json(value: Any) -> None:
    """Print a JSON document, indented."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under their columns' names; numbers to the right, None as "-". Clients choose some
    of what is in them: what would lead a terminal astray is escaped."""
    texts = [["-" if cell is None else one_line(str(cell)) for cell in row] for row in rows]
    numeric = [
        all(row[place].lstrip("-").isdigit() or row[place] == "-" for row in texts)
        for place in range(len(columns))
    ]
    widths = [
        max(len(cell) for cell in column if len(cell) <= WIDTH_MAX)
        for column in zip(columns, *texts, strict=True)
    ]
    for line in (list(columns), *texts):
        cells = [
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(line, widths, numeric, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def print_list(columns: Sequence[str], rows: Sequence[Sequence[object]], nothing: str) -> None:
    """Print a table; `nothing` on stderr where there is no row."""
    if rows:
        print_table(columns, rows)
    else:
        say(nothing)


def text_or_base64(name: str, content: bytes | None) -> dict[str, Any]:
    """A record's bytes in JSON: {name: text}, or {name_base64: …} where they are no UTF-8."""
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        import base64

        return {f"{name}_base64": base64.b64encode(content).decode()}
