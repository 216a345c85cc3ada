"""The brokers that clients are told of: those alive or just gone, leaders and where they are.

Rules of this file:
* A broker that is gone stays in Metadata for a while, without leading anything: its port is served
  all the time. librdkafka drops a broker that Metadata leaves out with all that it has for it, and
  if its partitions are just moving to their next leader, they lie with nobody for up to 1.5 s.
* One that has not run, as it can't boot, is in no Metadata, as in Kafka: clients would try it again
  and again, and each of its next tries to boot is a death.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from shmbroker.apis.contexts import MetadataLink
from shmbroker.gateway.connection import Connection
from shmbroker.gateway.listener import Listener
from shmbroker.ipc.peer import Peer
from shmbroker.metadata.image import MetadataImage
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.settings.listeners import address_text
from shmbroker.wire import error_codes

GONE_TOLD_S = 5.0
"""How long Metadata names a broker that is gone: until its successor has come, nearly always, and
until clients have heard who leads now."""


class BrokersTold:
    """The brokers of this family, as a network worker's clients are told of them."""

    def __init__(
        self,
        image: MetadataImage,
        config: BrokerConfig,
        io_peers: Mapping[int, Peer],
        listeners: Iterable[Listener],
        link: MetadataLink,
    ) -> None:
        self.image = image
        """Set again whenever the gateway's is."""
        self.config = config
        self.io_peers = io_peers
        self._listeners: dict[str, list[Listener]] = {}
        """The listeners of clients, by their name."""
        for listener in listeners:
            if not listener.is_control:
                self._listeners.setdefault(listener.config.name, []).append(listener)
        self._told = {
            name: {listener.broker_id: listener.told() for listener in found}
            for name, found in self._listeners.items()
        }
        first = next(iter(self._told.values()))
        self._first = first
        """What is told on the control socket."""
        self.ports = {number: port for number, (_, port) in first.items()}
        self._link = link
        self.fenced: frozenset[int] = frozenset()
        """Ids of brokers that run, but hang or stop: others lead in their place."""
        self.gone: dict[int, float] = {}
        """Brokers that died or were fenced, and until when Metadata names them nevertheless."""
        self._ran: set[int] = set()
        """Brokers whose process has run since their last death."""

    # ── who comes and goes ──────────────────────────────────────────────────────────────────────

    def on_running(self, number: int) -> None:
        """Note that a broker's process runs."""
        self._ran.add(number)

    def on_lost(self, number: int, now: float) -> None:
        """Note that a broker's process has died, if it ran."""
        if number in self._ran:
            self._ran.remove(number)
            self.gone[number] = now + GONE_TOLD_S

    def look_at_fences(self, now: float) -> frozenset[int]:
        """Take from the image who is fenced: those that were not before."""
        fenced = frozenset(
            number
            for number, broker in self.image.brokers.items()
            if not broker.is_active and number in self.io_peers
        )
        added = fenced - self.fenced
        for number in added & self._ran:
            self.gone[number] = now + GONE_TOLD_S
        self.fenced = fenced
        return added

    def forget_gone(self, now: float) -> bool:
        """Whether the time of some that are gone is over: they are told no more."""
        if not self.gone or min(self.gone.values()) > now:
            return False
        self.gone = {number: until for number, until in self.gone.items() if until > now}
        return True

    # ── what clients are told ───────────────────────────────────────────────────────────────────

    def io_peer(self, connection: Connection) -> Peer | None:
        """The I/O worker of the connection's port, None while it is down."""
        number = connection.listener.broker_id
        return self.io_peers[number] if self.is_live(number) else None

    def live_brokers(self) -> set[int]:
        """Ids of the brokers that serve now."""
        return {number for number in self.io_peers if self.is_live(number)}

    def is_live(self, broker_id: int) -> bool:
        """Whether a broker serves now."""
        peer = self.io_peers.get(broker_id)
        return peer is not None and peer.incarnation > 0 and broker_id not in self.fenced

    def controller_broker_id(self) -> int:
        """The broker that clients are told is the controller: the one beside the active controller,
        if it lives; any broker passes such requests on."""
        told = self._told_brokers()
        number = self._link.number
        return number if number in told else min(told)

    def _told_brokers(self) -> Collection[int]:
        """The live brokers; all of them while none lives, as librdkafka never connects again once
        it was told that there are none."""
        return self.live_brokers() or self.ports

    def broker_rows(
        self, connection: Connection, *, with_gone: bool = False
    ) -> list[dict[str, Any]]:
        """Node id, host, port, rack of the live brokers, as this client reaches them; `with_gone`:
        those that died lately, too."""
        told = self._told.get(connection.listener.config.name, self._first)
        rows = []
        for number in sorted({*self._told_brokers(), *(self.gone if with_gone else ())}):
            broker = self.image.brokers.get(number)
            rows.append(
                {
                    "node_id": number,
                    "host": connection.host or told[number][0],
                    "port": told[number][1],
                    "rack": broker.rack if broker is not None else None,
                }
            )
        return rows

    def identity_of(self, broker_id: int) -> dict[str, str]:
        """What one broker is, as the settings that Kafka says it with."""
        mine = [
            listener
            for found in self._listeners.values()
            for listener in found
            if listener.broker_id == broker_id
        ]
        return self.config.identity(
            broker_id,
            (_text(listener, listener.bound()) for listener in mine),
            (_text(listener, listener.told()) for listener in mine),
            self.config.nodes[broker_id],
        )

    def leader_hint(self, name: str, topic_id: bytes, index: int) -> tuple[int, int] | None:
        """Leader and leader epoch of a partition, for the CurrentLeader tag (KIP-951); None while
        it has none: nobody shall be sent back to the one that has died."""
        topic = self.image.topics_by_id.get(topic_id) or self.image.topics_by_name.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        partition = topic.partitions[index]
        if not self.is_live(partition.leader_id):
            return None
        return partition.leader_id, partition.leader_epoch

    def node_endpoints(
        self, connection: Connection, leaders: set[int]
    ) -> list[tuple[int, str, int, str | None]]:
        """(id, host, port, rack) of those of the leaders that are alive, as this client reaches
        them."""
        told = self._told.get(connection.listener.config.name, self._first)
        return [
            (node, connection.host or told[node][0], told[node][1], None)
            for node in sorted(leaders)
            if node in told
        ]

    def add_leader_hints(
        self,
        connection: Connection,
        topics: list[dict[str, Any]],
        rows: str,
        index: str,
        body: dict[str, Any],
    ) -> None:
        """Add CurrentLeader and NodeEndpoints where an answer says NOT_LEADER_OR_FOLLOWER."""
        leaders = set()
        for topic in topics:
            for row in topic[rows]:
                if row["error_code"] != error_codes.NOT_LEADER_OR_FOLLOWER:
                    continue
                hint = self.leader_hint(topic["name"], topic["topic_id"], row[index])
                if hint is not None:
                    row["current_leader"] = {"leader_id": hint[0], "leader_epoch": hint[1]}
                    leaders.add(hint[0])
        if leaders:
            body["node_endpoints"] = [
                {"node_id": node, "host": host, "port": port, "rack": rack}
                for node, host, port, rack in self.node_endpoints(connection, leaders)
            ]


def _text(listener: Listener, address: tuple[str, int]) -> str:
    config = listener.config
    where = address[0] if config.is_unix else address_text(*address)
    return f"{config.name}://{where}"
