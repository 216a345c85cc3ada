"""What a leader remembers of the reads of one follower: a session, with a row for each partition.

`broker.replication.follower_reads` fills and answers them; a partition knows its rows, so that an
append finds those that it concerns.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.ipc.peer import Peer
    from shmbroker.replica.partition import Partition


class FollowedRow:
    """A partition in a session."""

    __slots__ = ("diverging", "error", "fetch_offset", "is_waiting", "known_high_watermark",
                 "known_log_start", "partition", "session", "which")  # fmt: skip

    def __init__(self, session: FollowerSession, which: int) -> None:
        self.session = session
        self.which = which
        self.partition: Partition | None = None
        self.fetch_offset = 0
        self.is_waiting = False
        """Whether it has been told everything, and has nothing on its way."""
        self.error = 0
        self.diverging: tuple[int, int] | None = None
        self.known_high_watermark = -1
        self.known_log_start = -1


class FollowerSession:
    """What one follower reads from this leader."""

    __slots__ = ("answered_ms", "behind_since_ms", "peer", "ready", "rows", "token")

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.rows: dict[int, FollowedRow] = {}
        self.ready: dict[FollowedRow, None] = {}
        """Rows with something to say, the longest waiting first."""
        self.token = 0
        """The token of the READ that waits; 0 while none does."""
        self.answered_ms = 0
        self.behind_since_ms = 0
        """The time since which the follower doesn't know some high watermark; 0: it knows all."""
