"""Requests that change something, their answers, and what the audit log tells of them."""

from typing import Any

PARTITIONS = [{"partition_index": 0}, {"partition_index": 1, "error_code": 3}]
ACL = {
    "resource_type": 2,
    "resource_name": "orders",
    "principal": "User:bob",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
ACL_TEXT = "acl allow User:bob from * READ on topic orders"
ENTITY = [
    {"entity_type": "user", "entity_name": "bob"},
    {"entity_type": "client-id", "entity_name": None},
]
CONFIGS = {
    "resources": [
        {
            "resource_type": 2,
            "resource_name": "t",
            "configs": [
                {"name": "retention.ms", "value": "1"},
                {"name": "x.password", "value": "secret"},
            ],
        },
        {"resource_type": 4, "resource_name": "", "configs": []},
    ]
}
CONFIGS_TOLD = {
    "responses": [
        {"resource_type": 2, "resource_name": "t", "error_code": 0},
        {"resource_type": 4, "resource_name": "", "error_code": 40},
    ]
}
CONFIGS_SAID = [
    ("settings retention.ms, x.password of topic t", 0),
    ("settings  of broker default", 40),
]

CASES: dict[str, tuple[int, dict[str, Any], dict[str, Any], list[tuple[str, int]]]] = {
    # API: (version, request, answer, rows)
    "CreateTopics": (
        7,
        {"topics": [{"name": "a", "num_partitions": 1, "replication_factor": 1}]},
        {"topics": [{"name": "a"}, {"name": "b", "error_code": 36}]},
        [("topic a", 0), ("topic b", 36)],
    ),
    "DeleteTopics": (
        6,
        {"topics": [{"name": "a"}]},
        {
            "responses": [
                {"name": "a"},
                {"name": None, "topic_id": b"\1" * 16, "error_code": 100},
            ]
        },
        [("topic a", 0), ("topic " + "01" * 16, 100)],
    ),
    "DeleteRecords": (
        2,
        {"topics": []},
        {"topics": [{"name": "t", "partitions": PARTITIONS}]},
        [("records of t-0", 0), ("records of t-1", 3)],
    ),
    "WriteTxnMarkers": (
        1,
        {"markers": [{"producer_id": 7, "transaction_result": False, "topics": []}]},
        {"markers": [{"producer_id": 7, "topics": [{"name": "t", "partitions": PARTITIONS}]}]},
        [("abort of producer 7 in t-0", 0), ("abort of producer 7 in t-1", 3)],
    ),
    "CreateAcls": (
        3,
        {"creations": [ACL | {"resource_pattern_type": 3}, ACL | {"resource_pattern_type": 4}]},
        {"results": [{}, {"error_code": 42}]},
        [(ACL_TEXT, 0), (f"{ACL_TEXT} (prefix)", 42)],
    ),
    "DeleteAcls": (
        3,
        {"filters": []},
        {
            "filter_results": [
                {"matching_acls": [ACL | {"pattern_type": 3, "permission_type": 2}]},
                {"error_code": 31, "matching_acls": []},
            ]
        },
        [(ACL_TEXT.replace("allow", "deny"), 0), ("acls of a filter", 31)],
    ),
    "AlterConfigs": (2, CONFIGS, CONFIGS_TOLD, CONFIGS_SAID),
    "IncrementalAlterConfigs": (1, CONFIGS, CONFIGS_TOLD, CONFIGS_SAID),
    "AlterReplicaLogDirs": (
        2,
        {"dirs": []},
        {"results": [{"topic_name": "t", "partitions": PARTITIONS}]},
        [("log directory of t-0", 0), ("log directory of t-1", 3)],
    ),
    "CreatePartitions": (
        3,
        {"topics": []},
        {"results": [{"name": "t", "error_code": 37}]},
        [("partitions of topic t", 37)],
    ),
    "CreateDelegationToken": (
        3,
        {"renewers": []},
        {
            "principal_type": "User",
            "principal_name": "bob",
            "token_requester_principal_type": "User",
            "token_requester_principal_name": "bob",
            "token_id": "t1",
            "hmac": b"secret",
        },
        [("token t1 of User:bob", 0)],
    ),
    "RenewDelegationToken": (
        2,
        {"hmac": b"secret"},
        {"error_code": 62},
        [("time of a token", 62)],
    ),
    "ExpireDelegationToken": (2, {"hmac": b"secret"}, {}, [("end of a token", 0)]),
    "DeleteGroups": (
        2,
        {"groups_names": ["g"]},
        {"results": [{"group_id": "my group", "error_code": 68}]},
        [('group "my group"', 68)],
    ),
    "ElectLeaders": (
        2,
        {"topic_partitions": None},
        {
            "replica_election_results": [
                {"topic": "t", "partition_result": [{"partition_id": 4, "error_code": 84}]}
            ]
        },
        [("leader of t-4", 84)],
    ),
    "AlterPartitionReassignments": (
        1,
        {"topics": []},
        {"error_code": 41, "responses": []},
        [("replicas of", 41)],
    ),
    "OffsetDelete": (
        0,
        {"group_id": "g", "topics": []},
        {"topics": [{"name": "t", "partitions": PARTITIONS}]},
        [("offset in t-0 of group g", 0), ("offset in t-1 of group g", 3)],
    ),
    "AlterClientQuotas": (
        1,
        {"entries": [{"entity": ENTITY, "ops": [{"key": "producer_byte_rate", "value": 1.0}]}]},
        {"entries": [{"entity": ENTITY}]},
        [('quota producer_byte_rate of user bob, client-id "(default)"', 0)],
    ),
    "AlterUserScramCredentials": (
        0,
        {
            "deletions": [],
            "upsertions": [{"name": "bob", "salt": b"secret", "salted_password": b"secret"}],
        },
        {"results": [{"user": "bob", "error_code": 93}]},
        [("password of user bob", 93)],
    ),
    "UpdateFeatures": (
        1,
        {"feature_updates": [{"feature": "group.version", "max_version_level": 1}]},
        {},
        [("feature group.version", 0)],
    ),
    "UnregisterBroker": (0, {"broker_id": 5}, {"error_code": 102}, [("broker 5", 102)]),
    "AddRaftVoter": (1, {"voter_id": 5, "listeners": []}, {}, [("voter 5", 0)]),
    "RemoveRaftVoter": (0, {"voter_id": 5}, {"error_code": 126}, [("voter 5", 126)]),
}
