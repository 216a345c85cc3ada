"""A producer's options, checked: Kafka's names and units in, what its parts go by out.

Rules

* An option that can't be taken is a ConfigFault, before anything is asked or opened.
* People give milliseconds, the code goes by seconds: only here one becomes the other.
* Settings never change. What does, the identity for one, is with those that change it.
"""

from typing import NamedTuple

from shmbroker.errors import ConfigFault
from shmbroker.records import codecs

CLIENT_ID = "shmbroker-arrow"
BATCH_BYTES_MIN = 128

ANSWER_S = 10.0
"""How long metadata are waited for before another broker is asked."""

_ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}


class ProducerSettings(NamedTuple):
    """What `Producer` was given, as its parts take it."""

    codec: int
    acks: int
    batch_size: int
    linger_s: float
    memory_max: int
    delivery_s: float
    request_s: float
    block_s: float
    client_id: str
    idempotence: bool
    transactional_id: str | None


def checked(
    *,
    compression: str,
    batch_size: int,
    linger_ms: float,
    acks: str | int,
    idempotence: bool,
    buffer_memory: int,
    delivery_timeout_ms: int,
    request_timeout_ms: int,
    max_block_ms: int,
    transactional_id: str | None,
    transaction_timeout_ms: int,
    client_id: str,
) -> ProducerSettings:
    """The settings of these options; ConfigFault for the first that can't be taken."""
    codec = _codec(compression)
    acks_number = _acks(acks)
    if idempotence and acks_number != -1:
        raise ConfigFault(f"acks={acks} is not idempotent: give acks='all' or idempotence=False")
    _require_at_least(
        ("batch_size", batch_size, BATCH_BYTES_MIN),
        ("linger_ms", linger_ms, 0),
        ("buffer_memory", buffer_memory, 1),
        ("delivery_timeout_ms", delivery_timeout_ms, 1),
        ("request_timeout_ms", request_timeout_ms, 1),
        ("max_block_ms", max_block_ms, 0),
        ("transaction_timeout_ms", transaction_timeout_ms, 1),
    )
    if transactional_id is not None and not idempotence:
        raise ConfigFault("transactional_id goes with idempotence")
    return ProducerSettings(
        codec=codec,
        acks=acks_number,
        batch_size=batch_size,
        linger_s=linger_ms / 1000,
        memory_max=buffer_memory,
        delivery_s=delivery_timeout_ms / 1000,
        request_s=request_timeout_ms / 1000,
        block_s=max_block_ms / 1000,
        client_id=client_id,
        idempotence=idempotence,
        transactional_id=transactional_id,
    )


def _require_at_least(*settings: tuple[str, float, int]) -> None:
    """Check that each value, behind its name, is at least the number behind it; ConfigFault."""
    for name, value, least in settings:
        if value < least:
            raise ConfigFault(f"{name} is at least {least}, not {value}")


def _codec(compression: str) -> int:
    if compression not in codecs.NAMES:
        raise ConfigFault(f"compression is one of {', '.join(codecs.NAMES)}, not {compression!r}")
    return codecs.NAMES.index(compression)


def _acks(acks: str | int) -> int:
    if str(acks) not in _ACKS:
        raise ConfigFault(f"acks is 'all', 1 or 0, not {acks!r}")
    return _ACKS[str(acks)]
