"""The slots of a family: a fixed place for each of its processes, with its role and number.

A slot outlives the process in it, whose successor takes it over. Shared memory names processes by
the index of their slot.
"""

from __future__ import annotations

SUPERVISOR = "supervisor"
NETWORK_WORKER = "network-worker"
IO_WORKER = "io-worker"
CONTROLLER = "controller"
CLEANER = "cleaner"
TIER = "tier"
METRICS = "metrics"
CONSOLE = "console"
PAGES = (METRICS, CONSOLE)
"""Roles that show something over HTTP. They have no rings: they read shared memory, and ask brokers
as a client."""


class Slot:
    """A place for a process, whatever its incarnation."""

    __slots__ = ("index", "number", "role")

    def __init__(self, index: int, role: str, number: int) -> None:
        self.index = index
        self.role = role
        self.number = number

    @property
    def title(self) -> str:
        """The name that `ps` shows for who is in it."""
        return self.role if self.role == SUPERVISOR else f"{self.role}-{self.number}"
