"""AlterReplicaLogDirs: what a broker says of replicas here, elsewhere and nowhere, and that it
looks through a topic's partitions once, however often it is named."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from shmbroker.apis.gateway import alter_replica_log_dirs
from shmbroker.wire import error_codes


class Partitions:
    """A topic's partitions 0 to 4, the last on broker 2, the others on 1; counts how often they are
    looked through."""

    def __init__(self) -> None:
        self.looks = 0

    def __iter__(self) -> Iterator[SimpleNamespace]:
        self.looks += 1
        rows = [(0, (1,)), (1, (1, 2)), (2, (1,)), (3, (1,)), (4, (2,))]
        return iter([SimpleNamespace(partition=index, replicas=ids) for index, ids in rows])


def codes_of(partitions: Partitions, dirs: list[dict[str, Any]]) -> list[list[int]]:
    """What broker 1, whose log directory is /here, answers; a row for each topic that is named."""
    worker = SimpleNamespace(
        image=SimpleNamespace(topics_by_name={"t": SimpleNamespace(partitions=partitions)}),
        identity_of=lambda broker_id: {"log.dirs": "/here"},
    )
    listener = SimpleNamespace(broker_id=1)
    request = SimpleNamespace(connection=SimpleNamespace(listener=listener))
    results = alter_replica_log_dirs.answer(worker, request, {"dirs": dirs})["results"]
    return [[row["error_code"] for row in result["partitions"]] for result in results]


def test_a_topic_that_is_named_often_is_looked_at_once() -> None:
    partitions = Partitions()
    topics = [{"topic": "t", "name": "t", "partitions": [3, 5]}] * 100
    dirs = [{"path": "/here", "topics": topics}, {"path": "/away", "topics": topics}]
    assert codes_of(partitions, dirs) == [[0, 3]] * 100 + [[57, 57]] * 100
    assert partitions.looks == 1


def test_a_replica_of_another_broker_is_not_available_here() -> None:
    """Apache Kafka 4.2.1, asked with two brokers, answers these codes."""
    topics = [{"name": "t", "partitions": [1, 4, 5]}, {"name": "none", "partitions": [0]}]
    assert codes_of(Partitions(), [{"path": "/here", "topics": topics}]) == [
        [
            error_codes.NONE,
            error_codes.REPLICA_NOT_AVAILABLE,
            error_codes.UNKNOWN_TOPIC_OR_PARTITION,
        ],
        [error_codes.UNKNOWN_TOPIC_OR_PARTITION],
    ]
