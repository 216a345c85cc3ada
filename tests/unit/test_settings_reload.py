"""Settings that are read again: what holds at once, what waits for a restart. By table."""

import pytest

from shmbroker.errors import ConfigFault
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.settings.reload import is_live, judge

LIVE = "log.retention.ms"
LIVE_TOO = "shmbroker.watchdog.kill.ms"
FIXED = "shmbroker.disk.reserve.bytes"
IDLE = "log.cleaner.threads"
USERS = "listener.name.clients.plain.sasl.jaas.config"


@pytest.mark.parametrize(
    ("name", "expected"),
    [(LIVE, True), (LIVE_TOO, True), (FIXED, False), (IDLE, False), (USERS, True)],
)
def test_live_is_what_clients_may_change_and_has_an_effect(name: str, expected: bool) -> None:
    assert is_live(name) == expected


@pytest.mark.parametrize(
    ("now", "read", "changed", "waiting"),
    [
        ({}, {}, [], []),
        ({LIVE: "1000"}, {LIVE: "1000"}, [], []),
        ({LIVE: "1000"}, {LIVE: "2000"}, [LIVE], []),
        ({LIVE: "1000"}, {}, [LIVE], []),
        ({}, {FIXED: "7"}, [], [FIXED]),
        ({FIXED: "7", LIVE: "1"}, {FIXED: "8", LIVE: "2"}, [LIVE], [FIXED]),
        ({FIXED: "7"}, {LIVE_TOO: "3000"}, [LIVE_TOO], [FIXED]),
    ],
)
def test_what_differs_holds_or_waits(
    now: dict[str, str], read: dict[str, str], changed: list[str], waiting: list[str]
) -> None:
    before = BrokerConfig(now)
    found = judge(before, BrokerConfig(read))
    assert (found.changed, found.waiting) == (changed, waiting)
    for name in changed:
        assert found.config[name] == BrokerConfig(read)[name]
    for name in waiting:
        assert found.config[name] == before[name]
    again = judge(found.config, BrokerConfig(read))
    assert (again.changed, again.waiting) == ([], waiting)


def test_what_follows_from_replicas_waits_with_them() -> None:
    found = judge(BrokerConfig(), BrokerConfig({"shmbroker.replicas": "3"}))
    assert found.changed == []
    assert "min.insync.replicas" in found.waiting
    assert found.config["min.insync.replicas"] == 1


def test_live_setting_that_does_not_go_with_an_old_one_is_refused() -> None:
    tiered = {"remote.log.storage.system.enable": "true"}
    read = BrokerConfig({"log.local.retention.ms": "1000", "log.retention.ms": "2000"})
    judge(BrokerConfig(tiered), read)
    wrong = BrokerConfig({"log.local.retention.ms": "3000", "log.retention.ms": "2000"})
    with pytest.raises(ConfigFault, match=r"log\.local\.retention\.ms"):
        judge(BrokerConfig(tiered), wrong)


def test_words_say_what_happened() -> None:
    found = judge(BrokerConfig(), BrokerConfig({LIVE: "1", FIXED: "7", "shmbroker.port": "9"}))
    assert str(found) == (
        f"settings read again: {LIVE} changed; shmbroker.port, {FIXED} take a restart"
    )
    assert str(judge(BrokerConfig(), BrokerConfig())).endswith("nothing has changed")


def test_adopted_values_keep_the_directories() -> None:
    config = BrokerConfig()
    config.nodes = {1: "/data/node-1"}
    config.adopt(BrokerConfig({LIVE: "7", "shmbroker.replicas": "2"}))
    assert config[LIVE] == 7
    assert config.nodes == {1: "/data/node-1"}
    assert config.given == {LIVE: "7", "shmbroker.replicas": "2"}
    assert config.static["default.replication.factor"] == "2"
