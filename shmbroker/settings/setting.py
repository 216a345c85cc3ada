"""One setting: its type, its default, what values it may have, and how they are written.

Values are text, in Kafka's notation, until `Setting.parse`. Refusals are ValueErrors with Kafka's
words (`org.apache.kafka.common.config.ConfigDef`), as clients get to see them.
"""

from __future__ import annotations

from shmbroker.settings.without_effect import WITHOUT_EFFECT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


# Types, numbered as DescribeConfigs v3 does (`ConfigType`).
BOOLEAN = 1
STRING = 2
INT = 3
SHORT = 4
LONG = 5
DOUBLE = 6
LIST = 7
PASSWORD = 9

TYPE_NAMES = {
    BOOLEAN: "BOOLEAN",
    STRING: "STRING",
    INT: "INT",
    SHORT: "SHORT",
    LONG: "LONG",
    DOUBLE: "DOUBLE",
    LIST: "LIST",
    PASSWORD: "PASSWORD",
}

OWN_PREFIX = "shmbroker."

_BITS = {SHORT: 16, INT: 32, LONG: 64}
LONG_MAX = 2**63 - 1
LONG_MAX_TEXT = str(LONG_MAX)
INT_MAX = 2**31 - 1
INT_MAX_TEXT = str(INT_MAX)
_UNITS = {
    "ms": "milliseconds",
    "minutes": "minutes",
    "hours": "hours",
    "bytes": "bytes",
    "ratio": "fraction",
}


class Setting:
    """One row of the table."""

    __slots__ = (
        "allowed",
        "check",
        "default",
        "documentation",
        "is_dynamic",
        "is_given",
        "is_hidden",
        "least",
        "most",
        "name",
        "synonyms",
        "type",
    )

    def __init__(
        self,
        name: str,
        type_: int,
        default: str | None,
        documentation: str,
        *,
        least: int | None = None,
        most: int | None = None,
        allowed: tuple[str, ...] = (),
        check: Callable[[Any], str | None] | None = None,
        is_dynamic: bool = False,
        is_given: bool = False,
        is_hidden: bool = False,
        synonyms: tuple[tuple[str, int], ...] = (),
    ) -> None:
        self.name = name
        self.type = type_
        self.default = default
        """The default as text; None where there is none."""
        self.documentation = documentation
        if name in WITHOUT_EFFECT:
            self.documentation += f" It has no effect here: {WITHOUT_EFFECT[name]}"
        self.least = least
        self.most = most
        """Inclusive bounds of a number."""
        self.allowed = allowed
        """The only words of a STRING, or of a LIST's items; empty: any."""
        self.check = check
        """What the fields above can't say: the parsed value to a complaint or None."""
        self.is_dynamic = is_dynamic
        self.is_given = is_given
        """What a broker is (`BrokerConfig.identity`): shown to clients, said by other names."""
        self.is_hidden = is_hidden
        """Shown to clients only where it is set, as in Kafka."""
        self.synonyms = synonyms
        """The broker settings behind a topic setting: (broker setting, factor to this setting's
        unit), the first wins."""

    @property
    def is_secret(self) -> bool:
        """Whether its value is shown to nobody."""
        return self.type == PASSWORD

    @property
    def unit(self) -> str:
        """What a number counts: "bytes", "milliseconds", … or "" for plain things."""
        return _UNITS.get(self.name.rpartition(".")[2], "")

    def parse(self, text: str, *, least: int | None = None) -> Any:
        """The value; ValueError with Kafka's words if the text isn't allowed. `least`: instead of
        the row's own."""
        stripped = text.strip()
        if self.type == LIST:
            return self._parse_list(stripped)
        value = self._parse_scalar(stripped, text)
        least = self.least if least is None else least
        if least is not None and value < least:
            raise self._refusal(value, f"Value must be at least {least}")
        if self.most is not None and value > self.most:
            raise self._refusal(value, f"Value must be no more than {self.most}")
        if self.allowed and value not in self.allowed:
            raise self._refusal(value, f"String must be one of: {', '.join(self.allowed)}")
        if self.check is not None and (complaint := self.check(value)):
            raise self._refusal(value, complaint)
        return value

    def text(self, value: Any) -> str | None:
        """A parsed value as Kafka prints it (`ConfigDef.convertToString`)."""
        if value is None:
            return None
        if self.type == BOOLEAN:
            return "true" if value else "false"
        if self.type == LIST:
            return ",".join(value)
        if self.type == DOUBLE:
            return _java_double(value)
        return str(value)

    def _parse_scalar(self, text: str, whole: str) -> Any:
        if self.type == BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise self._refusal(whole, "Expected value to be either true or false")
            return text.lower() == "true"
        if self.type in _BITS:
            digits = text[1:] if text[:1] in ("-", "+") else text
            if len(digits) <= 40 and digits.isascii() and digits.isdigit():
                value = int(text)
                if value.bit_length() < _BITS[self.type] or value == -1 << _BITS[self.type] - 1:
                    return value
            raise self._refusal(whole, f"Not a number of type {TYPE_NAMES[self.type]}")
        if self.type == DOUBLE:
            try:
                return float(_without_suffix(text).replace("_", "x"))
            except ValueError:
                raise self._refusal(whole, "Not a number of type DOUBLE") from None
        return text

    def _parse_list(self, text: str) -> list[str]:
        items = [item.strip() for item in text.split(",")] if text else []
        if "" in items and self.check is None:
            raise ValueError(f"Configuration '{self.name}' values must not be empty.")
        for item in items if self.allowed else ():
            if item not in self.allowed:
                raise self._refusal(item, f"String must be one of: {', '.join(self.allowed)}")
        if self.check is not None and (complaint := self.check(items)):
            raise self._refusal(f"[{', '.join(items)}]", complaint)
        return list(dict.fromkeys(filter(None, items)))

    def _refusal(self, shown: object, reason: str) -> ValueError:
        if isinstance(shown, float):
            shown = _java_double(shown)
        if self.is_secret:
            shown = "[hidden]"
        return ValueError(f"Invalid value {shown} for configuration {self.name}: {reason}")


def _without_suffix(text: str) -> str:
    """Java reads "0.5d" and "1f" as numbers."""
    is_suffixed = text[-1:] in ("d", "D", "f", "F") and text[-2:-1] in {*"0123456789."}
    return text[:-1] if is_suffixed else text


def _java_double(value: float) -> str:
    """The text that Java's `Double.toString` gives: plain digits from 1e-3 up to 1e7, else
    "1.0E-4"."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(float(value))
    for digits in range(17):  # the shortest that reads back as the same number
        text = f"{value:.{digits}e}"
        if float(text) == value:
            break
    mantissa, _, power = text.partition("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(power)}"
