"""`shmbroker doctor` beside a family that runs, and beside one that something was done to."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmbroker.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        started.create_topic("t")
        yield started


def doctor(broker: Broker, *words: str) -> "subprocess.CompletedProcess[str]":
    return said(*words, "-b", broker.address)


def said(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "shmbroker", "doctor", *words],
        capture_output=True,
        text=True,
        env=os.environ | {"SHMBROKER_BOOTSTRAP_SERVER": ""},
    )


def levels(told: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    rows = json.loads(told.stdout)["checks"]
    return {f"{row['area']}/{row['check']}": row for row in rows}


def test_all_of_a_running_family_is_seen_and_well(broker: Broker) -> None:
    told = doctor(broker, str(broker.data), "--json")
    rows = levels(told)
    looked_at = {
        name: row["saw"]
        for name, row in rows.items()
        if name.startswith(("family/", "cluster/", "comes along/"))
        and (row["level"] == "unknown" or row["level"] == "fault")
        and name != "family/orphans"  # of others, on a host that is shared
    }
    assert looked_at == {}
    assert rows["directory/lock"]["saw"] == "held by a broker that runs"
    assert rows["directory/identity"]["saw"] == "nodes 1"
    assert rows["directory/clean-stop"]["level"] == "ok"


def test_directory_is_that_of_the_family_it_is_pointed_at(broker: Broker) -> None:
    rows = levels(doctor(broker, "--json"))
    assert rows["directory/exists"]["saw"] == str(broker.data)
    assert rows["directory/lock"]["saw"] == "held by a broker that runs"


def test_address_is_that_of_the_family_whose_directory_is_named(broker: Broker) -> None:
    rows = levels(said("--data", str(broker.data), "--json"))
    assert rows["cluster/reachable"]["saw"] == f"{broker.address} answers"


def test_directory_of_a_node_is_seen_to_be_in_use(broker: Broker) -> None:
    rows = levels(doctor(broker, str(broker.data / "node-1"), "--json"))
    assert rows["directory/lock"]["saw"] == "held by a broker that runs"


def test_stopped_process_is_a_fault_with_its_fix_and_the_exit_status(broker: Broker) -> None:
    pid = broker.children()["controller-1"]
    with broker.pause("controller-1"):
        told = doctor(broker, str(broker.data))
    assert told.returncode == 1
    assert f"kill -CONT {pid}" in told.stdout
    assert f"family/stopped: stopped by a signal or a debugger: controller-1 ({pid})" in told.stderr


def test_copy_of_a_directory_is_known_while_the_first_runs(broker: Broker, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(broker.data, copy, ignore=shutil.ignore_patterns("*.sock"))
    assert levels(doctor(broker, str(broker.data), "--json"))["directory/twins"]["level"] == "ok"
    row = levels(doctor(broker, str(copy), "--json"))["directory/twins"]
    assert (row["level"], str(broker.data) in row["saw"]) == ("warning", True)
    with Broker(data=copy):
        row = levels(doctor(broker, str(broker.data), "--json"))["directory/twins"]
    assert (row["level"], str(copy) in row["saw"]) == ("warning", True)


def test_nobody_at_the_address_is_told(broker: Broker, tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "shmbroker", "doctor", str(tmp_path / "d"), "-b", "127.0.0.1:1"],
        capture_output=True,
        text=True,
    )
    assert "cluster/reachable: 127.0.0.1:1 is not reached: connection refused" in told.stdout
    assert not os.path.exists(tmp_path / "d")


def test_bundle_has_the_checks_and_no_record(broker: Broker, tmp_path: Path) -> None:
    target = tmp_path / "report.tar.gz"
    told = doctor(broker, "bundle", str(broker.data), "-o", str(target))
    assert told.returncode == 0, told.stderr
    with tarfile.open(target) as archive:
        names = sorted(os.path.basename(name) for name in archive.getnames())
    assert names == ["directory.txt", "doctor.json", "facts.json", "versions.txt"]
    again = doctor(broker, "bundle", str(broker.data), "-o", str(target))
    assert again.returncode == 1
    assert "File exists" in again.stderr
