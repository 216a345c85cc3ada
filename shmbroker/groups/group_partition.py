"""The partition of `__consumer_offsets` that a group belongs to, so which broker coordinates it."""

from functools import lru_cache
from operator import mul
from struct import unpack

_powers = [1]
"""Powers of 31, modulo 2^32, as far as they were needed: an id has up to 32,767 characters."""


def java_string_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 code units, wrapped to a signed 32-bit number."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    units = unpack(f">{len(encoded) >> 1}H", encoded)
    while len(_powers) < len(units):
        _powers.append(_powers[-1] * 31 & 0xFFFFFFFF)
    value: int = sum(map(mul, reversed(units), _powers)) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


@lru_cache(4096)
def group_partition(group_id: str, partitions: int) -> int:
    """abs(hash) modulo the partitions; abs as Kafka's Utils.abs, which makes the least number 0."""
    value = java_string_hash(group_id)
    return (0 if value == -(1 << 31) else abs(value)) % partitions
