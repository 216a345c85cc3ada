"""A group of five processes under load: joins, leaves, kill -9 of members and of the coordinator.

For each library: every record is seen at least once; what a member was told is committed is so;
and the log of the offsets, read from its beginning, shows that none ever went back. Cooperative
members give away no more than what moves.
"""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from shmbroker import clock
from shmbroker.groups import group_log
from shmbroker.groups.group_partition import group_partition
from shmbroker.records.batch import iterate_batches, iterate_records
from shmbroker.testing.broker import Broker
from shmbroker.wire.coordinator_records import OFFSET_COMMIT
from tests.clients.group_member import LIBRARIES
from tests.clients.test_group_confluent import committed
from tests.processes.test_kill_under_load import kill, wait_for_successors
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
FLAGS = (
    "--set", "group.initial.rebalance.delay.ms=0",
    "--set", "group.min.session.timeout.ms=1000",
    "--set", "group.consumer.min.session.timeout.ms=1000",
    "--set", "group.consumer.session.timeout.ms=6000",
    "--set", "group.consumer.min.heartbeat.interval.ms=1000",
    "--set", "group.consumer.heartbeat.interval.ms=2000",
    "--set", "offsets.topic.num.partitions=3",
)  # fmt: skip
"""librdkafka waits one interval for the answer to a heartbeat of the new protocol. If that is lost,
it does not ask for its assignment again and keeps what the answer told it to give away; so an
interval is longer than a coordinator that was killed needs.
"""
PARTITIONS = 10
KILLED = [
    "confluent-cooperative",
    "confluent-848-cooperative",
    "kafka-python-range",
    "aiokafka",
]
"""Each library and protocol; what its members make of an assignment is nothing to a broker."""
PATIENCE_S = 60.0
HANGS_S = 15.0
IN_FLIGHT_MAX = 2000
GROUP = "five"
TOPIC = "load"


class Member:
    """A process of group_member.py, and what it has said so far."""

    def __init__(self, library: str, address: str) -> None:
        self.owned: set[int] = set()
        self.gave: list[set[int]] = []
        self.seen: list[tuple[int, int, int]] = []
        self.committed: dict[int, int] = {}
        self.unknown: list[str] = []
        self._words = [library, address, TOPIC, GROUP]
        self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.clients.group_member", *self._words],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.started = clock.monotonic()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            word, *rest = line.split()
            if not line.endswith("\n"):
                return  # killed in the middle of it
            numbers = [int(each) for each in rest]
            match word:
                case "owned":
                    self.owned = set(numbers)
                case "took":
                    self.owned = self.owned | set(numbers)
                case "gave":
                    self.gave.append(set(numbers))
                    self.owned = self.owned - set(numbers)
                case "seen":
                    self.seen.append(tuple(numbers))
                case "committed":
                    self.committed[numbers[0]] = max(numbers[1], self.committed.get(numbers[0], 0))
                case _:
                    self.unknown.append(line)

    def start_again_if_it_hangs(self) -> None:
        """kafka-python 3.0.12 does not always join: it has the coordinator's name, takes itself for
        a member, and asks nothing any more."""
        has_done_nothing = not (self.owned or self.gave or self.seen)
        if has_done_nothing and clock.monotonic() > self.started + HANGS_S:
            self.end(is_killed=True)
            self._start()

    def end(self, is_killed: bool = False) -> None:
        """Leave the group, or fall out of it."""
        if is_killed:
            self.process.kill()
        else:
            self.process.terminate()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self._thread.join(PATIENCE_S)
            self.owned = set()


class Trickle:
    """Some hundred records a second, to all partitions in turn, until `finish`."""

    def __init__(self, address: str) -> None:
        self.ends = [0] * PARTITIONS
        """One past the last acknowledged offset of each partition."""
        self._is_over = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._is_over.wait(0.03):
            self._producer.poll(0)
            for _ in range(0 if len(self._producer) > IN_FLIGHT_MAX else PARTITIONS):
                number += 1
                self._producer.produce(
                    TOPIC,
                    b"%d" % number,
                    partition=number % PARTITIONS,
                    on_delivery=self._on_delivery,
                )

    def _on_delivery(self, error: Any, message: Any) -> None:
        assert error is None, error
        self.ends[message.partition()] = message.offset() + 1

    def end(self) -> None:
        self._is_over.set()
        self._thread.join(PATIENCE_S)

    def finish(self) -> list[int]:
        self.end()
        assert self._producer.flush(PATIENCE_S) == 0
        return self.ends


def wait_for_share(address: str, members: list[Member]) -> None:
    """Until they have all partitions between them, each once, and none over one more than another.

    Evenness is what shows a cooperative rebalance to be over: a member whose SyncGroup comes when
    another has already given its partition and joined again must join again too, and gives its own
    a round later. The joiner has some of its share by then.
    """

    def is_shared() -> bool:
        assert [each.process.args for each in members if each.process.poll() is not None] == []
        for each in members:
            each.start_again_if_it_hangs()
        owned = [partition for member in members for partition in member.owned]
        shares = [len(each.owned) for each in members]
        return sorted(owned) == list(range(PARTITIONS)) and max(shares) - min(shares) <= 1

    wait_until(is_shared, lambda: shares_and_group(address, members), PATIENCE_S)


def shares_and_group(address: str, members: list[Member]) -> tuple[list[list[int]], dict[str, Any]]:
    """What the members say that they have, and what the broker says of their group."""
    with RawClient(address) as client:
        told = client.ask("DescribeGroups", 6, {"groups": [GROUP]})["groups"][0]
        if told["error_code"]:
            told = client.ask("ConsumerGroupDescribe", 1, {"group_ids": [GROUP]})["groups"][0]
    return [sorted(each.owned) for each in members], told


def missing(members: list[Member], ends: list[int]) -> dict[int, list[int]]:
    """Partition to offsets that nobody has seen."""
    found = {partition: set(range(end)) for partition, end in enumerate(ends)}
    for member in members:
        for partition, first, last in member.seen:
            found[partition].difference_update(range(first, last + 1))
    return {partition: sorted(offsets)[:5] for partition, offsets in found.items() if offsets}


def commits_in_log(address: str) -> dict[int, list[int]]:
    """Every offset that the group has ever committed, in the order of the log."""
    index = group_partition(GROUP, 3)
    found: dict[int, list[int]] = {}
    with RawClient(address) as client:
        offset = 0
        while True:
            answer = client.fetch("__consumer_offsets", offset, index, max_bytes=8 << 20)
            assert answer["error_code"] == 0, answer
            if offset >= answer["high_watermark"]:
                return found
            records = bytes(answer["records"])
            for position, _ in iterate_batches(records):
                for at, _, key, value, _ in iterate_records(records, position):
                    if at < offset:
                        continue
                    offset = at + 1
                    decoded = group_log.decode(key, value)
                    if value is None or decoded is None or decoded[0] != OFFSET_COMMIT:
                        continue
                    _, name, content = decoded
                    found.setdefault(name["partition"], []).append(content["offset"])


@pytest.mark.parametrize("library", KILLED)
def test_five_processes_see_every_record_whatever_is_killed(library: str) -> None:
    everybody: list[Member] = []
    with Broker(*FLAGS) as broker:

        def join() -> Member:
            everybody.append(Member(library, broker.address))
            return everybody[-1]

        def kill_coordinator() -> None:
            before = broker.children()
            kill(broker, "io-worker-1")
            wait_for_successors(broker, before, "io-worker-1")

        with RawClient(broker.address) as client:
            client.create_topic(TOPIC, PARTITIONS)
        load = Trickle(broker.address)
        try:
            members = [join() for _ in range(3)]
            wait_for_share(broker.address, members)
            members += [join(), join()]
            wait_for_share(broker.address, members)
            kill_coordinator()  # of a stable group
            members.pop(0).end(is_killed=True)
            wait_for_share(broker.address, members)
            members.append(join())
            kill_coordinator()  # while somebody joins
            wait_for_share(broker.address, members)
            members.pop(0).end()
            members.pop(0).end(is_killed=True)
            kill_coordinator()  # while it waits for one that is dead
            members += [join(), join()]
            wait_for_share(broker.address, members)
            ends = load.finish()
            assert min(ends) > 0
            wait_until(
                lambda: not missing(everybody, ends),
                lambda: missing(everybody, ends),
                PATIENCE_S,
            )
            wanted = dict(enumerate(ends))
            wait_until(
                lambda: committed(broker.address, TOPIC, GROUP) == wanted,
                lambda: (committed(broker.address, TOPIC, GROUP), wanted),
                PATIENCE_S,
            )
            for member in members:
                member.end()
        finally:
            load.end()
            for member in everybody:
                member.process.kill()
                member.process.wait()
        assert [member.unknown for member in everybody if member.unknown] == []
        for partition, offsets in commits_in_log(broker.address).items():
            assert offsets == sorted(offsets), f"partition {partition} went back"
        told = [each for member in everybody for each in member.committed.items()]
        assert all(offset <= wanted[partition] for partition, offset in told)
        broker.kill()
        broker.start()
        assert committed(broker.address, TOPIC, GROUP) == wanted
        assert "Traceback" not in broker.log, broker.log


@pytest.mark.parametrize("library", [each for each in LIBRARIES if each.endswith("cooperative")])
def test_cooperative_processes_give_away_only_what_moves(library: str) -> None:
    members: list[Member] = []
    with Broker(*FLAGS) as broker:
        try:
            with RawClient(broker.address) as client:
                client.create_topic(TOPIC, PARTITIONS)
            for _ in range(5):
                members.append(Member(library, broker.address))
                wait_for_share(broker.address, members)
            # Each joiner's partitions were given away once, by whoever had them, and no others.
            given = [partition for member in members for each in member.gave for partition in each]
            assert len(given) == sum(PARTITIONS // count for count in range(2, 6))
            leaver = members.pop()
            had = set(leaver.owned)
            kept = [set(member.owned) for member in members]
            count = sum(len(member.gave) for member in members)
            leaver.end()
            wait_for_share(broker.address, members)
            assert all(before <= member.owned for before, member in zip(kept, members, strict=True))
            assert set().union(*(member.owned for member in members)) - set().union(*kept) == had
            assert sum(len(member.gave) for member in members) == count
        finally:
            for member in members:
                member.process.kill()
                member.process.wait()
