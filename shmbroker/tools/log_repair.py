"""Making a log directory right again, without a broker: what `shmbroker log repair` does.

   found                                         done
   work interrupted (.cleaned, .swap, .deleted)  finished or undone, as a start does it
   a torn tail                                   cut off
   indexes, snapshots, epochs wrong or missing   made anew from the batches
   an offset checkpoint that does not parse      put aside: the next start scans
   a batch that is wrong with whole ones behind  the segment and those behind it are put aside; what
   it; a segment under another's name            is right before it stays: the log ends there
   meta.properties, quorum-state,                told only: nothing here says what stood in them
   partition.metadata, the metadata log

What is put aside lies in `quarantine/<node>/<partition>/` beside the node's directory, never in it.
A segment is copied there before it is cut. A log that was touched is scanned from its beginning;
the mark of a clean stop goes.
"""

import contextlib
import fcntl
import itertools
import mmap
import os
from collections.abc import Iterator
from typing import NamedTuple

from shmbroker.crc32c import crc32c
from shmbroker.errors import ConfigFault, CorruptFault, StorageFault
from shmbroker.log.cleaned_files import CLEANED, DELETED, SWAP, settle
from shmbroker.log.config import LogConfig
from shmbroker.log.file_names import LOG, file_name, mark_of, offset_of, parse_partition_directory
from shmbroker.log.log_directory import CLEAN_SHUTDOWN, LOCK
from shmbroker.log.meta_properties import read_meta_properties
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.quarantine import find_whole_batch, put_aside, quarantine_of
from shmbroker.metadata.topic_names import METADATA_TOPIC
from shmbroker.records.batch_layout import ATTRIBUTES_POSITION
from shmbroker.tools import log_files
from shmbroker.tools.log_dump import dump
from shmbroker.tools.log_verify import verify

SUPERVISOR_LOCK = ".supervisor.lock"


class Repair(NamedTuple):
    """One thing that is wrong, and what is or would be done about it."""

    path: str
    fault: str
    action: str
    """"" where nothing can be done here."""
    is_done: bool


class _Damage(NamedTuple):
    """Where a log stops being right."""

    number: int
    """Of the segment."""
    position: int
    fault: str
    is_tail: bool
    """Nothing whole follows: a torn write, or space that was allocated."""


def repair(path: str, *, is_applied: bool) -> Iterator[Repair]:
    """What is wrong below a data directory, a node's or a partition's; mended if `is_applied`.

    ConfigFault if a broker runs there, or `path` is none of the three.
    """
    path = os.path.abspath(path)
    if not os.path.isdir(path):
        raise ConfigFault(f"{path} is no directory of a broker, of a node or of a partition")
    if os.path.exists(os.path.join(path, "meta.properties")):
        with _locked(path):
            yield from _repair_node(path, is_applied)
    elif parse_partition_directory(os.path.basename(path)):
        with _locked(os.path.dirname(path)):
            yield from _repair_partition(path, is_applied)
    else:
        nodes = [
            os.path.join(path, name)
            for name in sorted(os.listdir(path))
            if os.path.exists(os.path.join(path, name, "meta.properties"))
        ]
        if not nodes:
            raise ConfigFault(f"{path} holds neither a node's nor a partition's directory")
        for node in nodes:
            with _locked(node):
                yield from _repair_node(node, is_applied)


@contextlib.contextmanager
def _locked(node: str) -> Iterator[None]:
    """Hold the locks that a broker takes; ConfigFault if one runs."""
    with contextlib.ExitStack() as stack:
        for path, take in (
            (os.path.join(os.path.dirname(node), SUPERVISOR_LOCK), fcntl.flock),
            (os.path.join(node, LOCK), fcntl.lockf),
        ):
            if os.path.exists(path):
                file = stack.enter_context(open(path, "r+b"))
                try:
                    take(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise ConfigFault(f"a broker runs on {node}: stop it first") from None
        yield


def _repair_node(node: str, is_applied: bool) -> Iterator[Repair]:
    for name in sorted(os.listdir(node)):
        path = os.path.join(node, name)
        kind = log_files.kind_of(path)
        if os.path.isdir(path):
            if parse_partition_directory(name) and not mark_of(name):
                yield from _repair_partition(path, is_applied)
        elif kind is not None:
            fault = _fault_of(path)
            if fault is None:
                continue
            if kind == log_files.OFFSET_CHECKPOINT:
                if is_applied:
                    put_aside(os.path.join(node, ""), [path])
                yield Repair(path, fault, "put aside; the next start scans", is_applied)
            else:
                yield Repair(path, fault, "", False)


def _fault_of(path: str) -> str | None:
    try:
        for _ in dump(path):
            pass
        if log_files.kind_of(path) == log_files.META_PROPERTIES:
            read_meta_properties(path)
    except (StorageFault, ConfigFault) as fault:
        return str(fault)
    return None


def _repair_partition(directory: str, is_applied: bool) -> Iterator[Repair]:
    node, name = os.path.split(directory)
    is_touched = False
    leftovers = [
        found for found in os.listdir(directory) if found.endswith((CLEANED, SWAP, DELETED))
    ]
    if leftovers:
        fault = f"{directory}: {len(leftovers)} files of interrupted work"
        if is_applied:
            names = os.listdir(directory)
            settle(directory, names, names)
            is_touched = True
        yield Repair(directory, fault, "finished or undone", is_applied)
    damage = _find_damage(directory)
    is_metadata = name.startswith(METADATA_TOPIC)
    if damage is not None and not damage.is_tail:
        if is_metadata:
            yield Repair(directory, damage.fault, "", False)
            return
        segments = _segments(directory)
        behind = [
            os.path.join(directory, found)
            for found in os.listdir(directory)
            if found[:20].isdigit() and int(found[:20]) > segments[damage.number]
        ]
        if is_applied:
            damaged = os.path.join(directory, file_name(segments[damage.number], LOG))
            put_aside(directory, [damaged], is_kept=damage.position > 0)
            put_aside(directory, behind)
            if damage.position:
                os.truncate(damaged, damage.position)
            is_touched = True
        count = len(segments) - damage.number
        action = f"ends there; {count} segments put aside in {quarantine_of(directory)}"
        yield Repair(directory, damage.fault, action, is_applied)
    elif damage is not None:
        yield Repair(directory, damage.fault, "torn tail cut off", is_applied)
        is_touched = is_applied
    else:
        for verdict in verify(directory):
            if verdict.fault is None:
                continue
            is_derived = not any(
                found in verdict.fault for found in (*_NOT_DERIVED, ".checkpoint ")
            )
            action = "made anew from the batches" if is_derived else ""
            yield Repair(directory, verdict.fault, action, is_applied and is_derived)
            is_touched |= is_applied and is_derived
    if is_touched:
        _scan(node, directory)


_NOT_DERIVED = (log_files.PARTITION_METADATA, log_files.QUORUM_STATE)


def _segments(directory: str) -> list[int]:
    return sorted(
        base for name in os.listdir(directory) if (base := offset_of(name, LOG)) is not None
    )


def _find_damage(directory: str) -> _Damage | None:
    """The first place where the log is not right by its batches; holes between them are."""
    bases = _segments(directory)
    expected, epoch = 0, -1
    for number, base in enumerate(bases):
        path = os.path.join(directory, file_name(base, LOG))
        limit = bases[number + 1] if number + 1 < len(bases) else 1 << 63
        if base < expected:
            return _Damage(number, 0, f"{path} begins before offset {expected}", False)
        end = 0
        try:
            for position, header, data in log_files.read_batches(path):
                last = header[0] + header[6]
                if crc32c(data[ATTRIBUTES_POSITION:]) != header[4]:
                    raise CorruptFault(f"{path} at position {position}: wrong CRC")
                if not max(base, expected) <= header[0] <= last < limit or header[2] < epoch:
                    raise CorruptFault(
                        f"{path} at position {position}: offset {header[0]} and leader epoch "
                        f"{header[2]} do not belong there"
                    )
                expected, epoch = last + 1, header[2]
                end = position + len(data)
        except CorruptFault as fault:
            is_tail = number + 1 == len(bases) and not _is_whole_behind(path, end)
            return _Damage(number, end, str(fault), is_tail)
    return None


def _is_whole_behind(path: str, position: int) -> bool:
    """Whether a whole batch follows somewhere behind the damaged one at `position`."""
    with open(path, "rb") as file:
        if position >= os.fstat(file.fileno()).st_size:
            return False
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
            return find_whole_batch(content, position + 1) >= 0


def _scan(node: str, directory: str) -> None:
    """Open the log as after a power cut, from its beginning, and close it: all that is derived is
    right then. Holes may be compaction's."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(node, CLEAN_SHUTDOWN))
    config = LogConfig({"cleanup.policy": "compact"})
    first = min(_segments(directory), default=0)
    log = PartitionLog.open(
        directory, config, file_ids=itertools.count(1), clean=False, log_start_offset=first
    )
    log.close(clean=True)
