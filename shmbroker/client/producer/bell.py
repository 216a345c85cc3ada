"""How callers wake the thread that sends: an eventfd that it sleeps on, beside its sockets.

    the sending thread   `has_news` off ─► plans, sends ─► `is_asleep` on, if there was no news
                         ─► sleeps until the bell, a socket, or `wakes_s` ─► `is_asleep` off
    a caller             `ring`: `has_news` on; the eventfd is written if the other is asleep

Rules

* All of it needs the lock of the backlog, but for `hear`, and `open`, when there is no thread yet.
  So no news gets lost between the plan and the sleep, and a thread that is awake costs a caller no
  system call.
* The eventfd lives as long as the thread. It is closed with `is_asleep` off, under the lock:
  nobody writes to a number that is another file's by then.
"""

import os


class Bell:
    """The bell between the callers and the thread that sends."""

    def __init__(self) -> None:
        self.fd = -1
        self.is_asleep = False
        self.wakes_s = 0.0  # when it wakes by itself
        self.has_news = False  # since the sending thread made its last plan

    def open(self) -> None:
        """The thread is about to begin."""
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def close(self) -> None:
        """The thread ends."""
        self.is_asleep = False
        os.close(self.fd)

    def ring(self) -> None:
        """Wake the sending thread if it sleeps."""
        self.has_news = True
        if self.is_asleep:
            self.is_asleep = False
            os.eventfd_write(self.fd, 1)

    def hear(self) -> None:
        """Take note of a ring: clear the eventfd."""
        os.eventfd_read(self.fd)
