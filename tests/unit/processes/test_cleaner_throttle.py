"""How long compaction waits for its bytes."""

from shmbroker.processes.cleaner import CleanerRate


def test_bytes_cost_their_time_at_the_rate_of_the_moment() -> None:
    throttle = CleanerRate(10.0)
    throttle.add(1000)
    assert throttle.wait_s(100, 10.0) == 10.0
    assert throttle.wait_s(100, 14.0) == 6.0
    assert throttle.wait_s(1000, 14.0) == 0.6
    assert throttle.wait_s(1, 14.0) == 600.0
    assert throttle.wait_s(1 << 62, 14.1) == 0.0


def test_time_without_bytes_saves_nothing() -> None:
    throttle = CleanerRate(0.0)
    assert throttle.wait_s(100, 50.0) == 0.0
    throttle.add(100)
    assert throttle.wait_s(100, 50.0) == 1.0
