"""Settings of Kafka's that are kept and shown though nothing here goes by them, and why."""

from __future__ import annotations

_STORED_AS_THEY_COME = "batches are stored as their producer has compressed them."
_NO_METRICS = "nobody receives metrics of clients."
_NO_SHARE_GROUPS = "share groups are not served."
_NO_STREAMS_GROUPS = "streams groups are not served."
_SHARED_MEMORY = "the brokers of a family share memory."
_PROCESSES = "the work is done by processes, not by threads ({})."
_STORE = "one process copies to the remote store and fetches from it."
_EACH_MINUTE = "it is done once a minute, and at a clean stop."

WITHOUT_EFFECT = {
    "background.threads": "each process does by itself what is due.",
    "compression.gzip.level": _STORED_AS_THEY_COME,
    "compression.lz4.level": _STORED_AS_THEY_COME,
    "compression.type": _STORED_AS_THEY_COME,
    "compression.zstd.level": _STORED_AS_THEY_COME,
    "inter.broker.listener.name": _SHARED_MEMORY,
    "leader.imbalance.per.broker.percentage": "every partition is given back to its first replica, "
    "as Apache Kafka does without ZooKeeper.",
    "log.cleaner.io.buffer.load.factor": "it is 0.7.",
    "log.cleaner.io.buffer.size": "it is about 16 MiB.",
    "log.cleaner.threads": "there is one cleaner.",
    "log.flush.offset.checkpoint.interval.ms": _EACH_MINUTE,
    "log.flush.start.offset.checkpoint.interval.ms": "they are written as soon as they move.",
    "log.preallocate": "segments always grow in allocated extents.",
    "num.io.threads": _PROCESSES.format("shmbroker.io.workers"),
    "num.network.threads": _PROCESSES.format("shmbroker.network.workers"),
    "num.recovery.threads.per.data.dir": "each I/O worker recovers its own logs.",
    "num.replica.fetchers": "each I/O worker copies over a ring from each other.",
    "preallocate": "segments always grow in allocated extents.",
    "producer.id.expiration.ms": "they are forgotten a day after the last batch, when a log is "
    "opened.",
    "queued.max.requests": "256 Produce requests of a connection may be in flight, and the memory "
    "between the processes bounds all of them together (shmbroker.ring.data.bytes).",
    "remote.log.index.file.cache.total.size.bytes": _STORE,
    "remote.log.manager.copier.thread.pool.size": _STORE,
    "remote.log.manager.expiration.thread.pool.size": _STORE,
    "remote.log.manager.follower.thread.pool.size": _STORE,
    "remote.log.reader.threads": _STORE,
    "replica.alter.log.dirs.io.max.bytes.per.second": "a broker has one log directory.",
    "replica.high.watermark.checkpoint.interval.ms": _EACH_MINUTE,
    "security.inter.broker.protocol": _SHARED_MEMORY,
    "ssl.allow.dn.changes": "a certificate that is read again may have any.",
    "ssl.protocol": "the newest version that both sides have is used.",
    # Of groups and of client metrics subscriptions
    "interval.ms": _NO_METRICS,
    "match": _NO_METRICS,
    "metrics": _NO_METRICS,
    "share.auto.offset.reset": _NO_SHARE_GROUPS,
    "share.heartbeat.interval.ms": _NO_SHARE_GROUPS,
    "share.isolation.level": _NO_SHARE_GROUPS,
    "share.record.lock.duration.ms": _NO_SHARE_GROUPS,
    "share.session.timeout.ms": _NO_SHARE_GROUPS,
    "streams.heartbeat.interval.ms": _NO_STREAMS_GROUPS,
    "streams.initial.rebalance.delay.ms": _NO_STREAMS_GROUPS,
    "streams.num.standby.replicas": _NO_STREAMS_GROUPS,
    "streams.session.timeout.ms": _NO_STREAMS_GROUPS,
}
"""Settings that nothing here goes by, whatever their value, and why."""

_WHAT_HAPPENS = {"compression.type": "producer", "log.cleaner.threads": "1"}
"""Values of them that say what is the case anyway."""


def idle_complaint(name: str, value: str) -> str | None:
    """What to tell who gives a setting a value that changes nothing here; None: it does."""
    reason = WITHOUT_EFFECT.get(name)
    if reason is None or value.strip() == _WHAT_HAPPENS.get(name):
        return None
    return f"{name} has no effect here: {reason}"
