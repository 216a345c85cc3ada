"""What a backup asks, where brokers are down and topics come meanwhile."""

from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.backup.asking import FamilyClient
from shmbroker.client.faults import ClusterFault
from shmbroker.client.reader.asking import Consumer


def topic(name: str, leader: int = 1) -> Any:
    return SimpleNamespace(
        name=name, topic_id=name.encode(), partitions=[0], leader_of=lambda index: leader
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


class Answering:
    """The control socket of a broker that has an empty log of each partition."""

    def send(self, _api_key: int, body: Any, _version: int) -> None:
        self.topic_ids = [each["topic_id"] for each in body["topics"]]

    def receive(self) -> Any:
        row = {
            "error_code": 0, "partition": 0, "leader_epoch": 0, "log_start_offset": 0,
            "high_watermark": 0, "segments": [], "directory": "",
        }  # fmt: skip
        rows = [row | {"topic_id": each} for each in self.topic_ids]
        return {"error_code": 0, "looked_ns": 1, "stopped_until_ns": 2, "partitions": rows}

    def close(self) -> None:
        """Nothing is open."""


def test_who_has_no_leader_when_the_time_is_up_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asking = client()
    topics = [topic("a"), topic("b", -1), topic("c", 2), topic("d", -1)]
    monkeypatch.setattr(asking, "_all_topics", lambda: topics)
    monkeypatch.setattr(asking, "_connect_control", Answering)
    early = asking.list_held({(each.topic_id, 0) for each in topics})
    assert (set(early), asking.left_out) == ({(b"a", 0), (b"c", 0)}, {})
    assert set(asking.cut({})) == set(early)
    assert asking.left_out == {(b"b", 0): "b-0", (b"d", 0): "d-0"}


def test_who_gets_a_leader_in_time_is_in_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    asking = client()
    seen = iter([-1, 1, 1])
    monkeypatch.setattr(asking, "timeout_s", 60)
    monkeypatch.setattr(asking, "_all_topics", lambda: [topic("a"), topic("b", next(seen))])
    monkeypatch.setattr(asking, "_connect_control", Answering)
    assert set(asking.cut({})) == {(b"a", 0), (b"b", 0)}
    assert asking.left_out == {}


def test_other_faults_of_a_cut_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    asking = client()

    def refused() -> Any:
        raise ConnectionRefusedError("nobody there")

    monkeypatch.setattr(asking, "_all_topics", lambda: [topic("a")])
    monkeypatch.setattr(asking, "_connect_control", refused)
    with pytest.raises(ClusterFault, match="nobody there"):
        asking.cut({})


def quorum(*ends: int) -> Any:
    """A client in whose cluster brokers 2 and 3 are up, of these ends of controllers' logs; 7 is
    committed, and controller 1 is the active one."""
    asking = client()
    voters = [
        {"replica_id": number, "log_end_offset": end} for number, end in enumerate(ends, start=1)
    ]
    row = {"error_code": 0, "leader_id": 1, "high_watermark": 7, "current_voters": voters}
    answer = {"error_code": 0, "topics": [{"partitions": [row]}]}
    asking.cluster.ask_any = lambda *_: answer
    asking.cluster.brokers = {2: ("127.0.0.1", 1), 3: ("127.0.0.1", 2)}
    asking._topics = lambda _names: {}
    return asking


@pytest.mark.parametrize(
    ("ends", "up", "asked"),
    [((9, 9, 9), {1, 2, 3}, 1), ((9, 9, 9), {2, 3}, 2), ((9, 6, 7), {2, 3}, 3)],
    ids=["active", "another", "with-all"],
)
def test_metadata_is_read_beside_a_broker_that_is_up(
    ends: tuple[int, ...], up: set[int], asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller is another process than the broker beside it, and leads on without it."""
    asking = quorum(*ends)
    asking.cluster.brokers = dict.fromkeys(up, ("127.0.0.1", 1))

    class FoundFault(Exception):
        """A broker was asked."""

    def ask(broker_id: int, *_: object) -> Any:
        raise FoundFault(broker_id)

    monkeypatch.setattr(asking, "_ask", ask)
    with pytest.raises(FoundFault, match=f"^{asked}$"):
        asking.image("cluster")


def test_brokers_beside_whole_metadata_are_waited_for() -> None:
    with pytest.raises(ClusterFault, match="broker 1, which has all metadata beside it, is down"):
        quorum(9, 6, 6).image("cluster")
