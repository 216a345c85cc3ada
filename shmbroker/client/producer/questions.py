"""What a producer asks a cluster before it can send: topics, and a producer id."""

from shmbroker import clock
from shmbroker.client.cluster import Cluster, Topic
from shmbroker.client.faults import LaterFault, RefusedFault, refuse
from shmbroker.client.retries import patiently
from shmbroker.wire import error_codes
from shmbroker.wire.api_keys import INIT_PRODUCER_ID

UNKNOWN_TOPIC_S = 10.0
"""How long a topic may be unknown: it may be under way, made by somebody or by our asking."""


def find_topic(cluster: Cluster, name: str, wait_s: float) -> Topic:
    """A topic, waited for at most `wait_s`; ClusterFault if it is not there."""
    known = cluster.topics.get(name)
    if known is not None:
        return known
    unknown_until_s = clock.monotonic() + UNKNOWN_TOPIC_S

    def ask() -> Topic:
        error = cluster.refresh([name])[name]
        try:
            refuse(error, f"topic {name}")
        except LaterFault as fault:
            is_unknown = error == error_codes.UNKNOWN_TOPIC_OR_PARTITION
            if is_unknown and clock.monotonic() > unknown_until_s:
                raise RefusedFault(str(fault)) from None
            raise
        if name not in cluster.topics:
            raise LaterFault(f"topic {name} has no partitions")
        return cluster.topics[name]

    return patiently(ask, wait_s, f"topic {name} was not there")


def new_producer_id(cluster: Cluster, wait_s: float) -> tuple[int, int]:
    """(producer id, epoch) of its own for an idempotent producer."""
    body = {"transactional_id": None, "transaction_timeout_ms": 60_000}

    def ask() -> tuple[int, int]:
        answer = cluster.ask_any(INIT_PRODUCER_ID, body)
        refuse(answer["error_code"], "a producer id")
        return answer["producer_id"], answer["producer_epoch"]

    return patiently(ask, wait_s, "a producer id was not there")
