"""Signs of life from deep within work."""

import threading
from collections.abc import Iterator

import pytest

from shmbroker import signs


class Listener:
    def __init__(self) -> None:
        self.signs = 0
        self.words: list[int] = []

    def leave(self) -> None:
        self.signs += 1


@pytest.fixture
def listener() -> Iterator[Listener]:
    listening = Listener()
    signs.attach(listening.leave, listening.words.append)
    yield listening
    signs.attach(None, None)


def test_who_listens_no_more_hears_nothing(listener: Listener) -> None:
    signs.attach(None, None)
    signs.sign()
    signs.at_work(signs.FLUSHING, 3)
    with signs.waiting_for_disk():
        pass
    assert (listener.signs, listener.words) == (0, [])


def test_work_and_what_is_left_of_it_are_one_word(listener: Listener) -> None:
    signs.at_work(signs.FLUSHING, 812)
    assert signs.describe(listener.words[-1]) == "making logs durable, 812 left"
    signs.at_work(signs.NOTHING)
    assert listener.words[-1] == 0
    assert listener.signs == 2


def test_wait_for_the_disk_is_told_within_other_work_and_ends_with_a_sign(
    listener: Listener,
) -> None:
    signs.at_work(signs.OPENING, 7)
    with pytest.raises(OSError, match="disk"), signs.waiting_for_disk():
        assert listener.words[-1] & signs.WAITS_FOR_DISK
        with signs.waiting_for_disk():
            pass
        assert listener.words[-1] & signs.WAITS_FOR_DISK
        raise OSError("disk")
    assert signs.describe(listener.words[-1]) == "opening logs, 7 left"
    assert not listener.words[-1] & signs.WAITS_FOR_DISK
    assert listener.signs == 2


def test_other_threads_say_nothing_for_the_main_loop(listener: Listener) -> None:
    def work() -> None:
        signs.sign()
        signs.at_work(signs.FLUSHING, 1)
        with signs.waiting_for_disk():
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert listener.signs == 0
    assert listener.words == []


def test_largest_amount_fits_into_a_word(listener: Listener) -> None:
    signs.at_work(signs.FLUSHING, 1 << 60)
    assert 0 < listener.words[-1] < 1 << 64
