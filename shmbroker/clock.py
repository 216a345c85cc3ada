"""The only place that reads the time.

Pure cores take the time as an argument; processes read it here once per turn and pass it on.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """The time, as this module gives it; a test gives one that it moves itself."""

    def monotonic(self) -> float: ...

    def monotonic_ns(self) -> int: ...

    def now_ms(self) -> int: ...

    def sleep(self, seconds: float, /) -> None: ...


monotonic = time.monotonic
"""Seconds that never go back; for timeouts and intervals."""

monotonic_ns = time.monotonic_ns

worked_s = time.thread_time
"""Seconds of a processor's time that this thread has had so far."""

time_ns = time.time_ns


def now_ms() -> int:
    """Milliseconds since 1970, as record timestamps count them."""
    return time.time_ns() // 1_000_000


sleep = time.sleep
"""A sleep, for boot and shutdown loops that wait on another process, and for rests where nobody
waits."""
