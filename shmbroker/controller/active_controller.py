"""The active controller: takes requests, decides, and answers when the decision is durable.

   request ──► decision (pure: records and response) ──► one batch, fdatasync ──► image ──► answer

* What it decides itself goes from the records into its image, by the same functions that everybody
  else applies them with; it reads nothing back but what its predecessors wrote.
* Requests are served one at a time; the caller publishes `committed_offset` after each.
* A decision about up to 10,000 partitions is prepared in steps (`handle_in_steps`): others may be
  taken between two of them, and nothing of it is in the log before its one batch.
* A full disk fails the request (KAFKA_STORAGE_ERROR) and nothing else, and so does a decision too
  large for one batch (POLICY_VIOLATION). Any other fault of the disk ends the process.
* A broker that is fenced hands its partitions over to those who are in sync, in the same batch;
  what nobody else could lead it keeps (`partition_change`).
"""

from __future__ import annotations

import logging
import os

from shmbroker.controller.bootstrap import (
    FEATURE_LEVELS,
    bootstrap_records,
    grown,
    users_of,
    write_bootstrap_checkpoint,
)
from shmbroker.controller.decisions import (
    bounds,
    configs,
    election,
    in_sync,
    lost_replicas,
    nodes,
    tokens,
    topics,
)
from shmbroker.controller.decisions.doubts import Doubts
from shmbroker.controller.decisions.room import RoomWatch, given_back, handed_over
from shmbroker.controller.mutation_quotas import UNBOUNDED
from shmbroker.controller.raft.metadata_log import DecisionTooLargeFault, encode_records
from shmbroker.controller.raft.quorum_description import describe_quorum
from shmbroker.controller.raft.voter import Voter
from shmbroker.controller.served import SERVED, Served
from shmbroker.ids import random_uuid
from shmbroker.log.faults import DiskFullFault
from shmbroker.metadata.follower import MetadataFollower
from shmbroker.metadata.image import BROKER_RESOURCE, NO_LEADER
from shmbroker.metadata.log_reader import MetadataLogReader
from shmbroker.security.identity import OF_FAMILY
from shmbroker.settings.layers import broker_layers
from shmbroker.wire.error_codes import (
    BROKER_ID_NOT_REGISTERED,
    KAFKA_STORAGE_ERROR,
    NONE,
    POLICY_VIOLATION,
    STALE_BROKER_EPOCH,
)
from shmbroker.wire.metadata_records import completed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from collections.abc import Set as AbstractSet
    from typing import Any

    from shmbroker.controller.mutation_quotas import Mutations
    from shmbroker.controller.raft.metadata_log import Record
    from shmbroker.controller.raft.quorum_description import Replica
    from shmbroker.metadata.image import MetadataImage
    from shmbroker.security.identity import Identity
    from shmbroker.settings.broker_config import BrokerConfig

logger = logging.getLogger(__name__)

IDLE_LINES_MAX = 10
"""The lines of one request, about settings that change nothing."""

NAMES_MAX = 10
"""Partitions that a line of the log names."""

PRODUCER_ID_BLOCK = 1000
"""Ids a broker gets at once (Kafka: `ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE`)."""

RECORDS_MAX = 10_000
"""The records of one batch (Kafka: MAX_RECORDS_PER_USER_OP)."""

STEP_RECORDS = 2000
"""Encoded at once: some 8 ms."""


class ActiveController:
    """What a voter that leads decides. Make one with `activate`, or `open`."""

    __slots__ = (
        "_doubts",
        "_follower",
        "_lacking",
        "_log",
        "_mutations",
        "_new_topic_id",
        "_preferred_due",
        "_room",
        "_short",
        "_sweep_due",
        "_unclean_due",
        "config",
        "observers",
        "on_log_levels",
        "token_rules",
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
        self.config: BrokerConfig = config
        self._new_topic_id = new_topic_id
        self._follower = follower
        self.observers: Callable[[int], list[Replica]] = lambda _now_ms: []
        """Who follows the metadata log without a vote, as of now."""
        self.on_log_levels: Callable[[Mapping[str, str | None]], None] = lambda _changes: None
        """Told which loggers get which level; None: the one that is configured."""
        self._mutations = UNBOUNDED
        """What is left to the request that is being decided."""
        self._preferred_due: float | None = None
        self._unclean_due: float | None = None
        self._sweep_due: float | None = None
        self.token_rules: tokens.TokenRules = tokens.TokenRules.of(config, os.environ)
        self._doubts = Doubts()
        self._room = RoomWatch()
        self._short: frozenset[int] = frozenset()
        """Brokers without room on their disk, for a while now."""
        self._lacking: dict[tuple[bytes, int], dict[int, lost_replicas.Ends]] = {}
        """What those of leaderless partitions have whose logs reached further once."""

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
            log.append([("AbortTransactionRecord", 0, {"reason": "controller ended"})], now_ms)
            self._catch_up()
        if not self.image.features:
            users = users_of(os.path.dirname(log.directory))
            log.append(bootstrap_records(config["min.insync.replicas"], users), now_ms)
            self._catch_up()
        else:
            self._commit(grown(self.image, config), now_ms)
        nodes.refuse_missing_brokers(self.image, config.broker_ids)
        nodes.refuse_unasked_acls(self.image, config)
        for broker_id, broker in list(self.image.brokers.items()):
            if broker_id not in config.broker_ids:  # of an earlier, larger family
                self.fence_broker(broker_id, now_ms)
            elif broker.is_fenced:  # our predecessor may have ended halfway
                self._commit_in_parts(in_sync.broker_gone(self.cluster(), broker_id), now_ms)
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
        self,
        api_name: str,
        version: int,
        request: dict[str, Any],
        now_ms: int,
        identity: Identity = OF_FAMILY,
        mutations: Mutations = UNBOUNDED,
    ) -> dict[str, Any]:
        """Serve a request of an API of `apis.controller`: the response to send, all of it
        durable. identity: who asks. mutations: what its client may have changed."""
        steps = self.handle_in_steps(api_name, version, request, now_ms, identity, mutations)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                response: dict[str, Any] = end.value
                return response

    def handle_in_steps(
        self,
        api_name: str,
        version: int,
        request: dict[str, Any],
        now_ms: int,
        identity: Identity = OF_FAMILY,
        mutations: Mutations = UNBOUNDED,
    ) -> Generator[None, None, dict[str, Any]]:
        """The same, some 20 ms at most between two yields. Others' decisions may come there: what
        they would have changed in this one is decided anew."""
        served = SERVED[api_name]
        while True:
            before = self.image
            self._mutations = mutations
            records, response = served.decide(self, request, version, now_ms, identity)
            self._mutations = UNBOUNDED
            if records and (full := bounds.complaint(records, self.image, self.config)):
                return _refused(served, response, full)
            encoded: list[bytes] | None = None
            if len(records) > STEP_RECORDS and served.is_in_steps:
                encoded = []
                while len(encoded) < len(records):
                    yield
                    at = len(encoded)
                    encoded += encode_records(records[at : at + STEP_RECORDS], at)
                yield
            if before is self.image or topics.is_alike(before, self.image, request["topics"]):
                break
            mutations.begin_anew()
        if mutations.throttle_ms:
            response["throttle_time_ms"] = mutations.throttle_ms
        if api_name == "IncrementalAlterConfigs" and (
            changes := configs.level_changes(request, response)
        ):
            self.on_log_levels(changes)
        if not records:
            return response
        results = response[served.results] if served.results else [response]
        try:
            self._commit(records, now_ms, encoded)
        except DiskFullFault as fault:
            message = f"The metadata log's disk is full: {fault}"
            _fail(results, KAFKA_STORAGE_ERROR, message)
        except DecisionTooLargeFault:
            message = "Unable to perform excessively large batch operation."
            _fail(results, POLICY_VIOLATION, message)
        else:
            for complaint in configs.idle_complaints(records)[:IDLE_LINES_MAX]:
                logger.warning("%s", complaint)
        return response

    @property
    def node_id(self) -> int:
        """The id of this controller."""
        return self._log.node_id

    def describe_quorum(self, request: dict[str, Any], version: int, now_ms: int) -> dict[str, Any]:
        """The answer to a DescribeQuorum."""
        replicas = self._log.replicas(now_ms), self.observers(now_ms)
        return describe_quorum(
            request, version, self.node_id, self.epoch, self.committed_offset, *replicas
        )

    def create_topics_auto(
        self, names: list[str], now_ms: int, mutations: Mutations = UNBOUNDED
    ) -> list[tuple[int, str | None]]:
        """Create topics because somebody uses them, in one decision: (error, message) of each.

        With the defaults, or as Kafka has it for its own. TOPIC_ALREADY_EXISTS is
        what all but the first of several callers get.
        """
        asked = [topics.created_by_use(name, self.config) for name in names]
        request = {"topics": asked, "validate_only": False}
        answer = self.handle("CreateTopics", 2, request, now_ms, mutations=mutations)
        results = answer["topics"]
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
        pending: AbstractSet[int] = frozenset(),
    ) -> int:
        """Register a broker that starts, fenced as yet; its broker epoch.

        `directories`: ids of its log directories; in another than before it has nothing, and is out
        of all ISRs before it is registered. `is_clean`: it has all records that it ever had, so it
        may be unfenced; else it is when all is known (`settle`). Faults: DiskFullFault,
        StorageFault.
        """
        anew = lost_replicas.begun_anew(self.cluster(), broker_id, directories)
        self._commit_in_parts(anew.records, now_ms)
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
        # Those who are still to come may lead; if nobody can in the end, `settle` says so.
        is_known = not (self._doubts.unclean or self._doubts.absent(pending))
        _say_begun_anew(broker_id, anew, is_known)
        return broker_epoch

    def unfence_broker(
        self, broker_id: int, now_ms: int, pending: AbstractSet[int] = frozenset()
    ) -> None:
        """The broker has caught up and serves: clients may be sent there. It leads what nobody at
        work leads, where it is in sync or eligible. `pending`: brokers of the family that may not
        have registered since it started."""
        doubts = self._doubts
        absent = doubts.absent(pending) - {broker_id}
        changes = in_sync.broker_back(
            self.cluster(),
            broker_id,
            absent=absent,
            are_all_known=not (doubts.unclean or absent),
        )
        self._set_fenced(broker_id, False, now_ms, changes)

    def settle(self, now_ms: int, pending: AbstractSet[int], is_waiting: bool = True) -> None:
        """Act on what is known of brokers that may have lost records; to be called after each
        registration, and now and then. `is_waiting`: for those, too, that have not registered."""
        doubts = self._doubts
        if not doubts.unclean:
            if not (pending and is_waiting):
                doubts.safe.clear()
            return
        self._commit_in_parts(doubts.withdrawn(self.cluster()), now_ms)
        if not doubts.can_be_settled(pending, is_waiting):
            return
        decided = doubts.settle(self.cluster(), pending)
        self._commit_in_parts(decided.records, now_ms)
        for broker_id in decided.brokers:
            self._set_fenced(broker_id, False, now_ms, [])
        if decided.waiting:
            brokers = sorted(set().union(*decided.waiting.values()))
            logger.error(
                "%s: nobody leads, as what was committed may be on brokers that are not here (%s)",
                _named(list(decided.waiting)),
                ", ".join(map(str, brokers)) or "none is known",
            )

    def is_in_doubt(self, broker_id: int) -> bool:
        """Whether the broker is waited for to say what it has (`log_ends`)."""
        return broker_id in self._doubts.unclean

    def log_ends(self, request: dict[str, Any], now_ms: int) -> dict[str, Any]:
        """TellLogEnds: the response, with the leaders of partitions about which there was something
        to decide. Faults: DiskFullFault, StorageFault."""
        broker_id = request["broker_id"]
        broker = self.image.brokers.get(broker_id)
        if broker is None or broker.broker_epoch != request["broker_epoch"]:
            return {"error_code": STALE_BROKER_EPOCH, "topics": []}
        ends = []
        topics: list[dict[str, Any]] = []
        for told in request["topics"]:
            topic_id, rows = told["topic_id"], []
            for row in told["partitions"]:
                place = topic_id, row["partition_index"]
                if row["state"] == lost_replicas.HAS:
                    epochs = tuple((each["epoch"], each["start_offset"]) for each in row["epochs"])
                    ends.append((place, (row["last_epoch"], row["end_offset"]), epochs))
                elif (answer := self._on_told(broker_id, place, row, now_ms)) is not None:
                    rows.append(answer)
            if rows:
                topics.append({"topic_id": topic_id, "partitions": rows})
        if broker.is_fenced and (ends or request["is_last"]):
            self._doubts.tell(broker_id, ends, request["is_last"])
        return {"error_code": NONE, "topics": topics}

    def _on_told(
        self, broker_id: int, place: tuple[bytes, int], row: dict[str, Any], now_ms: int
    ) -> dict[str, Any] | None:
        """A broker says that its replica lacks what it had, or that its leader lacks what it has:
        who leads then, since when. None if there is no such partition."""
        topic = self.image.topics_by_id.get(place[0])
        if topic is None or not 0 <= place[1] < len(topic.partitions):
            return None
        partition = topic.partitions[place[1]]
        cluster = self.cluster()
        if row["state"] == lost_replicas.LACKS:
            lacking = self._lacking.setdefault(place, {})
            lacking[broker_id] = row["last_epoch"], row["end_offset"]
            change = lost_replicas.on_lack(cluster, topic, partition, broker_id, lacking)
        else:
            epoch = row["leader_epoch"]
            change = lost_replicas.on_ahead(cluster, topic, partition, broker_id, epoch)
        if change is not None:
            was = partition.leader_id
            self._commit([("PartitionChangeRecord", 2, change)], now_ms)
            partition = self.image.topics_by_id[place[0]].partitions[place[1]]
            if partition.leader_id == NO_LEADER and was != NO_LEADER:
                logger.error(
                    "%s-%d has no leader: broker %d lost what it had, and nobody else who is in "
                    "sync or eligible is here",
                    topic.name, place[1], broker_id,
                )  # fmt: skip
            elif partition.leader_id != was:
                logger.warning(
                    "%s-%d is led by broker %d now: broker %d lacks what others have",
                    topic.name, place[1], partition.leader_id, was,
                )  # fmt: skip
        if partition.leader_id != NO_LEADER:
            self._lacking.pop(place, None)
        return {
            "partition_index": place[1],
            "leader_id": partition.leader_id,
            "leader_epoch": partition.leader_epoch,
        }

    def fence_broker(self, broker_id: int, now_ms: int) -> None:
        """The broker is gone or hangs: clients are sent there no more, and others lead what it led,
        but for what only it can lead (`in_sync.broker_gone`)."""
        self._doubts.forget(broker_id)
        changes = in_sync.broker_gone(self.cluster(), broker_id)
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
            changes = in_sync.broker_gone(self.cluster(), broker_id)
            message = {
                "broker_id": broker_id,
                "broker_epoch": broker_epoch,
                "in_controlled_shutdown": 1,
            }
            records = [("BrokerRegistrationChangeRecord", 1, message), *changes]
            self._commit_in_parts(records, now_ms)
        return NONE

    def has_copies(self, broker_id: int) -> bool:
        """Whether any partition of a broker has another replica."""
        return any(
            broker_id in partition.replicas and len(partition.replicas) > 1
            for topic in self.image.topics_by_id.values()
            for partition in topic.partitions
        )

    @property
    def is_replicated(self) -> bool:
        """Whether any partition has more than one replica."""
        return any(
            len(partition.replicas) > 1
            for topic in self.image.topics_by_id.values()
            for partition in topic.partitions
        )

    def look_at_room(
        self, full: AbstractSet[int], failed: AbstractSet[int], now_s: float, now_ms: int
    ) -> None:
        """Others lead what brokers lead whose disk is nearly full, or has failed; who has room
        again gets it back. `now_s`: of a clock that never goes back. Faults as of
        `Voter.append`."""
        if not (full or failed or self._room.is_watching) or not self.is_replicated:
            return
        room = self._room.look(full, failed, now_s)
        self._short = room.handing
        records = handed_over(self.cluster(), room) if room.handing else []
        if records:
            logger.warning(
                "%d partitions are led or in sync elsewhere now: no room on the disk of broker %s",
                len(records), ", ".join(map(str, sorted(room.handing))),
            )  # fmt: skip
        elif room.returned and self.config["auto.leader.rebalance.enable"]:
            records = given_back(self.cluster(), room)
            if records:
                logger.warning(
                    "%d partitions are given back to brokers with room on their disk again: %s",
                    len(records), ", ".join(map(str, sorted(room.returned))),
                )  # fmt: skip
        self._commit(records, now_ms)

    def elect_due(self, now_s: float, now_ms: int) -> None:
        """Elections whose time has come: of preferred leaders, and unclean ones where topics want
        that. `now_s`: of a clock that never goes back."""
        config = self.config
        if self._preferred_due is None or self._unclean_due is None:
            self._preferred_due = now_s + config["leader.imbalance.check.interval.seconds"]
            self._unclean_due = now_s + config["unclean.leader.election.interval.ms"] / 1000
        if now_s >= self._preferred_due and config["auto.leader.rebalance.enable"]:
            records = election.preferred_leaders(self.cluster())
            self._commit(records, now_ms)
            if len(records) < election.ELECTIONS_MAX:
                self._preferred_due = now_s + config["leader.imbalance.check.interval.seconds"]
        if now_s >= self._unclean_due:
            records = election.unclean_leaders(self.cluster())
            self._commit(records, now_ms)
            if len(records) < election.ELECTIONS_MAX:
                self._unclean_due = now_s + config["unclean.leader.election.interval.ms"] / 1000

    def sweep_tokens(self, now_s: float, now_ms: int) -> None:
        """Remove the delegation tokens that have expired, if it is time to look for them. `now_s`:
        of a clock that never goes back."""
        if self.token_rules.key is None:
            return
        if self._sweep_due is not None and now_s >= self._sweep_due:
            records = tokens.expired_tokens(self.image.security.tokens, now_ms)
            self._commit(records, now_ms)
            if len(records) >= tokens.REMOVED_MAX:
                return
        if self._sweep_due is None or now_s >= self._sweep_due:
            self._sweep_due = (
                now_s + self.config["delegation.token.expiry.check.interval.ms"] / 1000
            )

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

    def layers(self) -> tuple[Any, ...]:
        """Where settings of brokers come from, the nearest first."""
        own = self.image.config(BROKER_RESOURCE, str(self._log.node_id))
        return broker_layers(self.config, own, self.image.config(BROKER_RESOURCE, ""))

    def cluster(self) -> topics.ClusterState:
        """What decisions look at, as of now."""
        return topics.ClusterState(
            self.image,
            self.config,
            self.layers(),
            self._new_topic_id,
            self._short,
            self._mutations,
        )

    def _commit(
        self, records: list[Record], now_ms: int, encoded: list[bytes] | None = None
    ) -> None:
        if not records:
            return
        first = self.image.offset
        epoch = self._log.epoch
        end_offset = self._log.append(records, now_ms, encoded)
        assert first + len(records) == end_offset, "all that was committed before is in the image"
        own = (
            (offset, epoch, name, version, completed(name, message))
            for offset, (name, version, message) in enumerate(records, first)
        )
        self._follower.apply_own(own, end_offset, epoch, now_ms)

    def _catch_up(self) -> None:
        self._follower.catch_up(self._log.committed_offset)


def _fail(results: list[dict[str, Any]], error: int, message: str) -> None:
    """Turn what would have been done into what could not be."""
    for result in results:
        if result["error_code"] == NONE:
            result["error_code"] = error
            result["error_message"] = message


def _refused(served: Served, response: dict[str, Any], message: str) -> dict[str, Any]:
    """The answer where there is no room for what was decided."""
    _fail(response[served.results] if served.results else [response], POLICY_VIOLATION, message)
    # What proves a token that does not come to be is nobody's.
    return response | {"token_id": "", "hmac": b""} if "hmac" in response else response


def _named(partitions: list[str]) -> str:
    """Some of them by name, and how many there are."""
    names = ", ".join(partitions[:NAMES_MAX])
    more = len(partitions) - NAMES_MAX
    return f"{names} and {more} more" if more > 0 else names


def _say_begun_anew(broker_id: int, anew: lost_replicas.BegunAnew, is_known: bool) -> None:
    if anew.replicas:
        logger.warning(
            "broker %d has a new log directory and in it nothing of its %d replicas: it leads none "
            "of which there are others until it has copied them",
            broker_id, anew.replicas,
        )  # fmt: skip
    if anew.only:
        logger.error(
            "%s: broker %d had the only replica, and its log directory is a new one: what it held "
            "is lost, it begins empty",
            _named(anew.only), broker_id,
        )  # fmt: skip
    if anew.leaderless and is_known:
        logger.error(
            "%s: nobody leads. Broker %d has a new log directory and with it nothing, and nobody "
            "else who is in sync or eligible is here",
            _named(anew.leaderless), broker_id,
        )  # fmt: skip
