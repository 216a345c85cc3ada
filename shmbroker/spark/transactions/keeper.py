"""The process beside Spark's driver that has the transactions of its writes.

Spark calls a writer's methods in Python processes that come and go, none of which is there from the
first task to the commit. So the first write of a SparkContext starts this one (`driver`), which
lasts as long as the JVM, and the context's directory.

    driver ──Unix socket──► begin a run, commit, abort
    tasks  ──TCP, by token──► enter, claim, lease, sending, sent, give_back, done

A *series* is what follows each other under one transactional id: the micro-batches of a query, the
writes of a txnAppId. A *run* is one attempt at one of them: it has a transaction of its own, whose
epoch fences what is left of the runs before. Its version (the batch id) is committed with it, as an
offset of a group of the series' name: so a run of what is committed already is recognised.

When the JVM is gone, transactions that are open are aborted, so that readers need not wait for
their time-out. If this process is killed, tasks and commit fail, and the next run ends what is
left.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from shmbroker import clock
from shmbroker.client.addresses import parse_addresses
from shmbroker.client.cluster import Cluster
from shmbroker.client.faults import ClusterFault, FencedFault, RefusedFault
from shmbroker.client.producer.settings import ANSWER_S
from shmbroker.client.producer.transactions import UNDECIDED, Transactions
from shmbroker.client.security import Security, from_plain
from shmbroker.errors import Fault
from shmbroker.spark.transactions.leases import Leases, LostFault
from shmbroker.spark.transactions.messages import Channel, FarFault, Fields
from shmbroker.wire import error_codes

DOUBT_S = 120.0
"""A task that ended in the midst of a window is begun again by Spark at once, where there is room;
an executor that was lost is noticed, and replaced, in this time."""
PATIENCE_S = 1.0
"""A question that can't be answered yet is answered so after this time, and asked again: so it is
noticed that nobody is there any more."""
LOOKS_S = 2.0
"""How often it is looked whether the SparkContext's directory is there."""
ABORT_S = 5.0
"""At the end of the JVM each open transaction is tried to be aborted for so long."""
CONNECTIONS_MAX = 10_000
_SECURITIES_MAX = 4096
"""Runs that tasks may still come of."""

VERSION_PARTITION = 0
"""Where a topic has the version: each topic has this partition."""


class Series(NamedTuple):
    """What a writer says of its series; the same in all of its tasks."""

    name: str
    servers: str
    client_id: str
    timeout_ms: int
    wait_ms: int
    is_remembered: bool
    """Whether its versions are committed, so that a repeated one is recognised."""

    def transactional_id(self) -> str:
        """Its group has the same name."""
        return f"spark-shmbroker-sink-{self.name}"


class _Transaction:
    """The series' runs, one after the other."""

    def __init__(self, series: Series) -> None:
        self.series = series
        self.changed = threading.Condition()
        self.run = 0
        self.query_run = ""
        self.version = -1
        self.label = ""
        self.is_committed = False
        self.leases = Leases(DOUBT_S)
        self._cluster: Cluster | None = None
        self._client: Transactions | None = None
        self._now_ms = 0

    @contextmanager
    def of(self, run: int) -> Iterator[Leases]:
        """The run's leases, locked; LostFault if another run has begun."""
        with self.changed:
            if run != self.run:
                raise LostFault("another run of this write has begun")
            try:
                yield self.leases
            finally:
                self.changed.notify_all()

    def enter(
        self,
        run: int,
        query_run: str,
        version: int,
        label: str,
        is_ended: Callable[[], bool],
        security: Security,
    ) -> None:
        """Begin the run, if no task has. Tasks of earlier runs are refused, and of one that is
        aborted: nobody would end what they begin."""
        with self.changed:
            if is_ended():
                raise LostFault("the write was aborted")
            if run < self.run:
                raise LostFault("another run of this write has begun")
            if run == self.run:
                return
            self.leases.fail("another run of this write has begun")
            client = self._fresh(query_run, security)
            try:
                client.init()
            except RefusedFault as fault:
                if error_codes.name_of(error_codes.INVALID_TRANSACTION_TIMEOUT) in fault.text:
                    raise LostFault(
                        f"kafka.transaction.timeout.ms of {self.series.timeout_ms} is more than"
                        " transaction.max.timeout.ms of the brokers: give a smaller one"
                    ) from None
                raise
            self.is_committed = self._was_committed(client, version)
            if not self.is_committed:
                client.begin()
            self.leases = Leases(DOUBT_S)
            self._now_ms = clock.now_ms()
            self.run, self.version, self.label = run, version, label
            self.query_run = query_run
            self.changed.notify_all()

    def terms(self) -> Fields:
        """What a task has to know before it encodes rows."""
        return {"now_ms": self._now_ms, "is_committed": self.is_committed}

    def identity(self) -> Fields:
        """What a task has to know to send."""
        assert self._client is not None
        return {
            "transactional_id": self._client.name,
            "producer_id": self._client.identity.producer_id,
            "epoch": self._client.identity.epoch,
        }

    def add(self, partitions: list[tuple[str, int]]) -> None:
        """Have these partitions in the transaction. Needs the lock."""
        assert self._client is not None
        by_topic: dict[str, list[int]] = {}
        for topic, partition in partitions:
            by_topic.setdefault(topic, []).append(partition)
        for topic, indexes in by_topic.items():
            self._client.add(topic, indexes)

    def commit(self, run: int, tasks: list[int]) -> None:
        """All of these tasks' records, and the version, are there for readers together."""
        with self.of(run) as leases:
            if self.is_committed:
                return
            leases.check_all_done(tasks)
            client = self._client
            assert client is not None
            topics = sorted({topic for topic, _ in leases.partitions})
            if topics and self.series.is_remembered:
                version = {(topic, VERSION_PARTITION): self.version + 1 for topic in topics}
                client.send_offsets(version, client.name)
            client.end(is_commit=True)
            self.is_committed = True
            if topics:
                # It is committed, whatever is answered.
                with contextlib.suppress(ClusterFault, OSError):
                    client.wait_for_markers(self.series.wait_ms / 1000)

    def abort(self, run: int, reason: str) -> None:
        """Nothing of the run is seen, unless it is committed."""
        with self.of(run) as leases:
            if self.is_committed:
                return
            leases.fail(reason)
            client = self._client
            assert client is not None
            if client.state == UNDECIDED:
                client.init()
            elif client.is_begun:
                client.end(is_commit=False)

    def end(self) -> None:
        """The JVM is gone: abort what is open, in a moment or not at all."""
        if not self.changed.acquire(timeout=ABORT_S):
            return
        try:
            if self._client is not None and self._client.is_begun:
                self._client.wait_at_most(ABORT_S)
                with contextlib.suppress(Fault, OSError):
                    self._client.end(is_commit=False)
        finally:
            self.changed.release()

    def close(self) -> None:
        """End the connections."""
        if self._client is not None:
            self._client.close()
        if self._cluster is not None:
            self._cluster.close()

    def _fresh(self, query_run: str, security: Security) -> Transactions:
        """The client that goes on with its producer id while it is the same run of a query, so
        that it notices when another driver has taken over; else a new one, which takes over."""
        if self._client is not None and query_run and query_run == self.query_run:
            return self._client
        series = self.series
        if self._client is not None:
            self._client.close()
        if self._cluster is not None and self._cluster.security != security:
            self._cluster.close()
            self._cluster = None
        if self._cluster is None:
            addresses = parse_addresses(series.servers, security=security)
            self._cluster = Cluster(addresses, series.client_id, ANSWER_S)
        wait_s = series.wait_ms / 1000
        self._client = Transactions(
            self._cluster, series.transactional_id(), series.timeout_ms, wait_s
        )
        return self._client

    def _was_committed(self, client: Transactions, version: int) -> bool:
        if not self.series.is_remembered:
            return False
        last = max(client.committed(client.name).values(), default=0) - 1
        if version < last:
            raise LostFault(
                f"version {version} of {self.series.name} is to be written, but {last} is"
                " committed already: put the checkpoint back as it was, or write to another topic"
                " with a new one"
            )
        return version == last


class Keeper:
    """All series of a SparkContext. `is_over` says whether its JVM is gone."""

    def __init__(self, tasks: socket.socket, driver: socket.socket) -> None:
        self._tasks = tasks
        self._driver = driver
        self._token = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._series: dict[Series, _Transaction] = {}
        self._runs = 0
        self._securities: dict[int, Security] = {}
        """How the cluster of each run is entered."""
        self._ended: set[int] = set()
        """Runs that are aborted, or of series that have no other and are forgotten."""
        self._connections = 0

    def serve(self, is_over: Callable[[], bool], ends: list[int]) -> None:
        """Take connections until `is_over` says so, which is asked every LOOKS_S and when one of
        the descriptors `ends` becomes readable."""
        while True:
            listeners: list[socket.socket | int] = [self._tasks, self._driver]
            readable, _, _ = select.select([*listeners, *ends], [], [], LOOKS_S)
            if is_over():
                break
            for listener, serve in (
                (self._tasks, self._serve_task),
                (self._driver, self._serve_driver),
            ):
                if listener in readable:
                    with contextlib.suppress(OSError):
                        stream, _ = listener.accept()
                        self._begin(serve, Channel(stream))
        for transaction in list(self._series.values()):
            transaction.end()

    def _begin(self, serve: Callable[[Channel], None], channel: Channel) -> None:
        with self._lock:
            if self._connections >= CONNECTIONS_MAX:
                channel.close()
                return
            self._connections += 1

        def run() -> None:
            try:
                with contextlib.suppress(FarFault, OSError):
                    serve(channel)
            finally:
                channel.close()
                with self._lock:
                    self._connections -= 1

        threading.Thread(target=run, name="keeper-connection", daemon=True).start()

    # --- the driver ------------------------------------------------------------------------------

    def _serve_driver(self, channel: Channel) -> None:
        if not channel.is_of_same_user():
            return
        while True:
            asked = channel.hear()
            channel.say(_answered(self._answer_driver, asked))

    def _answer_driver(self, asked: Fields) -> Fields:
        what = asked["what"]
        if what == "run":
            with self._lock:
                self._runs += 1
                run = self._runs
                self._securities[run] = from_plain(asked["security"])
                self._securities.pop(run - _SECURITIES_MAX, None)
            return {"run": run, "port": self._tasks.getsockname()[1], "token": self._token.hex()}
        if what == "commit":
            found = self._find(asked["name"], asked["run"])
            if found is None:
                raise LostFault("the process that had the transaction is gone")
            found.commit(asked["run"], asked["tasks"])
            self._forget(found)
        else:
            assert what == "abort"
            for one in self._to_abort(asked):
                with contextlib.suppress(LostFault):  # another run has begun, or none has
                    one.abort(asked["run"] or one.run, "the write was aborted")
                    self._forget(one)
        return {}

    def _forget(self, one: _Transaction) -> None:
        """A write that is never repeated leaves nothing; its late tasks are refused."""
        if not one.series.is_remembered:
            with self._lock:
                self._ended.add(one.run)
                self._series.pop(one.series, None)
            one.close()

    def _find(self, name: str, run: int) -> _Transaction | None:
        with self._lock:
            for series, one in self._series.items():
                if series.name == name and one.run == run:
                    return one
        return None

    def _to_abort(self, asked: Fields) -> list[_Transaction]:
        """The one of this name and run; where Spark has not told them, that of this label and
        version."""
        if asked["name"]:
            with self._lock:
                self._ended.add(asked["run"])  # for tasks that have not come yet
                return [one for series, one in self._series.items() if series.name == asked["name"]]
        with self._lock:
            return [
                one
                for one in self._series.values()
                if one.label and one.label == asked["label"] and one.version == asked["version"]
            ]

    # --- tasks -----------------------------------------------------------------------------------

    def _serve_task(self, channel: Channel) -> None:
        channel.let_in(self._token)
        asked = channel.hear()
        series = Series(*asked["series"])
        run, task, attempt = asked["run"], asked["task"], asked["attempt"]
        with self._lock:
            if run in self._ended:
                return
            security = self._securities.get(run)
            if security is None:
                return
            one = self._series.setdefault(series, _Transaction(series))

        def enter(asked: Fields) -> Fields:
            one.enter(
                run,
                asked["query_run"],
                asked["version"],
                asked["label"],
                lambda: run in self._ended,
                security,
            )
            with one.of(run) as leases:
                return one.terms() | {"is_done": leases.enter(task, attempt)}

        answer = _answered(enter, asked)
        channel.say(answer)
        if "fault" in answer:
            return
        conversation = _Conversation(one, run, task, attempt)
        try:
            while True:
                asked = channel.hear()
                channel.say(_answered(conversation.answer, asked))
        finally:
            with contextlib.suppress(LostFault), one.of(run) as leases:
                leases.leave(task, attempt, clock.monotonic())


class _Conversation:
    """With one attempt of a task."""

    def __init__(self, transaction: _Transaction, run: int, task: int, attempt: int) -> None:
        self._transaction = transaction
        self._run = run
        self._task = task
        self._attempt = attempt

    def answer(self, asked: Fields) -> Fields:
        """The answer to one question."""
        task, one = self._task, self._transaction
        what = asked["what"]
        with one.of(self._run) as leases:
            if what == "claim":
                mine = self._until(lambda: leases.try_claim(task, self._attempt), False)
                if not mine:
                    return {"is_mine": mine}
                one.add([(topic, index) for topic, index in asked["partitions"]])
                return {"is_mine": True} | one.identity()
            if what == "lease":
                wanted = [(topic, index) for topic, index in asked["wanted"]]
                granted = self._until(
                    lambda: leases.try_lease(task, wanted, clock.monotonic()),
                    None,
                    PATIENCE_S if asked["waits"] else 0.0,
                )
                if granted is None:
                    return {"partition": None}
                progress = leases.progress(task, granted)
                window = None if progress.window is None else progress.window[0]
                return {"partition": granted, "batches": progress.batches, "window": window}
            if what == "done":
                digests = {(topic, index): digest for topic, index, digest in asked["digests"]}
                return {"records": leases.done(task, digests)}
            if what == "failed":
                leases.fail(asked["reason"])
                return {}
            topic, index = asked["partition"]
            if what == "sending":
                sequence = leases.sending(
                    task,
                    (topic, index),
                    asked["batches"],
                    asked["records"],
                    asked["before"],
                    asked["after"],
                )
                return {"sequence": sequence}
            if what == "sent":
                leases.sent(task, (topic, index))
            else:
                assert what == "give_back"
                leases.give_back(task, (topic, index))
            return {}

    def _until(
        self, try_: Callable[[], Any], not_yet: object, patience_s: float = PATIENCE_S
    ) -> Any:
        """What `try_` gives, tried at each change, for a while. Needs the lock."""
        deadline = clock.monotonic() + patience_s
        while True:
            found = try_()
            left_s = deadline - clock.monotonic()
            if found is not not_yet or left_s <= 0:
                return found
            self._transaction.changed.wait(left_s)
            if self._transaction.run != self._run:
                raise LostFault("another run of this write has begun")


def _answered(answer: Callable[[Fields], Fields], asked: Fields) -> Fields:
    """The answer, or the fault that is one."""
    try:
        return answer(asked)
    except (FencedFault, LostFault) as fault:
        return {"fault": str(fault), "is_lost": True}
    except (Fault, OSError) as fault:
        return {"fault": str(fault), "is_lost": False}
    except Exception as error:  # a task, or a driver, of another release
        return {"fault": f"the keeper could not answer: {error!r}", "is_lost": True}


def main() -> None:
    """`python -m shmbroker.spark.transactions.keeper NAME DIRECTORY PID HOST`: serve under the
    abstract name until the process PID, or the directory, is gone. It says "ready" on stdout, or
    "there" if another one has the name."""
    name, directory, pid, host = sys.argv[1:]
    driver = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        driver.bind(f"\0{name}")
    except OSError:
        print("there", flush=True)
        return
    driver.listen()
    tasks = socket.create_server((host, 0), backlog=1024)
    try:
        jvm = os.pidfd_open(int(pid))
    except ProcessLookupError:
        return
    print("ready", flush=True)
    os.close(1)

    def is_over() -> bool:
        return bool(select.select([jvm], [], [], 0)[0]) or not os.path.isdir(directory)

    Keeper(tasks, driver).serve(is_over, [jvm])


if __name__ == "__main__":
    main()
