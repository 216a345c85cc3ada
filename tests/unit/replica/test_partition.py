"""A partition's high watermark and its followers, at their limits."""

import itertools
from pathlib import Path

import pytest

from shmbroker.log.config import LogConfig
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.truncation import truncate_to
from shmbroker.records.batch import encode_batch
from shmbroker.replica.follower import lagging, may_join
from shmbroker.replica.partition import Partition
from tests.support.leadership import leadership

TOPIC_ID = bytes(16)
KEY = TOPIC_ID + bytes(4)
ALL = (1, 2, 3)
LAG_MS = 1000
NOW_MS = 50_000


class Led:
    """Partition 0 on broker 1, with what its process before had told (`known`)."""

    def __init__(self, directory: Path, end: int = 0, known: int = 0, min_in_sync: int = 1) -> None:
        config = LogConfig({"min.insync.replicas": str(min_in_sync)})
        self.log = PartitionLog.open(str(directory), config, file_ids=itertools.count(1))
        if end:
            self.append(end, 0)
        self.partition = Partition(KEY, "t", TOPIC_ID, 0, self.log)
        self.partition.known_high_watermark = known
        self.told: list[int] = []
        self.partition.store_high_watermark = self.told.append

    def append(self, count: int, epoch: int = 1) -> None:
        batch = encode_batch([(1, None, b"v", ())] * count)
        self.log.append(memoryview(batch), count - 1, 1, epoch, 1)

    def lead(self, epoch: int = 1, in_sync: tuple[int, ...] = ALL) -> Partition:
        self.partition.on_leadership(1, leadership(epoch, 1, ALL, in_sync))
        return self.partition

    def read_to(self, **ends: int) -> bool:
        """b2=5: broker 2 has everything before 5; True if the high watermark has moved."""
        for name, end in ends.items():
            follower = self.partition.followers[int(name[1:])]
            follower.log_start_offset, follower.log_end_offset = 0, end
        return self.partition.advance_high_watermark()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "t-0"
    made.mkdir()
    return made


@pytest.mark.parametrize(
    ("known", "expected"), [(0, 0), (3, 3), (5, 5), (6, 5)], ids=["none", "some", "all", "more"]
)
def test_process_begins_with_the_high_watermark_that_is_known(
    directory: Path, known: int, expected: int
) -> None:
    """What is behind it may be on this replica alone; beyond the log there is none."""
    assert Led(directory, 5, known).lead().high_watermark == expected


def test_two_replicas_are_as_careful_as_three(directory: Path) -> None:
    led = Led(directory, 5)
    led.partition.on_leadership(1, leadership(1, 1, (1, 2), (1, 2)))
    assert led.partition.high_watermark == 0


def test_one_replica_has_committed_all_that_it_has(directory: Path) -> None:
    led = Led(directory, 5)
    led.partition.on_leadership(1, leadership(1))
    assert led.partition.high_watermark == 5


def test_new_leader_is_behind_until_it_knows_what_was_told_before(directory: Path) -> None:
    led = Led(directory, 5, known=3)
    partition = led.lead()
    assert partition.is_high_watermark_behind
    led.read_to(b2=4, b3=4)
    assert partition.high_watermark == 4
    assert partition.is_high_watermark_behind
    led.read_to(b2=5, b3=5)
    assert not partition.is_high_watermark_behind, "nobody can have told more"


def test_leader_of_an_empty_log_is_not_behind(directory: Path) -> None:
    assert not Led(directory).lead().is_high_watermark_behind


def test_high_watermark_is_where_the_last_in_sync_replica_is(directory: Path) -> None:
    led = Led(directory)
    partition = led.lead(in_sync=(1, 2))
    led.append(5)
    assert not led.read_to(b2=0)
    assert led.read_to(b2=3, b3=1)
    assert partition.high_watermark == 3
    assert not led.read_to(b2=3), "it stays"
    assert led.read_to(b2=5)
    assert partition.high_watermark == 5
    assert led.told == [3, 5]


@pytest.mark.parametrize(("in_sync", "moves"), [((1,), False), ((1, 2), True), (ALL, True)])
def test_high_watermark_stays_while_too_few_are_in_sync(
    directory: Path, in_sync: tuple[int, ...], moves: bool
) -> None:
    led = Led(directory, min_in_sync=2)
    partition = led.lead(in_sync=in_sync)
    led.append(1)
    assert partition.is_under_min_in_sync is not moves
    assert led.read_to(b2=1, b3=1) is moves


def test_more_in_sync_than_there_are_replicas_are_not_asked_for(directory: Path) -> None:
    assert not Led(directory, min_in_sync=4).lead().is_under_min_in_sync


@pytest.mark.parametrize(
    ("end", "joins"),
    [(2, False), (3, False), (4, False), (5, True), (6, True)],
)
def test_follower_may_join_that_has_what_was_told_and_the_start_of_the_epoch(
    directory: Path, end: int, joins: bool
) -> None:
    """The log ended at 5 when the epoch began, and 3 was told."""
    led = Led(directory, 5, known=3)
    partition = led.lead(in_sync=(1, 2))
    led.append(1)
    led.read_to(b3=end)
    assert may_join(partition, partition.followers[3]) is joins
    assert not may_join(partition, partition.followers[2]), "it is in sync"


@pytest.mark.parametrize(("end", "joins"), [(2, False), (3, True)])
def test_follower_may_not_join_below_the_high_watermark(
    directory: Path, end: int, joins: bool
) -> None:
    led = Led(directory)
    partition = led.lead(in_sync=(1, 2))
    led.append(4)
    led.read_to(b2=3, b3=end)
    assert may_join(partition, partition.followers[3]) is joins


@pytest.mark.parametrize(
    ("end", "behind_ms", "found"),
    [
        (5, LAG_MS + 1, []),  # it has everything
        (4, LAG_MS, []),
        (4, LAG_MS + 1, [2]),
    ],
)
def test_follower_lags_that_was_behind_for_longer_than_allowed(
    directory: Path, end: int, behind_ms: int, found: list[int]
) -> None:
    led = Led(directory, 5)
    partition = led.lead(in_sync=(1, 2))
    led.read_to(b2=end)
    partition.followers[2].caught_up_ms = NOW_MS - behind_ms
    partition.followers[3].caught_up_ms = 1  # not in sync: nobody's matter
    assert lagging(partition, NOW_MS, LAG_MS) == found


def test_the_time_of_a_follower_begins_with_the_epoch(directory: Path) -> None:
    led = Led(directory, 5)
    partition = led.lead(in_sync=(1, 2))
    assert lagging(partition, NOW_MS, LAG_MS) == []
    assert lagging(partition, NOW_MS + LAG_MS, LAG_MS) == []
    assert lagging(partition, NOW_MS + LAG_MS + 1, LAG_MS) == [2]


def test_follower_has_no_more_than_its_log(directory: Path) -> None:
    led = Led(directory, 5)
    led.partition.on_leadership(1, leadership(1, 2, ALL, ALL))
    for told, expected in ((3, 3), (9, 5), (4, 5)):
        led.partition.follow_high_watermark(told)
        assert led.partition.high_watermark == expected
    assert led.told == [3, 5]


def test_high_watermark_does_not_go_back_with_an_epoch(directory: Path) -> None:
    led = Led(directory, 5, known=3)
    partition = led.lead()
    led.read_to(b2=5, b3=5)
    partition.on_leadership(1, leadership(2, 2, ALL, ALL))
    assert partition.high_watermark == 5
    assert led.lead(3).high_watermark == 5


def test_who_takes_over_knows_what_was_told_before_as_far_as_it_has_it(directory: Path) -> None:
    partition = Led(directory, 5, known=2).lead()
    for told, expected in ((4, 4), (3, 4), (9, 5)):
        partition.take_over(told)
        assert partition.high_watermark == expected


def test_high_watermark_is_never_beyond_a_log_that_was_cut(directory: Path) -> None:
    led = Led(directory, 3, known=5)
    led.append(2)
    led.partition.follow_high_watermark(5)
    truncate_to(led.log, 3)
    led.partition.on_truncated()
    assert led.partition.high_watermark == led.log.log_end_offset == 3
    assert led.told == [5, 3], "followers compare with it"


@pytest.mark.parametrize(("epoch", "leads"), [(1, False), (2, True), (3, True)])
def test_who_lacks_something_does_not_lead_before_the_epoch_that_knows_it(
    directory: Path, epoch: int, leads: bool
) -> None:
    led = Led(directory)
    led.partition.leads_from_epoch = 2
    assert led.lead(epoch).is_leader is leads
