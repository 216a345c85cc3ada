"""Kafka's request types: constants by key, and a table of names and versions.

What is here is what Apache Kafka 4.2.1 has; which APIs and versions this broker serves is said by
their handlers. Keys 4 to 7 were removed with ZooKeeper. The last version of InitProducerId is still
unstable in 4.2: Kafka does not advertise it. From LIST_SEGMENTS on they are this project's own.

Source: Kafka 4.2.1 `ApiKeys` and its message definitions.
"""

PRODUCE = 0
FETCH = 1
LIST_OFFSETS = 2
METADATA = 3
OFFSET_COMMIT = 8
OFFSET_FETCH = 9
FIND_COORDINATOR = 10
JOIN_GROUP = 11
HEARTBEAT = 12
LEAVE_GROUP = 13
SYNC_GROUP = 14
DESCRIBE_GROUPS = 15
LIST_GROUPS = 16
SASL_HANDSHAKE = 17
API_VERSIONS = 18
CREATE_TOPICS = 19
DELETE_TOPICS = 20
DELETE_RECORDS = 21
INIT_PRODUCER_ID = 22
OFFSET_FOR_LEADER_EPOCH = 23
ADD_PARTITIONS_TO_TXN = 24
ADD_OFFSETS_TO_TXN = 25
END_TXN = 26
WRITE_TXN_MARKERS = 27
TXN_OFFSET_COMMIT = 28
DESCRIBE_ACLS = 29
CREATE_ACLS = 30
DELETE_ACLS = 31
DESCRIBE_CONFIGS = 32
ALTER_CONFIGS = 33
ALTER_REPLICA_LOG_DIRS = 34
DESCRIBE_LOG_DIRS = 35
SASL_AUTHENTICATE = 36
CREATE_PARTITIONS = 37
CREATE_DELEGATION_TOKEN = 38
RENEW_DELEGATION_TOKEN = 39
EXPIRE_DELEGATION_TOKEN = 40
DESCRIBE_DELEGATION_TOKEN = 41
DELETE_GROUPS = 42
ELECT_LEADERS = 43
INCREMENTAL_ALTER_CONFIGS = 44
ALTER_PARTITION_REASSIGNMENTS = 45
LIST_PARTITION_REASSIGNMENTS = 46
OFFSET_DELETE = 47
DESCRIBE_CLIENT_QUOTAS = 48
ALTER_CLIENT_QUOTAS = 49
DESCRIBE_USER_SCRAM_CREDENTIALS = 50
ALTER_USER_SCRAM_CREDENTIALS = 51
VOTE = 52
BEGIN_QUORUM_EPOCH = 53
END_QUORUM_EPOCH = 54
DESCRIBE_QUORUM = 55
ALTER_PARTITION = 56
UPDATE_FEATURES = 57
ENVELOPE = 58
FETCH_SNAPSHOT = 59
DESCRIBE_CLUSTER = 60
DESCRIBE_PRODUCERS = 61
BROKER_REGISTRATION = 62
BROKER_HEARTBEAT = 63
UNREGISTER_BROKER = 64
DESCRIBE_TRANSACTIONS = 65
LIST_TRANSACTIONS = 66
ALLOCATE_PRODUCER_IDS = 67
CONSUMER_GROUP_HEARTBEAT = 68
CONSUMER_GROUP_DESCRIBE = 69
CONTROLLER_REGISTRATION = 70
GET_TELEMETRY_SUBSCRIPTIONS = 71
PUSH_TELEMETRY = 72
ASSIGN_REPLICAS_TO_DIRS = 73
LIST_CONFIG_RESOURCES = 74
DESCRIBE_TOPIC_PARTITIONS = 75
SHARE_GROUP_HEARTBEAT = 76
SHARE_GROUP_DESCRIBE = 77
SHARE_FETCH = 78
SHARE_ACKNOWLEDGE = 79
ADD_RAFT_VOTER = 80
REMOVE_RAFT_VOTER = 81
UPDATE_RAFT_VOTER = 82
INITIALIZE_SHARE_GROUP_STATE = 83
READ_SHARE_GROUP_STATE = 84
WRITE_SHARE_GROUP_STATE = 85
DELETE_SHARE_GROUP_STATE = 86
READ_SHARE_GROUP_STATE_SUMMARY = 87
STREAMS_GROUP_HEARTBEAT = 88
STREAMS_GROUP_DESCRIBE = 89
DESCRIBE_SHARE_GROUP_OFFSETS = 90
ALTER_SHARE_GROUP_OFFSETS = 91
DELETE_SHARE_GROUP_OFFSETS = 92
LIST_SEGMENTS = 20000
CLEAN_LOG = 20001
TIER_LOAD = 20002
TIER_COPY = 20003
TIER_DELETE = 20004
TIER_FETCH = 20005
TIER_FIND = 20006
TELL_LOG_ENDS = 20007
TIER_ABORTED = 20008
TIER_STATE = 20009

NO_VERSION = 32768
"""Stands for the first flexible version where there is none."""

TABLE = {
    # key: (name, first version, last version, first flexible version)
    PRODUCE: ("Produce", 3, 13, 9),
    FETCH: ("Fetch", 4, 18, 12),
    LIST_OFFSETS: ("ListOffsets", 1, 11, 6),
    METADATA: ("Metadata", 0, 13, 9),
    OFFSET_COMMIT: ("OffsetCommit", 2, 10, 8),
    OFFSET_FETCH: ("OffsetFetch", 1, 10, 6),
    FIND_COORDINATOR: ("FindCoordinator", 0, 6, 3),
    JOIN_GROUP: ("JoinGroup", 0, 9, 6),
    HEARTBEAT: ("Heartbeat", 0, 4, 4),
    LEAVE_GROUP: ("LeaveGroup", 0, 5, 4),
    SYNC_GROUP: ("SyncGroup", 0, 5, 4),
    DESCRIBE_GROUPS: ("DescribeGroups", 0, 6, 5),
    LIST_GROUPS: ("ListGroups", 0, 5, 3),
    SASL_HANDSHAKE: ("SaslHandshake", 0, 1, NO_VERSION),
    API_VERSIONS: ("ApiVersions", 0, 4, 3),
    CREATE_TOPICS: ("CreateTopics", 2, 7, 5),
    DELETE_TOPICS: ("DeleteTopics", 1, 6, 4),
    DELETE_RECORDS: ("DeleteRecords", 0, 2, 2),
    INIT_PRODUCER_ID: ("InitProducerId", 0, 6, 2),
    OFFSET_FOR_LEADER_EPOCH: ("OffsetForLeaderEpoch", 2, 4, 4),
    ADD_PARTITIONS_TO_TXN: ("AddPartitionsToTxn", 0, 5, 3),
    ADD_OFFSETS_TO_TXN: ("AddOffsetsToTxn", 0, 4, 3),
    END_TXN: ("EndTxn", 0, 5, 3),
    WRITE_TXN_MARKERS: ("WriteTxnMarkers", 1, 2, 1),
    TXN_OFFSET_COMMIT: ("TxnOffsetCommit", 0, 5, 3),
    DESCRIBE_ACLS: ("DescribeAcls", 1, 3, 2),
    CREATE_ACLS: ("CreateAcls", 1, 3, 2),
    DELETE_ACLS: ("DeleteAcls", 1, 3, 2),
    DESCRIBE_CONFIGS: ("DescribeConfigs", 1, 4, 4),
    ALTER_CONFIGS: ("AlterConfigs", 0, 2, 2),
    ALTER_REPLICA_LOG_DIRS: ("AlterReplicaLogDirs", 1, 2, 2),
    DESCRIBE_LOG_DIRS: ("DescribeLogDirs", 1, 4, 2),
    SASL_AUTHENTICATE: ("SaslAuthenticate", 0, 2, 2),
    CREATE_PARTITIONS: ("CreatePartitions", 0, 3, 2),
    CREATE_DELEGATION_TOKEN: ("CreateDelegationToken", 1, 3, 2),
    RENEW_DELEGATION_TOKEN: ("RenewDelegationToken", 1, 2, 2),
    EXPIRE_DELEGATION_TOKEN: ("ExpireDelegationToken", 1, 2, 2),
    DESCRIBE_DELEGATION_TOKEN: ("DescribeDelegationToken", 1, 3, 2),
    DELETE_GROUPS: ("DeleteGroups", 0, 2, 2),
    ELECT_LEADERS: ("ElectLeaders", 0, 2, 2),
    INCREMENTAL_ALTER_CONFIGS: ("IncrementalAlterConfigs", 0, 1, 1),
    ALTER_PARTITION_REASSIGNMENTS: ("AlterPartitionReassignments", 0, 1, 0),
    LIST_PARTITION_REASSIGNMENTS: ("ListPartitionReassignments", 0, 0, 0),
    OFFSET_DELETE: ("OffsetDelete", 0, 0, NO_VERSION),
    DESCRIBE_CLIENT_QUOTAS: ("DescribeClientQuotas", 0, 1, 1),
    ALTER_CLIENT_QUOTAS: ("AlterClientQuotas", 0, 1, 1),
    DESCRIBE_USER_SCRAM_CREDENTIALS: ("DescribeUserScramCredentials", 0, 0, 0),
    ALTER_USER_SCRAM_CREDENTIALS: ("AlterUserScramCredentials", 0, 0, 0),
    VOTE: ("Vote", 0, 2, 0),
    BEGIN_QUORUM_EPOCH: ("BeginQuorumEpoch", 0, 1, 1),
    END_QUORUM_EPOCH: ("EndQuorumEpoch", 0, 1, 1),
    DESCRIBE_QUORUM: ("DescribeQuorum", 0, 2, 0),
    ALTER_PARTITION: ("AlterPartition", 2, 3, 0),
    UPDATE_FEATURES: ("UpdateFeatures", 0, 2, 0),
    ENVELOPE: ("Envelope", 0, 0, 0),
    FETCH_SNAPSHOT: ("FetchSnapshot", 0, 1, 0),
    DESCRIBE_CLUSTER: ("DescribeCluster", 0, 2, 0),
    DESCRIBE_PRODUCERS: ("DescribeProducers", 0, 0, 0),
    BROKER_REGISTRATION: ("BrokerRegistration", 0, 4, 0),
    BROKER_HEARTBEAT: ("BrokerHeartbeat", 0, 1, 0),
    UNREGISTER_BROKER: ("UnregisterBroker", 0, 0, 0),
    DESCRIBE_TRANSACTIONS: ("DescribeTransactions", 0, 0, 0),
    LIST_TRANSACTIONS: ("ListTransactions", 0, 2, 0),
    ALLOCATE_PRODUCER_IDS: ("AllocateProducerIds", 0, 0, 0),
    CONSUMER_GROUP_HEARTBEAT: ("ConsumerGroupHeartbeat", 0, 1, 0),
    CONSUMER_GROUP_DESCRIBE: ("ConsumerGroupDescribe", 0, 1, 0),
    CONTROLLER_REGISTRATION: ("ControllerRegistration", 0, 0, 0),
    GET_TELEMETRY_SUBSCRIPTIONS: ("GetTelemetrySubscriptions", 0, 0, 0),
    PUSH_TELEMETRY: ("PushTelemetry", 0, 0, 0),
    ASSIGN_REPLICAS_TO_DIRS: ("AssignReplicasToDirs", 0, 0, 0),
    LIST_CONFIG_RESOURCES: ("ListConfigResources", 0, 1, 0),
    DESCRIBE_TOPIC_PARTITIONS: ("DescribeTopicPartitions", 0, 0, 0),
    SHARE_GROUP_HEARTBEAT: ("ShareGroupHeartbeat", 1, 1, 0),
    SHARE_GROUP_DESCRIBE: ("ShareGroupDescribe", 1, 1, 0),
    SHARE_FETCH: ("ShareFetch", 1, 2, 0),
    SHARE_ACKNOWLEDGE: ("ShareAcknowledge", 1, 2, 0),
    ADD_RAFT_VOTER: ("AddRaftVoter", 0, 1, 0),
    REMOVE_RAFT_VOTER: ("RemoveRaftVoter", 0, 0, 0),
    UPDATE_RAFT_VOTER: ("UpdateRaftVoter", 0, 0, 0),
    INITIALIZE_SHARE_GROUP_STATE: ("InitializeShareGroupState", 0, 0, 0),
    READ_SHARE_GROUP_STATE: ("ReadShareGroupState", 0, 0, 0),
    WRITE_SHARE_GROUP_STATE: ("WriteShareGroupState", 0, 1, 0),
    DELETE_SHARE_GROUP_STATE: ("DeleteShareGroupState", 0, 0, 0),
    READ_SHARE_GROUP_STATE_SUMMARY: ("ReadShareGroupStateSummary", 0, 1, 0),
    STREAMS_GROUP_HEARTBEAT: ("StreamsGroupHeartbeat", 0, 0, 0),
    STREAMS_GROUP_DESCRIBE: ("StreamsGroupDescribe", 0, 0, 0),
    DESCRIBE_SHARE_GROUP_OFFSETS: ("DescribeShareGroupOffsets", 0, 1, 0),
    ALTER_SHARE_GROUP_OFFSETS: ("AlterShareGroupOffsets", 0, 0, 0),
    DELETE_SHARE_GROUP_OFFSETS: ("DeleteShareGroupOffsets", 0, 0, 0),
    LIST_SEGMENTS: ("ListSegments", 0, 1, 0),
    CLEAN_LOG: ("CleanLog", 0, 0, 0),
    TIER_LOAD: ("TierLoad", 0, 0, 0),
    TIER_COPY: ("TierCopy", 0, 0, 0),
    TIER_DELETE: ("TierDelete", 0, 0, 0),
    TIER_FETCH: ("TierFetch", 0, 0, 0),
    TIER_FIND: ("TierFind", 0, 0, 0),
    TELL_LOG_ENDS: ("TellLogEnds", 0, 0, 0),
    TIER_ABORTED: ("TierAborted", 0, 0, 0),
    TIER_STATE: ("TierState", 0, 0, 0),
}


def name_of(api_key: int) -> str:
    """Kafka's name of a request type, for logs; its number if it is not known."""
    return TABLE[api_key][0] if api_key in TABLE else str(api_key)


def is_flexible(api_key: int, api_version: int) -> bool:
    """Whether a version has compact types and tagged fields; KeyError if the key is not known.

    It also decides the headers: request header v2 and response header v1 if so, else v1 and v0.
    """
    return api_version >= TABLE[api_key][3]
