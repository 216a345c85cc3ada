"""Who is silent: signs of life that are left often enough, and looked at with patience."""

import pytest

from shmbroker.controller.broker_watch import AWAY_S
from shmbroker.controller.controller import LOOK_S
from shmbroker.ipc.attention import Attention
from shmbroker.ipc.member import SIGN_INTERVAL_S, FamilyMember
from shmbroker.shm.counters import DOORBELL, LIVENESS_NS, Counters, layout_size
from shmbroker.shm.doorbell import Doorbell

TIMEOUT_S = 2.0


def looks(attention: Attention, begin: float, end: float, every: float = LOOK_S) -> list[bool]:
    count = round((end - begin) / every)
    return [attention.is_enough(begin + step * every) for step in range(count + 1)]


def test_who_looks_all_the_time_may_judge_after_the_timeout() -> None:
    attention = Attention(TIMEOUT_S, AWAY_S)
    found = looks(attention, 100.0, 110.0)
    first = found.index(True)
    assert first * LOOK_S == pytest.approx(TIMEOUT_S, abs=2 * LOOK_S)
    assert all(found[first:])


def test_rests_of_an_idle_controller_are_no_breaks() -> None:
    attention = Attention(TIMEOUT_S, AWAY_S)
    looks(attention, 100.0, 103.0)
    assert all(looks(attention, 103.5, 120.0, every=0.6))


def test_after_a_standstill_the_others_get_their_time_again() -> None:
    attention = Attention(TIMEOUT_S, AWAY_S)
    looks(attention, 100.0, 103.0)
    back = 103.0 + AWAY_S + 5.0
    assert not any(looks(attention, back, back + TIMEOUT_S - 2 * LOOK_S))
    assert attention.is_enough(back + TIMEOUT_S + LOOK_S)


def test_a_member_signs_when_it_is_up_and_not_more_often_than_need_be() -> None:
    counters = Counters(memoryview(bytearray(layout_size(1))), 1)
    doorbell = Doorbell(-1, counters.words, counters.at(0, DOORBELL))
    member = FamilyMember(0, counters, doorbell, doorbell, [])
    liveness = counters.at(0, LIVENESS_NS)
    signed = 0
    for step in range(1000):  # a turn each millisecond
        now = 50.0 + step / 1000
        counters.words[liveness] = 0
        member.sign(now)
        if counters.words[liveness]:
            signed += 1
            assert counters.words[liveness] == pytest.approx(now * 1e9, abs=1)
    assert signed == pytest.approx(1 / SIGN_INTERVAL_S, abs=1)
