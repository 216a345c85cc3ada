"""Nobody goes to sleep on what came while it was still up: who brings it rings only sleepers."""

from types import SimpleNamespace
from typing import Any

from shmbroker.config import BrokerConfig
from shmbroker.processes.active_link import ActiveLink
from shmbroker.processes.child import SleepingChild
from shmbroker.processes.io_worker import IoWorker
from shmbroker.shm.counters import CONTROL_GENERATION_WORD, METADATA_END_OFFSET_WORD

WORDS = 1 << 10


class Slept(Exception):
    """It would wait in epoll now."""


def asleep(_timeout: float) -> None:
    raise Slept


def worker_with(words: memoryview) -> Any:
    worker = IoWorker.__new__(IoWorker)
    worker.words = words
    counters: Any = SimpleNamespace(words=words)
    worker.link = ActiveLink(counters, [], BrokerConfig.load(), "cluster")
    worker.generation = 0
    worker.broker_epoch = 7
    worker.must_stop = False
    worker.peers = []
    worker.epoll = SimpleNamespace(poll=asleep)
    worker.doorbell = SimpleNamespace(say_sleeping=lambda: None, awake=lambda: None)
    return worker


def does_sleep(worker: Any) -> bool:
    try:
        SleepingChild.sleep(worker, 1.0)
    except Slept:
        return True
    return False


def test_a_commit_between_the_last_look_and_the_sleep_is_not_slept_on() -> None:
    words = memoryview(bytearray(8 * WORDS)).cast("Q")
    worker = worker_with(words)
    link = worker.link
    assert not link.is_behind() and does_sleep(worker)
    words[METADATA_END_OFFSET_WORD] = 5
    assert not does_sleep(worker)
    assert link.is_behind() and does_sleep(worker)  # once for each commit: it doesn't spin
    words[METADATA_END_OFFSET_WORD] = 6
    worker.broker_epoch = -1  # it waits for its registration, and follows nothing before
    assert does_sleep(worker)


def test_a_death_is_not_slept_on() -> None:
    words = memoryview(bytearray(8 * WORDS)).cast("Q")
    worker = worker_with(words)
    words[CONTROL_GENERATION_WORD] = 1
    assert not does_sleep(worker)
