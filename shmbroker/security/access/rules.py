"""The rule of every API that is served, by key; None: everybody may ask.

Produce and Fetch are judged where they are decoded (`gateway.produce_judging`, `gateway.fetch`),
each token where it is described (`apis.gateway.describe_delegation_token`).
"""

from __future__ import annotations

from shmbroker.security.access import cluster, groups, tokens, topics, transactions
from shmbroker.wire import api_keys as keys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.security.access.asker import Rule

RULES: dict[int, Rule | None] = {
    keys.LIST_OFFSETS: topics.list_offsets,
    keys.METADATA: topics.metadata,
    keys.OFFSET_COMMIT: groups.offset_commit,
    keys.OFFSET_FETCH: groups.offset_fetch,
    keys.FIND_COORDINATOR: groups.find_coordinator,
    keys.JOIN_GROUP: groups.join_group,
    keys.HEARTBEAT: groups.heartbeat,
    keys.LEAVE_GROUP: groups.leave_group,
    keys.SYNC_GROUP: groups.sync_group,
    keys.DESCRIBE_GROUPS: groups.describe_groups,
    keys.LIST_GROUPS: groups.list_groups,
    keys.SASL_HANDSHAKE: None,
    keys.API_VERSIONS: None,
    keys.CREATE_TOPICS: topics.create_topics,
    keys.DELETE_TOPICS: topics.delete_topics,
    keys.DELETE_RECORDS: topics.delete_records,
    keys.INIT_PRODUCER_ID: transactions.init_producer_id,
    keys.OFFSET_FOR_LEADER_EPOCH: topics.offset_for_leader_epoch,
    keys.ADD_PARTITIONS_TO_TXN: transactions.add_partitions_to_txn,
    keys.ADD_OFFSETS_TO_TXN: transactions.add_offsets_to_txn,
    keys.END_TXN: transactions.end_txn,
    keys.WRITE_TXN_MARKERS: cluster.write_txn_markers,
    keys.TXN_OFFSET_COMMIT: transactions.txn_offset_commit,
    keys.DESCRIBE_ACLS: cluster.describe_acls,
    keys.CREATE_ACLS: cluster.create_acls,
    keys.DELETE_ACLS: cluster.delete_acls,
    keys.DESCRIBE_CONFIGS: cluster.describe_configs,
    keys.ALTER_CONFIGS: cluster.alter_configs,
    keys.ALTER_REPLICA_LOG_DIRS: cluster.alter_replica_log_dirs,
    keys.DESCRIBE_LOG_DIRS: cluster.describe_log_dirs,
    keys.SASL_AUTHENTICATE: None,
    keys.CREATE_PARTITIONS: topics.create_partitions,
    keys.CREATE_DELEGATION_TOKEN: tokens.create_delegation_token,
    keys.RENEW_DELEGATION_TOKEN: None,
    keys.EXPIRE_DELEGATION_TOKEN: None,
    keys.DESCRIBE_DELEGATION_TOKEN: None,
    keys.DELETE_GROUPS: groups.delete_groups,
    keys.ELECT_LEADERS: cluster.elect_leaders,
    keys.INCREMENTAL_ALTER_CONFIGS: cluster.incremental_alter_configs,
    keys.ALTER_PARTITION_REASSIGNMENTS: cluster.alter_partition_reassignments,
    keys.LIST_PARTITION_REASSIGNMENTS: cluster.list_partition_reassignments,
    keys.OFFSET_DELETE: groups.offset_delete,
    keys.DESCRIBE_CLIENT_QUOTAS: cluster.describe_client_quotas,
    keys.ALTER_CLIENT_QUOTAS: cluster.alter_client_quotas,
    keys.DESCRIBE_USER_SCRAM_CREDENTIALS: cluster.describe_users,
    keys.ALTER_USER_SCRAM_CREDENTIALS: cluster.alter_users,
    keys.DESCRIBE_QUORUM: cluster.describe,
    keys.UPDATE_FEATURES: cluster.alter,
    keys.DESCRIBE_CLUSTER: cluster.describe_cluster,
    keys.DESCRIBE_PRODUCERS: topics.describe_producers,
    keys.UNREGISTER_BROKER: cluster.alter,
    keys.DESCRIBE_TRANSACTIONS: transactions.describe_transactions,
    keys.LIST_TRANSACTIONS: transactions.list_transactions,
    keys.CONSUMER_GROUP_HEARTBEAT: groups.consumer_group_heartbeat,
    keys.CONSUMER_GROUP_DESCRIBE: groups.consumer_group_describe,
    keys.GET_TELEMETRY_SUBSCRIPTIONS: None,
    keys.PUSH_TELEMETRY: None,
    keys.LIST_CONFIG_RESOURCES: cluster.list_config_resources,
    keys.DESCRIBE_TOPIC_PARTITIONS: topics.describe_topic_partitions,
    keys.ADD_RAFT_VOTER: cluster.alter,
    keys.REMOVE_RAFT_VOTER: cluster.alter,
}
