"""When a disk counts as nearly full, for `status` and `doctor` alike. Pure."""

FREE_SHARE_LEAST = 0.05
FREE_BYTES_LEAST = 5 << 30


def is_nearly_full(free_bytes: int, disk_bytes: int) -> bool:
    """Whether less is free than either of these; brokers refuse records later than that. A negative
    number is one that is not known."""
    return 0 <= free_bytes < min(FREE_SHARE_LEAST * disk_bytes, FREE_BYTES_LEAST)
