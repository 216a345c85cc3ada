"""What the text of an option means: whole numbers, flags, one of several words, times, sizes.

Spark hands every option over as text. Each function takes the options by lower-case name and the
name as users write it, and raises a ConfigFault that names the option, the text and what to give.
"""

import re
from collections.abc import Iterable, Mapping

from shmbroker.client import security
from shmbroker.client.nearest import nearest
from shmbroker.client.profiles import ProfileEntry
from shmbroker.errors import ConfigFault

Given = Mapping[str, str]
"""Options by their names in lower case."""

LONG_MAX = (1 << 63) - 1
"""Offsets, times and counts are Java's longs, to Spark and in Kafka's requests."""

_TIMES_MS = {
    "us": 0.001,
    "ms": 1,
    "": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_SIZES = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20}
_SIZES |= {"g": 1 << 30, "gb": 1 << 30, "t": 1 << 40, "tb": 1 << 40}


def number(given: Given, name: str, default: int) -> int:
    """A whole number, 0 included."""
    value = given.get(name.lower(), str(default))
    if not re.fullmatch(r"\s*[0-9]+\s*", value) or not is_long(value):
        raise ConfigFault(f"option {name} must be a whole number, not {value!r}")
    return int(value)


def is_long(text: str) -> bool:
    """Whether a number of this text is small enough; the text is measured first, as Python refuses
    numbers of thousands of digits in its own words."""
    return len(text.strip()) <= 20 and abs(int(text)) <= LONG_MAX


def count(given: Given, name: str) -> int | None:
    """A whole number from 1 on; None if the option is not given."""
    value = given.get(name.lower())
    if value is None:
        return None
    if not re.fullmatch(r"\s*[-+]?[0-9]+\s*", value) or not is_long(value):
        raise ConfigFault(f"option {name} must be a whole number, not {value!r}")
    if int(value) <= 0:
        raise ConfigFault(f"{name} must be positive, not {int(value)}")
    return int(value)


def flag(given: Given, name: str, default: bool) -> bool:
    """true or false."""
    value = given.get(name.lower(), str(default)).strip().lower()
    if value not in ("true", "false"):
        raise ConfigFault(f"option {name} is true or false, not {value!r}")
    return value == "true"


def choice(given: Given, name: str, words: tuple[str, ...]) -> str:
    """One of these words; the first one if the option is not given."""
    value = given.get(name.lower(), words[0]).strip().lower()
    if value not in words:
        raise ConfigFault(f"option {name} is one of {', '.join(words)}, not {value!r}")
    return value


def time_ms(given: Given, name: str, default: int) -> int:
    """Milliseconds of a time as Spark writes it: 500ms, 30s, 15m, or a plain number of them."""
    if name.lower() not in given:
        return default
    amount, unit = _quantity(given[name.lower()])
    if amount is None or unit not in _TIMES_MS:
        value = given[name.lower()]
        raise ConfigFault(f"option {name} is a time as 500ms, 30s or 15m, not {value!r}")
    return int(amount * _TIMES_MS[unit])


def size(given: Given, name: str) -> int | None:
    """Bytes of a size as Spark writes it: 500k, 64m, or a plain number; None if it isn't given."""
    if name.lower() not in given:
        return None
    amount, unit = _quantity(given[name.lower()])
    if not amount or unit not in _SIZES or amount * _SIZES[unit] > LONG_MAX:
        value = given[name.lower()]
        raise ConfigFault(f"option {name} is a size as 500k or 64m, not {value!r}")
    return amount * _SIZES[unit]


SECURITY = frozenset(f"kafka.{name}" for name in security.SETTINGS)
"""`kafka.*` options of TLS and SASL."""


def entry_of(given: Given) -> tuple[str, ProfileEntry]:
    """Bootstrap servers, empty where nothing names any, and how they are entered: by the option
    profile, and by `kafka.*` above it."""
    settings = {
        name.removeprefix("kafka."): value for name, value in given.items() if name in SECURITY
    }
    entry = ProfileEntry(given.get("profile", "").strip(), tuple(sorted(settings.items())))
    return given.get("kafka.bootstrap.servers", "").strip() or entry.servers() or "", entry


def check_setting(name: str, refused: Mapping[str, str], known: Iterable[str], client: str) -> None:
    """Refuse a `kafka.*` option that can't be given.

    `refused`: of settings, without "kafka.", what to do instead; `known`: names of options that
    can be given; `client`: the client of Kafka's whose settings they are.
    """
    setting = name.removeprefix("kafka.")
    if setting in refused:
        raise ConfigFault(f"Kafka option '{setting}' is not supported: {refused[setting]}")
    if name not in known:
        raise ConfigFault(f"option {name} is no setting of Kafka's {client}{nearest(name, known)}")


def _quantity(text: str) -> tuple[int | None, str]:
    found = re.fullmatch(r"([0-9]{1,18})([a-z]*)", text.strip().lower())
    return (int(found[1]), found[2]) if found else (None, "")
