"""Settings of client metrics subscriptions (ConfigResource CLIENT_METRICS, KIP-714).

They are kept, listed and described; as nobody receives metrics here, no client is ever told of one.

Source: Kafka's `ClientMetricsConfigs`.
"""

from __future__ import annotations

from shmbroker.settings.setting import INT, LIST, Setting
from shmbroker.wire.error_codes import INVALID_CONFIG, INVALID_REQUEST, NONE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PUSH_INTERVAL_MS = 300_000
"""What clients are told to wait between two pushes if no subscription says otherwise."""

_INTERVAL_MS_MIN = 100
_INTERVAL_MS_MAX = 3_600_000

CLIENT_METRICS_SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(
            "interval.ms",
            INT,
            str(PUSH_INTERVAL_MS),
            "How often the clients of this subscription push their metrics.",
            is_dynamic=True,
        ),
        Setting(
            "match",
            LIST,
            "",
            "Which clients this subscription is for: key=pattern for each property that counts.",
            is_dynamic=True,
        ),
        Setting(
            "metrics",
            LIST,
            "",
            "Prefixes of the metrics that are wanted; * for all of them.",
            is_dynamic=True,
        ),
    )
}

_MATCH_KEYS = frozenset(
    (
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    )
)


def client_metrics_complaint(name: str, configs: Mapping[str, str]) -> tuple[int, str | None]:
    """What is wrong with a subscription, as error code and Kafka's words; (0, None): nothing."""
    if not name:
        return INVALID_REQUEST, "Subscription name can't be empty"
    for key in configs:
        if key not in CLIENT_METRICS_SETTINGS:
            return INVALID_REQUEST, f"Unknown client metrics configuration: {key}"
    values = {}
    for key, setting in CLIENT_METRICS_SETTINGS.items():
        try:
            values[key] = setting.parse(configs.get(key, setting.default or ""))
        except ValueError as refusal:
            return INVALID_CONFIG, str(refusal)
    interval_ms = values["interval.ms"]
    if not _INTERVAL_MS_MIN <= interval_ms <= _INTERVAL_MS_MAX:
        return INVALID_REQUEST, (
            f"Invalid value {interval_ms} for interval.ms, interval must be between "
            f"{_INTERVAL_MS_MIN} and {_INTERVAL_MS_MAX} (1 hour)"
        )
    for pattern in values["match"]:
        if not _is_pattern(pattern):
            return INVALID_CONFIG, f"Illegal client matching pattern: {pattern}"
    return NONE, None


def _is_pattern(pattern: str) -> bool:
    import re  # only ever for a subscription

    key, _, expression = pattern.partition("=")
    if key.strip() not in _MATCH_KEYS or not expression or "=" in expression:
        return False
    try:
        # Java's named groups are Python's, but for one letter.
        re.compile(re.sub(r"\(\?<(?![=!])", "(?P<", expression.strip()))
    except (re.error, OverflowError, RecursionError):
        return False
    return True
