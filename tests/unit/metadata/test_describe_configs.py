"""DescribeConfigs out of an image (compared with Kafka's own answers in the oracle tests)."""

import pytest

from shmbroker.metadata.describe_configs import ENTRIES_MAX, describe_configs
from shmbroker.metadata.group_configs import GROUP_SETTINGS
from shmbroker.metadata.image import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    MetadataImage,
    TopicImage,
)
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.settings.setting import OWN_PREFIX
from shmbroker.settings.table import BROKER_SETTINGS, TOPIC_SETTINGS
from shmbroker.wire import codec
from shmbroker.wire.error_codes import POLICY_VIOLATION

LEVELS = {"root": "WARN", "shmbroker": "DEBUG"}


@pytest.fixture
def image() -> MetadataImage:
    image = MetadataImage("cluster")
    for name in ("t", "plain"):
        image.topics_by_name[name] = TopicImage(name, name.encode().ljust(16), ())
    image.configs = {
        (TOPIC_RESOURCE, "t"): {"retention.ms": " 5 ", "shmbroker.validation": "records"},
        (BROKER_RESOURCE, ""): {"min.insync.replicas": "1", "plugin.key": "secret"},
        (BROKER_RESOURCE, "1"): {"log.segment.bytes": "3000000"},
    }
    return image


def describe(
    image: MetadataImage,
    type_: int,
    name: str,
    *,
    keys: list[str] | None = None,
    with_synonyms: bool = True,
    with_documentation: bool = False,
    version: int = 4,
    **static: str,
) -> dict:
    """The one result, after a way through the codec; configs as a dict by name."""
    config = BrokerConfig({key.replace("_", "."): value for key, value in static.items()})
    request = {
        "resources": [{"resource_type": type_, "resource_name": name, "configuration_keys": keys}],
        "include_synonyms": with_synonyms,
        "include_documentation": with_documentation,
    }
    identity = config.identity(
        1, ["PLAINTEXT://127.0.0.1:9092"], ["PLAINTEXT://127.0.0.1:9092"], "/data/node-1"
    )
    response = describe_configs(request, image, config, 1, identity, lambda: LEVELS)
    body = codec.encode("DescribeConfigsResponse", version, response)
    (result,) = codec.decode_all("DescribeConfigsResponse", version, body)["results"]
    result["configs"] = {entry["name"]: entry for entry in result["configs"]}
    return result


def sources(entry: dict) -> list[tuple[str, str | None, int]]:
    return [(s["name"], s["value"], s["source"]) for s in entry["synonyms"]]


def test_topic_lists_what_kafka_lists(image: MetadataImage) -> None:
    result = describe(image, TOPIC_RESOURCE, "plain")
    assert (result["error_code"], result["error_message"]) == (0, "")
    assert set(result["configs"]) == {
        name for name in TOPIC_SETTINGS if not name.startswith(OWN_PREFIX)
    }
    assert len(result["configs"]) == 33
    entry = result["configs"]["segment.jitter.ms"]
    assert (entry["value"], entry["config_source"], entry["config_type"]) == ("0", 5, 5)
    assert (entry["read_only"], entry["is_sensitive"], entry["synonyms"]) == (False, False, [])


def test_value_and_synonyms_in_order(image: MetadataImage) -> None:
    configs = describe(image, TOPIC_RESOURCE, "t")["configs"]
    assert (configs["retention.ms"]["value"], configs["retention.ms"]["config_source"]) == ("5", 1)
    assert sources(configs["retention.ms"]) == [("retention.ms", "5", 1)]
    assert configs["min.insync.replicas"]["config_source"] == 3
    assert sources(configs["min.insync.replicas"]) == [
        ("min.insync.replicas", "1", 3),
        ("min.insync.replicas", "1", 5),
    ]
    assert sources(configs["segment.bytes"]) == [
        ("log.segment.bytes", "3000000", 2),
        ("log.segment.bytes", "1073741824", 5),
    ]
    assert configs["shmbroker.validation"]["value"] == "records"


def test_static_values(image: MetadataImage) -> None:
    entry = describe(image, TOPIC_RESOURCE, "plain", log_retention_ms="9")["configs"][
        "retention.ms"
    ]
    assert (entry["value"], entry["config_source"]) == ("9", 4)
    assert sources(entry) == [("log.retention.ms", "9", 4), ("log.retention.hours", "168", 5)]


def test_coarser_unit_counts_but_does_not_show(image: MetadataImage) -> None:
    configs = describe(image, TOPIC_RESOURCE, "plain", log_retention_hours="2")["configs"]
    entry = configs["retention.ms"]
    assert (entry["value"], entry["config_source"], entry["synonyms"]) == ("7200000", 5, [])


def test_broker(image: MetadataImage) -> None:
    configs = describe(image, BROKER_RESOURCE, "1", log_retention_hours="2")["configs"]
    shown = {name for name, setting in BROKER_SETTINGS.items() if not setting.is_hidden}
    assert set(configs) == shown | {"plugin.key"}
    assert sources(configs["log.retention.hours"]) == [
        ("log.retention.hours", "2", 4),
        ("log.retention.hours", "168", 5),
    ]
    assert (configs["log.retention.ms"]["value"], sources(configs["log.retention.ms"])) == (
        None,
        [],
    )
    assert (configs["node.id"]["value"], configs["node.id"]["read_only"]) == ("1", True)
    assert configs["log.dirs"]["value"] == "/data/node-1"
    assert configs["log.segment.bytes"]["config_source"] == 2
    assert not configs["log.segment.bytes"]["read_only"]
    plugin = configs["plugin.key"]
    assert (plugin["value"], plugin["is_sensitive"], plugin["read_only"]) == (None, True, True)
    assert sources(plugin) == [("plugin.key", None, 3)]


def test_all_brokers_list_what_is_set_for_all(image: MetadataImage) -> None:
    configs = describe(image, BROKER_RESOURCE, "")["configs"]
    assert set(configs) == {"min.insync.replicas", "plugin.key"}
    assert sources(configs["min.insync.replicas"]) == [("min.insync.replicas", "1", 3)]


def test_what_was_said_of_all_brokers_is_shown_as_it_was_said(image: MetadataImage) -> None:
    said = {"log.cleaner.io.max.bytes.per.second": "5", "log.preallocate": "TRUE"}
    image.configs = {(BROKER_RESOURCE, ""): said}
    shown = describe(image, BROKER_RESOURCE, "")["configs"]
    assert {name: entry["value"] for name, entry in shown.items()} == said
    shown = describe(image, BROKER_RESOURCE, "1")["configs"]
    assert [shown[name]["value"] for name in said] == ["5.0", "true"]


def test_what_only_kafka_goes_by_is_no_secret(image: MetadataImage) -> None:
    said = {
        "listener.name.plaintext.num.network.threads": "4",
        "metric.reporters": "a.B",
        "replica.alter.log.dirs.io.max.bytes.per.second": "7",
    }
    image.configs = {(BROKER_RESOURCE, "1"): said}
    shown = describe(image, BROKER_RESOURCE, "1")["configs"]
    for name, value in said.items():
        entry = shown[name]
        assert (entry["value"], entry["is_sensitive"]) == (value, False)
        assert sources(entry)[0] == (name, value, 2)


def test_what_holds_for_all_listeners_stands_behind_a_listeners_own(image: MetadataImage) -> None:
    own = "listener.name.plaintext.max.connections"
    image.configs = {
        (BROKER_RESOURCE, ""): {own: "5", "max.connections": "6"},
        (BROKER_RESOURCE, "1"): {own: "4"},
    }
    entry = describe(image, BROKER_RESOURCE, "1")["configs"][own]
    assert sources(entry) == [
        (own, "4", 2),
        (own, "5", 3),
        ("max.connections", "6", 3),
        ("max.connections", "2147483647", 5),
    ]


@pytest.mark.parametrize(
    ("type_", "name", "code", "says"),
    [
        (TOPIC_RESOURCE, "none", 3, ""),
        (TOPIC_RESOURCE, "no good", 17, "Topic name is invalid"),
        (BROKER_RESOURCE, "7", 42, "expected 1 or empty string, but received 7"),
        (BROKER_RESOURCE, "x", 42, "Broker id must be an integer, but it is: x"),
        (99, "x", 42, "Unexpected resource type 99"),
        (TOPIC_RESOURCE, "é" * 16_000, 17, "Topic name is invalid"),
    ],
)
def test_refusals(image: MetadataImage, type_: int, name: str, code: int, says: str) -> None:
    result = describe(image, type_, name)
    assert (result["error_code"], result["configs"]) == (code, {})
    assert says in result["error_message"]


def test_keys_choose(image: MetadataImage) -> None:
    chosen = describe(image, TOPIC_RESOURCE, "t", keys=["retention.ms", "nonsense"])
    assert set(chosen["configs"]) == {"retention.ms"}
    assert len(describe(image, TOPIC_RESOURCE, "plain", keys=[])["configs"]) == 33


def test_synonyms_and_documentation_only_where_asked(image: MetadataImage) -> None:
    plain = describe(image, TOPIC_RESOURCE, "t", with_synonyms=False)["configs"]["retention.ms"]
    assert (plain["synonyms"], plain["documentation"]) == ([], None)
    asked = describe(image, TOPIC_RESOURCE, "t", with_documentation=True)["configs"]
    assert all(entry["documentation"].endswith(".") for entry in asked.values())


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_every_version_is_encoded(image: MetadataImage, version: int) -> None:
    assert len(describe(image, TOPIC_RESOURCE, "plain", version=version)["configs"]) == 33


def test_stored_nonsense_is_shown_as_it_is(image: MetadataImage) -> None:
    image.configs[TOPIC_RESOURCE, "plain"] = {"segment.bytes": "much"}
    assert describe(image, TOPIC_RESOURCE, "plain")["configs"]["segment.bytes"]["value"] == "much"


def test_group_takes_its_own_value_before_the_brokers(image: MetadataImage) -> None:
    image.configs = {(GROUP_RESOURCE, "g"): {"consumer.session.timeout.ms": " 50000 "}}
    brokers = {"group_consumer_heartbeat_interval_ms": "6000"}
    configs = describe(image, GROUP_RESOURCE, "g", **brokers)["configs"]
    assert set(configs) == set(GROUP_SETTINGS)
    assert sources(configs["consumer.session.timeout.ms"]) == [
        ("consumer.session.timeout.ms", "50000", 8)
    ]
    assert sources(configs["consumer.heartbeat.interval.ms"]) == [
        ("consumer.heartbeat.interval.ms", "6000", 5)
    ]


def test_client_metrics_subscription(image: MetadataImage) -> None:
    image.configs = {(CLIENT_METRICS_RESOURCE, "m"): {"metrics": "a,b"}}
    configs = describe(image, CLIENT_METRICS_RESOURCE, "m")["configs"]
    assert sources(configs["metrics"]) == [("metrics", "a,b", 7)]
    assert (configs["interval.ms"]["value"], configs["interval.ms"]["synonyms"]) == ("300000", [])


def test_loggers_show_the_levels_that_they_go_by(image: MetadataImage) -> None:
    configs = describe(image, BROKER_LOGGER_RESOURCE, "1")["configs"]
    assert {name: entry["value"] for name, entry in configs.items()} == LEVELS
    assert not any(entry["read_only"] for entry in configs.values())
    assert describe(image, BROKER_LOGGER_RESOURCE, "7")["error_code"] == 42


@pytest.mark.parametrize("kind", [GROUP_RESOURCE, CLIENT_METRICS_RESOURCE, BROKER_LOGGER_RESOURCE])
def test_resource_without_a_name_is_refused(image: MetadataImage, kind: int) -> None:
    assert describe(image, kind, "")["error_code"] == 42


def test_small_request_gets_no_endless_answer(image: MetadataImage) -> None:
    many = [
        *({"resource_type": GROUP_RESOURCE, "resource_name": f"g{n}"} for n in range(20_000)),
        *({"resource_type": TOPIC_RESOURCE, "resource_name": "t"} for _ in range(3)),
    ]
    request = {
        "resources": [resource | {"configuration_keys": ["nope"]} for resource in many],
        "include_synonyms": False,
        "include_documentation": False,
    }
    results = describe_configs(request, image, BrokerConfig(), 1, {}, dict)["results"]
    codes = [result["error_code"] for result in results]
    assert len(codes) == len(many)
    assert codes.count(0) == -(-ENTRIES_MAX // len(GROUP_SETTINGS))
    assert set(codes) == {0, POLICY_VIOLATION}


def test_entries_of_topics_that_set_the_same_are_made_once(monkeypatch):
    from shmbroker.metadata import describe_configs as module

    made = []
    original = module.topic_entries

    def counting(overrides, layers):
        made.append(dict(overrides))
        return original(overrides, layers)

    monkeypatch.setattr(module, "topic_entries", counting)
    image = MetadataImage("cluster")
    names = [f"t-{number}" for number in range(300)]
    for number, name in enumerate(names):
        image.topics_by_name[name] = TopicImage(name, bytes(16), ())
        if number % 2:
            image.configs[TOPIC_RESOURCE, name] = {"retention.ms": "5"}
    request = {
        "resources": [
            {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configuration_keys": None}
            for name in names
        ],
        "include_synonyms": False,
        "include_documentation": False,
    }
    results = module.describe_configs(request, image, BrokerConfig({}), 1, {}, dict)["results"]
    values = [
        next(entry["value"] for entry in each["configs"] if entry["name"] == "retention.ms")
        for each in results
    ]
    assert values == ["604800000", "5"] * 150
    assert made == [{}, {"retention.ms": "5"}]
