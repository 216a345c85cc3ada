"""Kafka's error codes, as constants, with what each means.

An error code is an int that goes on the wire, per request, topic or partition; it is a value and is
never raised. Retriable is what Kafka's clients take for such: they try again by themselves.

Source: Kafka 4.2 `Errors`; the texts are ours.
"""

UNKNOWN_SERVER_ERROR = -1
NONE = 0
OFFSET_OUT_OF_RANGE = 1
CORRUPT_MESSAGE = 2
UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_FETCH_SIZE = 4
LEADER_NOT_AVAILABLE = 5
NOT_LEADER_OR_FOLLOWER = 6
REQUEST_TIMED_OUT = 7
BROKER_NOT_AVAILABLE = 8
REPLICA_NOT_AVAILABLE = 9
MESSAGE_TOO_LARGE = 10
STALE_CONTROLLER_EPOCH = 11
OFFSET_METADATA_TOO_LARGE = 12
NETWORK_EXCEPTION = 13
COORDINATOR_LOAD_IN_PROGRESS = 14
COORDINATOR_NOT_AVAILABLE = 15
NOT_COORDINATOR = 16
INVALID_TOPIC_EXCEPTION = 17
RECORD_LIST_TOO_LARGE = 18
NOT_ENOUGH_REPLICAS = 19
NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
INVALID_REQUIRED_ACKS = 21
ILLEGAL_GENERATION = 22
INCONSISTENT_GROUP_PROTOCOL = 23
INVALID_GROUP_ID = 24
UNKNOWN_MEMBER_ID = 25
INVALID_SESSION_TIMEOUT = 26
REBALANCE_IN_PROGRESS = 27
INVALID_COMMIT_OFFSET_SIZE = 28
TOPIC_AUTHORIZATION_FAILED = 29
GROUP_AUTHORIZATION_FAILED = 30
CLUSTER_AUTHORIZATION_FAILED = 31
INVALID_TIMESTAMP = 32
UNSUPPORTED_SASL_MECHANISM = 33
ILLEGAL_SASL_STATE = 34
UNSUPPORTED_VERSION = 35
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_REPLICATION_FACTOR = 38
INVALID_REPLICA_ASSIGNMENT = 39
INVALID_CONFIG = 40
NOT_CONTROLLER = 41
INVALID_REQUEST = 42
UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
POLICY_VIOLATION = 44
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
DUPLICATE_SEQUENCE_NUMBER = 46
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
INVALID_TRANSACTION_TIMEOUT = 50
CONCURRENT_TRANSACTIONS = 51
TRANSACTION_COORDINATOR_FENCED = 52
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
SECURITY_DISABLED = 54
OPERATION_NOT_ATTEMPTED = 55
KAFKA_STORAGE_ERROR = 56
LOG_DIR_NOT_FOUND = 57
SASL_AUTHENTICATION_FAILED = 58
UNKNOWN_PRODUCER_ID = 59
REASSIGNMENT_IN_PROGRESS = 60
DELEGATION_TOKEN_AUTH_DISABLED = 61
DELEGATION_TOKEN_NOT_FOUND = 62
DELEGATION_TOKEN_OWNER_MISMATCH = 63
DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
DELEGATION_TOKEN_EXPIRED = 66
INVALID_PRINCIPAL_TYPE = 67
NON_EMPTY_GROUP = 68
GROUP_ID_NOT_FOUND = 69
FETCH_SESSION_ID_NOT_FOUND = 70
INVALID_FETCH_SESSION_EPOCH = 71
LISTENER_NOT_FOUND = 72
TOPIC_DELETION_DISABLED = 73
FENCED_LEADER_EPOCH = 74
UNKNOWN_LEADER_EPOCH = 75
UNSUPPORTED_COMPRESSION_TYPE = 76
STALE_BROKER_EPOCH = 77
OFFSET_NOT_AVAILABLE = 78
MEMBER_ID_REQUIRED = 79
PREFERRED_LEADER_NOT_AVAILABLE = 80
GROUP_MAX_SIZE_REACHED = 81
FENCED_INSTANCE_ID = 82
ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
ELECTION_NOT_NEEDED = 84
NO_REASSIGNMENT_IN_PROGRESS = 85
GROUP_SUBSCRIBED_TO_TOPIC = 86
INVALID_RECORD = 87
UNSTABLE_OFFSET_COMMIT = 88
THROTTLING_QUOTA_EXCEEDED = 89
PRODUCER_FENCED = 90
RESOURCE_NOT_FOUND = 91
DUPLICATE_RESOURCE = 92
UNACCEPTABLE_CREDENTIAL = 93
INCONSISTENT_VOTER_SET = 94
INVALID_UPDATE_VERSION = 95
FEATURE_UPDATE_FAILED = 96
PRINCIPAL_DESERIALIZATION_FAILURE = 97
SNAPSHOT_NOT_FOUND = 98
POSITION_OUT_OF_RANGE = 99
UNKNOWN_TOPIC_ID = 100
DUPLICATE_BROKER_REGISTRATION = 101
BROKER_ID_NOT_REGISTERED = 102
INCONSISTENT_TOPIC_ID = 103
INCONSISTENT_CLUSTER_ID = 104
TRANSACTIONAL_ID_NOT_FOUND = 105
FETCH_SESSION_TOPIC_ID_ERROR = 106
INELIGIBLE_REPLICA = 107
NEW_LEADER_ELECTED = 108
OFFSET_MOVED_TO_TIERED_STORAGE = 109
FENCED_MEMBER_EPOCH = 110
UNRELEASED_INSTANCE_ID = 111
UNSUPPORTED_ASSIGNOR = 112
STALE_MEMBER_EPOCH = 113
MISMATCHED_ENDPOINT_TYPE = 114
UNSUPPORTED_ENDPOINT_TYPE = 115
UNKNOWN_CONTROLLER_ID = 116
UNKNOWN_SUBSCRIPTION_ID = 117
TELEMETRY_TOO_LARGE = 118
INVALID_REGISTRATION = 119
TRANSACTION_ABORTABLE = 120
INVALID_RECORD_STATE = 121
SHARE_SESSION_NOT_FOUND = 122
INVALID_SHARE_SESSION_EPOCH = 123
FENCED_STATE_EPOCH = 124
INVALID_VOTER_KEY = 125
DUPLICATE_VOTER = 126
VOTER_NOT_FOUND = 127
INVALID_REGULAR_EXPRESSION = 128
REBOOTSTRAP_REQUIRED = 129
STREAMS_INVALID_TOPOLOGY = 130
STREAMS_INVALID_TOPOLOGY_EPOCH = 131
STREAMS_TOPOLOGY_FENCED = 132
SHARE_SESSION_LIMIT_REACHED = 133

_RETRIABLE = frozenset(
    (
        CORRUPT_MESSAGE,
        UNKNOWN_TOPIC_OR_PARTITION,
        LEADER_NOT_AVAILABLE,
        NOT_LEADER_OR_FOLLOWER,
        REQUEST_TIMED_OUT,
        REPLICA_NOT_AVAILABLE,
        NETWORK_EXCEPTION,
        COORDINATOR_LOAD_IN_PROGRESS,
        COORDINATOR_NOT_AVAILABLE,
        NOT_COORDINATOR,
        NOT_ENOUGH_REPLICAS,
        NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        NOT_CONTROLLER,
        CONCURRENT_TRANSACTIONS,
        KAFKA_STORAGE_ERROR,
        FETCH_SESSION_ID_NOT_FOUND,
        INVALID_FETCH_SESSION_EPOCH,
        LISTENER_NOT_FOUND,
        FENCED_LEADER_EPOCH,
        UNKNOWN_LEADER_EPOCH,
        OFFSET_NOT_AVAILABLE,
        PREFERRED_LEADER_NOT_AVAILABLE,
        ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ELECTION_NOT_NEEDED,
        UNSTABLE_OFFSET_COMMIT,
        THROTTLING_QUOTA_EXCEEDED,
        UNKNOWN_TOPIC_ID,
        INCONSISTENT_TOPIC_ID,
        FETCH_SESSION_TOPIC_ID_ERROR,
        SHARE_SESSION_NOT_FOUND,
        INVALID_SHARE_SESSION_EPOCH,
        SHARE_SESSION_LIMIT_REACHED,
    )
)

_NAMES = {code: name for name, code in globals().items() if name.isupper() and name[0] != "_"}

_MESSAGES = {
    UNKNOWN_SERVER_ERROR: "the broker met an unexpected condition",
    NONE: "no error",
    OFFSET_OUT_OF_RANGE: "the offset is outside the partition's log",
    CORRUPT_MESSAGE: "the record batch is damaged or malformed",
    UNKNOWN_TOPIC_OR_PARTITION: "no such topic or partition on this broker",
    INVALID_FETCH_SIZE: "the fetch size is not valid",
    LEADER_NOT_AVAILABLE: "the partition has no leader at the moment",
    NOT_LEADER_OR_FOLLOWER: "this broker is not the leader, or not a replica, of the partition",
    REQUEST_TIMED_OUT: "the request was not completed in time",
    BROKER_NOT_AVAILABLE: "the broker is not available",
    REPLICA_NOT_AVAILABLE: "the replica is not available",
    MESSAGE_TOO_LARGE: "the record batch is larger than max.message.bytes",
    STALE_CONTROLLER_EPOCH: "the controller epoch is out of date",
    OFFSET_METADATA_TOO_LARGE: "the metadata of a committed offset is too long",
    NETWORK_EXCEPTION: "the connection was lost before a response came",
    COORDINATOR_LOAD_IN_PROGRESS: "the coordinator is still loading its state",
    COORDINATOR_NOT_AVAILABLE: "the coordinator is not available",
    NOT_COORDINATOR: "this broker is not the coordinator",
    INVALID_TOPIC_EXCEPTION: "the topic name is not allowed here",
    RECORD_LIST_TOO_LARGE: "the record batch is larger than a log segment",
    NOT_ENOUGH_REPLICAS: "too few replicas are in sync",
    NOT_ENOUGH_REPLICAS_AFTER_APPEND: "written, but then too few replicas were in sync",
    INVALID_REQUIRED_ACKS: "acks must be -1, 0 or 1",
    ILLEGAL_GENERATION: "the generation id is not the group's",
    INCONSISTENT_GROUP_PROTOCOL: "no protocol that every member of the group supports",
    INVALID_GROUP_ID: "the group id is not valid",
    UNKNOWN_MEMBER_ID: "the group does not know this member",
    INVALID_SESSION_TIMEOUT: "the session timeout is outside the broker's limits",
    REBALANCE_IN_PROGRESS: "the group is rebalancing",
    INVALID_COMMIT_OFFSET_SIZE: "the size of the committed offset is not valid",
    TOPIC_AUTHORIZATION_FAILED: "not authorized for the topic",
    GROUP_AUTHORIZATION_FAILED: "not authorized for the group",
    CLUSTER_AUTHORIZATION_FAILED: "not authorized for the cluster",
    INVALID_TIMESTAMP: "a record's timestamp is outside the allowed range",
    UNSUPPORTED_SASL_MECHANISM: "this SASL mechanism is not enabled",
    ILLEGAL_SASL_STATE: "not a request for this stage of the SASL exchange",
    UNSUPPORTED_VERSION: "this version is not supported",
    TOPIC_ALREADY_EXISTS: "a topic of this name exists",
    INVALID_PARTITIONS: "the number of partitions is not valid",
    INVALID_REPLICATION_FACTOR: "the replication factor is below 1 or above the number of brokers",
    INVALID_REPLICA_ASSIGNMENT: "the replica assignment is not valid",
    INVALID_CONFIG: "the configuration is not valid",
    NOT_CONTROLLER: "this broker is not the active controller",
    INVALID_REQUEST: "the request is not well formed",
    UNSUPPORTED_FOR_MESSAGE_FORMAT: "the log's record format does not support this request",
    POLICY_VIOLATION: "refused by the configured policy",
    OUT_OF_ORDER_SEQUENCE_NUMBER: "the producer's sequence number has a gap",
    DUPLICATE_SEQUENCE_NUMBER: "the producer's sequence number was seen before",
    INVALID_PRODUCER_EPOCH: "the producer epoch is out of date",
    INVALID_TXN_STATE: "the transaction is not in a state that allows this",
    INVALID_PRODUCER_ID_MAPPING: "the producer id does not belong to this transactional id",
    INVALID_TRANSACTION_TIMEOUT: "the transaction timeout is outside the broker's limits",
    CONCURRENT_TRANSACTIONS: "another operation on this transaction is under way",
    TRANSACTION_COORDINATOR_FENCED: "the transaction coordinator has been replaced",
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "not authorized for the transactional id",
    SECURITY_DISABLED: "no authorizer is configured",
    OPERATION_NOT_ATTEMPTED: "not attempted, as another part of the request failed",
    KAFKA_STORAGE_ERROR: "the log directory has failed",
    LOG_DIR_NOT_FOUND: "no such log directory",
    SASL_AUTHENTICATION_FAILED: "authentication failed",
    UNKNOWN_PRODUCER_ID: "the producer id is not known",
    REASSIGNMENT_IN_PROGRESS: "a reassignment of the partition is under way",
    DELEGATION_TOKEN_AUTH_DISABLED: "delegation tokens are not enabled",
    DELEGATION_TOKEN_NOT_FOUND: "no such delegation token",
    DELEGATION_TOKEN_OWNER_MISMATCH: "the principal neither owns nor may renew the token",
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "delegation tokens can't be requested on this connection",
    DELEGATION_TOKEN_AUTHORIZATION_FAILED: "not authorized for the delegation token",
    DELEGATION_TOKEN_EXPIRED: "the delegation token has expired",
    INVALID_PRINCIPAL_TYPE: "the principal type is not supported",
    NON_EMPTY_GROUP: "the group still has members",
    GROUP_ID_NOT_FOUND: "no such group",
    FETCH_SESSION_ID_NOT_FOUND: "no such fetch session",
    INVALID_FETCH_SESSION_EPOCH: "the fetch session epoch is not the expected one",
    LISTENER_NOT_FOUND: "the leader has no listener of this name",
    TOPIC_DELETION_DISABLED: "topic deletion is switched off",
    FENCED_LEADER_EPOCH: "the leader epoch is older than the broker's",
    UNKNOWN_LEADER_EPOCH: "the leader epoch is newer than the broker's",
    UNSUPPORTED_COMPRESSION_TYPE: "the client's version does not know this compression type",
    STALE_BROKER_EPOCH: "the broker epoch is out of date",
    OFFSET_NOT_AVAILABLE: "the new leader does not know its high watermark yet",
    MEMBER_ID_REQUIRED: "join again with the member id given here",
    PREFERRED_LEADER_NOT_AVAILABLE: "the preferred leader is not available",
    GROUP_MAX_SIZE_REACHED: "the group is full",
    FENCED_INSTANCE_ID: "another member has taken this group instance id",
    ELIGIBLE_LEADERS_NOT_AVAILABLE: "no eligible leader is available",
    ELECTION_NOT_NEEDED: "the partition needs no election",
    NO_REASSIGNMENT_IN_PROGRESS: "no reassignment of the partition is under way",
    GROUP_SUBSCRIBED_TO_TOPIC: "the group is subscribed to the topic",
    INVALID_RECORD: "a record failed validation",
    UNSTABLE_OFFSET_COMMIT: "offsets of an open transaction are pending",
    THROTTLING_QUOTA_EXCEEDED: "the quota for this kind of request is used up",
    PRODUCER_FENCED: "a newer producer uses this transactional id",
    RESOURCE_NOT_FOUND: "no such resource",
    DUPLICATE_RESOURCE: "the request names a resource twice",
    UNACCEPTABLE_CREDENTIAL: "the credential is not acceptable",
    INCONSISTENT_VOTER_SET: "not the expected set of voters",
    INVALID_UPDATE_VERSION: "the feature version is not valid",
    FEATURE_UPDATE_FAILED: "the features could not be updated",
    PRINCIPAL_DESERIALIZATION_FAILURE: "a forwarded principal could not be read",
    SNAPSHOT_NOT_FOUND: "no such snapshot",
    POSITION_OUT_OF_RANGE: "the position is outside the snapshot",
    UNKNOWN_TOPIC_ID: "no topic with this id on this broker",
    DUPLICATE_BROKER_REGISTRATION: "a broker with this id is registered",
    BROKER_ID_NOT_REGISTERED: "no broker with this id is registered",
    INCONSISTENT_TOPIC_ID: "the topic id is not the log's",
    INCONSISTENT_CLUSTER_ID: "the cluster id is another one",
    TRANSACTIONAL_ID_NOT_FOUND: "no such transactional id",
    FETCH_SESSION_TOPIC_ID_ERROR: "topic names and topic ids mixed in one fetch session",
    INELIGIBLE_REPLICA: "a replica of the new ISR is not eligible",
    NEW_LEADER_ELECTED: "the change was made, and the leader has changed with it",
    OFFSET_MOVED_TO_TIERED_STORAGE: "the offset is in tiered storage",
    FENCED_MEMBER_EPOCH: "the member epoch is fenced; give up all partitions and join again",
    UNRELEASED_INSTANCE_ID: "another member still has this instance id",
    UNSUPPORTED_ASSIGNOR: "the group does not support this assignor",
    STALE_MEMBER_EPOCH: "the member epoch is out of date",
    MISMATCHED_ENDPOINT_TYPE: "the endpoint is of another type",
    UNSUPPORTED_ENDPOINT_TYPE: "endpoints of this type are not supported",
    UNKNOWN_CONTROLLER_ID: "no controller with this id",
    UNKNOWN_SUBSCRIPTION_ID: "the telemetry subscription is not known or out of date",
    TELEMETRY_TOO_LARGE: "the telemetry is too large",
    INVALID_REGISTRATION: "the registration is not valid",
    TRANSACTION_ABORTABLE: "the transaction can only be aborted",
    INVALID_RECORD_STATE: "the record is not in a state that allows this acknowledgement",
    SHARE_SESSION_NOT_FOUND: "no such share session",
    INVALID_SHARE_SESSION_EPOCH: "the share session epoch is not the expected one",
    FENCED_STATE_EPOCH: "the state epoch of the share group is another one",
    INVALID_VOTER_KEY: "the voter's key is another one",
    DUPLICATE_VOTER: "the voter is already in the set",
    VOTER_NOT_FOUND: "the voter is not in the set",
    INVALID_REGULAR_EXPRESSION: "the regular expression is not valid",
    REBOOTSTRAP_REQUIRED: "the client's metadata is out of date; bootstrap again",
    STREAMS_INVALID_TOPOLOGY: "the streams topology is not valid",
    STREAMS_INVALID_TOPOLOGY_EPOCH: "the streams topology epoch is not valid",
    STREAMS_TOPOLOGY_FENCED: "the streams topology epoch is out of date",
    SHARE_SESSION_LIMIT_REACHED: "no more share sessions are allowed",
}


def name_of(code: int) -> str:
    """Kafka's name of a code, for logs; its number if it is not known."""
    return _NAMES.get(code, str(code))


def message_of(code: int) -> str:
    """One short line for people; the name of a code that is not known."""
    return _MESSAGES.get(code, name_of(code))


def is_retriable(code: int) -> bool:
    """Whether a client may try again without asking anybody."""
    return code in _RETRIABLE
