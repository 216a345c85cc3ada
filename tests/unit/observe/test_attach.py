"""Looking from outside: what a family says of itself, and families that are not there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shmbroker.errors import ConfigFault
from shmbroker.observe.about import About
from shmbroker.observe.attach import NotRunning, attach, find
from shmbroker.observe.snapshot import plain
from tests.unit.observe.families import NO_PID, family, snapshot

ABOUT = About(
    "1.2",
    "cluster",
    "/da'ta/\udcff",
    5,
    0.5,
    77,
    [("supervisor", 1), ("io-worker", 3)],
    [(0, 1, 4096)],
    {3: "/da'ta/node-3"},
    {3: ("::", 9092)},
    "2",
)


def test_what_a_family_says_of_itself_is_read_again() -> None:
    assert About.from_bytes(memoryview(ABOUT.to_bytes() + bytes(100))) == ABOUT
    assert ABOUT.metadata_directory(3) == "/da'ta/node-3/__cluster_metadata-0"


def test_what_another_version_says_is_refused() -> None:
    for text in (b"(1, 2)", b"{", b"open('x')"):
        content = len(text).to_bytes(8, "little") + text
        with pytest.raises(ConfigFault, match="of another version"):
            About.from_bytes(memoryview(content))


def test_directory_without_a_family(tmp_path: Path) -> None:
    with pytest.raises(NotRunning, match="no broker runs on"):
        find(str(tmp_path))
    lock = tmp_path / ".supervisor.lock"
    for content in (f"{NO_PID}\n", "1\n", ""):  # 1 is another program
        lock.write_text(content)
        with pytest.raises(NotRunning, match="no broker runs on"):
            find(str(tmp_path))


def test_who_has_ended_can_not_be_attached_to() -> None:
    with pytest.raises(NotRunning, match="has ended"):
        attach(NO_PID)


def test_process_without_regions_is_no_family() -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with pytest.raises(NotRunning, match="only starting"):
            attach(other.pid)
    finally:
        other.communicate()


def test_snapshot_becomes_json() -> None:
    made = snapshot(family())
    read = json.loads(json.dumps(plain(made)))
    assert read["processes"][1]["title"] == "network-worker-1"
    assert read["controllers"]["is_active"] is True
    assert read["rings"][0]["used_bytes"] == 0
    assert set(read) >= {"topics", "groups", "brokers", "latencies", "changes", "took_s"}
