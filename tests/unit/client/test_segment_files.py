"""Which transaction index goes with a listed segment, whatever has become of its files since."""

import os
from pathlib import Path
from struct import Struct

import pytest

from shmbroker.client.faults import NoFilesFault
from shmbroker.client.reader.aborted import AbortedRange
from shmbroker.client.reader.planning import ListedSegment
from shmbroker.client.reader.segment_files import GoneFault, aborted_transactions

ENTRY = Struct(">hqqqq")
OURS, OTHER = AbortedRange(7, 3, 9), AbortedRange(8, 4, 6)


def segment(directory: Path) -> ListedSegment:
    """A segment of offsets 0 to 9 with its index."""
    log = directory / f"{0:020d}.log"
    log.write_bytes(b"records")
    write_index(log.with_suffix(".txnindex"), OURS)
    return ListedSegment(str(log), log.stat().st_ino, 0, 10, 7)


def write_index(path: Path, *entries: AbortedRange) -> None:
    path.write_bytes(b"".join(ENTRY.pack(0, *entry, entry.last_offset + 1) for entry in entries))


def rename(listed: ListedSegment, *suffixes: str) -> None:
    for suffix in suffixes:
        path = listed.path.removesuffix(".log") + suffix
        os.rename(path, path + ".deleted")


def replace(listed: ListedSegment) -> None:
    """Another segment has the names, as after compaction."""
    log = Path(listed.path)
    log.write_bytes(b"others")
    write_index(log.with_suffix(".txnindex"), OTHER)


def test_the_index_is_that_of_the_listed_file(tmp_path: Path) -> None:
    listed = segment(tmp_path)
    assert aborted_transactions([listed], 0, 10) == (OURS,)
    assert aborted_transactions([listed], 9, 10) == (OURS,)
    assert aborted_transactions([listed], 0, 3) == ()
    Path(listed.path).with_suffix(".txnindex").unlink()
    assert aborted_transactions([listed], 0, 10) == ()


def test_an_index_that_is_renamed_is_found(tmp_path: Path) -> None:
    listed = segment(tmp_path)
    rename(listed, ".log")
    assert aborted_transactions([listed], 0, 10) == (OURS,)
    rename(listed, ".txnindex")
    assert aborted_transactions([listed], 0, 10) == (OURS,)
    replace(listed)
    assert aborted_transactions([listed], 0, 10) == (OURS,)


def test_a_segment_that_is_gone_is_told(tmp_path: Path) -> None:
    listed = segment(tmp_path)
    rename(listed, ".log", ".txnindex")
    replace(listed)
    for path in tmp_path.glob("*.deleted"):
        path.unlink()
    with pytest.raises(GoneFault):
        aborted_transactions([listed], 0, 10)


def test_an_index_that_may_not_be_read_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = segment(tmp_path)

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(NoFilesFault):
        aborted_transactions([listed], 0, 10)
