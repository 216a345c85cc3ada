"""A region: a piece of shared memory that lives as long as one of the processes that map it.

Rules
* Made and mapped before the first fork, and unlinked at once: the children inherit the map, and
  no way to die leaves a name behind in /dev/shm. A name that is there at start belongs to a
  process that was killed between creating and unlinking; `sweep` removes it.
* Every page is allocated when the region is made. /dev/shm is a tmpfs, and a page of it that is
  only touched later, when the memory has run out, is a SIGBUS that Python cannot catch.
* Whoever has no common ancestor (a tool) is passed `fd` over a Unix socket and maps it with
  `attach`.
"""

import errno
import mmap
import os

from shmbroker.errors import ConfigFault

SHM_DIRECTORY = "/dev/shm"


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

        ConfigFault when /dev/shm has no room for it; FileExistsError when the name is taken.
        """
        import posix_ipc

        try:
            shared = posix_ipc.SharedMemory(
                "/" + name, posix_ipc.O_CREAT | posix_ipc.O_EXCL, mode=0o600
            )
        except posix_ipc.ExistentialError as fault:
            raise FileExistsError(errno.EEXIST, "shared memory exists", name) from fault
        shared.unlink()
        try:
            os.posix_fallocate(shared.fd, 0, size_bytes)
            return cls(shared.fd, size_bytes)
        except OSError as fault:
            os.close(shared.fd)
            if fault.errno == errno.ENOSPC:
                raise ConfigFault(_no_room(name, size_bytes)) from fault
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
    names = [name for name in os.listdir(SHM_DIRECTORY) if name.startswith(prefix)]
    for name in names:
        os.unlink(os.path.join(SHM_DIRECTORY, name))
    return names


def _no_room(name: str, size_bytes: int) -> str:
    disk = os.statvfs(SHM_DIRECTORY)
    mib = 1 << 20
    return (
        f"{SHM_DIRECTORY} has {disk.f_bavail * disk.f_frsize // mib} MiB free of "
        f"{disk.f_blocks * disk.f_frsize // mib} MiB, and {name} needs "
        f"{-(-size_bytes // mib)} MiB: enlarge it (mount -o remount,size=..., or --shm-size "
        "for a container)."
    )
