"""What `config explain` says of a setting: all of it from the tables of `shmbroker.config`.

But for two things: which settings are kept and shown for Kafka's sake and change nothing here, and
what else has to be set for one to be seen at work.
"""

from typing import Any

from shmbroker.config import BROKER_SETTINGS, TOPIC_SETTINGS, TYPE_NAMES, Setting

WITHOUT_EFFECT = {
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "leader.imbalance.per.broker.percentage",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.io.buffer.size",
    "log.cleaner.threads",
    "log.flush.offset.checkpoint.interval.ms",
    "log.flush.start.offset.checkpoint.interval.ms",
    "max.connections.per.ip",
    "max.request.partition.size.limit",
    "producer.id.expiration.ms",
    "queued.max.request.bytes",
    "queued.max.requests",
    "replica.high.watermark.checkpoint.interval.ms",
    "shmbroker.ring.control.bytes",
    "socket.listen.backlog.size",
}
"""Settings that nothing here reads, whatever their value."""


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


def names() -> set[str]:
    """All settings, of topics and of brokers."""
    return TOPIC_SETTINGS.keys() | BROKER_SETTINGS.keys()


def explained(name: str) -> dict[str, Any]:
    """A setting as `--json` shows it; KeyError for one that isn't there."""
    topic, broker = TOPIC_SETTINGS.get(name), BROKER_SETTINGS.get(name)
    setting = topic or broker
    if setting is None:
        raise KeyError(name)
    stands_for = [
        topic_name
        for topic_name, row in TOPIC_SETTINGS.items()
        if any(synonym == name for synonym, _ in row.synonyms) and topic_name != name
    ]
    return {
        "name": name,
        "of": [kind for kind, row in (("topic", topic), ("broker", broker)) if row],
        "type": TYPE_NAMES[setting.type].lower(),
        "default": setting.default,
        "unit": setting.unit or None,
        "allowed": _allowed(setting),
        "documentation": setting.documentation,
        "changed": _changed(topic, broker),
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


def _changed(topic: Setting | None, broker: Setting | None) -> list[str]:
    ways = []
    if topic:
        ways.append("config set topic NAME")
    if broker and broker.is_given:
        ways.append("not at all: it follows from shmbroker.host, shmbroker.port, shmbroker.data")
    elif broker:
        if broker.is_dynamic:
            ways.append("config set broker ID or default")
        ways.append("serve --set or --config, at start")
    return ways


def as_text(row: dict[str, Any]) -> str:
    """What `explained` gave, for people."""
    import textwrap

    lines = [row["name"], *textwrap.wrap(row["documentation"], 96), ""]
    if row["note"]:
        lines[-1:] = ["", *textwrap.wrap(row["note"], 96), ""]
    if not row["has_effect"]:
        lines[-1:] = ["Kept and shown for Kafka's sake; it changes nothing here.", ""]
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
