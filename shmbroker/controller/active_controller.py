"""The active controller: takes requests, decides, and answers when the decision is durable.

   request ──► `served`: records and response ──► `DecisionLog.commit` ──► answer

    ActiveController   what clients and brokers ask for
    ├─ .log            the image, and the log that decisions go into      decision_log.py
    ├─ .membership     brokers come, serve, are fenced, stop              membership.py
    ├─ .told_ends      what brokers say of their logs (TellLogEnds)       told_ends.py
    └─ .due            what it does unasked: elections, rooms, tokens     due.py

* Requests are served one at a time; the caller publishes `committed_offset` after each.
* A decision about up to 10,000 partitions is prepared in steps (`handle_in_steps`): others may be
  taken between two of them, and nothing of it is in the log before its one batch.
* A full disk fails the request (KAFKA_STORAGE_ERROR) and nothing else, and so does a decision too
  large for one batch (POLICY_VIOLATION). Any other fault of the disk ends the process.
"""

from __future__ import annotations

import logging
import os

from shmbroker.controller.decision_log import DecisionLog
from shmbroker.controller.decisions import bounds, configs, nodes
from shmbroker.controller.decisions.tokens import TokenRules
from shmbroker.controller.decisions.topic_creation import is_alike
from shmbroker.controller.decisions.used_topics import created_by_use
from shmbroker.controller.due import Due
from shmbroker.controller.membership import Membership
from shmbroker.controller.mutation_quotas import UNBOUNDED
from shmbroker.controller.raft.metadata_log import DecisionTooLargeFault, encode_records
from shmbroker.controller.raft.quorum_description import describe_quorum
from shmbroker.controller.raft.voter import Voter
from shmbroker.controller.served import SERVED, DecisionRequest, Served
from shmbroker.controller.told_ends import ToldEnds
from shmbroker.ids import random_uuid
from shmbroker.log.faults import DiskFullFault
from shmbroker.metadata.follower import MetadataFollower
from shmbroker.security.identity import OF_FAMILY
from shmbroker.wire.error_codes import (
    BROKER_ID_NOT_REGISTERED,
    KAFKA_STORAGE_ERROR,
    NONE,
    POLICY_VIOLATION,
    STALE_BROKER_EPOCH,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from typing import Any

    from shmbroker.controller.mutation_quotas import Mutations
    from shmbroker.controller.raft.quorum_description import Replica
    from shmbroker.metadata.image import MetadataImage
    from shmbroker.metadata.record import MetadataRecord
    from shmbroker.security.identity import Identity
    from shmbroker.settings.broker_config import BrokerConfig

logger = logging.getLogger(__name__)

IDLE_LINES_MAX = 10
"""The lines of one request, about settings that change nothing."""

PRODUCER_ID_BLOCK = 1000
"""Ids a broker gets at once (Kafka: `ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE`)."""

STEP_RECORDS = 2000
"""Encoded at once: some 8 ms."""


class ActiveController:
    """What a voter that leads decides. Make one with `activate`, or `open`."""

    __slots__ = (
        "due",
        "log",
        "membership",
        "observers",
        "on_log_levels",
        "token_rules",
        "told_ends",
    )

    def __init__(self, log: DecisionLog) -> None:
        self.log = log
        self.observers: Callable[[int], list[Replica]] = lambda _now_ms: []
        """Give the replicas that follow the metadata log without a vote, at this time."""
        self.on_log_levels: Callable[[Mapping[str, str | None]], None] = lambda _changes: None
        """Called with the loggers whose level changes; None: the level that is configured."""
        self.token_rules = TokenRules.of(log.config, os.environ)
        self.membership = Membership(log)
        self.told_ends = ToldEnds(log, self.membership.doubts)
        self.due = Due(log, self.token_rules)

    @classmethod
    def activate(
        cls,
        voter: Voter,
        follower: MetadataFollower,
        config: BrokerConfig,
        now_ms: int,
        *,
        new_uuid: Callable[[], bytes] = random_uuid,
    ) -> ActiveController:
        """Take over, with a voter that leads and a follower of its log, and mend what the
        predecessor may have left halfway. Faults as of `Voter.append`."""
        log = DecisionLog(voter, follower, config, new_uuid)
        active = cls(log)
        log.take_over(now_ms)
        nodes.refuse_missing_brokers(log.image, config.broker_ids)
        nodes.refuse_unasked_acls(log.image, config)
        if doubt := nodes.shuts_out_all(log.image, config):
            logger.warning("%s", doubt)
        active.membership.take_over(now_ms)
        return active

    @property
    def config(self) -> BrokerConfig:
        """The settings of the node."""
        return self.log.config

    @property
    def image(self) -> MetadataImage:
        """The cluster as of `committed_offset`."""
        return self.log.image

    @property
    def committed_offset(self) -> int:
        """One past the last durable record: what is to be published."""
        return self.log.voter.committed_offset

    @property
    def epoch(self) -> int:
        """The controller epoch."""
        return self.log.voter.epoch

    # ── requests ────────────────────────────────────────────────────────────────────────────────

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
        """Do what `handle` does, some 20 ms at most between two yields. Others' decisions may come
        there: what they would have changed in this one is decided again."""
        served = SERVED[api_name]
        while True:
            before = self.image
            asked = self._asked(request, version, now_ms, identity, mutations)
            records, response = served.decide(asked)
            if records and (full := bounds.complaint(records, self.image, self.config)):
                served.fail(response, POLICY_VIOLATION, full)
                return response
            encoded: list[bytes] | None = None
            if len(records) > STEP_RECORDS and served.is_in_steps:
                encoded = yield from _encoded_in_steps(records)
            if before is self.image or is_alike(before, self.image, request["topics"]):
                break
            mutations.begin_anew()
        if mutations.throttle_ms:
            response["throttle_time_ms"] = mutations.throttle_ms
        if records:
            self._commit_answered(records, encoded, served, response, now_ms)
        # After the commit: a full disk fails the loggers of its request, too.
        if served.level_changes is not None and (
            changes := served.level_changes(request, response)
        ):
            self.on_log_levels(changes)
        return response

    def _asked(
        self,
        request: dict[str, Any],
        version: int,
        now_ms: int,
        identity: Identity,
        mutations: Mutations,
    ) -> DecisionRequest:
        return DecisionRequest(
            request,
            version,
            now_ms,
            identity,
            self.log.cluster(mutations),
            self.token_rules,
            self.log.voter.node_id,
        )

    def _commit_answered(
        self,
        records: list[MetadataRecord],
        encoded: list[bytes] | None,
        served: Served,
        response: dict[str, Any],
        now_ms: int,
    ) -> None:
        """Commit a decision; its answer says so where that could not be."""
        try:
            self.log.commit(records, now_ms, encoded)
        except DiskFullFault as fault:
            message = f"The metadata log's disk is full: {fault}"
            served.fail(response, KAFKA_STORAGE_ERROR, message)
        except DecisionTooLargeFault:
            message = "Unable to perform excessively large batch operation."
            served.fail(response, POLICY_VIOLATION, message)
        else:
            for complaint in configs.idle_complaints(records)[:IDLE_LINES_MAX]:
                logger.warning("%s", complaint)

    def describe_quorum(self, request: dict[str, Any], version: int, now_ms: int) -> dict[str, Any]:
        """The answer to a DescribeQuorum: nothing is decided."""
        voter = self.log.voter
        replicas = voter.replicas(now_ms), self.observers(now_ms)
        return describe_quorum(
            request, version, voter.node_id, voter.epoch, voter.committed_offset, *replicas
        )

    def create_topics_auto(
        self, names: list[str], now_ms: int, mutations: Mutations = UNBOUNDED
    ) -> list[tuple[int, str | None]]:
        """Create topics because somebody uses them, in one decision: (error, message) of each.

        With the defaults, or as Kafka has it for its own. TOPIC_ALREADY_EXISTS is
        what all but the first of several callers get.
        """
        asked = [created_by_use(name, self.log.config) for name in names]
        request = {"topics": asked, "validate_only": False}
        answer = self.handle("CreateTopics", 2, request, now_ms, mutations=mutations)
        results = answer["topics"]
        return [(result["error_code"], result["error_message"]) for result in results]

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
            self.log.commit([("ProducerIdsRecord", 0, message)], now_ms)
        except DiskFullFault:
            return KAFKA_STORAGE_ERROR, -1, 0
        return NONE, first, PRODUCER_ID_BLOCK

    def close(self) -> None:
        """End cleanly."""
        self.log.close()


def _encoded_in_steps(records: list[MetadataRecord]) -> Generator[None, None, list[bytes]]:
    """The records as they go into the log; others have their turn before each lot, and at last."""
    encoded: list[bytes] = []
    while len(encoded) < len(records):
        yield
        at = len(encoded)
        encoded += encode_records(records[at : at + STEP_RECORDS], at)
    yield
    return encoded
