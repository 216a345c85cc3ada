"""Making a log directory right again, without a broker: what `shmbroker log repair` does.

   found                                         done
   work interrupted (.cleaned, .swap, .deleted)  finished or undone, as a start does it
   a torn tail                                   cut off
   indexes, snapshots, epochs wrong or missing   made anew from the batches
   an offset checkpoint that does not parse      put aside: the next start scans
   … that knows more than a log has              lowered
   a batch that is wrong with whole ones behind  taken out and put aside: its offsets are missing
   it, in its segment or in later ones           then, as after compaction
   a base offset that the neighbours contradict  set right where they prove it, else likewise
   a segment to which nothing leads up, or       put aside
   which begins within another one
   meta.properties, quorum-state,                told only: nothing here says what stood in them
   partition.metadata, the metadata log,
   a partition that is gone

What is put aside lies in `quarantine/<node>/<partition>/` beside the node's directory, never in it.
A log that was touched is scanned from its beginning; the mark of a clean stop goes.
"""

import contextlib
import fcntl
import itertools
import os
from collections.abc import Iterator
from typing import NamedTuple

from shmbroker.crc32c import crc32c
from shmbroker.errors import ConfigFault, CorruptFault, StorageFault
from shmbroker.log.checkpoints import (
    CLEANER,
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    read_offsets,
    write_offsets,
)
from shmbroker.log.compaction.cleaned_files import CLEANED, DELETED, SWAP, settle
from shmbroker.log.config import LogConfig
from shmbroker.log.directory_lock import LOCK
from shmbroker.log.file_names import (
    CLEAN_SHUTDOWN,
    LOG,
    SUPERVISOR_LOCK,
    file_name,
    mark_of,
    offset_of,
    parse_partition_directory,
)
from shmbroker.log.mending import NO_LIMIT, Mend, look_at, rewrite
from shmbroker.log.meta_properties import read_meta_properties
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.quarantine import put_aside, quarantine_of
from shmbroker.log.segment import OFFSETS_MAX
from shmbroker.metadata.topic_names import METADATA_TOPIC
from shmbroker.records.batch_layout import (
    ATTRIBUTES_POSITION,
    H_BASE_OFFSET,
    H_CRC,
    H_LAST_OFFSET_DELTA,
)
from shmbroker.tools import log_files
from shmbroker.tools.log_dump import dump
from shmbroker.tools.log_verify import Checkpoints, verify


class Repair(NamedTuple):
    """One thing that is wrong, and what is or would be done about it."""

    path: str
    fault: str
    action: str
    """"" where nothing can be done here."""
    is_done: bool


class _Damage(NamedTuple):
    """One place where a log is not right by its batches."""

    path: str
    """The path of the segment."""
    fault: str
    mend: Mend | None
    """None: the segment does not belong there."""

    @property
    def action(self) -> str:
        if self.mend is None:
            return f"put aside in {quarantine_of(os.path.dirname(self.path))}"
        if not self.mend.is_any:
            return "torn tail cut off"
        what = [f"offsets {hole.first_offset} to {hole.end_offset - 1}" for hole in self.mend.holes]
        taken = f"taken out: {', '.join(what)}" if what else ""
        moved = f"set right: {len(self.mend.moved)} batches" if self.mend.moved else ""
        return "; ".join(filter(None, (taken, moved)))


def repair(path: str, *, is_applied: bool) -> Iterator[Repair]:
    """What is wrong below a data directory, a node's or a partition's; mended if `is_applied`.

    ConfigFault if a broker runs there, or `path` is none of the three.
    """
    path = os.path.abspath(path)
    log_files.check_readable(path)
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
        for path, flags, take in (
            (os.path.join(os.path.dirname(node), SUPERVISOR_LOCK), os.O_RDWR, fcntl.flock),
            (os.path.join(node, LOCK), os.O_RDWR, fcntl.lockf),
            (node, os.O_RDONLY, fcntl.flock),
        ):
            if os.path.exists(path):
                fd = os.open(path, flags | os.O_CLOEXEC)
                stack.callback(os.close, fd)
                try:
                    take(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise ConfigFault(f"a broker runs on {node}: stop it first") from None
                except OSError:
                    if path != node:  # A network file system may lock no directories.
                        raise
        yield


def _repair_node(node: str, is_applied: bool) -> Iterator[Repair]:
    for name in sorted(os.listdir(node)):
        path = os.path.join(node, name)
        kind = log_files.kind_of(path)
        if os.path.isdir(path):
            if parse_partition_directory(name) and not mark_of(name):
                try:
                    yield from _repair_partition(path, is_applied)
                except OSError as error:
                    if not log_files.is_gone(path):  # by somebody's hand
                        yield Repair(path, f"{path}: {error}", "", False)
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
    for path, fault in Checkpoints().missing(node):
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
    found = list(_find_damage(directory))
    is_metadata = name.startswith(METADATA_TOPIC)
    for damage in found:
        is_tail = damage.mend is not None and not damage.mend.is_any
        if is_metadata and not is_tail:
            yield Repair(directory, damage.fault, "", False)
            return
        if is_applied:
            _apply(node, name, damage)
            is_touched = True
        yield Repair(directory, damage.fault, damage.action, is_applied)
    if not found:
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


def _find_damage(directory: str) -> Iterator[_Damage]:
    """Where the log is not right by its batches; holes between them are."""
    bases = _segments(directory)
    sizes = {base: os.path.getsize(os.path.join(directory, file_name(base, LOG))) for base in bases}
    whole = {base for base in bases if _begins_well(directory, base)}
    expected, previous, epoch = 0, -1, -1
    for number, base in enumerate(bases):
        path = os.path.join(directory, file_name(base, LOG))
        if previous >= 0 and (
            base - previous > OFFSETS_MAX or (base < expected and base not in whole)
        ):
            yield _Damage(path, f"{path}: nothing leads up to it, before it are {expected}", None)
            continue
        limit = next((later for later in bases[number + 1 :] if later in whole), NO_LIMIT)
        mend = look_at(path, base, epoch, limit, NO_LIMIT, NO_LIMIT)
        if mend.is_any or _is_torn(path, mend.stop):
            yield _Damage(path, _fault_in(path, mend), mend)
        if sizes[base]:
            expected, epoch = mend.end_offset, mend.epoch
        expected, previous = max(expected, base), base


def _is_torn(path: str, position: int) -> bool:
    """Whether something else than allocated space lies behind the last batch."""
    with open(path, "rb") as file:
        file.seek(position)
        return any(piece.strip(b"\0") for piece in iter(lambda: file.read(1 << 20), b""))


def _begins_well(directory: str, base: int) -> bool:
    """Whether a segment's first batch is right, by its CRC and by the segment's name."""
    path = os.path.join(directory, file_name(base, LOG))
    try:
        for _, header, data in log_files.read_batches(path):
            return (
                crc32c(data[ATTRIBUTES_POSITION:]) == header[H_CRC]
                and header[H_LAST_OFFSET_DELTA] >= 0
                and 0 <= header[H_BASE_OFFSET] - base < OFFSETS_MAX
            )
    except CorruptFault:
        pass
    return False


def _fault_in(path: str, mend: Mend) -> str:
    """The first of a segment's faults, in words."""
    holes, moved = mend.holes, mend.moved
    if moved and (not holes or moved[0][0] < holes[0].position):
        position, found, due = moved[0]
        return f"{path} at position {position}: base offset {found}, where {due} is due"
    if holes:
        return (
            f"{path} at position {holes[0].position}: no batch that is whole and right by its "
            f"offsets, where {holes[0].first_offset} is due"
        )
    return f"{path} at position {mend.stop}: the last batch is torn"


def _apply(node: str, name: str, damage: _Damage) -> None:
    directory = os.path.join(node, name)
    if damage.mend is None:
        put_aside(directory, [damage.path])
        return
    if damage.mend.is_of_bytes:
        rewrite(damage.path, damage.mend)
    os.truncate(damage.path, sum(kept.end - kept.position for kept in damage.mend.kept))
    if damage.mend.holes:
        _note_hole(node, name, damage.mend.holes[-1].end_offset)


def _note_hole(node: str, name: str, end_offset: int) -> None:
    """Offsets are missing before there, as after compaction: readers jump over them."""
    path = os.path.join(node, CLEANER)
    log = parse_partition_directory(name)
    if log is not None and os.path.exists(path):
        with contextlib.suppress(CorruptFault):  # Without it every gap is legal.
            offsets = read_offsets(path)
            write_offsets(path, offsets | {log: max(offsets.get(log, 0), end_offset)})


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
    _lower_checkpoints(node, os.path.basename(directory), log.log_end_offset)


def _lower_checkpoints(node: str, name: str, end_offset: int) -> None:
    """Lower the offsets of a log in its node's checkpoints to what the log has."""
    for checkpoint in (RECOVERY_POINT, HIGH_WATERMARK, LOG_START_OFFSET):
        path = os.path.join(node, checkpoint)
        with contextlib.suppress(CorruptFault):
            offsets = read_offsets(path)
            log = parse_partition_directory(name)
            if log is not None and offsets.get(log, 0) > end_offset:
                offsets[log] = end_offset if checkpoint != LOG_START_OFFSET else 0
                write_offsets(path, offsets)
