"""What `config explain` says of a setting: all of it from the tables of settings.

But for one thing: what else has to be set for one to be seen at work.
"""

from typing import Any

from shmbroker.metadata.client_metrics import CLIENT_METRICS_SETTINGS
from shmbroker.metadata.group_configs import GROUP_SETTINGS
from shmbroker.settings.left_out import LEFT_OUT
from shmbroker.settings.setting import TYPE_NAMES, Setting
from shmbroker.settings.table import BROKER_SETTINGS, TOPIC_SETTINGS
from shmbroker.settings.without_effect import WITHOUT_EFFECT

_TABLES = {
    "topic": TOPIC_SETTINGS,
    "broker": BROKER_SETTINGS,
    "group": GROUP_SETTINGS,
    "client metrics subscription": CLIENT_METRICS_SETTINGS,
}


_DROPPED = (
    "Logs are looked through every log.retention.check.interval.ms, 5 minutes by default, and "
    "whole segments are dropped. To see it at work, start the broker with --set "
    "log.retention.check.interval.ms=1000, and give the topic a small "
)
NOTES = {
    name: _DROPPED + f"segment.{unit}."
    for unit, limits in (
        ("ms", ("ms", "minutes", "hours")),
        ("bytes", ("bytes",)),
    )
    for limit in limits
    for name in (
        f"retention.{limit}",
        f"local.retention.{limit}",
        f"log.retention.{limit}",
        f"log.local.retention.{limit}",
    )
    if name in TOPIC_SETTINGS or name in BROKER_SETTINGS
}
"""What is said beside a setting's own sentence."""


_GIVEN_BY = {
    "node.id": "--set or --config",
    "broker.id": "--set or --config",
    "log.dirs": "--log-dir",
}
"""How it is said what a broker is."""


def names() -> set[str]:
    """All settings, of topics, brokers, groups and client metrics subscriptions."""
    names: set[str] = set()
    return names.union(*_TABLES.values())


def explained(name: str) -> dict[str, Any]:
    """A setting as `--json` shows it, or one of Kafka's that is left out; KeyError for any other
    name."""
    found = {kind: table[name] for kind, table in _TABLES.items() if name in table}
    if not found:
        why = f"A setting of Apache Kafka that means nothing here: {LEFT_OUT[name]}."
        lists: dict[str, Any] = {"of": [], "changed": [], "falls_back_to": [], "default_for": []}
        nulls = dict.fromkeys(("type", "default", "unit", "allowed", "note"))
        return {"name": name, "documentation": why, "has_effect": False, **lists, **nulls}
    setting = next(iter(found.values()))
    stands_for = [
        topic_name
        for topic_name, row in TOPIC_SETTINGS.items()
        if any(synonym == name for synonym, _ in row.synonyms) and topic_name != name
    ]
    return {
        "name": name,
        "of": list(found),
        "type": TYPE_NAMES[setting.type].lower(),
        "default": setting.default,
        "unit": setting.unit or None,
        "allowed": _allowed(setting),
        "documentation": setting.documentation,
        "changed": _changed(found),
        "falls_back_to": [synonym for synonym, _ in setting.synonyms if synonym != name],
        "default_for": stands_for,
        "has_effect": name not in WITHOUT_EFFECT,
        "note": NOTES.get(name),
    }


def _allowed(setting: Setting) -> str | None:
    if setting.allowed:
        return ", ".join(setting.allowed)
    if setting.least is not None and setting.most is not None:
        return f"{setting.least} to {setting.most}"
    if setting.least is not None:
        return f"at least {setting.least}"
    return None if setting.most is None else f"at most {setting.most}"


def _changed(found: dict[str, Setting]) -> list[str]:
    ways = []
    if "topic" in found:
        ways.append("config set topic NAME")
    if found.keys() - {"topic", "broker"}:
        ways.append("Kafka's own tools")
    broker = found.get("broker")
    if broker and broker.is_given:
        ways.append(f"serve {_GIVEN_BY[broker.name]}, at start")
    elif broker:
        if broker.is_dynamic:
            ways.append("config set broker ID or default")
        ways.append("serve --set or --config, at start")
    return ways


def as_text(row: dict[str, Any]) -> str:
    """What `explained` gave, for people."""
    import textwrap

    lines = [row["name"], *textwrap.wrap(row["documentation"], 96), ""]
    if not row["of"]:
        return "\n".join(lines[:-1])
    if row["note"]:
        lines[-1:] = ["", *textwrap.wrap(row["note"], 96), ""]
    if not row["has_effect"]:
        lines[-1:] = ["Kept and shown for Kafka's sake.", ""]
    default = "none" if row["default"] is None else row["default"] or '""'
    facts = {
        "type": row["type"],
        "default": f"{default} {row['unit'] or ''}".strip(),
        "allowed": row["allowed"],
        "setting of": ", ".join(row["of"]),
        "changed by": "; ".join(row["changed"]),
        "else from": ", ".join(row["falls_back_to"]),
        "default for": ", ".join(row["default_for"]),
    }
    lines += [f"  {name:<12} {fact}" for name, fact in facts.items() if fact]
    return "\n".join(lines)
