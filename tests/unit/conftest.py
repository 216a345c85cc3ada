"""What unit tests share: files and connections that one has opened are closed when it is over."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shmbroker.client.reader.broker_client import BrokerClient
from shmbroker.log.index_file import IndexFile
from shmbroker.log.log_directory import LogDirectory
from shmbroker.log.partition_log import PartitionLog
from shmbroker.metadata.log_reader import MetadataLogReader

CLOSES: dict[type, Callable[[Any], None]] = {
    BrokerClient: BrokerClient.close,
    IndexFile: IndexFile.close,
    LogDirectory: LogDirectory.close,
    MetadataLogReader: MetadataLogReader.close,
    PartitionLog: PartitionLog.let_go,
}
"""What keeps descriptors, and how it lets go: numbers are closed by no garbage collection, and
connections by one amid another test."""


@pytest.fixture(autouse=True)
def _closed_files(request: pytest.FixtureRequest) -> Iterator[None]:
    """Thousands of tests share the descriptors of one process. (A family closes its own files.)"""
    kinds: list[type] = [BrokerClient] if "family" in request.fixturenames else list(CLOSES)
    opened: list[tuple[type, Any]] = []

    def noted(kind: type) -> Callable[..., None]:
        begin = kind.__init__

        def note(made: Any, *arguments: Any, **more: Any) -> None:
            begin(made, *arguments, **more)
            opened.append((kind, made))

        return note

    # Not the test's own `monkeypatch`, which would then outlive other fixtures.
    with pytest.MonkeyPatch.context() as patch:
        for kind in kinds:
            patch.setattr(kind, "__init__", noted(kind))
        yield
    for kind, made in opened:
        CLOSES[kind](made)
