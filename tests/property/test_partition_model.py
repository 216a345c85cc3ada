"""Partitions of three or four brokers that die, come back, fall behind, move, lose power, a log or
a disk: who leads holds all that was committed.

The model has the logs themselves: leaders append, followers copy, and what min.insync.replicas of
the ISR hold is committed. The controller's decisions, its records and the image are the real ones.
A history follows from its seed; SHMBROKER_SEEDS=first-last runs others than the usual ones.
"""

import os
import random
from typing import Any

from shmbroker.controller.decisions import configs, election, in_sync, lost_replicas, reassignment
from shmbroker.controller.decisions.cluster_state import ClusterState
from shmbroker.controller.decisions.configs import config_record
from shmbroker.controller.decisions.doubts import Doubts
from shmbroker.ids import LOST_DIRECTORY
from shmbroker.metadata.draft import applied
from shmbroker.metadata.image import (
    BROKER_RESOURCE,
    NO_LEADER,
    RECOVERING,
    TOPIC_RESOURCE,
    MetadataImage,
    PartitionImage,
)
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.settings.layers import broker_layers
from shmbroker.wire import codec

TOPIC_ID = b"t" * 16
BROKERS = (1, 2, 3, 4)
CONFIG = BrokerConfig({"shmbroker.io.workers": "4"})
ELR = "eligible.leader.replicas.version"


Log = list[tuple[int, int]]
"""(leader epoch, value) of each record."""


def common(one: Log, other: Log) -> int:
    """How many values both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


class World:
    """One partition on up to four brokers."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.image = MetadataImage("cluster")
        self.logs: dict[int, Log] = {broker_id: [] for broker_id in BROKERS}
        self.committed: Log = []
        self.disks = {broker_id: broker_id for broker_id in BROKERS}
        self.value = 0
        self.is_unclean = False
        self.is_starting = False
        self.broker_epoch = 100
        self.doubts = Doubts()
        replicas = chance.sample(BROKERS, chance.randint(1, 4))
        min_isr = str(chance.randint(1, 3))
        for broker_id in BROKERS:
            self.register(broker_id)
            self.fence(broker_id, is_fenced=False)
        partition = {
            "partition_id": 0,
            "topic_id": TOPIC_ID,
            "replicas": replicas,
            "isr": replicas,
            "leader": replicas[0],
            "leader_epoch": 0,
            "partition_epoch": 0,
            "directories": [bytes([broker_id]) * 16 for broker_id in replicas],
        }
        self.commit(
            [
                ("FeatureLevelRecord", 0, {"name": ELR, "feature_level": chance.choice([1, 1, 0])}),
                config_record(BROKER_RESOURCE, "", "min.insync.replicas", min_isr),
                ("TopicRecord", 0, {"name": "t", "topic_id": TOPIC_ID}),
                ("PartitionRecord", 2, partition),
            ]
        )

    # ── the controller ──────────────────────────────────────────────────────────────────────────

    @property
    def partition(self) -> PartitionImage:
        return self.image.topics_by_id[TOPIC_ID].partitions[0]

    def cluster(self) -> ClusterState:
        layers = broker_layers(CONFIG, {}, self.image.config(BROKER_RESOURCE, ""))
        return ClusterState(self.image, CONFIG, layers, lambda: bytes(16))

    def commit(self, records: list[Any]) -> None:
        """Through the bytes of the records, as everybody reads them."""
        was = self.image.topics_by_id.get(TOPIC_ID)
        read = []
        for offset, (name, version, message) in enumerate(records, self.image.offset):
            whole = codec.decode(name, version, codec.encode(name, version, message))[0]
            read.append((offset, 1, name, version, whole))
        self.image, _ = applied(self.image, read, self.image.offset + len(records), 1)
        if was is not None:
            self.check_step(was.partitions[0], self.partition)

    def check_step(self, was: PartitionImage, now: PartitionImage) -> None:
        assert now.leader_epoch >= was.leader_epoch
        assert now.partition_epoch >= was.partition_epoch
        if now.leader_id != was.leader_id:
            assert now.leader_epoch > was.leader_epoch
            assert now.leader_id == NO_LEADER or self.is_active(now.leader_id)
        if now != was:
            assert now.partition_epoch > was.partition_epoch
        if set(was.replicas) - set(now.replicas):
            assert now.leader_epoch > was.leader_epoch, "who was taken away is fenced"
        if self.is_starting:
            return  # who is in sync counts when all have come
        if now.in_sync_replicas != was.in_sync_replicas or now.leader_id != was.leader_id:
            log = self.logs[(*now.in_sync_replicas, *now.eligible_leader_replicas)[0]]
            if log[: len(self.committed)] != self.committed:
                assert self.is_unclean, "the new leader lacks what was committed"
                assert now.leader_recovery_state == RECOVERING
                assert now.leader_id in (*now.in_sync_replicas, NO_LEADER)
                assert len(now.in_sync_replicas) == 1
                self.committed = log[:]

    def is_active(self, broker_id: int) -> bool:
        return self.image.brokers[broker_id].is_active

    def register(self, broker_id: int) -> None:
        self.broker_epoch += 1
        directory = bytes([self.disks[broker_id]]) * 16
        self.commit(lost_replicas.begun_anew(self.cluster(), broker_id, [directory]).records)
        message = {
            "broker_id": broker_id,
            "broker_epoch": self.broker_epoch,
            "incarnation_id": bytes(16),
            "rack": None,
            "fenced": True,
            "log_dirs": [directory],
        }
        self.commit([("RegisterBrokerRecord", 3, message)])

    def fence(
        self, broker_id: int, *, is_fenced: bool, absent: frozenset[int] = frozenset()
    ) -> None:
        if is_fenced:
            changes = in_sync.broker_gone(self.cluster(), broker_id)
        else:
            changes = in_sync.broker_back(
                self.cluster(),
                broker_id,
                absent=absent,
                are_all_known=not (absent or self.doubts.unclean),
            )
        message = {
            "broker_id": broker_id,
            "broker_epoch": self.image.brokers[broker_id].broker_epoch,
            "fenced": 1 if is_fenced else -1,
        }
        registration = ("BrokerRegistrationChangeRecord", 0, message)
        self.commit([registration, *changes])

    def step(self) -> str:
        """Something happens; what."""
        chance = self.chance
        broker_id = chance.choice(BROKERS)
        replicas = chance.sample(BROKERS, chance.randint(0, 4))
        rare: list[tuple[Any, ...]] = [
            (self.reassign, replicas),
            (self.elect, chance.choice([election.PREFERRED, election.UNCLEAN])),
            (self.elect_in_time,),
            (self.change_min_isr, chance.randint(1, 3)),
            (self.allow_unclean, chance.random() < 0.2),
            (self.lose_power, set(chance.sample(BROKERS, chance.randint(0, 4)))),
            (self.lose_disk, broker_id),
            (self.lose_log, broker_id),
        ]
        often: list[tuple[Any, ...]] = [
            (self.die, broker_id),
            (self.come_back, broker_id),
            (self.append,),
            (self.copy, broker_id),
            (self.change_isr, broker_id),
        ]
        act, *arguments = chance.choice(chance.choice([rare, often, often]))
        act(*arguments)
        p = self.partition
        return (
            f"{act.__name__} {arguments}: {p.leader_id}@{p.leader_epoch} {p.replicas} "
            f"isr {p.in_sync_replicas} elr {p.eligible_leader_replicas} "
            f"{self.committed} {self.logs}"
        )

    # ── what happens ────────────────────────────────────────────────────────────────────────────

    def die(self, broker_id: int) -> None:
        if self.is_active(broker_id):
            self.fence(broker_id, is_fenced=True)

    def come_back(self, broker_id: int) -> None:
        if not self.is_active(broker_id):
            self.register(broker_id)
            self.fence(broker_id, is_fenced=False)

    def append(self) -> None:
        leader_id = self.partition.leader_id
        if leader_id != NO_LEADER and self.is_active(leader_id):
            self.value += 1
            self.logs[leader_id].append((self.partition.leader_epoch, self.value))
            self.advance()

    def copy(self, broker_id: int) -> None:
        """A follower cuts what its leader doesn't have, and copies the rest."""
        partition = self.partition
        leader_id = partition.leader_id
        if broker_id not in partition.replicas or leader_id == NO_LEADER:
            return
        if self.is_active(broker_id) and self.is_active(leader_id):
            self.logs[broker_id] = self.logs[leader_id][:]
            self.advance()

    def advance(self) -> None:
        """The high watermark: not while fewer are in sync than must be."""
        partition, cluster = self.partition, self.cluster()
        topic = self.image.topics_by_id[TOPIC_ID]
        if partition.leader_id == NO_LEADER:
            return
        if len(partition.in_sync_replicas) >= cluster.min_in_sync(topic):
            log = self.logs[partition.leader_id]
            end = min(common(self.logs[member], log) for member in partition.in_sync_replicas)
            if end > len(self.committed):
                self.committed = log[:end]

    def change_isr(self, broker_id: int) -> None:
        """The leader takes a follower out, or one that has caught up in."""
        partition = self.partition
        leader_id = partition.leader_id
        if leader_id in (NO_LEADER, broker_id) or not self.is_active(leader_id):
            return
        isr = list(partition.in_sync_replicas)
        if broker_id in isr:
            isr.remove(broker_id)
        elif self.logs[broker_id] == self.logs[leader_id]:
            isr.append(broker_id)
        wanted = {
            "partition_index": 0,
            "leader_epoch": partition.leader_epoch,
            "partition_epoch": partition.partition_epoch,
            "leader_recovery_state": 0,
            "new_isr": isr,
        }
        request = {
            "broker_id": leader_id,
            "broker_epoch": self.image.brokers[leader_id].broker_epoch,
            "topics": [{"topic_id": TOPIC_ID, "partitions": [wanted]}],
        }
        records, _ = in_sync.alter_partition(request, 2, self.cluster())
        self.commit(records)
        self.advance()

    def reassign(self, replicas: list[int]) -> None:
        """None cancel what is under way."""
        partition = {"partition_index": 0, "replicas": replicas or None}
        request = {"topics": [{"name": "t", "partitions": [partition]}]}
        records, _ = reassignment.alter_partition_reassignments(request, 0, self.cluster())
        self.commit(records)
        self.advance()

    def elect(self, kind: int) -> None:
        if kind == election.UNCLEAN and not self.is_unclean:
            return
        request = {"election_type": kind, "topic_partitions": None}
        records, _ = election.elect_leaders(request, 2, self.cluster())
        self.commit(records)

    def elect_in_time(self) -> None:
        self.commit(election.preferred_leaders(self.cluster()))
        self.commit(election.unclean_leaders(self.cluster()))

    def change_min_isr(self, count: int) -> None:
        self.configure("min.insync.replicas", str(count))

    def allow_unclean(self, is_unclean: bool) -> None:
        self.is_unclean = is_unclean
        self.configure("unclean.leader.election.enable", str(is_unclean).lower())

    def configure(self, key: str, value: str) -> None:
        config = {"name": key, "config_operation": 0, "value": value}
        resource = {"resource_type": TOPIC_RESOURCE, "resource_name": "t", "configs": [config]}
        request = {"resources": [resource], "validate_only": False}
        records, _ = configs.incremental_alter_configs(request, self.image, CONFIG)
        self.commit(records)

    def lose_power(self, clean: set[int]) -> None:
        """All end at once, and who isn't in `clean` may have lost its last records, or its disk.
        What is left anywhere of what was committed is left in the end."""
        partition, chance = self.partition, self.chance
        holders = [*partition.in_sync_replicas, *partition.eligible_leader_replicas]
        for broker_id in sorted(set(BROKERS) - clean):
            log = self.logs[broker_id]
            del log[chance.randint(0, len(log)) :]
            if broker_id in holders and len(holders) > 1 and chance.random() < 0.3:
                holders.remove(broker_id)
                self.replace_disk(broker_id)
        told = [
            other
            for other in partition.replicas
            if self.has_its_disk(other)
            and partition.directory(other) != LOST_DIRECTORY
            and other in holders
        ]
        left = max(common(self.logs[other], self.committed) for other in told)
        del self.committed[left:]
        self.is_starting = True
        pending = set(BROKERS)
        for broker_id in chance.sample(BROKERS, len(BROKERS)):
            self.register(broker_id)
            self.doubts.note(broker_id, broker_id in clean)
            pending.discard(broker_id)
            if broker_id in clean:
                self.fence(broker_id, is_fenced=False, absent=frozenset(pending))
            self.commit(self.doubts.withdrawn(self.cluster()))
        for broker_id in sorted(set(BROKERS) - clean):
            assert not self.doubts.can_be_settled(pending, True)
            ends, epochs = self.ends(broker_id), self.epochs(broker_id)
            self.doubts.tell(broker_id, [((TOPIC_ID, 0), ends, epochs)], True)
        if set(BROKERS) - clean:
            assert self.doubts.can_be_settled(pending, True)
            decided = self.doubts.settle(self.cluster(), pending)
            assert decided.brokers == sorted(set(BROKERS) - clean) and not decided.waiting
            unfencing = [
                {
                    "broker_id": broker_id,
                    "broker_epoch": self.image.brokers[broker_id].broker_epoch,
                    "fenced": -1,
                }
                for broker_id in decided.brokers
            ]
            self.commit(
                [
                    *decided.records,
                    *(("BrokerRegistrationChangeRecord", 0, message) for message in unfencing),
                ]
            )
        self.doubts = Doubts()
        self.is_starting = False

    def ends(self, broker_id: int) -> tuple[int, int]:
        log = self.logs[broker_id]
        return (log[-1][0] if log else -1), len(log)

    def epochs(self, broker_id: int) -> tuple[tuple[int, int], ...]:
        starts: dict[int, int] = {}
        for offset, (epoch, _) in enumerate(self.logs[broker_id]):
            starts.setdefault(epoch, offset)
        return tuple(starts.items())

    def has_its_disk(self, broker_id: int) -> bool:
        return self.image.brokers[broker_id].directories == (bytes([self.disks[broker_id]]) * 16,)

    def replace_disk(self, broker_id: int) -> None:
        self.logs[broker_id] = []
        self.disks[broker_id] += 16

    def others_hold(self, broker_id: int) -> bool:
        """Whether somebody else is in sync or eligible: else what was committed is just lost."""
        partition = self.partition
        holders = {*partition.in_sync_replicas, *partition.eligible_leader_replicas}
        return bool(holders - {broker_id}) and self.disks[broker_id] < 200

    def lose_disk(self, broker_id: int) -> None:
        """A broker is down, and comes back with another disk."""
        if self.others_hold(broker_id):
            self.die(broker_id)
            self.replace_disk(broker_id)
            self.come_back(broker_id)
            assert broker_id not in (
                self.partition.leader_id,
                *self.partition.in_sync_replicas,
                *self.partition.eligible_leader_replicas,
            )

    def lose_log(self, broker_id: int) -> None:
        """A broker finds that a log ends before its checkpoints."""
        topic, partition = self.image.topics_by_id[TOPIC_ID], self.partition
        if self.others_hold(broker_id) and self.is_active(broker_id):
            log = self.logs[broker_id]
            del log[self.chance.randint(0, len(log)) :]
            lacking = {broker_id: self.ends(broker_id)}
            message = lost_replicas.on_lack(self.cluster(), topic, partition, broker_id, lacking)
            self.commit([("PartitionChangeRecord", 2, message)] if message else [])
            assert broker_id not in self.partition.in_sync_replicas

    # ── what always holds ───────────────────────────────────────────────────────────────────────

    def replicas_fit_together(self) -> None:
        partition = self.partition
        replicas, isr = set(partition.replicas), set(partition.in_sync_replicas)
        elr = set(partition.eligible_leader_replicas)
        assert partition.leader_id == NO_LEADER or partition.leader_id in isr
        assert len(replicas) == len(partition.replicas) == len(partition.directories) > 0
        assert isr <= replicas and len(isr) == len(partition.in_sync_replicas)
        assert elr <= replicas and not elr & isr
        assert set(partition.adding_replicas) | set(partition.removing_replicas) <= replicas
        for broker_id in replicas:
            directory = partition.directory(broker_id)
            assert directory in (LOST_DIRECTORY, bytes([self.disks[broker_id]]) * 16)
            assert directory != LOST_DIRECTORY or broker_id not in isr | elr
        if partition.leader_id != NO_LEADER and self.is_active(partition.leader_id):
            assert all(map(self.is_active, isr))
        else:
            assert not any(map(self.is_active, isr | elr)), "somebody could lead"

    def who_may_lead_holds_all_that_was_committed(self) -> None:
        partition = self.partition
        holders = (*partition.in_sync_replicas, *partition.eligible_leader_replicas)
        assert holders
        for broker_id in holders:
            assert self.logs[broker_id][: len(self.committed)] == self.committed


def test_histories() -> None:
    first, last = map(int, os.environ.get("SHMBROKER_SEEDS", "1-60").split("-"))
    for seed in range(first, last + 1):
        chance = random.Random(seed)
        world = World(chance)
        steps = []
        try:
            for _ in range(60):
                steps.append(world.step())
                world.replicas_fit_together()
                world.who_may_lead_holds_all_that_was_committed()
        except AssertionError:
            print(f"SHMBROKER_SEEDS={seed}-{seed}:", *steps, sep="\n")
            raise
