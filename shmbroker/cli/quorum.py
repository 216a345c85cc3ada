"""`shmbroker quorum`: status, replication, as kafka-metadata-quorum.sh has them."""

from typing import Any

import click

from shmbroker import clock
from shmbroker.cli.client import TargetCluster, cluster_options, json_option
from shmbroker.cli.hints import HintingGroup
from shmbroker.cli.output import print_json, print_table


@click.group("quorum", cls=HintingGroup)
def command() -> None:
    """Show the controllers: who decides, who votes, who follows.

    \b
    shmbroker quorum status
    shmbroker quorum replication --json
    """


@command.command()
@json_option
@cluster_options
def status(cluster: TargetCluster, as_json: bool) -> None:
    """Show the active controller, its epoch, and the largest lag of the others.

    \b
    shmbroker quorum status
    """
    cluster_id, found = _described(cluster)
    end_offset = _end_offset(found)
    behind = [row for row in found["current_voters"] if row["log_end_offset"] < end_offset]
    caught_up = [row["last_caught_up_timestamp"] for row in behind]
    rows = {
        "cluster_id": cluster_id,
        "leader_id": found["leader_id"],
        "leader_epoch": found["leader_epoch"],
        "high_watermark": found["high_watermark"],
        "max_follower_lag": max((end_offset - row["log_end_offset"] for row in behind), default=0),
        # -1: somebody has never been caught up.
        "max_follower_lag_ms": -1
        if min(caught_up, default=0) < 0
        else max((clock.now_ms() - at for at in caught_up), default=0),
        "voters": [row["replica_id"] for row in found["current_voters"]],
        "observers": [row["replica_id"] for row in found["observers"]],
    }
    if as_json:
        print_json(rows)
        return
    for name, value in rows.items():
        shown = ", ".join(map(str, value)) or "none" if isinstance(value, list) else value
        click.echo(f"{name.replace('_', ' '):<20} {shown}")


@command.command()
@json_option
@cluster_options
def replication(cluster: TargetCluster, as_json: bool) -> None:
    """Show the leader, then each other voter and observer: where its log ends, and when it was
    heard of.

    \b
    shmbroker quorum replication
    """
    _, found = _described(cluster)
    end_offset = _end_offset(found)
    rows = [
        {
            "node": row["replica_id"],
            "status": "leader" if row["replica_id"] == found["leader_id"] else role,
            "log_end_offset": row["log_end_offset"],
            "lag": end_offset - row["log_end_offset"],
            "last_fetch_ms": row["last_fetch_timestamp"],
            "last_caught_up_ms": row["last_caught_up_timestamp"],
        }
        for role, key in (("follower", "current_voters"), ("observer", "observers"))
        for row in sorted(found[key], key=lambda one: one["replica_id"] != found["leader_id"])
    ]
    if as_json:
        print_json(rows)
        return
    columns = ("NODE", "STATUS", "LOG-END", "LAG", "LAST-FETCH-MS", "CAUGHT-UP-MS")
    print_table(columns, [tuple(row.values()) for row in rows])


def _described(cluster: TargetCluster) -> tuple[str, dict[str, Any]]:
    """Cluster id, and what the active controller says of the metadata log."""
    from shmbroker.client.admin import describe_quorum

    cluster.check_reachable()
    return describe_quorum(cluster.addresses())


def _end_offset(found: dict[str, Any]) -> int:
    """Where the leader's log ends."""
    ends = [
        row["log_end_offset"]
        for row in found["current_voters"]
        if row["replica_id"] == found["leader_id"]
    ]
    return max(ends, default=int(found["high_watermark"]))
