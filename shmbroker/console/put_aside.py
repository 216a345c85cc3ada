"""What starts and repairs have taken out of logs: the files in quarantine/, beside the nodes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from shmbroker.log.quarantine import quarantine_of

FILES_MAX = 200


def put_aside(log_directories: Iterable[str]) -> list[dict[str, str | int]]:
    """The files of these brokers, FILES_MAX at most: where, how large, and when each was written
    last. A directory that can't be read has none."""
    found: list[dict[str, str | int]] = []
    for log_directory in log_directories:
        root = os.path.dirname(quarantine_of(f"{log_directory}/any-0"))
        for path in _files(root):
            if len(found) == FILES_MAX:
                return found
            try:
                about = os.stat(path)
            except OSError:
                continue
            found.append(
                {
                    "path": os.fsencode(path).decode(errors="replace"),
                    "bytes": about.st_size,
                    "at_ms": about.st_mtime_ns // 1_000_000,
                }
            )
    return found


def _files(root: str) -> Iterator[str]:
    for directory, _, names in os.walk(root):
        for name in sorted(names):
            yield os.path.join(directory, name)
