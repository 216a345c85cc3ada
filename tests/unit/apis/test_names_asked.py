"""Whom a request of a coordinator is about: its answer waits for what their logs hold."""

from typing import Any

import pytest

from shmbroker.apis import table
from shmbroker.wire import api_keys, codec

ONE = {"group_id": "g"}
ID = {"transactional_id": "t"}
BODIES: dict[str, list[tuple[range, dict[str, Any], list[str] | None]]] = {
    "OffsetCommit": [(range(2, 11), ONE, ["g"])],
    "OffsetFetch": [
        (range(1, 8), ONE, ["g"]),
        (range(8, 11), {"groups": [{"group_id": "g"}, {"group_id": "h"}]}, ["g", "h"]),
    ],
    "JoinGroup": [(range(10), ONE, ["g"])],
    "Heartbeat": [(range(5), ONE, ["g"])],
    "LeaveGroup": [(range(6), ONE, ["g"])],
    "SyncGroup": [(range(6), ONE, ["g"])],
    "DescribeGroups": [
        (range(7), {"groups": ["g", "h"]}, ["g", "h"]),
        (range(7), {"groups": []}, []),
    ],
    "ListGroups": [(range(6), {}, None)],
    "TxnOffsetCommit": [(range(6), ONE | ID, ["g"])],
    "DeleteGroups": [(range(3), {"groups_names": ["g", "h"]}, ["g", "h"])],
    "OffsetDelete": [(range(1), ONE, ["g"])],
    "ConsumerGroupHeartbeat": [(range(2), ONE, ["g"])],
    "ConsumerGroupDescribe": [(range(2), {"group_ids": ["g", "h"]}, ["g", "h"])],
    "InitProducerId": [
        (range(7), ID, ["t"]),
        (range(7), {"transactional_id": None}, []),
    ],
    "AddPartitionsToTxn": [
        (range(4), {"v3_and_below_transactional_id": "t"}, ["t"]),
        (range(4, 6), {"transactions": [ID, {"transactional_id": "u"}]}, ["t", "u"]),
        (range(4, 6), {"transactions": []}, []),
    ],
    "AddOffsetsToTxn": [(range(5), ID | ONE, ["t"])],
    "EndTxn": [(range(6), ID, ["t"])],
    "DescribeTransactions": [
        (range(1), {"transactional_ids": ["t", "u"]}, ["t", "u"]),
        (range(1), {"transactional_ids": []}, []),
    ],
    "ListTransactions": [(range(3), {}, None)],
}
NAMES_OF = table.GROUPS_OF | table.TRANSACTIONS_OF


@pytest.mark.parametrize("key", NAMES_OF, ids=api_keys.name_of)
def test_names_are_found_in_every_version(key: int) -> None:
    name, first, last, _ = api_keys.TABLE[key]
    found = set()
    for versions, body, names in BODIES[name]:
        for version in versions:
            encoded = codec.encode(f"{name}Request", version, body)
            assert NAMES_OF[key](codec.decode_all(f"{name}Request", version, encoded)) == names
            found.add(version)
    assert found == set(range(first, last + 1))
