"""ListTransactions (key 66): the transactional ids that this broker coordinates (KIP-664).

Versions: 0-2.
Where: the I/O worker of the connection's port.
Version notes: 1 duration (KIP-994); 2 a pattern of the id (KIP-1152).
"""

from typing import Any

from shmbroker.apis.contexts import BrokerContext
from shmbroker.groups.consumer.topic_regex import fault_of, matching
from shmbroker.groups.transactions.transaction import STATE_NAMES
from shmbroker.ipc.operation_adapter import STEP_ROWS, Call, Steps
from shmbroker.wire import error_codes

API_KEY = 66
NAME = "ListTransactions"
VERSION_MIN = 0
VERSION_MAX = 2
VERSION_MIN_ADVERTISED = 0


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> Steps:
    """The transactions that pass all filters; an empty one lets all pass, and so
    does a negative duration."""
    pattern = body.get("transactional_id_pattern") or ""
    if pattern and fault_of(pattern) is not None:
        return {"error_code": error_codes.INVALID_REGULAR_EXPRESSION}
    error, found = broker.transactions.all_known()
    states, producer_ids = set(body["state_filters"]), set(body["producer_id_filters"])
    duration_ms = body.get("duration_filter", -1)
    now_ms = broker.now_ms()
    rows: list[dict[str, Any]] = []
    for at in range(0, len(found), STEP_ROWS):
        if at:
            yield
        some = found[at : at + STEP_ROWS]
        names = matching([pattern], [name for name, _ in some])[pattern] if pattern else None
        rows += [
            {
                "transactional_id": name,
                "producer_id": known.producer_id,
                "transaction_state": STATE_NAMES[known.state],
            }
            for name, known in some
            if (not states or STATE_NAMES[known.state] in states)
            and (not producer_ids or known.producer_id in producer_ids)
            and (duration_ms < 0 or now_ms - known.start_ms > duration_ms)
            and (names is None or name in names)
        ]
    return {
        "error_code": error,
        "unknown_state_filters": sorted(states.difference(STATE_NAMES.values())),
        "transaction_states": rows,
    }
