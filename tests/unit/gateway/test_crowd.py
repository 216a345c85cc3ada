"""When a network worker may rest between heartbeats: only while nothing else is asked for."""

from shmbroker.gateway.crowd import QUIET_S, WINDOW_S, Crowd

STEP_S = 0.001


class Turns:
    """Turns of a millisecond, and what they count."""

    def __init__(self) -> None:
        self.crowd = Crowd()
        self.repeated = self.operations = 0

    def look(self, now: float) -> bool:
        return self.crowd.rest_s(now, self.repeated, self.operations) > 0

    def go(self, start: float, seconds: float, per_s: float, is_busy: bool = False) -> bool:
        """With so many standing answers a second; the last verdict of a turn that had one."""
        verdict = False
        for turn in range(round(seconds / STEP_S)):
            now = start + turn * STEP_S
            if int(turn * STEP_S * per_s) != int((turn + 1) * STEP_S * per_s):
                self.repeated += 1
                self.operations += is_busy
                verdict = self.look(now)
            else:
                assert not self.look(now)  # nothing was repeated: there is nothing to rest for
        return verdict


def test_hundreds_of_heartbeats_and_nothing_else_are_a_crowd() -> None:
    turns = Turns()
    turns.operations = turns.repeated = 5
    turns.look(100.0)
    assert not turns.go(100.0, QUIET_S / 2, 1000)
    assert turns.go(100.0 + QUIET_S / 2, 1.0, 1000)


def test_few_heartbeats_are_no_crowd_however_long_it_was_quiet() -> None:
    turns = Turns()
    assert not turns.go(100.0, 3.0, 100)
    turns.repeated += 50
    assert not turns.look(200.0)


def test_another_request_ends_the_rests_at_once() -> None:
    turns = Turns()
    assert turns.go(100.0, 1.0, 1000)
    turns.operations += 1
    turns.repeated += 1
    assert not turns.look(101.0)
    assert not turns.go(101.0, QUIET_S, 1000)
    assert turns.go(101.0 + QUIET_S, 0.1, 1000)


def test_traffic_among_the_heartbeats_keeps_it_awake() -> None:
    assert not Turns().go(100.0, 1.0, 1000, is_busy=True)


def test_crowd_that_thins_out_is_none_any_more() -> None:
    turns = Turns()
    assert turns.go(100.0, 1.0, 1000)
    assert not turns.go(101.0, 3 * WINDOW_S, 50)
