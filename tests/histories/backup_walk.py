"""A seeded walk over a family that is backed up, restored and compared with what was acknowledged.

Three brokers; topics with one and with three replicas. Steps write records, transactions and
committed offsets, delete records, topics and replicas, make them again, add partitions, change
`cleanup.policy`, let leaders change, kill brokers. Now and then a backup is taken; other steps come
in its middle: between the finished segments and the cut, and between the cut and the metadata.
Some backups are killed, some objects removed or damaged.

Then the latest one is restored, served, and read with a real client. What must hold:

   each record that was acknowledged before the cut is there, at its offset, with its value, and
   nothing else is: where retention deletes, all from the log start on; where logs are compacted,
   now or before, the newest of each key, and no key is back that had been deleted
   a committed offset is not beyond the log that it is about
   the files are right by `log verify`, the backup by `backup verify`
"""

from __future__ import annotations

import random
import shutil
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from shmbroker.backup import manifest
from shmbroker.backup.asking import FamilyClient
from shmbroker.backup.restoring import restore
from shmbroker.backup.taking import Taking, prune
from shmbroker.backup.target import open_target
from shmbroker.backup.verifying import verify as check
from shmbroker.client.faults import ClusterFault
from shmbroker.client.reader.asking import Consumer as Asking
from shmbroker.testing.broker import QUICK, Broker
from shmbroker.tools.log_verify import verify
from tests.support.acknowledged_load import IMPATIENT

FLAGS = (
    *QUICK,
    *("--replicas", "3"),
    *("--set", "log.retention.check.interval.ms=100"),
    *("--set", "log.cleaner.backoff.ms=100"),
    *("--set", "offsets.topic.num.partitions=3"),
    *("--set", "transaction.state.log.num.partitions=3"),
)
SETTINGS = {
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "0",
    "delete.retention.ms": "0",
}
TOPICS = ("a", "b", "c")
KEYS = 12
VALUE_BYTES = 60_000


class Written(NamedTuple):
    """One record that was sent."""

    key: bytes
    value: bytes | None


class Known:
    """What is known of one partition."""

    def __init__(self) -> None:
        self.acked: dict[int, Written] = {}
        """By offset."""
        self.sent: set[Written] = set()
        self.log_start = 0
        self.has_been_compacted = False

    def copy(self) -> Known:
        made = Known()
        made.acked, made.sent = dict(self.acked), self.sent
        made.log_start, made.has_been_compacted = self.log_start, self.has_been_compacted
        return made


class Walk:
    """One family and one place of backups; `events` tells what was done."""

    def __init__(self, seed: int, root: Path, target: str, endpoint: str | None = None) -> None:
        self.random = random.Random(seed)
        self.root = root
        self.target = target
        self.store = open_target(target, endpoint, None)
        self.broker = Broker(*FLAGS)
        self.events: list[str] = []
        self.faults: list[str] = []
        self.topics: dict[str, list[Known]] = {}
        self.at_cut: dict[str, list[Known]] = {}
        self.backups = 0
        self.count = 0
        self._settings = {"bootstrap.servers": self.broker.address, "log_level": 0}
        self.admin = AdminClient(self._settings)
        self.producer = self._producer()
        self.open_one: Any = None
        """A transaction that is left open."""

    def _producer(self, **more: Any) -> Any:
        return Producer(self._settings | IMPATIENT | {"enable.idempotence": True} | more)

    def close(self) -> None:
        self.broker.stop()

    def note(self, event: str) -> None:
        self.events.append(event)

    # --- steps -----------------------------------------------------------------------------------

    def step(self, is_within: bool = False) -> None:
        """One step by chance."""
        steps = [
            (self.write, 8),
            (self.write_transaction, 2),
            (self.commit_offsets, 3),
            (self.delete_records, 1),
            (self.delete_topic, 1),
            (self.recreate_topic, 1),
            (self.add_partitions, 1),
            (self.change_policy, 2),
            (self.kill, 1),
        ]
        if not is_within:
            steps += [(self.back_up, 4), (self.damage, 1), (self.prune, 1)]
        (chosen,) = self.random.choices([each for each, _ in steps], [each for _, each in steps])
        try:
            chosen()
        except KafkaException as fault:
            self.note(f"{chosen.__name__}: {fault}")

    def _some_topic(self) -> str:
        name = self.random.choice(TOPICS)
        if name not in self.topics:
            self.create(name)
        return name

    def create(self, name: str) -> None:
        count = self.random.choice((1, 2))
        policy = self.random.choice(("delete", "compact", "compact,delete"))
        replicas = self.random.choice((1, 3))
        settings = SETTINGS | {"cleanup.policy": policy}
        new = NewTopic(name, count, replicas, config=settings)
        self.admin.create_topics([new])[name].result(30)
        self.topics[name] = [Known() for _ in range(count)]
        for known in self.topics[name]:
            known.has_been_compacted = "compact" in policy
        self.producer = self._producer()  # one that knew the topic before counts on from there
        self.note(f"create {name} x{count} r{replicas} {policy}")

    def _send(
        self, producer: Any, name: str, index: int, count: int, acked: dict[int, Written]
    ) -> None:
        known = self.topics[name][index]

        def on_delivery(error: Any, message: Any, written: Written) -> None:
            if not error:
                acked[message.offset()] = written

        for _ in range(count):
            self.count += 1
            key = b"key-%d" % self.random.randrange(KEYS)
            is_tombstone = self.random.random() < 0.15
            value = None if is_tombstone else (b"%d " % self.count).ljust(VALUE_BYTES, b".")
            written = Written(key, value)
            known.sent.add(written)
            producer.produce(
                name,
                key=key,
                value=value,
                partition=index,
                on_delivery=lambda error, message, written=written: on_delivery(
                    error, message, written
                ),
            )
            producer.poll(0)

    def write(self) -> None:
        name = self._some_topic()
        index = self.random.randrange(len(self.topics[name]))
        count = self.random.choice((1, 5, 40))
        self._send(self.producer, name, index, count, self.topics[name][index].acked)
        left = self.producer.flush(60)
        self.note(f"write {count} to {name}-{index}, {left} left")

    def write_transaction(self) -> None:
        """Commit, abort, or leave open: compaction takes what is not committed."""
        name = self._some_topic()
        producer = self._producer(**{"transactional.id": f"t{self.random.randrange(3)}"})
        producer.init_transactions(60)
        producer.begin_transaction()
        index = self.random.randrange(len(self.topics[name]))
        known, acked = self.topics[name][index], dict[int, Written]()
        self._send(producer, name, index, 5, acked)
        producer.flush(60)
        end = self.random.choice(("commit", "abort", "open"))
        self.note(f"transaction in {name}-{index}: {end}")
        if end == "commit":
            producer.commit_transaction(60)
            known.acked |= acked
        elif end == "abort":
            producer.abort_transaction(60)
        else:
            self.open_one = producer

    def commit_offsets(self) -> None:
        name = self._some_topic()
        rows = []
        for index, known in enumerate(self.topics[name]):
            rows.append(TopicPartition(name, index, max(known.acked, default=-1) + 1))
        group = f"group-{self.random.randrange(2)}"
        wanted = ConsumerGroupTopicPartitions(group, rows)
        self.admin.alter_consumer_group_offsets([wanted])[group].result(30)
        self.note(f"commit {name} {[row.offset for row in rows]}")

    def delete_records(self) -> None:
        name = self._some_topic()
        index = self.random.randrange(len(self.topics[name]))
        known = self.topics[name][index]
        if known.acked:
            offset = self.random.randrange(max(known.acked) + 1)
            if offset > known.log_start:
                known.log_start = offset
                rows = [TopicPartition(name, index, offset)]
                for done in self.admin.delete_records(rows).values():
                    done.result(30)
                self.note(f"delete {name}-{index} before {offset}")

    def delete_topic(self) -> None:
        name = self._some_topic()
        del self.topics[name]
        self.note(f"drop {name}")
        self.admin.delete_topics([name])[name].result(30)

    def recreate_topic(self) -> None:
        self.delete_topic()
        self._some_topic()

    def add_partitions(self) -> None:
        name = self._some_topic()
        count = len(self.topics[name]) + 1
        if count <= 4:
            self.admin.create_partitions([NewPartitions(name, count)])[name].result(30)
            self.topics[name].append(Known())
            self.producer = self._producer()  # one that knows of it
            was = self.topics[name][0].has_been_compacted
            self.topics[name][-1].has_been_compacted = was
            self.note(f"{name} has {count} partitions")

    def change_policy(self) -> None:
        name = self._some_topic()
        policy = self.random.choice(("delete", "compact"))
        if policy == "compact":
            for known in self.topics[name]:
                known.has_been_compacted = True
        entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource("topic", name, incremental_configs=[entry])
        for done in self.admin.incremental_alter_configs([resource]).values():
            done.result(30)
        self.note(f"{name} is {policy}")

    def kill(self) -> None:
        victim = f"io-worker-{self.random.randrange(3) + 1}"
        with suppress(Exception):  # it may be dead
            self.broker.kill(victim)
            self.note(f"kill {victim}")

    # --- backups ---------------------------------------------------------------------------------

    def back_up(self) -> None:
        walk = self
        at_cut: list[dict[str, list[Known]]] = []
        within = [self.random.randrange(5) for _ in range(2)]

        class Client(FamilyClient):
            """Lets steps come between."""

            def cut(self, firsts):  # type: ignore[no-untyped-def]
                for _ in range(within[0]):
                    walk.step(is_within=True)
                at_cut.append(walk.copy())
                walk.note("cut")
                return super().cut(firsts)

            def image(self, cluster_id):  # type: ignore[no-untyped-def]
                walk.note("metadata")
                for _ in range(within[1]):
                    walk.step(is_within=True)
                within[1] = 0  # else it would be cut again for ever
                return super().image(cluster_id)

        self.note("backup {")
        try:
            with Client(Asking(self.broker.address), str(self.broker.data)) as client:
                Taking(client, self.store, client.cluster_id()).run()
        except ClusterFault as fault:
            self.note(f"}} failed: {fault}")
            return
        except Exception as fault:
            self.note(f"}} {fault!r}")
            self.faults.append(f"backup: {fault!r}")
            return
        self.note("}")
        self.backups += 1
        self.at_cut = at_cut[-1]

    def copy(self) -> dict[str, list[Known]]:
        """What is known now; a topic that is made again later is another one."""
        return {name: [each.copy() for each in rows] for name, rows in self.topics.items()}

    def damage(self) -> None:
        """Remove an object: the next backup has it again."""
        found = sorted(key for key, _ in self.store.list_objects(manifest.SEGMENTS))
        if found:
            key = self.random.choice(found)
            self.store.delete([key])
            self.note(f"lose {key}")
            self.at_cut = {}  # what was backed up need not be whole

    def prune(self) -> None:
        gone, objects, _ = prune(self.store, self.random.choice((1, 2)))
        self.note(f"prune {len(gone)}, {objects} objects")

    # --- the comparison --------------------------------------------------------------------------

    def compare(self, number: int) -> None:
        """Restore the latest and look at it."""
        if not self.at_cut:
            return
        backup = manifest.load(self.store, manifest.names(self.store)[-1])
        for verdict in check(self.store, [backup.name]):
            self.faults += verdict.faults
        if self.faults:
            return
        data = self.root / f"restored-{number}"
        replicas = self.random.choice((1, 2, 3, None))
        done = restore(self.store, backup, str(data), replicas)
        self.faults += [f"{each.path}: {each.fault}" for each in verify(str(data)) if each.fault]
        flags = ("--replicas", str(done.brokers)) if done.brokers > 1 else ()
        quiet = ("--set", "log.cleaner.backoff.ms=3600000")
        with Broker(*QUICK, *quiet, *flags, data=data) as restored:
            self._compare(restored.address)
            if "ERROR" in restored.log:
                self.faults.append(f"restored broker: {restored.log}")
        shutil.rmtree(data)

    def _compare(self, address: str) -> None:
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        there = admin.list_topics(timeout=30).topics
        for name, rows in self.at_cut.items():
            now = self.topics.get(name)
            if name not in there:
                if now is not None and now[0].sent is rows[0].sent:
                    self.faults.append(f"topic {name} is not there")
                continue
            if now is None or now[0].sent is not rows[0].sent:
                continue  # deleted meanwhile, maybe made again
            for index, known in enumerate(rows):
                self._compare_partition(address, name, index, known)
        looking = {"group.id": "look", "isolation.level": "read_uncommitted", "log_level": 0}
        consumer = Consumer({"bootstrap.servers": address, **looking})
        for group in ("group-0", "group-1"):
            listing = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
            try:
                found = listing[group].result(30).topic_partitions
            except KafkaException:
                continue
            for row in found:
                if row.topic not in there or row.partition not in there[row.topic].partitions:
                    continue
                place = TopicPartition(row.topic, row.partition)
                _, end = consumer.get_watermark_offsets(place, timeout=30)
                if row.offset > end:
                    self.faults.append(f"{group} is at {row.offset} of {place}, beyond {end}")
        consumer.close()

    def _compare_partition(self, address: str, name: str, index: int, known: Known) -> None:
        start, end, found = read_all(address, name, index)
        where = f"{name}-{index} [{start}, {end})"
        if start > self.topics[name][index].log_start:
            self.faults.append(f"{where}: begins too late, {self.topics[name][index].log_start}")
        strange = [
            offset
            for offset, written in found.items()
            if written not in known.sent or known.acked.get(offset, written) != written
        ]
        if strange:
            self.faults.append(f"{where}: other records at {strange[:5]}")
        acked = {offset: each for offset, each in known.acked.items() if offset >= start}
        if any(offset >= end for offset in acked):
            self.faults.append(f"{where}: ends before {max(acked)}")
        elif not known.has_been_compacted:
            lost = sorted(set(acked) - set(found))
            if lost:
                self.faults.append(f"{where}: lacks {lost[:5]} of {len(acked)}")
        newest = {each.key: offset for offset, each in sorted(acked.items())}
        have = {each.key: offset for offset, each in sorted(found.items())}
        for key, offset in newest.items():
            if have.get(key, -1) < offset and (acked[offset].value is not None or key in have):
                self.faults.append(
                    f"{where}: {key!r} has {have.get(key)}, it had {offset} "
                    f"{'deleted' if acked[offset].value is None else ''}"
                )


def read_all(address: str, topic: str, index: int) -> tuple[int, int, dict[int, Written]]:
    """Start, end, and the records of a partition by offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "isolation.level": "read_uncommitted",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    found: dict[int, Written] = {}
    try:
        place = TopicPartition(topic, index)
        start, end = consumer.get_watermark_offsets(place, timeout=60)
        consumer.assign([TopicPartition(topic, index, start)])
        while True:
            message = consumer.poll(10)
            if message is None or message.error():
                break  # without a sign where compaction has left nothing before the end
            assert message.offset() not in found
            found[message.offset()] = Written(message.key(), message.value())
    finally:
        consumer.close()
    return start, end, found


def run(
    seed: int, rounds: int, steps: int, target: str | None = None, endpoint: str | None = None
) -> Walk:
    """Walk for some rounds, each with a restore at its end."""
    root = Path(tempfile.mkdtemp(prefix="shmbroker-walk-"))
    walk = Walk(seed, root, target or str(root / "backups"), endpoint)
    try:
        for number in range(rounds):
            for _ in range(steps):
                walk.step()
            walk.back_up()
            try:
                walk.compare(number)
            except Exception as fault:
                walk.faults.append(f"{fault!r} at {traceback.extract_tb(fault.__traceback__)[-1]}")
            if walk.faults:
                break
    finally:
        walk.close()
        shutil.rmtree(root, ignore_errors=True)
    return walk
