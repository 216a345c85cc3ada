"""What the fetches of one reader share, piece after piece: topics' descriptions and connections.

A description names all of a topic's partitions, and a connection may cost a handshake and the check
of a password. So who reads thousands of partitions asks for each once, not once for each piece.

Rules of this file:
* One reader in one thread: a connection is lent to one fetch at a time.
* What fails is not kept: the next fetch looks the leader up again.
* Files need none of it: the client is imported and opened when the first piece is fetched.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.client.cluster import Topic
    from shmbroker.client.connection import Connection
    from shmbroker.client.reader.asking import Consumer
    from shmbroker.client.reader.broker_client import BrokerClient


class KnownLeaders:
    """A client, the topics that it has looked up, and idle connections by the leader's id."""

    def __init__(self) -> None:
        self._client: BrokerClient | None = None
        self._topics: dict[str, Topic] = {}
        self._idle: dict[int, Connection] = {}

    def __enter__(self) -> KnownLeaders:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections, and forget the topics."""
        while self._idle:
            self._idle.popitem()[1].close()
        self._topics.clear()
        if self._client is not None:
            self._client.close()
            self._client = None

    def client(self, consumer: Consumer) -> BrokerClient:
        """The client for these brokers; another consumer's is closed."""
        from shmbroker.client.reader.broker_client import BrokerClient

        if self._client is None or self._client.consumer != consumer:
            self.close()
            self._client = BrokerClient(consumer)
        return self._client

    def topic(self, client: BrokerClient, name: str, topic_id: bytes) -> Topic | None:
        """The topic as it was looked up, now if not yet with this id; None if there is none."""
        known = self._topics.get(name)
        if known is None or known.topic_id != topic_id:
            known = client.topics([name]).get(name)
            if known is not None:
                self._topics[name] = known
        return known

    def take(self, client: BrokerClient, topic: Topic, partition: int) -> Connection:
        """A connection to the partition's leader, to be given back or closed; LaterFault if there
        is no leader, OSError if it can't be reached."""
        idle = self._idle.pop(topic.leader_of(partition), None)
        return client.connect_leader(topic, partition) if idle is None else idle

    def give_back(self, leader: int, connection: Connection) -> None:
        """Keep a connection on which no answer is to come for the next piece."""
        other = self._idle.pop(leader, None)
        if other is not None:
            other.close()
        self._idle[leader] = connection

    def forget(self, name: str) -> None:
        """Look this topic up again: its leader has failed, or is another one."""
        self._topics.pop(name, None)
