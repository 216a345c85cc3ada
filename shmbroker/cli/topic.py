"""`shmbroker topic`: create, list, describe, alter, delete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from shmbroker.cli.client import (
    ASK_S,
    CHANGE_S,
    TargetCluster,
    cluster_options,
    is_pattern,
    json_option,
    matching,
    metadata,
    pairs,
    say_idle,
    waited,
)
from shmbroker.cli.hints import HintingGroup
from shmbroker.cli.offsets import Partition, offsets_known
from shmbroker.cli.outcome import CommandFault
from shmbroker.cli.output import print_json, print_list, print_table
from shmbroker.cli.words import EARLIEST, LATEST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_URL_SAFE = str.maketrans("+/", "-_")
"""Kafka writes ids in the base64 of URLs, the client library in the plain one."""


@click.group("topic", cls=HintingGroup)
def command() -> None:
    """Create, list, describe, alter and delete topics.

    \b
    shmbroker topic create flights -p 3 --config retention.ms=-1
    shmbroker topic list
    shmbroker topic describe flights

    NAMEs may be shell globs ('fl*', quoted) or regular expressions that begin with ^.
    """


@command.command()
@click.argument("names", metavar="NAME…", nargs=-1, required=True)
@click.option(
    "-p",
    "--partitions",
    metavar="N",
    type=click.IntRange(1),
    help="Partitions of each.  [default: the broker's num.partitions]",
)
@click.option(
    "-r",
    "--replication-factor",
    "replicas",
    metavar="N",
    type=click.IntRange(1),
    help="Copies of each partition.  [default: the broker's default.replication.factor]",
)
@click.option(
    "--config",
    "configs",
    metavar="KEY=VALUE",
    multiple=True,
    help="Setting of the topic, see `shmbroker config explain`; repeatable.",
)
@click.option("--if-not-exists", is_flag=True, help="Leave a topic that exists as it is.")
@cluster_options
def create(
    cluster: TargetCluster,
    names: tuple[str, ...],
    partitions: int | None,
    replicas: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
) -> None:
    """Create topics.

    \b
    shmbroker topic create flights
    shmbroker topic create flights delays -p 3 --config cleanup.policy=compact
    shmbroker topic create flights --if-not-exists
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import NewTopic

    settings = pairs(configs, "--config")
    wanted = [
        NewTopic(
            name,
            num_partitions=partitions or -1,
            replication_factor=replicas or -1,
            config=settings,
        )
        for name in names
    ]
    admin = cluster.admin()
    metadata(admin, cluster)
    created = admin.create_topics(wanted, operation_timeout=CHANGE_S, request_timeout=CHANGE_S)
    for name, future in created.items():
        try:
            future.result()
        except KafkaException as refusal:
            if if_not_exists and refusal.args[0].name() == "TOPIC_ALREADY_EXISTS":
                continue
            waited(future, f"topic {name} was not created")
    say_idle(cluster, admin, settings)


@command.command("list")
@click.argument("names", metavar="[NAME…]", nargs=-1)
@click.option("--internal", is_flag=True, help="List internal topics, too.")
@json_option
@cluster_options
def list_(cluster: TargetCluster, names: tuple[str, ...], internal: bool, as_json: bool) -> None:
    """List topics with their numbers of partitions and replicas.

    \b
    shmbroker topic list
    shmbroker topic list 'fl*' --json
    """
    topics = metadata(cluster.admin(), cluster).topics
    if not names and not internal:
        topics = {name: topic for name, topic in topics.items() if not name.startswith("__")}
    rows = [
        {
            "name": name,
            "partitions": len(topics[name].partitions),
            "replicas": max((len(p.replicas) for p in topics[name].partitions.values()), default=0),
        }
        for name in matching(names, topics, "topic")
    ]
    if as_json:
        print_json(rows)
        return
    print_list(
        ("TOPIC", "PARTITIONS", "REPLICAS"), [tuple(row.values()) for row in rows], "no topic"
    )


@command.command()
@click.argument("names", metavar="[NAME…]", nargs=-1)
@click.option(
    "--under-replicated", is_flag=True, help="Only partitions with a replica that is not in sync."
)
@json_option
@cluster_options
def describe(
    cluster: TargetCluster, names: tuple[str, ...], under_replicated: bool, as_json: bool
) -> None:
    """Show topics: id, the settings that were set, and for each partition its leader, replicas,
    first offset, end offset, and bytes on the leader's disk.

    \b
    shmbroker topic describe flights
    shmbroker topic describe 'fl*' --json
    shmbroker topic describe --under-replicated

    "-" stands for what no leader tells.
    """
    admin = cluster.admin()
    there = metadata(admin, cluster)
    found = _described(admin, matching(names, there.topics, "topic"))
    if under_replicated:
        for topic in found:
            topic["partitions"] = [
                row for row in topic["partitions"] if len(row["isr"]) < len(row["replicas"])
            ]
        found = [topic for topic in found if topic["partitions"]]
    _add_extents(cluster, admin, there.brokers, found)
    if as_json:
        print_json(found)
        return
    for number, topic in enumerate(found):
        if number:
            click.echo()
        settings = " ".join(f"{name}={value}" for name, value in topic["configs"].items())
        click.echo(f"{topic['name']}  id {topic['id']}{settings and '  '}{settings}")
        rows = [
            (
                *(row["partition"], row["leader"], _ids(row["replicas"]), _ids(row["isr"])),
                *(row["start"], row["end"], row["bytes"]),
            )
            for row in topic["partitions"]
        ]
        print_table(("PARTITION", "LEADER", "REPLICAS", "ISR", "START", "END", "BYTES"), rows)


def _ids(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


def _described(admin: AdminClient, names: list[str]) -> list[dict[str, Any]]:
    from confluent_kafka import TopicCollection
    from confluent_kafka.admin import ConfigResource, ConfigSource

    if not names:
        return []
    topics = admin.describe_topics(TopicCollection(names), request_timeout=ASK_S)
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
    configs = {
        resource.name: waited(future, f"settings of topic {resource.name}")
        for resource, future in admin.describe_configs(resources, request_timeout=ASK_S).items()
    }
    found = []
    for name in names:
        topic = waited(topics[name], f"topic {name}")
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        set_here = {
            entry.name: entry.value
            for entry in sorted(configs[name].values(), key=lambda entry: str(entry.name))
            if entry.source == own
        }
        partitions = [
            {
                "partition": partition.id,
                "leader": partition.leader.id if partition.leader else None,
                "replicas": [node.id for node in partition.replicas],
                "isr": [node.id for node in partition.isr],
            }
            for partition in topic.partitions
        ]
        found.append(
            {
                "name": name,
                "id": str(topic.topic_id).translate(_URL_SAFE),
                "configs": set_here,
                "partitions": sorted(partitions, key=lambda row: row["partition"]),
            }
        )
    return found


def _add_extents(
    cluster: TargetCluster,
    admin: AdminClient,
    brokers: Mapping[int, Any],
    topics: list[dict[str, Any]],
) -> None:
    """Add start and end offset and bytes to each partition; None where no leader tells."""
    rows = {
        (topic["name"], row["partition"]): row for topic in topics for row in topic["partitions"]
    }
    led = [key for key, row in rows.items() if row["leader"] is not None]
    firsts = offsets_known(cluster, led, EARLIEST, admin)
    lasts = offsets_known(cluster, led, LATEST, admin)
    sizes = _sizes(cluster, brokers, {key: rows[key]["leader"] for key in led})
    for key, row in rows.items():
        row |= {"start": firsts.get(key), "end": lasts.get(key), "bytes": sizes.get(key)}


def _sizes(
    cluster: TargetCluster, brokers: Mapping[int, Any], leaders: Mapping[Partition, int]
) -> dict[Partition, int]:
    """Bytes of these partitions on the disks of these leaders, as far as they tell."""
    from shmbroker.client.admin import log_dirs
    from shmbroker.client.faults import ClusterFault

    found: dict[Partition, int] = {}
    for leader in set(leaders.values()):
        wanted: dict[str, list[int]] = {}
        for (topic, partition), broker in leaders.items():
            if broker == leader:
                wanted.setdefault(topic, []).append(partition)
        try:
            dirs = log_dirs(
                cluster.addresses().others([(brokers[leader].host, brokers[leader].port)]), wanted
            )
        except (KeyError, ClusterFault):
            continue
        found |= {
            (topic["name"], row["partition_index"]): row["partition_size"]
            for directory in dirs
            for topic in directory["topics"]
            for row in topic["partitions"]
            if not row["is_future_key"]
        }
    return found


@command.command()
@click.argument("name")
@click.option(
    "-p",
    "--partitions",
    metavar="N",
    type=click.IntRange(1),
    required=True,
    help="Number of partitions after the change.",
)
@cluster_options
def alter(cluster: TargetCluster, name: str, partitions: int) -> None:
    """Give a topic more partitions. Its settings are changed by `shmbroker config set`.

    \b
    shmbroker topic alter flights --partitions 6
    """
    from confluent_kafka.admin import NewPartitions

    admin = cluster.admin()
    matching([name], metadata(admin, cluster).topics, "topic")
    created = admin.create_partitions([NewPartitions(name, partitions)], request_timeout=CHANGE_S)
    waited(created[name], f"topic {name}")


@command.command()
@click.argument("names", metavar="NAME…", nargs=-1, required=True)
@click.option("--if-exists", is_flag=True, help="Ignore topics that do not exist.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask before a pattern deletes topics.")
@cluster_options
def delete(cluster: TargetCluster, names: tuple[str, ...], if_exists: bool, yes: bool) -> None:
    """Delete topics with all their records.

    \b
    shmbroker topic delete flights
    shmbroker topic delete 'test-*' --yes
    """
    admin = cluster.admin()
    known = metadata(admin, cluster).topics
    if if_exists:
        names = tuple(name for name in names if is_pattern(name) or name in known)
    try:
        found = matching(names, known, "topic") if names else []
    except CommandFault:
        if not if_exists:
            raise
        found = []
    if not found:
        return
    if any(map(is_pattern, names)) and not yes:
        click.echo("\n".join(found), err=True)
        try:
            click.confirm(f"Delete {len(found)} topics?", abort=True, err=True)
        except click.Abort:
            raise CommandFault("nothing was deleted; --yes deletes without asking") from None
    deleted = admin.delete_topics(found, operation_timeout=CHANGE_S, request_timeout=CHANGE_S)
    for name, future in deleted.items():
        waited(future, f"topic {name} was not deleted")
