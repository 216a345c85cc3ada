"""The `kafka.*` options of a read: the settings of Kafka's consumer, as far as they apply here.

There is no consumer: the driver asks for offsets, tasks map files or fetch. So of each setting it
is known whether it is applied, taken without effect, as its work is not done here or done in one
way only, or refused, as it would change what is read or promises what isn't there. A name that
Kafka doesn't know is refused, too.
"""

from shmbroker.client.addresses import parse_addresses
from shmbroker.client.reader.asking import Consumer
from shmbroker.errors import ConfigFault
from shmbroker.spark.option_values import (
    SECURITY,
    Given,
    check_setting,
    choice,
    count,
    entry_of,
    number,
)

_APPLIED = {
    "bootstrap.servers",
    "client.id",
    "default.api.timeout.ms",
    "fetch.max.wait.ms",
    "group.id",
    "isolation.level",
    "max.partition.fetch.bytes",
    "request.timeout.ms",
}

_TAKEN = {
    "allow.auto.create.topics",
    "auto.commit.interval.ms",
    "check.crcs",
    "client.dns.lookup",
    "client.rack",
    "connections.max.idle.ms",
    "enable.metrics.push",
    "exclude.internal.topics",
    "fetch.max.bytes",
    "fetch.min.bytes",
    "group.instance.id",
    "group.protocol",
    "group.remote.assignor",
    "heartbeat.interval.ms",
    "max.poll.interval.ms",
    "max.poll.records",
    "metadata.max.age.ms",
    "metadata.recovery.rebootstrap.trigger.ms",
    "metadata.recovery.strategy",
    "metric.reporters",
    "metrics.num.samples",
    "metrics.recording.level",
    "metrics.sample.window.ms",
    "partition.assignment.strategy",
    "receive.buffer.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "send.buffer.bytes",
    "session.timeout.ms",
    "socket.connection.setup.timeout.max.ms",
    "socket.connection.setup.timeout.ms",
}

_REFUSED = {
    "auto.offset.reset": "set the source option 'startingOffsets' to 'earliest' or 'latest'",
    "key.deserializer": "keys are always binary: cast them in the query",
    "value.deserializer": "values are always binary: cast them in the query",
    "enable.auto.commit": "offsets are kept in the query's checkpoint; see commitOffsets",
    "interceptor.classes": "there is no consumer to intercept",
}
"""Settings that Spark's Kafka source refuses too, and what to do instead."""

SETTINGS = frozenset(f"kafka.{name}" for name in _APPLIED | _TAKEN) | SECURITY
"""All `kafka.*` options that can be given."""


CLIENT_ID = "shmbroker-spark"


def consumer(given: Given) -> Consumer:
    """What these options, by lower-case name, say of asking brokers."""
    servers, entry = entry_of(given)
    if not servers:
        raise ConfigFault(
            "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka consumer:"
            " give HOST:PORT, or a profile that has it"
        )
    parse_addresses(servers, "kafka.bootstrap.servers")
    plain = Consumer(servers)
    timeout_ms = count(given, "kafkaConsumer.pollTimeoutMs") or count(
        given, "kafka.default.api.timeout.ms"
    )
    answer_ms = count(given, "kafka.request.timeout.ms")
    level = choice(given, "kafka.isolation.level", ("read_uncommitted", "read_committed"))
    return Consumer(
        servers,
        given.get("kafka.client.id", CLIENT_ID),
        timeout_ms / 1000 if timeout_ms else plain.timeout_s,
        answer_ms / 1000 if answer_ms else plain.answer_s,
        level == "read_committed",
        count(given, "kafka.max.partition.fetch.bytes") or plain.fetch_bytes,
        number(given, "kafka.fetch.max.wait.ms", plain.fetch_wait_ms),
        entry.security(),
        entry,
    )


def refuse_settings(given: Given) -> None:
    """Raise for the first `kafka.*` option among these that can't be given."""
    for name in given:
        if name.startswith("kafka."):
            check_setting(name, _REFUSED, SETTINGS, "consumer")
