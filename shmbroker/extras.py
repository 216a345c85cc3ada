"""Libraries that only some commands and features need, and the sentence where one is missing.

`serve` does without all of them, so a bare `pip install` is enough for a broker. Each is imported
where it is used, and nowhere else. `pyproject.toml` has the same requirements, by extra; a test
compares the two.
"""

from typing import NamedTuple

from shmbroker.errors import ConfigFault


class Library(NamedTuple):
    """One optional library."""

    extra: str
    """The extra of `pyproject.toml` that brings it."""
    requirement: str
    """What pip is asked for."""

    @property
    def distribution(self) -> str:
        """The distribution's name, without the version."""
        return self.requirement.partition(">")[0]


LIBRARIES = {
    "confluent_kafka": Library("cli", "confluent-kafka>=2.13"),
    "rich": Library("cli", "rich>=13.7"),
    "tqdm": Library("cli", "tqdm>=4.66"),
    "cryptography": Library("tls", "cryptography>=42"),
    "joserfc": Library("oauth", "joserfc>=1.1"),
    "re2": Library("regex", "google-re2>=1.1.20240702"),
    "authlib": Library("oauth", "authlib>=1.6"),
}
"""Libraries by the name that Python imports them by."""


def complaint(module: str, what: str) -> str:
    """A sentence, without a full stop: `what` needs this library, and how it is installed.

    The library is named, not our extra: nothing is published under our name.
    """
    library = LIBRARIES[module]
    return (
        f"{what} needs {library.distribution}, which is not installed: "
        f"pip install '{library.requirement}' (the extra {library.extra} has it)"
    )


def missing(error: ImportError, what: str) -> ConfigFault | None:
    """The fault to raise instead of `error`; None if it is not about one of these libraries."""
    module = (error.name or "").partition(".")[0]
    return ConfigFault(complaint(module, what)) if module in LIBRARIES else None
