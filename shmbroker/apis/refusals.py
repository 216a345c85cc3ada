"""The answer to a request that no active controller can answer: NOT_CONTROLLER, where the API has
room for an error. Clients look for the controller again and repeat what they want, as with Kafka
when its controller changes. Pure.
"""

from __future__ import annotations

from shmbroker.wire.error_codes import NOT_CONTROLLER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MESSAGE = "The active controller changes; try again."


def not_controller(api_name: str, api_version: int, request: dict[str, Any]) -> dict[str, Any]:
    """The response to a request that was, or may have been, in vain."""
    error = {"error_code": NOT_CONTROLLER}
    told = error | {"error_message": MESSAGE}
    if api_name == "CreateTopics":
        return {"topics": [{"name": topic["name"]} | told for topic in request["topics"]]}
    if api_name == "DeleteTopics":
        message = told if api_version >= 5 else error
        topics = request["topics"] or [{"name": name} for name in request["topic_names"]]
        return {"responses": [dict(topic) | message for topic in topics]}
    if api_name == "CreatePartitions":
        return {"results": [{"name": topic["name"]} | told for topic in request["topics"]]}
    if api_name in ("AlterConfigs", "IncrementalAlterConfigs"):
        keys = ("resource_type", "resource_name")
        rows = [{key: row[key] for key in keys} | told for row in request["resources"]]
        return {"responses": rows}
    if api_name == "ElectLeaders":
        return (error if api_version >= 1 else {}) | {"replica_election_results": []}
    if api_name in ("AlterPartition", "DescribeQuorum", "TellLogEnds"):
        return error | {"topics": []}
    if api_name == "AlterPartitionReassignments":
        return told | {"responses": []}
    if api_name == "ListPartitionReassignments":
        return told | {"topics": []}
    if api_name in ("AddRaftVoter", "RemoveRaftVoter"):
        return told
    if api_name == "UpdateFeatures":
        return told | {"results": []}
    return error
