"""Which death by SIGKILL was the kernel's doing, by its counts."""

from pathlib import Path

import pytest

from shmbroker.processes.oom_kills import OomKills

VERSION_1 = "9:name=systemd:/\n4:cpuset,memory:/a/b\n0::/\n"
VERSION_2 = "0::/a/b\n"


def write(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("groups", "name"),
    [
        (VERSION_2, "sys/fs/cgroup/a/b/memory.events"),
        (VERSION_2, "sys/fs/cgroup/memory.events"),
        (VERSION_1, "sys/fs/cgroup/memory/a/b/memory.oom_control"),
        (VERSION_1, "sys/fs/cgroup/memory/memory.oom_control"),
        (VERSION_1, "proc/vmstat"),
        (VERSION_2, "proc/vmstat"),
    ],
)
def test_count_of_the_nearest_group_is_compared(tmp_path: Path, groups: str, name: str) -> None:
    write(tmp_path, "proc/self/cgroup", groups)
    others = write(tmp_path, "proc/vmstat", "oom_kill 4\n")
    path = write(tmp_path, name, "oom_kill_disable 0\noom_kill 7\n")
    kills = OomKills(tmp_path)
    assert not kills.have_grown()
    if others != path:
        others.write_text("oom_kill 5\n")
        assert not kills.have_grown(), "of somebody else on the host"
    path.write_text("oom_kill_disable 0\noom_kill 8\n")
    assert kills.have_grown()


def test_death_that_is_seen_after_the_next_look_is_still_known(tmp_path: Path) -> None:
    path = write(tmp_path, "proc/vmstat", "oom_kill 0\n")
    kills = OomKills(tmp_path)
    kills.look()
    path.write_text("oom_kill 1\n")
    kills.look()
    assert kills.have_grown()
    kills.look()
    assert not kills.have_grown(), "it was long ago"


def test_system_that_does_not_count_is_no_hindrance(tmp_path: Path) -> None:
    kills = OomKills(tmp_path)
    kills.look()
    assert not kills.have_grown()
