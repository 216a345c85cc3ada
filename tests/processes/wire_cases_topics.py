"""Topics that are made, grown and deleted, on both brokers."""

from typing import Any

from tests.processes.wire_cases import BAD_NAMES, STRANGER, ZERO, Answers, scenario, versions
from tests.processes.wire_cases_produce import GOOD
from tests.processes.wire_side import Side
from tests.support.raw_client import produce_body

# ── topics made, grown and deleted ──────────────────────────────────────────────────────────────


def creatable(name: str, partitions: int = 1, factor: int = 1, **more: Any) -> dict[str, Any]:
    row = {"name": name, "num_partitions": partitions, "replication_factor": factor}
    if "configs" in more:
        more["configs"] = [{"name": key, "value": value} for key, value in more["configs"].items()]
    if "assignments" in more:
        more["assignments"] = [
            {"partition_index": index, "broker_ids": brokers}
            for index, brokers in more["assignments"]
        ]
    return row | more


@scenario
def create_topics(side: Side) -> Answers:
    there = side.topic("there")

    def ask(version: int, *topics: dict[str, Any], is_dry: bool = True) -> Any:
        body = {"topics": list(topics), "timeout_ms": 20_000, "validate_only": is_dry}
        answer = side.ask("CreateTopics", version, body)
        if isinstance(answer, dict):
            answer.get("topics", []).sort(key=lambda row: row.get("name", ""))
            for row in answer.get("topics", []):
                if "topic_id" in row:
                    row["topic_id"] = "its id"
                settings = row.get("configs")
                if settings:
                    wanted = ("cleanup.policy", "retention.ms", "segment.bytes")
                    row["configs"] = [each for each in settings if each["name"] in wanted]
        return answer

    while side.ask("FindCoordinator", 0, {"key": "group"}).get("error_code"):
        pass  # the offsets topic is there then

    def hand(*rows: tuple[int, list[int]], count: int = -1, factor: int = -1) -> dict[str, Any]:
        return creatable(side.name("hand"), count, factor, assignments=list(rows))

    new = side.name("new")
    for version in versions("CreateTopics"):
        yield "dry run", version, ask(version, creatable(new, 3))
        yield "defaults", version, ask(version, creatable(new, -1, -1))
        yield "there already", version, ask(version, creatable(there))
        for count in (0, -2):
            yield f"{count} partitions", version, ask(version, creatable(new, count))
        for factor in (0, -2, 2, 32767):
            yield f"replication factor {factor}", version, ask(version, creatable(new, 1, factor))
        yield "too many partitions", version, ask(version, creatable(new, 10_001))
        for word, bad in BAD_NAMES.items():
            yield f"name {word}", version, ask(version, creatable(bad))
        yield "name of 249", version, ask(version, creatable("y" * 249))
        for name in ("__cluster_metadata", "__consumer_offsets"):
            yield f"name {name}", version, ask(version, creatable(name))
        collides = side.name("there").replace("-", "-")
        yield "one twice", version, ask(version, creatable(new), creatable(new, 2))
        yield (
            "good and bad",
            version,
            ask(version, creatable(new), creatable("a b"), creatable(collides)),
        )
        yield "no topics", version, ask(version)
        for word, settings in (
            ("known", {"retention.ms": "5000", "cleanup.policy": "compact"}),
            ("unknown", {"no.such.setting": "1"}), ("bad value", {"retention.ms": "soon"}),
            ("out of bounds", {"segment.bytes": "3"}), ("bad choice", {"cleanup.policy": "keep"}),
            ("null", {"retention.ms": None}), ("removed", {"message.format.version": "3.0"}),
            ("several bad", {"retention.ms": "soon", "no.such": "x"}), ("empty name", {"": "x"}),
            ("blank around", {"retention.ms": " 5000 "}),
        ):  # fmt: skip
            answer = ask(version, creatable(new, configs=settings))
            yield f"setting {word}", version, answer
        for word, rows in (
            ("one", [(0, [1])]), ("two", [(0, [1]), (1, [1])]), ("unknown broker", [(0, [7])]),
            ("negative broker", [(0, [-1])]), ("broker twice", [(0, [1, 1])]),
            ("no broker", [(0, [])]),
            ("not from 0", [(1, [1])]), ("partition twice", [(0, [1]), (0, [1])]),
            ("gap", [(0, [1]), (2, [1])]), ("negative partition", [(-1, [1])]),
        ):  # fmt: skip
            yield f"by hand, {word}", version, ask(version, hand(*rows))
        yield "by hand with a count", version, ask(version, hand((0, [1]), count=1))
        yield "by hand with a factor", version, ask(version, hand((0, [1]), factor=1))
        made = side.name(f"made-{version}")
        answer = ask(version, creatable(made, 2, configs={"retention.ms": "1234"}), is_dry=False)
        answer["topics"][0]["name"] = "made"
        yield "made", version, answer
        body = {"topics": [{"name": made}]}
        found = side.ask("Metadata", 4, body | {"allow_auto_topic_creation": False})
        found["topics"][0]["name"] = "made"
        yield "made, then its metadata", version, found["topics"]
    side.topic("a.b")
    yield "collides", 7, ask(7, creatable(side.name("a_b")))


@scenario
def delete_topics(side: Side) -> Answers:
    def ask(version: int, *topics: str | bytes | tuple[str | None, bytes]) -> Any:
        if version >= 6:
            rows = []
            for topic in topics:
                name, topic_id = topic if isinstance(topic, tuple) else (topic, ZERO)
                rows.append({"name": name, "topic_id": topic_id})
            body: dict[str, Any] = {"topics": rows}
        else:
            body = {"topic_names": list(topics)}
        answer = side.ask("DeleteTopics", version, body | {"timeout_ms": 20_000})
        if isinstance(answer, dict):
            rows = answer.get("responses", [])
            rows.sort(key=lambda row: (row.get("name") or "", row.get("error_code", 0)))
            for row in rows:
                if (row.get("name") or "").startswith("deleted"):
                    row["name"] = "deleted"
                if row.get("topic_id", "").startswith("id of deleted"):
                    row["topic_id"] = "its id"
        return answer

    for version in versions("DeleteTopics"):
        name = side.topic(f"deleted-{version}")
        yield "good", version, ask(version, name)
        yield "deleted already", version, ask(version, name)
        body = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
        for _ in range(500):  # Kafka's brokers hear of it a moment later
            found = side.ask("Metadata", 4, body)["topics"]
            answer = side.ask("Produce", 9, produce_body(name, GOOD))
            row = answer["responses"][0]["partition_responses"][0]
            if found[0].get("error_code") and row.get("error_code") == 3:
                break
        found[0]["name"] = answer["responses"][0]["name"] = "deleted"
        yield "then its metadata", version, found
        yield "then Produce", version, answer
        yield "unknown", version, ask(version, side.name("unknown"))
        for word, bad in BAD_NAMES.items():
            yield f"name {word}", version, ask(version, bad)
        yield "no topics", version, ask(version)
        twice = side.topic(f"deleted-twice-{version}")
        yield "one twice", version, ask(version, twice, twice)
        yield "one twice and another", version, ask(version, "x", "x", side.name("unknown"))
        if version >= 6:
            by_id = side.topic("deleted-by-id")
            topic_id = side.topics[by_id]
            yield "name and id", version, ask(version, (by_id, topic_id))
            yield "neither", version, ask(version, (None, ZERO))
            yield "unknown id", version, ask(version, (None, STRANGER))
            yield "by name and by id", version, ask(version, by_id, (None, topic_id))
            yield "by id twice", version, ask(version, (None, topic_id), (None, topic_id))
            yield "by id", version, ask(version, (None, topic_id))
            yield "by id again", version, ask(version, (None, topic_id))


@scenario
def create_partitions(side: Side) -> Answers:
    topic = side.topic("grow", 2)

    def ask(version: int, *rows: tuple[str, int, Any], is_dry: bool = True) -> Any:
        topics = [
            {
                "name": name,
                "count": count,
                "assignments": by_hand and [{"broker_ids": brokers} for brokers in by_hand],
            }
            for name, count, by_hand in rows
        ]
        body = {"topics": topics, "timeout_ms": 20_000, "validate_only": is_dry}
        answer = side.ask("CreatePartitions", version, body)
        if isinstance(answer, dict):
            answer.get("results", []).sort(key=lambda row: row.get("name", ""))
        return answer

    for version in versions("CreatePartitions"):
        for count in (3, 2, 1, 0, -1, 10_003):
            yield f"count {count}", version, ask(version, (topic, count, None))
        yield "unknown", version, ask(version, (side.name("unknown"), 3, None))
        for word, bad in BAD_NAMES.items():
            yield f"name {word}", version, ask(version, (bad, 3, None))
        yield "one twice", version, ask(version, (topic, 3, None), (topic, 4, None))
        yield "no topics", version, ask(version)
        for word, by_hand in (
            ("right", [[1]]), ("too many", [[1], [1]]), ("too few", []), ("unknown broker", [[9]]),
            ("broker twice", [[1, 1]]), ("no broker", [[]]),
        ):  # fmt: skip
            yield f"by hand, {word}", version, ask(version, (topic, 3, by_hand))
        grown = side.topic(f"grown-{version}")
        yield "grown", version, _named(ask(version, (grown, 3, None), is_dry=False), "results")
        body = {"topics": [{"name": grown}], "allow_auto_topic_creation": False}
        yield (
            "then its metadata",
            version,
            _named(side.ask("Metadata", 4, body), "topics")["topics"],
        )


def _named(answer: dict[str, Any], rows: str) -> dict[str, Any]:
    """The same name for all versions."""
    answer[rows][0]["name"] = "it"
    return answer
