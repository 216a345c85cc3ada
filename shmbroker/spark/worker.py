"""What makes the Python processes faster that Spark plans queries and runs tasks in.

Two of Spark's habits cost a short task more than its work does:

* **It collects garbage after every task**, 15 to 40 ms with what is imported: so that is taken out
  of garbage collection.
* **Its JVM sends a task in two pieces**, the second one after the kernel's ACK of the first. Over
  TCP, Spark's default, that ACK is delayed by 40 ms unless it is asked for. What tasks are sent is
  unpickled between the two pieces, so `Shipped` asks there.
"""

import gc
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from shmbroker import tcp
from shmbroker.errors import Fault

_FREEZES = 2
"""The second task finds what the first one imported on its way."""

_SEND_BUFFER_BYTES = 4 << 20
"""A Unix socket holds 208 KiB unless it is told; each time it is full costs two context switches.
TCP finds its size by itself. The kernel takes no more than net.core.wmem_max."""

_frozen = 0


def freeze() -> None:
    """Take what is imported out of garbage collection; at the start of each task and plan."""
    global _frozen
    if _frozen < _FREEZES:
        _frozen += 1
        gc.freeze()


def tune_sockets() -> None:
    """Have the JVM's writes acknowledged at once, and ours take no detour, as far as this system
    allows it.

    The socket is Spark's, and no name of it is public: so all of this process are tuned, the
    broker's among them, which is no harm.
    """
    for stream in _sockets():
        with suppress(OSError):
            if stream.family == socket.AF_UNIX:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            else:
                tcp.tune(stream)
                # for now only: the kernel delays ACKs again after the next answers
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


class Shipped:
    """What Spark sends to its tasks: a reader or a writer, pickled."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        tune_sockets()


def _sockets() -> Iterator[socket.socket]:
    """The stream sockets of this process; they stay open, and their owners'."""
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:  # another system, where executors fetch
        return
    for name in names:
        try:
            found = socket.socket(fileno=int(name))
        except OSError:  # no socket, or closed by now
            continue
        try:
            if found.type == socket.SOCK_STREAM:
                yield found
        finally:
            found.detach()


# --- what users see of these processes -----------------------------------------------------------

_WORKER = "pyspark.worker_util"
"""A module that only the Python processes of Spark have imported."""

_HIDE = "SPARK_HIDE_TRACEBACK"
"""The variable that makes such a process tell an error without its traceback."""


@contextmanager
def told_plainly() -> Iterator[None]:
    """A fault of ours, which says what to do, reaches the user without the traceback that Spark
    would put before it. The process ends with it, so nobody else's is hidden."""
    try:
        yield
    except Fault:
        if _WORKER in sys.modules:
            os.environ[_HIDE] = "1"
        raise


def leave_if_jvm_has() -> None:
    """End this process of Spark's quietly if it is about to fail as the JVM has closed its socket:
    that is how a query is stopped, and all that would follow is a traceback on stderr."""
    error = sys.exc_info()[1]
    if _WORKER in sys.modules and isinstance(error, (BrokenPipeError, EOFError)):
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_globals.get("__name__", "").startswith("shmbroker."):
                return  # of a connection of ours
            trace = trace.tb_next
        os._exit(0)
