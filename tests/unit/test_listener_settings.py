"""Listeners as the settings have them: what is understood, and what is refused with which words."""

import pytest

from shmbroker.errors import ConfigFault
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.settings.listeners import (
    PLAINTEXT,
    SASL_SSL,
    SSL,
    UNIX,
    ListenerConfig,
    parse,
)

MAP = ["PLAINTEXT:PLAINTEXT", "SSL:SSL", "PUBLIC:SASL_SSL", "local:UNIX"]


@pytest.mark.parametrize(
    "text, found",
    [
        ("PLAINTEXT://127.0.0.1:9092", ListenerConfig("PLAINTEXT", PLAINTEXT, "127.0.0.1", 9092)),
        ("plaintext://:9092", ListenerConfig("PLAINTEXT", PLAINTEXT, "", 9092)),
        ("SSL://[::1]:9093", ListenerConfig("SSL", SSL, "::1", 9093)),
        ("PUBLIC://kafka.example:0", ListenerConfig("PUBLIC", SASL_SSL, "kafka.example", 0)),
        ("LOCAL:///run/k.sock", ListenerConfig("LOCAL", UNIX, "/run/k.sock", -1)),
    ],
)
def test_a_listener_is_understood(text: str, found: ListenerConfig) -> None:
    assert parse([text], [], MAP, 1) == [found]


@pytest.mark.parametrize(
    "listeners, advertised, words",
    [
        ([], [], "listeners is empty"),
        (["9092"], [], "takes NAME://HOST:PORT"),
        (["PLAINTEXT://h:70000"], [], "takes NAME://HOST:PORT"),
        (["OTHER://h:9092"], [], "listener.security.protocol.map doesn't"),
        (["SSL://h:1", "ssl://h:9"], [], "names SSL twice"),
        (["PLAINTEXT://h:9092", "SSL://h:9092"], [], "ports in common"),
        (["PLAINTEXT://h:9092", "SSL://h:9093"], [], "ports in common"),
        (["PLAINTEXT://h:65535"], [], "no room for 2 ports"),
        (["PLAINTEXT:///run/k"], [], "must be NAME://HOST:PORT"),
        (["LOCAL://h:9092"], [], "must be UNIX:///path"),
        (["LOCAL:///" + "x" * 100], [], "too long for a Unix socket"),
        (["PLAINTEXT://h:9092"], ["SSL://h:9093"], "listeners doesn't"),
        (["PLAINTEXT://h:9092"], ["PLAINTEXT://0.0.0.0:1"], "no client reaches"),
        (["PLAINTEXT://h:9092"], ["PLAINTEXT://a:1", "PLAINTEXT://b:1"], "twice"),
        (["LOCAL:///run/k"], ["LOCAL://h:1"], "are told its path"),
    ],
)
def test_what_does_not_go_together_is_refused(
    listeners: list[str], advertised: list[str], words: str
) -> None:
    with pytest.raises(ConfigFault, match=words.replace(".", "[.]")):
        parse(listeners, advertised, MAP, 2)


def test_ipv4_and_ipv6_may_share_a_port() -> None:
    assert len(parse(["PLAINTEXT://127.0.0.1:9092", "SSL://[::1]:9092"], [], MAP, 1)) == 2


def test_each_broker_has_its_place() -> None:
    tcp, unix = parse(["PLAINTEXT://h:9092", "LOCAL:///k"], ["PLAINTEXT://x:80"], MAP, 3)
    assert [tcp.port_of(place) for place in range(3)] == [9092, 9093, 9094]
    assert [tcp.told_port_of(place, 1) for place in range(3)] == [80, 81, 82]
    assert [unix.path_of(place) for place in range(3)] == ["/k", "/k-2", "/k-3"]


@pytest.mark.parametrize(
    "host, is_local",
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("", False), ("10.0.0.1", False)],
)
def test_who_stays_on_this_host(host: str, is_local: bool) -> None:
    assert ListenerConfig("A", PLAINTEXT, host, 1).is_local is is_local


def test_a_setting_of_one_listener_goes_before_that_of_all() -> None:
    config = BrokerConfig(
        {
            "listeners": "SSL://:9093,PLAINTEXT://:9092",
            "ssl.client.auth": "requested",
            "listener.name.ssl.ssl.client.auth": "required",
            "listener.name.ssl.plain.sasl.jaas.config": "secret",
        }
    )
    assert config.of_listener("SSL", "ssl.client.auth") == "required"
    assert config.of_listener("PLAINTEXT", "ssl.client.auth") == "requested"
    assert config.of_listener("SSL", "sasl.jaas.config", "PLAIN") == "secret"
    assert config.of_listener("SSL", "sasl.jaas.config", "OAUTHBEARER") is None


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"listeners": "PLAINTEXT://:9092", "shmbroker.port": "9092"}, "are both set"),
        ({"listener.name.other.ssl.client.auth": "none"}, "there is none"),
        ({"listener.name.plaintext.log.retention.ms": "1"}, "is no setting of a broker"),
        ({"listener.name.plaintext.ssl.client.auth": "maybe"}, "must be one of"),
    ],
)
def test_settings_of_listeners_that_are_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigFault, match=words):
        BrokerConfig(settings)
