"""A thread that another test has left behind takes no part in a simulation."""

import threading

from shmbroker import clock
from tests.simulation.family.simulate import Simulation


def test_a_thread_from_elsewhere_changes_nothing() -> None:
    alone = Simulation(3)
    alone.run()
    is_over = threading.Event()
    times: list[float] = []

    def look() -> None:
        while not is_over.is_set():
            clock.sleep(0.0001)
            times.append(clock.monotonic())

    began = clock.monotonic()
    stranger = threading.Thread(target=look)
    stranger.start()
    beside = Simulation(3)
    try:
        beside.run()
    finally:
        is_over.set()
        stranger.join()
    assert beside.lines == alone.lines
    assert times and began <= min(times) and max(times) <= clock.monotonic()
