"""DescribeConfigs and IncrementalAlterConfigs, asked of both brokers."""

from typing import Any

from tests.processes.wire_cases import BAD_NAMES, Answers, scenario, versions
from tests.processes.wire_side import Side

# ── settings ────────────────────────────────────────────────────────────────────────────────────

TOPIC = 2
BROKER = 4


@scenario
def describe_configs(side: Side) -> Answers:
    topic = side.topic("described", retention_ms="77000", cleanup_policy="compact")

    def ask(version: int, *rows: tuple[int, str, Any], **more: Any) -> Any:
        resources = [
            {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
            for kind, name, keys in rows
        ]
        answer = side.ask("DescribeConfigs", version, {"resources": resources} | more)
        for result in answer.get("results", ()) if isinstance(answer, dict) else ():
            for row in result.get("configs", ()):
                if "documentation" in row:
                    row["documentation"] = "some text"
            result.get("configs", []).sort(key=lambda row: row["name"])
        return answer

    keys = ["retention.ms", "cleanup.policy", "segment.bytes", "compression.type"]
    for version in versions("DescribeConfigs"):
        yield "topic", version, ask(version, (TOPIC, topic, keys))
        yield (
            "topic with synonyms",
            version,
            ask(version, (TOPIC, topic, keys), include_synonyms=True),
        )
        if version >= 3:
            yield (
                "topic with texts",
                version,
                ask(version, (TOPIC, topic, keys), include_documentation=True),
            )
        yield (
            "topic, unknown key",
            version,
            ask(version, (TOPIC, topic, ["no.such", "retention.ms"])),
        )
        yield "topic, a key twice", version, ask(version, (TOPIC, topic, ["retention.ms"] * 2))
        yield "unknown topic", version, ask(version, (TOPIC, side.name("unknown"), None))
        for word, bad in BAD_NAMES.items():
            yield f"topic name {word}", version, ask(version, (TOPIC, bad, None))
        broker_keys = ["node.id", "num.partitions", "log.retention.ms", "message.max.bytes"]
        yield "broker", version, ask(version, (BROKER, "1", broker_keys))
        yield (
            "broker with synonyms",
            version,
            ask(version, (BROKER, "1", broker_keys), include_synonyms=True),
        )
        yield "another broker", version, ask(version, (BROKER, "9", broker_keys))
        yield "broker x", version, ask(version, (BROKER, "x", broker_keys))
        yield "all brokers", version, ask(version, (BROKER, "", ["message.max.bytes"]))
        for kind in (0, 1, 3, 9, -1, 127):
            yield f"resource type {kind}", version, ask(version, (kind, "x", None))
        yield "one twice", version, ask(version, (TOPIC, topic, keys), (TOPIC, topic, keys[:1]))
        yield "no resources", version, ask(version)
    answer = ask(4, (TOPIC, topic, None), include_synonyms=True)
    yield "all settings of a topic", 4, answer
    answer = ask(4, (TOPIC, topic, []), include_synonyms=True)
    yield "no keys: names", 4, [row["name"] for row in answer["results"][0].get("configs", ())]


@scenario
def incremental_alter_configs(side: Side) -> Answers:
    topic = side.topic("altered")

    def ask(
        version: int,
        *rows: tuple[int, str, list[tuple[str, int, str | None]]],
        is_dry: bool = False,
    ) -> Any:
        resources = [
            {
                "resource_type": kind,
                "resource_name": name,
                "configs": [
                    {"name": key, "config_operation": operation, "value": value}
                    for key, operation, value in configs
                ],
            }
            for kind, name, configs in rows
        ]
        body = {"resources": resources, "validate_only": is_dry}
        answer = side.ask("IncrementalAlterConfigs", version, body)
        if isinstance(answer, dict):
            answer.get("responses", []).sort(key=str)
        return answer

    def now(key: str) -> Any:
        resource = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": [key]}
        answer = side.ask("DescribeConfigs", 4, {"resources": [resource]})
        return answer["results"][0]["configs"]

    for version in versions("IncrementalAlterConfigs"):
        for word, key, operation, value in (
            ("set", "retention.ms", 0, "5000"), ("set again", "retention.ms", 0, "5000"),
            ("delete", "retention.ms", 1, None), ("delete unset", "retention.ms", 1, None),
            ("delete with a value", "retention.ms", 1, "1"),
            ("append", "cleanup.policy", 2, "compact"),
            ("append again", "cleanup.policy", 2, "compact"),
            ("subtract", "cleanup.policy", 3, "delete"),
            ("subtract what is not there", "cleanup.policy", 3, "delete"),
            ("append to a number", "retention.ms", 2, "5"), ("set null", "retention.ms", 0, None),
            ("append null", "cleanup.policy", 2, None),
            ("unknown operation", "retention.ms", 4, "5"),
            ("negative operation", "retention.ms", -1, "5"), ("unknown key", "no.such", 0, "5"),
            ("bad value", "retention.ms", 0, "soon"), ("out of bounds", "segment.bytes", 0, "1"),
            ("bad choice", "cleanup.policy", 0, "keep"), ("empty key", "", 0, "x"),
            ("append unknown key", "no.such", 2, "5"),
        ):  # fmt: skip
            yield word, version, ask(version, (TOPIC, topic, [(key, operation, value)]))
            if operation >= 0 and word[:3] in ("set", "del", "app", "sub") and "." in key:
                yield f"{word}: after", version, now(key) if key != "no.such" else None
        ask(version, (TOPIC, topic, [("cleanup.policy", 1, None)]))
        ask(version, (TOPIC, topic, [("retention.ms", 1, None)]))
        yield (
            "one key twice",
            version,
            ask(version, (TOPIC, topic, [("retention.ms", 0, "1"), ("retention.ms", 1, None)])),
        )
        yield (
            "one resource twice",
            version,
            ask(
                version,
                (TOPIC, topic, [("retention.ms", 0, "1")]),
                (TOPIC, topic, [("segment.ms", 0, "1")]),
            ),
        )
        yield (
            "dry run",
            version,
            ask(version, (TOPIC, topic, [("retention.ms", 0, "9")]), is_dry=True),
        )
        yield "dry run: after", version, now("retention.ms")
        unknown = side.name("unknown")
        yield "unknown topic", version, ask(version, (TOPIC, unknown, [("retention.ms", 0, "9")]))
        yield "unknown topic, no change", version, ask(version, (TOPIC, unknown, []))
        yield "no change", version, ask(version, (TOPIC, topic, []))
        yield "no resources", version, ask(version)
        for word, bad in BAD_NAMES.items():
            yield (
                f"topic name {word}",
                version,
                ask(version, (TOPIC, bad, [("retention.ms", 0, "9")])),
            )
        for kind in (0, 1, 3, 9, -1):
            yield f"resource type {kind}", version, ask(version, (kind, "x", [("a", 0, "b")]))
        for name in ("9", "x"):
            yield (
                f"broker {name}",
                version,
                ask(version, (BROKER, name, [("log.cleaner.threads", 0, "1")])),
            )
        for word, key, value in (
            ("static", "node.id", "3"), ("bad value", "log.retention.ms", "soon"),
            ("good, dry", "log.retention.ms", "500000"),
        ):  # fmt: skip
            answer = ask(version, (BROKER, "1", [(key, 0, value)]), is_dry=True)
            yield f"broker setting {word}", version, answer
        yield (
            "good and bad",
            version,
            ask(
                version,
                (TOPIC, topic, [("retention.ms", 0, "soon")]),
                (TOPIC, unknown, [("retention.ms", 0, "1")]),
                (BROKER, "1", []),
            ),
        )
