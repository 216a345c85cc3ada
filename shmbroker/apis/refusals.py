"""The answer to a request that no active controller can answer: NOT_CONTROLLER, where the API has
room for an error. Clients look for the controller again and repeat what they want, as with Kafka
when its controller changes. `not_controller` of each module in `apis.controller` puts it there.
"""

from shmbroker.wire.error_codes import NOT_CONTROLLER, SECURITY_DISABLED

MESSAGE = "The active controller changes; try again."

ERROR: dict[str, int | str] = {"error_code": NOT_CONTROLLER}
"""What an answer has that has no room for a message."""
TOLD = ERROR | {"error_message": MESSAGE}
"""What an answer has that has."""
NO_AUTHORIZER = {
    "error_code": SECURITY_DISABLED,
    "error_message": "No Authorizer is configured.",
}
"""ACLs mean nothing where nobody asks for them."""
