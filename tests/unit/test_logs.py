"""Lines of the log: how they look, at which levels, and floods of them."""

import json
import logging
import os
import re
import sys
from collections.abc import Iterator

import pytest

from shmbroker import logs
from shmbroker.logs import JSON, LineFormatter, Seldom, seldom
from shmbroker.shm.log_levels import LogLevels, table_bytes
from tests.tidy.sources import PACKAGE, ROOT

MESSAGE = "io: %d of t-\nforged\x1b[2J"


def record(level: int = logging.WARNING, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("shmbroker.x", level, "x.py", 1, MESSAGE, (5,), None)
    made.created, made.msecs = 1.5, 500.0
    for name, value in more.items():
        setattr(made, name, value)
    return made


def formatter(format_name: str = logs.HUMAN, is_journal: bool = False) -> LineFormatter:
    made = LineFormatter(is_journal)
    made.role, made.number, made.format_name = "io-worker", 3, format_name
    return made


def test_line_for_people_says_when_how_bad_and_who() -> None:
    line = formatter().format(record())
    assert re.fullmatch(
        r"[\d-]+ [\d:]+,500 WARNING shmbroker: io-worker-3 io: 5 of t-\\nforged\\x1b\[2J", line
    )


def test_object_has_what_the_event_has() -> None:
    extra = logs.fields(child="x-1", count=4, level="not this")
    row = json.loads(formatter(JSON).format(record(**extra)))
    assert row.pop("pid") == os.getpid()
    assert row == {
        "ts": "1970-01-01T00:00:01.500Z",
        "level": "WARNING",
        "process": "io-worker-3",
        "role": "io-worker",
        "id": 3,
        "logger": "shmbroker.x",
        "message": "io: 5 of t-\\nforged\\x1b[2J",
        "child": "x-1",
        "count": 4,
    }


@pytest.mark.parametrize("format_name", logs.FORMATS)
@pytest.mark.parametrize("is_journal", [False, True])
def test_traceback_is_no_event_of_its_own(format_name: str, is_journal: bool) -> None:
    try:
        raise ValueError("a\nb")
    except ValueError:
        failed = record(logging.ERROR, exc_info=sys.exc_info())
    lines = formatter(format_name, is_journal).format(failed).splitlines()
    prefix = "<3>" if is_journal else ""
    if format_name == JSON:
        (line,) = lines
        assert line.startswith(prefix)
        assert json.loads(line.removeprefix(prefix))["exception"].endswith("ValueError: a\nb")
    else:
        assert len(lines) > 4
        assert all(line.startswith(f"{prefix}    ") for line in lines[1:])


@pytest.mark.parametrize(
    ("level", "priority"),
    [("FATAL", 2), ("ERROR", 3), ("WARN", 4), ("INFO", 6), ("DEBUG", 7), ("TRACE", 7)],
)
def test_journal_gets_priorities_and_no_time(level: str, priority: int) -> None:
    line = formatter(is_journal=True).format(record(logs.LEVELS[level]))
    assert re.match(rf"<{priority}>\w+( \d+)? shmbroker: io-worker-3 io", line)


@pytest.mark.parametrize(
    ("format_name", "is_journal", "expected"),
    [
        (logs.HUMAN, False, r"shmbroker: No such thing\."),
        (logs.HUMAN, True, r"<3>shmbroker: No such thing\."),
        (JSON, False, r'{.*"level": "ERROR".*"message": "No such thing\."}'),
        (JSON, True, r'<3>{.*"logger": "shmbroker", "message": "No such thing\."}'),
    ],
)
def test_what_is_said_of_a_start_is_a_line_like_the_others(
    format_name: str, is_journal: bool, expected: str
) -> None:
    line = formatter(format_name, is_journal).sentence(logging.ERROR, "No such thing.")
    assert re.fullmatch(expected, line)


def test_journal_is_known_by_device_and_inode(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    try:
        found = os.fstat(write)
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        assert logs.is_journal(write)
        assert not logs.is_journal(0 if os.fstat(0).st_ino != found.st_ino else 1)
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino + 1}")
        assert not logs.is_journal(write)
        monkeypatch.delenv("JOURNAL_STREAM")
        assert not logs.is_journal(write)
    finally:
        os.close(read)
        os.close(write)
    assert not logs.is_journal(write)


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([], {}),
        (["root=ERROR", " shmbroker.log = debug"], {"root": "ERROR", "shmbroker.log": "DEBUG"}),
        (["nope=INFO"], "there is no logger 'nope'"),
        (["debug", "root=ERROR"], {"shmbroker": "DEBUG", "root": "ERROR"}),
        (["root"], "shmbroker=root: the level is one of TRACE"),
        (["root="], "root=: the level is one of TRACE"),
        (["root=WARNING"], "root=WARNING: the level is one of TRACE"),
    ],
)  # fmt: skip
def test_levels_are_read(items: list[str], expected: dict[str, str] | str) -> None:
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            logs.parse_levels(items)
    else:
        assert logs.parse_levels(items) == expected


def test_what_has_no_level_goes_by_what_is_above() -> None:
    found = logs.effective({"root": "ERROR", "shmbroker.broker": "DEBUG"})
    assert found["shmbroker"] == found["shmbroker.gateway.gateway"] == "ERROR"
    assert found["shmbroker.broker"] == found["shmbroker.broker.placement"] == "DEBUG"


@pytest.fixture
def restored() -> Iterator[None]:
    """Levels of this process as they were."""
    names = [None if name == logs.ROOT else name for name in logs.LOGGERS]
    before = {name: logging.getLogger(name).level for name in names}
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.usefixtures("restored")
def test_changed_levels_go_before_configured_ones_until_they_are_taken_back() -> None:
    view = memoryview(bytearray(table_bytes()))
    writing, reading = LogLevels(view), LogLevels(view)
    name = "shmbroker.gateway.gateway"

    def level() -> str:
        reading.apply()
        shown = reading.effective()[name]
        assert logging.getLogger(name).getEffectiveLevel() == logs.LEVELS[shown]
        return shown

    writing.configure({}, logs.HUMAN)
    assert level() == "INFO"
    writing.configure({"shmbroker.gateway": "ERROR"}, logs.HUMAN)
    assert level() == "ERROR"
    writing.change({name: "TRACE", "root": "FATAL"})
    assert level() == "TRACE"
    assert reading.effective()["root"] == "FATAL"
    writing.configure({}, logs.HUMAN)
    assert level() == "TRACE"
    writing.change({name: None})
    assert level() == "INFO"


def test_every_logger_of_the_family_is_known() -> None:
    """The table is what clients are told, and what memory has a row for."""
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in PACKAGE.rglob("*.py")
        if "getLogger(__name__)" in path.read_text(encoding="utf-8")
    }
    above = {
        ".".join(parts[:count])
        for parts in (name.split(".") for name in modules)
        for count in range(1, len(parts))
    }
    assert set(logs.LOGGERS) == modules | above | {"root"}
    assert sorted(logs.LOGGERS[1:]) == list(logs.LOGGERS[1:])
    odd = {
        match[1]
        for path in PACKAGE.rglob("*.py")
        for match in re.finditer(r"getLogger\((.*?)\)", path.read_text(encoding="utf-8"))
    }
    assert odd <= {
        "__name__",
        '"shmbroker.spark"',
        "",
        "None if name == ROOT else name",
        "name",
        "record.name",
    }


class Flood:
    """A logger whose lines go through a `Seldom` that has a time of its own."""

    def __init__(self, level: int) -> None:
        self.now = 100.0
        self.seldom = Seldom(lambda: self.now)
        self.records: list[logging.LogRecord] = []
        self.handler = logging.Handler()
        self.handler.emit = self.records.append  # type: ignore[method-assign]
        self.handler.addFilter(self.seldom)
        self.logger = logging.getLogger("tests.seldom")
        self.logger.propagate = False
        self.logger.setLevel(level)
        self.logger.handlers = [self.handler]

    @property
    def lines(self) -> list[str]:
        return [record.getMessage() for record in self.records]


def test_of_a_flood_there_are_a_few_lines_and_a_number() -> None:
    flood = Flood(logging.INFO)
    logger, most = flood.logger, Seldom.LINES_MAX
    for which in range(300):
        flood.now = 100.0 + which / 100
        logger.warning("client %d was slow", which, extra=seldom("slow"))
    logger.warning("client 300 was alone", extra=seldom("alone"))
    logger.warning("none of a kind")
    assert flood.lines[-2:] == ["client 300 was alone", "none of a kind"]
    assert len(flood.lines) == most + 2
    flood.now = 100.0 + Seldom.INTERVAL_S - 0.1
    flood.seldom.flush()
    assert len(flood.lines) == most + 2
    flood.now = 100.0 + Seldom.INTERVAL_S
    flood.seldom.flush()
    assert flood.lines[most + 2 :] == [f"{300 - most} more like this: slow"]
    row = json.loads(formatter(JSON).format(flood.records[-1]))
    assert (row["kind"], row["repeated"]) == ("slow", 300 - most)
    flood.now = 200.0
    flood.seldom.flush()
    logger.warning("another", extra=seldom("slow"))
    assert flood.lines[most + 3 :] == ["another"]
    assert json.loads(formatter(JSON).format(flood.records[-1]))["kind"] == "slow"


def test_who_debugs_sees_each_of_a_flood() -> None:
    flood = Flood(logging.DEBUG)
    for which in range(Seldom.LINES_MAX + 2):
        flood.logger.error("%d", which, extra=seldom("slow"))
    assert [record.levelname for record in flood.records[-3:]] == ["ERROR", "DEBUG", "DEBUG"]


def test_tracebacks_of_a_flood_are_counted_by_what_failed() -> None:
    flood = Flood(logging.INFO)
    for which in range(50):
        try:
            raise ValueError(which)
        except ValueError:
            flood.logger.exception("Fetch failed", extra=seldom(f"Fetch v{which % 2} failed"))
    assert len(flood.lines) == 2 * Seldom.LINES_MAX
    assert all(record.exc_info for record in flood.records)
