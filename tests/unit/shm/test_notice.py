"""A notice: read whole or not at all, and once."""

import pytest

from shmbroker.shm import notice
from shmbroker.shm.notice import Notice
from shmbroker.shm.words import words_of

SIZE = 64


def test_text_is_news_once_to_others_only() -> None:
    view = memoryview(bytearray(SIZE))
    writer, reader = Notice(view), Notice(view)
    assert reader.news() is None
    writer.post("first ß")
    assert reader.news() == "first ß"
    assert reader.news() is None
    assert writer.news() is None, "and to what it forks"
    writer.post("2")
    writer.post("3")
    assert reader.news() == "3"


def test_text_that_is_being_written_is_no_news_yet() -> None:
    view = memoryview(bytearray(SIZE))
    writer, reader = Notice(view), Notice(view)
    writer.post("one")
    words_of(view)[notice.REVISION] += 1
    assert reader.news() is None
    words_of(view)[notice.REVISION] += 1
    assert reader.news() == "one"


def test_text_without_room_leaves_the_one_before() -> None:
    view = memoryview(bytearray(SIZE))
    writer, reader = Notice(view), Notice(view)
    writer.post("one")
    with pytest.raises(ValueError, match="there is room for 48"):
        writer.post("x" * 49)
    assert reader.news() == "one"
