"""Metadata and DescribeTopicPartitions, of both brokers."""

from typing import Any

from tests.processes.wire_cases import BAD_NAMES, STRANGER, ZERO, Answers, scenario, versions
from tests.processes.wire_side import Side

# ── Metadata ────────────────────────────────────────────────────────────────────────────────────


@scenario
def metadata(side: Side) -> Answers:
    name = side.topic("one", 2)
    topic_id = side.topics[name]
    other = side.topic("two")

    def ask(version: int, topics: Any, **more: Any) -> Any:
        body = {"topics": topics} | more
        if version >= 4:
            body.setdefault("allow_auto_topic_creation", False)
        answer = side.ask("Metadata", version, body)
        if isinstance(answer, dict):
            rows = answer.get("topics", [])
            rows.sort(key=lambda row: (row.get("name") or "", row.get("topic_id", "")))
        return answer

    def own(answer: dict[str, Any]) -> dict[str, Any]:
        """Without the topics of others on the same broker."""
        known = ("one", "two")
        return answer | {"topics": [row for row in answer["topics"] if row["name"] in known]}

    def named(name: str | None, topic_id: bytes = ZERO) -> dict[str, Any]:
        return {"name": name, "topic_id": topic_id}

    for version in versions("Metadata"):
        yield "one topic", version, ask(version, [named(name)])
        yield "one topic twice", version, ask(version, [named(name), named(name)])
        everything = ask(version, None if version else [])
        yield "all topics", version, own(everything)
        if version:
            yield "no topics", version, ask(version, [])
        if version >= 4:
            unknown = side.name("unknown")
            yield "unknown topic", version, ask(version, [named(unknown)])
            yield "known and unknown", version, ask(version, [named(unknown), named(name)])
        for word, bad in BAD_NAMES.items():
            yield f"name {word}", version, ask(version, [named(bad)])
            if version >= 4:
                answer = ask(version, [named(bad)], allow_auto_topic_creation=True)
                yield f"name {word}, to be created", version, answer
        if version >= 8:
            answer = ask(version, [named(name)], include_topic_authorized_operations=True)
            yield "topic operations", version, answer
        if 8 <= version <= 10:
            answer = ask(version, [named(name)], include_cluster_authorized_operations=True)
            yield "cluster operations", version, answer
        if version >= 10:
            yield "null name", version, ask(version, [named(None)])
            yield "id alone", version, ask(version, [named(None, topic_id)])
            yield "unknown id", version, ask(version, [named(None, STRANGER)])
            yield "name and its id", version, ask(version, [named(name, topic_id)])
            yield "name and another's id", version, ask(version, [named(other, topic_id)])
            yield "name and an unknown id", version, ask(version, [named(name, STRANGER)])
            yield (
                "unknown name and an id",
                version,
                ask(version, [named(side.name("unknown"), topic_id)]),
            )
            yield (
                "one by name, one by id",
                version,
                ask(version, [named(other), named(None, topic_id)]),
            )
            yield (
                "same topic by name and by id",
                version,
                ask(version, [named(name), named(None, topic_id)]),
            )
            yield "id twice", version, ask(version, [named(None, topic_id)] * 2)


@scenario
def metadata_creates(side: Side) -> Answers:
    """A topic that somebody uses is made, with the broker's defaults."""
    for version in versions("Metadata"):
        name = side.name(f"made-{version}")
        body = {"topics": [{"name": name, "topic_id": ZERO}]}
        answer = {}
        for _ in range(500):
            answer = side.ask("Metadata", version, body)
            if not answer["topics"][0].get("error_code"):
                break
        side.learn(name)
        answer = side.ask("Metadata", version, body)
        answer["topics"][0]["name"] = "made"
        if "topic_id" in answer["topics"][0]:
            answer["topics"][0]["topic_id"] = "its id"
        yield "made on use", version, answer
        if version >= 4:
            body = {"topics": [{"name": side.name(f"not-{version}"), "topic_id": ZERO}]}
            body["allow_auto_topic_creation"] = False
            for _ in range(2):
                answer = side.ask("Metadata", version, body)
            answer["topics"][0]["name"] = "not made"
            yield "not made where it is not wanted", version, answer


@scenario
def describe_topic_partitions(side: Side) -> Answers:
    names = {"a": side.topic("a", 3), "b": side.topic("b"), "c": side.topic("c", 2)}

    def ask(topics: str, limit: int = 100, cursor: tuple[str, int] | None = None) -> Any:
        body = {
            "topics": [{"name": names.get(short, side.name(short))} for short in topics],
            "response_partition_limit": limit,
            "cursor": cursor and {"topic_name": side.name(cursor[0]), "partition_index": cursor[1]},
        }
        return side.ask("DescribeTopicPartitions", 0, body)

    yield "three topics", 0, ask("cab")
    yield "one twice", 0, ask("bb")
    yield "unknown", 0, ask("xb")
    for limit in (-1, 0, 1, 2, 3, 4, 5, 6, 2000, 3000):
        yield f"limit {limit}", 0, ask("abc", limit)
    yield "limit and unknown behind", 0, ask("bx", 1)
    yield "limit and unknown before", 0, ask("ax", 3)
    for cursor in (
        ("a", 0), ("a", 1), ("a", 2), ("a", 3), ("a", 9), ("a", -1), ("b", 0), ("bb", 0), ("c", 1),
        ("d", 0), ("x", 0), ("0", 5),
    ):  # fmt: skip
        yield f"cursor {cursor[0]} {cursor[1]}", 0, ask("abc", 2, cursor)
    for word, bad in BAD_NAMES.items():
        body = {"topics": [{"name": bad}], "response_partition_limit": 2}
        yield f"name {word}", 0, side.ask("DescribeTopicPartitions", 0, body)
    body = {"topics": [], "response_partition_limit": 2000}
    answer = side.ask("DescribeTopicPartitions", 0, body)
    own = [row for row in answer["topics"] if row["name"] in ("a", "b", "c")]
    yield "all topics", 0, {"topics": own}
