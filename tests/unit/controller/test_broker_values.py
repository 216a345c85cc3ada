"""What settings of a broker must be to each other, whoever of them is changed."""

import pytest

from shmbroker.controller.decisions.broker_values import together_complaint
from shmbroker.metadata.draft import applied
from shmbroker.metadata.image import BROKER_RESOURCE, MetadataImage
from shmbroker.settings.broker_config import BrokerConfig
from tests.support.family_memory import registration

TOTAL, LOCAL = "log.retention.bytes", "log.local.retention.bytes"


def image(*rows: tuple[str, str, str]) -> MetadataImage:
    """Broker 1, and settings of brokers as (broker, setting, value)."""
    kind, version, broker = registration()
    records = [(0, 0, kind, version, {**broker, "in_controlled_shutdown": False})]
    for name, setting, value in rows:
        row = {
            "resource_type": BROKER_RESOURCE,
            "resource_name": name,
            "name": setting,
            "value": value,
        }
        records.append((0, 0, "ConfigRecord", 0, row))
    made, _ = applied(MetadataImage("cluster"), records, 1, 0)
    return made


@pytest.mark.parametrize(
    ("static", "stored", "name", "changes", "is_refused"),
    [
        ("", [], "", {TOTAL: "5", LOCAL: "5"}, False),
        ("", [], "", {TOTAL: "5", LOCAL: "6"}, True),
        ("", [], "", {TOTAL: "5", LOCAL: "-1"}, True),
        ("", [], "", {TOTAL: "-1", LOCAL: "-1"}, False),
        ("5", [], "1", {LOCAL: "6"}, True),
        ("", [("", LOCAL, "6")], "", {TOTAL: "5"}, True),
        ("", [("", LOCAL, "6")], "1", {TOTAL: "5"}, True),
        ("", [("1", TOTAL, "5")], "", {LOCAL: "6"}, True),
        ("5", [("", TOTAL, "7"), ("", LOCAL, "6")], "", {TOTAL: None}, True),
        ("5", [("", TOTAL, "7"), ("", LOCAL, "6")], "", {TOTAL: None, LOCAL: None}, False),
        # What another version has stored stands in nobody's way.
        ("", [("", TOTAL, "5"), ("", LOCAL, "6")], "", {"log.cleaner.backoff.ms": "5"}, False),
    ],
)
def test_no_more_stays_here_than_stays_at_all(
    static: str,
    stored: list[tuple[str, str, str]],
    name: str,
    changes: dict[str, str | None],
    is_refused: bool,
) -> None:
    config = BrokerConfig({TOTAL: static} if static else {})
    complaint = together_complaint(name, changes, image(*stored), config)
    assert (complaint is not None) == is_refused, complaint
