"""Faults of the storage engine that a caller tells apart."""

from errno import EDQUOT, EFBIG, ENOSPC

from shmbroker.errors import StorageFault

NO_SPACE = (ENOSPC, EDQUOT, EFBIG)


class DiskFullFault(StorageFault):
    """No space (or quota, or file size) left: nothing was written, reads go on, try again later.

    Unlike every other StorageFault it fences nothing; a Produce gets KAFKA_STORAGE_ERROR.
    """


def writing_fault(error: OSError, path: str) -> StorageFault:
    """What the refusal to write to a file means."""
    if error.errno in NO_SPACE:
        return DiskFullFault(f"no space for {path}: {error.strerror}", path)
    return StorageFault(f"can't write {path}: {error}", path)
