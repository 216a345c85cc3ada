"""NOT_CONTROLLER for every request that the controller answers, in every version."""

import pytest

from shmbroker.apis import table
from shmbroker.apis.contexts import ControllerApi
from shmbroker.wire import codec
from shmbroker.wire.error_codes import NOT_CONTROLLER
from tests.support.unknown_keys import unknown_keys

ROWS = [
    pytest.param(module, version, id=f"{module.NAME}-{version}")
    for module in table.IN_CONTROLLER + table.OF_BROKERS
    for version in range(module.VERSION_MIN, module.VERSION_MAX + 1)
]
REQUESTS = {
    "AlterUserScramCredentials": {"deletions": [{"name": "u", "mechanism": 1}]},
    "CreateTopics": {
        "topics": [{"name": "t", "num_partitions": 1, "replication_factor": 1}],
        "timeout_ms": 1,
    },
    "CreatePartitions": {"topics": [{"name": "t", "count": 2}], "timeout_ms": 1},
    "CreateAcls": {
        "creations": [
            {
                "resource_type": 2,
                "resource_name": "t",
                "principal": "User:x",
                "host": "*",
                "operation": 3,
                "permission_type": 3,
            }
        ]
    },
    "DeleteAcls": {
        "filters": [{"resource_type_filter": 1, "operation": 1, "permission_type": 1}],
    },
    "AlterClientQuotas": {
        "entries": [{"entity": [{"entity_type": "user", "entity_name": "a"}], "ops": []}],
        "validate_only": False,
    },
    "AlterConfigs": {"resources": [{"resource_type": 2, "resource_name": "t", "configs": []}]},
}


def request_of(name: str, version: int) -> dict:
    if name == "DeleteTopics":
        named = {"topics": [{"name": "t"}]} if version >= 6 else {"topic_names": ["t"]}
        return named | {"timeout_ms": 1}
    return REQUESTS.get(name.removeprefix("Incremental"), {})


@pytest.mark.parametrize(("module", "version"), ROWS)
def test_every_answer_says_not_controller(module: ControllerApi, version: int) -> None:
    name = module.NAME
    request = request_of(name, version)
    encoded = codec.encode(name + "Request", version, request)
    decoded = codec.decode_all(name + "Request", version, encoded)
    answer = module.not_controller(version, decoded)
    body = codec.encode(name + "Response", version, answer)
    found = codec.decode_all(name + "Response", version, body)
    places = ("topics", "responses", "results", "filter_results", "entries")
    rows = [found, *(row for place in places for row in found.get(place, ()))]
    errors = {row["error_code"] for row in rows if "error_code" in row} - {0}
    assert errors == ({NOT_CONTROLLER} if (name, version) != ("ElectLeaders", 0) else set())
    assert not unknown_keys(name + "Response", answer)
