"""What a broker does when a peer has died, or may be sent to.

network worker    what it asked for is dropped: pieces, acks, reads, held batches
cleaner, tier     what it was to do is asked again of its successor
sibling           what it was asked has failed, and it follows no more
controller        what it was asked has failed: another may be active
"""

from __future__ import annotations

from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.broker.broker import Broker
    from shmbroker.broker.ports import Peers
    from shmbroker.ipc.peer import Peer


class PeerChanges:
    """What `FamilyMember.look_at_announcements` tells of peers, for one broker."""

    def __init__(self, broker: Broker, peers: Peers) -> None:
        self._broker = broker
        self._peers = peers
        self.on_gateway_lost: Callable[[int], None] = lambda _slot: None
        """What is told of a network worker that has died, by its slot."""

    def on_peer_lost(self, peer: Peer) -> None:
        """Forget what it waited for; its successor knows none of our files."""
        broker, peers, asking = self._broker, self._peers, self._broker.asking
        broker.appender.parts.drop_peer(peer.slot)
        broker.appender.unverified.drop_peer(peer.slot)
        broker.acks.group_commit.drop_peer(peer)
        broker.acks.delayed.drop_peer(peer)
        broker.executor.drop_parts(peer.slot)
        broker.reader.drop_peer(peer.slot)
        broker.read_sessions.drop_peer(peer.slot)
        broker.passing.on_peer_lost(peer)
        if peer in peers.gateways:
            self.on_gateway_lost(peer.slot)
        if peer is peers.cleaner:
            asking.forget(peer)
            broker.compaction.on_cleaner_lost()
        elif peer is peers.tier:
            asking.forget(peer)
            broker.tiering.on_tier_lost()
        elif peers.siblings.get(peer.number) is peer:
            asking.fail(peer, error_codes.NETWORK_EXCEPTION)
            broker.replication.on_sibling_lost(peer)
        else:
            broker.registration.on_controller_lost(peer)

    def on_peer_running(self, peer: Peer) -> None:
        """Note that a peer may be sent to."""
        if peer is self._peers.tier:
            self._broker.tiering.on_tier_running()
