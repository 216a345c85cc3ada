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
    topics,
    users,
)
from shmbroker.ids import random_uuid, uuid_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from shmbroker.controller.active_controller import ActiveController
    from shmbroker.controller.raft.metadata_log import Record
    from shmbroker.security.identity import Identity

    Message = dict[str, Any]
    Decision = tuple[list[Record], Message]


class Served(NamedTuple):
    """How one API is decided."""

    decide: Callable[[ActiveController, Message, int, int, Identity], Decision]
    """Takes the controller, the request, its version, the time, and the identity of who asks."""
    results: str = ""
    """Where the response has one error for each thing; "": it has one for all."""
    is_in_steps: bool = False
    """Whether one topic alone may take more records than are encoded at once."""


SERVED = {
    "CreateTopics": Served(
        lambda on, request, version, *_: topics.create_topics(request, version, on.cluster()),
        "topics",
        is_in_steps=True,
    ),
    "DeleteTopics": Served(
        lambda on, request, version, *_: topics.delete_topics(request, version, on.cluster()),
        "responses",
    ),
    "CreatePartitions": Served(
        lambda on, request, version, *_: topics.create_partitions(request, version, on.cluster()),
        "results",
        is_in_steps=True,
    ),
    "CreateAcls": Served(
        lambda on, request, *_: acls.create_acls(
            request, on.image.security, on.cluster().new_topic_id
        ),
        "results",
    ),
    "DeleteAcls": Served(
        lambda on, request, *_: acls.delete_acls(request, on.image.security),
        "filter_results",
    ),
    "AlterClientQuotas": Served(
        lambda on, request, *_: quotas.alter_client_quotas(request, on.image.security),
        "entries",
    ),
    "AlterUserScramCredentials": Served(
        lambda on, request, *_: users.alter_users(request, on.image), "results"
    ),
    "CreateDelegationToken": Served(
        lambda on, request, version, now_ms, identity: tokens.create_token(
            request, version, identity, on.token_rules, now_ms, lambda: uuid_text(random_uuid())
        ),
    ),
    "RenewDelegationToken": Served(
        lambda on, request, _, now_ms, identity: tokens.renew_token(
            request, identity, on.image.security.tokens, on.token_rules, now_ms
        ),
    ),
    "ExpireDelegationToken": Served(
        lambda on, request, _, now_ms, identity: tokens.expire_token(
            request, identity, on.image.security.tokens, on.token_rules, now_ms
        ),
    ),
    "AlterConfigs": Served(
        lambda on, request, *_: configs.alter_configs(request, on.image, on.config),
        "responses",
    ),
    "IncrementalAlterConfigs": Served(
        lambda on, request, *_: configs.incremental_alter_configs(
            request, on.image, on.layers(), on.config
        ),
        "responses",
    ),
    "UpdateFeatures": Served(
        lambda on, request, version, *_: features.update_features(
            request, version, on.image, on.node_id, on.config["min.insync.replicas"]
        ),
    ),
    "AlterPartition": Served(
        lambda on, request, version, *_: in_sync.alter_partition(request, version, on.cluster()),
    ),
    "AlterPartitionReassignments": Served(
        lambda on, request, version, *_: reassignment.alter_partition_reassignments(
            request, version, on.cluster()
        ),
    ),
    "ListPartitionReassignments": Served(
        lambda on, request, *_: (
            [],
            reassignment.list_partition_reassignments(request, on.image),
        ),
    ),
    "ElectLeaders": Served(
        lambda on, request, version, *_: election.elect_leaders(request, version, on.cluster()),
    ),
    "UnregisterBroker": Served(
        lambda on, request, *_: nodes.unregister_broker(request, on.cluster()),
    ),
    "AddRaftVoter": Served(
        lambda on, request, *_: ([], raft_voters.add_raft_voter(request, on.image.cluster_id)),
    ),
    "RemoveRaftVoter": Served(
        lambda on, request, *_: (
            [],
            raft_voters.remove_raft_voter(request, on.image.cluster_id),
        ),
    ),
    "DescribeQuorum": Served(
        lambda on, request, version, now_ms, _: ([], on.describe_quorum(request, version, now_ms)),
    ),
}
