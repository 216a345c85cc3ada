"""More wire cases: settings of several resources in one request, and what one does to the others.

Rules as in `wire_cases`.
"""

from typing import Any

from tests.processes.wire_cases import Answers, scenario, versions
from tests.processes.wire_cases_admin import BROKER, GROUP, LOGGER, SUBSCRIPTION, TOPIC
from tests.processes.wire_side import Side

Row = tuple[int, str, list[tuple[str, int, Any]]]


@scenario
def settings_together(side: Side) -> Answers:
    """An operation that there is not fails what a broker forwards with it, and nothing else."""
    topic, group = side.topic("together"), side.name("group")
    session = "consumer.session.timeout.ms"

    def change(version: int, *rows: Row, **more: bool) -> Any:
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
        return side.ask("IncrementalAlterConfigs", version, {"resources": resources} | more)

    good: Row = TOPIC, topic, [("flush.ms", 0, "5")]
    bad: Row = GROUP, group, [(session, 4, "50000")]
    for version in versions("IncrementalAlterConfigs"):
        for word, rows in (
            ("good, then bad", (good, bad)), ("bad, then good", (bad, good)),
            ("unknown topic", (bad, (TOPIC, side.name("unknown"), [("flush.ms", 0, "5")]))),
            ("bad of an unknown key", ((GROUP, group, [("no.such", 4, "1")]), good)),
            ("bad of a subscription", ((SUBSCRIPTION, "m", [("interval.ms", 9, "5000")]), good)),
            ("broker", (bad, (BROKER, "1", [("log.retention.ms", 0, "604800000")]))),
            ("unknown broker", (bad, (BROKER, "9", [("log.retention.ms", 0, "604800000")]))),
            ("setting that is fixed", (bad, (BROKER, "1", [("num.partitions", 0, "6")]))),
            ("unknown type", (bad, (7, "x", []))),
            ("key twice", (bad, (TOPIC, topic, [("flush.ms", 0, "5"), ("flush.ms", 0, "5")]))),
            ("null", (bad, (TOPIC, topic, [("flush.ms", 0, None)]))),
            ("logger", (bad, (LOGGER, "1", [("root", 1, None)]))),
            ("bad of a broker", ((BROKER, "1", [("log.retention.ms", 9, "1")]), good)),
            ("bad of all brokers", ((BROKER, "", [("log.retention.ms", 9, "1")]), good)),
            ("bad of a logger", ((LOGGER, "1", [("root", 4, "WARN")]), good)),
            ("bad twice", (bad, bad, good)),
            ("bad and null", ((GROUP, group, [(session, 4, None)]), good)),
        ):  # fmt: skip
            yield word, version, change(version, *rows, validate_only=True)
        yield "not on trial", version, change(version, good, bad)
        row = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": ["flush.ms"]}
        yield "after", version, side.ask("DescribeConfigs", 4, {"resources": [row]})
