"""A family with three replicas that is hurt all the time, and the clients that are killed with it.

`Weather` draws, each few seconds, one of these from its seed: kill -9 of a child of any role, or of
several at once; SIGSTOP of some for a moment; kill -9 of the whole family, which is started again;
kill -9 or SIGSTOP of a client. A client whose process ends is started again, whatever ended it. Now
and then a second one is started under the name of one that stands still, which makes the first a
zombie when it goes on: its transactional id has been taken from it.
"""

import os
import re
import signal
import subprocess
import threading
from collections import Counter
from pathlib import Path
from random import Random

from shmbroker import clock
from shmbroker.testing.broker import Broker
from tests.support.waiting import wait_until

FLAGS = (
    "--replicas", "3", "--controllers", "3",
    "--set", "broker.session.timeout.ms=1500",
    "--set", "group.initial.rebalance.delay.ms=0",
    "--set", "offsets.topic.num.partitions=4",
    "--set", "transaction.state.log.num.partitions=4",
    # so that there is something to compact all the time, and a cleaner that can be killed
    "--set", "log.roll.ms=10000",
    "--set", "log.cleaner.min.cleanable.ratio=0.1",
    "--set", "log.cleaner.backoff.ms=1000",
)  # fmt: skip
WEIGHTS = {"io": 5, "network": 2, "controller": 2, "cleaner": 4}
PAUSE_S_MAX = 4.0
START_S = 180.0
ENDED = re.compile(r"(\S+) \(pid \d+\) ended with (?!signal 9)")


class Instance:
    """A client's process that is started again whenever it ends; `log`: what it printed."""

    def __init__(self, name: str, command: list[str], directory: Path) -> None:
        self.name = name
        self.command = command
        self.log = directory / f"{name}.log"
        self.starts = 0
        self.zombies: list[subprocess.Popen[bytes]] = []
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT)
        self.starts += 1

    def look(self) -> None:
        """Start it again if it has ended."""
        if self.process.poll() is not None:
            self.start()
        self.zombies = [each for each in self.zombies if each.poll() is None]

    def replace(self) -> None:
        """Another one in its place; it itself may still be there."""
        self.zombies.append(self.process)
        self.start()

    def end(self) -> None:
        """SIGTERM, which every client here takes as: close and go."""
        for process in (self.process, *self.zombies):
            send(process.pid, signal.SIGCONT)
            process.terminate()
        for process in (self.process, *self.zombies):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def crashes(log: str) -> list[object]:
    """Lines of a family's log that tell of an end that nobody meant."""
    return [line for line in log.splitlines() if ENDED.search(line) or line.startswith("Traceback")]


def send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


class Weather:
    """Faults from `begin` to `end`; `counts`: how often what was done to whom."""

    def __init__(
        self,
        broker: Broker,
        instances: list[Instance],
        random: Random,
        pause_s: tuple[float, float] = (0.5, 4.0),
        client_share: float = 0.2,
        has_zombies: bool = True,
    ) -> None:
        self.broker = broker
        self.instances = instances
        self.random = random
        self.pause_s = pause_s
        self.client_share = client_share
        self.has_zombies = has_zombies
        """Whether two clients of one name can live at once: not where they listen on a port."""
        self.counts: Counter[str] = Counter()
        self.logs: list[str] = []
        self.said: list[str] = []
        self.fault: BaseException | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        self.began = clock.monotonic()
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """As long as it does its work."""
        deadline = self.began + seconds
        while self._thread.is_alive() and clock.monotonic() < deadline:
            clock.sleep(0.1)

    def end(self) -> None:
        """It goes on: everything that stands still, and the family if it was just killed."""
        self._is_over.set()
        self._thread.join()
        if self.fault is not None:
            raise self.fault
        for pid in self.broker.children().values():
            send(pid, signal.SIGCONT)
        for instance in self.instances:
            for process in (instance.process, *instance.zombies):
                send(process.pid, signal.SIGCONT)
            instance.look()

    @property
    def log(self) -> str:
        """What all starts of the family printed."""
        return "".join(self.logs) + self.broker.log

    def _run(self) -> None:
        try:
            while not self._is_over.wait(self.random.uniform(*self.pause_s)):
                for instance in self.instances:
                    instance.look()
                self._do_one()
        except BaseException as fault:
            self.fault = fault

    def _do_one(self) -> None:
        draw = self.random.random()
        if self.instances and draw < self.client_share:
            self._hurt_client()
        elif draw > 0.96:
            self._say("kill -9", ["family"])
            self.broker.kill()
            self.logs.append(self.broker.log)
            self._is_over.wait(self.random.uniform(0, 2))
            self.broker.launch()
            wait_until(lambda: self.broker.address, "the family to be ready again", START_S)
        else:
            self._hurt_children()

    def _hurt_children(self) -> None:
        children = sorted(self.broker.children().items())
        weights = [WEIGHTS.get(title.split("-")[0], 1) for title, _ in children]
        count = self.random.choice((1, 1, 1, 1, 2, 3))
        chosen = dict(self.random.choices(children, weights, k=count))
        roles = [title.split("-")[0] for title in chosen]
        if self.random.random() < 0.7:
            self._say("kill -9", roles)
            for pid in chosen.values():
                send(pid, signal.SIGKILL)
        else:
            self._say("SIGSTOP", roles)
            for pid in chosen.values():
                send(pid, signal.SIGSTOP)
            self._is_over.wait(self.random.uniform(0.1, PAUSE_S_MAX))
            for pid in chosen.values():
                send(pid, signal.SIGCONT)

    def _hurt_client(self) -> None:
        instance = self.random.choice(self.instances)
        draw = self.random.random()
        if draw < 0.6:
            self._say("kill -9", ["client"])
            send(instance.process.pid, signal.SIGKILL)
            instance.process.wait()
            instance.start()
            return
        stopped = instance.process.pid
        send(stopped, signal.SIGSTOP)
        if draw < 0.8 and self.has_zombies:
            self._say("zombie", ["client"])
            instance.replace()
        else:
            self._say("SIGSTOP", ["client"])
        self._is_over.wait(self.random.uniform(1, 2 * PAUSE_S_MAX))
        send(stopped, signal.SIGCONT)

    def _say(self, what: str, whom: list[str]) -> None:
        for one in whom:
            self.counts[f"{what} {one}"] += 1
        self.said.append(f"{clock.monotonic() - self.began:.1f} {what} {', '.join(whom)}")
