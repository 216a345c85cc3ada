"""A task of a write in a transaction: all of its rows into a file, then by leases to the leaders.

    enter     the keeper tells the time of rows that have none, or that nothing is to be done
    encode    every row into `Spill`: what can't be taken is told before anything is sent
    claim     this attempt sends; others of the task wait until it has, or is gone
    send      partitions side by side, a window of batches at a time

Whatever ends the task in between ends its connection to the keeper, which knows by that what is in
doubt.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

from shmbroker.client.addresses import parse_addresses
from shmbroker.client.cluster import Cluster
from shmbroker.client.faults import FencedFault
from shmbroker.client.producer.delivery import ProducerIdentity
from shmbroker.client.producer.producer import Producer
from shmbroker.client.producer.settings import ANSWER_S
from shmbroker.client.producer.spill import Spill, SpilledBatch
from shmbroker.client.security import OPEN
from shmbroker.errors import Fault
from shmbroker.ids import TopicPartition
from shmbroker.spark.transactions.driver import KeeperRun, boot_id
from shmbroker.spark.transactions.leases import START, WINDOW
from shmbroker.spark.transactions.messages import Channel, FarFault, Fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pyarrow as pa

    from shmbroker.spark.transactions.series import TransactionSeries

STREAMS_MAX = 4
"""Partitions that a task sends to at the same time: one is busy while others wait for answers."""

CONNECT_S = 5.0
_BLOCK_MS = 60_000
"""Kafka's default of max.block.ms."""
_BUFFER_BYTES = 64 << 20


class Attempt(NamedTuple):
    """One attempt of a task, as Spark and the keeper know it."""

    task: int
    number: int
    version: int
    query_run: str


class TaskOutcome(NamedTuple):
    """`records` of the task are there; `is_repeated`: the whole write was committed before."""

    records: int
    is_repeated: bool


class LostTransactionFault(Fault):
    """The write can't be committed any more, whatever its tasks do."""


def write(
    batches: Iterable[pa.RecordBatch],
    topic: str | None,
    attempt: Attempt,
    run: KeeperRun,
    series: TransactionSeries,
    arguments: dict[str, Any],
) -> TaskOutcome:
    """Write a task's rows, as the columns that `Producer.send` takes. `arguments`: those of a
    `Producer`."""
    keeper = _connect(run)
    try:
        terms = _ask(
            keeper,
            series=series,
            run=run.number,
            label=run.label,
            **attempt._asdict() | {"attempt": attempt.number},
        )
        if terms["is_done"] or terms["is_committed"]:
            for _ in batches:  # Spark does not expect that they are left
                pass
            if terms["is_committed"]:
                return TaskOutcome(0, is_repeated=True)
            return TaskOutcome(_ask(keeper, what="done", digests=[])["records"], is_repeated=False)
        return TaskOutcome(
            _Sender(keeper, attempt, series, arguments).send(batches, topic, terms), False
        )
    finally:
        keeper.close()


class _Sender:
    """What a task does once it has entered."""

    def __init__(
        self,
        keeper: Channel,
        attempt: Attempt,
        series: TransactionSeries,
        arguments: dict[str, Any],
    ) -> None:
        self._keeper = keeper
        self._attempt = attempt
        self._series = series
        self._arguments = arguments

    def send(self, batches: Iterable[pa.RecordBatch], topic: str | None, terms: Fields) -> int:
        arguments = self._arguments
        wait_s = arguments.get("max_block_ms", _BLOCK_MS) / 1000
        addresses = parse_addresses(self._series.servers, security=arguments.get("security", OPEN))
        with (
            Cluster(addresses, arguments["client_id"], ANSWER_S) as cluster,
            Spill(
                cluster,
                batch_size=arguments["batch_size"],
                compression=arguments["compression"],
                memory_max=arguments.get("buffer_memory", _BUFFER_BYTES),
                now_ms=terms["now_ms"],
                seed=self._seed(),
                wait_s=wait_s,
                directory=_directory(),
            ) as spill,
        ):
            for batch in batches:
                spill.add(batch, topic)
            spill.finish()
            return self._send_stored(spill)

    def _send_stored(self, spill: Spill) -> int:
        claimed: Fields = {"is_mine": False}
        partitions = self._in_order(spill.batches)
        while claimed["is_mine"] is False:
            claimed = self._ask(what="claim", partitions=partitions)
        digests = [(*one, stored[-1].digest) for one, stored in spill.batches.items()]
        if claimed["is_mine"] and partitions:
            identity = ProducerIdentity(
                claimed["producer_id"], claimed["epoch"], is_transactional=True
            )
            with Producer(
                self._series.servers,
                identity=identity,
                transactional_id=claimed["transactional_id"],
                **self._arguments,
            ) as producer:
                try:
                    _Stream(self._ask, producer, spill).send_all(partitions)
                except FencedFault as fault:
                    self._ask(what="failed", reason=str(fault))
                    raise
        records: int = self._ask(what="done", digests=digests)["records"]
        return records

    def _in_order(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Each task begins with another one."""
        found = sorted(partitions)
        first = self._attempt.task % max(len(found), 1)
        return found[first:] + found[:first]

    def _seed(self) -> int:
        """A seed that is the same for each attempt of the task."""
        text = f"{self._series.name}/{self._attempt.version}/{self._attempt.task}"
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")

    def _ask(self, **fields: object) -> Fields:
        return _ask(self._keeper, **fields)


class _Stream:
    """Windows of stored batches, of several partitions at a time."""

    def __init__(self, ask: Callable[..., Fields], producer: Producer, spill: Spill) -> None:
        self._ask = ask
        self._producer = producer
        self._spill = spill
        self._flying: dict[TopicPartition, int] = {}
        """Where the batches behind the window begin."""

    def send_all(self, partitions: list[TopicPartition]) -> None:
        """Everything that is stored, each partition when it can be had."""
        wanted = dict.fromkeys(partitions)
        flying = self._flying
        while wanted or flying:
            while wanted and len(flying) < STREAMS_MAX:
                leased = self._ask(what="lease", wanted=list(wanted), waits=not flying)
                if leased["partition"] is None:
                    break
                topic, index = leased["partition"]
                del wanted[topic, index]
                self._go_on((topic, index), leased["batches"], leased["window"])
            for one in self._producer.wait_for_one(flying):
                end = flying.pop(one)
                self._ask(what="sent", partition=one)
                self._go_on(one, end, None)

    def _go_on(self, partition: TopicPartition, begin: int, window: int | None) -> None:
        """The next window, or none: then others may have the partition."""
        stored = self._spill.batches[partition]
        end = begin + (WINDOW if window is None else window)
        if window is None and begin == len(stored):
            self._ask(what="give_back", partition=partition)
            return
        batches = stored[begin:end]
        answer = self._ask(
            what="sending",
            partition=partition,
            batches=window or len(batches),
            records=sum(batch.records for batch in batches),
            before=_digest(stored, begin),
            after=_digest(stored, end if window else begin + len(batches)),
        )
        self._producer.post(*partition, answer["sequence"], self._spill.load(batches))
        self._flying[partition] = begin + len(batches)


def _digest(stored: list[SpilledBatch], end: int) -> str:
    """The digest of the first `end` batches; where there are fewer, one that no batches have."""
    if not end:
        return START
    return stored[end - 1].digest if end <= len(stored) else "too few"


def _ask(keeper: Channel, **fields: object) -> Fields:
    try:
        answer = keeper.ask(**fields)
    except FarFault as fault:
        raise LostTransactionFault(_advised(str(fault))) from None
    if "fault" in answer:
        if answer["is_lost"]:
            raise LostTransactionFault(_advised(answer["fault"]))
        raise Fault(answer["fault"])
    return answer


def _advised(text: str) -> str:
    return (
        f"{text}; nothing of this write is seen by read_committed readers: restart the query, or"
        " write again"
    )


def _connect(run: KeeperRun) -> Channel:
    """Connect to the keeper, at the first of its addresses where it is."""
    hosts = list(run.hosts)
    if run.boot_id and run.boot_id == boot_id():
        hosts.insert(0, "127.0.0.1")
    reasons = []
    for host in dict.fromkeys(hosts):
        try:
            channel = Channel(socket.create_connection((host, run.port), CONNECT_S))
        except OSError as error:
            reasons.append(f"{host}:{run.port}: {error}")
            continue
        try:
            channel.come_in(bytes.fromhex(run.token))
        except FarFault as fault:
            channel.close()
            reasons.append(f"{host}:{run.port}: {fault}")
            continue
        return channel
    raise Fault(
        f"the driver's process that keeps transactions can't be reached ({'; '.join(reasons)}):"
        " give the option driverHost an address of the driver's host that executors reach"
    )


def _directory() -> str | None:
    """Where Spark has its temporary files."""
    first = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return first if os.path.isdir(first) else None
