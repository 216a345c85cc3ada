"""Backups of running families."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shmbroker.backup import manifest
from shmbroker.backup.asking import FamilyClient
from shmbroker.backup.restoring import restore
from shmbroker.backup.taking import Taken, Taking
from shmbroker.backup.target import open_target
from shmbroker.client.reader.asking import Consumer as Asking
from shmbroker.testing.broker import Broker
from shmbroker.tools.log_verify import verify
from tests.support.acknowledged_load import batch_now
from tests.support.raw_client import RawClient

SMALL: Any = {"segment_bytes": "1048576", "file_delete_delay_ms": "0"}
OFTEN = ("--set", "log.retention.check.interval.ms=100")


def take(
    broker: Broker, target: str | Path, before_cut: Callable[[], object] | None = None
) -> Taken:
    """A backup; `before_cut` runs between the finished segments and the cut."""

    class Client(FamilyClient):
        def cut(self, firsts):  # type: ignore[no-untyped-def]
            if before_cut is not None:
                before_cut()
            return super().cut(firsts)

    with Client(Asking(broker.address), str(broker.data)) as client:
        return Taking(client, open_target(str(target), None, None), client.cluster_id()).run()


def put_back(target: str | Path, data: Path, replicas: int | None = None) -> manifest.Backup:
    """Restore the latest; all that is there is right."""
    store = open_target(str(target), None, None)
    backup = manifest.load(store, manifest.names(store)[-1])
    restore(store, backup, str(data), replicas)
    assert [each.fault for each in verify(str(data)) if each.fault] == []
    return backup


@contextmanager
def filled_family() -> Iterator[tuple[Broker, RawClient]]:
    """A topic of some segments."""
    with Broker(*OFTEN) as broker, RawClient(broker.address) as client:
        client.create_topic("filled", **SMALL)
        fill(client, 5)
        yield broker, client


def fill(client: RawClient, count: int) -> None:
    """That many more segments."""
    for _ in range(count):
        assert client.produce("filled", batch_now(*[b"v" * 150_000] * 4))["error_code"] == 0
