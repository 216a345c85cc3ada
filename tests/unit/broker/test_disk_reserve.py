"""When Produce is refused for want of room, and when it is served again."""

import pytest

from shmbroker.broker.disk_reserve import OWN_SHARE, DiskReserve, Space

GIB = 1 << 30


def test_refused_below_the_reserve_and_served_again_from_twice_of_it() -> None:
    reserve = DiskReserve("/data", 100)
    seen = []
    for available in (500, 100, 99, 150, 199, 200, 100, 99):
        reserve.look(Space(1000, available))
        seen.append(reserve.is_used)
    assert seen == [False, False, True, True, True, False, False, True]


def test_only_a_change_is_told(caplog: pytest.LogCaptureFixture) -> None:
    reserve = DiskReserve("/data", 100 << 20)
    told = [reserve.look(Space(1 << 40, mib << 20)) for mib in (500, 99, 98, 97, 200, 500)]
    assert told == [False, True, False, False, True, False]
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "99 MiB" in caplog.text and "100 MiB" in caplog.text


@pytest.mark.parametrize(
    "total, reserve",
    [(12 << 20, (12 << 20) // 100), (100 * GIB, 256 << 20), (10_000 * GIB, 256 << 20)],
)
def test_own_share_follows_the_file_system(total: int, reserve: int) -> None:
    own = DiskReserve("/data", OWN_SHARE)
    own.look(Space(total, reserve))
    assert not own.is_used
    own.look(Space(total, reserve - 1))
    assert own.is_used


def test_no_reserve_refuses_nothing() -> None:
    none = DiskReserve("/data", 0)
    assert not none.look(Space(1000, 0))
    assert not none.is_used


def test_file_system_that_became_read_only_is_told_and_used_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Stores into mapped segments go on there, but reach no disk."""
    reserve = DiskReserve("/data", 100)
    looks = [Space(1000, 500), Space(1000, 500, is_read_only=True), Space(1000, 500, True)]
    assert [(reserve.look(each), reserve.is_used) for each in looks] == [
        (False, False),
        (True, True),
        (False, True),
    ]
    assert "/data: its file system has become read-only: Produce is refused" in caplog.text
    assert reserve.look(Space(1000, 500)) and not reserve.is_used
