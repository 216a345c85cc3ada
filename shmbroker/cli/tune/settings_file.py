"""Values put into a file of settings whose other lines stay as they are.

The new text is parsed before it replaces the old: nothing but those values may have changed. The
file is replaced at once, and what it was lies beside it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping

from shmbroker.cli.outcome import CommandFault
from shmbroker.cli.tune.advice import ADVISED
from shmbroker.errors import ConfigFault
from shmbroker.settings.files import read_settings
from shmbroker.settings.java_properties import entries, natural_lines


def changed(text: str, values: Mapping[str, str], is_toml: bool) -> str:
    """The text with these values. A line that has one is rewritten in its place, the last of them
    where there are several; others go to the end, of TOML before the first table."""
    lines = natural_lines(text)
    for name, value in values.items():
        line = f"'{name}' = {value}" if is_toml else f"{name}={value}"
        place = _place_toml(lines, name) if is_toml else _place_properties(lines, name)
        if place is not None:
            lines[place[0] : place[1]] = [line]
        elif is_toml:
            tables = (at for at, each in enumerate(lines) if each.lstrip().startswith("["))
            lines.insert(next(tables, len(lines)), line)
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _place_properties(lines: list[str], name: str) -> tuple[int, int] | None:
    """First line and the one after the last of the setting that counts: lines may go on."""
    places = [(first, end) for each, _, first, end in entries(lines) if each == name]
    return places[-1] if places else None


def _place_toml(lines: list[str], name: str) -> tuple[int, int] | None:
    """Where a line of its own begins and ends, before any table."""
    for at, line in enumerate(lines):
        if line.lstrip().startswith("["):
            return None
        if re.match(rf"""\s*(['"]?){re.escape(name)}\1\s*=""", line):
            return at, at + 1
    return None


def apply(path: str, values: Mapping[str, str]) -> str | None:
    """Change a file, made if it is not there; where the old one lies now."""
    path = os.path.realpath(path)
    is_there = os.path.exists(path)
    before = read_settings(path) if is_there else {}
    try:
        text = ""
        if is_there:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        new = f"{path}.new{os.path.splitext(path)[1]}"
        with open(new, "w", encoding="utf-8") as file:
            file.write(changed(text, values, path.endswith(".toml")))
            file.flush()
            os.fsync(file.fileno())
        try:
            backup = _replace(path, new, before | dict(values), is_there)
        except BaseException:
            os.unlink(new)
            raise
        directory = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as fault:
        raise CommandFault(
            f"{path} can't be changed: {fault.strerror}; run it as the file's owner"
        ) from None
    return backup


def _replace(path: str, new: str, wanted: Mapping[str, str], is_there: bool) -> str | None:
    try:
        is_right = read_settings(new) == wanted
    except ConfigFault:
        is_right = False
    if not is_right:
        names = ", ".join(name for name in wanted if name in ADVISED)
        raise CommandFault(f"{path} has a form that isn't changed here: set {names} by hand")
    backup = None
    if is_there:
        backup = _free_name(path)
        shutil.copystat(path, new)
        status = os.stat(path)
        os.chown(new, status.st_uid, status.st_gid)
        os.link(path, backup)
    os.replace(new, path)
    return backup


def _free_name(path: str) -> str:
    """No backup is written over another."""
    name, number = f"{path}.bak", 1
    while os.path.exists(name):
        number += 1
        name = f"{path}.bak{number}"
    return name
