"""What a gateway is given: the other gateways of the family, and the brokers that it reaches."""

from __future__ import annotations

from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from shmbroker.ipc.passed_files import FileTable
    from shmbroker.ipc.peer import Peer
    from shmbroker.shm.address_counts import AddressCounts
    from shmbroker.shm.doorbell import Doorbell
    from shmbroker.shm.quota_counts import QuotaCounts


class Siblings(NamedTuple):
    """The gateways of the family: which of them this one is, and the others."""

    place: int
    """The place of this one, from 0."""
    doorbells: Mapping[int, Doorbell]
    """The doorbells of the other gateways, by slot."""
    address_counts: AddressCounts
    quota_counts: QuotaCounts
    guests: int = 0
    """How many gateways there are besides, with guests (`gateway.guests`). `place` of one of those
    is behind all others."""


class Brokers(NamedTuple):
    """The I/O workers, as a gateway reaches them."""

    peers: Mapping[int, Peer]
    """The rings to them, by broker id."""
    files: Mapping[int, FileTable]
    """Descriptors that they have passed, by their slot."""
    standing: Mapping[int, memoryview]
    """The words of their standing answers, by their slot."""
    ahead_ends: Mapping[int, memoryview]
    """One word each, AHEAD_ENDS of their slot, by that. Who is not here is not asked ahead."""
