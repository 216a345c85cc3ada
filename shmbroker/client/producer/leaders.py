"""The leaders of partitions: who they are, and the one connection to each.

    metadata       looked up when a leader is missing, has refused or is gone, and now and then
                   anyway; never again at once
    connections    opened when there is something to send, lost with their first fault
    rests          how long a broker is left alone behind a connection that failed; each rest is
                   twice the one before, until the broker delivers

Rules

* Only the thread that sends touches anything here, or, when it has ended, who ended it.
* A batch goes to one leader by the metadata of that moment. That they were wrong is what the
  leader's answer says, so they need not be fresh.
* A lost connection hands back what was in flight on it, unanswered.
"""

from __future__ import annotations

import selectors
from collections import deque
from collections.abc import Iterable
from math import inf

from shmbroker import clock
from shmbroker.client.cluster import Cluster
from shmbroker.client.producer.bell import Bell
from shmbroker.client.producer.connection import LeaderConnection, SentRequest
from shmbroker.client.producer.delivery import PartitionQueue
from shmbroker.client.producer.settings import ProducerSettings
from shmbroker.errors import ProtocolFault
from shmbroker.ids import TopicPartition

RETRY_S = 0.05
"""Metadata are not looked up again within this time, and what was refused is not sent again."""

RECONNECT_S = (0.05, 1.0)
"""The first and the longest rest between two attempts to connect to one broker."""

METADATA_AGE_S = 300.0
"""Kafka's metadata.max.age.ms: new partitions are noticed in this time."""


class Leaders:
    """The leaders of a cluster that a producer sends to."""

    def __init__(self, cluster: Cluster, settings: ProducerSettings) -> None:
        self.connections: dict[int, LeaderConnection] = {}
        self.wants_metadata = False
        self._cluster = cluster
        self._client_id = settings.client_id
        self._transactional_id = settings.transactional_id
        self._selector: selectors.BaseSelector | None = None
        self._reconnect: dict[int, tuple[float, float]] = {}  # not before, next rest
        self._metadata_s = 0.0  # not before
        self._metadata_until_s = 0.0

    def open(self, bell: Bell) -> None:
        """The sending thread is about to begin; it wakes from `ready` by this bell too."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(bell.fd, selectors.EVENT_READ)
        self._metadata_until_s = clock.monotonic() + METADATA_AGE_S

    def close(self) -> None:
        """The sending thread ends."""
        for connection in self.connections.values():
            connection.close()
        assert self._selector is not None
        self._selector.close()

    def forget(self) -> None:
        """Begin again, behind `close`."""
        self.connections.clear()
        self._reconnect.clear()

    # --- who it is -------------------------------------------------------------------------------

    def leader_of(self, queue: PartitionQueue) -> int:
        """The broker that a queue's batches go to; -1: none that is known."""
        leaders = self._cluster.topics[queue.topic].leaders
        leader = leaders[queue.partition] if queue.partition < len(leaders) else -1
        if leader < 0 or leader not in self._cluster.brokers:
            self.wants_metadata = True
            return -1
        return leader

    def maybe_refresh(self, now_s: float, queues: Iterable[TopicPartition]) -> float:
        """Look up the leaders where that is due; seconds until there is something to do here."""
        if not self.wants_metadata and now_s <= self._metadata_until_s:
            return inf
        if now_s < self._metadata_s:
            return self._metadata_s - now_s
        names = {topic for topic, _ in list(queues)}
        try:
            self._cluster.refresh(names)
        except (OSError, ProtocolFault):
            pass  # asked again
        else:
            self.wants_metadata = False
            self._metadata_until_s = clock.monotonic() + METADATA_AGE_S
        self._metadata_s = clock.monotonic() + RETRY_S
        return 0.0

    # --- connections to them ---------------------------------------------------------------------

    def connect(self, broker_id: int) -> LeaderConnection:
        """A new connection; OSError."""
        address = self._cluster.brokers[broker_id]
        connection = LeaderConnection(
            broker_id, address, self._client_id, self._transactional_id, self._cluster.security
        )
        self.connections[broker_id] = connection
        assert self._selector is not None
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        return connection

    def watch(self, connection: LeaderConnection) -> None:
        """Look for what the connection waits for."""
        assert self._selector is not None
        events = selectors.EVENT_READ
        if connection.is_writing:
            events |= selectors.EVENT_WRITE
        if self._selector.get_key(connection.socket).events != events:
            self._selector.modify(connection.socket, events, connection)

    def ready(self, wait_s: float) -> list[tuple[selectors.SelectorKey, int]]:
        """What has come within this time: a connection as a key's data, None for the bell."""
        assert self._selector is not None
        return self._selector.select(max(wait_s, 0.0))

    def lose(self, broker_id: int) -> deque[SentRequest]:
        """A connection ended, and its broker rests; what was in flight on it."""
        connection = self.connections.pop(broker_id)
        assert self._selector is not None
        self._selector.unregister(connection.socket)
        connection.close()
        self.rest(broker_id)
        return connection.requests

    # --- rests -----------------------------------------------------------------------------------

    def not_before_s(self, broker_id: int) -> float:
        """When a broker may be connected to."""
        return self._reconnect.get(broker_id, (0.0, 0.0))[0]

    def rest(self, broker_id: int) -> None:
        """Leave a broker alone for a while."""
        first, longest = RECONNECT_S
        rest_s = self._reconnect.get(broker_id, (0.0, first))[1]
        self._reconnect[broker_id] = clock.monotonic() + rest_s, min(2 * rest_s, longest)

    def end_rests(self, broker_id: int) -> None:
        """End the rests of a broker that has delivered: its next rest is a first one."""
        self._reconnect.pop(broker_id, None)
