"""The table of the APIs that are served: which module, which versions, which process answers.

Rules of this file:
* The rows stand in api-key order. Each module carries the same head: API_KEY, NAME, VERSION_MIN,
  VERSION_MAX, VERSION_MIN_ADVERTISED, and `answer`, or for the hot ones a class.
* What is not in here is not advertised, and a client that asks for it is disconnected, as Kafka
  does with an API it does not know.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from shmbroker.apis.broker import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    delete_records,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_transactions,
    end_txn,
    heartbeat,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_segments,
    list_transactions,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    sync_group,
    txn_offset_commit,
    write_txn_markers,
)
from shmbroker.apis.contexts import Api, BrokerApi, ControllerApi, GatewayApi
from shmbroker.apis.controller import (
    add_raft_voter,
    allocate_producer_ids,
    alter_client_quotas,
    alter_configs,
    alter_partition,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    broker_heartbeat,
    broker_registration,
    create_acls,
    create_delegation_token,
    create_partitions,
    create_topics,
    delete_acls,
    delete_topics,
    describe_quorum,
    elect_leaders,
    expire_delegation_token,
    incremental_alter_configs,
    list_partition_reassignments,
    remove_raft_voter,
    renew_delegation_token,
    tell_log_ends,
    unregister_broker,
    update_features,
)
from shmbroker.apis.gateway import (
    alter_replica_log_dirs,
    api_versions,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_delegation_token,
    describe_topic_partitions,
    describe_user_scram_credentials,
    find_coordinator,
    get_telemetry_subscriptions,
    list_config_resources,
    metadata,
    push_telemetry,
    sasl_authenticate,
    sasl_handshake,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    NamesOf = Callable[[dict[str, Any]], list[str] | None]


class HotApi(NamedTuple):
    """The head of an API that is no module like the others."""

    API_KEY: int
    NAME: str
    VERSION_MIN: int
    VERSION_MAX: int
    VERSION_MIN_ADVERTISED: int


PRODUCE = HotApi(0, "Produce", 3, 13, 0)
FETCH = HotApi(1, "Fetch", 4, 18, 4)
HOT = (PRODUCE, FETCH)
"""Decoded by hand in the network worker, served over operations of their own: `gateway.produce` and
`gateway.fetch`."""

IN_NETWORK_WORKER: tuple[GatewayApi, ...] = (
    metadata,
    find_coordinator,
    sasl_handshake,
    api_versions,
    describe_acls,
    describe_configs,
    alter_replica_log_dirs,
    sasl_authenticate,
    describe_delegation_token,
    describe_client_quotas,
    describe_user_scram_credentials,
    describe_cluster,
    list_config_resources,
    describe_topic_partitions,
)

UNADVERTISED: tuple[GatewayApi, ...] = (get_telemetry_subscriptions, push_telemetry)
"""Answered in the network worker to clients that ask all the same, as Kafka does."""

AFRESH: tuple[GatewayApi, ...] = (
    describe_configs,  # levels of loggers change without a new image
    describe_delegation_token,  # each client sees its own
    get_telemetry_subscriptions,  # a client that has no instance id yet gets one of its own
)
"""Answered anew each time, where the answer to the same bytes is kept of the others."""

IN_IO_WORKER: tuple[BrokerApi, ...] = (
    list_offsets,
    offset_commit,
    offset_fetch,
    join_group,
    heartbeat,
    leave_group,
    sync_group,
    describe_groups,
    list_groups,
    delete_records,
    init_producer_id,
    offset_for_leader_epoch,
    add_partitions_to_txn,
    add_offsets_to_txn,
    end_txn,
    write_txn_markers,
    txn_offset_commit,
    describe_log_dirs,
    delete_groups,
    offset_delete,
    describe_producers,
    describe_transactions,
    list_transactions,
    consumer_group_heartbeat,
    consumer_group_describe,
)

WITH_STANDING_ANSWERS: tuple[BrokerApi, ...] = (heartbeat, consumer_group_heartbeat)
"""APIs whose answer the network worker may give again (`shm.standing`)."""

GROUPS_OF: dict[int, NamesOf] = {
    offset_commit.API_KEY: lambda body: [body["group_id"]],
    offset_fetch.API_KEY: lambda body: _each("group_id", body["groups"]) or [body["group_id"]],
    join_group.API_KEY: lambda body: [body["group_id"]],
    heartbeat.API_KEY: lambda body: [body["group_id"]],
    leave_group.API_KEY: lambda body: [body["group_id"]],
    sync_group.API_KEY: lambda body: [body["group_id"]],
    describe_groups.API_KEY: lambda body: body["groups"],
    list_groups.API_KEY: lambda body: None,
    txn_offset_commit.API_KEY: lambda body: [body["group_id"]],
    delete_groups.API_KEY: lambda body: body["groups_names"],
    offset_delete.API_KEY: lambda body: [body["group_id"]],
    consumer_group_heartbeat.API_KEY: lambda body: [body["group_id"]],
    consumer_group_describe.API_KEY: lambda body: body["group_ids"],
}
"""APIs that a group coordinator answers from the log of its partition, by key: the groups that a
request is about; None: all that there are."""

TRANSACTIONS_OF: dict[int, NamesOf] = {
    init_producer_id.API_KEY: lambda body: _one_of(body["transactional_id"]),
    add_partitions_to_txn.API_KEY: lambda body: (
        _each("transactional_id", body["transactions"])
        or _one_of(body["v3_and_below_transactional_id"])
    ),
    add_offsets_to_txn.API_KEY: lambda body: [body["transactional_id"]],
    end_txn.API_KEY: lambda body: [body["transactional_id"]],
    describe_transactions.API_KEY: lambda body: body["transactional_ids"],
    list_transactions.API_KEY: lambda body: None,
}
"""APIs that a transaction coordinator answers from the log of its partition, by key: the
transactional ids that a request is about; None: all that there are."""

WAITING = (join_group.API_KEY, sync_group.API_KEY)
"""Requests that wait for other clients: a broker that stops does not wait for their answers, as
their senders look for another coordinator anyway."""

SOON_ANSWERED = (
    add_partitions_to_txn.API_KEY,
    end_txn.API_KEY,
    offset_commit.API_KEY,
    offset_fetch.API_KEY,
)
"""Requests that take about as long as a small append: a network worker waits awake for the answer.
Most are one, to a coordinator's topic."""

ASKED_BY_GUESTS = (
    PRODUCE.API_KEY,
    FETCH.API_KEY,
    offset_commit.API_KEY,
    offset_fetch.API_KEY,
)
"""What a lent connection may ask for, without coming home (`gateway.lending`)."""

ON_CONTROL_SOCKET: tuple[BrokerApi, ...] = (list_segments,)
"""Served by I/O workers too, but only to those who may open the control socket."""

FOR_READERS = frozenset((list_segments.API_KEY, api_versions.API_KEY))
"""What another user than the broker's may ask there: what it takes to read the files."""

IN_CONTROLLER: tuple[ControllerApi, ...] = (
    create_topics,
    delete_topics,
    create_acls,
    delete_acls,
    alter_configs,
    create_partitions,
    create_delegation_token,
    renew_delegation_token,
    expire_delegation_token,
    elect_leaders,
    incremental_alter_configs,
    alter_partition_reassignments,
    list_partition_reassignments,
    alter_client_quotas,
    alter_user_scram_credentials,
    describe_quorum,
    update_features,
    unregister_broker,
    add_raft_voter,
    remove_raft_voter,
)

OF_BROKERS: tuple[ControllerApi, ...] = (
    alter_partition,
    broker_registration,
    broker_heartbeat,
    allocate_producer_ids,
    tell_log_ends,
)
"""Answered by the controller too, but only to the brokers of the family."""

JUDGED: tuple[Api, ...] = (*IN_NETWORK_WORKER, *UNADVERTISED, *IN_IO_WORKER, *IN_CONTROLLER)
"""What a client's rights are asked for as a whole, where there is an authorizer
(`security.access`)."""

CONTROLLER_APIS = {module.API_KEY: module for module in IN_CONTROLLER}
"""APIs that clients may ask a controller for, by key."""


def _each(key: str, rows: list[dict[str, Any]]) -> list[str]:
    return [row[key] for row in rows]


def _one_of(name: str | None) -> list[str]:
    """Null or empty is none: an idempotent producer has no transactional id."""
    return [name] if name else []


def advertised() -> list[dict[str, Any]]:
    """The rows of an ApiVersions answer, in api-key order."""
    served: tuple[Api, ...] = (*HOT, *IN_NETWORK_WORKER, *IN_IO_WORKER, *IN_CONTROLLER)
    rows = [
        (module.API_KEY, module.VERSION_MIN_ADVERTISED, module.VERSION_MAX) for module in served
    ]
    return [
        {"api_key": key, "min_version": low, "max_version": high} for key, low, high in sorted(rows)
    ]
