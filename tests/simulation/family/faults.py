"""What may go wrong in a simulated family, at random:

kill      a process, between two turns or amid one, at any system call
hang      a process, for so short that nobody notices, or longer
freeze    a broker, until others lead what it led
slow      turns of a process take a thousand times as long
jump      the wall clock, forwards or backwards
end       all processes at once: memory is lost, the page cache is not
cut       the power: what was not flushed is lost in part, sectors are torn (acks wait for the
          disk then: `shmbroker.ack.durability`)
full      a node's disk has no room
refuse    a node's disk refuses to write or to flush; its broker is started again after that
unread    a node's disk refuses to read, a few times
lose      a broker is killed and its copy of a partition is gone, or all are, and a directory of
          a node is empty when they start; not the only copy in sync, and not before what was
          lost last is there again
leave     a client's connections end
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from shmbroker.ipc.slots import IO_WORKER
from shmbroker.log.file_names import META_PROPERTIES
from tests.simulation.family.family import Family, Member
from tests.simulation.family.network import Network
from tests.simulation.family.scheduler import CALL_S

QUICK = frozenset(("kill", "kill_amid", "end", "cut", "leave"))
"""Faults after which a process starts again at once."""
HARMLESS = ("jump", "leave")
"""Faults that no process suffers from: what is promised where nothing fails holds all the same."""


def kinds_of(is_whole: bool, is_durable: bool) -> list[str]:
    """All that may happen to such a family; what is named more often is more frequent."""
    kinds = ["kill", "kill", "kill_amid", "hang", "slow", "jump", "leave", "fill", "refuse"]
    kinds += ["unread"]
    kinds += ["end", "freeze"]
    if is_whole:
        kinds += ["lose"]
    if is_durable:
        kinds += ["cut", "cut", "cut"]
    return kinds


class Faults:
    """`go_on_each` begins, and `heal` ends it. kinds: names of the methods below. on_jump: told
    that the wall clock has jumped."""

    def __init__(
        self,
        family: Family,
        network: Network,
        random: Random,
        kinds: Sequence[str],
        on_jump: Callable[[], None],
    ) -> None:
        self._family = family
        self._network = network
        self._random = random
        self._kinds = kinds
        self._on_jump = on_jump
        self._trace = family.trace
        self._scheduler = family.scheduler
        self._disk = family.disk
        self._size = family.size
        self.counts: dict[str, int] = {}
        """How often each has happened."""
        self.has_lost = False
        """Whether a copy is lost."""
        self.loses_often = False
        """Whether more than one is lost, one at a time."""
        self._is_healing = False

    def go_on_each(self, seconds: float) -> None:
        """Have one happen in so many seconds on average, until `heal`."""

        def strike() -> None:
            if not self._is_healing:
                self._strike()
                self.go_on_each(seconds)

        self._scheduler.after(self._random.expovariate(1 / seconds), strike)

    def _strike(self) -> None:
        name = self._random.choice(self._kinds)
        self.counts[name] = self.counts.get(name, 0) + 1
        getattr(self, name)()

    def heal(self) -> None:
        """Nothing fails any more, and what goes on failing ends."""
        self._is_healing = True
        self._disk.full.clear()
        self._disk.failing.clear()
        self._disk.unreadable.clear()
        for member in self._family.members.values():
            if member.process is not None:
                member.process.calls_left = -1
                member.process.pause_until = 0.0
                member.process.call_s = CALL_S
        nodes = range(1, self._size.brokers + 1)
        if not all((Path(self._disk.root) / f"node-{n}" / META_PROPERTIES).exists() for n in nodes):
            self.end()  # as the log lines of the process ask its operator

    # ── each of them ────────────────────────────────────────────────────────────────────────────

    def kill(self) -> None:
        victim = self._victim()
        if victim is not None and victim.process is not None:
            self._trace("kill", victim.process.title)
            victim.process.kill()

    def kill_amid(self) -> None:
        victim = self._victim()
        if victim is not None and victim.process is not None:
            victim.process.calls_left = self._random.randrange(60)
            self._trace("kill", f"{victim.process.title} after {victim.process.calls_left} calls")

    def hang(self) -> None:
        victim = self._victim()
        if victim is not None and victim.process is not None:
            seconds = self._random.choice((0.01, 0.1, 0.5, 1.5, 3.0))
            victim.process.pause_until = self._scheduler.now + seconds
            self._trace("hang", f"{victim.process.title} for {seconds} s")

    def freeze(self) -> None:
        """A broker hangs until others lead what it led, and wakes up believing that it does."""
        number = self._random.randrange(1, self._size.brokers + 1)
        broker = self._family.broker(number)
        if broker is not None and broker.process is not None:
            seconds = self._random.uniform(1.6, 3.0)
            broker.process.pause_until = self._scheduler.now + seconds
            self._trace("freeze", f"{broker.process.title} for {seconds:.1f} s")

    def slow(self) -> None:
        victim = self._victim()
        if victim is None or victim.process is None:
            return
        process = victim.process
        process.call_s = CALL_S * self._random.choice((50, 1000))
        self._trace("slow", f"{process.title}: {process.call_s * 1000:.1f} ms for a call")

        def end() -> None:
            process.call_s = CALL_S

        self._scheduler.after(self._random.uniform(0.1, 1.0), end)

    def jump(self) -> None:
        seconds = self._random.choice((-3600.0, -1.0, 1.0, 3600.0))
        self._scheduler.wall_ahead_s += seconds
        self._on_jump()
        self._trace("jump", f"the wall clock by {seconds} s")

    def leave(self) -> None:
        clients = [client for client in self._network.clients if not client.is_over]
        if clients:
            client = self._random.choice(clients)
            self._trace("leave", client.name)
            client.disconnect()

    def fill(self) -> None:
        place = f"node-{self._random.randrange(1, self._size.brokers + 1)}"
        self._trace("full", place)
        self._disk.full.add(place)
        self._scheduler.after(
            self._random.uniform(0.1, 1.5), lambda: self._disk.full.discard(place)
        )

    def refuse(self) -> None:
        number = self._random.randrange(1, self._size.brokers + 1)
        self._trace("refuse", f"node-{number}")
        self._disk.failing[f"node-{number}"] = self._random.randrange(1, 3)

        def end() -> None:
            self._disk.failing.clear()
            broker = self._family.broker(number)
            if broker is not None and broker.process is not None:
                broker.process.kill()

        self._scheduler.after(self._random.uniform(0.1, 1.0), end)

    def unread(self) -> None:
        place = f"node-{self._random.randrange(1, self._size.brokers + 1)}"
        self._trace("unread", place)
        self._disk.unreadable[place] = self._random.randrange(1, 4)
        self._scheduler.after(self._random.uniform(0.1, 1.0), self._disk.unreadable.clear)

    def lose(self) -> None:
        """What others have is lost: a partition's directory, or that of a node."""
        if self.has_lost and not self._may_lose_again():
            return
        number = self._random.randrange(1, self._size.brokers + 1)
        places = self._family.places_others_hold(number)
        broker = self._family.broker(number)
        if not places or broker is None or broker.process is None:
            return
        node = Path(self._disk.root) / f"node-{number}"
        if self._random.random() < 0.5:
            topic, partition = self._random.choice(places)
            self.has_lost = True
            self._trace("lose", f"{topic}-{partition} of node-{number}")
            broker.process.kill()
            shutil.rmtree(node / f"{topic}-{partition}", ignore_errors=True)
        elif self._size.controllers == 3 and self._family.is_held_by_others(number):
            self.has_lost = True
            self._trace("lose", f"all are killed, and node-{number} is empty")
            self._family.end_all()
            shutil.rmtree(node)
            self._family.boot()

    def end(self) -> None:
        self._trace("end", "all are killed")
        self._family.end_all()
        self._family.boot()

    def _may_lose_again(self) -> bool:
        return self.loses_often and self._family.has_all_copies()

    def cut(self) -> None:
        self._family.end_all()
        self._trace("cut", f"power: {self._disk.cut_power(self._random)}")
        self._family.boot()

    def _victim(self) -> Member | None:
        """A process that lives; one in two is a broker's, as there are more ways to die there."""
        alive = [one for one in self._family.members.values() if one.process is not None]
        brokers = [one for one in alive if one.slot.role == IO_WORKER]
        kinds = brokers if brokers and self._random.random() < 0.5 else alive
        return self._random.choice(kinds) if kinds else None
