"""The keys that tokens are signed with (JWKS), read again now and then, never in a turn.

* A thread reads the file or the URL: at once, then every
  `sasl.oauthbearer.jwks.endpoint.refresh.ms`; a file is looked at more often, and read when it has
  changed. A token with an unknown key has them read sooner, but not more often than once in
  `SOON_S`, as clients could ask for that without end.
* A process that begins waits for the first try, but not longer than `FIRST_S`: a client that comes
  to a worker right after its start finds the keys there, and a URL that hangs stops no worker.
* What can't be read leaves the keys that were there, and is tried again after longer and longer
  rests. A line says so when it begins, or has another reason, and one when it has ended.
* While no keys were read yet no token holds.
"""

from __future__ import annotations

import logging
import threading
from os import stat
from urllib.parse import unquote, urlsplit

from shmbroker.security.sasl.jwt import keys_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shmbroker.clock import Clock
    from shmbroker.security.sasl.jwt import SigningKey

logger = logging.getLogger(__name__)

FIRST_S = 2.0
SOON_S = 10.0
REST_S_MIN = 0.1
"""The least time from the end of a try to the next one, whatever the settings say."""
LOOK_AT_FILE_S = 5.0
ANSWER_S = 10.0
KEYS_BYTES_MAX = 1 << 20


class Jwks:
    """The keys of one URL; its thread begins with `begin`, behind any fork."""

    def __init__(
        self, clock: Clock, url: str, refresh_s: float, rest_s: float, rest_s_max: float,
        read: Callable[[str], bytes] | None = None,
    ) -> None:  # fmt: skip
        """rest_s, rest_s_max: the first and the longest rest after a try that failed."""
        self._clock = clock
        self.url = url
        self._refresh_s, self._rest_s, self._rest_s_max = refresh_s, rest_s, rest_s_max
        self._read = read or read_url
        self._keys: Sequence[SigningKey] = ()
        self._tried = threading.Event()
        self._wanted = threading.Event()
        self._next_wanted = 0.0
        self._stamp: object = None
        self._complaint = ""
        """Why the last try has failed; "": it has not."""
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Read the keys, and go on doing so; return when they were tried once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="jwks", daemon=True)
            self._thread.start()
            self._tried.wait(FIRST_S)

    def known(self) -> Sequence[SigningKey]:
        """The keys that were read last; does not wait."""
        return self._keys

    @property
    def is_wanted(self) -> bool:
        """Whether newer keys are looked for next."""
        return self._wanted.is_set()

    def want(self) -> None:
        """A key is not there: look for newer ones soon."""
        now = self._clock.monotonic()
        if now >= self._next_wanted:
            self._next_wanted = now + SOON_S
            self._wanted.set()

    def look(self) -> bool:
        """Read them once; False if they could not be."""
        try:
            keys = keys_of(self._read(self.url))
        except (OSError, ValueError) as fault:
            self._complain(f"the keys of {self.url} can't be read: {fault}")
            return False
        except Exception:
            # A library may raise anything; it must not take the thread with it.
            logger.exception("the keys of %s can't be read", self.url)
            return False
        if not keys:
            self._complain(f"{self.url} has no key that can check a signature")
            return False
        self._keys = keys
        if self._complaint:
            self._complaint = ""
            logger.info("the keys of %s can be read again", self.url)
        return True

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            self._complaint = complaint
            logger.warning("%s; it is tried again and again", complaint)

    def _run(self) -> None:
        path = path_of(self.url)
        rest_s = self._rest_s
        next_s = 0.0
        while True:
            now = self._clock.monotonic()
            stamp = _stamp(path) if path is not None else None
            if now >= next_s or self.is_wanted or stamp != self._stamp:
                self._wanted.clear()
                self._stamp = stamp
                if self.look():
                    rest_s = self._rest_s
                    wait_s = self._refresh_s
                else:
                    wait_s = rest_s
                    rest_s = min(rest_s * 2, self._rest_s_max)
                next_s = self._clock.monotonic() + max(wait_s, REST_S_MIN)
                self._tried.set()
            wait_s = max(0.0, next_s - self._clock.monotonic())
            self._wanted.wait(min(wait_s, LOOK_AT_FILE_S) if path is not None else wait_s)


def path_of(url: str) -> str | None:
    """The path of a file: URL; None if it is another."""
    parts = urlsplit(url)
    return unquote(parts.path) if parts.scheme == "file" else None


def read_url(url: str) -> bytes:
    """What lies there; OSError if nothing can be had, ValueError if it is too much."""
    path = path_of(url)
    if path is not None:
        with open(path, "rb") as file:
            return _bounded(file.read(KEYS_BYTES_MAX + 1))
    from http.client import HTTPException
    from urllib.request import Request, urlopen  # with TLS: nothing for a start

    request = Request(url, headers={"Accept": "application/json"})
    try:
        with urlopen(request, timeout=ANSWER_S) as answer:
            return _bounded(answer.read(KEYS_BYTES_MAX + 1))
    except HTTPException as fault:
        raise OSError(f"it does not answer as HTTP has it: {fault!r}") from fault


def _bounded(content: bytes) -> bytes:
    if len(content) > KEYS_BYTES_MAX:
        raise ValueError(f"more than {KEYS_BYTES_MAX} bytes")
    return content


def _stamp(path: str) -> object:
    try:
        found = stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
