"""What is said to who wants other voters; codes and words as Apache Kafka 4.2.1 gave them."""

from typing import Any

import pytest

from shmbroker.controller.decisions.raft_voters import add_raft_voter, remove_raft_voter

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
DIRECTORY_ID = bytes(range(16))
ASKED: dict[str, Any] = {
    "cluster_id": None,
    "voter_id": 4,
    "voter_directory_id": DIRECTORY_ID,
    "listeners": [{"name": "controller", "host": "127.0.0.1", "port": 1}],
}
OTHER_CLUSTER = f'The given id "w" doesn\'t match the cluster id "{CLUSTER_ID}"'
NO_ENDPOINT = (
    "Add voter request didn't include the endpoint (Endpoints(endpoints={%s})) for the default "
    "listener ListenerName(CONTROLLER)"
)
NO_VOTER = "%s voter request didn't include a valid voter"
UNSUPPORTED = "Cluster doesn't support %s voter because the kraft.version feature is 0"


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({}, 35, UNSUPPORTED % "adding"),
        ({"cluster_id": CLUSTER_ID}, 35, UNSUPPORTED % "adding"),
        ({"cluster_id": "w", "voter_id": -1}, 104, OTHER_CLUSTER),
        ({"voter_id": -1, "listeners": []}, 42, NO_VOTER % "Add"),
        ({"voter_directory_id": bytes(16)}, 42, NO_VOTER % "Add"),
        ({"listeners": []}, 42, NO_ENDPOINT % ""),
        (
            {"listeners": [{"name": "X", "host": "h", "port": 1}]},
            42,
            NO_ENDPOINT % "ListenerName(X)=h/<unresolved>:1",
        ),
    ],
)
def test_nobody_is_added(changed: dict[str, Any], error: int, message: str) -> None:
    answer = add_raft_voter(ASKED | changed, CLUSTER_ID)
    assert answer == {"error_code": error, "error_message": message}


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({}, 35, UNSUPPORTED % "removing"),
        ({"cluster_id": "w"}, 104, OTHER_CLUSTER),
        ({"voter_id": -5}, 42, NO_VOTER % "Remove"),
    ],
)
def test_nobody_is_removed(changed: dict[str, Any], error: int, message: str) -> None:
    answer = remove_raft_voter(ASKED | changed, CLUSTER_ID)
    assert answer == {"error_code": error, "error_message": message}
