"""What unit tests share: the logs that one has opened are closed when it is over."""

from collections.abc import Iterator
from typing import Any

import pytest

from shmbroker.log.partition_log import PartitionLog


@pytest.fixture(autouse=True)
def _closed_logs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Thousands of tests share the descriptors of one process. (A family closes its own.)"""
    if "family" in request.fixturenames:
        yield
        return
    opened: list[PartitionLog] = []
    begin = PartitionLog.__init__

    def note(log: PartitionLog, *arguments: Any, **more: Any) -> None:
        begin(log, *arguments, **more)
        opened.append(log)

    # Not the test's own `monkeypatch`, which would then outlive other fixtures.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartitionLog, "__init__", note)
        yield
    for log in opened:
        log.let_go()
