"""Limits that a family can't live under."""

import os
import resource

import pytest

from shmbroker.errors import ConfigFault
from shmbroker.processes.held_directory import LOCK_FD_MIN
from shmbroker.processes.limits import (
    OPEN_FILES_MAX,
    OPEN_FILES_MIN,
    network_workers,
    open_files_needed,
    raise_limits,
)

NONE = resource.RLIM_INFINITY
SEGMENT_BYTES = 1 << 30
FILES, SIZE = resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE


@pytest.fixture
def limits(monkeypatch):
    """{limit: (soft, hard)} of this process, which nothing is changed of."""
    held = {FILES: (1024, 524288), SIZE: (NONE, NONE)}
    monkeypatch.setattr(resource, "getrlimit", held.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", held.__setitem__)
    return held


@pytest.mark.parametrize(
    ("which", "before", "after"),
    [
        (FILES, (64, 524288), 524288),
        (FILES, (64, NONE), OPEN_FILES_MAX),
        (FILES, (64, OPEN_FILES_MIN), OPEN_FILES_MIN),
        (SIZE, (4096, NONE), NONE),
        (SIZE, (4096, SEGMENT_BYTES), SEGMENT_BYTES),
    ],
)
def test_soft_limits_are_raised(limits, which, before, after):
    limits[which] = before
    raise_limits(OPEN_FILES_MIN, SEGMENT_BYTES)
    assert limits[which] == (after, before[1])


@pytest.mark.parametrize(
    ("which", "limit", "parts"),
    [
        (FILES, 64, ("open files is 64", "at least 1024", "ulimit -n", "LimitNOFILE")),
        (FILES, OPEN_FILES_MIN - 1, ("1023",)),
        (SIZE, SEGMENT_BYTES - 1, ("log segment (1073741824)", "ulimit -f", "log.segment.bytes")),
    ],
)
def test_hard_limits_are_told_in_one_sentence_with_the_fix(limits, which, limit, parts):
    limits[which] = (limit, limit)
    with pytest.raises(ConfigFault) as told:
        raise_limits(OPEN_FILES_MIN, SEGMENT_BYTES)
    for part in parts:
        assert part in str(told.value)


def test_kernel_that_raises_nothing_leaves_what_is_there(limits, monkeypatch):
    def refuse(*_arguments):
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    raise_limits(OPEN_FILES_MIN, SEGMENT_BYTES)
    limits[FILES] = (64, 524288)
    with pytest.raises(ConfigFault, match="open files is 64"):
        raise_limits(OPEN_FILES_MIN, SEGMENT_BYTES)


def test_larger_families_need_more_and_room_behind_the_lock():
    small, large = open_files_needed(2, 1, 1), open_files_needed(4, 16, 5)
    assert LOCK_FD_MIN < small < large


@pytest.mark.parametrize(
    ("wanted", "cores", "workers"), [(None, {3}, 1), (None, {0, 1, 2}, 2), (5, {0}, 5)]
)
def test_network_workers_go_by_the_cores_that_the_process_may_use(
    wanted, cores, workers, monkeypatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    assert network_workers(wanted) == workers
