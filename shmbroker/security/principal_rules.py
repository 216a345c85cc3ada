"""Rules that make a user's name of a certificate's subject: `ssl.principal.mapping.rules`. Pure.

   RULE:^CN=(.*?),OU=Users.*$/$1/L, RULE:^CN=(.*?),.*$/$1@other/, DEFAULT

The first rule whose pattern fits the whole name decides; L and U make its letters small or large;
DEFAULT leaves the name as it is. Patterns are Java's: what Python's `re` lacks (`\\p{…}`) is
refused. Source: KIP-371; `SslPrincipalMapper` of Apache Kafka.
"""

from __future__ import annotations

import re
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_FORM = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER = re.compile(rf"\s*({_FORM})\s*(,\s*|$)")
_RULE = re.compile(_FORM)
_LETTERS: dict[str, Callable[[str], str]] = {"L": str.lower, "U": str.upper}
_PIECE = re.compile(r"\\(.)|\$\{([a-zA-Z][a-zA-Z0-9]*)\}|\$(\d+)|([^\\$]+)", re.DOTALL)
_NAMED = re.compile(r"(?<!\\)((?:\\\\)*)\(\?<(?=[a-zA-Z])")
"""A named group of Java's, `(?<name>`."""


class _Rule(NamedTuple):
    pattern: re.Pattern[str]
    replacement: tuple[int | str | tuple[str], ...]
    """Numbers are groups, a tuple holds a group's name, text is itself."""
    change: Callable[[str], str]


class PrincipalRules:
    """The rules of one listener."""

    __slots__ = ("_rules", "_text")

    def __init__(self, text: str = "DEFAULT") -> None:
        """Raises ValueError, with Kafka's words where it has some, for rules that can't be."""
        self._text = text
        # None is DEFAULT. What is empty between commas is no rule.
        parsed = [_parsed(match[1]) for match in _SPLITTER.finditer(text.strip())]
        self._rules = [rule for rule in parsed if rule != ""]

    def user(self, subject: str) -> str | None:
        """The user's name of this subject; None: no rule fits."""
        for rule in self._rules:
            if not isinstance(rule, _Rule):
                return subject
            if rule.pattern.fullmatch(subject):
                # As in Java: what fits twice, the empty end too, is replaced twice.
                return rule.change(rule.pattern.sub(lambda m, r=rule: _replaced(r, m), subject))  # type: ignore[misc]
        return None


def _parsed(text: str) -> _Rule | str | None:
    match = _RULE.match(text)
    assert match is not None  # it may be empty
    if match.end() != len(text):
        raise ValueError(f"Invalid rule: `{text}`, unmatched substring: `{text[match.end() :]}`")
    if match[1] is not None:
        return None
    if match[2] is None:
        return ""
    try:
        pattern = re.compile(_NAMED.sub(r"\1(?P<", match[2]))
    except re.error as fault:
        raise ValueError(f"Invalid rule: `{text}`, its pattern can't be used: {fault}") from None
    return _Rule(pattern, _pieces(text, pattern, match[3]), _LETTERS.get(match[4], str))


def _pieces(
    text: str, pattern: re.Pattern[str], replacement: str
) -> tuple[int | str | tuple[str], ...]:
    found: list[int | str | tuple[str]] = []
    at = 0
    while at < len(replacement):
        match = _PIECE.match(replacement, at)
        if match is None:
            raise ValueError(f"Invalid rule: `{text}`, illegal group reference in its replacement")
        escaped, name, digits, plain = match.groups()
        at = match.end()
        if name is not None:
            if name not in pattern.groupindex:
                raise ValueError(f"Invalid rule: `{text}`, no group {name} in its pattern")
            found.append((name,))
        elif digits is not None:
            if not pattern.groups and digits != "0":
                raise ValueError(f"Invalid rule: `{text}`, no group {digits} in its pattern")
            # As many digits as there is a group of, as in Java.
            used = 1
            while used < len(digits) and int(digits[: used + 1]) <= pattern.groups:
                used += 1
            group = int(digits[:used])
            found += [group if group <= pattern.groups else f"${group}", digits[used:]]
        else:
            found.append(plain if escaped is None else escaped)
    return tuple(found)


def _replaced(rule: _Rule, match: re.Match[str]) -> str:
    found = []
    for piece in rule.replacement:
        if isinstance(piece, str):
            found.append(piece)
        else:
            found.append(match[piece if isinstance(piece, int) else piece[0]] or "")
    return "".join(found)
