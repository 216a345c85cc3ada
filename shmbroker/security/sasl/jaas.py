"""The value of `sasl.jaas.config`: a login module and its options (Kafka's form of JAAS, KIP-85).

   org.apache.kafka.common.security.plain.PlainLoginModule required
       username="admin" password="…" user_alice="…" user_bob="…";

* PLAIN's users are the options user_NAME; the other options are for a broker as a client.
* A value in quotes may have \\" and \\\\ in it; without quotes it ends at a space or semicolon.
* What is wrong is told by its place, never with its text, which has passwords.
"""

from __future__ import annotations

import re
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

USER_PREFIX = "user_"

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<word>[^\s=;"']+)
      | (?P<sign>[=;])
      | "(?P<double>(?:[^"\\]|\\.)*)"
      | '(?P<single>(?:[^'\\]|\\.)*)'
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
FLAGS = ("required", "requisite", "sufficient", "optional")


class LoginModule(NamedTuple):
    """One entry."""

    name: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"LoginModule({self.name!r}, {len(self.options)} options)"

    @property
    def users(self) -> dict[str, str]:
        """Passwords by name, of the options user_NAME."""
        return {
            key.removeprefix(USER_PREFIX): value
            for key, value in self.options.items()
            if key.startswith(USER_PREFIX)
        }


def parse(text: str) -> LoginModule:
    """The only entry of a value; ValueError, a phrase without any secret, if it is none."""
    tokens = list(_tokens(text))
    if len(tokens) < 3:
        raise ValueError("it has no login module, flag and semicolon")
    (name, is_name), (flag, is_flag) = tokens[:2]
    if not is_name or not is_flag or flag.lower() not in FLAGS:
        raise ValueError(f"its second word is none of {', '.join(FLAGS)}")
    options: dict[str, str] = {}
    place = 2
    while place < len(tokens) and tokens[place] != (";", False):
        if len(tokens) < place + 4:
            raise ValueError("it doesn't end with a semicolon")
        (key, is_key), equals, (value, is_value) = tokens[place : place + 3]
        if not is_key or equals != ("=", False) or not is_value:
            raise ValueError(f'its option {len(options) + 1} is not NAME="VALUE"')
        options[key] = value
        place += 3
    if place != len(tokens) - 1:
        raise ValueError("it has more than one login module")
    return LoginModule(name, options)


def _tokens(text: str) -> list[tuple[str, bool]]:
    """Words and signs, and whether each is a word."""
    found = []
    place = 0
    text = text.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise ValueError("a quote in it isn't closed")
        word, sign = match["word"], match["sign"]
        quoted = match["double"] if match["double"] is not None else match["single"]
        if sign:
            found.append((sign, False))
        elif word is not None:
            found.append((word, True))
        else:
            found.append((_ESCAPE.sub(_unescaped, quoted), True))
        place = match.end()
    return found


def _unescaped(match: re.Match[str]) -> str:
    return {"n": "\n", "t": "\t", "r": "\r"}.get(match[1], match[1])
