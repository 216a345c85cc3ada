"""Nobody goes to sleep on what came while it was still up: who brings it rings only sleepers."""

import pytest

from shmbroker.processes.active_link import ActiveLink
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.shm.counters import METADATA_END_OFFSET_WORD, Counters, layout_size


@pytest.fixture
def counters() -> Counters:
    return Counters(memoryview(bytearray(layout_size(1))), 1)


def test_a_commit_between_the_last_look_and_the_sleep_is_news_once(counters: Counters) -> None:
    link = ActiveLink(counters, [], BrokerConfig.load(), "cluster")
    assert not link.is_behind() and not link.has_news()
    for end in (5, 6):
        counters.words[METADATA_END_OFFSET_WORD] = end
        assert link.has_news()
        assert link.is_behind() and not link.has_news()  # once for each commit: it doesn't spin
