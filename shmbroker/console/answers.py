"""What an answer is, and parameters of requests: what all paths share. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import NamedTuple

from shmbroker.client.reader.asking import OFFSET_MAX
from shmbroker.console.access import HttpRequest

TEXT_MAX = 1000
_JSON = "application/json"


class HttpAnswer(NamedTuple):
    """What goes back."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class EventStream(NamedTuple):
    """Server-sent events, (name, JSON); who sends them calls `close`, once, also where none was."""

    events: Iterator[tuple[str, object]]
    close: Callable[[], None]


class BadRequest(Exception):
    """A parameter is not what it must be."""


def as_json(value: object, status: int = 200) -> HttpAnswer:
    """An answer. All of it is ASCII, so nothing in it can be taken for anything else."""
    return HttpAnswer(status, _JSON, json.dumps(value, separators=(",", ":")).encode())


def refused(status: int, reason: str) -> HttpAnswer:
    """An answer that says why there is none."""
    return as_json({"error": reason}, status)


def text_of(request: HttpRequest, name: str) -> str:
    """A parameter that must be there; BadRequest if it is not, or too long."""
    text = request.query.get(name, "")
    if not text or len(text) > TEXT_MAX:
        raise BadRequest(f"{name} has 1 to {TEXT_MAX} characters")
    return text


def number_of(request: HttpRequest, name: str, default: int) -> int:
    """A parameter that is a number of 63 bits; BadRequest for another."""
    text = request.query.get(name)
    if text is None:
        return default
    if not is_number(text):
        raise BadRequest(f"{name} is a number")
    return int(text)


def is_number(text: str) -> bool:
    """Whether it is an offset, a time or the like: of 63 bits, in digits."""
    return text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= OFFSET_MAX
