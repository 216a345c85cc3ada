"""The driver's side: find or start the keeper, begin a run, commit and abort.

The keeper of a SparkContext is found by the name of the context's local directory, which Spark
tells its Python processes (SPARK_LOCAL_DIRS), as a Unix socket without a file.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from shmbroker.client.addresses import parse_addresses
from shmbroker.client.security import OPEN, Security
from shmbroker.errors import ConfigFault, Fault
from shmbroker.spark.transactions.messages import Channel, FarFault, Fields

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LOOPBACK = "127.0.0.1"


class KeeperRefusalFault(Fault):
    """The keeper can't do what was asked, in its words."""


class KeeperRun(NamedTuple):
    """What tasks need to find the keeper, and what they are a part of."""

    number: int
    port: int
    token: str
    hosts: tuple[str, ...]
    boot_id: str
    """The boot id of the driver's host: tasks there come over the loopback interface."""
    label: str
    """What Spark's calls for one query have in common; empty: nothing is known to be."""


def begin(
    servers: str, host: str | None, options: Mapping[str, str], security: Security = OPEN
) -> KeeperRun:
    """A new run. `host`: where executors reach this host; None: as it is found out. `security`: how
    the keeper enters the cluster; it comes to it by no other way, and not from tasks."""
    told = _asked({"what": "run", "security": security.plain()}, starts=True)
    hosts = (host,) if host is not None else _hosts(servers)
    return KeeperRun(told["run"], told["port"], told["token"], hosts, boot_id(), label_of(options))


def commit(name: str, run: int, tasks: Sequence[int]) -> None:
    """Readers see all that these tasks wrote; RefusedFault if that can't be."""
    _asked({"what": "commit", "name": name, "run": run, "tasks": list(tasks)})


def abort(name: str | None, run: int, version: int, label: str) -> None:
    """Readers see nothing of the run: of this name, or of this label and version."""
    # Where the keeper is gone, its transaction ends by its time-out, or with the next run.
    with suppress(FarFault):
        _asked({"what": "abort", "name": name, "run": run, "version": version, "label": label})


def label_of(options: Mapping[str, str]) -> str:
    """The label of a query, the same for all of its calls; other queries have another: they have
    another checkpoint."""
    given = {name.lower(): value for name, value in options.items()}
    if "checkpointlocation" not in given:
        return ""
    return blake2b(repr(sorted(given.items())).encode(), digest_size=16).hexdigest()


def boot_id() -> str:
    """What tells this host, since it was started, from others; empty where it isn't told."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _asked(question: Fields, starts: bool = False) -> Fields:
    channel = _connect(starts)
    try:
        answer = channel.ask(**question)
    finally:
        channel.close()
    if "fault" in answer:
        raise KeeperRefusalFault(answer["fault"])
    return answer


def _connect(starts: bool) -> Channel:
    directory = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    if not directory:
        raise ConfigFault(
            "Spark does not tell its local directory: exactlyOnce=transactions can't be"
        )
    digest = blake2b(directory.encode(), digest_size=12).hexdigest()
    name = f"shmbroker-transactions-{os.geteuid()}-{digest}"
    found = _dial(name)
    if found is None and starts:
        _start(name, directory)
        found = _dial(name)
    if found is None:
        raise FarFault(
            "the process that had this SparkContext's transactions is gone: restart the query"
        )
    return found


def _dial(name: str) -> Channel | None:
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.connect(f"\0{name}")
    except OSError:
        stream.close()
        return None
    channel = Channel(stream)
    if not channel.is_of_same_user():
        channel.close()
        raise FarFault("another user's process has the name of the keeper of transactions")
    return channel


def _start(name: str, directory: str) -> None:
    """Start the keeper, apart from this process, which Spark may end at any time."""
    module = "shmbroker.spark.transactions.keeper"
    host = os.environ.get("SPARK_LOCAL_IP", "")
    words = [sys.executable, "-m", module, name, directory, str(_jvm()), host]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=environment,
        cwd="/",
    ) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise FarFault("the process that keeps transactions did not start; see its stderr")
        process.returncode = 0  # it goes on; Popen would wait for it


def _jvm() -> int:
    """The process of Spark's driver: the nearest ancestor that is Java, else our parent."""
    pid = os.getppid()
    while pid > 1:
        try:
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            break
        name, _, rest = status[status.index("(") + 1 :].rpartition(")")
        if name == "java":
            return pid
        pid = int(rest.split()[1])
    return os.getppid()


def _hosts(servers: str) -> tuple[str, ...]:
    """Addresses of this host that executors may reach, likely ones first: the one that Spark was
    given, the one from which brokers are reached, those of the host's name."""
    found = []
    if given := os.environ.get("SPARK_LOCAL_IP"):
        return (given,)
    for address in parse_addresses(servers):
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            found.append(str(probe.getsockname()[0]))
    with suppress(OSError):
        rows = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
        found += [str(row[4][0]) for row in rows]
    return tuple(dict.fromkeys(one for one in found if not one.startswith("127."))) or (_LOOPBACK,)
