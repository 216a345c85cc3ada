"""`shmbroker status`: one look at a cluster, and whether anything in it is wrong.

What the client library has no call for (the controllers, fenced brokers, disks) is asked by our own
client, and left out where the cluster does not answer it, as an older Kafka. Lag is shown, and is
no fault. A broker of this host is looked at from outside as well (`local_status`), and alone if it
gives no answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import click

from shmbroker import clock
from shmbroker.cli import local_status
from shmbroker.cli.client import (
    ASK_S,
    NotReached,
    Pending,
    TargetCluster,
    cluster_options,
    json_option,
    metadata,
)
from shmbroker.cli.disks import is_nearly_full
from shmbroker.cli.numbers import size_text, span_text
from shmbroker.cli.offsets import Partition, offsets_known
from shmbroker.cli.outcome import EXIT_FAILED, EXIT_NOT_RUNNING, EXIT_NOT_TOLD, say
from shmbroker.cli.output import print_json, print_table
from shmbroker.cli.words import LATEST
from shmbroker.errors import Fault
from shmbroker.observe.attach import Attached, NotRunning
from shmbroker.observe.snapshot import RUNNING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from shmbroker.client.addresses import Addresses

NAMED_MAX = 5
LASTS_S = 1.0
"""Between two looks at what may pass by itself."""
STATUSES = {
    0: "ok",
    EXIT_FAILED: "degraded",
    EXIT_NOT_RUNNING: "not running",
    EXIT_NOT_TOLD: "not told",
}
"""What JSON calls the exit statuses."""

Told = TypeVar("Told")
Held = Sequence[Mapping[str, Any]] | None
"""The log directories of a broker, as DescribeLogDirs has them; None if they are not told."""


@click.command("status")
@click.option(
    "--data",
    metavar="DIR",
    help="Look at the broker of this host that works on this directory.",
)
@json_option
@cluster_options
def command(cluster: TargetCluster, data: str | None, as_json: bool) -> None:
    """Show brokers, controllers, topics, groups and disks, and whether all is well.

    \b
    shmbroker status
    shmbroker status --data /srv/shmbroker
    shmbroker status --json | jq .problems
    watch shmbroker status

    Problems are: a partition without a leader, whose leader has not opened it, or with a replica
    that is not in sync; a broker that holds replicas and is not there, or is fenced; a controller
    that is not there, or none that is active; a log directory that failed or whose disk is nearly
    full. Of a broker on this host, which we may look at (its user, or root), also: a process that
    does not run, starts, stops, or gives no sign of life. Lag is no problem.

    Exit status: 0 no problem; 1 at least one, all are named; 2 no broker runs there (or wrong
    usage); 3 something is there that can't be told of: no Kafka, no access.
    """
    status, report = _judged(cluster, data)
    if as_json:
        print_json({"status": STATUSES[status], **report})
    elif status in (0, EXIT_FAILED):
        _print(report)
    if report["problems"]:
        say("; ".join(report["problems"]))
    if status:
        sys.exit(status)


def _judged(cluster: TargetCluster, data: str | None) -> tuple[int, dict[str, Any]]:
    """The exit status, and the report with its `problems`; these alone if nothing is told."""
    from shmbroker.client.faults import DeniedFault

    try:
        seen = local_status.find([] if data is not None else cluster.addresses(), data)
    except NotRunning as fault:
        return EXIT_NOT_RUNNING, {"problems": [str(fault)]}
    except Fault as fault:
        return EXIT_NOT_TOLD, {"problems": [str(fault)]}
    if seen is not None and data is not None:
        cluster.servers = local_status.servers(seen)
    try:
        report = gather(cluster)
        report["problems"] = problems(report)
    except NotReached as fault:
        if seen is None:
            return EXIT_NOT_RUNNING, {"problems": [str(fault)]}
        report = _seen_alone(seen, str(fault))
    except Fault as fault:
        if seen is None:
            return EXIT_NOT_TOLD, {"problems": [str(fault)]}
        report = _seen_alone(seen, None if isinstance(fault, DeniedFault) else str(fault))
    except ImportError:
        if seen is None:
            try:
                cluster.check_reachable()
            except NotReached as fault:
                return EXIT_NOT_RUNNING, {"problems": [str(fault)]}
            raise
        report = _seen_alone(seen, None)
    if seen is not None:
        family = local_status.described(seen.observer.look(are_groups_wanted=False), seen.pid)
        report["family"] = family
        known = set(report["problems"])
        more = [text for text in local_status.problems(family) if text not in known]
        report["problems"] = more + report["problems"]
    return (EXIT_FAILED if report["problems"] else 0), report


def _seen_alone(seen: Attached, refusal: str | None) -> dict[str, Any]:
    """The report out of shared memory, as the cluster gives no answer: `refusal` says why."""
    observer = seen.observer
    snapshot = observer.look(are_groups_wanted=False)
    if snapshot.is_ready:
        observer.groups.start()
        snapshot = observer.look()
    report = local_status.report(snapshot)
    report["problems"] = problems(report) + ([] if refusal is None else [refusal])
    return report


# --- facts ---------------------------------------------------------------------------------------


def gather(cluster: TargetCluster) -> dict[str, Any]:
    """All that is shown, but for `problems`."""
    from shmbroker.client.admin import fenced_brokers

    admin = cluster.admin()
    there = metadata(admin, cluster)
    addresses = cluster.addresses()
    brokers = [
        {"id": broker.id, "host": broker.host, "port": broker.port}
        for broker in sorted(there.brokers.values(), key=lambda broker: int(broker.id))
    ]
    held = _held(addresses, brokers)
    for broker in brokers:
        found = held[broker["id"]]
        broker["log_dirs"] = None if found is None else list(map(_directory, found))
    unopened = lasting(
        unopened_of(there.topics, held),
        lambda: unopened_of(metadata(admin, cluster).topics, _held(addresses, brokers)),
    )
    fenced = _told(partial(fenced_brokers, addresses))
    return {
        "cluster_id": there.cluster_id,
        "brokers": brokers,
        "fenced_brokers": fenced,
        "quorum": quorum_of(addresses),
        **_partitions(there.topics),
        "unopened": unopened,
        "groups": groups_of(cluster, admin),
    }


def _told(ask: Callable[[], Told]) -> Told | None:
    """What a cluster answers; None if it does not."""
    from shmbroker.client.faults import ClusterFault

    try:
        return ask()
    except ClusterFault:
        return None


def _held(addresses: Addresses, brokers: Iterable[Mapping[str, Any]]) -> dict[int, Held]:
    """What each broker says of its log directories, by its id; None if it does not."""
    from shmbroker.client.admin import log_dirs

    return {
        broker["id"]: _told(
            partial(log_dirs, addresses.others([(broker["host"], broker["port"])]), None)
        )
        for broker in brokers
    }


def lasting(found: list[str], look: Callable[[], list[str]]) -> list[str]:
    """What of `found` is there as long as one looks: a broker opens the partitions of a new topic
    one after the other, or when they are asked for. Ends when it gets no less."""
    while found:
        clock.sleep(LASTS_S)
        again = set(look())
        left = [name for name in found if name in again]
        if len(left) == len(found):
            break
        found = left
    return found


def unopened_of(topics: Mapping[str, Any], held: Mapping[int, Held]) -> list[str]:
    """The partitions that their leader does not hold; pure. Of a broker with a directory that
    failed that is no news."""
    open_at = {
        number: {
            (topic["name"], row["partition_index"])
            for directory in directories
            for topic in directory["topics"]
            for row in topic["partitions"]
        }
        for number, directories in held.items()
        if directories is not None and not any(each["error_code"] for each in directories)
    }
    return [
        f"{name}-{partition.id}"
        for name, topic in sorted(topics.items())
        for partition in topic.partitions.values()
        if partition.leader in open_at and (name, partition.id) not in open_at[partition.leader]
    ]


def _directory(found: Mapping[str, Any]) -> dict[str, Any]:
    rows = [row for topic in found["topics"] for row in topic["partitions"]]
    return {
        "path": found["log_dir"],
        "error_code": found["error_code"],
        "partitions": len(rows),
        "bytes": sum(row["partition_size"] for row in rows),
        "free_bytes": found["usable_bytes"],
        "disk_bytes": found["total_bytes"],
    }


def quorum_of(addresses: Sequence[tuple[str, int]]) -> dict[str, Any] | None:
    """The active controller and the voters; None where the cluster knows no such question.

    DeniedFault where we may not ask it: then topics and groups are not all told, either.
    """
    from shmbroker.client.admin import describe_quorum
    from shmbroker.client.faults import ClusterFault, DeniedFault, RefusedFault

    try:
        _, found = describe_quorum(addresses)
    except DeniedFault:
        raise
    except RefusedFault:
        return {"leader": None, "epoch": None, "voters": [], "absent": [], "behind": None}
    except ClusterFault:
        return None
    ends = {row["replica_id"]: row["log_end_offset"] for row in found["current_voters"]}
    absent = sorted(voter for voter, end in ends.items() if end < 0)
    leader = found["leader_id"]
    there = [end for end in ends.values() if end >= 0]
    behind = ends[leader] - min(there) if leader in ends else None
    return {
        "leader": None if leader < 0 else leader,
        "epoch": found["leader_epoch"],
        "voters": sorted(ends),
        "absent": absent,
        "behind": behind,
    }


def _partitions(topics: Mapping[str, Any]) -> dict[str, Any]:
    """Counts, and the partitions that lack something."""
    offline, lacking = [], []
    holders: set[int] = set()
    for name, topic in sorted(topics.items()):
        for partition in topic.partitions.values():
            holders.update(partition.replicas)
            if partition.leader < 0:
                offline.append(f"{name}-{partition.id}")
            elif len(partition.isrs) < len(partition.replicas):
                lacking.append(f"{name}-{partition.id}")
    internal = sum(name.startswith("__") for name in topics)
    return {
        "topics": len(topics) - internal,
        "internal_topics": internal,
        "partitions": sum(len(topic.partitions) for topic in topics.values()),
        "offline": offline,
        "under_replicated": lacking,
        "replica_holders": sorted(holders),
    }


def groups_of(cluster: TargetCluster, admin: AdminClient) -> list[dict[str, Any]]:
    """Groups, the one that is furthest behind first; a lag that nobody tells is None, and groups
    whose coordinator does not answer are not known at all."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    listing = _result(admin.list_consumer_groups(request_timeout=ASK_S))
    states = {
        row.group_id: row.state.name.lower().replace("_", "-")
        for row in (listing.valid if listing else ())
    }
    # one group a call is all that the library takes; they are on their way together
    asked = {
        name: admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(name)], request_timeout=ASK_S
        )[name]
        for name in sorted(states)
    }
    answers = {name: _result(future) for name, future in asked.items()}
    committed: dict[str, dict[Partition, int]] = {
        name: {
            (entry.topic, entry.partition): entry.offset
            for entry in found.topic_partitions
            if entry.offset >= 0
        }
        for name, found in answers.items()
        if found is not None
    }
    wanted = {partition for offsets in committed.values() for partition in offsets}
    ends = offsets_known(cluster, sorted(wanted), LATEST, admin)
    rows = [
        {
            "group": name,
            "state": state,
            "lag": sum(
                max(ends[key] - offset, 0) for key, offset in committed[name].items() if key in ends
            )
            if name in committed
            else None,
        }
        for name, state in states.items()
    ]
    return sorted(rows, key=lambda row: (-(row["lag"] or 0), row["group"]))


def _result(future: Pending) -> Any:
    """What an admin call gives; None if there is no answer."""
    from confluent_kafka import KafkaException

    try:
        return future.result(2 * ASK_S)
    except (KafkaException, TimeoutError):
        return None


# --- judgement -----------------------------------------------------------------------------------


def problems(report: Mapping[str, Any]) -> list[str]:
    """What is wrong, in words, worst first; pure."""
    found = []
    quorum = report["quorum"]
    if quorum is not None and quorum["leader"] is None:
        found.append("there is no active controller")
    elif quorum is not None and quorum["absent"]:
        found.append(
            _count(quorum["absent"], "controller is not there", "controllers are not there")
        )
    if report["offline"]:
        what = "partition has no leader", "partitions have no leader"
        found.append(_count(report["offline"], *what))
    if report["unopened"]:
        what = "partition is not open at its leader", "partitions are not open at their leaders"
        found.append(f"{_count(report['unopened'], *what)}: the broker's log says why")
    fenced = report["fenced_brokers"] or []
    if fenced:
        found.append(_count(fenced, "broker is fenced", "brokers are fenced"))
    known = {*fenced, *(broker["id"] for broker in report["brokers"])}
    absent = sorted(set(report["replica_holders"]) - known)
    if absent:
        found.append(_count(absent, "broker is not there", "brokers are not there"))
    if report["under_replicated"]:
        what = "partition lacks a replica in sync", "partitions lack a replica in sync"
        found.append(_count(report["under_replicated"], *what))
    for broker in report["brokers"]:
        for directory in broker["log_dirs"] or ():
            where = f"log directory {directory['path']} of broker {broker['id']}"
            free, size = directory["free_bytes"], directory["disk_bytes"]
            if directory["error_code"]:
                found.append(f"{where} failed")
            elif is_nearly_full(free, size):
                found.append(f"the disk of {where} is nearly full, {size_text(free)} are free")
    return found


def _count(things: list[Any], one: str, more: str) -> str:
    named = ", ".join(map(str, things[:NAMED_MAX]))
    if len(things) > NAMED_MAX:
        named += ", …"
    return f"{len(things)} {one if len(things) == 1 else more} ({named})"


# --- output --------------------------------------------------------------------------------------


def _print(report: Mapping[str, Any]) -> None:
    count = len(report["problems"])
    state = "ok" if not count else f"{count} problem{'' if count == 1 else 's'}"
    facts = {
        "cluster": f"{report['cluster_id']}, {state}",
        "controllers": _quorum_words(report["quorum"]),
        "topics": f"{report['topics']}, and {report['internal_topics']} internal",
        "partitions": f"{report['partitions']}, {len(report['offline'])} without a leader, "
        f"{len(report['under_replicated'])} under-replicated",
        "groups": f"{len(report['groups'])}, "
        f"{sum(bool(row['lag']) for row in report['groups'])} behind",
    }
    family = report.get("family")
    if family is not None:
        facts["family"] = _family_words(family)
    for name, fact in facts.items():
        click.echo(f"{name:<12} {fact}")
    noted = [
        row
        for row in (family["processes"] if family else ())
        if row["state"] != RUNNING or row["restarts"]
    ]
    if noted:
        click.echo()
        names = ("process", "pid", "state", "restarts")
        rows = [[row[name] for name in names] for row in noted]
        print_table([name.upper() for name in names], rows)
    click.echo()
    columns = ("BROKER", "ADDRESS", "PARTITIONS", "SIZE", "FREE", "DIRECTORY")
    print_table(columns, _broker_rows(report["brokers"]))
    behind = [row for row in report["groups"] if row["lag"]]
    if behind:
        click.echo()
        lags = [(row["group"], row["state"], row["lag"]) for row in behind]
        print_table(("GROUP", "STATE", "LAG"), lags)


def _family_words(family: Mapping[str, Any]) -> str:
    processes = family["processes"]
    running = sum(row["state"] == RUNNING for row in processes)
    restarts = sum(row["restarts"] for row in processes)
    return (
        f"pid {family['pid']}, {running} of {len(processes)} processes run, "
        f"{restarts} restart{'' if restarts == 1 else 's'}, up {span_text(family['up_s'])}"
    )


def _quorum_words(quorum: Mapping[str, Any] | None) -> str:
    if quorum is None:
        return "not told"
    if quorum["leader"] is None:
        return "none is active"
    voters = ", ".join(map(str, quorum["voters"]))
    behind = quorum["behind"]
    return f"{quorum['leader']} is active, epoch {quorum['epoch']}; voters {voters}" + (
        "" if behind is None else f"; at most {behind} records behind"
    )


def _broker_rows(brokers: Iterable[Mapping[str, Any]]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for broker in brokers:
        head = (broker["id"], f"{broker['host']}:{broker['port']}")
        if not broker["log_dirs"]:
            rows.append((*head, None, None, None, None))
        for directory in broker["log_dirs"] or ():
            free = directory["free_bytes"]
            rows.append(
                (
                    *head,
                    directory["partitions"],
                    size_text(directory["bytes"]),
                    None if free < 0 else size_text(free),
                    directory["path"],
                )
            )
    return rows
