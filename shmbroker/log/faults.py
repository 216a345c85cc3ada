"""Faults of the storage engine that a caller tells apart."""

from shmbroker.errors import StorageFault


class DiskFullFault(StorageFault):
    """No space (or quota, or file size) left: nothing was written, reads go on, try again later.

    Unlike every other StorageFault it fences nothing; a Produce gets KAFKA_STORAGE_ERROR.
    """
