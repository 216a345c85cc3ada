"""What is wrong with a setting that a client gives, in Kafka's words."""

from __future__ import annotations

from shmbroker.settings.layers import SOURCE_STATIC_BROKER, effective_topic_config
from shmbroker.settings.table import TOPIC_SETTINGS, broker_setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from shmbroker.settings.broker_config import BrokerConfig


def validate_topic_config(name: str, value: str | None) -> str | None:
    """What is wrong with one topic setting, in Kafka's words (INVALID_CONFIG); None: nothing."""
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        return f"Unknown topic config name: {name}"
    if value is None:
        return f"Null value not supported for topic configs: {name}"
    try:
        setting.parse(value)
    except ValueError as refusal:
        return str(refusal)
    return None


def validate_topic_configs(
    configs: Mapping[str, str],
    before: Mapping[str, str] | None = None,
    config: BrokerConfig | None = None,
) -> str | None:
    """Check all overrides of a topic, and what they must be to each other; the complaint, or None.

    before: the topic's overrides so far. config: what stands behind them; as with Kafka, only what
    was set at the broker's start.
    """
    for name in configs:
        if name not in TOPIC_SETTINGS:
            return validate_topic_config(name, "")
    for name, value in configs.items():
        if complaint := validate_topic_config(name, value):
            return complaint
    least, most = (
        int(configs.get(name) or TOPIC_SETTINGS[name].default or 0)
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if least > most:
        return (
            f"conflict topic config setting min.compaction.lag.ms ({least}) > "
            f"max.compaction.lag.ms ({most})"
        )
    return _tier_complaint(configs, before or {}, config)


def _is_true(values: Mapping[str, str], name: str) -> bool:
    return values.get(name, "").strip().lower() == "true"


def _tier_complaint(
    configs: Mapping[str, str],
    before: Mapping[str, str],
    config: BrokerConfig | None,
) -> str | None:
    """What is wrong with a topic's settings for tiered storage, in the order and the words of
    Kafka's `LogConfig.validateTopicLogConfigValues`."""
    if not _is_true(configs, "remote.storage.enable"):
        if _is_true(before, "remote.storage.enable") and not _is_true(
            configs, "remote.log.delete.on.disable"
        ):
            return (
                "It is invalid to disable remote storage without deleting remote data. If you want "
                "to keep the remote data and turn to read only, please set "
                "`remote.storage.enable=true,remote.log.copy.disable=true`. If you want to disable "
                "remote storage and delete all remote data, please set "
                "`remote.storage.enable=false,remote.log.delete.on.disable=true`."
            )
        return None
    if config is None or not config.is_tier_enabled:
        return (
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )
    layers = ((SOURCE_STATIC_BROKER, config.static),)
    policy, _ = effective_topic_config("cleanup.policy", configs, layers)
    if {item.strip() for item in policy.split(",")} - {"", "delete"}:
        return (
            "Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy "
            "being an empty list."
        )
    limits = {
        name: int(effective_topic_config(name, configs, layers)[0])
        for name in ("local.retention.bytes", "local.retention.ms",
                     "retention.bytes", "retention.ms")
    }  # fmt: skip
    for what in ("retention.bytes", "retention.ms"):
        if complaint := local_limit_complaint("", what, limits[what], limits[f"local.{what}"]):
            return complaint
    if _is_true(configs, "remote.log.copy.disable"):
        for what in ("retention.bytes", "retention.ms"):
            if limits[f"local.{what}"] not in (-2, limits[what]):
                return (
                    f"When `remote.log.copy.disable` is set to true, the `local.{what}` and "
                    f"`{what}` must be set to the identical value because there will be no more "
                    "logs copied to the remote storage."
                )
    return None


def local_limit_complaint(prefix: str, what: str, total: int, local: int) -> str | None:
    """What is wrong with a limit of a tiered log's local part, beside that of the whole log.
    prefix: of the settings' names, "log." for a broker's."""
    if total < 0 or local == -2:
        return None
    complaint = f"Invalid value {local} for configuration {prefix}local.{what}: Value must not be "
    if local == -1:
        return f"{complaint}-1 as {prefix}{what} value is set as {total}."
    if local > total:
        return f"{complaint}more than {prefix}{what} property value: {total}"
    return None


def validate_broker_config(name: str, value: str) -> str | None:
    """What is wrong with a broker setting's value, in Kafka's words; None for unknown names too,
    which Kafka keeps for whatever plugin may look for them."""
    setting = broker_setting(name)
    if setting is None:
        return None
    try:
        setting.parse(value)
    except ValueError as refusal:
        return str(refusal)
    return None
