"""Nobody goes to sleep on what came while it was still up: who brings it rings only sleepers."""

from pathlib import Path

import pytest

from shmbroker.processes.active_link import ActiveLink
from shmbroker.records.batch import encode_batch
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.shm.counters import METADATA_END_OFFSET_WORD, Counters, layout_size
from shmbroker.wire.metadata_records import encode_metadata_record


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


def test_steps_that_are_left_are_news(counters: Counters, tmp_path: Path) -> None:
    rows = [("FeatureLevelRecord", 0, {"name": "f", "feature_level": each}) for each in range(2500)]
    values = [encode_metadata_record(*row) for row in rows]
    log = tmp_path / f"{0:020d}.log"
    log.write_bytes(encode_batch([(1000, None, value, ()) for value in values]))
    link = ActiveLink(counters, [], BrokerConfig.load(), "cluster")
    link.follower.reader.move(str(tmp_path))
    counters.words[METADATA_END_OFFSET_WORD] = 2500
    for _ in range(2):
        assert link.catch_up() is None and link.has_news() and link.is_behind()
    assert link.catch_up() == [] and not link.has_news() and not link.is_behind()
    assert link.follower.image.features == {"f": 2499}
