"""Whether the kernel ended a process as memory ran out (the OOM killer): it sends SIGKILL, as
anybody may, and counts.

The count is that of the own control group, whichever version, as every container has one; where
there is none, that of the host. It has grown when the signal is sent. The death may be seen later,
as memory takes time to be freed: so it is compared with what it was two looks ago.
"""

import re
from collections.abc import Iterator
from pathlib import Path

_COUNT = re.compile(r"^oom_kill (\d+)$", re.M)


class OomKills:
    """`look` now and then; then `have_grown` at a death by SIGKILL tells whose it was."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._file = next((path for path in _files(root) if _count(path) is not None), None)
        self._before = self._last = self._now()

    def look(self) -> None:
        """Note how many there are."""
        self._before, self._last = self._last, self._now()

    def have_grown(self) -> bool:
        """Whether there are more than at the look before the last one."""
        return self._now() > self._before

    def _now(self) -> int:
        return (_count(self._file) or 0) if self._file is not None else 0


def _files(root: Path) -> Iterator[Path]:
    """What may have the count, the nearest first. A container may see its group as the root."""
    try:
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8")
    except OSError:
        groups = ""
    mount = root / "sys/fs/cgroup"
    for names, path in re.findall(r"^\d+:(.*):/(.*)$", groups, re.M):
        if not names:
            yield from (mount / path / "memory.events", mount / "memory.events")
        elif "memory" in names.split(","):
            memory = mount / "memory"
            yield from (memory / path / "memory.oom_control", memory / "memory.oom_control")
    yield root / "proc/vmstat"


def _count(path: Path) -> int | None:
    try:
        found = _COUNT.search(path.read_text(encoding="utf-8"))
    except OSError:
        return None
    return int(found[1]) if found else None
