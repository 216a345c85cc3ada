"""Beside the service: Spark and its jobs as other users, with the broker's group and without it."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmbroker.clock import now_ms
from shmbroker.records.batch import encode_batch
from shmbroker.spark import java_home
from tests.support.acknowledged_load import read_values
from tests.support.raw_client import RawClient
from tests.support.systemd_machine import COMMAND, DATA, PREFIX, Journal, Machine, run
from tests.support.waiting import wait_until

pytest.importorskip("pyspark")
parquet = pytest.importorskip("pyarrow.parquet")

TOPIC = "shared"
MEMBER, STRANGER = "ana", "bob"
VALUES = [f"value {number}" for number in range(40)]
PADDING = bytes(300_000)
"""Several segments."""
SPARK_S = 400.0
"""On a machine that is busy."""
JOBS = Path("/var/lib/shmbroker-jobs")

QUERY = """
import json, os, sys
from pyspark.sql import SparkSession
from shmbroker.spark import java_home, session_conf

os.environ |= {"JAVA_HOME": java_home(), "SPARK_LOCAL_IP": "127.0.0.1"}
session = SparkSession.builder.master("local[2]").config(map=session_conf(cores=2))
spark = session.config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
source = spark.read.format("shmbroker").option("kafka.bootstrap.servers", sys.argv[1])
source = source.option("subscribe", sys.argv[2]).option("shmbroker.read", sys.argv[3])
values = sorted(bytes(row.value).decode() for row in source.load().select("value").collect())
ways = {row.way for row in source.option("emit", "ranges").load().collect()}
print(json.dumps({"values": values, "ways": sorted(ways)}))
"""

ALLOWED = """
import json, os, socket, sys
from shmbroker.client.connection import Connection
from shmbroker.client.versions import READING
from shmbroker.wire.api_keys import LIST_SEGMENTS, METADATA

data = sys.argv[1]


def asks(key, body):
    control = socket.socket(socket.AF_UNIX)
    control.connect(f"{data}/control.sock")
    control.settimeout(10)
    try:
        Connection(control, "control", "test", READING).ask(key, body)
    except ConnectionError:
        return False
    return True


def may(mode):
    every = [os.path.join(at, name) for at, _, names in os.walk(data) for name in names]
    return sorted({os.path.splitext(path)[1] for path in every if os.access(path, mode)})


print(json.dumps({
    "segments": asks(LIST_SEGMENTS, {"broker_id": 1, "hold_ms": 0, "topics": []}),
    "metadata": asks(METADATA, {"topics": []}),
    "writes": may(os.W_OK),
    "reads_segments": ".log" in may(os.R_OK),
    "reads_metadata_log": os.access(f"{data}/node-1/__cluster_metadata-0", os.X_OK),
    "makes": os.access(data, os.W_OK) or os.access(f"{data}/node-1/shared-0", os.W_OK),
}))
"""


@pytest.fixture(scope="module")
def users() -> None:
    """One who is in the broker's group, and one who is not."""
    run("useradd", "--create-home", "--groups", "shmbroker", MEMBER)
    run("useradd", "--create-home", STRANGER)


@pytest.fixture
def serving(machine: Machine, users: None) -> Iterator[Machine]:
    """The service with some records of several segments."""
    machine.begin(settings={"log.retention.check.interval.ms": "100"})
    with RawClient(machine.address) as client:
        client.create_topic(TOPIC, segment_bytes="1048576", file_delete_delay_ms="0")
        for value in VALUES:
            batch = encode_batch([(now_ms(), b"key", value.encode(), ((b"pad", PADDING),))])
            assert client.produce(TOPIC, batch)["error_code"] == 0
    yield machine


def as_user(name: str, program: str, *words: object) -> subprocess.CompletedProcess[str]:
    """A program of Python, in the environment that the service has, with nothing of root's."""
    command = ("runuser", "-u", name, "--", "env", f"HOME=/home/{name}", PREFIX / "bin" / "python")
    return run(*command, "-c", program, *map(str, words), check=False)


def test_member_of_the_group_reads_the_files(serving: Machine) -> None:
    done = as_user(MEMBER, QUERY, serving.address, TOPIC, "files")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"values": sorted(VALUES), "ways": ["files"]}


def test_stranger_is_served_by_the_protocol_and_told_what_is_missing(serving: Machine) -> None:
    done = as_user(STRANGER, QUERY, serving.address, TOPIC, "auto")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"values": sorted(VALUES), "ways": ["fetch"]}
    said = f"it is not in the group shmbroker; usermod -aG shmbroker {STRANGER}, and log in anew"
    assert f"user {STRANGER} may not open {DATA}/control.sock: {said}" in done.stderr
    refused = as_user(STRANGER, QUERY, serving.address, TOPIC, "files")
    assert refused.returncode != 0
    assert said in refused.stderr


def test_who_is_kept_out_by_a_mode_is_told_so(serving: Machine) -> None:
    serving.begin(settings={"shmbroker.data.access": "owner"})
    with RawClient(serving.address) as client:
        client.create_topic(TOPIC)
    done = as_user(MEMBER, QUERY, serving.address, TOPIC, "files")
    assert done.returncode != 0
    assert f"{DATA} has the mode 0700, of shmbroker:shmbroker" in done.stderr
    assert "start the broker with shmbroker.data.access=group" in done.stderr


def test_member_reads_segments_asks_for_them_and_does_nothing_else(serving: Machine) -> None:
    done = as_user(MEMBER, ALLOWED, DATA)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "segments": True,
        "metadata": False,
        "writes": [".sock"],
        "reads_segments": True,
        "reads_metadata_log": False,
        "makes": False,
    }


HELD = """
import sys
from shmbroker.spark import driver, options
from shmbroker.spark.reading import read, reading_of

given = {"kafka.bootstrap.servers": sys.argv[1], "subscribe": sys.argv[2], "shmbroker.hold": "10m"}
parsed = options.parse(given | {"shmbroker.read": "files"}, is_stream=False)
with driver.connect(parsed) as client:
    topics = driver.find_topics(client, parsed)
    wanted = driver.wanted_partitions(parsed, topics)
    starts = driver.resolve(client, parsed, topics, wanted, is_start=True)
    ends = driver.resolve(client, parsed, topics, wanted, is_start=False)
    tasks = driver.plan_tasks(client, parsed, topics, starts, ends).tasks
print("planned", flush=True)
sys.stdin.readline()
print(sum(
    batch.num_rows
    for task in tasks
    for piece in task
    for batch in read(piece, reading_of(parsed), ("value",))
))
"""


def test_files_of_a_members_query_are_held_over_retention(serving: Machine) -> None:
    command = ("runuser", "-u", MEMBER, "--", str(PREFIX / "bin" / "python"))
    words = [*command, "-c", HELD, serving.address, TOPIC]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
    ) as query:
        assert query.stdin is not None and query.stdout is not None
        assert query.stdout.readline() == "planned\n"
        with RawClient(serving.address) as client:
            rows = [{"partition_index": 0, "offset": len(VALUES)}]
            body = {"timeout_ms": 30_000, "topics": [{"name": TOPIC, "partitions": rows}]}
            client.ask("DeleteRecords", 2, body)
        directory = DATA / "node-1" / f"{TOPIC}-0"
        wait_until(lambda: list(directory.glob("*.log.deleted")), "what is held")
        said, _ = query.communicate("go on\n", timeout=60)
    assert said == f"{len(VALUES)}\n"


def test_jobs_run_as_their_own_user_on_the_files(serving: Machine) -> None:
    always = f"JAVA_HOME={java_home()}\nSPARK_LOCAL_IP=127.0.0.1\n"
    table = JOBS / "table"
    ingest = Path("/etc/shmbroker/ingest/shared.env")
    ingest.write_text(f"ARGS={TOPIC} --to {table} -b {serving.address} --trigger 1s\n{always}")
    job = Path("/etc/shmbroker/pipeline/copy.sql")
    job.write_text(
        f"CREATE STREAM shared FROM TOPIC {TOPIC};\n"
        "INSERT INTO TOPIC copied SELECT record_key AS key, value FROM shared;\n"
    )
    pipeline = job.with_suffix(".env")
    pipeline.write_text(f"ARGS={job} -b {serving.address} --trigger 1s\n{always}")
    units = ["shmbroker-ingest@shared.service", "shmbroker-pipeline@copy.service"]
    journals = {unit: Journal(unit) for unit in units}

    def writes(unit: str, count: Callable[[], int]) -> None:
        """Started, it has written all; stopped, it says so and is no failure."""
        run("systemctl", "start", unit)

        def is_whole() -> bool:
            assert serving.show("SubState", unit) == "running", journals[unit].text()
            return count() >= len(VALUES)

        wait_until(is_whole, f"what {unit} writes", timeout=SPARK_S, between=0.5)
        run("systemctl", "stop", unit)
        assert serving.show("Result", unit) == "success", journals[unit].text()

    try:
        writes(units[0], lambda: _rows(table))
        assert "shared: 40 rows into" in journals[units[0]].text()
        assert table.owner() == "shmbroker-jobs"
        logs = [path.read_text() for path in table.parent.glob(".table.shmbroker/**/spark.log")]
        assert logs
        told = [*logs, journals[units[0]].text()]
        assert not any("fetched from the broker" in text for text in told)
        with RawClient(serving.address) as client:
            client.create_topic("copied")
            writes(units[1], lambda: len(read_values(client, "copied", 0)))
            # Tasks read parts of a partition side by side: each record once, in any order.
            assert sorted(read_values(client, "copied", 0)) == sorted(
                value.encode() for value in VALUES
            )
        assert "0-copied: " in journals[units[1]].text()
        assert "40 records read" in journals[units[1]].text()
    finally:
        run("systemctl", "stop", *units)
        shutil.rmtree(table, ignore_errors=True)


def _rows(table: Path) -> int:
    """What is in the files of a directory as they are just now."""
    return sum(parquet.read_metadata(path).num_rows for path in table.glob("*.parquet"))


def test_service_of_a_user_needs_no_root(installed: Machine, users: None) -> None:
    run("loginctl", "enable-linger", STRANGER)
    number = run("id", "-u", STRANGER).stdout.strip()
    runtime = Path(f"/run/user/{number}")
    wait_until((runtime / "systemd" / "private").exists, "the user's systemd")

    def of_user(*words: object) -> str:
        environment = (f"XDG_RUNTIME_DIR={runtime}", f"HOME=/home/{STRANGER}")
        return run("runuser", "-u", STRANGER, "--", "env", *environment, *map(str, words)).stdout

    of_user(COMMAND, "systemd", "install", "--user")
    units = Path(f"/home/{STRANGER}/.config/systemd/user")
    ports = units / "shmbroker.socket.d" / "port.conf"
    of_user("mkdir", ports.parent)
    ports.write_text(f"[Socket]\nListenStream=\nListenStream={installed.address}\n")
    of_user(COMMAND, "systemd", "install", "--user", "--now")
    try:
        assert of_user("systemctl", "--user", "is-active", "shmbroker").strip() == "active"
        with RawClient(installed.address) as client:
            client.create_topic(TOPIC)
        data = Path(f"/home/{STRANGER}/.local/state/shmbroker")
        assert data.owner() == STRANGER
        of_user("systemctl", "--user", "reload", "shmbroker")
        of_user("systemctl", "--user", "restart", "shmbroker")
        with RawClient(installed.address) as client:
            assert client.ask("Metadata", 9, {"topics": [{"name": TOPIC}]})["topics"]
    finally:
        said = of_user(COMMAND, "systemd", "uninstall", "--user")
    assert "Kept:" in said
    assert not (units / "shmbroker.service").exists()
    assert data.exists()
