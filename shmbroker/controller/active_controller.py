"""The active controller: takes requests, decides, and answers when the decision is durable.

   request ──► decision (pure: records and response) ──► one batch, fdatasync ──► image ──► answer

* Its image is read back from the log's files, as everybody else's is: there is one way from
  records to image.
* Requests are served one at a time; the caller publishes `committed_offset` after each.
* A full disk fails the request (KAFKA_STORAGE_ERROR) and nothing else, and so does a decision too
  large for one batch (POLICY_VIOLATION). Any other fault of the disk ends the process.
* A broker that is fenced hands its partitions over to those who are in sync, in the same batch;
  what nobody else could lead it keeps (`partition_change`).
"""

from __future__ import annotations

import logging

from shmbroker.config import broker_layers
from shmbroker.controller import (
    configs,
    election,
    features,
    in_sync,
    nodes,
    raft_voters,
    reassignment,
    topics,
)
from shmbroker.controller.bootstrap import (
    FEATURE_LEVELS,
    bootstrap_records,
    grown,
    write_bootstrap_checkpoint,
)
from shmbroker.controller.metadata_log import TooLargeFault
from shmbroker.controller.quorum_description import describe_quorum
from shmbroker.controller.voter import Voter
from shmbroker.ids import random_uuid
from shmbroker.log.faults import DiskFullFault
from shmbroker.metadata.follower import MetadataFollower
from shmbroker.metadata.image import BROKER_RESOURCE
from shmbroker.metadata.log_reader import MetadataLogReader
from shmbroker.metadata.topic_names import OFFSETS_TOPIC
from shmbroker.wire.error_codes import (
    BROKER_ID_NOT_REGISTERED,
    KAFKA_STORAGE_ERROR,
    NONE,
    POLICY_VIOLATION,
    STALE_BROKER_EPOCH,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet
    from typing import Any

    from shmbroker.config import BrokerConfig
    from shmbroker.controller.metadata_log import Record
    from shmbroker.controller.quorum_description import Replica
    from shmbroker.metadata.image import MetadataImage

logger = logging.getLogger("shmbroker")

IDLE_LINES_MAX = 10
"""Of one request, about settings that change nothing."""

PRODUCER_ID_BLOCK = 1000
"""Ids a broker gets at once (Kafka: `ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE`)."""

RECORDS_MAX = 10_000
"""Of one batch (Kafka: MAX_RECORDS_PER_USER_OP)."""

_RESULTS = {
    "CreateTopics": "topics",
    "DeleteTopics": "responses",
    "CreatePartitions": "results",
    "AlterConfigs": "responses",
    "IncrementalAlterConfigs": "responses",
    "UpdateFeatures": "",
    "UnregisterBroker": "",
    "ElectLeaders": "",
    "AlterPartition": "",
    "AlterPartitionReassignments": "",
}
"""The APIs that change something, and where their responses have the results; "" for one error in
all."""


class ActiveController:
    """What a voter that leads decides. Make one with `activate`, or `open`."""

    __slots__ = (
        "_doubts",
        "_follower",
        "_log",
        "_new_topic_id",
        "_preferred_due",
        "_unclean_due",
        "config",
        "observers",
    )

    def __init__(
        self,
        log: Voter,
        follower: MetadataFollower,
        config: BrokerConfig,
        *,
        new_topic_id: Callable[[], bytes] = random_uuid,
    ) -> None:
        self._log = log
        self.config = config
        self._new_topic_id = new_topic_id
        self._follower = follower
        self.observers: Callable[[int], list[Replica]] = lambda _now_ms: []
        """Who follows the metadata log without a vote, as of now."""
        self._preferred_due: float | None = None
        self._unclean_due: float | None = None
        self._doubts = in_sync.Doubts()

    @classmethod
    def open(
        cls,
        node_directory: str,
        node_id: int,
        cluster_id: str,
        config: BrokerConfig,
        now_ms: int,
        **options: Any,
    ) -> ActiveController:
        """Recover or create the metadata in a node's directory and become its only controller.

        CorruptFault, StorageFault: as `Voter.open` and `MetadataFollower.catch_up`.
        """
        write_bootstrap_checkpoint(node_directory, now_ms)
        voter = Voter.open(node_directory, node_id)
        voter.start()
        follower = MetadataFollower(MetadataLogReader(voter.directory), cluster_id)
        return cls.activate(voter, follower, config, now_ms, **options)

    @classmethod
    def activate(
        cls,
        log: Voter,
        follower: MetadataFollower,
        config: BrokerConfig,
        now_ms: int,
        **options: Any,
    ) -> ActiveController:
        """Take over, with a voter that leads and a follower of its log; replay what is left, and
        mend what the predecessor may have left halfway. Faults as of `Voter.append`."""
        self = cls(log, follower, config, **options)
        self._catch_up()
        if follower.reader.is_in_transaction:
            self._commit([("AbortTransactionRecord", 0, {"reason": "controller ended"})], now_ms)
        if not self.image.features:
            self._commit(bootstrap_records(config["min.insync.replicas"]), now_ms)
        else:
            self._commit(grown(self.image, config), now_ms)
        nodes.refuse_missing_brokers(self.image, config.broker_ids)
        for broker_id, broker in list(self.image.brokers.items()):
            if broker_id not in config.broker_ids:  # of an earlier, larger family
                self.fence_broker(broker_id, now_ms)
            elif broker.is_fenced:  # our predecessor may have ended halfway
                self._commit_in_parts(in_sync.broker_gone(self._cluster(), broker_id), now_ms)
        return self

    @property
    def image(self) -> MetadataImage:
        """The cluster as of `committed_offset`."""
        return self._follower.image

    @property
    def committed_offset(self) -> int:
        """One past the last durable record: what is to be published."""
        return self._log.committed_offset

    @property
    def epoch(self) -> int:
        """The controller epoch."""
        return self._log.epoch

    def handle(
        self, api_name: str, version: int, request: dict[str, Any], now_ms: int
    ) -> dict[str, Any]:
        """Serve a request of an API of `apis.table.IN_CONTROLLER`: the response to send, all of it
        durable."""
        records, response = self._decide(api_name, version, request, now_ms)
        if not records:
            return response
        results = response[_RESULTS[api_name]] if _RESULTS[api_name] else [response]
        try:
            self._commit(records, now_ms)
        except DiskFullFault as fault:
            message = f"The metadata log's disk is full: {fault}"
            _fail(results, KAFKA_STORAGE_ERROR, message)
        except TooLargeFault:
            message = "Unable to perform excessively large batch operation."
            _fail(results, POLICY_VIOLATION, message)
        else:
            for complaint in configs.idle_complaints(records)[:IDLE_LINES_MAX]:
                logger.warning("%s", complaint)
        return response

    def _decide(
        self, api_name: str, version: int, request: dict[str, Any], now_ms: int
    ) -> tuple[list[Record], dict[str, Any]]:
        image = self.image
        if api_name == "CreateTopics":
            return topics.create_topics(request, version, self._cluster())
        if api_name == "DeleteTopics":
            return topics.delete_topics(request, version, self._cluster())
        if api_name == "CreatePartitions":
            return topics.create_partitions(request, version, self._cluster())
        if api_name == "UpdateFeatures":
            least = self.config["min.insync.replicas"]
            return features.update_features(request, version, image, self._log.node_id, least)
        if api_name == "AlterConfigs":
            return configs.alter_configs(request, image, self.config)
        if api_name == "IncrementalAlterConfigs":
            return configs.incremental_alter_configs(request, image, self._layers(), self.config)
        if api_name == "AlterPartitionReassignments":
            return reassignment.alter_partition_reassignments(request, version, self._cluster())
        if api_name == "AlterPartition":
            return in_sync.alter_partition(request, version, self._cluster())
        if api_name == "ListPartitionReassignments":
            return [], reassignment.list_partition_reassignments(request, image)
        if api_name == "ElectLeaders":
            return election.elect_leaders(request, version, self._cluster())
        if api_name == "UnregisterBroker":
            return nodes.unregister_broker(request, self._cluster())
        if api_name == "AddRaftVoter":
            return [], raft_voters.add_raft_voter(request, image.cluster_id)
        if api_name == "RemoveRaftVoter":
            return [], raft_voters.remove_raft_voter(request, image.cluster_id)
        assert api_name == "DescribeQuorum", api_name
        replicas = self._log.replicas(now_ms), self.observers(now_ms)
        return [], describe_quorum(
            request, version, self._log.node_id, self.epoch, self.committed_offset, *replicas
        )

    def create_topics_auto(self, names: list[str], now_ms: int) -> list[tuple[int, str | None]]:
        """Create topics because somebody uses them, in one decision: (error, message) of each.

        With the defaults, or as Kafka has it for `__consumer_offsets`. TOPIC_ALREADY_EXISTS is
        what all but the first of several callers get.
        """
        asked = [
            topics.offsets_topic(self.config)
            if name == OFFSETS_TOPIC
            else topics.default_topic(name)
            for name in names
        ]
        request = {"topics": asked, "validate_only": False}
        results = self.handle("CreateTopics", 2, request, now_ms)["topics"]
        return [(result["error_code"], result["error_message"]) for result in results]

    def register_broker(
        self,
        broker_id: int,
        host: str,
        port: int,
        incarnation_id: bytes,
        directories: list[bytes],
        now_ms: int,
        is_clean: bool = True,
    ) -> int:
        """Register a broker that starts, fenced as yet; its broker epoch.

        `directories`: ids of its log directories. `is_clean`: it has all records that it ever had.
        Faults: DiskFullFault, StorageFault.
        """
        broker_epoch = self._log.log_end_offset
        end_point = {"name": "PLAINTEXT", "host": host, "port": port, "security_protocol": 0}
        message = {
            "broker_id": broker_id,
            "incarnation_id": incarnation_id,
            "broker_epoch": broker_epoch,
            "end_points": [end_point],
            "features": [
                {"name": name, "min_supported_version": least, "max_supported_version": most}
                for name, _, least, most in FEATURE_LEVELS
            ],
            "rack": self.config["broker.rack"],
            "fenced": True,
            "log_dirs": directories,
        }
        self._commit([("RegisterBrokerRecord", 3, message)], now_ms)
        self._doubts.note(broker_id, is_clean)
        return broker_epoch

    def unfence_broker(
        self, broker_id: int, now_ms: int, pending: AbstractSet[int] = frozenset()
    ) -> None:
        """The broker has caught up and serves: clients may be sent there. It leads what nobody at
        work leads, where it is in sync or eligible. `pending`: brokers of the family that may not
        have registered since it started."""
        changes = self._doubts.broker_back(self._cluster(), broker_id, pending)
        self._set_fenced(broker_id, False, now_ms, changes)
        self.settle(now_ms, pending)

    def settle(self, now_ms: int, pending: AbstractSet[int]) -> None:
        """Once more what `in_sync.Doubts` knows; free where there are none."""
        if self._doubts.unclean or not pending:
            self._doubts.settle(
                pending, self._cluster, lambda records: self._commit_in_parts(records, now_ms)
            )

    def fence_broker(self, broker_id: int, now_ms: int) -> None:
        """The broker is gone or hangs: clients are sent there no more, and others lead what it led,
        but for what only it can lead (`in_sync.broker_gone`)."""
        changes = in_sync.broker_gone(self._cluster(), broker_id)
        self._set_fenced(broker_id, True, now_ms, changes)

    def begin_shutdown(self, broker_id: int, broker_epoch: int, now_ms: int) -> int:
        """The broker is going to stop, and serves until then: others lead what they can, and it
        joins no ISR until it registers again (`BrokerHeartbeat` with WantShutDown); an error."""
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            return BROKER_ID_NOT_REGISTERED
        if broker.broker_epoch != broker_epoch:
            return STALE_BROKER_EPOCH
        if not broker.in_controlled_shutdown and self.is_replicated:
            changes = in_sync.broker_gone(self._cluster(), broker_id)
            message = {
                "broker_id": broker_id,
                "broker_epoch": broker_epoch,
                "in_controlled_shutdown": 1,
            }
            records = [("BrokerRegistrationChangeRecord", 1, message), *changes]
            self._commit_in_parts(records, now_ms)
        return NONE

    @property
    def is_replicated(self) -> bool:
        """Whether any partition has more than one replica."""
        return any(
            len(partition.replicas) > 1
            for topic in self.image.topics_by_id.values()
            for partition in topic.partitions
        )

    def elect_due(self, now_s: float, now_ms: int) -> None:
        """Elections whose time has come: of preferred leaders, and unclean ones where topics want
        that. `now_s`: of a clock that never goes back."""
        config = self.config
        if self._preferred_due is None or self._unclean_due is None:
            self._preferred_due = now_s + config["leader.imbalance.check.interval.seconds"]
            self._unclean_due = now_s + config["unclean.leader.election.interval.ms"] / 1000
        if now_s >= self._preferred_due and config["auto.leader.rebalance.enable"]:
            records = election.preferred_leaders(self._cluster())
            self._commit(records, now_ms)
            if len(records) < election.ELECTIONS_MAX:
                self._preferred_due = now_s + config["leader.imbalance.check.interval.seconds"]
        if now_s >= self._unclean_due:
            records = election.unclean_leaders(self._cluster())
            self._commit(records, now_ms)
            if len(records) < election.ELECTIONS_MAX:
                self._unclean_due = now_s + config["unclean.leader.election.interval.ms"] / 1000

    def allocate_producer_ids(
        self, broker_id: int, broker_epoch: int, now_ms: int
    ) -> tuple[int, int, int]:
        """(error, first producer id, count) of a block that nobody else gets."""
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            return BROKER_ID_NOT_REGISTERED, -1, 0
        if broker.broker_epoch != broker_epoch:
            return STALE_BROKER_EPOCH, -1, 0
        first = self.image.next_producer_id
        message = {
            "broker_id": broker_id,
            "broker_epoch": broker_epoch,
            "next_producer_id": first + PRODUCER_ID_BLOCK,
        }
        try:
            self._commit([("ProducerIdsRecord", 0, message)], now_ms)
        except DiskFullFault:
            return KAFKA_STORAGE_ERROR, -1, 0
        return NONE, first, PRODUCER_ID_BLOCK

    def close(self) -> None:
        """A clean end."""
        self._follower.reader.close()
        self._log.close()

    def _set_fenced(
        self, broker_id: int, is_fenced: bool, now_ms: int, changes: list[Record]
    ) -> None:
        broker = self.image.brokers.get(broker_id)
        if broker is None or broker.is_fenced == is_fenced:
            return
        message = {
            "broker_id": broker_id,
            "broker_epoch": broker.broker_epoch,
            "fenced": 1 if is_fenced else -1,
        }
        self._commit_in_parts([("BrokerRegistrationChangeRecord", 0, message), *changes], now_ms)

    def _commit_in_parts(self, records: list[Record], now_ms: int) -> None:
        """Records that stand each for itself: as many batches as it takes."""
        for at in range(0, len(records), RECORDS_MAX):
            self._commit(records[at : at + RECORDS_MAX], now_ms)

    def _layers(self) -> tuple[Any, ...]:
        own = self.image.config(BROKER_RESOURCE, str(self._log.node_id))
        return broker_layers(self.config, own, self.image.config(BROKER_RESOURCE, ""))

    def _cluster(self) -> topics.Cluster:
        return topics.Cluster(
            self.image,
            self.config,
            self._layers(),
            self._new_topic_id,
        )

    def _commit(self, records: list[Record], now_ms: int) -> None:
        if records:
            self._log.append(records, now_ms)
            self._catch_up()

    def _catch_up(self) -> None:
        self._follower.catch_up(self._log.committed_offset)


def _fail(results: list[dict[str, Any]], error: int, message: str) -> None:
    """Turn what would have been done into what could not be."""
    for result in results:
        if result["error_code"] == NONE:
            result["error_code"] = error
            result["error_message"] = message
