"""AlterReplicaLogDirs looks through a topic's partitions once, however often it is named."""

from collections.abc import Iterator
from types import SimpleNamespace

from shmbroker.apis.gateway import alter_replica_log_dirs


class Partitions:
    """Of a topic; counts how often they are looked through."""

    def __init__(self) -> None:
        self.looks = 0

    def __iter__(self) -> Iterator[SimpleNamespace]:
        self.looks += 1
        return iter([SimpleNamespace(partition=index, replicas=(1,)) for index in range(5)])


def test_a_topic_that_is_named_often_is_looked_at_once() -> None:
    partitions = Partitions()
    worker = SimpleNamespace(
        image=SimpleNamespace(topics_by_name={"t": SimpleNamespace(partitions=partitions)}),
        identity_of=lambda broker_id: {"log.dirs": "/here"},
    )
    listener = SimpleNamespace(broker_id=1)
    request = SimpleNamespace(connection=SimpleNamespace(listener=listener))
    topics = [{"topic": "t", "name": "t", "partitions": [4, 5]}] * 100
    body = {"dirs": [{"path": "/here", "topics": topics}, {"path": "/away", "topics": topics}]}
    results = alter_replica_log_dirs.answer(worker, request, body)["results"]
    codes = [[row["error_code"] for row in result["partitions"]] for result in results]
    assert codes == [[0, 3]] * 100 + [[57, 57]] * 100
    assert partitions.looks == 1
