"""How the commands reach a cluster: one set of options, one way to ask, one way to fail.

The client library is confluent-kafka (librdkafka), so any Kafka cluster will do. It is imported
when first needed: 0.1 s, more than the rest of a command takes. A few questions are asked by our
own client; both take TLS and SASL from the profile (`client.profiles`), and from -X above it.

Rules
 * Whether a Kafka listens is tried first (`probe`), and what the library finds wrong with
   certificates or passwords ends a command: librdkafka by itself goes on trying for minutes, and
   says so only in its log.
 * No question waits longer than `ASK_S`, no answer that changes something than `CHANGE_S`.
 * librdkafka's log is off unless `-X debug=…` asks for it.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import click

from shmbroker.cli.outcome import CommandFault, say, sentence
from shmbroker.client import profiles
from shmbroker.client.addresses import UNIX, Addresses, is_unix, parse_unix
from shmbroker.client.faults import ClusterFault, LaterFault
from shmbroker.client.retries import patiently
from shmbroker.client.secrets import SENSITIVE, reference_of
from shmbroker.client.security import OAUTHBEARER, OPEN, SETTINGS, Security, Value, security_of
from shmbroker.settings.setting import OWN_PREFIX
from shmbroker.settings.without_effect import idle_complaint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient

VARIABLE = "SHMBROKER_BOOTSTRAP_SERVER"
DEFAULT_SERVER = "127.0.0.1:9092"
DEFAULT_PORT = 9092
PLAINTEXT = "PLAINTEXT"
ASK_S = 5.0
CHANGE_S = 30.0
FIRST_ASK_S = 1.0
"""The time of an unanswered question after which the command looks whether the library knows
why."""
_PATTERN = re.compile(r"[*?\[]")


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --bootstrap-server, --profile and -X; it is called with a `cluster`."""

    @click.option(
        "-b",
        "--bootstrap-server",
        "servers",
        metavar="HOST:PORT[,…]",
        help=f"Address of the cluster.  [default: the profile's, else ${VARIABLE}, else"
        f" {DEFAULT_SERVER}]",
    )
    @click.option(
        "--profile",
        "profile",
        metavar="NAME",
        envvar=profiles.VARIABLE,
        help="TLS, user and password of this name: `shmbroker profile --help`.  [default:"
        f" ${profiles.VARIABLE}]",
    )
    @click.option(
        "-X",
        "settings",
        metavar="KEY=VALUE",
        multiple=True,
        help="Setting of the client library (librdkafka), such as -X security.protocol=SSL.",
    )
    @functools.wraps(function)
    def with_cluster(
        servers: str | None, profile: str | None, settings: tuple[str, ...], **rest: Any
    ) -> Any:
        return function(cluster=cluster_of(servers, profile, settings), **rest)

    return with_cluster


def cluster_of(
    servers: str | None, profile: str | None = None, settings: Iterable[str] = ()
) -> TargetCluster:
    """The cluster that these options name, or the environment."""
    given = pairs(settings, "-X")
    for name, value in given.items():
        if name in SENSITIVE and reference_of(value) is None:
            raise click.UsageError(
                f"-X {name}: whoever lists processes would see it. Put it into a profile, or give"
                f" ${{env:NAME}} or ${{file:PATH}}."
            )
    if servers == "":  # of a variable that is not set: any other cluster would be the wrong one
        raise click.UsageError("--bootstrap-server is empty: it takes HOST:PORT.")
    found = profiles.load(profile) if profile else None
    where = servers or (found and found.servers) or os.environ.get(VARIABLE) or DEFAULT_SERVER
    return TargetCluster(where, given, found)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def pairs(words: Iterable[str], option: str) -> dict[str, str]:
    """{key: value} of words "key=value"; a usage error if one has no "="."""
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{option} takes KEY=VALUE, not {word!r}.")
        found[key] = value
    return found


class NotReached(CommandFault):
    """No server listens at any of the addresses."""


class TargetCluster:
    """The cluster that a command was pointed at; clients of it are made when asked for."""

    __slots__ = ("profile", "refusal", "servers", "settings")

    def __init__(
        self, servers: str, settings: dict[str, str], profile: profiles.Profile | None = None
    ) -> None:
        self.settings = settings
        """What -X said."""
        self.profile = profile
        for name in _SERVERS:
            servers = settings.pop(name, servers)
        self.servers = servers
        """HOST:PORT or unix:/PATH, several with commas."""
        self.refusal: Any = None
        """The library's last KafkaError that another try doesn't mend: TLS, or a password."""

    def _given(self) -> dict[str, Value]:
        """All settings: the profile's, and -X above them."""
        base = {} if self.profile is None else dict(self.profile.settings)
        base.pop(profiles.SERVERS, None)
        return base | self.settings

    @property
    def security(self) -> str:
        """`security.protocol`, in capitals."""
        return str(self._given().get("security.protocol", PLAINTEXT)).upper()

    def entering(self) -> Security:
        """TLS and SASL, for our own client; ConfigFault if they can't be meant."""
        return security_of(
            {name: value for name, value in self._given().items() if name in SETTINGS}
        )

    def spark_options(self) -> dict[str, str]:
        """Options of Spark's source and sink that lead to the same cluster: no secret is among
        them."""
        profile = {} if self.profile is None else {"profile": self.profile.name}
        return {"kafka.bootstrap.servers": self.servers, **profile}

    def admin(self) -> Any:
        """An AdminClient; CommandFault if no Kafka listens."""
        from confluent_kafka.admin import AdminClient

        return self._made(AdminClient, {})

    def producer(self, **settings: Any) -> Any:
        """A Producer with these settings ("_" for "."), -X above them; CommandFault likewise."""
        from confluent_kafka import Producer

        return self._made(Producer, settings)

    def consumer(self, **settings: Any) -> Any:
        """A Consumer, made as `producer` makes a Producer."""
        from confluent_kafka import Consumer

        return self._made(Consumer, settings)

    def _made(self, kind: Callable[[dict[str, Any]], Any], settings: dict[str, Any]) -> Any:
        from confluent_kafka import KafkaException

        config: dict[str, Any] = {
            "bootstrap.servers": self.servers,
            "client.id": "shmbroker-cli",
        }
        if "debug" not in self.settings:
            config["log_level"] = 0
        config |= {name.replace("_", "."): value for name, value in settings.items()}
        config |= {name: value for name, value in self._given().items() if name not in SETTINGS}
        config |= for_librdkafka(self.entering())
        told = config.pop("on.error", None)

        def on_error(error: KafkaError) -> None:
            if error.name() in _LASTING:
                self.refusal = error
            if told:
                told(error)

        config["error_cb"] = on_error
        self.check_reachable()
        if any(map(is_unix, self.addresses())):
            raise CommandFault(
                "this command asks by librdkafka, which knows no Unix sockets: give HOST:PORT"
            )
        try:
            return kind(config)
        except KafkaException as refusal:
            raise click.UsageError(f"-X: {refusal.args[0].str()}.") from None

    def addresses(self) -> Addresses:
        """(host, port) of the bootstrap servers, and how they are entered; a usage error for what
        is no address."""
        found = []
        for text in self.servers.split(","):
            if text.strip().startswith(UNIX):
                found.append((parse_unix(text.strip(), "--bootstrap-server"), 0))
                continue
            match = re.fullmatch(r"\s*(?:\w+://)?(\[[^\]]+\]|[^:\s]+)(?::(\d{1,5}))?\s*", text)
            port = int(match[2] or DEFAULT_PORT) if match else 0
            if match is None or not 0 < port < 65536:
                raise click.UsageError(f"--bootstrap-server takes HOST:PORT, not {text!r}.")
            found.append((match[1].strip("[]"), port))
        return Addresses(found, self.entering())

    def check_reachable(self) -> None:
        """CommandFault unless a Kafka answers at one of the servers."""
        from shmbroker.cli import probe

        addresses = self.addresses()
        is_tls = self.security.endswith("SSL")
        refusals = []
        for address in addresses:
            refusal = probe.refusal_of(address, is_tls, probe.CONNECT_S / len(addresses))
            if refusal is None:
                return
            refusals.append((address, refusal))
        for (host, port), refusal in refusals:
            if refusal.is_reached:
                shown = f"[{host}]" if ":" in host else host
                where = f"{UNIX}{host}" if is_unix((host, port)) else f"{shown}:{port}"
                raise CommandFault(f"{where} {refusal.text}")
        raise NotReached(
            f"cannot reach {self.servers}: {refusals[-1][1].text}; is a broker running there? "
            f"(`shmbroker serve` starts one, --bootstrap-server or ${VARIABLE} names another)"
        )

    def check_refusal(self) -> None:
        """CommandFault if the library has met what another try doesn't mend."""
        if self.refusal is not None:
            raise CommandFault(f"{self.servers} was not accepted: {_refused(self.refusal)}")


_LASTING = {"_SSL", "_AUTHENTICATION"}
_SERVERS = ("metadata.broker.list", "bootstrap.servers")
"""-X with one of these names the cluster, too."""


def for_librdkafka(security: Security) -> dict[str, Any]:
    """The security in librdkafka's settings; CommandFault for what it can't do."""
    if security == OPEN:
        return {}
    if security.is_by_token:
        raise CommandFault(
            "this command asks by librdkafka, which knows no delegation tokens: give a user and a"
            " password"
        )
    found: dict[str, Any] = {
        "security.protocol": security.protocol,
        "ssl.ca.location": security.ca,
        "ssl.certificate.location": security.certificate,
        "ssl.key.location": security.certificate and (security.key or security.certificate),
        "ssl.key.password": security.key_password and security.key_password.reveal(),
        "ssl.endpoint.identification.algorithm": "https" if security.checks_name else "none",
        "sasl.mechanism": security.mechanism,
        "sasl.username": security.username,
        "sasl.password": security.password and security.password.reveal(),
    }
    if security.mechanism == OAUTHBEARER:
        from shmbroker.client.oauth import expires_s, token_of

        def token(_config: str) -> tuple[str, float]:
            found = token_of(security).reveal()
            return found, expires_s(found)

        found["oauth_cb"] = token
    return {name: value for name, value in found.items() if value}


def _refused(error: KafkaError) -> str:
    """The library's words without its address, its OpenSSL code and its clock."""
    text = re.sub(r"^\w+://\S+: | \(after \d+ms in state \w+\)|error:\w+:[^:]*::", "", error.str())
    return f"{text} ({error.name().removeprefix('_')})"


def metadata(client: Any, cluster: TargetCluster) -> Any:
    """The cluster's ClusterMetadata; CommandFault if there is no answer in time.

    All topics are asked for: a question about one that isn't there would create it.
    """
    from confluent_kafka import KafkaException

    is_plain = cluster.security == PLAINTEXT
    for wait_s in (ASK_S,) if is_plain else (FIRST_ASK_S, ASK_S - FIRST_ASK_S):
        try:
            return client.list_topics(timeout=wait_s)
        except KafkaException as refusal:
            reason = refusal.args[0]
        client.poll(0)  # calls on_error
        cluster.check_refusal()
    hint = ""
    if is_plain:
        hint = " (if it wants SASL: security.protocol)"
    elif cluster.security.endswith("SSL"):
        # TLS 1.3 lets a client think that it is in, though its certificate is refused.
        hint = " (if it wants another certificate: ssl.certificate.location)"
    raise CommandFault(
        f"{cluster.servers} accepts connections but gives no Kafka answer: {sentence(reason)}{hint}"
    )


def say_idle(
    cluster: TargetCluster,
    admin: AdminClient,
    values: dict[str, str],
    *,
    is_for_broker: bool = False,
) -> None:
    """A sentence on stderr for each of these settings that changes nothing, as brokers of another
    make go by it."""
    complaints = [idle_complaint(name, value) for name, value in values.items()]
    told = [complaint for complaint in complaints if complaint is not None]
    if is_for_broker:  # any name is taken, as Apache Kafka does
        from shmbroker.settings.broker_config import setting_meant
        from shmbroker.settings.table import broker_setting

        told += [
            f"{name} changes nothing: it is no setting of a broker{setting_meant(name)}"
            for name in values
            if broker_setting(name) is None and idle_complaint(name, "") is None
        ]
    if told and _is_ours(cluster, admin):
        for complaint in told:
            say(complaint)


def _is_ours(cluster: TargetCluster, admin: AdminClient) -> bool:
    """Whether the brokers are shmbroker's: they have settings of its own."""
    from confluent_kafka.admin import ConfigResource

    name = str(next(iter(metadata(admin, cluster).brokers)))
    resource = ConfigResource(ConfigResource.Type.BROKER, name)
    (future,) = admin.describe_configs([resource], request_timeout=ASK_S).values()
    return any(key.startswith(OWN_PREFIX) for key in waited(future, f"broker {name}"))


class Pending(Protocol):
    """An answer of the client library that is still to come: a `concurrent.futures.Future`."""

    def result(self, timeout: float | None = None) -> Any:
        """The answer; raises what it failed with."""


def waited(future: Pending, about: str = "") -> Any:
    """The result of an admin call; CommandFault, naming what it was about, if it was refused."""
    from confluent_kafka import KafkaException

    try:
        return future.result(CHANGE_S + ASK_S)
    except KafkaException as refusal:
        raise CommandFault(f"{about}: {sentence(refusal.args[0])}".removeprefix(": ")) from None
    except TimeoutError:
        raise CommandFault(f"{about}: no answer".removeprefix(": ")) from None


_MOVING = ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR")
"""Errors of a coordinator that begins, or has gone elsewhere: they pass, and librdkafka gives
some of them to its caller."""


def settled(ask: Callable[[], Pending], first: Pending | None = None) -> Pending:
    """The admin call that `ask` makes of a coordinator, made again for a while where that is not
    ready; an answer that ends the tries is in it. first: one that is on its way already."""
    from confluent_kafka import KafkaException

    made = [ask() if first is None else first]

    def once() -> None:
        future = made[-1]
        try:
            future.result(CHANGE_S + ASK_S)
        except KafkaException as refusal:
            if refusal.args[0].name() in _MOVING:
                raise LaterFault(sentence(refusal.args[0])) from None
        except TimeoutError:
            pass

    with suppress(ClusterFault):
        patiently(once, CHANGE_S, before_retry=lambda: made.append(ask()))
    return made[-1]


def is_pattern(word: str) -> bool:
    """Whether a word stands for several names: a shell glob, or a regular expression ("^…")."""
    return word.startswith("^") or _PATTERN.search(word) is not None


def matching(words: Sequence[str], names: Iterable[str], what: str) -> list[str]:
    """The names that `words` say, sorted; all where there are none.

    A glob or a regular expression doesn't find internal names ("__…") unless it begins like one.
    CommandFault if a word finds nothing.
    """
    known = sorted(names)
    if not words:
        return known
    found: set[str] = set()
    for word in words:
        if not is_pattern(word):
            hits = [word] if word in known else []
        else:
            pattern = word if word.startswith("^") else fnmatch.translate(word)
            try:
                hits = [name for name in known if re.search(pattern, name)]
            except re.error as error:
                raise click.UsageError(f"{word} is no regular expression: {error}.") from None
            if not word.lstrip("^").startswith("_"):
                hits = [name for name in hits if not name.startswith("__")]
        if not hits:
            raise CommandFault(
                f"there is no {what} {word}; `shmbroker {what} list` shows what is there"
            )
        found.update(hits)
    return sorted(found)
