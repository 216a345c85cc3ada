"""What a consumer group of the new protocol is told, and what it wants done.

Pure values: settings and topics go in, a `Change` comes out, which says what to store.
"""

from __future__ import annotations

from shmbroker.groups.group_memory import GROUP_BYTES_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.groups.consumer.assignors import Assignment
    from shmbroker.groups.consumer.member import ConsumerMember
    from shmbroker.groups.consumer.records import Record
    from shmbroker.metadata.image import MetadataImage


class ConsumerSettings:
    """What the broker's settings say about groups of this kind; times in ms."""

    __slots__ = (
        "assignors",
        "bytes_max",
        "can_downgrade",
        "can_upgrade",
        "classic_size_max",
        "heartbeat_interval_ms",
        "regex_refresh_ms",
        "session_timeout_ms",
        "size_max",
    )

    def __init__(
        self,
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 5000,
        size_max: int = 2**31 - 1,
        assignors: tuple[str, ...] = ("uniform", "range"),
        migration_policy: str = "bidirectional",
        regex_refresh_ms: int = 600_000,
        classic_size_max: int = 2**31 - 1,
        bytes_max: int = GROUP_BYTES_MAX,
    ) -> None:
        self.session_timeout_ms = session_timeout_ms
        self.heartbeat_interval_ms = heartbeat_interval_ms
        self.size_max = size_max
        self.assignors = assignors
        """The first one is taken where members don't ask for another."""
        self.can_upgrade = migration_policy in ("bidirectional", "upgrade")
        self.can_downgrade = migration_policy in ("bidirectional", "downgrade")
        self.regex_refresh_ms = regex_refresh_ms
        self.classic_size_max = classic_size_max
        self.bytes_max = bytes_max


class Topics:
    """The topics that there are, and when that changed: offsets of the metadata log."""

    __slots__ = ("changed_offset", "created_offset", "image")

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        """A MetadataImage, or whatever has `topics_by_name`, `topics_by_id`, `offset`."""
        self.changed_offset = 0
        """Topics or partitions came or went."""
        self.created_offset = 0
        """Topics came."""


class Change:
    """What a request does to its group once `records` are in the log."""

    __slots__ = ("deadlines", "downgrade", "records", "seen_offset", "wants_regexes")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.deadlines: dict[str, Deadlines] = {}
        """Deadlines by member id."""
        self.seen_offset = -1
        """The `changed_offset` that the group knows now; -1: as before."""
        self.wants_regexes = False
        """`resolve_regexes` shall follow."""
        self.downgrade: Downgrade | None = None
        """The change to a classic group; None: the group stays what it is."""

    def deadlines_of(self, member_id: str) -> Deadlines:
        """The new deadlines of a member, to be filled in."""
        return self.deadlines.setdefault(member_id, Deadlines())


class Deadlines:
    """New deadlines of a member; None: as it was."""

    __slots__ = ("join_ms", "revoke_ms", "session_ms", "sync_ms")

    def __init__(self) -> None:
        self.session_ms: int | None = None
        self.revoke_ms: int | None = None
        self.join_ms: int | None = None
        self.sync_ms: int | None = None


class Downgrade:
    """The members of the classic group that a group becomes, with what they read."""

    __slots__ = ("is_rebalancing", "members")

    def __init__(
        self, members: list[tuple[ConsumerMember, Assignment]], is_rebalancing: bool
    ) -> None:
        self.members = members
        self.is_rebalancing = is_rebalancing
