"""What a controller begins with: its directory, and the voter on it."""

from __future__ import annotations

from shmbroker.controller.bootstrap import write_bootstrap_checkpoint
from shmbroker.controller.raft.quorum_needs import Timeouts
from shmbroker.controller.raft.quorum_state import QuorumState
from shmbroker.controller.raft.voter import Voter
from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.log.config import LogConfig
from shmbroker.log.meta_properties import require_meta_properties

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from shmbroker.clock import Clock
    from shmbroker.controller.raft.quorum_needs import Chance
    from shmbroker.controller.raft.voter import Links
    from shmbroker.settings.broker_config import BrokerConfig


def open_voter(
    clock: Clock,
    config: BrokerConfig,
    node_id: int,
    voters: Collection[int],
    cluster_id: str,
    links: Links | None,
    *,
    is_successor: bool,
    chance: Chance | None = None,
) -> Voter:
    """The voter of a node, with the family's settings, not started. `voters`: all of them.

    is_successor: another process was this controller since the family started. The supervisor
    gives a family that starts what one voter has lost (`voter_change`), and nobody does later.
    ConfigFault if the directory is of another cluster or node; CorruptFault, StorageFault: as
    `Voter.open`; where there are other voters, it says how to get what they have.
    """
    directory = config.nodes[node_id]
    require_meta_properties(directory, node_id, cluster_id)
    write_bootstrap_checkpoint(directory, clock.now_ms())
    others = [config.metadata_directory(number) for number in voters if number != node_id]
    try:
        return Voter.open(
            directory,
            node_id,
            voters,
            links,
            clock=clock,
            chance=chance,
            log_config=LogConfig(
                {
                    "segment.bytes": str(config["metadata.log.segment.bytes"]),
                    "segment.ms": str(config["metadata.log.segment.ms"]),
                }
            ),
            timeouts=Timeouts(
                config["controller.quorum.election.timeout.ms"],
                config["controller.quorum.fetch.timeout.ms"],
                config["controller.quorum.request.timeout.ms"],
                config["controller.quorum.election.backoff.max.ms"],
            ),
            others_epoch=max(map(_stored_epoch, others), default=-1) if is_successor else -1,
        )
    except CorruptFault as fault:
        if not others:
            raise
        raise CorruptFault(
            f"{fault}; or, if the other controllers serve without it, stop, remove "
            f"{config.metadata_directory(node_id)} and start: it gets a copy of what they have"
        ) from None


def _stored_epoch(directory: str) -> int:
    """The epoch in the quorum-state of another voter; -1 if there is no such file."""
    try:
        state = QuorumState(directory)
    except (CorruptFault, StorageFault):
        return 0  # Its controller can't start, so it asks for no votes.
    return state.read()[0] if state.is_found else -1
