"""A whole family on a simulated system: gateways, brokers and controllers run their real mains, and
what the supervisor does for them is done here.

    boot       data directory judged and made, shared memory, then every process
    death      state, incarnation and announcements; a successor when all have acknowledged
    hang       named by nobody here: killed after a while, as the watchdog does it
    end_all    everything dies at once; page cache and disk stay, or the power goes as well

The supervisor's own files fork and wait for pids, so that part of it is here in few words. When a
successor starts is decided by its `deaths` and `acknowledgements`; all else is the product's, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from shmbroker.broker.broker import Broker
from shmbroker.errors import Fault
from shmbroker.gateway.listener import Listener
from shmbroker.ipc.slots import CONTROLLER, IO_WORKER, NETWORK_WORKER, TIER, Slot
from shmbroker.metadata.image import MetadataImage
from shmbroker.processes import data_directory
from shmbroker.processes.acknowledgements import Acknowledgements
from shmbroker.processes.child import Child
from shmbroker.processes.controller import ControllerProcess
from shmbroker.processes.deaths import Tries
from shmbroker.processes.io_worker import IoWorker
from shmbroker.processes.network_worker import NetworkWorker
from shmbroker.processes.shared_resources import SharedResources
from shmbroker.processes.tier import TierProcess
from shmbroker.replica.partition import Partition
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.shm.counters import (
    ANNOUNCEMENTS_WORD,
    METADATA_END_OFFSET_WORD,
    STATE,
    STATE_NONE,
    STATE_RUNNING,
    STATE_STARTING,
    STATE_UNABLE,
)
from tests.simulation.family.scheduler import Killed, Process
from tests.simulation.family.system import Listening, System

SUPERVISOR_S = 0.0005
"""What the supervisor takes to see something."""
RETRY_S = 0.5
"""Before all is started again that could not boot."""
PORT = 9092


class Size(NamedTuple):
    """How many processes of each role, and the settings that differ from the defaults."""

    gateways: int
    brokers: int
    controllers: int
    settings: dict[str, str]


class Member:
    """A slot with its process, if one lives."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.process: Process | None = None
        self.child: Child | None = None
        self.starts = 0
        self.started = 0.0
        self.tries = Tries()


class Family:
    """All processes, the memory that they share, and their disk."""

    def __init__(self, system: System, size: Size, trace: Callable[[str, str], None]) -> None:
        self.system = system
        self.scheduler = system.scheduler
        self.disk = system.disk
        self.size = size
        self.trace = trace
        self.generation = 0
        """How often all of it has started."""
        self.members: dict[int, Member] = {}
        self.crashes: list[BaseException] = []
        """What processes ended with that nothing explains."""
        self.listening: list[Listening] = []
        self._hears = False
        self._shared: SharedResources | None = None

    # ── the start of all ────────────────────────────────────────────────────────────────────────

    def boot(self) -> None:
        """Start everything; a start that is refused, as a disk is full, is tried again."""
        self.generation += 1
        try:
            self._boot()
        except (Fault, OSError) as fault:
            self.trace("supervisor", f"can't start: {fault}")
            self.end_all()
            generation = self.generation
            self.scheduler.after(
                RETRY_S, lambda: self.boot() if generation == self.generation else None
            )

    def _boot(self) -> None:
        """Find, judge and make the data directory as the supervisor does, and start everything."""
        size, root = self.size, self.disk.root
        settings = {
            "shmbroker.io.workers": str(size.brokers),
            "shmbroker.controllers": str(size.controllers),
            "shmbroker.network.workers": str(size.gateways),
            "shmbroker.ring.data.bytes": str(64 << 10),
            "shmbroker.ring.control.bytes": str(64 << 10),
            "shmbroker.disk.reserve.bytes": str(1 << 20),
            "offsets.topic.num.partitions": "1",
        }
        self.config = config = BrokerConfig(settings | size.settings)
        places = config.places(root)
        first_id = config["shmbroker.node.id"]
        plan = data_directory.judge(
            data_directory.WantedNodes(places, first_id, False, size.controllers),
            [data_directory.find(place) for place in places],
            data_directory.find_others(root, places),
        )
        config.nodes, self.cluster_id = plan.nodes, plan.cluster_id
        self._shared = shared = SharedResources(
            root,
            size.gateways,
            config.nodes,
            plan.controllers,
            config["shmbroker.ring.data.bytes"],
            config["shmbroker.ring.control.bytes"],
            int(config.is_tier_enabled),
        )
        data_directory.carry_out(plan)
        self.ports = {number: ("127.0.0.1", PORT + number) for number in config.nodes}
        self.listening = [Listening(self.system, port) for _, port in self.ports.values()]
        self.listeners = [
            Listener(listening, number, False)
            for number, listening in zip(self.ports, self.listening, strict=True)
        ]
        self.words, self.at = shared.counters.words, shared.counters.at
        roles = (CONTROLLER, IO_WORKER, NETWORK_WORKER, TIER)
        slots = [slot for role in roles for slot in shared.of_role(role)]
        self.members = {slot.index: Member(slot) for slot in slots}
        self.acknowledgements = Acknowledgements(shared)
        self.acknowledgements.start(self.members)
        for member in self.members.values():
            self._start(member)

    @property
    def shared(self) -> SharedResources:
        """What the processes share, while there are some."""
        assert self._shared is not None, "there is no family now"
        return self._shared

    def end_all(self) -> None:
        """Every process dies at once, the supervisor too: what they shared is gone."""
        self.generation += 1
        for member in self.members.values():
            if member.process is not None:
                member.process.kill()
        for listening in self.listening:
            listening.close()
        if self._shared is not None:
            for doorbell in self._shared.doorbells:
                os.close(doorbell.eventfd)
            for pair in (*self._shared.passing.values(), *self._shared.passages.values()):
                for end in pair:
                    end.close()
        self.members, self.listening, self._shared = {}, [], None

    def address(self, port: int) -> bytes:
        """What a client connects to for a port."""
        if not self.listening:
            return b""
        return self.listening[list(self.ports).index(port - PORT)].path

    def look(self) -> None:
        """The supervisor hears its doorbell, and a little later tells the others."""
        if not self.members or self._hears:
            return
        try:
            os.eventfd_read(self.shared.doorbells[0].eventfd)
        except BlockingIOError:
            return
        self._hears = True
        generation = self.generation

        def tell() -> None:
            self._hears = False
            if generation == self.generation:
                self.words[ANNOUNCEMENTS_WORD] += 1
                self._ring_all()

        self.scheduler.after(SUPERVISOR_S, tell)

    # ── one process ─────────────────────────────────────────────────────────────────────────────

    def _start(self, member: Member) -> None:
        slot = member.slot
        member.starts += 1
        member.started = self.scheduler.now
        self.words[self.at(slot.index, STATE)] = STATE_STARTING
        title = f"{slot.title}#{self.generation}.{member.starts}"
        self.trace("supervisor", f"starts {title}")
        process = self.scheduler.start(
            title, lambda: self._live(member), lambda: self._on_end(member, process)
        )
        member.process = process

    def _live(self, member: Member) -> None:
        """The life of a process: what `run_child` does after the fork."""
        slot, root = member.slot, Path(self.disk.root)
        if slot.role == CONTROLLER:
            child: Child = ControllerProcess(self.shared, slot, self.config, root, self.cluster_id)
        elif slot.role == IO_WORKER:
            args = self.shared, slot, self.config, root, self.cluster_id, self.ports
            child = IoWorker(*args, self.listeners)
        elif slot.role == TIER:
            child = TierProcess(self.shared, slot, self.config, root, self.cluster_id)
        else:
            child = NetworkWorker(self.shared, slot, self.config, self.cluster_id, self.listeners)
        member.child = child
        child.run()

    def _on_end(self, member: Member, process: Process) -> None:
        """A process is dead: its sockets are closed, and the others are told."""
        self.system.release(process.title)
        member.process, member.child = None, None
        fault = process.fault
        if isinstance(fault, Killed):
            self.trace(process.title, "is killed")
        else:
            self.trace(process.title, f"ends: {fault!r}")
        if fault is not None and not isinstance(fault, Killed | Fault):
            self.crashes.append(fault)
        generation = self.generation
        index = member.slot.index
        state = self.at(index, STATE)
        can_not_boot = isinstance(fault, Fault) and self.words[state] != STATE_RUNNING
        self.words[state] = STATE_UNABLE if can_not_boot else STATE_NONE

        def tell() -> None:
            if generation != self.generation:
                return
            self.acknowledgements.on_death(index)
            self.words[ANNOUNCEMENTS_WORD] += 1
            self._ring_all()
            self.scheduler.after(delay, lambda: self._succeed(member, generation))

        delay = member.tries.restart_s(self.scheduler.now - member.started)
        self.scheduler.after(SUPERVISOR_S, tell)

    def _succeed(self, member: Member, generation: int) -> None:
        """Start a successor when all who talk to it have acknowledged the death."""
        if generation != self.generation:
            return
        index = member.slot.index
        living = [each.slot.index for each in self.members.values() if each.process is not None]
        if self.acknowledgements.late(index, living):
            self.scheduler.after(0.002, lambda: self._succeed(member, generation))
            return
        self.acknowledgements.acknowledge_for(index, living)
        self._start(member)

    # ── what is known of it ─────────────────────────────────────────────────────────────────────

    def broker(self, number: int) -> Member | None:
        """The I/O worker of a broker id; None while there is no family."""
        for member in self.members.values():
            if member.slot.role == IO_WORKER and member.slot.number == number:
                return member
        return None

    def brokers(self) -> list[Broker]:
        """Those that live."""
        members = self.members.values()
        return [each.child.broker for each in members if isinstance(each.child, IoWorker)]

    def partitions(self) -> list[Partition]:
        """All that brokers have open."""
        return [each for broker in self.brokers() for each in broker.partitions.values()]

    def led(self) -> list[Partition]:
        """Those of which the broker is the leader, by the metadata that some gateway knows."""
        image = self.image()
        found = []
        for member in self.members.values():
            if image is None or not isinstance(member.child, IoWorker):
                continue
            for partition in member.child.broker.partitions.values():
                topic = image.topics_by_id.get(partition.topic_id)
                if topic is None or not partition.is_leader:
                    continue
                if topic.partitions[partition.partition].leader_epoch == partition.leader_epoch:
                    found.append(partition)
        return found

    def log_ends(self, place: tuple[str, int]) -> list[int]:
        """Where a partition's log ends on each broker that has it open."""
        return [
            partition.log.log_end_offset
            for partition in self.partitions()
            if (partition.topic, partition.partition) == place
        ]

    def image(self) -> MetadataImage | None:
        """The metadata, if some process knows all that is committed, or may be yet: what is in the
        log of any controller."""
        committed = self.words[METADATA_END_OFFSET_WORD] if self.members else 0
        for member in self.members.values():
            controller = getattr(member.child, "controller", None)
            if controller is not None and controller.voter.log_end_offset > committed:
                return None
        for member in self.members.values():
            child = member.child
            if isinstance(child, NetworkWorker) and child.gateway.image.offset == committed:
                return child.gateway.image
        return None

    def places_others_hold(self, number: int) -> list[tuple[str, int]]:
        """Partitions of which another broker than this one has all that is committed."""
        image = self.image()
        if image is None:
            return []
        return [
            (topic.name, partition.partition)
            for topic in image.topics_by_name.values()
            for partition in topic.partitions
            if number in partition.replicas and {*partition.in_sync_replicas} - {number}
        ]

    def has_all_copies(self) -> bool:
        """Whether each replica is in sync, and has what any other has told."""
        image = self.image()
        if image is None or len(self.brokers()) < self.size.brokers:
            return False
        held: dict[tuple[bytes, int], list[Partition]] = {}
        for partition in self.partitions():
            held.setdefault((partition.topic_id, partition.partition), []).append(partition)
        for topic in image.topics_by_id.values():
            for one in topic.partitions:
                logs = held.get((topic.topic_id, one.partition), [])
                told = max((each.high_watermark for each in logs), default=0)
                whole = sum(each.log.log_end_offset >= told for each in logs)
                if whole < len(one.replicas) or len(one.in_sync_replicas) < len(one.replicas):
                    return False
        return True

    def is_held_by_others(self, number: int) -> bool:
        """Whether nothing is lost that counts if a node loses all that it has."""
        image = self.image()
        return image is not None and all(
            {*partition.in_sync_replicas} - {number}
            for topic in image.topics_by_name.values()
            for partition in topic.partitions
        )

    def _ring_all(self) -> None:
        for doorbell in self.shared.doorbells[1:]:
            doorbell.ring()
