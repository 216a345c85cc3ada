"""What becomes of a family whose processes can't boot: does it go on without them. Pure.

A process that ends before it served can't boot when it has found a fault, when nothing was served
yet, or after CRASHES_MAX crashes in a row. The rule, by role:

    before READY, in a directory that is new   all of them have to boot: what was asked for is
                                               impossible, and nobody has anything here yet
    before READY, else                         a majority of the controllers, as less decides
                                               nothing; one I/O worker; one network worker
    after READY                                one of each: data is served without a majority
"""

from collections.abc import Mapping, Sequence

from shmbroker.ipc.slots import CONTROLLER, IO_WORKER, NETWORK_WORKER

CRASHES_MAX = 5
RETRY_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""The seconds before the n-th try of a process that can't boot; the last one again and again."""

NEEDED = (CONTROLLER, IO_WORKER, NETWORK_WORKER)


def can_go_on(able: Mapping[str, Sequence[bool]], is_ready: bool, is_new: bool) -> bool:
    """Whether enough is left. `able`, by role: of each of its processes, that it can boot, or that
    nothing else is known yet."""
    return all(
        sum(able[role]) >= _needed(role, len(able[role]), is_ready, is_new) for role in NEEDED
    )


def _needed(role: str, count: int, is_ready: bool, is_new: bool) -> int:
    if is_ready:
        return 1
    if is_new:
        return count
    return count // 2 + 1 if role == CONTROLLER else 1


def retry_s(failed: int) -> float:
    """How long to wait after so many failed tries in a row (from 1)."""
    return RETRY_S[min(failed, len(RETRY_S)) - 1]
