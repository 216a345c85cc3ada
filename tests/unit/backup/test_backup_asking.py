"""What a backup asks, where brokers are down and topics come meanwhile."""

from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.backup.asking import FamilyClient
from shmbroker.client.faults import ClusterFault
from shmbroker.client.reader.asking import Consumer


def topic(name: str) -> Any:
    return SimpleNamespace(
        name=name, topic_id=name.encode(), partitions=[0], leader_of=lambda index: 1
    )


def client() -> Any:
    return FamilyClient(Consumer("127.0.0.1:1", timeout_s=0.01))


def test_topic_that_comes_while_brokers_look_is_in_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    asking = client()
    seen = iter([["a"], ["a", "b"], ["a", "b"], ["a", "b"]])
    monkeypatch.setattr(asking, "_all_topics", lambda: [topic(name) for name in next(seen)])
    listed = lambda rows, *_: {(each.topic_id, index): each.name for each, index, _ in rows}  # noqa: E731
    monkeypatch.setattr(asking, "_listed", listed)
    assert asking.cut({}) == {(b"a", 0): "a", (b"b", 0): "b"}


def test_topic_that_goes_meanwhile_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    asking = client()
    seen = iter([["a", "b"], ["a"]])
    monkeypatch.setattr(asking, "_all_topics", lambda: [topic(name) for name in next(seen)])
    listed = lambda rows, *_: {(each.topic_id, index): each.name for each, index, _ in rows}  # noqa: E731
    monkeypatch.setattr(asking, "_listed", listed)
    assert set(asking.cut({})) == {(b"a", 0), (b"b", 0)}


def test_broker_of_the_controller_that_is_down_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its broker starts again; the controller is another process, and leads on."""
    asking = client()
    row = {"error_code": 0, "leader_id": 1, "high_watermark": 9}
    answer = {"error_code": 0, "topics": [{"partitions": [row]}]}
    monkeypatch.setattr(asking.cluster, "ask_any", lambda *_: answer)
    asked = []
    monkeypatch.setattr(asking, "directories", lambda: asked.append(1) or {2: "/node-2"})
    with pytest.raises(ClusterFault, match="broker 1, which has the controller, is down"):
        asking.image("cluster")
    assert asked
