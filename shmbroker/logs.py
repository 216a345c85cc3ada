"""Log lines of the family: how they look, which loggers there are, and at which levels.

    human   2026-11-24 15:00:00,123 WARNING shmbroker: io-worker-1 what happened
    json    {"ts": "2026-11-24T15:00:00.123Z", "level": "WARNING", "process": "io-worker-1",
            "role": "io-worker", "id": 1, "pid": 4711, "logger": "shmbroker.broker.damage",
            "message": "what happened"}, and what the event has besides: see below

One line an event; of a bug the traceback follows, indented, and in JSON it is the field
`exception`. Where stderr is the journal ($JOURNAL_STREAM, systemd.exec(5)), each line begins with
its priority (`<4>`, sd-daemon(3)) instead of the time, which the journal has itself.

A record may have fields: `logger.warning("…", extra=fields(pid=7))`. Only JSON shows them.

Levels have Kafka's names (`LEVELS`). What a logger is not given it has from the one above it. Who
may change them while the family runs is in `shm.log_levels`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping

from shmbroker import clock
from shmbroker.errors import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import datetime

    Field = str | int | float | bool | None

HUMAN = "human"
JSON = "json"
FORMATS = (HUMAN, JSON)

TRACE = 5
LEVELS = {
    "TRACE": TRACE,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
"""Kafka's names, and Python's numbers."""
ROOT = "root"
PACKAGE = "shmbroker"
DEFAULTS = {ROOT: "WARN", PACKAGE: "INFO"}

LOGGERS = (
    "root",
    "shmbroker",
    "shmbroker.apis",
    "shmbroker.apis.controller",
    "shmbroker.apis.controller.broker_registration",
    "shmbroker.audit",
    "shmbroker.broker",
    "shmbroker.broker.append_checks",
    "shmbroker.broker.compaction",
    "shmbroker.broker.damage",
    "shmbroker.broker.disk_reserve",
    "shmbroker.broker.disk_watch",
    "shmbroker.broker.partition_directories",
    "shmbroker.broker.partition_store",
    "shmbroker.broker.placement",
    "shmbroker.broker.removals",
    "shmbroker.broker.replication",
    "shmbroker.broker.replication.cutting",
    "shmbroker.broker.replication.replica_fetcher",
    "shmbroker.broker.storage_faults",
    "shmbroker.broker.swaps",
    "shmbroker.broker.tiering",
    "shmbroker.broker.tiering.lists",
    "shmbroker.broker.tiering.pieces",
    "shmbroker.broker.tiering.reads",
    "shmbroker.broker.tiering.remotes",
    "shmbroker.broker.tiering.uploads",
    "shmbroker.broker.transaction_exchange",
    "shmbroker.broker.upkeep",
    "shmbroker.controller",
    "shmbroker.controller.active_controller",
    "shmbroker.controller.controller",
    "shmbroker.controller.due",
    "shmbroker.controller.membership",
    "shmbroker.controller.raft",
    "shmbroker.controller.raft.metadata_log",
    "shmbroker.controller.raft.snapshots",
    "shmbroker.controller.raft.voter",
    "shmbroker.controller.raft.voter_change",
    "shmbroker.controller.raft.voter_links",
    "shmbroker.controller.requests",
    "shmbroker.controller.told_ends",
    "shmbroker.gateway",
    "shmbroker.gateway.clients",
    "shmbroker.gateway.gateway",
    "shmbroker.gateway.jwks",
    "shmbroker.gateway.tls",
    "shmbroker.groups",
    "shmbroker.groups.classic",
    "shmbroker.groups.classic.execution",
    "shmbroker.groups.consumer",
    "shmbroker.groups.consumer.coordinator",
    "shmbroker.groups.consumer.topic_regex",
    "shmbroker.groups.coordinator",
    "shmbroker.groups.shards",
    "shmbroker.groups.transactions",
    "shmbroker.groups.transactions.coordinator",
    "shmbroker.ipc",
    "shmbroker.ipc.operation_adapter",
    "shmbroker.log",
    "shmbroker.log.compaction",
    "shmbroker.log.compaction.cleaned_files",
    "shmbroker.log.log_directory",
    "shmbroker.log.quarantine",
    "shmbroker.log.raised_start",
    "shmbroker.log.recovery",
    "shmbroker.log.recovery.damage",
    "shmbroker.log.recovery.ends",
    "shmbroker.log.recovery.epochs",
    "shmbroker.log.recovery.listing",
    "shmbroker.log.recovery.snapshots",
    "shmbroker.log.segment_indexes",
    "shmbroker.log.transaction_index",
    "shmbroker.metrics",
    "shmbroker.metrics.server",
    "shmbroker.observe",
    "shmbroker.observe.groups",
    "shmbroker.processes",
    "shmbroker.processes.aside",
    "shmbroker.processes.child",
    "shmbroker.processes.cleaner",
    "shmbroker.processes.console",
    "shmbroker.processes.data_access",
    "shmbroker.processes.data_directory",
    "shmbroker.processes.earlier_places",
    "shmbroker.processes.listening",
    "shmbroker.processes.metrics",
    "shmbroker.processes.supervisor",
    "shmbroker.tier",
    "shmbroker.tier.service",
    "shmbroker.tier.store_workers",
)
"""Every logger of the family: the modules that log, and the packages above them. `root` has what
libraries say."""

_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
"""syslog's, by the lowest level that has them; below is 7."""
_FIELDS = "shmbroker_fields"
_SELDOM = "shmbroker_seldom"


def fields(**values: Field) -> dict[str, dict[str, Field]]:
    """`extra` of a record: what a program wants to know of the event without reading the words."""
    return {_FIELDS: values}


def seldom(kind: str) -> dict[str, object]:
    """`extra` of a record that may come without end; `kind`: what is counted together."""
    return {_SELDOM: kind, _FIELDS: {"kind": kind}}


class LineFormatter(logging.Formatter):
    """A record as its line; `role` and `number` say whose it is."""

    def __init__(self, is_journal: bool = False) -> None:
        super().__init__()
        self.role = ""
        self.number: int | None = None
        self.format_name = HUMAN
        self.is_journal = is_journal

    @property
    def title(self) -> str:
        """The process, as `ps` shows it; "" before it is known."""
        return self.role if self.number is None else f"{self.role}-{self.number}"

    def format(self, record: logging.LogRecord) -> str:
        """The line, or the lines where there is a traceback."""
        message = one_line(record.getMessage())
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        if self.format_name == JSON:
            return self._prefix(record) + self._json(record, message, trace)
        time = "" if self.is_journal else self.formatTime(record) + " "
        whose = f"{self.title} " if self.role else ""
        head = f"{time}{record.levelname} shmbroker: {whose}{message}"
        lines = [head, *(f"    {line}" for line in trace.splitlines())]
        return "\n".join(self._prefix(record) + line for line in lines)

    def sentence(self, level: int, text: str) -> str:
        """What is said of a start, as a line: for people without time and level."""
        record = logging.LogRecord(PACKAGE, level, "", 0, text, None, None)
        if self.format_name == JSON:
            return self.format(record)
        return f"{self._prefix(record)}shmbroker: {text}"

    def _prefix(self, record: logging.LogRecord) -> str:
        return priority_prefix(record.levelno) if self.is_journal else ""

    def _json(self, record: logging.LogRecord, message: str, trace: str) -> str:
        import json

        row: dict[str, Field] = {
            "ts": _iso(record.created),
            "level": record.levelname,
            "process": self.title,
            "role": self.role,
            "id": self.number,
            "pid": record.process,
            "logger": record.name,
            "message": message,
        }
        for name, value in getattr(record, _FIELDS, {}).items():
            row.setdefault(name, value)
        if trace:
            row["exception"] = trace
        return json.dumps(row, ensure_ascii=False)


def priority_prefix(level: int) -> str:
    """What the journal reads of a line: `<3>` for an error."""
    return f"<{next((number for least, number in _PRIORITIES if level >= least), 7)}>"


def is_journal(fd: int) -> bool:
    """Whether a descriptor leads to the journal, as who started us says."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return (device, inode) == (str(found.st_dev), str(found.st_ino))


def begin(handler: logging.Handler, is_journal: bool) -> LineFormatter:
    """Have all that is logged in this process go to `handler`, libraries' lines too."""
    logging.addLevelName(TRACE, "TRACE")
    formatter = LineFormatter(is_journal)
    handler.setFormatter(formatter)
    handler.addFilter(_seldom)
    root = logging.getLogger()
    root.addHandler(handler)
    set_levels(DEFAULTS)
    return formatter


def say_who(role: str, number: int | None) -> None:
    """Say from here on which process of the family this one is; None: there is one of the role."""
    for formatter in _formatters():
        formatter.role, formatter.number = role, number


def set_format(name: str) -> None:
    """Write lines in one of FORMATS."""
    for formatter in _formatters():
        formatter.format_name = name


def set_levels(levels: Mapping[str, str]) -> None:
    """Give these loggers these levels, and all others of LOGGERS none."""
    for name in LOGGERS:
        logger = logging.getLogger(None if name == ROOT else name)
        logger.setLevel(LEVELS[levels[name]] if name in levels else logging.NOTSET)


def parse_levels(items: Iterable[str]) -> dict[str, str]:
    """Levels by logger, of items "LOGGER=LEVEL"; a LEVEL alone is that of PACKAGE. ValueError, a
    sentence, for what is none."""
    found = {}
    for item in items:
        name, equals, level = (word.strip() for word in item.partition("="))
        if not equals:
            name, level = PACKAGE, name
        if name not in LOGGERS:
            raise ValueError(f"there is no logger {name!r}; root and shmbroker are two")
        if level.upper() not in LEVELS:
            raise ValueError(f"{name}={level}: the level is one of {', '.join(LEVELS)}")
        found[name] = level.upper()
    return found


def effective(levels: Mapping[str, str]) -> dict[str, str]:
    """The level that each logger goes by, by the ones that were given."""
    found: dict[str, str] = {}
    for name in LOGGERS:  # a package comes before what is in it
        above = name.rpartition(".")[0] or ROOT
        found[name] = levels.get(name) or found.get(above, DEFAULTS[ROOT])
    return found


def _formatters() -> list[LineFormatter]:
    found = (handler.formatter for handler in logging.getLogger().handlers)
    return [each for each in found if isinstance(each, LineFormatter)]


def _iso(created_s: float) -> str:
    from datetime import UTC, datetime

    when: datetime = datetime.fromtimestamp(created_s, UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Seldom(logging.Filter):
    """Counts what others may cause without end, clients, a broken disk, a bug that each retry
    meets: records with `extra=seldom(kind)`. By logger and kind, in each interval the first few
    pass as they come, and of the rest one number is said; at level DEBUG they all pass, as such.
    """

    LINES_MAX = 10
    INTERVAL_S = 10.0

    def __init__(self, now: Callable[[], float] = clock.monotonic) -> None:
        super().__init__()
        self._now = now
        self._said: dict[tuple[str, str], int] = {}
        self._interval_end = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is written."""
        kind = getattr(record, _SELDOM, None)
        if kind is None:
            return True
        self.flush()
        if not self._said:
            self._interval_end = self._now() + self.INTERVAL_S
        key = record.name, kind
        count = self._said[key] = self._said.get(key, 0) + 1
        if count <= self.LINES_MAX:
            return True
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"  # for who wants to see each
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)

    def flush(self) -> None:
        """Say how many were left out, once the interval is over; to be called now and then."""
        if not self._said or self._now() < self._interval_end:
            return
        said, self._said = self._said, {}
        for (name, kind), count in said.items():
            left_out = count - self.LINES_MAX
            if left_out > 0:
                more = fields(kind=kind, repeated=left_out)
                logging.getLogger(name).warning("%d more like this: %s", left_out, kind, extra=more)


_seldom = Seldom()
flush = _seldom.flush
"""Called in the loop of each process."""
