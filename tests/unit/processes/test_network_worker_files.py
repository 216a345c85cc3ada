"""A read that names a file whose descriptor is not here: asked for, or gone."""

from typing import Any

from shmbroker.ipc.operation_layout import DROP_FILE, NEED_FILE, TOKEN
from shmbroker.processes.network_worker import NetworkWorker
from shmbroker.wire.error_codes import NOT_LEADER_OR_FOLLOWER

FILE = 7


class Peer:
    slot = 3

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes]] = []

    def send(self, operation: int, payload: bytes) -> None:
        self.sent.append((operation, payload))


class Fetch:
    """Misses FILE for every read."""

    def __init__(self) -> None:
        self.failed: list[tuple[Any, int]] = []

    def on_read_done(self, *_: Any) -> list[int]:
        return [FILE]

    def on_failed(self, request: Any, error: int) -> None:
        self.failed.append((request, error))


class Files:
    def __init__(self) -> None:
        self.dropped: list[int] = []

    def drop(self, file_id: int) -> None:
        self.dropped.append(file_id)


class Request:
    class connection:
        is_closed = False


def worker_with(peer: Peer) -> Any:
    """The parts that reads go through."""
    worker: Any = NetworkWorker.__new__(NetworkWorker)
    worker.fetch = Fetch()
    worker.files = {peer.slot: Files()}
    worker.asked_files = set()
    worker.unread = []
    worker.touched = set()
    return worker


def test_fetch_of_a_file_that_is_deleted_meanwhile_is_answered() -> None:
    peer, other = Peer(), Peer()
    worker = worker_with(peer)
    request = Request()
    worker._finish_read(request, peer, memoryview(b"result"), 0, 6)
    assert peer.sent == [(NEED_FILE, TOKEN.pack(FILE))]
    worker._take_other(peer, DROP_FILE, memoryview(TOKEN.pack(FILE + 1)), 0, TOKEN.size)
    assert worker.fetch.failed == []
    other.slot = 4
    worker.files[4] = Files()
    worker._take_other(other, DROP_FILE, memoryview(TOKEN.pack(FILE)), 0, TOKEN.size)
    assert worker.fetch.failed == []
    worker._take_other(peer, DROP_FILE, memoryview(TOKEN.pack(FILE)), 0, TOKEN.size)
    assert worker.fetch.failed == [(request, NOT_LEADER_OR_FOLLOWER)]
    assert worker.unread == []
    assert worker.touched == {request.connection}
