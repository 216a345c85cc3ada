"""The version of each API that is spoken: one for those who ask, one for those who don't.

    PLAIN     to brokers that were not asked what they serve: one request less. Kafka knows all of
              them since 3.0, but DescribeLogDirs, DescribeQuorum and tokens since 3.3
    READING   by readers, who ask first (ApiVersions, `lacking`). Topics are named by their ids, so
              that one that was made again is noticed; all but the last are Apache Kafka's since 3.1

Rule: who builds a request by hand has one version in mind, so there is no range to choose from: a
broker that lacks the version is told by name, and not asked in another.
"""

from collections.abc import Iterable, Mapping

from shmbroker.wire.api_keys import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    ALTER_CLIENT_QUOTAS,
    API_VERSIONS,
    CREATE_ACLS,
    CREATE_DELEGATION_TOKEN,
    DELETE_ACLS,
    DESCRIBE_ACLS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_DELEGATION_TOKEN,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_PRODUCERS,
    DESCRIBE_QUORUM,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    EXPIRE_DELEGATION_TOKEN,
    FETCH,
    FIND_COORDINATOR,
    INCREMENTAL_ALTER_CONFIGS,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    LIST_SEGMENTS,
    LIST_TRANSACTIONS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    PRODUCE,
    RENEW_DELEGATION_TOKEN,
    TXN_OFFSET_COMMIT,
    WRITE_TXN_MARKERS,
)

PLAIN: Mapping[int, int] = {
    PRODUCE: 9,
    FETCH: 12,
    LIST_OFFSETS: 7,
    METADATA: 9,
    FIND_COORDINATOR: 2,
    INIT_PRODUCER_ID: 4,
    CREATE_ACLS: 1,
    DESCRIBE_ACLS: 1,
    DELETE_ACLS: 1,
    DESCRIBE_CLIENT_QUOTAS: 0,
    ALTER_CLIENT_QUOTAS: 0,
    DESCRIBE_CONFIGS: 1,
    DESCRIBE_LOG_DIRS: 4,
    INCREMENTAL_ALTER_CONFIGS: 0,
    OFFSET_DELETE: 0,
    OFFSET_FETCH: 7,
    DESCRIBE_QUORUM: 1,
    DESCRIBE_CLUSTER: 0,
    DESCRIBE_PRODUCERS: 0,
    ADD_PARTITIONS_TO_TXN: 3,
    ADD_OFFSETS_TO_TXN: 3,
    END_TXN: 3,
    TXN_OFFSET_COMMIT: 3,
    WRITE_TXN_MARKERS: 1,
    DESCRIBE_TRANSACTIONS: 0,
    LIST_TRANSACTIONS: 0,
    CREATE_DELEGATION_TOKEN: 3,
    RENEW_DELEGATION_TOKEN: 2,
    EXPIRE_DELEGATION_TOKEN: 2,
    DESCRIBE_DELEGATION_TOKEN: 3,
}

READING: Mapping[int, int] = {
    API_VERSIONS: 3,
    METADATA: 12,
    LIST_OFFSETS: 7,
    FETCH: 13,
    FIND_COORDINATOR: 4,
    OFFSET_COMMIT: 8,
    DESCRIBE_LOG_DIRS: 4,
    LIST_SEGMENTS: 0,
}

_OURS = frozenset([LIST_SEGMENTS])
"""Served by a shmbroker only, on its control socket."""


def lacking(versions: Mapping[int, int], served: Iterable[Mapping[str, int]]) -> int | None:
    """The first API of `versions` that isn't served in its version; `served`: rows of an
    ApiVersions answer."""
    ranges = {row["api_key"]: (row["min_version"], row["max_version"]) for row in served}
    for api_key, version in versions.items():
        low, high = ranges.get(api_key, (0, -1))
        if not low <= version <= high and api_key not in _OURS:
            return api_key
    return None
