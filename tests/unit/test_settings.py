"""Settings: parsing, files and flags, effective values and where they come from."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shmbroker.errors import ConfigFault
from shmbroker.log.config import LogConfig
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.settings.checks import (
    validate_broker_config,
    validate_topic_config,
    validate_topic_configs,
)
from shmbroker.settings.layers import (
    SOURCE_DEFAULT,
    SOURCE_DYNAMIC_BROKER,
    SOURCE_DYNAMIC_DEFAULT_BROKER,
    SOURCE_STATIC_BROKER,
    SOURCE_TOPIC,
    broker_layers,
    effective_topic_config,
    effective_topic_configs,
)
from shmbroker.settings.left_out import LEFT_OUT, left_out_complaint
from shmbroker.settings.setting import INT, TYPE_NAMES, Setting
from shmbroker.settings.table import BROKER_SETTINGS, TOPIC_SETTINGS, address_limits
from shmbroker.settings.without_effect import WITHOUT_EFFECT, idle_complaint

SETTINGS = [*TOPIC_SETTINGS.values(), *BROKER_SETTINGS.values()]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_is_whole(setting: Setting) -> None:
    assert setting.type in TYPE_NAMES
    assert setting.documentation.endswith(".")
    if setting.default is not None:
        assert setting.text(setting.parse(setting.default)) == setting.default
    for name, factor in setting.synonyms:
        assert BROKER_SETTINGS[name].type in (setting.type, INT)
        assert factor >= 1


def test_a_topic_default_is_what_its_synonyms_come_to() -> None:
    for setting in TOPIC_SETTINGS.values():
        defaults = [
            int(BROKER_SETTINGS[name].default) * factor
            for name, factor in setting.synonyms
            if factor > 1 and BROKER_SETTINGS[name].default
        ]
        assert all(str(default) == setting.default for default in defaults), setting.name


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("log.segment.bytes", " 2000000 ", 2000000),
        ("log.segment.bytes", "+2000000", 2000000),
        ("log.retention.bytes", "-9223372036854775808", -(2**63)),
        ("log.retention.bytes", "9223372036854775807", 2**63 - 1),
        ("auto.create.topics.enable", "FALSE", False),
        ("log.cleaner.min.cleanable.ratio", "1e-1", 0.1),
        ("log.cleanup.policy", "compact , delete", ["compact", "delete"]),
        ("log.cleanup.policy", "", []),
        ("log.cleanup.policy", "delete,delete", ["delete"]),
        ("broker.rack", " a b ", "a b"),
        ("leader.replication.throttled.replicas", "1:2,,", ["1:2"]),
    ],
)
def test_text_is_parsed_as_kafka_does(name: str, text: str, value: object) -> None:
    assert (BROKER_SETTINGS | TOPIC_SETTINGS)[name].parse(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "-", "1_0", "٣", "1.0", "0x1", "9223372036854775808", "-9223372036854775809", "1" * 5000],
)
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Not a number of type LONG"):
        BROKER_SETTINGS["log.retention.bytes"].parse(text)


@pytest.mark.parametrize("text", ["", "x", "1_0", "0.1,", "--1"])
def test_what_is_no_fraction_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Not a number of type DOUBLE"):
        BROKER_SETTINGS["log.cleaner.min.cleanable.ratio"].parse(text)


@given(text=st.text())
@example(",")
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for setting in SETTINGS:
        try:
            value = setting.parse(text)
        except ValueError:
            continue
        assert setting.parse(setting.text(value)) == value or value != value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (1.0, "1.0"),
        (1e-4, "1.0E-4"),
        (1.5e-7, "1.5E-7"),
        (1e7, "1.0E7"),
        (123456789.0, "1.23456789E8"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
    ],
)
def test_fractions_are_printed_as_java_does(value: float, text: str) -> None:
    assert BROKER_SETTINGS["log.cleaner.min.cleanable.ratio"].text(value) == text


def test_units() -> None:
    assert TOPIC_SETTINGS["segment.bytes"].unit == "bytes"
    assert TOPIC_SETTINGS["retention.ms"].unit == "milliseconds"
    assert BROKER_SETTINGS["num.partitions"].unit == ""


# --- files and flags ---


def test_defaults() -> None:
    config = BrokerConfig()
    assert config["shmbroker.port"] == 9092
    assert config["shmbroker.host"] == "127.0.0.1"
    assert config["shmbroker.network.workers"] is None
    assert config["log.retention.ms"] is None
    assert config["log.retention.hours"] == 168
    assert config.static == {}


def test_toml_tables_and_types(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(
        '[log]\nsegment.bytes = 2000000\ncleanup.policy = ["delete", "compact"]\n'
        "cleaner.min.cleanable.ratio = 0.25\n[auto]\ncreate.topics.enable = false\n"
    )
    config = BrokerConfig.load(str(path))
    assert config["log.segment.bytes"] == 2000000
    assert config["log.cleanup.policy"] == ["delete", "compact"]
    assert config["log.cleaner.min.cleanable.ratio"] == 0.25
    assert config["auto.create.topics.enable"] is False
    assert config.static["auto.create.topics.enable"] == "false"


def test_toml_names_of_which_one_begins_the_other(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text('"max.connections" = 10\n"max.connections.per.ip" = 5\n')
    config = BrokerConfig.load(str(path))
    assert (config["max.connections"], config["max.connections.per.ip"]) == (10, 5)


def test_properties(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(
        "# comment\n! another\n\n num.partitions = 3 \nlog.retention.hours: 5\n"
        "log.cleanup.policy=delete,\\\n  compact\nbroker.rack=a=b\n"
    )
    config = BrokerConfig.load(str(path))
    assert (config["num.partitions"], config["log.retention.hours"]) == (3, 5)
    assert config["log.cleanup.policy"] == ["delete", "compact"]
    assert config["broker.rack"] == "a=b"


def test_properties_as_java_stores_them(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(
        "#Tue Nov 24 09:34:26 UTC 2026\nbroker.rack=r\\u00E4ck\\\\\n"
        "listeners=PLAINTEXT\\://\\:9092\nnum.partitions=3\\"
    )
    config = BrokerConfig.load(str(path))
    assert config["broker.rack"] == "r\u00e4ck\\"
    assert config.listeners[0].port == 9092
    assert config["num.partitions"] == 3


@pytest.mark.parametrize("text", ["=5\n", "broker.rack=\\u00e\n"])
def test_properties_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "server.properties"
    path.write_text(text)
    with pytest.raises(ConfigFault, match="can't be understood"):
        BrokerConfig.load(str(path))


@pytest.mark.parametrize("ending", ["toml", "properties"])
def test_a_file_without_an_end_is_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"p.{ending}"
    path.symlink_to("/dev/zero")
    with pytest.raises(ConfigFault, match="can't be understood: it has more than 1 MiB"):
        BrokerConfig.load(str(path))


def test_flags_win_over_assignments_and_these_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "p.properties"
    path.write_text("num.partitions=2\nshmbroker.port=1\nshmbroker.host=h\n")
    config = BrokerConfig.load(
        str(path),
        ["shmbroker.port=2", "shmbroker.host=i"],
        [("--port", "shmbroker.port", "3")],
    )
    assert (config["num.partitions"], config["shmbroker.host"]) == (2, "i")
    assert config["shmbroker.port"] == 3


def test_listeners_of_a_server_properties_hold(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("listeners=PLAINTEXT://:9092\nadvertised.listeners=PLAINTEXT://k.org:19092\n")
    [listener] = BrokerConfig.load(str(path)).listeners
    assert (listener.host, listener.port) == ("", 9092)
    assert (listener.told_host, listener.told_port) == ("k.org", 19092)


@pytest.mark.parametrize(
    ("assignments", "says"),
    [
        (["log.segmnt.bytes=1"], "did you mean log.segment.bytes?"),
        (["retention.ms=1"], "for all topics it is called log.retention.ms."),
        (
            ["zzzzzz=1"],
            "given by --set is no setting of a broker; `shmbroker config explain`",
        ),
        (["num.partitions"], "--set takes key=value, not 'num.partitions'."),
        (["num.partitions=x"], "Not a number of type INT, given by --set."),
        (["log.dirs=/x"], "can't be set here; name it with --log-dir (shmbroker.log.dirs)."),
        (["log.dir=/x"], "can't be set here; name it with --log-dir (shmbroker.log.dirs)."),
        (["process.roles=broker"], "--controllers (shmbroker.controllers) say how many."),
        (["controller.quorum.voters=1@h:9093"], "--controllers (shmbroker.controllers) says"),
        (["controller.quorum.bootstrap.servers=h:9093"], "--controllers (shmbroker.controllers)"),
        (["controller.listener.names=CONTROLLER"], "controllers have Unix sockets"),
        (["node.id=-1"], "at least 0"),
        (["shmbroker.replicas=3", "shmbroker.io.workers=2"], "3 replicas need as many brokers"),
        (["default.replication.factor=3"], "there are 1 brokers"),
        (["shmbroker.ring.data.bytes=100000"], "power of two"),
        (["shmbroker.watchdog.kill.ms=500"], "Value must be 0 or at least 2000"),
        (["log.retention.hours=0"], "Value must be -1, or at least 1"),
        (["log.retention.minutes=0"], "Value must be -1, or at least 1"),
        (["max.connections.per.ip=0"], "which nobody can connect with"),
        (["max.connections.per.ip.overrides=localhost:1"], "Value must be ADDRESS:NUMBER"),
        (["max.connections.per.ip.overrides=127.0.0.1"], "does not end with : and a number"),
        (["max.connections.per.ip.overrides=127.0.0.1:-1"], "does not end with : and a number"),
        (["shmbroker.port=65530", "shmbroker.io.workers=7"], "leaves no room for 7 ports"),
    ],
)
def test_fault_is_one_sentence_with_the_fix(assignments: list[str], says: str) -> None:
    with pytest.raises(ConfigFault) as fault:
        BrokerConfig.load(None, assignments)
    assert says in str(fault.value)
    assert str(fault.value)[-1] in ".?"
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("b.toml", b"a = "),
        ("b.toml", b"num.partitions = 2024-01-01"),
        ("b.toml", b"\xff"),
        ("b.properties", b"num.partitions"),
        ("b.properties", b"\xff=1"),
        ("b.properties", b"=1"),
    ],
)
def test_file_that_is_not_understood_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigFault, match=name):
        BrokerConfig.load(str(path))


def test_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigFault, match=r"none\.toml can't be read"):
        BrokerConfig.load(str(tmp_path / "none.toml"))


# --- topic settings ---


def test_topic_config_complaints() -> None:
    assert validate_topic_config("retention.ms", "5") is None
    assert validate_topic_config("nonsense", "5") == "Unknown topic config name: nonsense"
    assert "Null value not supported" in validate_topic_config("retention.ms", None)
    assert "at least -1" in validate_topic_config("retention.ms", "-2")
    assert validate_topic_configs({"retention.ms": "5", "segment.ms": "6"}) is None
    lags = {"min.compaction.lag.ms": "7", "max.compaction.lag.ms": "6"}
    assert "conflict" in validate_topic_configs(lags)
    assert validate_broker_config("log.roll.ms", "0") is not None
    assert validate_broker_config("somebodys.plugin", "0") is None


def test_value_comes_from_the_nearest_place_that_has_one() -> None:
    static = BrokerConfig({"log.segment.bytes": "2000000"})
    places = [
        ({"segment.bytes": "5000000"}, {"log.segment.bytes": "4000000"}, {"x": "3"}),
        ({}, {"log.segment.bytes": "4000000"}, {"log.segment.bytes": "3000000"}),
        ({}, {}, {"log.segment.bytes": "3000000"}),
        ({}, {}, {}),
    ]
    found = [
        effective_topic_config("segment.bytes", overrides, broker_layers(static, broker, all_))
        for overrides, broker, all_ in places
    ]
    assert found == [
        ("5000000", SOURCE_TOPIC),
        ("4000000", SOURCE_DYNAMIC_BROKER),
        ("3000000", SOURCE_DYNAMIC_DEFAULT_BROKER),
        ("2000000", SOURCE_STATIC_BROKER),
    ]
    layers = broker_layers(BrokerConfig(), {}, {})
    assert effective_topic_config("segment.bytes", {}, layers) == ("1073741824", SOURCE_DEFAULT)


@pytest.mark.parametrize(
    ("static", "retention_ms"),
    [
        ({}, "604800000"),
        ({"log.retention.hours": "2"}, "7200000"),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, "180000"),
        ({"log.retention.hours": "2", "log.retention.ms": "4"}, "4"),
    ],
)
def test_finer_unit_wins(static: dict[str, str], retention_ms: str) -> None:
    layers = broker_layers(BrokerConfig(static), {}, {})
    assert effective_topic_config("retention.ms", {}, layers)[0] == retention_ms


def test_a_log_takes_every_effective_value() -> None:
    overrides = {
        "retention.ms": " 5 ",
        "compression.type": " gzip ",
        "preallocate": "TRUE",
        "cleanup.policy": "compact, delete",
        "min.cleanable.dirty.ratio": "1e-1",
        "segment.bytes": "not a number",
        "of.another.version": "x",
    }
    values = effective_topic_configs(overrides, broker_layers(BrokerConfig(), {}, {}))
    assert set(values) == set(TOPIC_SETTINGS)
    assert (values["retention.ms"], values["compression.type"]) == ("5", "gzip")
    assert (values["preallocate"], values["cleanup.policy"]) == ("true", "compact,delete")
    assert values["segment.bytes"] == "1073741824", "what can't be used gives way to the default"
    log_config = LogConfig(values)
    assert (log_config.retention_ms, log_config.is_compacted) == (5, True)


def test_identity_says_what_a_broker_is() -> None:
    identity = BrokerConfig().identity(
        2, ["PLAINTEXT://127.0.0.1:9093"], ["PLAINTEXT://127.0.0.1:9093"], "/data/node-2"
    )
    assert identity["node.id"] == identity["broker.id"] == "2"
    assert identity["listeners"] == "PLAINTEXT://127.0.0.1:9093"
    assert identity.keys() <= BROKER_SETTINGS.keys()


TIERED = {"remote.storage.enable": "true"}


@pytest.mark.parametrize(
    ("configs", "before", "complaint"),
    [
        (TIERED, {}, None),
        (TIERED | {"cleanup.policy": ""}, {}, None),
        (TIERED | {"cleanup.policy": "compact"}, {}, "only supports topics with cleanup.policy"),
        (TIERED | {"cleanup.policy": "compact,delete"}, {}, "only supports topics with"),
        (TIERED | {"local.retention.ms": "-1"}, {}, "Value must not be -1 as retention.ms value"),
        (TIERED | {"local.retention.ms": "-1", "retention.ms": "-1"}, {}, None),
        (
            TIERED | {"local.retention.ms": "9", "retention.ms": "8"},
            {},
            "Invalid value 9 for configuration local.retention.ms: "
            "Value must not be more than retention.ms property value: 8",
        ),
        (TIERED | {"local.retention.bytes": "9"}, {}, None),
        (TIERED | {"local.retention.bytes": "9", "retention.bytes": "8"}, {}, "more than"),
        (TIERED | {"local.retention.bytes": "-2", "retention.bytes": "8"}, {}, None),
        (TIERED | {"remote.log.copy.disable": "true"}, {}, None),
        (
            TIERED | {"remote.log.copy.disable": "true", "local.retention.ms": "5"},
            {},
            "the `local.retention.ms` and `retention.ms` must be set to the identical value",
        ),
        ({"local.retention.ms": "-1"}, {}, None),
        ({}, TIERED, "invalid to disable remote storage without deleting remote data"),
        ({"remote.log.delete.on.disable": "true"}, TIERED, None),
    ],
)
def test_tiered_topic_is_refused_as_by_kafka(configs, before, complaint):
    config = BrokerConfig({"remote.log.storage.system.enable": "true"})
    found = validate_topic_configs(configs, before, config)
    assert found is None if complaint is None else complaint in found


def test_tiered_topic_needs_a_store():
    disabled = "Tiered Storage functionality is disabled in the broker."
    named = {"shmbroker.tier.store": "s3://b"}
    off = BrokerConfig(named | {"remote.log.storage.system.enable": "false"})
    assert validate_topic_configs(TIERED, {}, BrokerConfig(named)) is None
    for broker in (None, BrokerConfig(), off):
        assert validate_topic_configs(TIERED, {}, broker).startswith(disabled)
    with pytest.raises(ConfigFault, match="must not be more than"):
        BrokerConfig(named | {"log.local.retention.bytes": "9", "log.retention.bytes": "8"})


def test_limits_of_addresses() -> None:
    text = " 10.0.0.1:5, ::1:7,[2001:db8::0]:0 "
    assert address_limits(text) == {"10.0.0.1": 5, "::1": 7, "2001:db8::": 0}
    assert address_limits("") == {}
    static = ["max.connections.per.ip=0", f"max.connections.per.ip.overrides={text}"]
    assert BrokerConfig.load(None, static)["max.connections.per.ip.overrides"] == text.strip()


@pytest.mark.parametrize("name", sorted(WITHOUT_EFFECT))
def test_setting_without_effect_says_so(name: str) -> None:
    sentence = f"{name} has no effect here: {WITHOUT_EFFECT[name]}"
    assert idle_complaint(name, "7") == sentence
    for table in (BROKER_SETTINGS, TOPIC_SETTINGS):
        if name in table:
            assert table[name].documentation.endswith(
                f" It has no effect here: {WITHOUT_EFFECT[name]}"
            )
    if name in BROKER_SETTINGS and BROKER_SETTINGS[name].type == INT:
        assert BrokerConfig.load(None, [f"{name}=7"]).idle_complaints() == [sentence]


def test_settings_that_mean_nothing_here_are_left_out(tmp_path: Path) -> None:
    assert not LEFT_OUT.keys() & (BROKER_SETTINGS.keys() | WITHOUT_EFFECT.keys())
    file = tmp_path / "server.properties"
    file.write_text("\n".join(f"{name}=7" for name in LEFT_OUT) + "\nnum.partitions=3\n")
    config = BrokerConfig.load(str(file))
    assert config.static == {"num.partitions": "3"}
    assert config.idle_complaints() == [left_out_complaint(LEFT_OUT)]
    one = BrokerConfig.load(None, ["socket.send.buffer.bytes=1024"])
    assert one.idle_complaints() == [
        "socket.send.buffer.bytes is a setting of Apache Kafka that means nothing here; left out "
        "(shmbroker config explain NAME says why)."
    ]


def test_what_says_how_it_is_anyway_is_no_complaint() -> None:
    set_ = ["compression.type=producer", "log.cleaner.threads=1", "num.partitions=3"]
    assert BrokerConfig.load(None, set_).idle_complaints() == []
