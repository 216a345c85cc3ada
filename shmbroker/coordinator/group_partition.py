"""Which partition of `__consumer_offsets` a group belongs to, so which broker coordinates it."""

GROUP_TOPIC = "__consumer_offsets"


def java_string_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 code units, wrapped to a signed 32-bit number."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def group_partition(group_id: str, partitions: int) -> int:
    """abs(hash) modulo the partitions; abs as Kafka's Utils.abs, which makes the least number 0."""
    value = java_string_hash(group_id)
    return (0 if value == -(1 << 31) else abs(value)) % partitions
