"""ListOffsets (key 2): offsets by timestamp, and the ends of a log.

Versions: 1-11.
Where: the I/O worker of the connection's port.
Version notes: 2 isolation level; 4 leader epoch; 5 OFFSET_NOT_AVAILABLE; 6 flexible; 7 max
timestamp (KIP-734); 8 earliest local (KIP-405); 9 latest tiered; 11 earliest pending upload.

A new leader does not know how far its predecessor had got until the followers have read as far as
its own log went when it took over. Until then its high watermark may be behind what a client was
told before: the end, and a time after what is known, are answered with OFFSET_NOT_AVAILABLE
(KIP-207), as they would go back.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from shmbroker.apis.contexts import BrokerContext
from shmbroker.errors import StorageFault
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_adapter import STEP_ROWS, Call, Steps
from shmbroker.ipc.operation_layout import READ_COMMITTED
from shmbroker.log.lookups import max_timestamp, offset_for_timestamp
from shmbroker.metadata.image import TopicImage
from shmbroker.replica.partition import Partition, not_led_error
from shmbroker.wire import error_codes

API_KEY = 2
NAME = "ListOffsets"
VERSION_MIN = 1
VERSION_MAX = 11
VERSION_MIN_ADVERTISED = 1

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

ENDS = (LATEST, EARLIEST, EARLIEST_LOCAL)
"""What is known without a search."""

SEARCH_S = 0.005
"""How long one step may search: a single batch may take ten times that."""

_FAR = 2**63 - 1
"""A time that no record has: looking for it waits until it is known what the store has."""

VERSION_OF_SENTINEL = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


class PendingAnswer:
    """An answer whose last rows are looked for in the remote store."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.count = 0
        self.body: dict[str, Any] | None = None
        """Set when all rows are in it."""

    def on_row(self) -> None:
        """One of them is found."""
        self.count -= 1
        if not self.count and self.body is not None:
            self.call.reply(self.body)


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> Steps:
    """One answer for each partition asked, errors per partition. None: it comes later."""
    counts: dict[tuple[str, int], int] = {}
    for topic in body["topics"]:
        for asked in topic["partitions"]:
            key = topic["name"], asked["partition_index"]
            counts[key] = counts.get(key, 0) + 1
    is_known_isolation = body["isolation_level"] in (0, 1)
    topics: dict[str, list[dict[str, Any]]] = {}
    pending = PendingAnswer(call)
    looked_up = 0
    deadline = broker.clock.monotonic() + SEARCH_S
    for topic in body["topics"]:
        name = topic["name"]
        image = broker.image.topics_by_name.get(name)
        for asked in topic["partitions"]:
            index = asked["partition_index"]
            times = counts[name, index]
            if times == 0:
                continue  # told already
            row = {"partition_index": index, "timestamp": -1, "offset": -1}
            if not is_known_isolation:
                row["error_code"] = error_codes.UNKNOWN_SERVER_ERROR
            elif times > 1:
                counts[name, index] = 0
                row["error_code"] = error_codes.INVALID_REQUEST
            else:
                is_committed = body["isolation_level"] == READ_COMMITTED
                _look_up(broker, image, asked, call.api_version, is_committed, row, pending)
                looked_up += 1
                is_search = asked["timestamp"] not in ENDS
                if looked_up % STEP_ROWS == 0 or (
                    is_search and broker.clock.monotonic() > deadline
                ):
                    yield
                    deadline = broker.clock.monotonic() + SEARCH_S
            topics.setdefault(name, []).append(row)
    answered = {"topics": [{"name": name, "partitions": rows} for name, rows in topics.items()]}
    if not pending.count:
        return answered
    pending.body = answered
    return None


def _look_up(
    broker: BrokerContext,
    image: TopicImage | None,
    asked: dict[str, Any],
    version: int,
    is_committed: bool,
    row: dict[str, Any],
    pending: PendingAnswer,
) -> None:
    """Fill a row in, now or when the remote store has answered."""
    index, timestamp = asked["partition_index"], asked["timestamp"]
    if timestamp < 0 and version < VERSION_OF_SENTINEL.get(timestamp, 99):
        row["error_code"] = error_codes.UNSUPPORTED_VERSION
        return
    if image is None or not 0 <= index < len(image.partitions):
        row["error_code"] = error_codes.UNKNOWN_TOPIC_OR_PARTITION
        return
    partition = broker.partitions.find(partition_key(image.topic_id, index))
    if partition is None or not partition.is_leader:
        row["error_code"] = not_led_error(partition)
        return
    epoch = asked["current_leader_epoch"]
    if epoch not in (-1, partition.leader_epoch):
        is_older = epoch < partition.leader_epoch
        row["error_code"] = (
            error_codes.FENCED_LEADER_EPOCH if is_older else error_codes.UNKNOWN_LEADER_EPOCH
        )
        return
    if timestamp == LATEST:
        if partition.is_high_watermark_behind:
            row["error_code"] = _not_available(version)
            return
        row["offset"] = _visible_end(partition, is_committed)
        if version >= 4:
            row["leader_epoch"] = partition.leader_epoch
    elif timestamp in VERSION_OF_SENTINEL and timestamp != MAX_TIMESTAMP:
        _fill(partition, row, version, -1, _end(broker, partition, timestamp))
    else:
        _Search(broker, partition, timestamp, version, is_committed, row, pending).begin()


def _end(broker: BrokerContext, partition: Partition, which: int) -> int:
    """The offset of one of the log's ends; -1 for an end that it doesn't have."""
    log = partition.log
    if which == EARLIEST:
        return int(log.log_start_offset)
    if which == EARLIEST_LOCAL:
        return int(log.local_start_offset)
    if not broker.tiering.is_there or not log.config.is_tiered:
        return -1
    end = broker.tiering.end_offset(partition)
    if which == LATEST_TIERED:
        return max(end - 1, -1)
    if end >= 0:
        return int(max(end, log.log_start_offset))
    # Nothing is copied as far as is known: then all of it is yet to be, if all of it is here.
    return int(log.log_start_offset) if log.log_start_offset == log.local_start_offset else -1


class _Search:
    """Looks for the first record of a partition that isn't older than a time, or has the largest,
    first among what only the remote store has; fills its row in, now or later."""

    def __init__(
        self,
        broker: BrokerContext,
        partition: Partition,
        timestamp: int,
        version: int,
        is_committed: bool,
        row: dict[str, Any],
        pending: PendingAnswer,
    ) -> None:
        self._broker = broker
        self._partition = partition
        self._timestamp = timestamp
        self._fill = partial(_fill_found, partition, row, version, is_committed)
        self._row = row
        self._pending = pending

    def begin(self) -> None:
        """Look; where the disk refuses, the row says so."""
        self._look(self._find)

    def _look(self, look: Callable[[], None]) -> None:
        try:
            look()
        except StorageFault as fault:
            self._broker.on_storage_fault(self._partition, fault)
            self._row["error_code"] = error_codes.KAFKA_STORAGE_ERROR

    def _find(self) -> None:
        tiering, partition = self._broker.tiering, self._partition
        wanted = self._timestamp
        if wanted == MAX_TIMESTAMP:
            if tiering.is_older_here(partition, _FAR):
                self._ask_store(_FAR, lambda _timestamp, _offset: self._find())
                return
            wanted = tiering.max_timestamp(partition)
            if wanted < 0 or wanted < max_timestamp(partition.log)[0]:
                self._find_here()
                return
        if tiering.is_older_here(partition, wanted):
            self._ask_store(wanted, self._take)
        else:
            self._find_here()

    def _find_here(self) -> None:
        log = self._partition.log
        found: tuple[int, int] | None
        if self._timestamp == MAX_TIMESTAMP:
            found = max_timestamp(log)
        else:
            found = offset_for_timestamp(log, self._timestamp)
        self._fill(*(found or (-1, -1)))

    def _take(self, timestamp: int, offset: int) -> None:
        """Take what the store has found; a negative offset: nothing."""
        if offset < 0:
            self._find_here()
        else:
            self._fill(timestamp, offset)

    def _ask_store(self, timestamp: int, on_found: Callable[[int, int], None]) -> None:
        def on_done(error: int, found_timestamp: int, offset: int) -> None:
            if error:
                self._row["error_code"] = error
            else:
                self._look(partial(on_found, found_timestamp, offset))
            self._pending.on_row()

        self._pending.count += 1
        self._broker.tiering.find_time(self._partition, timestamp, on_done)


def _visible_end(partition: Partition, is_committed: bool) -> int:
    """Exclusive end of what the asker may see, by its isolation level."""
    return partition.last_stable_offset if is_committed else partition.high_watermark


def _fill_found(
    partition: Partition,
    row: dict[str, Any],
    version: int,
    is_committed: bool,
    timestamp: int,
    offset: int,
) -> None:
    """Fill in a record that was found, if readers may know of it."""
    if 0 <= offset < _visible_end(partition, is_committed):
        _fill(partition, row, version, timestamp, offset)
    elif partition.is_high_watermark_behind:
        row["error_code"] = _not_available(version)


def _not_available(version: int) -> int:
    """What a client retries, whatever its version."""
    return error_codes.OFFSET_NOT_AVAILABLE if version >= 5 else error_codes.LEADER_NOT_AVAILABLE


def _fill(
    partition: Partition, row: dict[str, Any], version: int, timestamp: int, offset: int
) -> None:
    if offset < 0:
        return
    row["timestamp"], row["offset"] = timestamp, offset
    if version >= 4:
        row["leader_epoch"] = partition.log.leader_epochs.epoch_at(offset)
