"""Files that siblings own, as this process sends them: descriptors, slices, sendfile.

A *slice* is a file id, a position and a length. The owner of the file passes its descriptor once
over a Unix socket pair (SCM_RIGHTS, the id as the eight bytes beside it); it is kept here in an LRU
and asked for again after it was dropped. Nothing is opened by path: a path may name another file
by the time it is opened (deletion, compaction's swap).

`os.sendfile` on Linux sends from the page cache without a copy into this process. It may send less
than asked (socket buffer full) and 0 at the end of the file; a slice is below the high watermark,
whose bytes neither move nor shrink, so 0 is a broken invariant of the owner and closes the
connection.
"""

import array
import os
import socket
from collections import OrderedDict

from shmbroker.errors import StorageFault

INLINE_BYTES = 16384
"""Slices up to this size are read and sent with the header in one call: cheaper than sendfile."""

FILES_MAX = 1024
"""Descriptors kept for each owner, least recently used first out."""


class OpenFile:
    """A descriptor that closes when the last slice in flight over it is gone."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class FileSlice:
    """Bytes of a file that are yet to be sent; `position` and `length` move as they go."""

    __slots__ = ("file", "length", "position")

    def __init__(self, file: OpenFile, position: int, length: int) -> None:
        self.file = file
        self.position = position
        self.length = length

    def read(self) -> bytes:
        """The bytes themselves; StorageFault if the file holds fewer."""
        data = os.pread(self.file.fd, self.length, self.position)
        if len(data) != self.length:
            raise StorageFault(f"slice at {self.position} holds {len(data)} of {self.length} bytes")
        return data


class FileTable:
    """The descriptors that one owner has passed to this process, by file id."""

    __slots__ = ("_files", "_socket")

    def __init__(self, passing: socket.socket) -> None:
        self._socket = passing
        self._files: OrderedDict[int, OpenFile] = OrderedDict()

    def find(self, file_id: int) -> OpenFile | None:
        """The file, after taking in what lies in the socket pair; None if it must be asked for."""
        file = self._files.get(file_id)
        if file is None:
            self.receive()
            file = self._files.get(file_id)
            if file is None:
                return None
        self._files.move_to_end(file_id)
        return file

    def receive(self) -> None:
        """Take in every descriptor that has been passed so far."""
        while True:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(8, socket.CMSG_LEN(4))
            except (BlockingIOError, ConnectionError):
                return
            if not data:
                return
            for level, kind, payload in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds = array.array("i", payload[:4])
                    self._files[int.from_bytes(data, "little")] = OpenFile(fds[0])
            while len(self._files) > FILES_MAX:
                self._files.popitem(last=False)

    def drop(self, file_id: int) -> None:
        """The owner has deleted that file."""
        self.receive()
        self._files.pop(file_id, None)

    def clear(self) -> None:
        """The owner is dead: its ids mean nothing any more."""
        self.receive()
        self._files.clear()


def pass_file(passing: socket.socket, file_id: int, fd: int) -> bool:
    """Hand a descriptor to the other end; False if its socket is full (it will ask again)."""
    try:
        passing.sendmsg(
            [file_id.to_bytes(8, "little")],
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))],
        )
    except (BlockingIOError, ConnectionError):
        return False
    return True
