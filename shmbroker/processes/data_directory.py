"""What a family finds in its data directory, and what it makes of it, before anything runs.

    find (reads) ──► judge (pure): a DirectoryPlan, or a ConfigFault ──► carry_out (writes)

Rules of this file:
* Nothing is written before everything is judged: a start that is refused leaves the disk as it was.
* A node is a log directory with a broker, beside which a controller may lie. The id in its
  meta.properties is the node's, whoever wrote it. A directory without one gets the id of its
  place: first id + place, where the first id is the setting, or what the other directories follow.
* The cluster id is that of any node that has one. Two different ones are an error.
* A directory that can't be read is left alone, and its processes will say that they can't boot, if
  the others can do without: then a majority of the controllers' directories is there, and at least
  one broker. In a new family nothing may be missing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from shmbroker import clock
from shmbroker.controller.raft import voter_change
from shmbroker.errors import ConfigFault, CorruptFault, StorageFault
from shmbroker.ids import random_uuid, uuid_text
from shmbroker.log.checkpoints import sync_directory
from shmbroker.log.file_names import (
    META_PROPERTIES,
    PARTITION_METADATA,
    RESTORING,
    parse_partition_directory,
)
from shmbroker.log.meta_properties import (
    FIX_RIGHTS,
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)
from shmbroker.metadata.topic_names import METADATA_DIRECTORY

logger = logging.getLogger(__name__)


class Found(NamedTuple):
    """What one node's directory holds."""

    path: str
    identity: MetaProperties | None = None
    standing: voter_change.StoredQuorum | None = None
    """Where the controller there stands."""
    holds_replicas: bool = False
    fault: str = ""
    """Why it can't be read: nothing is known of it then."""

    @property
    def meta_properties(self) -> str:
        return f"{self.path}/{META_PROPERTIES}"


class WantedNodes(NamedTuple):
    """What a start asks for."""

    places: Sequence[str]
    """The directory of each broker."""
    first_id: int
    is_id_given: bool
    """Somebody said the first id, so that the directories have to agree."""
    controllers: int


class DirectoryPlan(NamedTuple):
    """What is to be done, and what the family is then."""

    nodes: dict[int, str]
    """Directory of each broker by its id, in the order of the places."""
    controllers: list[int]
    cluster_id: str
    is_new: bool
    """No directory has been a node's before."""
    to_format: dict[str, MetaProperties]
    missing: list[Found]
    """Directories of `to_format` that have lost what they had."""
    voters: voter_change.VoterChange | None


def find(directory: str) -> Found:
    """Read what a node's directory holds; nothing there is nothing held."""
    holds_replicas = False
    try:
        if os.path.lexists(directory):
            holds_replicas = any(map(_is_replica, os.listdir(directory)))
        else:
            _refuse_unmakable(directory)
        return Found(
            directory,
            read_meta_properties(f"{directory}/{META_PROPERTIES}"),
            voter_change.look(f"{directory}/{METADATA_DIRECTORY}"),
            holds_replicas,
        )
    except (ConfigFault, StorageFault) as fault:
        said = str(fault)
        if isinstance(fault, StorageFault) and isinstance(fault.__cause__, PermissionError):
            said += f"; {FIX_RIGHTS}"
        return Found(directory, holds_replicas=holds_replicas, fault=said)
    except OSError as fault:
        if isinstance(fault, FileNotFoundError) and os.path.islink(directory):
            said = (
                f"{directory} leads to {os.path.realpath(directory)}, which is not there: mount "
                "the disk that holds it, or mend the link."
            )
            return Found(directory, fault=said)
        said = f"The directory {directory} can't be read: {fault.strerror}"
        if isinstance(fault, PermissionError):
            said += f"; {FIX_RIGHTS}"
        return Found(directory, fault=said)


def find_others(data_directory: str, places: Sequence[str]) -> dict[int, Found]:
    """Nodes of the data directory that would not run, by the number in their names."""
    return {
        int(node.name[5:]): find(str(node))
        for node in sorted(Path(data_directory).glob("node-*"))
        if node.name[5:].isdecimal() and str(node) not in places
    }


def refuse_log_directory(data_directory: str, places: Sequence[str]) -> None:
    """ConfigFault if what is named as data directory holds half of a backup, or is a node's log
    directory itself, as of Apache Kafka's: a family in it would be a new one, beside what is there.
    So is a family in another's partition, and a node in what is a data directory.
    """
    for path in (data_directory, *places):
        _refuse_inside(path)
    for place in places:
        if place != data_directory and not os.path.lexists(f"{place}/{META_PROPERTIES}"):
            for node in Path(place).glob(f"node-*/{META_PROPERTIES}"):
                raise ConfigFault(
                    f"{place} is the data directory of a family: serve it with --data {place}, or "
                    f"name {node.parent} with --log-dir."
                )
    if os.path.lexists(f"{data_directory}/{RESTORING}"):
        raise ConfigFault(
            f"A backup is restored into {data_directory}, or that was interrupted: wait for its "
            "end, or empty the directory and restore again."
        )
    if data_directory in places or not os.path.lexists(f"{data_directory}/{META_PROPERTIES}"):
        return
    raise ConfigFault(
        f"{data_directory} is the log directory of a node itself: serve it with --log-dir "
        f"{data_directory} and another --data."
    )


def _refuse_inside(path: str) -> None:
    """ConfigFault if a directory is a partition's, or lies in one."""
    inner = os.path.realpath(path)
    while (outer := os.path.dirname(inner)) != inner:
        name = os.path.basename(inner)
        is_partition = name == METADATA_DIRECTORY or (
            _is_replica(name) and os.path.lexists(f"{inner}/{PARTITION_METADATA}")
        )
        if is_partition and os.path.lexists(f"{outer}/{META_PROPERTIES}"):
            raise ConfigFault(
                f"{path} is inside the log directory {outer} of a node: name a directory outside "
                "of it."
            )
        inner = outer


def judge(
    wanted: WantedNodes,
    found: Sequence[Found],
    others: Mapping[int, Found],
    new_uuid: Callable[[], bytes] = random_uuid,
) -> DirectoryPlan:
    """What to do about what was `found` at each place, and beside them; ConfigFault, one sentence
    with the fix, if it is not what a start like this can go on with."""
    is_new = not any(
        node.identity or node.holds_replicas or (node.standing and node.standing.state)
        for node in found
    )
    cluster_id = _cluster_id(found)
    _refuse_others(wanted, others, is_new)
    ids = _ids(wanted, found)
    _refuse_exchanged(found, ids)
    controllers = ids[: wanted.controllers]
    unread = [number for number, node in zip(ids, found, strict=True) if node.fault]
    readable = [number for number in controllers if number not in unread]
    if unread and (is_new or 2 * len(readable) <= len(controllers)):
        raise ConfigFault(next(node.fault for node in found if node.fault))
    standings = {
        node.identity.node_id if node.identity else number: node.standing
        for number, node in others.items()
        if node.standing
    } | {number: node.standing for number, node in zip(ids, found, strict=True) if node.standing}
    voters = voter_change.judge(standings, controllers, unread)
    if voters and voters.before and not found[0].identity and ids[0] not in voters.before:
        raise ConfigFault(
            f"{found[0].path} would be a new first node, of id {ids[0]}, of a cluster that has "
            f"others: start with --node-id {min(voters.before)}."
        )
    cluster_id = cluster_id or uuid_text(new_uuid())
    missing = [node for node in found if not (node.identity or node.fault)]
    return DirectoryPlan(
        {number: node.path for number, node in zip(ids, found, strict=True)},
        controllers,
        cluster_id,
        is_new,
        {
            node.path: MetaProperties(number, cluster_id, new_uuid())
            for number, node in zip(ids, found, strict=True)
            if node in missing
        },
        [node for node in missing if node.holds_replicas],
        voters,
    )


def carry_out(plan: DirectoryPlan) -> None:
    """Write what the plan says. ConfigFault if it can't be done."""
    for path in plan.to_format:
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            raise ConfigFault(_unmakable(path, fault.strerror)) from fault
    if plan.voters is not None:
        try:
            plan.voters.carry_out(clock.now_ms, plan.nodes)
        except (CorruptFault, StorageFault) as fault:
            raise ConfigFault(
                f"The controllers can't become {len(plan.controllers)}: {fault}"
            ) from fault
    for node in plan.missing:
        logger.error("%s is missing; the node gets a new identity", node.meta_properties)
    for path, identity in plan.to_format.items():
        try:
            sync_directory(os.path.dirname(path))  # With the ids in it, its name is durable too.
            write_meta_properties(f"{path}/{META_PROPERTIES}", identity)
        except (OSError, StorageFault) as fault:
            if plan.is_new:
                raise
            logger.error("%s", fault)  # Its processes can't boot; the others can.


def _cluster_id(found: Sequence[Found]) -> str:
    """The cluster id of any node that has one, "" if there is none yet."""
    clusters: dict[str, list[str]] = {}
    for node in found:
        if node.identity:
            clusters.setdefault(node.identity.cluster_id, []).append(node.path)
    if len(clusters) > 1:
        said = "; ".join(f"{', '.join(paths)} of {id_}" for id_, paths in clusters.items())
        raise ConfigFault(
            f"The log directories are of different clusters, {said}: start with those of one."
        )
    return next(iter(clusters), "")


def _ids(wanted: WantedNodes, found: Sequence[Found]) -> list[int]:
    """The id of the node at each place."""
    by_place = {place: node.identity.node_id for place, node in enumerate(found) if node.identity}
    firsts = {number - place for place, number in by_place.items()}
    first = wanted.first_id
    if wanted.is_id_given:
        for place, number in by_place.items():
            if number != first + place:
                raise ConfigFault(
                    f"{found[place].meta_properties} is of node {number}, but --node-id {first} "
                    f"would make it node {first + place}: leave out --node-id, or name the "
                    "directory that belongs there."
                )
    elif len(firsts) == 1:
        (first,) = firsts
    elif firsts and len(by_place) < len(found):
        (lacking, *_) = (node for place, node in enumerate(found) if place not in by_place)
        raise ConfigFault(
            lacking.fault
            or f"{lacking.meta_properties} is missing, and the ids of the other nodes, "
            f"{_listed(by_place.values())}, don't tell which one this is: restore the file."
        )
    ids = [by_place.get(place, first + place) for place in range(len(found))]
    for place, number in enumerate(ids):
        if number < 0:
            raise ConfigFault(
                f"{found[place].path} would be node {number}: say the id of the first node with "
                "--node-id."
            )
        if ids.index(number) != place:
            raise ConfigFault(
                f"{found[ids.index(number)].path} and {found[place].path} are both of node "
                f"{number}: start with one of them."
            )
    return ids


def _refuse_exchanged(found: Sequence[Found], ids: Sequence[int]) -> None:
    """ConfigFault if directories that are named after nodes bear one another's ids.

    Where only the files were exchanged, each broker would find the other's partitions, take them
    for strays, and begin its own anew: acknowledged records would be out of sight.
    """
    wrong = {
        node.path: f"{os.path.dirname(node.path)}/node-{number}"
        for number, node in zip(ids, found, strict=True)
        if os.path.basename(node.path) != f"node-{number}"
    }
    if wrong and wrong.keys() == set(wrong.values()):
        path, right = next(iter(wrong.items()))
        raise ConfigFault(
            f"{path}/{META_PROPERTIES} is the one that belongs into {right}: put the files back, "
            "or, where whole directories were exchanged, rename these back."
        )


def _refuse_others(wanted: WantedNodes, others: Mapping[int, Found], is_new: bool) -> None:
    """ConfigFault if a node that would not run belongs to the family."""
    known = {number: node for number, node in others.items() if node.identity}
    end = wanted.first_id + len(wanted.places)
    if known and (min(known) < wanted.first_id or (is_new and min(known) > end)):
        number = min(known)
        raise ConfigFault(
            f"{known[number].path} is of a node that would not run: start with --node-id {number}."
        )
    needed = [
        number
        for number, node in others.items()
        if node.holds_replicas or (is_new and node.identity)
    ]
    if needed:
        number = max(needed)
        what = "holds replicas" if others[number].holds_replicas else "is the directory"
        fix = f"start with at least --io-workers {number - wanted.first_id + 1}"
        if number < end:  # so many do run, but in its place another directory was named
            fix = "name it with --log-dir as well, or move it away"
        raise ConfigFault(f"{others[number].path} {what} of a broker that would not run: {fix}.")


def _refuse_unmakable(directory: str) -> None:
    """ConfigFault if a directory that is not there can't be made; nothing is, as yet."""
    parent = os.path.dirname(directory)
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    if not os.path.isdir(parent):
        raise ConfigFault(_unmakable(directory, f"{parent} is no directory"))
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigFault(_unmakable(directory, f"{parent} can't be written to"))


def _unmakable(directory: str, why: str | None) -> str:
    return f"The log directory {directory} can't be made: {why}; name another one."


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _is_replica(name: str) -> bool:
    """Whether a name in a node's directory is a partition's, but for the metadata log."""
    return name != METADATA_DIRECTORY and parse_partition_directory(name) is not None
