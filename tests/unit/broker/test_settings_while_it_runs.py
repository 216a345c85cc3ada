"""Settings of a broker that are dynamic: the parts that use them have them as soon as the metadata
says so, the broker's own before all brokers', and lose them when they are taken away."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shmbroker.broker.broker import Broker
from shmbroker.ids import partition_key
from shmbroker.metadata.image import BROKER_RESOURCE
from shmbroker.settings.setting import BOOLEAN, DOUBLE, LIST
from shmbroker.settings.table import BROKER_SETTINGS, TOPIC_SETTINGS
from shmbroker.settings.without_effect import WITHOUT_EFFECT
from shmbroker.shm.counters import CLEANER_RATE
from tests.support.broker_family import BROKER, BrokerFamily, broker_family
from tests.support.family_memory import TOPIC_ID, topic

KEY = partition_key(TOPIC_ID, 0)

OF_THE_GATEWAY = {name for name in BROKER_SETTINGS if name.startswith("max.connection")}
OF_TIERED = {"log.local.retention.bytes", "log.local.retention.ms"}
IN_USE: dict[str, Callable[[Broker], Any]] = {
    "log.cleaner.backoff.ms": lambda broker: broker.compaction.backoff_ms,
    "log.cleaner.dedupe.buffer.size": lambda broker: broker.compaction.map_bytes,
    "log.cleaner.io.max.bytes.per.second": lambda broker: broker.words[
        broker.member.counters.at(BROKER, CLEANER_RATE)
    ],
    "leader.replication.throttled.rate": lambda broker: broker.replication.reads.throttle.room(0),
    "follower.replication.throttled.rate": lambda broker: broker.replication.fetcher.throttle.room(
        0
    ),
    "remote.fetch.max.wait.ms": lambda broker: broker.reader.tier_wait_ms,
    "remote.list.offsets.request.timeout.ms": lambda broker: broker.tiering.find_timeout_ms,
    "remote.log.manager.copy.max.bytes.per.second": lambda broker: broker.tiering.copied.room(0),
    "remote.log.manager.fetch.max.bytes.per.second": lambda broker: broker.tiering.fetched.room(0),
    "transaction.partition.verification.enable": lambda broker: broker.exchange.is_verifying,
}


def change(family: BrokerFamily, name: str, resource: str, value: str | None) -> None:
    row = {
        "resource_type": BROKER_RESOURCE,
        "resource_name": resource,
        "name": name,
        "value": value,
    }
    family.link.commit(("ConfigRecord", 0, row))
    family.broker.turn()


def of_log(name: str) -> Callable[[Broker], Any]:
    """What a partition's log goes by."""
    attribute = name.replace(".", "_").replace("-", "_")
    return lambda broker: getattr(broker.partitions[KEY].log.config, attribute)


for topic_name, topic_setting in TOPIC_SETTINGS.items():
    behind = topic_setting.synonyms[0][0] if topic_setting.synonyms else ""
    if behind and behind not in OF_TIERED and topic_name not in WITHOUT_EFFECT:
        IN_USE[behind] = (
            (lambda broker: broker.partitions[KEY].log.config.is_unclean_allowed)
            if topic_name == "unclean.leader.election.enable"
            else of_log(topic_name)
        )


def two_values(name: str) -> tuple[str, str]:
    """Two that are allowed, the first of them not the default."""
    setting = BROKER_SETTINGS[name]
    if setting.type == BOOLEAN:
        return ("false", "true") if setting.default == "true" else ("true", "false")
    if setting.type == DOUBLE and setting.most is not None:
        return "0.25", "0.75"
    if setting.type == LIST:
        return "compact", "compact,delete"
    if setting.allowed:
        other, default = sorted(setting.allowed, key=lambda value: value == setting.default)
        return other, default
    return "7654321", "6543210"


def test_every_dynamic_setting_is_in_use_or_said_to_have_no_effect() -> None:
    dynamic = {name for name, setting in BROKER_SETTINGS.items() if setting.is_dynamic}
    assert dynamic == {*IN_USE} | OF_THE_GATEWAY | OF_TIERED | (dynamic & WITHOUT_EFFECT.keys())


@pytest.mark.parametrize("name", IN_USE)
def test_dynamic_setting_is_in_use_at_once_and_until_it_is_taken_away(
    tmp_path: Path, name: str
) -> None:
    setting, in_use = BROKER_SETTINGS[name], IN_USE[name]
    cluster, own = two_values(name)
    with broker_family(tmp_path) as family:
        family.boot(*topic())
        default = in_use(family.broker)
        for resource, value, expected in (
            ("", cluster, setting.parse(cluster)),
            ("1", own, setting.parse(own)),
            ("", None, setting.parse(own)),
            ("1", None, default),
        ):
            change(family, name, resource, value)
            assert in_use(family.broker) == expected
