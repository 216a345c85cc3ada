"""What a broker takes from its rings: operations of gateways, siblings and helpers, in their order.

   APPEND, APPEND_MANY, APPEND_PART     ──►  appender       (`broker.append`, `append_runs`)
   READ, CANCEL                         ──►  reader         (`broker.read`)
   READ of a follower, READ_DONE        ──►  replication
   EXECUTE, EXECUTE_PART                ──►  executor       (the API modules)
   EXECUTED, EXECUTED_PART              ──►  asking         (answers to what this broker asked)
   NEED_FILE, DROP_FILE                 ──►  passing, fetcher

Rules of this file:
* Nothing is done on an older image than the sender's: the metadata log is followed first.
* One turn takes of one peer for `TAKE_S`: 4,000 appends to new logs, which one request may bring,
  take a second, and others want to be served.
* Results are published early once `PUBLISH_BYTES` of one peer were appended since the last time.
"""

from __future__ import annotations

from shmbroker.ipc.operation_layout import (
    APPEND,
    APPEND_MANY,
    APPEND_PART,
    CANCEL,
    DROP_FILE,
    EXECUTE,
    EXECUTE_PART,
    EXECUTED,
    EXECUTED_PART,
    NEED_FILE,
    READ,
    READ_DONE,
    READ_FLAG_FOLLOWER,
    READ_FLAG_SESSION,
    READ_FLAGS_AT,
    TOKEN,
)
from shmbroker.shm.counters import ANNOUNCEMENTS_WORD, METADATA_END_OFFSET_WORD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.broker.broker import Broker
    from shmbroker.ipc.peer import Peer

PUBLISH_BYTES = 64 << 10
ENTRIES_BETWEEN_LOOKS = 32
"""The number of a peer's entries after which the clock is looked at."""
TAKE_S = 0.01


class Intake:
    """Takes operations, and gives each to the part of the broker that it is for."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.words = broker.words
        self.member = broker.member
        self.metadata = broker.metadata
        self.follower = broker.link.follower
        self.appender = broker.appender
        self.append_runs = broker.append_runs
        self.append_parts = broker.appender.parts
        siblings = set(broker.peers.siblings.values())
        self.first_guess = [READ if peer in siblings else APPEND for peer in self.member.peers]
        """What the next entry of each peer may be: gateways alone send appends."""
        self.has_executed = False
        """A forwarded request was taken in this turn."""

    def take(self, seconds: float = TAKE_S) -> bool:
        """Take what the rings hold now, from each for so long; True if there was anything."""
        self.has_executed = False
        words, metadata = self.words, self.metadata
        metadata.has_stepped = False
        if words[ANNOUNCEMENTS_WORD] != self.member.announcements:
            self.member.look_at_announcements(self.broker.peer_changes)
        look, take_from = self.member.rings.ready, self._take_from
        ready = look()
        for index in ready:
            take_from(index, seconds)
        if ready:
            # Of two followers, the later one comes while the first is heard.
            for index in look():
                if index not in ready:
                    take_from(index, seconds)
        if words[METADATA_END_OFFSET_WORD] != self.follower.image.offset:
            metadata.follow()
        return bool(ready)

    def _take_from(self, index: int, seconds: float) -> None:
        """Take all that one peer has sent by now, but what comes behind its time."""
        peer = self.member.peers[index]
        reader = peer.reader
        reader.poll()
        if stamp := reader.stamped():
            self.broker.shown.on_stamp(stamp)
        if self.words[METADATA_END_OFFSET_WORD] != self.follower.image.offset:
            self.metadata.follow()
        self._take_entries(peer, self.first_guess[index], seconds)
        reader.release()

    def _take_entries(self, peer: Peer, operation: int, seconds: float) -> None:
        reader, appender = peer.reader, self.appender
        published_at = appender.bytes_in
        data, on_append, take_plain = reader.data, appender.on_append, self.append_runs.take_plain
        left, deadline = ENTRIES_BETWEEN_LOOKS, 0.0
        while True:
            if operation == APPEND:  # then more of them may follow
                left -= take_plain(peer, left, PUBLISH_BYTES + published_at - appender.bytes_in)
            if left:
                if (entry := reader.next()) is None:
                    return
                operation, index, length = entry
                left -= 1
                if operation == APPEND:
                    on_append(peer, data, index, length)
                elif operation == APPEND_MANY:
                    self.append_runs.on_append_many(peer, data, index)
                else:
                    self._take_other(peer, operation, data, index, length)
            if appender.bytes_in - published_at > PUBLISH_BYTES:
                published_at = appender.bytes_in
                reader.release()
                peer.publish()
            if not left:
                left, now = ENTRIES_BETWEEN_LOOKS, self.broker.clock.monotonic()
                deadline = deadline or now + seconds
                if now > deadline:
                    return

    def _take_other(
        self, peer: Peer, operation: int, data: memoryview, index: int, length: int
    ) -> None:
        broker = self.broker
        if operation == READ:
            flags = data[index + READ_FLAGS_AT]
            if flags & READ_FLAG_FOLLOWER:
                broker.replication.reads.on_read(peer, data, index)
            elif flags & READ_FLAG_SESSION:
                broker.read_sessions.on_read(peer, data, index)
            else:
                broker.reader.on_read(peer, data, index)
        elif operation == READ_DONE:
            broker.replication.fetcher.on_read_done(peer, data, index)
        elif operation == APPEND_PART:
            self.append_parts.on_part(peer, data, index, length)
        elif operation == EXECUTE_PART:
            broker.executor.on_part(peer, data, index, length)
        elif operation == EXECUTE:
            broker.executor.on_execute(peer, data, index, length)
            self.has_executed = True
        elif operation == CANCEL:
            broker.reader.on_cancel(peer, TOKEN.unpack_from(data, index)[0])
        elif operation == NEED_FILE:
            broker.passing.pass_again(peer, TOKEN.unpack_from(data, index)[0])
            peer.doorbell.ring_if_sleeping()  # a descriptor wakes nobody, and a read waits for it
        elif operation == DROP_FILE:
            broker.replication.fetcher.drop_file(peer, TOKEN.unpack_from(data, index)[0])
        elif operation == EXECUTED_PART:
            broker.asking.on_executed_part(peer, data, index, length)
        elif operation == EXECUTED:
            broker.asking.on_executed(peer, data, index, length)
