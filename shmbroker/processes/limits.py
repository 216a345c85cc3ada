"""Limits of the process (`ulimit`) that a family can't live under: one sentence at its start.

What may be raised is raised: children inherit it.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress

from shmbroker.errors import ConfigFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.settings.broker_config import BrokerConfig

OPEN_FILES_MAX = 1 << 20
OPEN_FILES_MIN = 1024
"""The supervisor's lock lies at 512, an I/O worker keeps 512 segments open; the rest is for
connections. What all inherit comes on top (`open_files_needed`)."""


def open_files_needed(network_workers: int, io_workers: int, controllers: int) -> int:
    """The descriptors that a family of that size needs: an eventfd for each process, a socket for
    each end of the pairs that pass files and connections (`shared_resources`)."""
    processes = network_workers + io_workers + controllers + 4
    return OPEN_FILES_MIN + processes + 2 * io_workers * (2 * network_workers + io_workers)


def network_workers(wanted: int | None) -> int:
    """How many: as the setting says, else two, or one where this process may run on one core only
    (a machine's other cores are not a container's, nor those of `taskset`)."""
    return wanted or min(2, len(os.sched_getaffinity(0)))


def adjust(config: BrokerConfig) -> None:
    """What a family with these settings needs, before it opens anything. ConfigFault: it can't be
    had."""
    open_files = open_files_needed(
        network_workers(config["shmbroker.network.workers"]),
        config["shmbroker.io.workers"],
        config["shmbroker.controllers"],
    )
    raise_limits(open_files, config["log.segment.bytes"])
    if config.has_secrets:
        keep_secrets_out_of_cores()


def raise_limits(open_files: int, segment_bytes: int) -> None:
    """ConfigFault if so many open files, or files of that size, can't be had."""
    hard = raise_open_files()
    if hard < open_files:
        raise ConfigFault(
            f"The limit of open files is {hard}, and this family needs at least {open_files}: "
            "raise it (ulimit -n; LimitNOFILE= in a unit; --ulimit nofile=... for a container)."
        )
    hard = _raise(resource.RLIMIT_FSIZE, resource.RLIM_INFINITY)
    if hard < segment_bytes:
        raise ConfigFault(
            f"The limit of file sizes is {hard} bytes, less than a log segment "
            f"({segment_bytes}): lift it (ulimit -f unlimited; LimitFSIZE= in a unit), or set a "
            "smaller log.segment.bytes."
        )


def raise_open_files() -> int:
    """Let this process open as many files as it may: how many."""
    return _raise(resource.RLIMIT_NOFILE, OPEN_FILES_MAX)


def keep_secrets_out_of_cores(filter_file: str = "/proc/self/coredump_filter") -> None:
    """Core dumps of this process and its children have none of their memory but what files have
    (core(5)): decision 069."""
    with suppress(OSError), open(filter_file, "r+") as file:
        file.write("0")


def _raise(what: int, most: int) -> int:
    """Raise the soft limit as far as the hard one allows; what it is then, 2**63 for none."""
    soft, hard = resource.getrlimit(what)
    wanted = hard if most == resource.RLIM_INFINITY else most
    if hard != resource.RLIM_INFINITY:
        wanted = hard if wanted == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(what, (wanted, hard))
        soft = wanted
    except (ValueError, OSError):
        pass  # a kernel that allows less than it says (fs.nr_open)
    return 1 << 63 if soft == resource.RLIM_INFINITY else soft
