"""Files that siblings own, as this process sends them: descriptors, slices, sendfile.

A *slice* is a file id, a position and a length. The owner of the file passes its descriptor once
over a Unix socket pair (SCM_RIGHTS, the id as the eight bytes beside it); it is kept here in an LRU
and asked for again after it was dropped. Nothing is opened by path: a path may name another file
by the time it is opened (deletion, compaction's swap).

What is not in the page cache must not hold up the other connections of the worker: sendfile and
pread wait for the disk. So the first and the last byte of what is about to be sent are read with
RWF_NOWAIT; if one of them is not there, the kernel is asked to read ahead (POSIX_FADV_WILLNEED,
which doesn't wait) and the send is tried again a little later. ColdSlice says so.

`os.sendfile` on Linux sends from the page cache without a copy into this process. It may send less
than asked (socket buffer full) and 0 at the end of the file; a slice is below the high watermark,
whose bytes neither move nor shrink, so 0 is a broken invariant of the owner and closes the
connection.
"""

import array
import os
import socket
from collections import OrderedDict
from typing import final

from shmbroker.log.descriptors import open_files_share
from shmbroker.log.residency import CANT_SAY, is_cold, will_need

INLINE_BYTES = 32768
"""Slices up to this size are read, and sent with what stands around them in one call: cheaper than
sendfile with its two looks beforehand, once for each of many partitions."""

FILES_MIN, FILES_MAX = 1024, 2560
"""Descriptors kept for each owner, least recently used first out: a consumer of 2,000 partitions
comes back to each of them. The fewer where the limit of open files is low."""
OPEN_FILES_SHARE = 8
"""What part of that limit they may take, of all owners together: one in so many."""


COLD_RETRIES_MAX = 200
"""The number of tries after which the bytes are read all the same: a page may be dropped as fast as
it comes in."""

READ_AHEAD_BYTES = 1 << 20
"""What the kernel is asked for where the next bytes are on the disk."""


class ColdSlice(Exception):
    """The bytes are still on the disk; reading ahead has begun, try again soon."""


class OpenFile:
    """A descriptor that closes when the last slice in flight over it is gone."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


@final
class FileSlice:
    """Bytes of a file that are yet to be sent; `position` and `length` move as they go."""

    __slots__ = ("cold_retries", "file", "is_hot", "length", "position")

    def __init__(self, file: OpenFile, position: int, length: int, is_hot: bool = False) -> None:
        """is_hot: it was written a moment ago, so it is in the page cache."""
        self.cold_retries = 0
        self.is_hot = is_hot
        self.file = file
        self.position = position
        self.length = length

    def try_read(self) -> bytearray | None:
        """The bytes themselves if all are in the page cache, else None."""
        data = bytearray(self.length)
        try:
            count = os.preadv(self.file.fd, [data], self.position, os.RWF_NOWAIT)
        except OSError as fault:
            if fault.errno not in CANT_SAY:
                return None
            count = os.preadv(self.file.fd, [data], self.position)
        return data if count == self.length else None

    def read_into(self, view: memoryview) -> int:
        """Move the next bytes into `view`, as many as it holds and the page cache has: how many.
        ColdSlice if it has none."""
        fd = self.file.fd
        view = view[: self.length]
        may_wait = self.cold_retries >= COLD_RETRIES_MAX
        try:
            count = os.preadv(fd, [view], self.position, 0 if may_wait else os.RWF_NOWAIT)
        except BlockingIOError:
            self.cold_retries += 1
            will_need(fd, self.position, min(self.length, READ_AHEAD_BYTES))
            raise ColdSlice from None
        except OSError as fault:
            if fault.errno not in CANT_SAY:
                raise
            count = os.preadv(fd, [view], self.position)
        if count == 0:
            raise ConnectionResetError("a slice ended before its length")
        self.position += count
        self.length -= count
        return count

    def warm(self, length: int) -> None:
        """ColdSlice if the next `length` bytes (their first or last) would have to be read in."""
        if self.is_hot:
            self.is_hot = False  # what the socket does not take may be there long
            return
        fd, position = self.file.fd, self.position
        if is_cold(fd, position) or is_cold(fd, position + length - 1):
            self.cold_retries += 1
            if self.cold_retries < COLD_RETRIES_MAX:
                will_need(fd, position, length)
                raise ColdSlice


class FileTable:
    """The descriptors that one owner has passed to this process, by file id."""

    __slots__ = ("_files", "_files_max", "_socket")

    def __init__(self, passing: socket.socket, files_max: int = FILES_MIN) -> None:
        self._socket = passing
        self._files_max = files_max
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
            while len(self._files) > self._files_max:
                self._files.popitem(last=False)

    def drop(self, file_id: int) -> None:
        """The owner has deleted that file."""
        self.receive()
        self._files.pop(file_id, None)

    def clear(self) -> None:
        """The owner is dead: its ids mean nothing any more."""
        self.receive()
        self._files.clear()


def files_kept(owners: int) -> int:
    """How many to keep for each of so many owners."""
    return max(FILES_MIN, min(FILES_MAX, open_files_share(OPEN_FILES_SHARE * max(1, owners))))


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
