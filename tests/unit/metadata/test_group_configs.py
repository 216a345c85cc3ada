"""Settings of groups: what counts, and how they bound each other."""

import pytest

from shmbroker.errors import ConfigFault
from shmbroker.metadata.group_configs import group_config, validate_group_configs
from shmbroker.settings.broker_config import BrokerConfig

SESSION = "consumer.session.timeout.ms"
HEARTBEAT = "consumer.heartbeat.interval.ms"


def test_own_value_counts_then_the_brokers_then_the_default() -> None:
    config = BrokerConfig({"group.consumer.session.timeout.ms": "46000"})
    assert group_config(SESSION, {SESSION: "50000"}, config) == 50_000
    assert group_config(SESSION, {}, config) == 46_000
    assert group_config(HEARTBEAT, {}, config) == 5000
    assert group_config("share.session.timeout.ms", {}, config) == 45_000


def test_stored_value_that_is_not_allowed_gives_way() -> None:
    assert group_config(SESSION, {SESSION: "soon"}, BrokerConfig()) == 45_000


def test_bounds_are_the_brokers() -> None:
    config = BrokerConfig({"group.consumer.min.session.timeout.ms": "7000"})
    assert validate_group_configs({SESSION: "7000"}, config) is None
    assert "greater than or equal" in str(validate_group_configs({SESSION: "6999"}, config))
    assert "greater than or equal" in str(validate_group_configs({SESSION: "7000"}, BrokerConfig()))


def test_session_outlasts_the_heartbeat() -> None:
    config = BrokerConfig({"group.consumer.min.session.timeout.ms": "7000"})
    message = validate_group_configs({SESSION: "8000", HEARTBEAT: "8000"}, config)
    assert message == f"{SESSION} must be greater than {HEARTBEAT}"


@pytest.mark.parametrize("what", ["session.timeout.ms", "heartbeat.interval.ms"])
def test_brokers_value_must_lie_within_its_own_bounds(what: str) -> None:
    with pytest.raises(ConfigFault, match="must lie between"):
        BrokerConfig({f"group.consumer.{what}": "1"})
