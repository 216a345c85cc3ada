"""A region: a piece of shared memory that lives as long as one of the processes that map it.

Rules
* Made and mapped before the first fork, and unlinked at once: the children inherit the map, and
  no way to die leaves a name behind in /dev/shm. A name that is there at start belongs to a
  process that was killed between creating and unlinking; `sweep` removes it.
* Every page is allocated when the region is made. /dev/shm is a tmpfs, and a page of it that is
  only touched later, when the memory has run out, is a SIGBUS that Python cannot catch.
* A process without a common ancestor (a tool) is passed `fd` over a Unix socket and maps it with
  `attach`.
"""

import errno
import mmap
import os

from shmbroker.errors import ConfigFault

SHM_DIRECTORY = "/dev/shm"
_LIMITS = {
    errno.EFBIG: "{} MiB of shared memory are more than the limit of file sizes allows: lift it "
    "(ulimit -f unlimited; LimitFSIZE= in a unit).",
    errno.ENOMEM: "{} MiB of shared memory can't be mapped: lift the limit of address space "
    "(ulimit -v unlimited; LimitAS= in a unit), or free memory.",
}


class Region:
    """A mapped piece of shared memory. `view` is all of its bytes, `fd` names it to others."""

    __slots__ = ("_map", "fd", "view")

    def __init__(self, fd: int, size_bytes: int) -> None:
        self._map = mmap.mmap(fd, size_bytes, mmap.MAP_SHARED)
        self.fd = fd
        self.view = memoryview(self._map)

    @classmethod
    def create(cls, name: str, size_bytes: int) -> "Region":
        """A zeroed region, its name already gone again; `name` has no slash.

        ConfigFault when there is no room for it, or /dev/shm can't be used; FileExistsError when
        the name is taken.
        """
        import posix_ipc

        try:
            shared = posix_ipc.SharedMemory(
                "/" + name, posix_ipc.O_CREAT | posix_ipc.O_EXCL, mode=0o600
            )
        except posix_ipc.ExistentialError as fault:
            raise FileExistsError(errno.EEXIST, "shared memory exists", name) from fault
        except (OSError, posix_ipc.PermissionsError) as fault:
            raise ConfigFault(_unusable(fault)) from fault
        shared.unlink()
        try:
            os.posix_fallocate(shared.fd, 0, size_bytes)
            return cls(shared.fd, size_bytes)
        except OSError as fault:
            os.close(shared.fd)
            if fault.errno == errno.ENOSPC:
                raise ConfigFault(_no_room(size_bytes)) from fault
            if fault.errno in _LIMITS:
                raise ConfigFault(_LIMITS[fault.errno].format(_mib(size_bytes))) from fault
            raise

    @classmethod
    def attach(cls, fd: int, size_bytes: int) -> "Region":
        """Map a region by a descriptor that its family has passed on; takes the descriptor over.

        ConfigFault when the region is smaller than `size_bytes`: a touch beyond its end is a
        SIGBUS.
        """
        if os.fstat(fd).st_size < size_bytes:
            raise ConfigFault(f"The shared region has less than {size_bytes} bytes: pass its size.")
        return cls(fd, size_bytes)

    def close(self) -> None:
        """Unmap it. BufferError while views made from `view` are still in use."""
        self.view.release()
        self._map.close()
        os.close(self.fd)


def sweep(prefix: str) -> list[str]:
    """Unlink the shared memory names that begin with `prefix`; returns them.

    Only for a prefix of one's own, under the lock that keeps a second family away.
    """
    try:
        names = [name for name in os.listdir(SHM_DIRECTORY) if name.startswith(prefix)]
        for name in names:
            os.unlink(os.path.join(SHM_DIRECTORY, name))
    except OSError as fault:
        raise ConfigFault(_unusable(fault)) from fault
    return names


def require_room(size_bytes: int) -> None:
    """ConfigFault unless all regions of a family, so many bytes, have room: better than to say it
    of the first that has none."""
    try:
        disk = os.statvfs(SHM_DIRECTORY)
    except OSError as fault:
        raise ConfigFault(_unusable(fault)) from fault
    # A tmpfs without a limit says that it has no blocks at all.
    if disk.f_blocks and disk.f_bavail * disk.f_frsize < size_bytes:
        raise ConfigFault(_no_room(size_bytes))


def _unusable(fault: Exception) -> str:
    return (
        f"Shared memory can't be made in {SHM_DIRECTORY} ({getattr(fault, 'strerror', '') or fault}"
        f"): it must be a tmpfs that may be written to (mount -t tmpfs tmpfs {SHM_DIRECTORY})."
    )


def _no_room(size_bytes: int) -> str:
    disk = os.statvfs(SHM_DIRECTORY)
    free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    return (
        f"{SHM_DIRECTORY} has {free >> 20} MiB free of {size >> 20} MiB, and {_mib(size_bytes)} "
        "MiB of shared memory are needed: enlarge it (mount -o remount,size=... "
        f"{SHM_DIRECTORY}; --shm-size for a container), or set a smaller shmbroker.ring.data.bytes."
    )


def _mib(size_bytes: int) -> int:
    return -(-size_bytes >> 20)
