"""Kafka Connect's exactly-once source: distributed workers that copy lines of files into OUT."""

import json
import threading
import urllib.request
from pathlib import Path

from shmbroker import clock
from shmbroker.testing.broker import free_ports
from tests.exactly_once.java import java
from tests.exactly_once.records import Place, Record
from tests.exactly_once.topics import IN, OUT
from tests.support.waiting import wait_until

FILES = 6
TURN_S = 0.05
START_S = 90.0


class Lines:
    """Appends `rate` lines a second to the files: 0, 1, 2, … to each."""

    def __init__(self, directory: Path, rate: int) -> None:
        self.paths = [directory / f"lines-{number}" for number in range(FILES)]
        self.files = [path.open("w") for path in self.paths]
        self.rate = rate
        self.written = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began = clock.monotonic()
        while not self._is_over.wait(TURN_S):
            due = int((clock.monotonic() - began) * self.rate)
            for number in range(self.written, due):
                self.files[number % FILES].write(f"{number // FILES}\n")
            self.written = due
            for file in self.files:
                file.flush()

    def finish(self) -> dict[Place, list[Record]]:
        """All that was written, as if it were partitions of IN."""
        self._is_over.set()
        self._thread.join()
        for file in self.files:
            file.close()
        return {
            (IN, number): [
                (offset, str(path), line)
                for offset, line in enumerate(path.read_text().splitlines())
            ]
            for number, path in enumerate(self.paths)
        }


def command(address: str, name: str, directory: Path) -> list[str]:
    """A worker."""
    settings = directory / f"{name}.properties"
    port = free_ports(1)
    settings.write_text(
        f"""bootstrap.servers={address}
group.id=eos-connect
exactly.once.source.support=enabled
config.storage.topic=eos-connect-configs
offset.storage.topic=eos-connect-offsets
status.storage.topic=eos-connect-status
config.storage.replication.factor=3
offset.storage.replication.factor=3
status.storage.replication.factor=3
offset.storage.partitions=3
status.storage.partitions=1
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
listeners=http://127.0.0.1:{port}
rest.advertised.host.name=127.0.0.1
session.timeout.ms=6000
heartbeat.interval.ms=2000
scheduled.rebalance.max.delay.ms=1000
task.shutdown.graceful.timeout.ms=2000
connector.client.config.override.policy=All
"""
    )
    (directory / f"{name}.port").write_text(str(port))
    return java("org.apache.kafka.connect.cli.ConnectDistributed", str(settings))


def restart_failed(name: str, directory: Path) -> bool:
    """Have tasks that failed go on, which Connect leaves to its operator: as when the whole family
    was away for longer than a transaction may last. Whether the worker was there."""
    port = (directory / f"{name}.port").read_text()
    where = f"http://127.0.0.1:{port}/connectors/lines/restart?includeTasks=true&onlyFailed=true"
    request = urllib.request.Request(where, b"", {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30):
            return True
    except OSError:
        return False


def begin(name: str, directory: Path) -> None:
    """Create the connector, as soon as a worker takes it."""
    port = (directory / f"{name}.port").read_text()
    config = {
        "connector.class": "LineSource",
        "tasks.max": "2",
        "topic": OUT,
        "files": ",".join(str(directory / f"lines-{number}") for number in range(FILES)),
        "exactly.once.support": "required",
        "transaction.boundary": "poll",
        "producer.override.transaction.timeout.ms": "60000",
    }

    def is_taken() -> bool:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/connectors/lines/config",
            json.dumps(config).encode(),
            {"Content-Type": "application/json"},
            method="PUT",
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return bool(answer.status in (200, 201))
        except OSError:
            clock.sleep(0.5)
            return False

    wait_until(is_taken, "a Connect worker", START_S)
