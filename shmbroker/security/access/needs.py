"""What each API asks of rights, for people: docs/apis.md is written from it, and tests hold it to
what Apache Kafka was seen to answer."""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.security.acls import (
    ALTER,
    ALTER_CONFIGS,
    CLUSTER,
    CLUSTER_ACTION,
    CREATE,
    CREATE_TOKENS,
    DELEGATION_TOKEN,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    DESCRIBE_TOKENS,
    GROUP,
    IDEMPOTENT_WRITE,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    USER,
    WRITE,
)
from shmbroker.wire import api_keys as keys
from shmbroker.wire.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    GROUP_AUTHORIZATION_FAILED,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)

LEFT_OUT = 0
"""What may not be seen is left out, without an error."""


class Need(NamedTuple):
    """One right."""

    operation: int
    resource_type: int
    error: int
    """The error for who lacks the right; LEFT_OUT."""
    when: str = ""
    """Where it is not always asked for, or another one does as well."""


def _topic(operation: int, when: str = "") -> Need:
    return Need(operation, TOPIC, TOPIC_AUTHORIZATION_FAILED, when)


def _group(operation: int, when: str = "") -> Need:
    return Need(operation, GROUP, GROUP_AUTHORIZATION_FAILED, when)


def _cluster(operation: int, when: str = "") -> Need:
    return Need(operation, CLUSTER, CLUSTER_AUTHORIZATION_FAILED, when)


def _id(operation: int, when: str = "") -> Need:
    return Need(operation, TRANSACTIONAL_ID, TRANSACTIONAL_ID_AUTHORIZATION_FAILED, when)


_OF_SETTINGS = "of brokers, their loggers, subscriptions to metrics"

NEEDS: dict[int, tuple[Need, ...]] = {
    keys.PRODUCE: (_id(WRITE, "if a batch is of a transaction"), _topic(WRITE)),
    keys.FETCH: (
        _topic(READ),
        Need(CLUSTER_ACTION, CLUSTER, TOPIC_AUTHORIZATION_FAILED, "as a replica, instead"),
    ),
    keys.LIST_OFFSETS: (_topic(DESCRIBE),),
    keys.METADATA: (
        _topic(DESCRIBE, "of those that are named; others are left out"),
        _topic(CREATE, "or Create of the cluster, of what is not there and shall be made"),
    ),
    keys.OFFSET_COMMIT: (_group(READ), _topic(READ)),
    keys.OFFSET_FETCH: (
        _group(DESCRIBE),
        _topic(DESCRIBE, "of those that are named; others are left out"),
    ),
    keys.FIND_COORDINATOR: (
        _group(DESCRIBE, "of a group"),
        _id(DESCRIBE, "of a transaction"),
        _cluster(CLUSTER_ACTION, "of a share group"),
    ),
    keys.JOIN_GROUP: (_group(READ),),
    keys.HEARTBEAT: (_group(READ),),
    keys.LEAVE_GROUP: (_group(READ),),
    keys.SYNC_GROUP: (_group(READ),),
    keys.DESCRIBE_GROUPS: (_group(DESCRIBE),),
    keys.LIST_GROUPS: (Need(DESCRIBE, GROUP, LEFT_OUT, "or Describe of the cluster"),),
    keys.SASL_HANDSHAKE: (),
    keys.API_VERSIONS: (),
    keys.CREATE_TOPICS: (
        _topic(CREATE, "or Create of the cluster"),
        _topic(DESCRIBE_CONFIGS, "to be told its settings"),
    ),
    keys.DELETE_TOPICS: (
        _topic(DELETE, "or Delete of the cluster, which is among All alone"),
        Need(DESCRIBE, TOPIC, LEFT_OUT, "to be told the name, by id"),
    ),
    keys.DELETE_RECORDS: (_topic(DELETE),),
    keys.INIT_PRODUCER_ID: (
        _id(WRITE, "with one"),
        _cluster(IDEMPOTENT_WRITE, "or Write of some topic, without a transactional id"),
    ),
    keys.OFFSET_FOR_LEADER_EPOCH: (_topic(DESCRIBE, "or ClusterAction"),),
    keys.ADD_PARTITIONS_TO_TXN: (
        _cluster(CLUSTER_ACTION, "from version 4"),
        _id(WRITE),
        _topic(WRITE),
    ),
    keys.ADD_OFFSETS_TO_TXN: (_id(WRITE), _group(READ)),
    keys.END_TXN: (_id(WRITE),),
    keys.WRITE_TXN_MARKERS: (_cluster(CLUSTER_ACTION, "or Alter"),),
    keys.TXN_OFFSET_COMMIT: (_id(WRITE), _group(READ), _topic(READ)),
    keys.DESCRIBE_ACLS: (_cluster(DESCRIBE),),
    keys.CREATE_ACLS: (_cluster(ALTER),),
    keys.DELETE_ACLS: (_cluster(ALTER),),
    keys.DESCRIBE_CONFIGS: (
        _topic(DESCRIBE_CONFIGS),
        _group(DESCRIBE_CONFIGS),
        _cluster(DESCRIBE_CONFIGS, _OF_SETTINGS),
    ),
    keys.ALTER_CONFIGS: (
        _topic(ALTER_CONFIGS),
        _group(ALTER_CONFIGS),
        _cluster(ALTER_CONFIGS, _OF_SETTINGS),
    ),
    keys.ALTER_REPLICA_LOG_DIRS: (_cluster(ALTER),),
    keys.DESCRIBE_LOG_DIRS: (_cluster(DESCRIBE),),
    keys.SASL_AUTHENTICATE: (),
    keys.CREATE_PARTITIONS: (_topic(ALTER),),
    keys.CREATE_DELEGATION_TOKEN: (
        Need(CREATE_TOKENS, USER, DELEGATION_TOKEN_AUTHORIZATION_FAILED, "for somebody else"),
    ),
    keys.RENEW_DELEGATION_TOKEN: (),
    keys.EXPIRE_DELEGATION_TOKEN: (),
    keys.DESCRIBE_DELEGATION_TOKEN: (
        Need(
            DESCRIBE, DELEGATION_TOKEN, LEFT_OUT, "or DescribeTokens of its owner, if not one's own"
        ),
    ),
    keys.DELETE_GROUPS: (_group(DELETE),),
    keys.ELECT_LEADERS: (_cluster(ALTER),),
    keys.INCREMENTAL_ALTER_CONFIGS: (
        _topic(ALTER_CONFIGS),
        _group(ALTER_CONFIGS),
        _cluster(ALTER_CONFIGS, _OF_SETTINGS),
    ),
    keys.ALTER_PARTITION_REASSIGNMENTS: (_cluster(ALTER),),
    keys.LIST_PARTITION_REASSIGNMENTS: (_cluster(DESCRIBE),),
    keys.OFFSET_DELETE: (_group(DELETE), _topic(READ)),
    keys.DESCRIBE_CLIENT_QUOTAS: (_cluster(DESCRIBE_CONFIGS),),
    keys.ALTER_CLIENT_QUOTAS: (_cluster(ALTER_CONFIGS),),
    keys.DESCRIBE_USER_SCRAM_CREDENTIALS: (_cluster(DESCRIBE),),
    keys.ALTER_USER_SCRAM_CREDENTIALS: (_cluster(ALTER),),
    keys.DESCRIBE_QUORUM: (_cluster(DESCRIBE),),
    keys.UPDATE_FEATURES: (_cluster(ALTER),),
    keys.DESCRIBE_CLUSTER: (),
    keys.DESCRIBE_PRODUCERS: (_topic(READ),),
    keys.UNREGISTER_BROKER: (_cluster(ALTER),),
    keys.DESCRIBE_TRANSACTIONS: (
        _id(DESCRIBE),
        Need(DESCRIBE, TOPIC, LEFT_OUT),
    ),
    keys.LIST_TRANSACTIONS: (Need(DESCRIBE, TRANSACTIONAL_ID, LEFT_OUT),),
    keys.CONSUMER_GROUP_HEARTBEAT: (
        _group(READ),
        _topic(DESCRIBE, "of those that are named; what an expression finds is left out"),
    ),
    keys.CONSUMER_GROUP_DESCRIBE: (_group(DESCRIBE), _topic(DESCRIBE, "of all that is read")),
    keys.GET_TELEMETRY_SUBSCRIPTIONS: (),
    keys.PUSH_TELEMETRY: (),
    keys.LIST_CONFIG_RESOURCES: (_cluster(DESCRIBE_CONFIGS),),
    keys.DESCRIBE_TOPIC_PARTITIONS: (
        _topic(DESCRIBE, "of those that are named; others are left out"),
    ),
    keys.ADD_RAFT_VOTER: (_cluster(ALTER),),
    keys.REMOVE_RAFT_VOTER: (_cluster(ALTER),),
}
"""Needs by API, in the order in which they are asked; none: everybody may ask."""

OPERATION_NAMES = {
    READ: "Read",
    WRITE: "Write",
    CREATE: "Create",
    DELETE: "Delete",
    ALTER: "Alter",
    DESCRIBE: "Describe",
    CLUSTER_ACTION: "ClusterAction",
    DESCRIBE_CONFIGS: "DescribeConfigs",
    ALTER_CONFIGS: "AlterConfigs",
    IDEMPOTENT_WRITE: "IdempotentWrite",
    CREATE_TOKENS: "CreateTokens",
    DESCRIBE_TOKENS: "DescribeTokens",
}
RESOURCE_NAMES = {
    TOPIC: "the topic",
    GROUP: "the group",
    CLUSTER: "the cluster",
    TRANSACTIONAL_ID: "the transactional id",
    DELEGATION_TOKEN: "the token",
    USER: "the user",
}
