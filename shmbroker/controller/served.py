"""What the active controller decides, API by API: a row for each that clients or brokers ask for.

A decision is pure: the records to commit, and the response that is true once they are.
"""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.controller.decisions import (
    acls,
    configs,
    election,
    features,
    in_sync,
    nodes,
    quotas,
    raft_voters,
    reassignment,
    tokens,
    topic_creation,
    topic_deletion,
    topic_growth,
    users,
)
from shmbroker.ids import uuid_text
from shmbroker.wire.error_codes import NONE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from shmbroker.controller.decisions.cluster_state import ClusterState, Decision
    from shmbroker.metadata.image import MetadataImage
    from shmbroker.security.identity import Identity
    from shmbroker.settings.broker_config import BrokerConfig

    Message = dict[str, Any]


class DecisionRequest(NamedTuple):
    """A request, and what it is decided by."""

    request: Message
    version: int
    now_ms: int
    identity: Identity
    """The client that asks."""
    cluster: ClusterState
    token_rules: tokens.TokenRules
    node_id: int
    """The id of the active controller."""

    @property
    def image(self) -> MetadataImage:
        """The cluster, as of now."""
        return self.cluster.image

    @property
    def config(self) -> BrokerConfig:
        """The settings of the node."""
        return self.cluster.config


class Served(NamedTuple):
    """How one API is decided."""

    decide: Callable[[DecisionRequest], Decision]
    results: str = ""
    """Where the response has one error for each thing; "": it has one for all."""
    is_in_steps: bool = False
    """Whether one topic alone may take more records than are encoded at once."""
    level_changes: Callable[[Message, Message], Mapping[str, str | None]] | None = None
    """Takes the request and its response; the levels of loggers that change beside the records."""
    withheld: Mapping[str, Any] = {}
    """Fields of the response as they are where nothing comes of the decision."""

    def fail(self, response: Message, error: int, message: str) -> None:
        """Turn what would have been done into what could not be."""
        results: list[Message] = response[self.results] if self.results else [response]
        for result in results:
            if result["error_code"] == NONE:
                result["error_code"] = error
                result["error_message"] = message
        response.update(self.withheld)


SERVED = {
    "CreateTopics": Served(
        lambda asked: topic_creation.create_topics(asked.request, asked.version, asked.cluster),
        "topics",
        is_in_steps=True,
    ),
    "DeleteTopics": Served(
        lambda asked: topic_deletion.delete_topics(asked.request, asked.version, asked.cluster),
        "responses",
    ),
    "CreatePartitions": Served(
        lambda asked: topic_growth.create_partitions(asked.request, asked.cluster),
        "results",
        is_in_steps=True,
    ),
    "CreateAcls": Served(
        lambda asked: acls.create_acls(asked.request, asked.image.security, asked.cluster.new_uuid),
        "results",
    ),
    "DeleteAcls": Served(
        lambda asked: acls.delete_acls(asked.request, asked.image.security),
        "filter_results",
    ),
    "AlterClientQuotas": Served(
        lambda asked: quotas.alter_client_quotas(asked.request, asked.image.security),
        "entries",
    ),
    "AlterUserScramCredentials": Served(
        lambda asked: users.alter_users(asked.request, asked.image), "results"
    ),
    "CreateDelegationToken": Served(
        lambda asked: tokens.create_token(
            asked.request,
            asked.version,
            asked.identity,
            asked.token_rules,
            asked.now_ms,
            lambda: uuid_text(asked.cluster.new_uuid()),
        ),
        # What proves a token that does not come to be is nobody's.
        withheld={"token_id": "", "hmac": b""},
    ),
    "RenewDelegationToken": Served(
        lambda asked: tokens.renew_token(
            asked.request,
            asked.identity,
            asked.image.security.tokens,
            asked.token_rules,
            asked.now_ms,
        ),
    ),
    "ExpireDelegationToken": Served(
        lambda asked: tokens.expire_token(
            asked.request,
            asked.identity,
            asked.image.security.tokens,
            asked.token_rules,
            asked.now_ms,
        ),
    ),
    "AlterConfigs": Served(
        lambda asked: configs.alter_configs(asked.request, asked.image, asked.config),
        "responses",
    ),
    "IncrementalAlterConfigs": Served(
        lambda asked: configs.incremental_alter_configs(asked.request, asked.image, asked.config),
        "responses",
        level_changes=configs.level_changes,
    ),
    "UpdateFeatures": Served(
        lambda asked: features.update_features(
            asked.request,
            asked.version,
            asked.image,
            asked.node_id,
            asked.config["min.insync.replicas"],
        ),
    ),
    "AlterPartition": Served(
        lambda asked: in_sync.alter_partition(asked.request, asked.version, asked.cluster),
    ),
    "AlterPartitionReassignments": Served(
        lambda asked: reassignment.alter_partition_reassignments(
            asked.request, asked.version, asked.cluster
        ),
    ),
    "ListPartitionReassignments": Served(
        lambda asked: (
            [],
            reassignment.list_partition_reassignments(asked.request, asked.image),
        ),
    ),
    "ElectLeaders": Served(
        lambda asked: election.elect_leaders(asked.request, asked.version, asked.cluster),
    ),
    "UnregisterBroker": Served(
        lambda asked: nodes.unregister_broker(asked.request, asked.cluster),
    ),
    "AddRaftVoter": Served(
        lambda asked: ([], raft_voters.add_raft_voter(asked.request, asked.image.cluster_id)),
    ),
    "RemoveRaftVoter": Served(
        lambda asked: (
            [],
            raft_voters.remove_raft_voter(asked.request, asked.image.cluster_id),
        ),
    ),
}
