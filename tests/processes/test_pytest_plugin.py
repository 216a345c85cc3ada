"""The fixtures of `shmbroker.testing.plugin`, in a pytest of their own, as a project has it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.blocks import blocks_of
from tests.tidy.sources import ROOT

DOCUMENT = ROOT / "docs" / "testing-with-shmbroker.md"
ADDRESSES = """
def test_first(shmbroker_broker, shmbroker_topic, record):
    record(shmbroker_broker.address, shmbroker_topic)

def test_second(shmbroker_broker, shmbroker_topic, record):
    record(shmbroker_broker.address, shmbroker_topic)

def test_third(shmbroker_fresh_broker, record):
    record(shmbroker_fresh_broker.address, shmbroker_fresh_broker.data)
"""
CONFTEST = """
import os
import pytest

@pytest.fixture
def record():
    def write(*words):
        with open("told", "a") as file:
            print(*words, file=file)
    return write
"""


def run(path: Path, test: str, *words: str, ini: str = "") -> subprocess.CompletedProcess[str]:
    """pytest on one file, with nothing of this project's settings."""
    (path / "pytest.ini").write_text(f"[pytest]\n{ini}")
    (path / "conftest.py").write_text(CONFTEST)
    (path / "test_it.py").write_text(test)
    plugins = ["-p", "shmbroker.testing.plugin", "-p", "no:randomly", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "--rootdir", str(path), *words, str(path)],
        cwd=path,
        capture_output=True,
        text=True,
    )


def told(path: Path) -> list[list[str]]:
    return [line.split() for line in (path / "told").read_text().splitlines()]


def test_one_broker_serves_a_session_and_each_test_has_its_topic(tmp_path: Path) -> None:
    done = run(tmp_path, ADDRESSES)
    assert done.returncode == 0, done.stdout + done.stderr
    first, second, third = told(tmp_path)
    assert first[0] == second[0] != third[0]
    assert (first[1], second[1]) == ("test_first-1", "test_second-2")
    assert not Path(third[1]).exists(), "its directory is gone"


def test_name_that_no_topic_can_have_becomes_one(tmp_path: Path) -> None:
    test = """
import pytest

@pytest.mark.parametrize("place", ["Zürich", "a/b"])
def test_of_a_café(shmbroker_topic, place, record):
    record(shmbroker_topic)
"""
    done = run(tmp_path, test)
    assert done.returncode == 0, done.stdout + done.stderr
    names = [name for [name] in told(tmp_path)]
    assert names[1] == "test_of_a_caf--a-b--2"
    assert names[0].isascii()


def test_scope_is_a_setting(tmp_path: Path) -> None:
    done = run(tmp_path, ADDRESSES, ini="shmbroker_scope = function\n")
    assert done.returncode == 0, done.stdout + done.stderr
    addresses = [row[0] for row in told(tmp_path)]
    assert len(set(addresses)) == 3


def test_unknown_scope_is_said(tmp_path: Path) -> None:
    done = run(tmp_path, ADDRESSES, ini="shmbroker_scope = tset\n")
    assert done.returncode != 0
    assert "shmbroker_scope is 'tset'; it can be session, package" in done.stdout + done.stderr


def test_faults_end_with_their_test(tmp_path: Path) -> None:
    test = """
import pytest
from shmbroker.client import admin
from shmbroker.wire.api_keys import LIST_GROUPS

def error_of(broker):
    host, port = broker.address.split(":")
    return admin.ask([(host, int(port))], LIST_GROUPS, {}, 4)["error_code"]

def test_faults(shmbroker_broker):
    shmbroker_broker.fail_next("ListGroups", "COORDINATOR_NOT_AVAILABLE", times=9)
    assert error_of(shmbroker_broker) == 15

def test_no_faults(shmbroker_broker):
    assert error_of(shmbroker_broker) == 0
"""
    done = run(tmp_path, test)
    assert done.returncode == 0, done.stdout + done.stderr


def test_topic_is_as_its_marker_says_and_flags_reach_the_broker(tmp_path: Path) -> None:
    test = """
import pytest
from shmbroker.client.cluster import Cluster

@pytest.mark.shmbroker_topic(partitions=3, retention_ms="1000")
def test_it(shmbroker_broker, shmbroker_topic):
    assert shmbroker_broker.port == int(shmbroker_broker.address.split(":")[1])
    with Cluster([("127.0.0.1", shmbroker_broker.port)], "test", 10.0) as cluster:
        ((topic, error, _),) = cluster.describe([shmbroker_topic], creates=False)
        assert (error, len(topic.leaders)) == (0, 3)
        assert len(cluster.brokers) == 2
"""
    ini = "shmbroker_faults = false\nshmbroker_flags = --io-workers 2\n"
    done = run(tmp_path, test, "--strict-markers", ini=ini)
    assert done.returncode == 0, done.stdout + done.stderr


def test_workers_of_xdist_have_brokers_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    tests = "".join(
        f"def test_{number}(shmbroker_broker, shmbroker_topic, record, worker_id):\n"
        "    record(worker_id, shmbroker_broker.address)\n"
        for number in range(6)
    )
    done = run(tmp_path, tests, "-n2")
    assert done.returncode == 0, done.stdout + done.stderr
    pairs = {tuple(row) for row in told(tmp_path)}
    assert len({worker for worker, _ in pairs}) == 2
    assert len(pairs) == len({address for _, address in pairs}) == 2


def test_a_session_without_the_fixtures_imports_nothing_of_the_broker(tmp_path: Path) -> None:
    test = """
import sys

def test_it():
    ours = {name for name in sys.modules if name.startswith("shmbroker.")}
    testing = {"shmbroker.testing", "shmbroker.testing.broker", "shmbroker.testing.plugin"}
    assert ours <= {"shmbroker.clock", *testing}
    assert "confluent_kafka" not in sys.modules
"""
    done = run(tmp_path, test)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_document_shows_works(tmp_path: Path) -> None:
    programs = [block.text for block in blocks_of(DOCUMENT) if block.kind == "python"]
    tests = [text for text in programs if "def test_" in text]
    others = [text for text in programs if text not in tests]
    assert (len(tests), len(others)) == (3, 2)
    done = run(tmp_path, "\n\n".join(tests), "--strict-markers")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    for program, said in zip(others, ("127.0.0.1:", ""), strict=True):
        shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.startswith(said)
