"""Checks of the cluster that answers: brokers, partitions, groups, transactions, upkeep. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shmbroker.cli.disks import is_nearly_full
from shmbroker.cli.doctor.facts import Facts
from shmbroker.cli.doctor.table import Check, Result, fault, mib, named, note, ok, unknown, warning
from shmbroker.ipc.slots import SUPERVISOR
from shmbroker.metadata.topic_names import OFFSETS_TOPIC
from shmbroker.security.certificate import SOON_DAYS

LAG_MOST = 1_000_000
OFFSETS_BYTES_MOST = 1 << 30
NEW_CERTIFICATE = "put a new one into the file of ssl.keystore.location: it is taken within seconds"


Report = Mapping[str, Any]
"""What `shmbroker status --json` tells."""


def _report(facts: Facts) -> Report | None:
    return facts.cluster.report or None


def _nobody(facts: Facts) -> Result:
    return unknown(f"{facts.cluster.address} was not asked")


def _told(look: Callable[[Report], Result]) -> Callable[[Facts], Result]:
    """A check of the facts that looks at the report alone; where there is none, nobody was
    asked."""

    def check(facts: Facts) -> Result:
        report = _report(facts)
        return _nobody(facts) if report is None else look(report)

    return check


def reachable(facts: Facts) -> Result:
    found = facts.cluster
    if not found.refusal:
        return ok(f"{found.address} answers")
    if found.is_denied:
        return warning(
            f"{found.address} answers, but {found.refusal}",
            "name a user who may describe the cluster (--profile NAME); where nobody may, start "
            "the broker with --set super.users=User:NAME",
        )
    saw = f"{found.address} {found.refusal}"
    if any(each.role == SUPERVISOR for each in facts.family.processes):
        return fault(saw, "a broker runs here: name its address with -b (the ready line has it)")
    return note(saw, "shmbroker serve, or name the address with -b")


def advertised(facts: Facts) -> Result:
    if _report(facts) is None:
        return _nobody(facts)
    if facts.cluster.unreachable:
        return fault(
            f"brokers tell clients addresses that don't answer from here: "
            f"{named(facts.cluster.unreachable)}",
            "start with the address that clients reach: `shmbroker serve --host ADDRESS`",
        )
    return ok("each broker answers under the address that it tells")


def loopback(facts: Facts) -> Result:
    report = _report(facts)
    if report is None:
        return _nobody(facts)
    local = [
        f"{row['host']}:{row['port']}"
        for row in report["brokers"]
        if str(row["host"]).startswith(("127.", "localhost", "::1"))
    ]
    if local and not facts.cluster.is_local:
        return fault(
            f"told from outside: {named(local)}, which is each client's own host",
            "shmbroker serve --host ADDRESS",
        )
    return ok("no client is sent to its own host")


def controllers(facts: Facts) -> Result:
    report = _report(facts)
    if report is None or report["quorum"] is None:
        return _nobody(facts)
    quorum = report["quorum"]
    if quorum["leader"] is None:
        return fault("no controller is active", "shmbroker quorum status; look at the broker's log")
    if quorum["absent"]:
        return warning(
            f"controllers that are not there: {named(quorum['absent'])}",
            "shmbroker quorum replication",
        )
    return ok(f"{quorum['leader']} is active")


@_told
def offline(report: Report) -> Result:
    if report["offline"]:
        return fault(
            f"partitions without a leader: {named(report['offline'])}",
            "start the broker that has them (shmbroker topic describe); if its disk is lost, "
            "kafka-leader-election.sh --election-type UNCLEAN lets who is left lead",
        )
    return ok("each partition has a leader")


@_told
def unopened(report: Report) -> Result:
    if report["unopened"]:
        return fault(
            f"partitions that their leader has not opened: {named(report['unopened'])}",
            "the broker's log says why; it tries again every second",
        )
    return ok("each partition is open at its leader")


@_told
def under_replicated(report: Report) -> Result:
    if report["under_replicated"]:
        return warning(
            f"partitions that lack a replica in sync: {named(report['under_replicated'])}",
            "shmbroker topic describe; a broker that is behind catches up by itself",
        )
    return ok("each replica is in sync")


def fenced(facts: Facts) -> Result:
    report = _report(facts)
    if report is None or report["fenced_brokers"] is None:
        return _nobody(facts)
    if report["fenced_brokers"]:
        return fault(
            f"brokers that the controller does not hear: {named(report['fenced_brokers'])}",
            "look for `gives no sign of life` in the broker's log",
        )
    return ok("none is fenced")


@_told
def brokers_there(report: Report) -> Result:
    known = {row["id"] for row in report["brokers"]} | set(report["fenced_brokers"] or ())
    gone = sorted(set(report["replica_holders"]) - known)
    if gone:
        return fault(
            f"brokers that hold replicas and are not there: {named(gone)}",
            "start as many as before: `shmbroker serve --io-workers`",
        )
    return ok("each holder of replicas is there")


def log_directories(facts: Facts) -> Result:
    rows = _directories(facts)
    if rows is None:
        return _nobody(facts)
    failed = [row["path"] for row in rows if row["error_code"]]
    if failed:
        return fault(
            f"log directories that failed: {named(failed)}",
            "look for `offline` in the broker's log; replace the disk, and restart",
        )
    return ok("none has failed")


def broker_disks(facts: Facts) -> Result:
    rows = _directories(facts)
    if rows is None:
        return _nobody(facts)
    low = [
        f"{row['path']} ({mib(row['free_bytes'])})"
        for row in rows
        if is_nearly_full(row["free_bytes"], row["disk_bytes"])
    ]
    if low:
        return warning(
            f"disks that are nearly full: {named(low)}", "make room, or shorten retention.ms"
        )
    return ok("each disk has room")


def _directories(facts: Facts) -> list[Mapping[str, Any]] | None:
    report = _report(facts)
    if report is None or not any(row["log_dirs"] for row in report["brokers"]):
        return None
    return [each for row in report["brokers"] for each in row["log_dirs"] or ()]


@_told
def lag(report: Report) -> Result:
    late = [
        f"{row['group']} ({row['lag']})" for row in report["groups"] if (row["lag"] or 0) > LAG_MOST
    ]
    if late:
        return note(f"groups far behind: {named(late)}", "shmbroker group describe GROUP")
    return ok("no group is a million records behind")


@_told
def idle_groups(report: Report) -> Result:
    idle = [row["group"] for row in report["groups"] if row["state"] == "empty" and row["lag"]]
    if idle:
        return note(
            f"nobody reads, and there is something to read: {named(idle)}",
            f"start a member, or `shmbroker group delete {idle[0]}`",
        )
    return ok("each group that is behind has members")


def hanging(facts: Facts) -> Result:
    found = facts.cluster.hanging
    if found is None:
        return unknown("no broker told what is open in its logs, or they have too many partitions")
    if found:
        topic, partition, offset = found[0]
        told = named(f"{topic}-{partition} from {offset} on" for topic, partition, offset in found)
        return warning(
            f"transactions that nobody will end, readers with read_committed wait there: {told}",
            f"shmbroker transaction abort {topic} {partition} --start-offset {offset}",
        )
    return ok("no transaction hangs")


def late_transactions(facts: Facts) -> Result:
    found = facts.cluster.late_transactions
    if found is None:
        return unknown("no broker told its transactions")
    if found:
        return warning(
            f"transactions that are open for longer than their time-out: {named(found)}",
            f"shmbroker transaction describe {found[0]}; a partition of it may have no leader",
        )
    return ok("none is open for longer than its time-out")


def cleaner(facts: Facts) -> Result:
    size = max((each.offsets_bytes for each in facts.directory.nodes), default=0)
    saw = f"{mib(size)} of {OFFSETS_TOPIC}"
    if size > OFFSETS_BYTES_MOST:
        return warning(
            f"{saw}: it is not compacted", "look for `is not compacted` in the broker's log"
        )
    return ok(saw)


def watchdog(facts: Facts) -> Result:
    found = facts.cluster.settings.get("shmbroker.watchdog.kill.ms")
    if found is None:
        return unknown("no broker of ours told its settings")
    if found == "0":
        return warning(
            "shmbroker.watchdog.kill.ms=0: a process that hangs is not replaced",
            "start without that setting",
        )
    return ok(f"a process that hangs for {found} ms is replaced")


def reserve(facts: Facts) -> Result:
    found = facts.cluster.settings.get("shmbroker.disk.reserve.bytes")
    if found is None:
        return unknown("no broker of ours told its settings")
    if found == "0":
        return warning(
            "shmbroker.disk.reserve.bytes=0: groups and decisions stop where the disk is full",
            "start without that setting",
        )
    return ok("Produce is refused before the disk is full")


def tier(facts: Facts) -> Result:
    found = facts.cluster
    url = found.settings.get("shmbroker.tier.store")
    if not url:
        return ok("no other store is named")
    if url.startswith("s3:") and "boto3" not in facts.software.versions:
        return fault(f"{url} needs boto3", "pip install boto3")
    if found.store_path is not None and not found.store_is_there:
        return warning(
            f"{found.store_path} is not there: nothing can be copied to it",
            f"mount it, or mkdir -p {found.store_path}",
        )
    if found.store_device is not None and found.store_device in {
        node.device for node in facts.directory.nodes
    }:
        return note(
            f"{found.store_path} is on the disk of a log directory: it saves no room",
            "name another disk or a bucket in shmbroker.tier.store",
        )
    return ok(url)


def certificates(facts: Facts) -> Result:
    found = facts.cluster.certificates
    days = {name: left for name, left in found.items() if left is not None}
    if ended := sorted(name for name, left in days.items() if left <= 0):
        return fault(f"certificates of listeners have ended: {named(ended)}", NEW_CERTIFICATE)
    if soon := [f"{name} in {left:.0f} days" for name, left in days.items() if left < SOON_DAYS]:
        return warning(f"certificates of listeners end soon: {named(soon)}", NEW_CERTIFICATE)
    if silent := sorted(found.keys() - days.keys()):
        return warning(
            f"no certificate is shown by {named(silent)}",
            "look for lines about handshakes in the broker's log",
        )
    if not days:
        return ok("no listener that is known has TLS")
    return ok(f"the first certificate of a listener ends in {min(days.values()):.0f} days")


CHECKS = [
    Check("cluster", name, about, look)
    for name, about, look in (
        ("reachable", "Whether a Kafka answers at the address", reachable),
        ("advertised", "Whether brokers answer under the addresses that they tell", advertised),
        ("loopback", "Whether clients of other hosts are sent to themselves", loopback),
        ("controllers", "The controllers", controllers),
        ("offline", "Partitions without a leader", offline),
        ("unopened", "Partitions that their leader can't open", unopened),
        ("under-replicated", "Partitions that lack a replica in sync", under_replicated),
        ("fenced", "Brokers that the controller does not hear", fenced),
        ("brokers-there", "Brokers that hold replicas and are gone", brokers_there),
        ("log-directories", "Log directories that failed", log_directories),
        ("broker-disks", "Room on the disks of all brokers", broker_disks),
        ("lag", "Groups that are far behind", lag),
        ("idle-groups", "Groups that are behind and have no members", idle_groups),
        ("hanging", "Transactions that nobody will end", hanging),
        ("late-transactions", "Transactions beyond their time-out", late_transactions),
        ("cleaner", "Whether committed offsets are compacted", cleaner),
        ("watchdog", "Whether a process that hangs is replaced", watchdog),
        ("certificates", "When certificates of listeners end", certificates),
        ("reserve", "Whether Produce is refused before the disk is full", reserve),
        ("tier", "The store of tiered storage", tier),
    )
]
