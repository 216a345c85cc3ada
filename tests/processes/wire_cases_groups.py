"""What requests in turn do to a group, where walks at random came to other answers than Kafka's."""

from typing import Any

from tests.processes.wire_cases import Answers, scenario
from tests.processes.wire_cases_consumers import Talk
from tests.processes.wire_cases_transactions import Producer, find
from tests.processes.wire_side import Side
from tests.support.raw_client import RawClient

REBALANCE_IN_PROGRESS = 27


@scenario
def group_elections(side: Side) -> Answers:
    """As many votes for one protocol as for the other."""

    for names in (
        ("range", "roundrobin"), ("range", "cooperative-sticky"), ("roundrobin", "sticky"),
        ("default", "eager"), ("a", "b"), ("ä", "\U0001f40d"), ("", "x"),
    ):  # fmt: skip
        for order in (names, names[::-1]):
            group = side.name("votes-" + "-".join(map(ascii, order)))
            find(side, group, 0)
            with RawClient(side.address) as first, RawClient(side.address) as second:
                member_id = first.ask("JoinGroup", 3, _joining(group, "", order))["member_id"]
                second.send("JoinGroup", 3, _joining(group, "", order[::-1]))
                # The second waits for the first, which has to come to a group that knows of both.
                beat = {"group_id": group, "generation_id": 1, "member_id": member_id}
                while first.ask("Heartbeat", 3, beat)["error_code"] != REBALANCE_IN_PROGRESS:
                    pass
                chosen = first.ask("JoinGroup", 3, _joining(group, member_id, order))
                other = second.receive("JoinGroup", 3)
            both = {answer["protocol_name"] for answer in (chosen, other)}
            yield f"{order[0]} before {order[1]}", "-", sorted(both)


@scenario
def group_instances(side: Side) -> Answers:
    """A member of the new protocol that joins again with another instance id."""
    topic = side.topic("t", 2)
    for case in ("stays", "leaves"):
        talk = Talk(side, case, 1)
        yield f"{case}, first instance", 1, talk.join("a", topic, instance_id="i")
        yield f"{case}, second instance", 1, talk.join("a", topic, instance_id="j")
        yield f"{case}, heartbeat", 1, talk.beat("a", 1, instance_id="j")
        if case == "leaves":
            yield f"{case}, gone", 1, talk.beat("a", -1, instance_id="j")
        yield f"{case}, another as the second", 1, talk.join("b", topic, instance_id="j")
        yield f"{case}, another as the first", 1, talk.join("c", topic, instance_id="i")
    yield "leaves, described", 1, talk.described()


@scenario
def group_rebalances(side: Side) -> Answers:
    """Commits by a member that has joined, and has no assignment yet."""
    topic = side.topic("t")
    group = side.name("g")
    find(side, group, 0)
    one = Producer(side, "tx")
    one.ask("AddOffsetsToTxn", 3, one.who(group_id=group))
    row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    with RawClient(side.address) as client:
        joined = client.ask("JoinGroup", 3, _joining(group, "", ("range",)))
        member = {"member_id": joined["member_id"]}
        for generation_id in (-1, 1, 2):
            body = {"group_id": group, "topics": [{"name": topic, "partitions": [row]}]}
            answer = client.ask(
                "OffsetCommit", 8, body | member | {"generation_id_or_member_epoch": generation_id}
            )
            yield f"OffsetCommit of {generation_id}", 8, side.comparable("OffsetCommit", 8, answer)
            for version in (0, 2, 3, 4, 5):
                more = member | {"generation_id": generation_id} if version >= 3 else {}
                answer = one.ask("TxnOffsetCommit", version, one.who() | body | more)
                yield f"TxnOffsetCommit of {generation_id}", version, answer


def _joining(group: str, member_id: str, names: tuple[str, ...]) -> dict[str, Any]:
    return {
        "group_id": group, "session_timeout_ms": 30_000, "rebalance_timeout_ms": 60_000,
        "member_id": member_id, "protocol_type": "some",
        "protocols": [{"name": name, "metadata": b""} for name in names],
    }  # fmt: skip
