"""How `bench` sends where the client library has no more room."""

from collections.abc import Callable
from types import SimpleNamespace

from shmbroker.cli import bench


class Full:
    """A client library that takes so many records, and delivers them when it is polled."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.waiting: list[Callable[[object, object], None]] = []

    def __len__(self) -> int:
        return len(self.waiting)

    def produce(
        self, _topic: str, _value: bytes, on_delivery: Callable[[object, object], None]
    ) -> None:
        if len(self.waiting) == self.room:
            raise BufferError("Local: Queue full")
        self.waiting.append(on_delivery)

    def poll(self, _wait_s: float) -> None:
        waiting, self.waiting = self.waiting, []
        for deliver in waiting:
            deliver(None, SimpleNamespace(latency=lambda: 0.0))

    def flush(self, _wait_s: float) -> int:
        self.poll(0)
        return 0


def test_what_finds_no_room_is_sent_when_there_is_some() -> None:
    figures = bench._produce(Full(7), "t", 100, 10)  # type: ignore[arg-type]
    assert figures["records"] == 100
