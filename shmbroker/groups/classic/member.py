"""A member of a classic group, and what it says to the others.

Pure, like the group it is in. Lost with the coordinator: what is parked, deadlines, and the
protocols that were not chosen; the rest is in the group's record.

Source: Kafka's ClassicGroupMember, ConsumerProtocol.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

from shmbroker.groups.group_memory import MEMBER_BYTES, protocols_bytes
from shmbroker.purgatory import NEVER_MS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.groups.caller import Caller

    Protocols = tuple[tuple[str, bytes], ...]

_INT16 = Struct(">h")
_INT32 = Struct(">i")


class ClassicMember:
    """One member. `join_call` and `sync_call` are its parked requests."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "deadline_ms",
        "instance_id",
        "is_new",
        "join_call",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync_call",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        """The instance id of a static member (KIP-345)."""
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        """(name, metadata), the preferred one first."""
        self.assignment = assignment
        self.join_call: Caller | None = None
        self.sync_call: Caller | None = None
        self.deadline_ms = NEVER_MS
        """When it is removed; NEVER_MS while it waits for a rebalance, unless it is new."""
        self.is_new = False
        """Has not been through a rebalance yet."""

    @property
    def held_bytes(self) -> int:
        """What it takes in memory, without its assignment."""
        names = len(self.member_id) + len(self.client_id) + len(self.instance_id or "")
        return MEMBER_BYTES + names + protocols_bytes(self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        """What it says to the leader under this protocol."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def copy(self, member_id: str) -> ClassicMember:
        """This member under another id, with nothing parked."""
        return ClassicMember(
            member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.protocols,
            self.assignment,
        )


def subscribed_topics(metadata: bytes, count_max: int) -> tuple[list[str], int] | None:
    """(the topics of a ConsumerProtocolSubscription of any version, where they end); None if it
    isn't one, or has more of them than `count_max`."""
    try:
        count = _INT32.unpack_from(metadata, 2)[0]
        if not 0 <= count <= count_max:
            return None
        at = 6
        topics = []
        for _ in range(count):
            length = _INT16.unpack_from(metadata, at)[0]
            at += 2
            if not 0 <= length <= len(metadata) - at:
                return None
            topics.append(metadata[at : at + length].decode())
            at += length
    except (StructError, UnicodeDecodeError):
        return None
    return topics, at
