"""Offsets of many partitions: names of types, and what stands for an offset. Pure."""

TopicPartition = tuple[str, int]
Ends = dict[TopicPartition, int]

EARLIEST = -2
LATEST = -1
"""Kafka's own, in ListOffsets: where a log starts, and the end of what may be read."""

OFFSET_MAX = (1 << 63) - 1
