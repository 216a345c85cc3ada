"""A flush that the disk refuses, and what the next one still makes durable."""

import os

import pytest

from shmbroker.errors import StorageFault
from shmbroker.log.transaction_index import AbortedTransactions
from tests.unit.broker.one_node import NOW_MS, Node, Topic, node

__all__ = ["node"]


def test_a_log_that_can_not_be_flushed_takes_nothing_from_the_next_flush_of_another(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = [node.fill(Topic(name), 5).log for name in ("t", "u")]
    for log in logs:
        log.roll(NOW_MS)
        log.recovery_point = 5  # so that only `rolled` knows of the first segment

    def refuse() -> None:
        raise StorageFault("no space")

    with monkeypatch.context() as patch:
        patch.setattr(AbortedTransactions, "write", lambda one: one is logs[1].aborted and refuse())
        with pytest.raises(StorageFault):
            node.store.flush(logs)
    assert not node.jobs
    node.store.flush(logs)
    paths = {os.readlink(f"/proc/self/fd/{fd}") for fds, _ in node.jobs for fd in fds}
    for log in logs:
        assert {log.directory, f"{log.directory}/{0:020d}.log"} <= paths
