r"""Java properties, read by the rules of java.util.Properties.

* A line ends at \n, \r or \r\n. It goes on in the next one after an odd number of backslashes; what
  that line begins with of spaces is left out. The last line may go on, too: nothing follows.
* Blank lines say nothing, nor do those that begin with # or !. A line that goes on another is no
  comment.
* A name ends before the first space, = or : that has no backslash before it. One = or : and the
  spaces around it are left out. Without one the value is empty. Spaces behind a value belong to it.
* \t, \n, \r, \f and \uXXXX are what they are in Java; before any other character a backslash is
  left out. `Properties.store` writes \: and \= so, and all beyond ASCII as \uXXXX.
* The last value of a name counts.

Java takes the bytes for ISO-8859-1, here a file is UTF-8; what `Properties.store` writes is ASCII.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_SPACES = " \t\f"
_END_OF_LINE = re.compile(r"\r\n|\r|\n")
_NAME = re.compile(r"(?:[^\\ \t\f=:]|\\.)*", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|[^u]|u)", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def properties(text: str) -> dict[str, str]:
    """Values by their names; ValueError for a \\u without four hexadecimal digits."""
    return {name: value for name, value, _, _ in entries(natural_lines(text))}


def natural_lines(text: str) -> list[str]:
    """The lines, without what ends them."""
    lines = _END_OF_LINE.split(text)
    return lines if lines[-1] else lines[:-1]


def entries(lines: list[str]) -> Iterator[tuple[str, str, int, int]]:
    """Name, value, first line and the one after the last, from 0, of each entry."""
    at = 0
    while at < len(lines):
        first, logical = at, ""
        while at < len(lines):
            part = lines[at].lstrip(_SPACES)
            at += 1
            if not logical and part[:1] in ("", "#", "!"):
                break
            logical += part
            if not _goes_on(part):
                break
            logical = logical[:-1]
        if logical:
            named = _NAME.match(logical)
            assert named is not None  # it may match nothing
            separated = _SEPARATOR.match(logical, named.end())
            assert separated is not None
            try:
                name, value = _unescaped(named[0]), _unescaped(logical[separated.end() :])
            except ValueError as fault:
                raise ValueError(f"line {first + 1}: {fault}") from None
            yield name, value, first, at


def _goes_on(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    text = _ESCAPE.sub(_character, text)
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")  # two \u are one character
    except UnicodeDecodeError:
        raise ValueError("half of a surrogate pair") from None


def _character(match: re.Match[str]) -> str:
    word = match[1]
    if len(word) > 1:
        return chr(int(word[1:], 16))
    if word == "u":
        raise ValueError("\\u without four hexadecimal digits")
    return _CONTROLS.get(word, word)
