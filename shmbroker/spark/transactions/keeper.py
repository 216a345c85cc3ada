"""The process beside Spark's driver that has the transactions of its writes.

Spark calls a writer's methods in Python processes that come and go, none of which is there from the
first task to the commit. So the first write of a SparkContext starts this one (`driver`), which
lasts as long as the JVM, and the context's directory.

    driver ──Unix socket──► begin a run, commit, abort
    tasks  ──TCP, by token──► enter, claim, lease, sending, sent, give_back, done

Each connection has a thread. What is asked goes to the transaction of its series (`series`); from
enter on, a task's questions are those of a `conversation`.

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
from collections.abc import Callable

from shmbroker import clock
from shmbroker.client.faults import FencedFault
from shmbroker.client.security import Security, from_plain
from shmbroker.errors import Fault
from shmbroker.spark.transactions.conversation import Conversation
from shmbroker.spark.transactions.leases import LostFault
from shmbroker.spark.transactions.messages import Channel, FarFault, Fields
from shmbroker.spark.transactions.series import SeriesState, TransactionSeries

LOOKS_S = 2.0
"""How often it is looked whether the SparkContext's directory is there."""
CONNECTIONS_MAX = 10_000
_SECURITIES_MAX = 4096
"""Runs that tasks may still come of."""


class Keeper:
    """All series of a SparkContext. `is_over` says whether its JVM is gone."""

    def __init__(self, tasks: socket.socket, driver: socket.socket) -> None:
        self._tasks = tasks
        self._driver = driver
        self._token = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._series: dict[TransactionSeries, SeriesState] = {}
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

    def _forget(self, one: SeriesState) -> None:
        """A write that is never repeated leaves nothing; its late tasks are refused."""
        if not one.series.is_remembered:
            with self._lock:
                self._ended.add(one.run)
                self._series.pop(one.series, None)
            one.close()

    def _find(self, name: str, run: int) -> SeriesState | None:
        with self._lock:
            for series, one in self._series.items():
                if series.name == name and one.run == run:
                    return one
        return None

    def _to_abort(self, asked: Fields) -> list[SeriesState]:
        """The transaction of this name and run; where Spark has not told them, that of this label
        and version."""
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
        series = TransactionSeries(*asked["series"])
        run, task, attempt = asked["run"], asked["task"], asked["attempt"]
        with self._lock:
            if run in self._ended:
                return
            security = self._securities.get(run)
            if security is None:
                return
            one = self._series.setdefault(series, SeriesState(series))

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
        conversation = Conversation(one, run, task, attempt)
        try:
            while True:
                asked = channel.hear()
                channel.say(_answered(conversation.answer, asked))
        finally:
            with contextlib.suppress(LostFault), one.of(run) as leases:
                leases.leave(task, attempt, clock.monotonic())


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
