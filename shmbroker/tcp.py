"""How both ends of a TCP connection are set up: nothing that is written waits.

* **Not for more to be written** (Nagle): requests and answers are written whole.
* **Not for its turn**, where the other end is on this host. A Linux that is told to use BBR
  (`net.ipv4.tcp_congestion_control`) spreads what is sent over time by a timer, to keep the queues
  of a network short; on the way to the same host there are none, and a large answer took the
  broker up to 2.5 times the CPU. Reno, which every kernel has and allows, doesn't wait.
"""

import socket
from contextlib import suppress

_SAME_HOST = b"reno"


def tune(stream: socket.socket) -> None:
    """Set up a connected TCP socket."""
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with suppress(OSError):  # the other end may have left already
        # on this host, both ends have one address: the loopback one, or the host's own
        if stream.getsockname()[0] == stream.getpeername()[0]:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _SAME_HOST)
