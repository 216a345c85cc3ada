"""A store in memory that fails, or dies, where a test says so."""

from collections.abc import Iterable, Iterator

from shmbroker.tier.object_store import MissingFault, StoreFault


class Killed(Exception):
    """The process was killed here."""


class MemoryStore:
    """Objects in a dict. `steps_left`: so many changes are made, then the process is dead."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.steps_left = 1 << 30
        self.is_down = False
        self.gets: list[tuple[str, int, int]] = []

    def _step(self) -> None:
        if self.is_down:
            raise StoreFault("the store is down")
        if not self.steps_left:
            raise Killed
        self.steps_left -= 1

    def put_file(self, key: str, path: str, size: int) -> None:
        with open(path, "rb") as file:
            self.put(key, file.read(size))

    def put(self, key: str, data: bytes) -> None:
        self._step()
        self.objects[key] = bytes(data)

    def get(self, key: str, start: int = 0, length: int = -1) -> bytes:
        if self.is_down:
            raise StoreFault("the store is down")
        if key not in self.objects:
            raise MissingFault(key)
        self.gets.append((key, start, length))
        data = self.objects[key]
        return data[start:] if length < 0 else data[start : start + length]

    def list_objects(self, prefix: str) -> Iterator[tuple[str, int]]:
        if self.is_down:
            raise StoreFault("the store is down")
        for key in sorted(self.objects):
            if key.startswith(prefix):
                yield key, len(self.objects[key])

    def list_directories(self, prefix: str) -> Iterator[str]:
        if self.is_down:
            raise StoreFault("the store is down")
        found = {key[len(prefix) :].split("/")[0] for key in self.objects if key.startswith(prefix)}
        yield from sorted(found)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._step()
            self.objects.pop(key, None)

    def sweep(self, prefix: str) -> None:
        pass
