"""What a family is, in shared memory for whoever attaches from outside: a text, written once.

at      size  field   stored by    meaning
0x0000     8  length  supervisor   bytes of the text
0x0008     …  text    supervisor   a Python literal: the fields of About, in their order

It is stored before the first fork, and never changed.
"""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.errors import ConfigFault
from shmbroker.metadata.topic_names import METADATA_DIRECTORY

LENGTH_BYTES = 8
REGION = "about"
_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where this host finds one that listens everywhere."""


class About(NamedTuple):
    """What can't be read out of the other regions."""

    version: str
    cluster_id: str
    data_directory: str
    started_ms: int
    """When the family was started, in ms since 1970."""
    started_s: float
    """Seconds of the host's steady clock at that moment: the wall clock may jump."""
    supervisor_pid: int
    slots: list[tuple[str, int]]
    """Role and number, by slot."""
    rings: list[tuple[int, int, int]]
    """Rings in the order of their region: who writes, who reads, the capacity."""
    directories: dict[int, str]
    """The log directory of each broker, by its id; the controller of the same id is beside it."""
    addresses: dict[int, tuple[str, int]]
    """Where each broker listens."""
    min_in_sync: str | None
    """min.insync.replicas, if file or flags set it."""

    def metadata_directory(self, controller: int) -> str:
        """The metadata log of a controller."""
        return f"{self.directories[controller]}/{METADATA_DIRECTORY}"

    def reached(self) -> dict[int, tuple[str, int]]:
        """Where each broker is reached from this host, by its id."""
        return {
            number: (_ANY_HOST.get(host, host), port)
            for number, (host, port) in self.addresses.items()
        }

    def to_bytes(self) -> bytes:
        """The bytes that go into the region."""
        text = repr(tuple(self)).encode("utf-8", "surrogateescape")
        return len(text).to_bytes(LENGTH_BYTES, "little") + text

    @classmethod
    def from_bytes(cls, view: memoryview) -> About:
        """Read the text of the region; ConfigFault if another version wrote it."""
        import ast

        length = int.from_bytes(view[:LENGTH_BYTES], "little")
        text = bytes(view[LENGTH_BYTES : LENGTH_BYTES + length]).decode("utf-8", "surrogateescape")
        try:
            return cls(*ast.literal_eval(text))
        except (SyntaxError, ValueError, TypeError) as fault:
            raise ConfigFault(
                "The running broker is of another version: use the tools it brought."
            ) from fault
