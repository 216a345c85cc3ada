"""The options of a write: names and meaning as Spark's own Kafka sink has them.

    option                     value                       default, notes
    kafka.bootstrap.servers    HOST:PORT,…                 required
    profile                    a name of `client.profiles`  TLS, user and password, and servers
    topic                      a topic                     wins over the column topic
    exactlyOnce                true, false, transactions   true: see `sink`
    driverHost                 a host name or address      as it is found out; with transactions,
                                                            where executors reach the driver's host
    txnAppId, txnVersion       a name, a whole number      batch only: a series of writes, and
                                                            which of them this is
    kafka.*                    settings of Kafka's         applied, or without effect; what would
                               producer                     promise what isn't there is refused

Names that neither Spark nor Kafka knows are refused, with the nearest that is known.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from shmbroker.client.nearest import nearest
from shmbroker.errors import ConfigFault
from shmbroker.spark.option_values import (
    SECURITY,
    Given,
    check_setting,
    choice,
    count,
    entry_of,
    flag,
    number,
)

NAMES = ("topic", "exactlyOnce", "txnAppId", "txnVersion", "driverHost", "profile")

TRANSACTION_MS = 900_000
"""The longest that Kafka's brokers allow by default: a micro-batch takes as long as it takes."""

_ENGINE = {
    "path",
    "checkpointlocation",
    "queryname",
    "includeheaders",
    "asyncprogresstrackingenabled",
    "asyncprogresstrackingcheckpointintervalms",
    "asyncprogresstrackingoverridesinksupportcheck",
}
"""What Spark hands on with the sink's own options: not for us."""

_APPLIED = {
    "acks",
    "batch.size",
    "bootstrap.servers",
    "buffer.memory",
    "client.id",
    "compression.type",
    "delivery.timeout.ms",
    "enable.idempotence",
    "linger.ms",
    "max.block.ms",
    "request.timeout.ms",
    "transaction.timeout.ms",
}

_TAKEN = {
    "client.dns.lookup",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.zstd.level",
    "connections.max.idle.ms",
    "enable.metrics.push",
    "max.in.flight.requests.per.connection",
    "max.request.size",
    "metadata.max.age.ms",
    "metadata.max.idle.ms",
    "metadata.recovery.rebootstrap.trigger.ms",
    "metadata.recovery.strategy",
    "metric.reporters",
    "metrics.num.samples",
    "metrics.recording.level",
    "metrics.sample.window.ms",
    "partitioner.adaptive.partitioning.enable",
    "partitioner.availability.timeout.ms",
    "receive.buffer.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "retries",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms",
    "socket.connection.setup.timeout.ms",
}
"""Work that is not done here, or done in one way only. Order is always kept, retried until
delivery.timeout.ms."""

_REFUSED = {
    "key.serializer": "keys are binary or string columns: cast them in the query",
    "value.serializer": "values are binary or string columns: cast them in the query",
    "interceptor.classes": "there is no Java producer to intercept",
    "partitioner.class": "give a column partition, or leave it to the keys",
    "partitioner.ignore.keys": "give a column partition, or leave it to the keys",
    "transactional.id": "give exactlyOnce=transactions, which names it by the query",
    "transaction.two.phase.commit.enable": "give exactlyOnce=transactions",
}

SETTINGS = frozenset(f"kafka.{name}" for name in _APPLIED | _TAKEN) | SECURITY
"""All `kafka.*` options that can be given."""


class Sink(NamedTuple):
    """All options of a write, checked."""

    bootstrap_servers: str
    topic: str | None
    is_exactly_once: bool
    is_transactional: bool
    """Readers see a whole micro-batch, or batch write, or nothing of it."""
    transaction_ms: int
    driver_host: str | None
    app_id: str | None
    app_version: int
    producer: dict[str, Any]
    """Arguments of `producer.Producer`."""


def parse(options: Mapping[str, str], is_stream: bool) -> Sink:
    """Check the options of a batch or streaming write; ConfigFault in one sentence."""
    given = {name.lower(): value for name, value in options.items()}
    _refuse_unknown(given)
    servers, entry = entry_of(given)
    if not servers:
        raise ConfigFault(
            "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka producer:"
            " give HOST:PORT, or a profile that has it"
        )
    app_id = given.get("txnappid")
    if is_stream and (app_id or "txnversion" in given):
        raise ConfigFault("txnAppId and txnVersion are for batch writes: a stream has its own")
    if (app_id is None) != ("txnversion" not in given):
        raise ConfigFault("options txnAppId and txnVersion go together: give both or none")
    arguments = _arguments(given) | {"security": entry.security()}
    default = arguments["idempotence"]
    is_transactional = given.get("exactlyonce", "").strip().lower() == "transactions"
    is_exactly_once = is_transactional or _flag(given, default)
    if is_exactly_once and not default:
        raise ConfigFault("exactlyOnce needs acks=all and enable.idempotence=true")
    for name in ("driverHost", "kafka.transaction.timeout.ms"):
        if name.lower() in given and not is_transactional:
            raise ConfigFault(f"option {name} needs exactlyOnce=transactions")
    driver_host = given.get("driverhost", "").strip() or None
    if app_id is not None and not is_exactly_once:
        raise ConfigFault("txnAppId needs exactlyOnce=true")
    topic = given.get("topic")
    if topic is not None and not topic.strip():
        raise ConfigFault("option topic is empty: name one, or leave it out for a column topic")
    return Sink(
        servers,
        topic.strip() if topic is not None else None,
        is_exactly_once,
        is_transactional,
        count(given, "kafka.transaction.timeout.ms") or TRANSACTION_MS,
        driver_host,
        app_id,
        number(given, "txnVersion", 0),
        arguments,
    )


def _flag(given: Given, default: bool) -> bool:
    """exactlyOnce, where it is not `transactions`."""
    value = given.get("exactlyonce", str(default)).strip().lower()
    if value not in ("true", "false"):
        raise ConfigFault(f"option exactlyOnce is true, false or transactions, not {value!r}")
    return value == "true"


def _arguments(given: Given) -> dict[str, Any]:
    acks = choice(given, "kafka.acks", ("all", "-1", "1", "0"))
    is_all = acks in ("all", "-1")
    found: dict[str, Any] = {
        "acks": acks,
        "compression": choice(
            given, "kafka.compression.type", ("none", "gzip", "snappy", "lz4", "zstd")
        ),
        "idempotence": flag(given, "kafka.enable.idempotence", is_all),
        "client_id": given.get("kafka.client.id", "shmbroker-spark"),
    }
    for name, argument in (
        ("batch.size", "batch_size"),
        ("buffer.memory", "buffer_memory"),
        ("delivery.timeout.ms", "delivery_timeout_ms"),
        ("request.timeout.ms", "request_timeout_ms"),
    ):
        value = count(given, f"kafka.{name}")
        if value is not None:
            found[argument] = value
    for name, argument in (("linger.ms", "linger_ms"), ("max.block.ms", "max_block_ms")):
        if f"kafka.{name}" in given:
            found[argument] = number(given, f"kafka.{name}", 0)
    return found


def _refuse_unknown(given: Given) -> None:
    for name in given:
        if name.startswith("kafka."):
            check_setting(name, _REFUSED, SETTINGS, "producer")
        elif name not in _ENGINE and name not in map(str.lower, NAMES):
            hint = nearest(name, NAMES) or f"; known are kafka.*, {', '.join(NAMES)}"
            raise ConfigFault(f"option {name} is not known here{hint}")
