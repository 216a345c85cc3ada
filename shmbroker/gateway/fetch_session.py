"""Fetch sessions (KIP-227): what a client asks for is kept here, so that it says only changes.

A client's first Fetch names all its partitions; the answer gives the session an id. From then on
a request names partitions that are new, changed or no longer wanted, an answer only partitions
that have records, an error, or another high watermark or log start offset than the client was
told. Each request has the epoch after the one before: 1, 2 … 2^31 - 1, then 1 again.

What a session keeps of a partition is one entry, the very bytes that a READ asks with:

    at  size  field          meaning
     0    20  partition_key  where the log is; zeros while it can't be told
    20    20  parameters     of the request: READ_PARTITION from max_bytes to fetch_offset
    40    16  known          high watermark and log start offset as the client was told; -1 at first

Rules of this file
* Pure: the time comes in as an argument, the first session id too, which partitions there are as
  a function.
* Bounded in sessions and, all sessions together, in partitions. A partition takes 280 bytes, with
  its entry among those of the next READ.
* The session that has to go is found as in Kafka: one not heard of for EVICTION_MS; else the
  smallest session that is older than that, for a larger one. There is no harm in having no session:
  the client goes on with full requests.
* The order of partitions is that of reading: one that gave records goes to the end, so that those
  behind it have their turn when answers are full.
* The broker keeps the entries, too, of a session of KEPT_MIN partitions and more
  (`broker.read_sessions`): a READ then brings those that have changed. Whatever else has happened
  to them since the broker was last told, or to an answer, has the next READ bring all.

Source: KIP-227, KIP-516 (topic ids), Kafka `FetchSession`.
"""

from __future__ import annotations

from struct import Struct

from shmbroker.ipc.operation_layout import READ_PARTITION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable

    from shmbroker.gateway.fetch_implied import KeptRows
    from shmbroker.gateway.fetch_request import Limits
    from shmbroker.ipc.peer import Peer
    from shmbroker.metadata.image import MetadataImage

    Key = tuple[str | bytes, int]
    """Topic name, or id in sessions that use ids, and partition."""
    Packed = tuple[int, Hashable, bool, int, int, int, list[tuple[Key, bytes]]]
    """A session on its way to another gateway, as `FetchSessions.packed` makes it."""

PARTITION_KEY_BYTES = 20
PARAMETERS = Struct("<iiiq")
KNOWN = Struct("<qq")
KNOWN_AT = PARTITION_KEY_BYTES + PARAMETERS.size
assert KNOWN_AT + KNOWN.size == READ_PARTITION.size

NO_PARTITION_KEY = bytes(PARTITION_KEY_BYTES)
NOTHING_KNOWN = KNOWN.pack(-1, -1)

EVICTION_MS = 120_000
EPOCH_LAST = 2**31 - 1
SESSION_IDS = 2**31
PARTITIONS_MAX = 100_000
"""The partitions in all sessions of a worker together: 28 MB."""
SESSION_PARTITIONS_MAX = 8000
"""The partitions in one session: what one READ can ask for."""
KEPT_MIN = 16
"""Below that, a READ of all costs no more than one of a few."""


def next_epoch(epoch: int) -> int:
    """The epoch of the request after one."""
    return 1 if epoch == EPOCH_LAST else epoch + 1


class FetchSession:
    """One client's partitions. `image`, `repeated`, `host` and `kept_rows` belong to the caller."""

    __slots__ = (
        "_changed",
        "_keys",
        "_payload",
        "asked_last",
        "counted",
        "created_ms",
        "epoch",
        "errors",
        "host",
        "id",
        "image",
        "is_in_step",
        "kept_rows",
        "owner",
        "partitions",
        "repeated",
        "unresolved",
        "used_ms",
        "uses_topic_ids",
    )

    def __init__(self, session_id: int, owner: Hashable, uses_topic_ids: bool, now_ms: int) -> None:
        self.id = session_id
        self.owner = owner
        self.uses_topic_ids = uses_topic_ids
        self.created_ms = self.used_ms = now_ms
        self.epoch = 1
        """What the next request must have."""
        self.partitions: dict[Key, bytes] = {}
        """The entries of its partitions, in the order of reading."""
        self.errors: dict[Key, int] = {}
        """Partitions that can't be read, and why."""
        self.unresolved: list[Key] = []
        """Added since `resolve` was last called."""
        self.counted = 0
        self.image: MetadataImage | None = None
        """The metadata image that the partition keys are of."""
        self.repeated: Limits | None = None
        """How the client asks when nothing has changed."""
        self.host: tuple[Peer, int] | None = None
        """The I/O worker of the broker that keeps the entries, and its incarnation; None: no broker
        does."""
        self.is_in_step = False
        """Whether that I/O worker keeps what is here, but for what has changed since."""
        self.kept_rows: KeptRows | None = None
        """What an answer says of partitions with nothing to tell, where the client knows of no
        session and is told of all."""
        self.asked_last: list[Key] = []
        """The partitions that it keeps, in its order."""
        self._changed: dict[Key, None] = {}
        self._keys: list[Key] = []
        self._payload: bytes | None = None

    def change(self, changed: Iterable[tuple[Key, bytes]], forgotten: Iterable[Key]) -> None:
        """Take what a request says: partitions with PARAMETERS, and those no longer wanted."""
        partitions = self.partitions
        for key, parameters in changed:
            entry = partitions.get(key)
            if entry is None:
                partitions[key] = NO_PARTITION_KEY + parameters + NOTHING_KNOWN
                self.unresolved.append(key)
                self.is_in_step = False
            else:
                partitions[key] = entry[:PARTITION_KEY_BYTES] + parameters + entry[KNOWN_AT:]
                if self.is_in_step:
                    self._changed[key] = None
            self._payload = None
        for key in forgotten:
            if partitions.pop(key, None) is not None:
                self.errors.pop(key, None)
                self._payload = None
                self.is_in_step = False

    def resolve(self, keys: Iterable[Key], locate: Callable[[Key], bytes | int]) -> None:
        """Find out where partitions are: `locate` tells a partition's key on the rings, or an
        error code. One that comes back is told to the client as if it was new."""
        partitions, errors = self.partitions, self.errors
        for key in keys:
            entry = partitions.get(key)
            if entry is None:
                continue  # forgotten in the same request
            found = locate(key)
            if isinstance(found, int):
                errors[key] = found
                partitions[key] = NO_PARTITION_KEY + entry[PARTITION_KEY_BYTES:KNOWN_AT]
                partitions[key] += NOTHING_KNOWN
            elif errors.pop(key, 0) or not entry.startswith(found):
                partitions[key] = found + entry[PARTITION_KEY_BYTES:]
            else:
                continue
            self._payload = None
            self.is_in_step = False
        self.unresolved = []

    @property
    def is_large(self) -> bool:
        """Whether the broker keeps its entries, too."""
        return len(self.partitions) >= KEPT_MIN

    def asked(self) -> tuple[list[Key], bytes]:
        """The partitions that can be read, and their entries for a READ, in the same order."""
        payload = self._payload
        if payload is None:
            partitions, errors = self.partitions, self.errors
            if errors:
                self._keys = [key for key in partitions if key not in errors]
                payload = b"".join([partitions[key] for key in self._keys])
            else:
                self._keys = list(partitions)
                payload = b"".join(partitions.values())
            self._payload = payload
        return self._keys, payload

    def asked_since(self) -> list[bytes]:
        """The entries that have changed since `on_asked`, while it is in step."""
        partitions, errors = self.partitions, self.errors
        return [partitions[key] for key in self._changed if key not in errors]

    def on_asked(self, host: tuple[Peer, int] | None, asked: list[Key]) -> None:
        """The broker at `host` is told of all. asked: all that it keeps, in the order in which it
        was told. Whether it is in step then shows with its answer."""
        self.host, self.asked_last, self.is_in_step = host, asked, False
        self._changed.clear()

    def on_told(
        self, key: Key, error: int, high_watermark: int, log_start_offset: int, has_records: bool
    ) -> None:
        """The client is told this of a partition.

        After an error it knows nothing: when the partition is well again, it is told so.
        """
        partitions = self.partitions
        entry = partitions[key]
        told = entry[:KNOWN_AT] + KNOWN.pack(-1 if error else high_watermark, log_start_offset)
        if has_records:
            del partitions[key]
        elif told == entry:
            return
        partitions[key] = told
        self._payload = None


class FetchSessions:
    """All sessions of one network worker, least recently used first."""

    def __init__(
        self,
        id_range: range,
        first_id: int,
        sessions_max: int,
        partitions_max: int = PARTITIONS_MAX,
        on_removed: Callable[[FetchSession], None] = lambda _session: None,
    ) -> None:
        """`id_range` is of this worker alone; `first_id` is random, so that ids of the process
        before this one are not given out again soon. on_removed: told of each that ends."""
        self.id_range = id_range
        self.sessions_max = sessions_max
        self.partitions_max = partitions_max
        self.partition_count = 0
        self.sessions: dict[int, FetchSession] = {}
        self._given = first_id % len(id_range)
        self._on_removed = on_removed

    def get(self, session_id: int, owner: Hashable) -> FetchSession | None:
        """A session with this broker."""
        session = self.sessions.get(session_id)
        return session if session is not None and session.owner == owner else None

    def try_create(
        self,
        owner: Hashable,
        uses_topic_ids: bool,
        partitions: Iterable[tuple[Key, bytes, int, int, int]],
        count: int,
        now_ms: int,
    ) -> FetchSession | None:
        """A session about what a full answer tells; None if there is no room.

        partitions: key, PARAMETERS, error, high watermark, log start offset; `count` of them.
        """
        if not self._make_room(count, now_ms):
            return None
        session = FetchSession(self._new_id(), owner, uses_topic_ids, now_ms)
        for key, parameters, error, high_watermark, log_start_offset in partitions:
            known = KNOWN.pack(-1 if error else high_watermark, log_start_offset)
            session.partitions[key] = NO_PARTITION_KEY + parameters + known
        self.sessions[session.id] = session
        self._count(session)
        return session

    def packed(self, session: FetchSession | None) -> Packed | None:
        """What another gateway goes on with by `adopt`; None of one that was evicted."""
        if session is None or self.sessions.get(session.id) is not session:
            return None
        return (
            session.id,
            session.owner,
            session.uses_topic_ids,
            session.created_ms,
            session.used_ms,
            session.epoch,
            list(session.partitions.items()),
        )

    def adopt(self, packed: Packed) -> FetchSession | None:
        """Go on with a session of another gateway; None if there is no room: then its client begins
        a new one."""
        session_id, owner, uses_topic_ids, created_ms, used_ms, epoch, partitions = packed
        if not self._make_room(len(partitions), used_ms):
            return None
        session = FetchSession(session_id, owner, uses_topic_ids, created_ms)
        session.used_ms, session.epoch = used_ms, epoch
        session.partitions.update(partitions)
        self.sessions[session_id] = session
        self._count(session)
        return session

    def has_room(self, session: FetchSession, changed: Collection[tuple[Key, bytes]]) -> bool:
        """Whether there is room in it for those of these partitions that it does not have yet."""
        had = session.partitions
        room = min(SESSION_PARTITIONS_MAX - len(had), self.partitions_max - self.partition_count)
        if len(changed) <= room:
            return True
        new = {key for key, _ in changed if key not in had}
        return not new or len(new) <= room

    def on_request(self, session: FetchSession, now_ms: int) -> None:
        """A request of the session has been taken: the next one has the next epoch."""
        session.epoch = next_epoch(session.epoch)
        session.used_ms = now_ms
        if self.sessions.pop(session.id, None) is session:
            self.sessions[session.id] = session
            self._count(session)

    def remove(self, session: FetchSession) -> None:
        """Requests that name it get FETCH_SESSION_ID_NOT_FOUND from now on."""
        if self.sessions.pop(session.id, None) is session:
            self.partition_count -= session.counted
            self._on_removed(session)

    def _count(self, session: FetchSession) -> None:
        count = len(session.partitions)
        self.partition_count += count - session.counted
        session.counted = count

    def _new_id(self) -> int:
        while True:
            self._given = (self._given + 1) % len(self.id_range)
            session_id = self.id_range[self._given]
            if session_id and session_id not in self.sessions:
                return session_id

    def _make_room(self, count: int, now_ms: int) -> bool:
        """Evict whom Kafka would evict. For want of partitions only those not heard of go: one
        large session must not take the place of thousands."""
        sessions = self.sessions
        if count > min(self.partitions_max, SESSION_PARTITIONS_MAX) or not self.sessions_max:
            return False
        while self.partition_count + count > self.partitions_max:
            stale = self._stale(now_ms)
            if stale is None:
                return False
            self.remove(stale)
        if len(sessions) < self.sessions_max:
            return True
        victim = self._stale(now_ms)
        if victim is None:
            victim = min(
                (
                    session
                    for session in sessions.values()
                    if session.used_ms - session.created_ms > EVICTION_MS
                ),
                key=lambda session: session.counted,
                default=None,
            )
            if victim is None or victim.counted >= count:
                return False
        self.remove(victim)
        return True

    def _stale(self, now_ms: int) -> FetchSession | None:
        oldest = next(iter(self.sessions.values()), None)
        if oldest is not None and now_ms - oldest.used_ms > EVICTION_MS:
            return oldest
        return None
