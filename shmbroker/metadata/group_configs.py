"""Settings of single groups (ConfigResource GROUP), which stand before the brokers' `group.*`.

A group's setting is called as the brokers' without "group."; so is its default. Those of share
and streams groups are kept for Apache Kafka, nothing reads them here: their bounds are Kafka's
defaults.

Source: Kafka's `GroupConfig`, KIP-848, KIP-932, KIP-1071.
"""

from __future__ import annotations

from shmbroker.settings.setting import INT, STRING, Setting
from shmbroker.settings.table import BROKER_SETTINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from shmbroker.settings.broker_config import BrokerConfig

_OFFSET_RESET = "share.auto.offset.reset"


def _offset_reset_complaint(value: str) -> str | None:
    import re  # only ever for this setting

    period = r"P(?=[0-9T])([0-9]+D)?(T(?=[0-9])([0-9]+H)?([0-9]+M)?([0-9]+(\.[0-9]{0,9})?S)?)?"
    if value in ("earliest", "latest") or re.fullmatch(f"by_duration:(?i:{period})", value):
        return None
    return (
        f"Invalid value `{value}` for configuration {_OFFSET_RESET}. The value must be either "
        "'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."
    )


GROUP_SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(
            "consumer.heartbeat.interval.ms",
            INT,
            "5000",
            "How often members of this consumer group (KIP-848) are told to send a heartbeat.",
            least=1,
            is_dynamic=True,
        ),
        Setting(
            "consumer.session.timeout.ms",
            INT,
            "45000",
            "Time without a heartbeat after which a member of this consumer group (KIP-848) is "
            "removed.",
            least=1,
            is_dynamic=True,
        ),
        Setting(
            _OFFSET_RESET,
            STRING,
            "latest",
            "Where a share group begins to read.",
            check=_offset_reset_complaint,
            is_dynamic=True,
        ),
        Setting(
            "share.heartbeat.interval.ms",
            INT,
            "5000",
            "How often members of a share group send a heartbeat.",
            least=1,
            is_dynamic=True,
        ),
        Setting(
            "share.isolation.level",
            STRING,
            "read_uncommitted",
            "Which records of transactions a share group reads.",
            allowed=("read_committed", "read_uncommitted"),
            is_dynamic=True,
        ),
        Setting(
            "share.record.lock.duration.ms",
            INT,
            "30000",
            "How long a record is reserved for a member of a share group.",
            least=1000,
            is_dynamic=True,
        ),
        Setting(
            "share.session.timeout.ms",
            INT,
            "45000",
            "Time without a heartbeat after which a member of a share group is removed.",
            least=1,
            is_dynamic=True,
        ),
        Setting(
            "streams.heartbeat.interval.ms",
            INT,
            "5000",
            "How often members of a streams group send a heartbeat.",
            least=1,
            is_dynamic=True,
        ),
        Setting(
            "streams.initial.rebalance.delay.ms",
            INT,
            "3000",
            "How long a new streams group waits for further members.",
            least=0,
            is_dynamic=True,
        ),
        Setting(
            "streams.num.standby.replicas",
            INT,
            "0",
            "Standby replicas of each task of a streams group.",
            least=0,
            is_dynamic=True,
        ),
        Setting(
            "streams.session.timeout.ms",
            INT,
            "45000",
            "Time without a heartbeat after which a member of a streams group is removed.",
            least=1,
            is_dynamic=True,
        ),
    )
}

_BOUNDS = (
    # In the order in which they are checked: setting, the brokers' settings that bound it, and
    # what those are where they are no settings here.
    (
        "consumer.heartbeat.interval.ms",
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
        (0, 0),
    ),
    (
        "consumer.session.timeout.ms",
        "group.consumer.min.session.timeout.ms",
        "group.consumer.max.session.timeout.ms",
        (0, 0),
    ),
    (
        "share.heartbeat.interval.ms",
        "group.share.min.heartbeat.interval.ms",
        "group.share.max.heartbeat.interval.ms",
        (5000, 15000),
    ),
    (
        "share.session.timeout.ms",
        "group.share.min.session.timeout.ms",
        "group.share.max.session.timeout.ms",
        (45000, 60000),
    ),
    (
        "share.record.lock.duration.ms",
        "group.share.min.record.lock.duration.ms",
        "group.share.max.record.lock.duration.ms",
        (15000, 60000),
    ),
    (
        "streams.heartbeat.interval.ms",
        "group.streams.min.heartbeat.interval.ms",
        "group.streams.max.heartbeat.interval.ms",
        (5000, 15000),
    ),
    (
        "streams.session.timeout.ms",
        "group.streams.min.session.timeout.ms",
        "group.streams.max.session.timeout.ms",
        (45000, 60000),
    ),
    ("streams.num.standby.replicas", "", "group.streams.max.standby.replicas", (0, 2)),
)


def group_config(name: str, overrides: Mapping[str, str], config: BrokerConfig) -> Any:
    """The value of a group's setting, parsed: its own (`overrides`: `MetadataImage.config` of
    GROUP_RESOURCE), else the brokers', else the default."""
    setting = GROUP_SETTINGS[name]
    if name in overrides:
        try:
            return setting.parse(overrides[name])
        except ValueError:
            pass  # another version's
    return setting.parse(group_default(setting, config))


def group_default(setting: Setting, config: BrokerConfig) -> str:
    """What stands behind a group's own value, as text."""
    broker_setting = BROKER_SETTINGS.get("group." + setting.name)
    if broker_setting is None:
        return setting.default or ""
    return broker_setting.text(config[broker_setting.name]) or ""


def validate_group_configs(overrides: Mapping[str, str], config: BrokerConfig) -> str | None:
    """What is wrong with all the settings of a group, in Kafka's words (INVALID_CONFIG)."""
    for name in overrides:
        if name not in GROUP_SETTINGS:
            return f"Unknown group config name: {name}"
    values = {}
    for name, setting in GROUP_SETTINGS.items():
        try:
            values[name] = setting.parse(overrides.get(name, group_default(setting, config)))
        except ValueError as refusal:
            return str(refusal)
    for name, least_name, most_name, (least, most) in _BOUNDS:
        if least_name in BROKER_SETTINGS:
            least, most = config[least_name], config[most_name]
        if values[name] < least:
            return f"{name} must be greater than or equal to {least_name}"
        if values[name] > most:
            return f"{name} must be less than or equal to {most_name}"
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if values[session] <= values[heartbeat]:
            return f"{session} must be greater than {heartbeat}"
    return None
