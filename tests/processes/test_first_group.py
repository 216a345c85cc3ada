"""The first groups of a broker: they come while the partitions of their topic are being opened."""

from shmbroker.testing.broker import Broker
from shmbroker.wire import error_codes
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

OFFSETS_TOPIC = {"topics": [{"name": "__consumer_offsets"}], "allow_auto_topic_creation": False}


def test_who_is_told_the_coordinator_is_not_sent_away_by_it() -> None:
    """librdkafka never asks again for the committed offsets of what was assigned to it."""
    codes = []
    with Broker() as broker, RawClient(broker.address) as first, RawClient(broker.address) as next_:

        def fetch() -> int:
            answer = next_.ask("OffsetFetch", 6, {"group_id": "next", "topics": None})
            codes.append(answer["error_code"])
            return answer["error_code"]

        first.send("FindCoordinator", 4, {"key_type": 0, "coordinator_keys": ["first"]})
        wait_until(
            lambda: not next_.ask("Metadata", 12, OFFSETS_TOPIC)["topics"][0]["error_code"],
            "the topic of the groups",
        )
        found = next_.ask("FindCoordinator", 4, {"key_type": 0, "coordinator_keys": ["next"]})
        assert found["coordinators"][0]["error_code"] == 0
        wait_until(lambda: fetch() == 0, "committed offsets")
        assert first.receive("FindCoordinator", 4)["coordinators"][0]["error_code"] == 0
    assert set(codes) <= {0, error_codes.COORDINATOR_LOAD_IN_PROGRESS}, codes
