"""What fails for a while is tried again: one loop, one back-off.

What may pass is a LaterFault (Kafka's retriable errors among them, `faults.refuse`), an OSError of
a connection, and a ProtocolFault of a broker that stops in the middle of an answer. Everything else
goes to the caller at once.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

from shmbroker import clock
from shmbroker.client.faults import ClusterFault, LaterFault, NoBrokerFault, RefusedFault
from shmbroker.errors import ProtocolFault

REST_S = 0.1
REST_S_MAX = 0.4
"""Rests double up to this: a leader that moves takes about as long, and nobody waits for more."""

PASSING = (LaterFault, OSError, ProtocolFault)

T = TypeVar("T")


def rests() -> Iterator[float]:
    """Seconds between one try and the next, for ever."""
    rest_s = REST_S
    while True:
        yield rest_s
        rest_s = min(2 * rest_s, REST_S_MAX)


def patiently(
    ask: Callable[[], T],
    wait_s: float,
    what: str = "no answer",
    before_retry: Callable[[], object] | None = None,
    final: type[Exception] | None = None,
) -> T:
    """What `ask` gives, tried again for `wait_s`; then a ClusterFault that begins with `what`: a
    RefusedFault if the last answer was an error.

    `before_retry` is called after each rest; a fault of the kind `final` is the last.
    """
    deadline = clock.monotonic() + wait_s
    for rest_s in rests():
        try:
            return ask()
        except PASSING as fault:
            is_final = final is not None and isinstance(fault, final)
            if is_final or clock.monotonic() + rest_s > deadline:
                kind = RefusedFault if isinstance(fault, RefusedFault) else ClusterFault
                raise kind(_told(what, wait_s, fault)) from fault
        clock.sleep(rest_s)
        if before_retry is not None:
            before_retry()
    raise AssertionError("rests never end")


def _told(what: str, wait_s: float, fault: Exception) -> str:
    if isinstance(fault, NoBrokerFault):
        return f"{fault.text} within {wait_s:g} s: {fault.reason}"
    return f"{what} within {wait_s:g} s, at last: {fault}"
