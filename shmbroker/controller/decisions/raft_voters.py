"""AddRaftVoter and RemoveRaftVoter: always refused, as the set of voters is fixed. Pure.

The log is at level 0 of the feature kraft.version: the voters are the controllers that the family
was started with (`--controllers`), and no VotersRecord says otherwise. Apache Kafka with
`controller.quorum.voters` answers the same, after the same checks in the same order.

Source: Kafka's `KafkaRaftClient.handleAddVoterRequest`, `handleRemoveVoterRequest`; KIP-853.
"""

from __future__ import annotations

from shmbroker.ids import ZERO_UUID
from shmbroker.metadata.messages import fitting
from shmbroker.wire.error_codes import (
    INCONSISTENT_CLUSTER_ID,
    INVALID_REQUEST,
    UNSUPPORTED_VERSION,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LISTENER = "CONTROLLER"
"""Where Kafka's controllers listen by default; ours are asked over Unix sockets."""


def add_raft_voter(request: dict[str, Any], cluster_id: str) -> dict[str, Any]:
    """The response to AddRaftVoter v0–1."""
    if complaint := _complaint(request, cluster_id, "Add"):
        return complaint
    listeners = {row["name"].upper(): row for row in request["listeners"]}
    if LISTENER not in listeners:
        points = ", ".join(
            f"ListenerName({name})={row['host']}/<unresolved>:{row['port']}"
            for name, row in listeners.items()
        )
        return _refused(
            INVALID_REQUEST,
            f"Add voter request didn't include the endpoint (Endpoints(endpoints={{{points}}})) "
            f"for the default listener ListenerName({LISTENER})",
        )
    return _unsupported("adding")


def remove_raft_voter(request: dict[str, Any], cluster_id: str) -> dict[str, Any]:
    """The response to RemoveRaftVoter v0."""
    return _complaint(request, cluster_id, "Remove") or _unsupported("removing")


def _complaint(request: dict[str, Any], cluster_id: str, what: str) -> dict[str, Any] | None:
    given = request["cluster_id"]
    if given is not None and given != cluster_id:
        message = f'The given id "{given}" doesn\'t match the cluster id "{cluster_id}"'
        return _refused(INCONSISTENT_CLUSTER_ID, message)
    if request["voter_id"] < 0 or request["voter_directory_id"] == ZERO_UUID:
        message = f"{what} voter request didn't include a valid voter"
        return _refused(INVALID_REQUEST, message)
    return None


def _unsupported(doing: str) -> dict[str, Any]:
    return _refused(
        UNSUPPORTED_VERSION,
        f"Cluster doesn't support {doing} voter because the kraft.version feature is 0",
    )


def _refused(error: int, message: str) -> dict[str, Any]:
    return {"error_code": error, "error_message": fitting(message)}
