"""Settings of Kafka's brokers that mean nothing here: taken from a file and left out, and why.

A `server.properties` that tunes another broker is to start this one, too. Only what changes nothing
that a client could see is here: how many threads or how much memory Kafka takes for something that
is done in another way, and what is not served at all. A setting that asks for something, such as a
class to be loaded or a policy to be kept, is refused where it is not there.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

_EACH_OWN = "each I/O worker has its own thread and its own logs"
_SHARED_MEMORY = "the brokers of a family share memory"
_SAME_HOST = "controllers and brokers are processes of one family"
_SOCKETS = "the kernel sizes the buffers of sockets"
_NO_PURGE = "what has been answered is forgotten at once"
_AT_ONCE = "records of coordinators are written as they come"
_NO_SHARE_GROUPS = "share groups are not served"
_NO_STREAMS_GROUPS = "streams groups are not served"
_NO_JMX = "metrics are read from shared memory (shmbroker.metrics)"
_STORE = "one process copies to the remote store and fetches from it"
_NO_CLIENT = "no broker is a client of another one"
_ONE_HOST = "all replicas are on one host, and consumers read from leaders"
_OPENSSL = "OpenSSL does that"

_BY_REASON = {
    _EACH_OWN: "group.coordinator.threads num.replica.alter.log.dirs.threads",
    _SHARED_MEMORY: """replica.fetch.backoff.ms replica.fetch.max.bytes
        replica.fetch.min.bytes replica.fetch.response.max.bytes replica.fetch.wait.max.ms
        replica.socket.receive.buffer.bytes replica.socket.timeout.ms
        add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms
        alter.log.dirs.replication.quota.window.num
        alter.log.dirs.replication.quota.window.size.seconds
        replication.quota.window.num replication.quota.window.size.seconds""",
    _SAME_HOST: """broker.heartbeat.interval.ms controlled.shutdown.enable
        controller.quorum.append.linger.ms controller.quorum.retry.backoff.ms
        controller.socket.timeout.ms initial.broker.registration.timeout.ms
        log.dir.failure.timeout.ms metadata.max.idle.interval.ms""",
    _SOCKETS: "socket.receive.buffer.bytes socket.send.buffer.bytes",
    _NO_PURGE: """delete.records.purgatory.purge.interval.requests
        fetch.purgatory.purge.interval.requests producer.purgatory.purge.interval.requests
        transaction.abort.timed.out.transaction.cleanup.interval.ms
        transaction.remove.expired.transaction.cleanup.interval.ms""",
    _AT_ONCE: """group.coordinator.append.linger.ms offsets.commit.timeout.ms
        offsets.load.buffer.size offsets.topic.compression.codec
        transaction.state.log.load.buffer.size""",
    _NO_SHARE_GROUPS: """group.share.assignors group.share.delivery.count.limit
        group.share.heartbeat.interval.ms group.share.max.heartbeat.interval.ms
        group.share.max.record.lock.duration.ms group.share.max.session.timeout.ms
        group.share.max.share.sessions group.share.max.size group.share.min.heartbeat.interval.ms
        group.share.min.record.lock.duration.ms group.share.min.session.timeout.ms
        group.share.partition.max.record.locks group.share.record.lock.duration.ms
        group.share.session.timeout.ms share.coordinator.append.linger.ms
        share.coordinator.load.buffer.size share.coordinator.snapshot.update.records.per.snapshot
        share.coordinator.state.topic.compression.codec share.coordinator.state.topic.min.isr
        share.coordinator.state.topic.num.partitions
        share.coordinator.state.topic.replication.factor
        share.coordinator.state.topic.segment.bytes share.coordinator.threads
        share.coordinator.write.timeout.ms share.fetch.purgatory.purge.interval.requests""",
    _NO_STREAMS_GROUPS: """group.streams.heartbeat.interval.ms
        group.streams.initial.rebalance.delay.ms group.streams.max.heartbeat.interval.ms
        group.streams.max.session.timeout.ms group.streams.max.size
        group.streams.max.standby.replicas group.streams.min.heartbeat.interval.ms
        group.streams.min.session.timeout.ms group.streams.num.standby.replicas
        group.streams.session.timeout.ms""",
    _NO_JMX: """auto.include.jmx.reporter kafka.metrics.polling.interval.secs
        kafka.metrics.reporters metric.reporters metrics.num.samples metrics.recording.level
        metrics.sample.window.ms telemetry.max.bytes""",
    _STORE: """remote.log.manager.copy.quota.window.num
        remote.log.manager.copy.quota.window.size.seconds
        remote.log.manager.fetch.quota.window.num
        remote.log.manager.fetch.quota.window.size.seconds remote.log.manager.thread.pool.size
        remote.log.metadata.custom.metadata.max.bytes remote.log.reader.max.pending.tasks""",
    _NO_CLIENT: """request.timeout.ms sasl.login.connect.timeout.ms sasl.login.read.timeout.ms
        sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds
        sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
        sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
        sasl.mechanism.controller.protocol sasl.mechanism.inter.broker.protocol
        socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
        ssl.endpoint.identification.algorithm""",
    _ONE_HOST: "replica.selector.class",
    _OPENSSL: """ssl.allow.san.changes ssl.keymanager.algorithm ssl.provider
        ssl.secure.random.implementation ssl.trustmanager.algorithm""",
}

LEFT_OUT = {name: reason for reason, names in _BY_REASON.items() for name in names.split()}
"""Names, and why each means nothing here."""


CHANGED_BY_CLIENTS = frozenset(
    [
        "auto.include.jmx.reporter",
        "metric.reporters",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.mechanism.inter.broker.protocol",
        "ssl.endpoint.identification.algorithm",
        "ssl.keymanager.algorithm",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
    ]
)
"""Names of those that Kafka lets clients change while a broker runs: they are kept and shown."""


def left_out_complaint(names: Collection[str]) -> str:
    """What to tell who has set some of them."""
    what = "is a setting" if len(names) == 1 else "are settings"
    means = "means" if len(names) == 1 else "mean"
    return (
        f"{', '.join(sorted(names))} {what} of Apache Kafka that {means} nothing here; left out "
        "(shmbroker config explain NAME says why)."
    )
