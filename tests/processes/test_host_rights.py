"""What other users of the host can do with a family: nothing; and what the members of a group can
that reads its files. The broker is root's here, the others are made by setpriv(1)."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmbroker.testing.broker import Broker
from tests.support.acknowledged_load import batch_now
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="makes other users: needs root"
)

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
TOPIC = "private"
PROBE = r"""
import json, os, socket, sys
data, pids = sys.argv[1], list(map(int, sys.argv[2].split(",")))
sys.path.insert(0, sys.argv[3])
found = {"read": [], "written": [], "entered": [], "answered": {}}

def name(path):
    return os.path.relpath(path, data)

def look(path):
    if os.path.isdir(path):
        try:
            for each in os.listdir(path):
                look(os.path.join(path, each))
            found["entered"].append(name(path))
        except PermissionError:
            pass
        if os.access(path, os.W_OK):
            found["written"].append(name(path))
        return
    for mode, said in (("rb", "read"), ("r+b", "written")):
        try:
            with open(path, mode):
                found[said].append(name(path))
        except OSError:
            pass

look(data)
found["shared"] = [each for each in os.listdir("/dev/shm") if os.access("/dev/shm/" + each, os.R_OK)
                   and os.stat("/dev/shm/" + each).st_uid == 0 and "shmbroker" in each]
found["processes"] = []
for pid in pids:
    for what in ("fd", "mem", "environ", "maps", "map_files"):
        try:
            path = f"/proc/{pid}/{what}"
            os.listdir(path) if what in ("fd", "map_files") else open(path, "rb").read(1)
            found["processes"].append(path)
        except OSError:
            pass
    try:
        os.kill(pid, 0)
        found["processes"].append(f"kill {pid}")
    except PermissionError:
        pass
from shmbroker.wire import codec
from shmbroker.wire.frame import request_frame
LIST_SEGMENTS = {"broker_id": 1, "topics": []}
ASKED = {
    "ApiVersions": (18, 0, {}),
    "Metadata": (3, 1, {"topics": None}),
    "ListSegments": (20000, 0, LIST_SEGMENTS),
    "ListSegments 1": (20000, 1, LIST_SEGMENTS),
    "CreateTopics": (19, 2, {"topics": [], "timeout_ms": 1000}),
    "StopBroker": (20001, 0, None),
}
for path in [data + "/control.sock", *sys.argv[4:]]:
    for what, (key, version, body) in ASKED.items():
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            said = "refused"
            try:
                client.connect(path)
                name = what.split()[0] + "Request"
                encoded = b"" if body is None else codec.encode(name, version, body)
                client.sendall(request_frame(key, version, 7, "probe", encoded))
                said = "answered" if client.recv(4) else "closed"
            except PermissionError:
                pass
            except OSError:
                said = "closed"
            found["answered"][os.path.basename(path) + " " + what] = said
print(json.dumps(found))
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody may enter: those of pytest are root's."""
    made = Path(tempfile.mkdtemp(prefix="shmbroker-rights-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def probe(broker: Broker, *paths: str, groups: str = "") -> dict[str, Any]:
    """What a user can do who is nobody, or nobody in a group."""
    who = ["--groups", groups] if groups else ["--clear-groups"]
    pids = ",".join(map(str, [broker.pid, *broker.children().values()]))
    done = subprocess.run(
        ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), *who, sys.executable, "-c",
         PROBE, str(broker.data), pids, str(ROOT), *paths],
        capture_output=True, text=True, timeout=60, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def fill(broker: Broker) -> None:
    with RawClient(broker.address) as client:
        client.create_topic(TOPIC)
        assert client.produce(TOPIC, batch_now(b"secret"))["error_code"] == 0


def test_another_user_reaches_nothing_by_default(place: Path) -> None:
    unix = str(place / "clients.sock")
    listeners = f"listeners=PLAINTEXT://127.0.0.1:{{port1}},UNIX://{unix}"
    before = os.umask(0o022)
    try:
        with Broker("--set", listeners, data=place / "data") as broker:
            fill(broker)
            found = probe(broker, unix)
            directory = place / "data" / "node-1" / f"{TOPIC}-0"
            assert stat.S_IMODE(directory.stat().st_mode) == 0o750
            for file in directory.iterdir():
                assert stat.S_IMODE(file.stat().st_mode) == 0o640, file
    finally:
        os.umask(before)
    assert found["read"] == found["written"] == found["shared"] == found["processes"] == []
    assert set(found["entered"]) <= {"."}
    assert set(found["answered"].values()) == {"refused"}
    assert len(found["answered"]) == 12


def test_group_reads_segments_and_asks_where_they_are_and_nothing_else(place: Path) -> None:
    with Broker("--set", "shmbroker.data.access=group", data=place / "data") as broker:
        fill(broker)
        found = probe(broker, groups="0")
    assert found["written"] == found["shared"] == found["processes"] == []
    log = f"node-1/{TOPIC}-0/00000000000000000000.log"
    assert log in found["read"]
    assert not [path for path in found["read"] if "__cluster_metadata" in path]
    assert not [path for path in found["entered"] if "__cluster_metadata" in path]
    answered = {what for what, said in found["answered"].items() if said == "answered"}
    assert answered == {"control.sock ApiVersions", "control.sock ListSegments"}
    assert set(found["answered"].values()) == {"answered", "closed"}


def test_backup_is_for_its_user_alone(place: Path) -> None:
    pytest.importorskip("confluent_kafka")
    before = os.umask(0o022)
    try:
        with Broker(data=place / "data") as broker:
            fill(broker)
            command = [sys.executable, "-m", "shmbroker", "backup", str(place / "copy"), "--copy"]
            done = subprocess.run([*command, "-b", broker.address], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
    finally:
        os.umask(before)
    found = [place / "copy", *(place / "copy").rglob("*")]
    assert any(path.is_file() for path in found)
    assert not [path for path in found if path.stat().st_mode & 0o077]


def test_core_dump_of_a_family_with_secrets_has_no_memory(place: Path) -> None:
    settings = place / "server.properties"
    settings.write_text("delegation.token.secret.key=hush\n")
    settings.chmod(0o644)
    for flags, expected in (((), False), (("--config", str(settings)), True)):
        with Broker(*flags, data=place / "data") as broker:
            told = f"{settings} has delegation.token.secret.key in it" in broker.log
            assert told == expected
            assert "hush" not in broker.log
            wait_until(lambda: "io-worker-1" in broker.children(), "the family")
            for pid in (broker.pid, *broker.children().values()):
                kept = int(Path(f"/proc/{pid}/coredump_filter").read_text(), 16)
                assert (kept == 0) == expected
            # Its own user still looks at it: see decision 069.
            assert os.listdir(f"/proc/{broker.pid}/fd")


def test_unix_listener_lets_in_whom_its_mode_lets_in(place: Path) -> None:
    unix = str(place / "clients.sock")
    flags = {
        "listeners": f"PLAINTEXT://127.0.0.1:{{port1}},UNIX://{unix}",
        "shmbroker.unix.mode": "0666",
    }
    words = [word for pair in flags.items() for word in ("--set", "=".join(pair))]
    with Broker(*words, data=place / "data") as broker:
        assert "lets in every user of this host" in broker.log
        found = probe(broker, unix)["answered"]
        assert found["clients.sock Metadata"] == found["clients.sock ApiVersions"] == "answered"
        # What is the family's own is not served there.
        assert found["clients.sock ListSegments"] == "closed"
        assert {said for what, said in found.items() if "control" in what} == {"refused"}
        os.kill(broker.pid, signal.SIGTERM)
