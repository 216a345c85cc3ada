"""Checks of a data directory, and of what of Apache Kafka's would not come along. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from shmbroker.cli.doctor.facts import Facts, Node
from shmbroker.cli.doctor.table import (
    Check,
    Result,
    fault,
    mib,
    named,
    note,
    ok,
    unknown,
    warning,
)
from shmbroker.metadata.topic_names import SHARE_STATE_TOPIC, TRANSACTION_TOPIC
from shmbroker.settings.table import STANDARD_AUTHORIZER
from shmbroker.wire.api_keys import ADD_PARTITIONS_TO_TXN, SHARE_FETCH

NETWORKED = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "ceph", "glusterfs", "fuse.s3fs")
IN_MEMORY = ("tmpfs", "ramfs")
COPYING = ("btrfs", "zfs", "bcachefs", "overlay")
PARTITIONS_MOST = 32_768
ROOM_SHARE_LEAST = 0.1
"""A disk is to have this much free before a family moves in: more than what counts as nearly full
while one runs (`cli.disks`)."""
INODES_SHARE_LEAST = 0.05
ACL = "AccessControlEntryRecord"
REMOTE_TOPIC = "__remote_log_metadata"


def _nodes(facts: Facts) -> Sequence[Node]:
    return facts.directory.nodes


def exists(facts: Facts) -> Result:
    found = facts.directory
    if found.is_file:
        return fault(
            f"{found.path} is no directory", "name the one that `shmbroker serve` has for --data"
        )
    if not found.exists:
        return note(f"{found.path} is not there yet", "the first start makes it")
    return ok(found.path)


def writable(facts: Facts) -> Result:
    found = facts.directory
    if not found.exists:
        return unknown("it is not there yet")
    if not found.is_writable:
        return fault(
            f"user {found.user} may not write in {found.path}",
            f"run as its owner ({found.owner}); or, while no broker runs there, "
            f"chown -R {found.user} {found.path}",
        )
    return ok("writable")


def private(facts: Facts) -> Result:
    mode = facts.directory.mode
    if mode is None:
        return unknown("it is not there yet")
    if mode & 0o002:
        return warning(
            f"mode {mode:04o}: everybody may write there", f"chmod o-w {facts.directory.path}"
        )
    return ok(f"mode {mode:04o}")


def temporary(facts: Facts) -> Result:
    if facts.directory.is_temporary:
        return warning(
            f"{facts.directory.path} is where the machine clears up at its start",
            "shmbroker serve --data /var/lib/shmbroker",
        )
    return ok("it stays over a restart of the machine")


def file_system(facts: Facts) -> Result:
    kinds = {node.path: node.kind for node in _nodes(facts) if node.kind}
    if not kinds:
        return unknown("no mount is told")
    for path, kind in kinds.items():
        if kind in NETWORKED:
            return fault(
                f"{path} is on {kind}: locks, maps and flushes are not what they seem",
                "shmbroker serve --data on a local disk (ext4, xfs)",
            )
    for path, kind in kinds.items():
        if kind in IN_MEMORY:
            return warning(
                f"{path} is on {kind}: gone with the power", "shmbroker serve --data on a disk"
            )
    for path, kind in kinds.items():
        if kind in COPYING:
            return note(
                f"{path} is on {kind}, which copies what is written anew",
                "xfs or ext4, or `chattr +C` before the first start on btrfs",
            )
    return ok(named(sorted(set(kinds.values()))))


def mount(facts: Facts) -> Result:
    for node in _nodes(facts):
        if node.refusal:
            return fault(
                f"the file system of {node.path} has given up: {node.refusal}",
                "stop what runs there, check the file system or replace the disk, start again; "
                "`dmesg` tells more",
            )
        if "ro" in node.options:
            return fault(
                f"{node.path} is mounted to be read only", f"mount -o remount,rw {node.path}"
            )
        for option in ("nobarrier", "barrier=0", "data=writeback"):
            if option in node.options:
                return warning(
                    f"{node.path} is mounted with {option}: a flush may be lost with the power",
                    "take it out of /etc/fstab",
                )
    return ok("nothing in the way")


def free(facts: Facts) -> Result:
    reserve = facts.directory.reserve_bytes
    least: tuple[float, str] | None = None
    for node in _nodes(facts):
        if node.free_bytes is None or not node.disk_bytes:
            continue
        saw = f"{mib(node.free_bytes)} of {mib(node.disk_bytes)} free for {node.path}"
        if node.free_bytes < max(reserve, 64 << 20):
            return fault(
                f"{saw}: less than the reserve, Produce is refused",
                "make room, or `shmbroker config set broker default log.retention.hours=24`",
            )
        share = node.free_bytes / node.disk_bytes
        if least is None or share < least[0]:
            least = share, saw
    if least is None:
        return unknown("no disk is told")
    if least[0] < ROOM_SHARE_LEAST:
        return warning(least[1], f"make room: `du -sh {facts.directory.path}/*/* | sort -h | tail`")
    return ok(least[1])


def inodes(facts: Facts) -> Result:
    shares = [
        (node.inodes_free_share, node.path)
        for node in _nodes(facts)
        if node.inodes_free_share is not None
    ]
    if not shares:
        return unknown("the file system does not count them")
    share, path = min(shares)
    saw = f"{share:.0%} of the inodes are free for {path}"
    return warning(saw, f"df -i {path}") if share < INODES_SHARE_LEAST else ok(saw)


def disks(facts: Facts) -> Result:
    devices = [node.device for node in _nodes(facts) if node.device is not None]
    if len(devices) < 2:
        return ok("one log directory")
    if len(set(devices)) < len(devices):
        return note(
            f"{len(devices)} log directories on {len(set(devices))} file systems: one disk takes "
            "several replicas with it",
            "shmbroker serve --log-dir /disk1/log --log-dir /disk2/log",
        )
    return ok("each on a file system of its own")


def identity(facts: Facts) -> Result:
    for node in _nodes(facts):
        if node.fault:
            saw, _, fix = node.fault.partition("; ")
            return fault(saw, fix or "restore the file from a copy")
    ids = [node.node_id for node in _nodes(facts) if node.node_id is not None]
    if len(ids) != len(set(ids)):
        return fault(
            f"two directories are of one node ({named(ids)})", "start with one of them only"
        )
    for node in _nodes(facts):
        if node.node_id is None and node.partitions:
            return fault(
                f"{node.path} holds {node.partitions} partitions and no meta.properties",
                "restore meta.properties from a copy: a start makes a new identity",
            )
    return ok(f"nodes {named(ids)}" if ids else "no node yet")


def one_cluster(facts: Facts) -> Result:
    clusters = {node.cluster_id for node in _nodes(facts) if node.cluster_id}
    if len(clusters) > 1:
        return fault(
            f"directories of {len(clusters)} clusters ({named(sorted(clusters))})",
            "name the directories of one with --log-dir",
        )
    return ok(named(sorted(clusters)) or "no cluster yet")


def twins(facts: Facts) -> Result:
    found = facts.family.twins
    if found:
        return warning(
            f"other brokers of this host serve the same cluster: {named(found.values())}. One is a "
            "copy of the other, and what clients write to one the other does not have",
            f"stop the one that is not meant: kill {' or '.join(map(str, found))}",
        )
    return ok("no other broker of this host serves this cluster")


def foreign_ids(facts: Facts) -> Result:
    wrong = [
        f"{node.path} (node {node.node_id})"
        for node in _nodes(facts)
        if node.is_ours
        and node.node_id is not None
        and not node.path.endswith(f"/node-{node.node_id}")
    ]
    if wrong:
        return warning(
            f"the id is not that of the directory's name: {named(wrong)}",
            "put its own meta.properties back, rename the directory, or name it with --log-dir",
        )
    return ok("each id is that of its directory")


def lock(facts: Facts) -> Result:
    found = facts.directory
    if found.is_locked is None:
        return unknown("no lock file is there, or it may not be read")
    if found.is_locked and not facts.family.processes:
        return warning(
            "something holds the lock, and no process of shmbroker is seen here",
            f"stop it (Apache Kafka?): fuser -v {found.path}/.*lock, here or in a container",
        )
    return ok("held by a broker that runs" if found.is_locked else "free")


def socket_left(facts: Facts) -> Result:
    found = facts.directory
    if found.has_socket and found.is_locked is False:
        return note(
            "control.sock is left of a family that was killed", "nothing: the next start takes it"
        )
    return ok("a running family's" if found.has_socket else "none is left")


def clean_stop(facts: Facts) -> Result:
    unclean = [node.path for node in _nodes(facts) if node.is_clean is False]
    if unclean and not facts.directory.is_locked:
        return note(
            f"not stopped in order: {named(unclean)}",
            f"nothing: the next start checks the logs. `shmbroker log verify {unclean[0]}` before",
        )
    return ok("stopped in order, or running")


def strays(facts: Facts) -> Result:
    found = [name for node in _nodes(facts) for name in node.marked if name.endswith("-stray")]
    if found:
        return warning(
            f"partitions that no topic owns: {named(found)}",
            "look what they are (`shmbroker log dump`), then remove them; they take room",
        )
    return ok("every partition has its topic")


def future(facts: Facts) -> Result:
    found = [name for node in _nodes(facts) for name in node.marked if name.endswith("-future")]
    if found:
        return note(
            f"copies that Apache Kafka was making: {named(found)}",
            "start Apache Kafka to finish them, or remove them: they are not served",
        )
    return ok("no copy between disks is under way")


def unfinished(facts: Facts) -> Result:
    found = [name for node in _nodes(facts) for name in node.unfinished]
    if found and not facts.directory.is_locked:
        return note(
            f"{len(found)} files of interrupted compaction", "nothing: the next start finishes it"
        )
    return ok("no compaction was interrupted")


def quarantine(facts: Facts) -> Result:
    found = facts.directory.quarantined
    if found:
        return warning(
            f"{found} damaged files were put aside",
            f"shmbroker log dump --records {facts.directory.path}/quarantine, and check the disk",
        )
    return ok("nothing damaged was put aside")


def partitions(facts: Facts) -> Result:
    most = max((node.partitions for node in _nodes(facts)), default=0)
    if most > PARTITIONS_MOST:
        return warning(
            f"{most} partitions in one directory",
            f"more than {PARTITIONS_MOST} of a broker are scanned after its death: "
            "`shmbroker serve --io-workers`",
        )
    return ok(f"{most} in the largest directory")


# --- what would not come along -------------------------------------------------------------------


def metadata(facts: Facts) -> Result:
    nodes = [node for node in _nodes(facts) if node.node_id is not None]
    if not nodes:
        return ok("nothing to bring along")
    for node in nodes:
        if node.metadata_fault:
            return warning(
                f"the metadata of {node.path} can't be read: {node.metadata_fault}",
                f"shmbroker log verify {node.path}/__cluster_metadata-0",
            )
    if not any(node.has_metadata for node in nodes):
        return fault(
            "no directory here has __cluster_metadata-0: a broker without its controller",
            "name the controller's directory too, or run combined nodes (process.roles="
            "broker,controller)",
        )
    return ok("the cluster's metadata is here")


def log_directories(facts: Facts) -> Result:
    for node in _nodes(facts):
        if node.log_directories > 1:
            return fault(
                f"{node.path} is one of {node.log_directories} log directories of its node: "
                "shmbroker has one for each node",
                "move all partitions into one directory with Kafka (kafka-reassign-partitions.sh), "
                "and take the others out of log.dirs",
            )
    return ok("one log directory a node")


def features(facts: Facts) -> Result:
    served = facts.software.features
    for node in _nodes(facts):
        for name, level in node.features.items():
            if name not in served:
                if level and not node.is_ours:
                    return note(
                        f"{name} is {level}, and what it stands for is not served",
                        "nothing, if nobody uses it: the level is kept",
                    )
            elif level and not served[name][0] <= level <= served[name][1]:
                return fault(
                    f"{name} is {level}, and {served[name][0]} to {served[name][1]} are served",
                    f"kafka-features.sh downgrade --feature {name}={served[name][1]}"
                    if level > served[name][1]
                    else f"kafka-features.sh upgrade --feature {name}={served[name][1]}",
                )
    return ok("each feature level is served")


def security(facts: Facts) -> Result:
    adopted = [node for node in _nodes(facts) if not node.is_ours]
    acls = max((node.records.get(ACL, 0) for node in adopted), default=0)
    if acls:
        return warning(
            f"{acls} ACLs: they are obeyed, and a start that does not ask for them is refused",
            f"start with --set authorizer.class.name={STANDARD_AUTHORIZER}; "
            "clients of a listener without SASL or TLS are User:ANONYMOUS",
        )
    return ok("no ACLs that are new here")


def _topic(facts: Facts, name: str, api_key: int, what: str, fix: str) -> Result:
    is_there = any(name in node.topics for node in _nodes(facts))
    if is_there and api_key not in facts.software.serves:
        return warning(f"there is {name}, and {what}", fix)
    return ok(f"{name} is there and served" if is_there else f"there is no {name}")


def transactions(facts: Facts) -> Result:
    return _topic(
        facts,
        TRANSACTION_TOPIC,
        ADD_PARTITIONS_TO_TXN,
        "transactions are not served",
        "end all transactions before the move; transactional producers stay with Apache Kafka",
    )


def share_groups(facts: Facts) -> Result:
    return _topic(
        facts,
        SHARE_STATE_TOPIC,
        SHARE_FETCH,
        "share groups are not served",
        "read those topics with consumer groups, or stay with Apache Kafka",
    )


def tiered(facts: Facts) -> Result:
    if any(REMOTE_TOPIC in node.topics for node in _nodes(facts)):
        return warning(
            f"there is {REMOTE_TOPIC}: segments in Apache Kafka's remote store are not read",
            "set remote.storage.enable=false and wait until Kafka has what is to be kept on disk",
        )
    return ok(f"there is no {REMOTE_TOPIC}")


CHECKS = [
    Check("directory", name, about, look)
    for name, about, look in (
        ("exists", "The data directory", exists),
        ("writable", "Whether this user may write there", writable),
        ("private", "Whether others may", private),
        ("temporary", "Whether it lies below `/tmp`, `/run` or `/dev/shm`", temporary),
        ("file-system", "The kind of file system: networked, in memory, copying", file_system),
        ("mount", "How it is mounted, and whether it still writes", mount),
        ("free", "Free space, and the reserve below which Produce is refused", free),
        ("inodes", "Free inodes", inodes),
        ("disks", "Whether replicas share a disk", disks),
        ("identity", "`meta.properties` of each node", identity),
        ("one-cluster", "Whether all nodes are of one cluster", one_cluster),
        ("twins", "Whether a copy of the cluster is served on this host as well", twins),
        ("foreign-ids", "Whether a node's id is that of its directory", foreign_ids),
        ("lock", "Who holds the lock", lock),
        ("socket-left", "A control socket that nobody listens to", socket_left),
        ("clean-stop", "Whether the logs were closed in order", clean_stop),
        ("strays", "Partitions that no topic owns", strays),
        ("future", "Copies between disks that Apache Kafka did not finish", future),
        ("unfinished", "Files of interrupted compaction", unfinished),
        ("quarantine", "Damaged files that were put aside", quarantine),
        ("partitions", "How many partitions a directory holds", partitions),
    )
] + [
    Check("comes along", name, about, look)
    for name, about, look in (
        ("metadata", "The cluster's metadata", metadata),
        ("log-dirs", "Whether a node has several log directories", log_directories),
        ("features", "Feature levels, `metadata.version` among them", features),
        ("security", "ACLs, which are obeyed", security),
        ("transactions", "Transactions that Apache Kafka's producers began", transactions),
        ("share-groups", "Share groups", share_groups),
        ("tiered", "Segments in Apache Kafka's remote store", tiered),
    )
]
