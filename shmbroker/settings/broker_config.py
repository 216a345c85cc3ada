"""The static settings of the family: file, flags and defaults, checked against each other.

Rules of this file:
* A value comes in as text. Its row in `table` parses and bounds it; what several settings must be
  to each other is checked here, when all are in.
* What is wrong is a ConfigFault: one sentence, with the fix.
* A setting of Kafka's with another name here is taken for that; one that another setting here
  says is refused, with that one's name (`INSTEAD`); one that means nothing here is left out
  (`left_out`).
"""

from __future__ import annotations

from shmbroker.errors import ConfigFault
from shmbroker.settings import listeners as listening
from shmbroker.settings.files import read_settings
from shmbroker.settings.layers import SOURCE_STATIC_BROKER, effective_topic_config
from shmbroker.settings.left_out import LEFT_OUT, left_out_complaint
from shmbroker.settings.table import (
    BROKER_SETTINGS,
    LISTENER_PREFIX,
    TOPIC_SETTINGS,
    broker_setting,
)
from shmbroker.settings.without_effect import idle_complaint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from typing import Any


_KAFKAS_NAMES = {"node.id": "shmbroker.node.id", "broker.id": "shmbroker.node.id"}
"""What Kafka's server.properties calls a setting that here is one of the family."""

_NAME_DIRECTORIES = "name it with --log-dir (shmbroker.log.dirs)"
_SAY_CONTROLLERS = (
    "leave it out: the controllers of the family vote, and --controllers (shmbroker.controllers) "
    "says how many there are"
)
INSTEAD = {
    "log.dirs": _NAME_DIRECTORIES,
    "log.dir": _NAME_DIRECTORIES,
    "process.roles": "leave it out: a family has brokers and controllers, and --io-workers "
    "(shmbroker.io.workers) and --controllers (shmbroker.controllers) say how many",
    "controller.quorum.voters": _SAY_CONTROLLERS,
    "controller.quorum.bootstrap.servers": _SAY_CONTROLLERS,
    "controller.listener.names": "leave it out: controllers have Unix sockets, and no listener",
}
"""What says here what these settings of Kafka's server.properties say."""


class BrokerConfig:
    """The static settings of the family: what file and flags say, over the defaults."""

    __slots__ = ("_derived", "_left_out", "_values", "nodes", "static")

    def __init__(self, static: Mapping[str, str] | None = None) -> None:
        """`static`: setting to text, for those that were set; ConfigFault for a wrong one."""
        self.nodes: dict[int, str] = {}
        """The log directory of each broker by its id, in the order of ports and slots: what was
        found on the disk decides on ids, so the supervisor fills it in before it forks."""
        self.static: dict[str, str] = {}
        """What was set, as text; DescribeConfigs calls it the static broker config."""
        self._derived: set[str] = set()
        """Names in `static` that follow from other settings."""
        self._left_out: set[str] = set()
        """Settings of Kafka's that were set and mean nothing here."""
        self._values = dict(_defaults)
        for name, text in (static or {}).items():
            self._set(name, text, "")
        self._check()

    @classmethod
    def load(
        cls,
        path: str | None = None,
        assignments: Sequence[str] = (),
        flags: Iterable[tuple[str, str, str]] = (),
    ) -> BrokerConfig:
        """Load a file (TOML if its name ends so, else Java properties), `--set key=value`
        assignments, and flags as (flag, setting, text); the later of these wins.

        ConfigFault, one sentence with the fix, for anything unknown, malformed or not allowed.
        """
        config = cls()
        if path is not None:
            for name, text in read_settings(path).items():
                config._set(name, text, f" in {path}")
        for assignment in assignments:
            name, equals, text = assignment.partition("=")
            if not equals:
                raise ConfigFault(f"--set takes key=value, not {assignment!r}.")
            config._set(name.strip(), text, " given by --set")
        for flag, name, text in flags:
            config._set(name, text, f" given by {flag}")
        config._check()
        return config

    def __getitem__(self, name: str) -> Any:
        """The parsed value of a broker setting; None where it has neither value nor default."""
        return self._values.get(name) if name.startswith(LISTENER_PREFIX) else self._values[name]

    @property
    def given(self) -> dict[str, str]:
        """What was set, as text, without what follows from it."""
        return {name: text for name, text in self.static.items() if name not in self._derived}

    def adopt(self, other: BrokerConfig) -> None:
        """Have the values of another one from here on; directories stay."""
        self.static, self._values, self._derived = other.static, other._values, other._derived

    @property
    def is_tier_enabled(self) -> bool:
        """Whether there is a remote store: said, or one is named and nothing else said."""
        if "remote.log.storage.system.enable" in self.static:
            return bool(self["remote.log.storage.system.enable"])
        return self["shmbroker.tier.store"] is not None

    @property
    def has_authorizer(self) -> bool:
        """Whether requests are judged by ACLs."""
        return bool(self["authorizer.class.name"])

    @property
    def needs_acls(self) -> bool:
        """Whether ACLs alone give rights, so that somebody needs one to add the first."""
        is_open: bool = self["allow.everyone.if.no.acl.found"]
        return self.has_authorizer and not self.super_users and not is_open

    @property
    def is_audited(self) -> bool:
        """Whether denials and changes are logged: said, or there is an authorizer."""
        said: bool | None = self["shmbroker.audit"]
        return self.has_authorizer if said is None else said

    @property
    def has_secrets(self) -> bool:
        """Whether passwords, keys or tokens are in the memory of a family with these settings."""
        given = (broker_setting(name) for name in self.static)
        return any(setting is not None and setting.is_secret for setting in given) or any(
            one.has_tls or one.has_sasl for one in self.listeners
        )

    @property
    def super_users(self) -> frozenset[str]:
        """The principals who may do everything."""
        parts = (part.strip() for part in self["super.users"].split(";"))
        return frozenset(part for part in parts if part)

    @property
    def listeners(self) -> list[listening.ListenerConfig]:
        """Where clients come in, in the order of the settings."""
        texts = self["listeners"]
        if texts is None:
            address = listening.address_text(self["shmbroker.host"], self["shmbroker.port"])
            texts = [f"PLAINTEXT://{address}"]
        return listening.parse(
            texts,
            self["advertised.listeners"] or (),
            self["listener.security.protocol.map"],
            self["shmbroker.io.workers"],
        )

    def of_listener(self, listener: str, name: str, mechanism: str = "") -> Any:
        """The value of a setting for one listener, or for a SASL mechanism of it: its own, or what
        holds for all. None where it has neither value nor default."""
        prefix = f"{LISTENER_PREFIX}{listener.lower()}."
        for full in (f"{prefix}{mechanism.lower()}.{name}", prefix + name):
            if full in self._values:
                return self._values[full]
        return self._values[name]

    def identity(
        self, broker_id: int, listeners: Iterable[str], told: Iterable[str], log_dir: str
    ) -> dict[str, str]:
        """What one broker of the family is, as the settings that Kafka says it with. listeners:
        where it listens; told: the addresses that clients are told."""
        return {
            "node.id": str(broker_id),
            "broker.id": str(broker_id),
            "log.dirs": log_dir,
            "listeners": ",".join(listeners),
            "advertised.listeners": ",".join(told),
        }

    def idle_complaints(self) -> list[str]:
        """Sentences about settings that were set and change nothing."""
        complaints = [idle_complaint(name, text) for name, text in self.static.items()]
        if self["shmbroker.console.writes"] and self["shmbroker.console"] is None:
            complaints.append(
                "shmbroker.console.writes (--console-writes) has no effect here: there is no "
                "console without shmbroker.console (--console HOST:PORT)."
            )
        if self._left_out:
            complaints.append(left_out_complaint(self._left_out))
        return [complaint for complaint in complaints if complaint is not None]

    def places(self, data_directory: str) -> list[str]:
        """Where the log directory of each broker is, or is to be made."""
        named: list[str] = self["shmbroker.log.dirs"]
        first = self["shmbroker.node.id"]
        unnamed = range(first + len(named), first + self["shmbroker.io.workers"])
        return [*named, *(f"{data_directory}/node-{number}" for number in unnamed)]

    @property
    def broker_ids(self) -> Collection[int]:
        """Ids of the family's brokers, in order of slots."""
        first = self["shmbroker.node.id"]
        return self.nodes or range(first, first + self["shmbroker.io.workers"])

    def metadata_directory(self, number: int) -> str:
        """The metadata log of controller `number`, beside the broker of the same id."""
        return self.nodes[number] + "/__cluster_metadata-0"

    def _set(self, name: str, text: str, where: str) -> None:
        name = _KAFKAS_NAMES.get(name, name)
        if name.startswith(LISTENER_PREFIX):
            name = name.lower()
        if name in INSTEAD:
            raise ConfigFault(f"{name}{where} can't be set here; {INSTEAD[name]}.")
        if name in LEFT_OUT:
            self._left_out.add(name)
            return
        setting = broker_setting(name)
        if setting is None:
            raise ConfigFault(f"{name}{where} is no setting of a broker{setting_meant(name)}")
        try:
            self._values[name] = setting.parse(text)
        except ValueError as refusal:
            raise ConfigFault(f"{str(refusal).rstrip('.')}{where and ','}{where}.") from None
        self.static[name] = text

    def _follow_replicas(self) -> None:
        """Settings that shmbroker.replicas is the default of."""
        replicas = self["shmbroker.replicas"]
        if replicas == 1:
            return
        if replicas > self["shmbroker.io.workers"]:
            if "shmbroker.io.workers" in self.static:
                raise ConfigFault(
                    f"{replicas} replicas need as many brokers, but --io-workers is "
                    f"{self['shmbroker.io.workers']}: raise it, or lower --replicas."
                )
            self._set("shmbroker.io.workers", str(replicas), "")
            self._derived.add("shmbroker.io.workers")
        for name, value in (
            ("default.replication.factor", replicas),
            ("offsets.topic.replication.factor", min(replicas, 3)),
            ("transaction.state.log.replication.factor", min(replicas, 3)),
            ("transaction.state.log.min.isr", 2 if replicas >= 3 else 1),
            ("min.insync.replicas", 2 if replicas >= 3 else 1),
        ):
            if name not in self.static:
                self._set(name, str(value), "")
                self._derived.add(name)

    def _check(self) -> None:
        self._follow_replicas()
        workers = self["shmbroker.io.workers"]
        self._check_listeners()
        if self["shmbroker.controllers"] > workers:
            raise ConfigFault(
                f"{self['shmbroker.controllers']} controllers need as many brokers to lie beside, "
                f"but there are {workers}: raise --replicas or --io-workers."
            )
        named = len(self["shmbroker.log.dirs"])
        if named > workers:
            raise ConfigFault(
                f"{named} log directories are named for {workers} brokers: name fewer, or raise "
                "--replicas or --io-workers."
            )
        if not self["max.connections.per.ip"] and not self["max.connections.per.ip.overrides"]:
            raise ConfigFault(
                "max.connections.per.ip is 0, which nobody can connect with: raise it, or name "
                "addresses in max.connections.per.ip.overrides."
            )
        for name in (
            "default.replication.factor",
            "offsets.topic.replication.factor",
            "transaction.state.log.replication.factor",
        ):
            if self[name] > workers:
                raise ConfigFault(
                    f"{name} is {self[name]}, but there are {workers} brokers: "
                    "lower it, or raise shmbroker.io.workers."
                )
        for what in ("heartbeat.interval.ms", "session.timeout.ms"):
            least, value, most = (
                self[f"group.consumer.{which}{what}"] for which in ("min.", "", "max.")
            )
            if not least <= value <= most:
                raise ConfigFault(
                    f"group.consumer.{what} is {value}, but must lie between "
                    f"group.consumer.min.{what} ({least}) and group.consumer.max.{what} ({most})."
                )
        if self["shmbroker.port"] + workers - 1 > 65535:
            raise ConfigFault(
                f"shmbroker.port {self['shmbroker.port']} leaves no room for {workers} ports."
            )
        for what in ("bytes", "ms"):
            total, local = (
                int(effective_topic_config(name, {}, ((SOURCE_STATIC_BROKER, self.static),))[0])
                for name in (f"retention.{what}", f"local.retention.{what}")
            )
            if self.is_tier_enabled and total >= 0 and (local == -1 or local > total):
                raise ConfigFault(
                    f"log.local.retention.{what} is {local}, but must not be more than "
                    f"log.retention.{what} ({total})."
                )

    def _check_listeners(self) -> None:
        names = {one.name for one in self.listeners}
        if self["listeners"] is not None:
            for other, flag in (("shmbroker.host", "--host"), ("shmbroker.port", "--port")):
                if other in self.static:
                    raise ConfigFault(
                        f"listeners and {other} are both set: say in listeners where to listen, "
                        f"and leave out {other} ({flag})."
                    )
        for setting in self.static:
            if setting.startswith(LISTENER_PREFIX):
                name = setting.removeprefix(LISTENER_PREFIX).partition(".")[0]
                if name.upper() not in names:
                    raise ConfigFault(
                        f"{setting} is about a listener {name.upper()}, but there is none: add it "
                        "to listeners, or correct the name."
                    )


def setting_meant(name: str) -> str:
    """The end of a sentence that a name is no setting of a broker: which one was meant."""
    setting = TOPIC_SETTINGS.get(name)
    if setting is not None and setting.synonyms:
        return f" but of a topic; for all topics it is called {setting.synonyms[0][0]}."
    import difflib  # 5 ms, and only ever for a typo

    close = difflib.get_close_matches(name, BROKER_SETTINGS, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return "; `shmbroker config explain` lists them."


_defaults = {
    name: None if setting.default is None else setting.parse(setting.default)
    for name, setting in BROKER_SETTINGS.items()
}
