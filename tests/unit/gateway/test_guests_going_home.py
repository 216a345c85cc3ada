"""Guests come home when they or their host get loud, or ask for something else."""

import select

import pytest

from shmbroker.gateway import lending
from shmbroker.gateway.fetch_ahead import ToldSlices
from shmbroker.gateway.guests import BUSY_S, RESTS_S, TIMES_FEW, USUAL_PER_S, WINDOW_S
from shmbroker.gateway.lending import LOOK_S, QUIET_LOOKS, RESTING
from shmbroker.metadata.quota_image import quota_record
from tests.support.family_memory import BROKER_ID
from tests.unit.gateway.two_gateways import BATCH, FETCH, METADATA, PRODUCE, Two, fetch_body, two

__all__ = ["two"]


def test_what_a_guest_may_not_ask_is_answered_at_home(two: Two) -> None:
    two.become_quiet()
    _, answer = two.ask(METADATA)
    assert [broker["node_id"] for broker in answer["brokers"]] == [BROKER_ID]  # type: ignore[union-attr, index]
    assert not two.is_lent and not two.guests.present
    assert len(two.home.gateway.loop.connections) == two.open == 1
    assert two.ask(PRODUCE)[0] is two.home


def test_a_guest_that_begins_another_fetch_session_goes_home(two: Two) -> None:
    two.become_quiet()
    for _ in range(2):
        by, _ = two.ask(FETCH, fetch_body(0, 0, names=True))
        assert by is two.host
    two.rest(WINDOW_S)
    two.turns()
    assert not two.is_lent


def test_guests_go_home_from_a_host_without_rest_and_stay_longer_each_time(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "is_straight", lambda _connection: False)
    stayed = []
    for _ in range(3):
        two.become_quiet()
        for _ in range(TIMES_FEW + 1):
            two.ask(FETCH, fetch_body(0, -1, names=True))
        two.work(BUSY_S * 1.5)
        two.turns()
        assert not two.is_lent and two.room >= RESTING
        began = two.home.clock.now
        while True:
            by, _ = two.ask(PRODUCE)
            if by is two.host:
                break
            two.rest(LOOK_S)
            two.turns()
        stayed.append(two.home.clock.now - began)
        two.ask(METADATA)
        two.rest(0.01)
        # the lender keeps it a while, too; nobody tests both at once
        two.lender.stays.clear()
    assert RESTS_S[0] <= stayed[0] < stayed[1] < stayed[2]


def test_a_loud_guest_is_read_no_more_and_goes_once_it_is_answered(two: Two) -> None:
    two.become_quiet()
    for _ in range(TIMES_FEW):
        two.ask(PRODUCE)
    two.send(PRODUCE)
    two.turns()
    two.work(BUSY_S * 1.5)
    two.send(PRODUCE)
    two.turns()
    assert two.is_lent and two.serve(two.host) == 1
    two.turns()
    assert not two.is_lent and two.serve(two.home) == 1
    two.turns()
    for _ in range(2):
        assert two.home.answer(*PRODUCE)["responses"]


def test_when_quotas_come_guests_go_home(two: Two) -> None:
    two.become_quiet()
    two.host.gateway.quotas.is_active = True
    two.home.gateway.quotas.is_active = True
    two.ask(PRODUCE)
    two.turns()
    assert not two.is_lent and not two.guests.present
    [connection] = two.home.gateway.loop.connections.values()
    assert connection.throttle is not None, "it is charged like those that were at home"
    for _ in range(2 * QUIET_LOOKS):
        two.rest(LOOK_S)
        assert two.ask(PRODUCE)[0] is two.home


def test_who_was_to_be_lent_stays_when_quotas_come(two: Two) -> None:
    two.rest(WINDOW_S)
    for _ in range(QUIET_LOOKS + 2):
        two.rest(LOOK_S)
        two.send(PRODUCE)
        two.turns()
        if two.lender.to_lend:
            break
        two.serve(two.home)
        two.turns()
        two.home.answer(*PRODUCE)
    assert two.lender.to_lend and not two.is_lent, "it waits for its answer"
    two.home.link.commit(quota_record((("user", None),), "consumer_byte_rate", 1.0))
    two.home.quiet_turn()
    assert two.serve(two.home) == 1
    two.turns()
    assert two.home.answer(*PRODUCE)["responses"]
    assert not two.is_lent
    [connection] = two.home.gateway.loop.connections.values()
    assert not connection.is_muted
    two.home.link.commit(quota_record((("user", None),), "consumer_byte_rate", None))
    two.home.quiet_turn()
    assert connection.throttle is None, "it is not held to a quota that is gone"


def test_who_was_to_be_lent_is_muted_for_as_long_as_a_quota_says(two: Two) -> None:
    home = two.home
    [connection] = home.gateway.loop.connections.values()
    home.gateway.loop.mute(connection)
    two.lender.muted.add(connection)  # until what it waits for is answered
    home.link.commit(quota_record((("user", None),), "consumer_byte_rate", 1.0))
    home.quiet_turn()
    home.gateway.quotas.mute(connection, 10_000, "fetch")
    two.rest(LOOK_S)
    home.quiet_turn()
    assert connection.is_muted and not two.lender.muted
    two.rest(10)
    home.quiet_turn()
    assert not connection.is_muted


@pytest.mark.parametrize("knows_quota", [True, False])
@pytest.mark.parametrize("has_sent", [True, False])
def test_a_guest_that_a_quota_has_muted_stays_muted_at_home(
    two: Two, *, knows_quota: bool, has_sent: bool
) -> None:
    """It was read at once, as only its host knew how long it was to wait."""
    two.become_quiet()
    quota = quota_record((("user", None),), "producer_byte_rate", 1.0)
    two.send(PRODUCE)
    if has_sent:
        two.send(METADATA)
    two.host.gateway.turn(two.host.poller.poll(0))
    two.host.link.commit(quota)
    two.host.gateway.turn([])
    if knows_quota:
        two.home.link.commit(quota)
        two.home.quiet_turn()
    [guest] = two.guests.present
    two.host.gateway.quotas.mute(guest, 10_000, "produce")
    assert two.serve(two.host) == 1
    two.turns()
    assert not two.is_lent and two.home.answer(*PRODUCE)["responses"]
    [connection] = two.home.gateway.loop.connections.values()
    if not has_sent:
        two.send(METADATA)
    two.turns()
    assert connection.is_muted
    assert not select.select([two.home.client], [], [], 0)[0]
    two.rest(10)
    two.turns()
    assert not connection.is_muted
    assert two.home.answer(*METADATA)["brokers"]


def test_what_was_told_before_a_connection_was_lent_is_not_used_when_it_is_home(two: Two) -> None:
    two.become_quiet()
    [away] = two.lender.lent.values()
    away.connection.ahead = ToldSlices()
    two.guests.close()
    two.turns()
    assert not two.is_lent and away.connection.ahead is None


def test_who_asks_again_at_once_is_not_kept(two: Two) -> None:
    two.become_quiet()
    [guest] = two.guests.present
    for _ in range(int(USUAL_PER_S * WINDOW_S * 2)):  # as a client that waits for each answer
        two.guests.note_usual(guest)
    two.rest(WINDOW_S)
    two.turns()
    assert not two.is_lent and two.room >= RESTING


def test_who_goes_the_straight_way_is_kept_however_busy_that_is(two: Two) -> None:
    two.become_quiet()
    [guest] = two.guests.present
    for _ in range(10):
        two.guests.mark(guest)
        for _ in range(TIMES_FEW):
            two.guests.note_usual(guest)
        two.work(WINDOW_S)
        two.turns()
    assert two.is_lent


def test_who_asks_for_something_large_goes_home(two: Two) -> None:
    two.become_quiet()
    two.ask(PRODUCE)
    for family in (two.home, two.host):
        [fast] = family.gateway.produce.known.kept.values()
        fast.lent_bytes_max = len(BATCH) - 1
    two.rest(0.01)
    two.ask(PRODUCE)
    two.rest(WINDOW_S)
    two.turns()
    assert not two.is_lent
    two.rest(RESTS_S[0])
    for _ in range(2 * QUIET_LOOKS):
        two.rest(LOOK_S)
        assert two.ask(PRODUCE)[0] is two.home
