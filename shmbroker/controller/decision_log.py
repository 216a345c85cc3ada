"""How decisions become committed records: one log, and the image that it makes.

   image ──► `cluster` ──► decision ──► records ──► `commit`: one batch, fdatasync ──► image

* What is decided here goes from the records into the image, by the same functions that everybody
  else applies them with; nothing is read back but what predecessors wrote (`take_over`).
* Whoever decides has looked at the image since the last commit: decisions are taken one at a time.
"""

from __future__ import annotations

import os

from shmbroker.controller.bootstrap import bootstrap_records, grown, users_of
from shmbroker.controller.decisions.cluster_state import ClusterState
from shmbroker.controller.mutation_quotas import UNBOUNDED
from shmbroker.metadata.image import BROKER_RESOURCE
from shmbroker.settings.layers import broker_layers
from shmbroker.wire.metadata_records import completed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from shmbroker.controller.mutation_quotas import Mutations
    from shmbroker.controller.raft.voter import Voter
    from shmbroker.metadata.follower import MetadataFollower
    from shmbroker.metadata.image import MetadataImage
    from shmbroker.metadata.record import MetadataRecord
    from shmbroker.settings.broker_config import BrokerConfig
    from shmbroker.settings.layers import Layers

RECORDS_MAX = 10_000
"""The records of one batch (Kafka: MAX_RECORDS_PER_USER_OP)."""


class DecisionLog:
    """The metadata log of a voter that leads, and a follower of it."""

    __slots__ = ("_follower", "config", "new_uuid", "short", "voter")

    def __init__(
        self,
        voter: Voter,
        follower: MetadataFollower,
        config: BrokerConfig,
        new_uuid: Callable[[], bytes],
    ) -> None:
        self.voter = voter
        self.config = config
        self.new_uuid = new_uuid
        self.short: AbstractSet[int] = frozenset()
        """Brokers without room on their disk, for a while now."""
        self._follower = follower

    def take_over(self, now_ms: int) -> None:
        """Replay what is left, mend what the predecessor may have left halfway, and begin a log
        that has nothing. Faults as of `Voter.append`."""
        voter = self.voter
        self._catch_up()
        if self._follower.reader.is_in_transaction:
            voter.append([("AbortTransactionRecord", 0, {"reason": "controller ended"})], now_ms)
            self._catch_up()
        if self.image.features:
            self.commit(grown(self.image, self.config), now_ms)
        else:
            users = users_of(os.path.dirname(voter.directory))
            voter.append(bootstrap_records(self.config["min.insync.replicas"], users), now_ms)
            self._catch_up()

    def _catch_up(self) -> None:
        self._follower.catch_up(self.voter.committed_offset)

    @property
    def image(self) -> MetadataImage:
        """The cluster as of the last commit."""
        return self._follower.image

    def layers(self) -> Layers:
        """Where settings of brokers come from, the nearest first."""
        own = self.image.config(BROKER_RESOURCE, str(self.voter.node_id))
        return broker_layers(self.config, own, self.image.config(BROKER_RESOURCE, ""))

    def cluster(self, mutations: Mutations = UNBOUNDED) -> ClusterState:
        """What a decision looks at, as of now. `mutations`: what its client may have changed."""
        return ClusterState(
            self.image, self.config, self.layers(), self.new_uuid, self.short, mutations
        )

    def commit(
        self, records: list[MetadataRecord], now_ms: int, encoded: list[bytes] | None = None
    ) -> None:
        """Commit records as one batch, and have them in the image. Faults as of `Voter.append`."""
        if not records:
            return
        first = self.image.offset
        epoch = self.voter.epoch
        end_offset = self.voter.append(records, now_ms, encoded)
        assert first + len(records) == end_offset, "all that was committed before is in the image"
        own = (
            (offset, epoch, name, version, completed(name, message))
            for offset, (name, version, message) in enumerate(records, first)
        )
        self._follower.apply_own(own, end_offset, epoch, now_ms)

    def commit_in_parts(self, records: list[MetadataRecord], now_ms: int) -> None:
        """Commit records that stand each for itself, in as many batches as it takes."""
        for at in range(0, len(records), RECORDS_MAX):
            self.commit(records[at : at + RECORDS_MAX], now_ms)

    def close(self) -> None:
        """End cleanly."""
        self._follower.reader.close()
        self.voter.close()
