"""What unit tests share: the files that one has opened are closed when it is over."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shmbroker.log.index_file import IndexFile
from shmbroker.log.log_directory import LogDirectory
from shmbroker.log.partition_log import PartitionLog
from shmbroker.metadata.log_reader import MetadataLogReader

CLOSES: dict[type, Callable[[Any], None]] = {
    IndexFile: IndexFile.close,
    LogDirectory: LogDirectory.close,
    MetadataLogReader: MetadataLogReader.close,
    PartitionLog: PartitionLog.let_go,
}
"""What keeps descriptors as numbers, which no garbage collection closes, and how it lets go."""


@pytest.fixture(autouse=True)
def _closed_files(request: pytest.FixtureRequest) -> Iterator[None]:
    """Thousands of tests share the descriptors of one process. (A family closes its own.)"""
    if "family" in request.fixturenames:
        yield
        return
    opened: list[tuple[type, Any]] = []

    def noted(kind: type) -> Callable[..., None]:
        begin = kind.__init__

        def note(made: Any, *arguments: Any, **more: Any) -> None:
            begin(made, *arguments, **more)
            opened.append((kind, made))

        return note

    # Not the test's own `monkeypatch`, which would then outlive other fixtures.
    with pytest.MonkeyPatch.context() as patch:
        for kind in CLOSES:
            patch.setattr(kind, "__init__", noted(kind))
        yield
    for kind, made in opened:
        CLOSES[kind](made)
