"""What settings of a broker must be to each other when clients change some of them.

Each is allowed by itself already (`settings.checks`). Complaints are in the words of Kafka's
`KafkaConfig` and of the `DynamicBrokerConfig` classes. A setting that is taken away gives way to
what stands behind it, so it is judged, too.
"""

from __future__ import annotations

from shmbroker.metadata.image import BROKER_RESOURCE
from shmbroker.settings.broker_config import INSTEAD
from shmbroker.settings.checks import local_limit_complaint
from shmbroker.settings.layers import (
    broker_layers,
    effective_broker_config,
    effective_topic_config,
)
from shmbroker.settings.left_out import CHANGED_BY_CLIENTS, LEFT_OUT
from shmbroker.settings.table import BROKER_SETTINGS, LISTENER_PREFIX, broker_setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from shmbroker.metadata.image import MetadataImage
    from shmbroker.settings.broker_config import BrokerConfig
    from shmbroker.settings.layers import Layers

    Changes = Mapping[str, str | None]

OF_STORES = frozenset(
    (
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    )
)
"""Settings that Kafka changes for one listener of one broker, and not for all."""

_OF_LISTENERS = ("max.connections", "max.connection.creation.rate", "num.network.threads")
"""What may be said of a listener on all brokers; all else only of one broker's."""

_OF_ONE_BROKER = CHANGED_BY_CLIENTS - {"auto.include.jmx.reporter", "metric.reporters"}
"""Settings of Kafka's that mean nothing here, and that it changes for one broker alone."""

_FIXED_ELSEWHERE = (LEFT_OUT.keys() - CHANGED_BY_CLIENTS) | INSTEAD.keys()
"""Settings of Kafka's that are not here, and that it does not change while it runs."""

_CLEANER_THREADS = "log.cleaner.threads"
_CLEANER_MEMORY = "log.cleaner.dedupe.buffer.size"
THREAD_POOLS = (
    "background.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "remote.log.manager.copier.thread.pool.size",
    "remote.log.manager.expiration.thread.pool.size",
    "remote.log.manager.follower.thread.pool.size",
    "remote.log.reader.threads",
)
"""Settings that tell how many threads a pool of Kafka's has. There are none here; what a client
may say of them is the same."""

_PER_IP = "max.connections.per.ip"
_OVERRIDES = "max.connections.per.ip.overrides"
_LIMITS = ("retention.ms", "retention.bytes")
_REFUSED = (
    "Invalid value org.apache.kafka.common.config.ConfigException: {} for configuration Invalid "
    "dynamic configuration"
)


def fixed_complaint(names: Iterable[str]) -> str | None:
    """What is wrong with changing these while a broker runs; None: nothing."""
    fixed = []
    stores = []
    for name in names:
        if name in OF_STORES:
            stores.append(name)
        elif name in _FIXED_ELSEWHERE or (
            name in BROKER_SETTINGS and not BROKER_SETTINGS[name].is_dynamic
        ):
            fixed.append(name)
    if fixed:
        return f"Cannot update these configs dynamically: Set({', '.join(sorted(fixed))})"
    if stores:
        return (
            "These security configs can be dynamically updated only per-listener using the "
            f"listener prefix: HashSet({', '.join(sorted(stores))})"
        )
    return None


def listeners_complaint(name: str, values: Mapping[str, str], config: BrokerConfig) -> str | None:
    """What is wrong with these values of single listeners. Those that TLS or SASL goes by must be
    what holds: a file that has changed is read again by itself, any other change needs a reload."""
    own = sorted(key for key in values if key.startswith(LISTENER_PREFIX))
    if not name:
        of_one = [key for key in own if _of_a_listener(key)[1] not in _OF_LISTENERS]
        of_one = sorted({*of_one, *(values.keys() & _OF_ONE_BROKER)})
        if not of_one:
            return None
        return (
            "Cannot update these configs at default cluster level, broker id must be specified: "
            f"Set({', '.join(of_one)})"
        )
    secured = {one.name.lower(): one for one in config.listeners if one.has_tls or one.has_sasl}
    changed = []
    for key in own:
        of, setting = _of_a_listener(key)
        listener = secured.get(of.lower())
        found = broker_setting(key)
        if listener is None or found is None or found.is_dynamic:
            continue
        holds = config.static.get(key.lower(), config.static.get(setting))
        is_used = listener.has_tls if found.name.startswith("ssl.") else listener.has_sasl
        if is_used and values[key] != holds:
            changed.append(key)
    if changed:
        return f"Cannot update these configs dynamically: Set({', '.join(changed)})"
    return None


def _of_a_listener(key: str) -> tuple[str, str]:
    """The listener's name and the setting in `listener.name.<listener>.<setting>`."""
    of, _, setting = key.removeprefix(LISTENER_PREFIX).partition(".")
    return of, setting


def together_complaint(
    name: str, changes: Changes, image: MetadataImage, config: BrokerConfig
) -> str | None:
    """What is wrong with these changes (None takes a setting away) of a broker or, without a name,
    of all; None: nothing. What the first ones compare with is what holds before the changes."""
    values = {key: value for key, value in changes.items() if value is not None}
    own = image.config(BROKER_RESOURCE, name) if name else {}
    before = broker_layers(config, own, image.config(BROKER_RESOURCE, ""))
    return (
        _cleaner_complaint(values, config, before)
        or _pool_complaint(values, config, before)
        or _per_ip_complaint(values, config, before)
        or _local_complaint(name, changes, image, config)
    )


def _per_ip_complaint(
    values: Mapping[str, str], config: BrokerConfig, before: Layers
) -> str | None:
    """Complain where nobody is let in and no override lets anybody in (Kafka `KafkaConfig`)."""
    if int(values.get(_PER_IP, "1")) > 0:
        return None
    overrides = values.get(_OVERRIDES, effective_broker_config(_OVERRIDES, config, before))
    if overrides.strip():
        return None
    return f"requirement failed: {_PER_IP} can be set to zero only if {_OVERRIDES} property is set."


def _cleaner_complaint(
    values: Mapping[str, str], config: BrokerConfig, before: Layers
) -> str | None:
    """How compaction's threads and memory may change (Kafka `LogCleaner`, `KafkaConfig`)."""
    if not values.keys() & {_CLEANER_THREADS, _CLEANER_MEMORY}:
        return None
    current = effective_broker_config(_CLEANER_THREADS, config, before)
    threads = int(values.get(_CLEANER_THREADS, current))
    memory = effective_broker_config(_CLEANER_MEMORY, config, before)
    memory = int(values.get(_CLEANER_MEMORY, memory))
    refusal = None
    if threads < 1:
        refusal = "should be at least 1"
    elif memory // threads <= 1 << 20:
        return f"requirement failed: {_CLEANER_MEMORY} must be at least 1MB per cleaner thread."
    elif threads < current // 2:
        refusal = f"cannot be reduced to less than half the current value {current}"
    elif threads > current * 2:
        refusal = f"cannot be increased to more than double the current value {current}"
    if refusal is None:
        return None
    return _REFUSED.format(f"Log cleaner threads {refusal}")


def _pool_complaint(values: Mapping[str, str], config: BrokerConfig, before: Layers) -> str | None:
    """In which steps pools of threads grow and shrink (Kafka `DynamicThreadPool`)."""
    for key, text in values.items():
        setting = broker_setting(key)
        if setting is None or (pool := setting.name) not in THREAD_POOLS:
            continue
        threads = int(text)
        current = effective_broker_config(key, config, before)
        if current is None:  # a listener that has no value of its own
            current = effective_broker_config(pool, config, before)
        if threads < current // 2:
            refusal = f"value should be at least half the current value {current}"
        elif threads > current * 2:
            refusal = f"value should not be greater than double the current value {current}"
        else:
            continue
        return _REFUSED.format(
            f"Dynamic thread count update validation failed for {pool}={threads}, {refusal}"
        )
    return None


def _local_complaint(
    name: str, changes: Changes, image: MetadataImage, config: BrokerConfig
) -> str | None:
    """How much stays here of tiered topics is at most what stays at all (Kafka
    `DynamicLogConfig`)."""
    for what in _LIMITS:
        if not changes.keys() & {f"log.{what}", f"log.local.{what}"}:
            continue
        for layers in _layers_after(name, changes, image, config):
            total, local = (
                int(effective_topic_config(limit, {}, layers)[0])
                for limit in (what, f"local.{what}")
            )
            if complaint := local_limit_complaint("log.", what, total, local):
                return _REFUSED.format(complaint)
    return None


def _layers_after(
    name: str, changes: Changes, image: MetadataImage, config: BrokerConfig
) -> Iterator[Layers]:
    """What holds for each broker that the changes are of."""
    of_all = image.config(BROKER_RESOURCE, "")
    if name:
        yield broker_layers(config, _after(image.config(BROKER_RESOURCE, name), changes), of_all)
        return
    of_all = _after(of_all, changes)
    for broker_id in image.brokers:
        yield broker_layers(config, image.config(BROKER_RESOURCE, str(broker_id)), of_all)


def _after(before: Mapping[str, str], changes: Changes) -> dict[str, str]:
    after = {key: value for key, value in before.items() if key not in changes}
    return after | {key: value for key, value in changes.items() if value is not None}
