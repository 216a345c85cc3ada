"""Files of settings: TOML, or Java properties as Kafka's server.properties."""

from __future__ import annotations

from shmbroker.errors import ConfigFault
from shmbroker.settings.java_properties import properties

FILE_BYTES_MAX = 1 << 20
"""The most bytes of a file of settings; a device may have no end."""


def read_settings(path: str) -> dict[str, str]:
    """{Kafka's dotted name: value as text} of a .toml file, or of one with properties. ConfigFault
    if it can't be read or understood."""
    try:
        with open(path, "rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise ValueError(f"it has more than {FILE_BYTES_MAX >> 20} MiB")
        text = content.decode()
        return _flat_toml(text) if path.endswith(".toml") else _from_properties(text)
    except OSError as fault:
        said = f"{path} can't be read: {fault.strerror}"
        if isinstance(fault, PermissionError):
            said += "; give the right to the user that this runs as"
        raise ConfigFault(f"{said}.") from None
    except ValueError as fault:  # tomllib's and UnicodeDecodeError are ValueErrors
        raise ConfigFault(f"{path} can't be understood: {fault}.") from None


def _flat_toml(text: str) -> dict[str, str]:
    """Tables and dotted keys become Kafka's dotted names: [log] segment.bytes = 1 is
    log.segment.bytes. Where one name begins another (max.connections, max.connections.per.ip),
    TOML wants quotes around the name."""
    import tomllib

    flat: dict[str, str] = {}

    def add(prefix: str, value: object) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{prefix}.{key}" if prefix else key, inner)
        elif isinstance(value, bool):
            flat[prefix] = "true" if value else "false"
        elif isinstance(value, list):
            flat[prefix] = ",".join(map(str, value))
        elif isinstance(value, int | float | str):
            flat[prefix] = str(value)
        else:
            raise ValueError(f"{prefix} is neither text, number, boolean nor a list")

    add("", tomllib.loads(text))
    return flat


def _from_properties(text: str) -> dict[str, str]:
    """The settings of a properties file, without the spaces behind values: Kafka leaves them out
    when it parses a setting."""
    found = {name: value.strip() for name, value in properties(text).items()}
    if "" in found:
        raise ValueError(f"={found['']} has no name")
    return found
