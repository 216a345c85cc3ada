"""More wire cases: what administrators ask the controller, and what brokers know of the cluster.

Rules as in `wire_cases`. Nothing here changes what others on the same Kafka see: features and
brokers are only changed on trial.
"""

from collections.abc import Callable
from typing import Any

from tests.processes.wire_cases import ANY_ACL, BAD_NAMES, ONE_ACL, Answers, scenario, versions
from tests.processes.wire_side import Side

TOPIC = 2
BROKER = 4
LOGGER = 8
SUBSCRIPTION = 16
GROUP = 32
TRIES = 500


def described(
    side: Side, kind: int, name: str, is_settled: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """{setting: (value, source)} of a resource; Kafka learns of a change a moment later."""
    body = {
        "resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": None}]
    }
    for _ in range(TRIES):
        result = side.ask("DescribeConfigs", 4, body)["results"][0]
        found = {
            row["name"]: [row.get("value"), row.get("config_source", 0)]
            for row in result.get("configs", ())
        }
        if is_settled(found):
            break
    return dict(sorted(found.items()))


def alter(
    side: Side, version: int, *rows: tuple[int, str, list[tuple[str, Any]]], is_trial: bool = False
) -> Any:
    """AlterConfigs."""
    resources = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [{"name": key, "value": value} for key, value in configs],
        }
        for kind, name, configs in rows
    ]
    answer = side.ask("AlterConfigs", version, {"resources": resources, "validate_only": is_trial})
    answer.get("responses", []).sort(key=str)
    return answer


def change(
    side: Side, version: int, kind: int, name: str, *configs: tuple[str, int, Any], **more: bool
) -> Any:
    """IncrementalAlterConfigs of one resource."""
    entries = [
        {"name": key, "config_operation": operation, "value": value}
        for key, operation, value in configs
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": entries}
    return side.ask("IncrementalAlterConfigs", version, {"resources": [resource]} | more)


@scenario
def alter_configs(side: Side) -> Answers:
    """What isn't named is taken away."""
    topic = side.topic("replaced", segment_ms="9000")
    unknown = side.name("unknown")

    def topic_has(key: str) -> Any:
        found = described(side, TOPIC, topic, lambda now: (now[key][1] == 1) == bool(key))
        return {name: value for name, value in found.items() if value[1] == 1}

    for version in versions("AlterConfigs"):
        yield "set", version, alter(side, version, (TOPIC, topic, [("retention.ms", "5000")]))
        yield "set: after", version, topic_has("retention.ms")
        yield (
            "set another",
            version,
            alter(
                side, version, (TOPIC, topic, [("flush.ms", "5"), ("cleanup.policy", "compact")])
            ),
        )
        yield "set another: after", version, topic_has("flush.ms")
        yield (
            "trial",
            version,
            alter(side, version, (TOPIC, topic, [("segment.ms", "7000")]), is_trial=True),
        )
        yield "trial: after", version, topic_has("flush.ms")
        yield "nothing", version, alter(side, version, (TOPIC, topic, []))
        found = described(
            side, TOPIC, topic, lambda now: all(source != 1 for _, source in now.values())
        )
        yield "nothing: after", version, [row for row in found.values() if row[1] == 1]
        for word, key, value in (
            ("bad value", "retention.ms", "soon"), ("unknown key", "no.such", "1"),
            ("null", "retention.ms", None), ("empty key", "", "x"),
            ("out of bounds", "segment.bytes", "1"), ("bad choice", "cleanup.policy", "keep"),
        ):  # fmt: skip
            yield word, version, alter(side, version, (TOPIC, topic, [(key, value)]))
        yield (
            "one key twice",
            version,
            alter(side, version, (TOPIC, topic, [("flush.ms", "1"), ("flush.ms", "1")])),
        )
        yield "unknown topic", version, alter(side, version, (TOPIC, unknown, []))
        for word, bad in BAD_NAMES.items():
            yield f"topic name {word}", version, alter(side, version, (TOPIC, bad, []))
        for kind in (0, 1, 3, 9, 64, -1):
            yield f"resource type {kind}", version, alter(side, version, (kind, "x", []))
        for word, name, configs in (
            ("9", "9", []), ("x", "x", []), ("static", "1", [("num.partitions", "3")]),
            ("bad value", "1", [("log.retention.ms", "soon")]),
            ("least in sync", "1", [("min.insync.replicas", "2")]),
            ("nothing for all", "", []),
        ):  # fmt: skip
            answer = alter(side, version, (BROKER, name, configs), is_trial=True)
            yield f"broker {word}", version, answer
        yield "logger", version, alter(side, version, (LOGGER, "1", [("root", "WARN")]))
        yield (
            "good and bad",
            version,
            alter(
                side,
                version,
                (TOPIC, topic, [("flush.ms", "3")]),
                (TOPIC, unknown, []),
                (GROUP, "", []),
            ),
        )
        yield "no resources", version, alter(side, version)


@scenario
def group_configs(side: Side) -> Answers:
    """Settings of one group, through both APIs."""
    group = side.name("group")
    session = "consumer.session.timeout.ms"
    yield "unset", 4, described(side, GROUP, group, lambda _: True)
    for version in versions("IncrementalAlterConfigs"):
        yield "set", version, change(side, version, GROUP, group, (session, 0, "50000"))
        yield (
            "set: after",
            version,
            described(side, GROUP, group, lambda now: now[session][1] == 8),
        )
        for word, key, operation, value in (
            ("bad value", session, 0, "soon"), ("too small", session, 0, "1"),
            ("too large", session, 0, "70000"), ("unknown key", "no.such", 0, "1"),
            ("delete unknown", "no.such", 1, None), ("append", session, 2, "1"),
            ("null", session, 0, None), ("unknown operation", session, 4, "50000"),
        ):  # fmt: skip
            yield word, version, change(side, version, GROUP, group, (key, operation, value))
        yield "empty name", version, change(side, version, GROUP, "", (session, 0, "50000"))
        yield "delete", version, change(side, version, GROUP, group, (session, 1, None))
        yield (
            "delete: after",
            version,
            described(side, GROUP, group, lambda now: now[session][1] == 5)[session],
        )
    for version in versions("AlterConfigs"):
        yield f"replace v{version}", "-", alter(side, version, (GROUP, group, [(session, "46000")]))
        yield (
            f"replace v{version}: after",
            "-",
            described(side, GROUP, group, lambda now: now[session][1] == 8)[session],
        )
        yield f"replace by nothing v{version}", "-", alter(side, version, (GROUP, group, []))
        yield (
            f"replace by nothing v{version}: after",
            "-",
            described(side, GROUP, group, lambda now: now[session][1] == 5)[session],
        )
    body = {"resources": [{"resource_type": GROUP, "resource_name": ""}]}
    for version in versions("DescribeConfigs"):
        yield "describe without a name", version, side.ask("DescribeConfigs", version, body)


@scenario
def client_metrics(side: Side) -> Answers:
    """Subscriptions, through both APIs, and their list."""
    name = side.name("subscription")
    interval = "interval.ms"

    def listed(version: int, *kinds: int) -> Any:
        body = {"resource_types": list(kinds)} if version else {}
        answer = side.ask("ListConfigResources", version, body)
        return [row for row in answer["config_resources"] if row["resource_name"] == "subscription"]

    yield "unset", 4, described(side, SUBSCRIPTION, name, lambda _: True)
    for version in versions("IncrementalAlterConfigs"):
        yield (
            "set",
            version,
            change(side, version, SUBSCRIPTION, name, (interval, 0, "5000"), ("metrics", 0, "a,b")),
        )
        yield (
            "set: after",
            version,
            described(side, SUBSCRIPTION, name, lambda now: now[interval][1] == 7),
        )
        yield f"list v{version}", "-", listed(version, *([SUBSCRIPTION] * version))
        for word, key, operation, value in (
            ("bad value", interval, 0, "soon"), ("too small", interval, 0, "99"),
            ("unknown key", "no.such", 0, "1"), ("append", "metrics", 2, "c"),
            ("bad match", "match", 0, "client_id"), ("good match", "match", 0, "client_id=a.*"),
            ("unknown operation", interval, 4, "5000"),
        ):  # fmt: skip
            answer = change(
                side, version, SUBSCRIPTION, name, (key, operation, value), validate_only=True
            )
            yield word, version, answer
        yield "empty name", version, change(side, version, SUBSCRIPTION, "", (interval, 0, "5000"))
        yield (
            "delete",
            version,
            change(side, version, SUBSCRIPTION, name, (interval, 1, None), ("metrics", 1, None)),
        )
        yield (
            "delete: after",
            version,
            described(side, SUBSCRIPTION, name, lambda now: now[interval][1] == 5),
        )
    for version in versions("AlterConfigs"):
        answer = alter(side, version, (SUBSCRIPTION, name, [(interval, "100")]))
        yield f"replace v{version}", "-", answer
        yield f"replace by nothing v{version}", "-", alter(side, version, (SUBSCRIPTION, name, []))
    body = {"resources": [{"resource_type": SUBSCRIPTION, "resource_name": ""}]}
    for version in versions("DescribeConfigs"):
        yield "describe without a name", version, side.ask("DescribeConfigs", version, body)


@scenario
def broker_loggers(side: Side) -> Answers:
    for version in versions("IncrementalAlterConfigs"):
        for word, name in (("empty", ""), ("x", "x"), ("9", "9")):
            answer = change(side, version, LOGGER, name, ("root", 0, "WARN"))
            yield f"broker {word}", version, answer
        for word, key, operation, value in (
            ("unknown logger", "no.such", 0, "WARN"), ("bad level", "root", 0, "warn"),
            ("append", "root", 2, "WARN"), ("subtract", "root", 3, "WARN"),
            ("delete root", "root", 1, None), ("null", "root", 0, None),
            ("unknown operation", "root", 4, "WARN"), ("level, on trial", "root", 0, "WARN"),
        ):  # fmt: skip
            answer = change(side, version, LOGGER, "1", (key, operation, value), validate_only=True)
            yield word, version, answer
        yield "no change", version, change(side, version, LOGGER, "1")
    for version in versions("DescribeConfigs"):
        for word, name in (("empty", ""), ("x", "x"), ("9", "9")):
            body = {"resources": [{"resource_type": LOGGER, "resource_name": name}]}
            answer = side.ask("DescribeConfigs", version, body)
            yield f"describe broker {word}", version, answer
        row = {"resource_type": LOGGER, "resource_name": "1", "configuration_keys": ["root"]}
        answer = side.ask("DescribeConfigs", version, {"resources": [row]})
        yield "describe root", version, answer


@scenario
def list_config_resources(side: Side) -> Answers:
    side.topic("listed")

    def ask(*kinds: int) -> Any:
        answer = side.ask("ListConfigResources", 1, {"resource_types": list(kinds)})
        rows = answer.get("config_resources", [])
        answer["config_resources"] = [
            row for row in rows if row["resource_name"] in ("1", "listed")
        ]
        return answer

    for kinds in (
        (TOPIC,), (BROKER,), (LOGGER,), (TOPIC, BROKER), (BROKER, TOPIC), (TOPIC, TOPIC), (),
        (0,), (1,), (3,), (99,), (-1,), (TOPIC, 99),
    ):  # fmt: skip
        yield f"kinds {kinds}", 1, ask(*kinds)
    yield "error", 0, side.ask("ListConfigResources", 0, {}).get("error_code", 0)


@scenario
def update_features(side: Side) -> Answers:
    for version in versions("UpdateFeatures"):

        def ask(
            *updates: tuple[str, int, int], version: int = version, is_trial: bool = True
        ) -> Any:
            rows = []
            for name, level, kind in updates:
                row: dict[str, Any] = {"feature": name, "max_version_level": level}
                if version == 0:
                    row["allow_downgrade"] = kind > 1
                else:
                    row["upgrade_type"] = kind
                rows.append(row)
            body: dict[str, Any] = {"timeout_ms": 10_000, "feature_updates": rows}
            if version >= 1:
                body["validate_only"] = is_trial
            return side.ask("UpdateFeatures", version, body)

        yield "nothing", version, ask()
        yield "same level", version, ask(("group.version", 1, 1))
        yield "same level twice", version, ask(("group.version", 1, 1), ("group.version", 1, 1))
        yield "down as upgrade", version, ask(("group.version", 0, 1))
        yield "too high", version, ask(("group.version", 2, 1))
        yield "negative", version, ask(("group.version", -1, 1))
        yield "unknown", version, ask(("nonsense", 1, 1))
        yield "good and unknown", version, ask(("group.version", 1, 1), ("nonsense", 1, 1))
        yield "metadata too high", version, ask(("metadata.version", 30, 1))
        yield "metadata too low", version, ask(("metadata.version", 6, 2))
        yield "metadata same", version, ask(("metadata.version", 29, 1))
        yield "metadata far down", version, ask(("metadata.version", 9, 2))
        if version >= 1:
            yield "down", version, ask(("group.version", 0, 2))
            yield "down, unsafe", version, ask(("group.version", 0, 3))
            for kind in (0, 4, -1):
                yield f"upgrade type {kind}", version, ask(("group.version", 0, kind))
            yield "metadata down", version, ask(("metadata.version", 28, 2))
            yield "metadata far down, unsafe", version, ask(("metadata.version", 9, 3))


@scenario
def elect_leaders(side: Side) -> Answers:
    topic = side.topic("elected", 2)
    for version in versions("ElectLeaders"):
        for election_type in (0, 1, 2, -1) if version else (0,):

            def ask(
                *rows: tuple[str, list[int]],
                version: int = version,
                election_type: int = election_type,
            ) -> Any:
                body: dict[str, Any] = {
                    "timeout_ms": 10_000,
                    "topic_partitions": [
                        {"topic": name, "partitions": indexes} for name, indexes in rows
                    ],
                }
                if version:
                    body["election_type"] = election_type
                answer = side.ask("ElectLeaders", version, body)
                answer.get("replica_election_results", []).sort(key=str)
                return answer

            word = f"type {election_type}: "
            yield word + "led", version, ask((topic, [0, 1]))
            yield word + "unknown", version, ask((side.name("unknown"), [0]), (topic, [7, -1, 0]))
            yield word + "no partitions", version, ask((topic, []))
            yield word + "nothing", version, ask()
            yield word + "name empty", version, ask(("", [0]))
            yield word + "one twice", version, ask((topic, [0, 0]))
    body = {"timeout_ms": 10_000, "topic_partitions": None, "election_type": 0}
    for version in (1, 2):
        answer = side.ask("ElectLeaders", version, body)
        rows = answer.get("replica_election_results", [])
        yield "all", version, [row for row in rows if row["topic"] == "elected"]
        answer = side.ask("ElectLeaders", version, body | {"election_type": 5})
        yield "all, unknown type", version, answer


@scenario
def alter_partition_reassignments(side: Side) -> Answers:
    topic = side.topic("moved", 2)
    for version in versions("AlterPartitionReassignments"):

        def ask(
            *rows: tuple[str, list[tuple[int, Any]]], version: int = version, **more: bool
        ) -> Any:
            topics = [
                {
                    "name": name,
                    "partitions": [
                        {"partition_index": index, "replicas": replicas}
                        for index, replicas in wanted
                    ],
                }
                for name, wanted in rows
            ]
            body = {"timeout_ms": 10_000, "topics": topics} | more
            return side.ask("AlterPartitionReassignments", version, body)

        yield "as it is", version, ask((topic, [(0, [1])]))
        for word, replicas in (
            ("another broker", [9]), ("two", [1, 9]), ("none", []), ("one twice", [1, 1]),
            ("negative", [-1]), ("cancel", None),
        ):  # fmt: skip
            yield word, version, ask((topic, [(0, replicas)]))
        for index in (2, -1):
            yield f"partition {index}", version, ask((topic, [(index, [1])]))
            yield f"cancel partition {index}", version, ask((topic, [(index, None)]))
        yield "unknown topic", version, ask((side.name("unknown"), [(0, [1])]))
        yield "name empty", version, ask(("", [(0, [1])]))
        yield "no partitions", version, ask((topic, []))
        yield "no topics", version, ask()
        yield "good and bad", version, ask((topic, [(0, [1]), (1, [9])]))
        if version >= 1:
            answer = ask((topic, [(0, [1])]), allow_replication_factor_change=False)
            yield "same factor", version, answer
    for word, topics in (
        ("all", None), ("none", []), ("some", [{"name": topic, "partition_indexes": [0, 7]}]),
        ("unknown", [{"name": side.name("unknown"), "partition_indexes": [0]}]),
    ):  # fmt: skip
        body = {"timeout_ms": 10_000, "topics": topics}
        yield f"list {word}", "-", side.ask("ListPartitionReassignments", 0, body)


@scenario
def describe_quorum(side: Side) -> Answers:
    log = "__cluster_metadata"
    topic = side.topic("plain")
    for version in versions("DescribeQuorum"):
        for word, rows in (
            ("the log", [(log, [0])]), ("another partition", [(log, [1])]),
            ("two partitions", [(log, [0, 1])]), ("a topic", [(topic, [0])]),
            ("the log and a topic", [(log, [0]), (topic, [0])]), ("no partition", [(log, [])]),
            ("no topic", []), ("name empty", [("", [0])]),
        ):  # fmt: skip
            topics = [
                {
                    "topic_name": name,
                    "partitions": [{"partition_index": index} for index in indexes],
                }
                for name, indexes in rows
            ]
            answer = side.ask("DescribeQuorum", version, {"topics": topics})
            yield word, version, _without_numbers(answer)


def _without_numbers(answer: dict[str, Any]) -> dict[str, Any]:
    """Offsets, epochs, times and ids give way to a word."""
    for topic in answer.get("topics", ()):
        for partition in topic.get("partitions", ()):
            for row in (partition, *partition.get("current_voters", ())):
                for key in (
                    "leader_epoch", "high_watermark", "log_end_offset", "last_fetch_timestamp",
                    "last_caught_up_timestamp", "replica_directory_id",
                ):  # fmt: skip
                    if key in row:
                        row[key] = "some"
    return answer


@scenario
def other_cluster_calls(side: Side) -> Answers:
    for broker_id in (9, 0, -1):
        answer = side.ask("UnregisterBroker", 0, {"broker_id": broker_id})
        yield f"unregister broker {broker_id}", "-", answer
    topic = side.topic("held")
    here = {"resource_type": BROKER, "resource_name": "1", "configuration_keys": ["log.dirs"]}
    described_here = side.ask("DescribeConfigs", 4, {"resources": [here]})
    path = described_here["results"][0]["configs"][0]["value"]
    for version in versions("AlterReplicaLogDirs"):
        for word, place, name, indexes in (
            ("where it is", path, topic, [0]), ("unknown partition", path, topic, [0, 7]),
            ("unknown topic", path, side.name("unknown"), [0]), ("elsewhere", "/none", topic, [0]),
            ("relative", "data", topic, [0]), ("no partition", path, topic, []),
        ):  # fmt: skip
            topics = [{"name": name, "partitions": indexes}]
            body = {"dirs": [{"path": place, "topics": topics}]}
            yield f"log directory {word}", version, side.ask("AlterReplicaLogDirs", version, body)
        yield "no log directory", version, side.ask("AlterReplicaLogDirs", version, {"dirs": []})
    uuid = side.prefix.encode().ljust(16, b"-")[:16]
    answer = side.ask("GetTelemetrySubscriptions", 0, {"client_instance_id": uuid})
    yield (
        "telemetry wanted",
        "-",
        answer | {"client_instance_id": "some", "subscription_id": "some"},
    )
    push = {"client_instance_id": uuid, "terminating": False, "compression_type": 0}
    body = push | {"subscription_id": 1, "metrics": b"abc"}
    yield "telemetry, another subscription", "-", side.ask("PushTelemetry", 0, body)
    body = push | {"client_instance_id": bytes(16), "subscription_id": 1, "metrics": b""}
    yield "telemetry of nobody", "-", side.ask("PushTelemetry", 0, body)


ONE_PASSWORD = {"mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": b"x" * 32}


@scenario
def acls(side: Side) -> Answers:
    """Without an authorizer: a number that stands for unknown is looked at before that."""
    for version in versions("CreateAcls"):
        for word, changes in (
            ("good", {}), ("no principal", {"principal": "alice"}),
            ("unknown type", {"resource_type": 0}),
            ("unknown operation", {"operation": 0}), ("unknown permission", {"permission_type": 0}),
            ("undefined type", {"resource_type": 9}), ("type of a filter", {"resource_type": 1}),
        ):  # fmt: skip
            answer = side.ask("CreateAcls", version, {"creations": [ONE_ACL | changes]})
            yield f"create, {word}", version, answer
        for word, changes in (
            ("any", {}), ("unknown type", {"resource_type_filter": 0}),
            ("unknown pattern", {"pattern_type_filter": 0}),
            ("undefined operation", {"operation": 99}),
        ):  # fmt: skip
            body = ANY_ACL | changes
            yield f"describe, {word}", version, side.ask("DescribeAcls", version, body)
            answer = side.ask("DeleteAcls", version, {"filters": [ANY_ACL | changes]})
            yield f"delete, {word}", version, answer
        yield "create none", version, side.ask("CreateAcls", version, {"creations": []})
        yield "delete none", version, side.ask("DeleteAcls", version, {"filters": []})


@scenario
def users(side: Side) -> Answers:
    """Passwords for SCRAM, under names of this run."""

    def one(name: str = "one", **changes: Any) -> dict[str, Any]:
        return ONE_PASSWORD | {"name": side.name(name) if name else ""} | changes

    def gone(name: str, mechanism: int = 1) -> dict[str, Any]:
        return {"name": side.name(name) if name else "", "mechanism": mechanism}

    def sorted_by_user(answer: dict[str, Any]) -> dict[str, Any]:
        answer.get("results", []).sort(key=lambda row: row.get("user", ""))
        return answer

    for word, set_, removed in (
        ("good", [one()], []), ("the other mechanism", [one(mechanism=2)], []),
        ("again", [one(iterations=16384)], []),
        ("few iterations", [one(iterations=4095)], []),
        ("many iterations", [one(iterations=16385)], []),
        ("negative iterations", [one(iterations=-1)], []),
        ("mechanism 0", [one(mechanism=0)], []), ("mechanism 3", [one(mechanism=3)], []),
        ("no name", [one("")], []), ("no salt", [one("salt", salt=b"")], []),
        ("no password", [one("empty", salted_password=b"")], []),
        ("short password", [one("short", salted_password=b"short")], []),
        ("odd name", [one("ü,= \0")], []),
        ("twice", [one("twice"), one("twice")], []),
        ("with both mechanisms", [one("twice"), one("twice", mechanism=2)], []),
        ("good, then bad", [one("twice"), one("twice", iterations=1)], []),
        ("bad, then good", [one("twice", iterations=1), one("twice")], []),
        ("set and removed", [one()], [gone("one")]),
        ("set and the other removed", [one()], [gone("one", 2)]),
        ("removed twice", [], [gone("one"), gone("one")]),
        ("unknown user removed", [], [gone("nobody")]),
        ("unknown mechanism removed", [], [gone("one", 9)]), ("no name removed", [], [gone("")]),
        ("several", [one("two"), one("three", iterations=1)], [gone("nobody")]),
        ("unknown mechanism set, unknown user removed", [one("x", mechanism=0)], [gone("x")]),
        ("removed", [], [gone("two")]), ("removed again", [], [gone("two")]), ("none", [], []),
    ):  # fmt: skip
        body = {"deletions": removed, "upsertions": set_}
        answer = side.ask("AlterUserScramCredentials", 0, body)
        yield f"{word}", "-", sorted_by_user(answer)
    for word, names in (
        ("one", ["one"]), ("two of them", ["salt", "one"]), ("unknown", ["nobody"]),
        ("twice", ["one", "one"]), ("unknown twice", ["nobody", "nobody", "one"]),
    ):  # fmt: skip
        body = {"users": [{"name": side.name(name)} for name in names]}
        answer = side.ask("DescribeUserScramCredentials", 0, body)
        yield f"described: {word}", "-", sorted_by_user(answer)
    answer = side.ask("DescribeUserScramCredentials", 0, {"users": None})
    answer["results"] = [
        row for row in answer["results"] if row["user"] in ("one", "salt", "short", "ü,= \0")
    ]
    yield "described: all", "-", sorted_by_user(answer)


@scenario
def sasl_where_nobody_is_asked(side: Side) -> Answers:
    for version in versions("SaslHandshake"):
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "", "GSSAPI"):
            answer = side.ask("SaslHandshake", version, {"mechanism": mechanism})
            yield f"handshake {mechanism}", version, answer
    for version in versions("SaslAuthenticate"):
        answer = side.ask("SaslAuthenticate", version, {"auth_bytes": b"\0alice\0secret"})
        yield "message", version, answer


def delegation_tokens(side: Side) -> Answers:
    """Nobody who has not shown who he is may ask for them, whatever he asks."""
    renewer = {"principal_type": "User", "principal_name": "bob"}
    for version in versions("CreateDelegationToken"):
        body = {"renewers": [renewer], "max_lifetime_ms": -1}
        yield "create", version, side.ask("CreateDelegationToken", version, body)
    for type_, name in (("User", "bob"), ("Group", "g"), ("User", ""), (None, "bob"), (None, None)):
        owner = {"owner_principal_type": type_, "owner_principal_name": name}
        body = owner | {"renewers": [renewer | {"principal_type": "Group"}], "max_lifetime_ms": 0}
        yield f"create for {type_}:{name}", 3, side.ask("CreateDelegationToken", 3, body)
    for version in versions("RenewDelegationToken"):
        body = {"hmac": b"unknown", "renew_period_ms": -1}
        yield "renew", version, side.ask("RenewDelegationToken", version, body)
    for version in versions("ExpireDelegationToken"):
        body = {"hmac": b"unknown", "expiry_time_period_ms": -1}
        yield "expire", version, side.ask("ExpireDelegationToken", version, body)
    for version in versions("DescribeDelegationToken"):
        yield "describe", version, side.ask("DescribeDelegationToken", version, {"owners": None})
    yield "describe none", 3, side.ask("DescribeDelegationToken", 3, {"owners": []})
