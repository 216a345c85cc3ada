"""The records of a batch, one by one: what a broker that looks at them refuses, as Kafka does.

Kafka walks the records of every produced batch (`LogValidator`, `DefaultRecord.readFrom`). Here
that is done where a topic asks for it, and where the answer depends on single records: keys on
compacted topics, limits of timestamps. Three ways, which agree (tests compare them):

    kernels        compiled; says whether all is well, and leaves what isn't to the others
    record_walk    numpy, from VECTOR_RECORDS_MIN records on, where there are no kernels
    _walk          a plain loop

What a record must be; every number is a zigzag varint of at most 5 bytes and 32 bits, the timestamp
delta of at most 10 (64 bits, and the sum with the base timestamp wraps, as in Java):

    length         exactly what follows, up to the next record
    attributes     one byte, whatever it is
    timestamp delta
    offset delta   0, 1, 2 … (a plain batch with others Kafka stores, a compressed one fails)
    key, value     a length of -1 (null) or more; their bytes
    header count   0 or more; each: a key (not null) and a value, as above

and behind the last one there is nothing. Source: KIP-467 for the errors of single records.
"""

from typing import NamedTuple

from shmbroker.errors import ProtocolFault
from shmbroker.kernels import native
from shmbroker.records import codecs
from shmbroker.records.batch_layout import (
    COMPRESSION_MASK,
    H_ATTRIBUTES,
    H_BASE_TIMESTAMP,
    H_COUNT,
    H_MAX_TIMESTAMP,
    NO_TIMESTAMP,
    RECORD_SIZE_MIN,
    RECORDS_POSITION,
    TIMESTAMP_TYPE_BIT,
)
from shmbroker.wire.error_codes import INVALID_RECORD, INVALID_TIMESTAMP, MESSAGE_TOO_LARGE

VECTOR_RECORDS_MIN = 96
"""The number of records from which numpy's price for a batch is less than that of a loop: 100 µs,
not 1.2 a record."""

RECORD_ERRORS_MAX = 1000
"""Records at fault that a refusal names: an answer stays small, whatever the batch held."""

NATIVE_FAULTS_MAX = 1024
"""Faults that the kernels name."""

DETAILED_RECORDS_MAX = 100_000
"""Records of a batch that are walked once more for the timestamps of those at fault, 20 ms."""

PLAIN_BYTES_MAX = 16 << 20
PLAIN_RATIO_MAX = 16
"""What a batch whose records are looked at may decompress to: 16 times what its topic takes as a
batch, and 16 MiB at least, which takes 50 ms with gzip and 20 with the others. Java's producer cuts
larger ones and sends the parts; all others count the bytes before they compress them."""

TIMESTAMP_MIN = -(1 << 63)
TIMESTAMP_MAX = (1 << 63) - 1
UNTOLD = 1 << 64

_SHOWN = 3


class Refusal(NamedTuple):
    """Why a batch is not stored."""

    error_code: int
    message: str | None
    record_errors: list[tuple[int, str]]
    """(index in the batch, what is wrong with that record): the first RECORD_ERRORS_MAX."""


class Rules(NamedTuple):
    """What a topic asks of single records at the moment."""

    place: str
    """Topic and partition, for messages."""
    is_key_needed: bool
    is_log_append_time: bool
    oldest_ms: int
    newest_ms: int
    """The limits of timestamps, both inclusive."""
    plain_bytes_max: int = PLAIN_BYTES_MAX
    """What a batch may decompress to (`plain_bytes_max`)."""


def plain_bytes_max(message_bytes_max: int) -> int:
    """What a batch of a topic with this max.message.bytes may decompress to."""
    return max(PLAIN_BYTES_MAX, PLAIN_RATIO_MAX * message_bytes_max)


class Faults:
    """Records at fault, in order: (index, timestamp that is out of range or None: has no key).

    UNTOLD stands for a timestamp that nobody has read.
    """

    __slots__ = ("count", "first", "is_more", "is_untimely")

    def __init__(self) -> None:
        self.is_more = False
        """Whether there may be more than `count`."""
        self.first: list[tuple[int, int | None]] = []
        """The first RECORD_ERRORS_MAX."""
        self.count = 0
        self.is_untimely = False
        """Whether some timestamp is out of range."""

    def add(self, index: int, timestamp: int | None) -> None:
        self.count += 1
        self.is_untimely |= timestamp is not None
        if len(self.first) < RECORD_ERRORS_MAX:
            self.first.append((index, timestamp))


def judge_records(
    batch: memoryview, header: tuple[int, ...], rules: Rules
) -> tuple[int, Refusal | None]:
    """(largest timestamp of the records, why they are refused) of a batch that fills `batch`.

    The timestamp is what the header ought to say on a CreateTime topic: Kafka puts it right where
    it says something else. `header` is what `check_batch` gave.
    """
    attributes, count = header[H_ATTRIBUTES], header[H_COUNT]
    oldest_ms, newest_ms = rules.oldest_ms, rules.newest_ms
    if rules.is_log_append_time or attributes & TIMESTAMP_TYPE_BIT:
        oldest_ms, newest_ms = TIMESTAMP_MIN, TIMESTAMP_MAX
    faults = Faults()
    try:
        records = codecs.decompress(
            attributes & COMPRESSION_MASK, batch[RECORDS_POSITION:], rules.plain_bytes_max
        )
        if count > len(records) // RECORD_SIZE_MIN:
            raise ProtocolFault("they are fewer than the batch says")
        max_timestamp = walk(
            records, count, header[H_BASE_TIMESTAMP], rules.is_key_needed, oldest_ms, newest_ms,
            faults,
        )  # fmt: skip
    except codecs.DecompressedTooLargeFault as fault:
        return NO_TIMESTAMP, Refusal(MESSAGE_TOO_LARGE, f"The {fault}.", [])
    except ProtocolFault as fault:
        return NO_TIMESTAMP, Refusal(INVALID_RECORD, f"The records can't be read: {fault}.", [])
    if attributes & TIMESTAMP_TYPE_BIT:
        # Every record has the one timestamp of the header.
        max_timestamp = header[H_MAX_TIMESTAMP]
        if (
            rules.is_log_append_time
            or max_timestamp == NO_TIMESTAMP
            or not rules.oldest_ms <= max_timestamp <= rules.newest_ms
        ):
            return max_timestamp, refuse_stamps(header, rules, faults)
    if faults.count:
        return max_timestamp, _refusal(faults, rules)
    return max_timestamp, None


def prepare() -> None:
    """Import what large batches need, at a better time than that of the first of them."""
    if native is None:
        import shmbroker.records.record_walk  # noqa: F401


def refuse_stamps(header: tuple[int, ...], rules: Rules, faults: Faults | None = None) -> Refusal:
    """A batch whose one timestamp, flagged LogAppendTime, is not allowed: all of its records are
    at fault, for that if not for their keys."""
    timestamp, count = header[H_MAX_TIMESTAMP], header[H_COUNT]
    keyless = {index for index, _ in faults.first} if faults else set()
    found = Faults()
    for index in range(min(count, RECORD_ERRORS_MAX)):
        found.add(index, None if index in keyless else timestamp)
    found.count = count
    is_claim = rules.is_log_append_time or timestamp == NO_TIMESTAMP
    return _refusal(found, rules, is_claim=is_claim)


def _refusal(faults: Faults, rules: Rules, *, is_claim: bool = False) -> Refusal:
    errors = []
    for index, timestamp in faults.first:
        if timestamp is None:
            text = (
                "Compacted topic cannot accept message without key in topic partition "
                f"{rules.place}"
            )
        elif is_claim:
            text = (
                f"Invalid timestamp type in message with offset {index}. Producer should not set "
                "timestamp type to LogAppendTime."
            )
        elif timestamp == UNTOLD:
            text = (
                f"The timestamp of message with offset {index} is out of range. The "
                f"timestamp should be within [{rules.oldest_ms}, {rules.newest_ms}]"
            )
        else:
            text = (
                f"Timestamp {timestamp} of message with offset {index} is out of range. The "
                f"timestamp should be within [{rules.oldest_ms}, {rules.newest_ms}]"
            )
        errors.append((index, text))
    if faults.is_untimely:
        message = "One or more records have been rejected due to invalid timestamp"
        return Refusal(INVALID_TIMESTAMP, message, errors)
    shown = ", ".join(
        f"RecordError(batchIndex={index}, message='{text}')" for index, text in errors[:_SHOWN]
    )
    message = (
        f"One or more records have been rejected due to {faults.count} record errors"
        f"{' and more' if faults.is_more else ''} in total, "
        f"and only showing the first three errors at most: [{shown}]"
    )
    return Refusal(INVALID_RECORD, message, errors)


def walk(
    records: bytes | memoryview,
    count: int,
    base_timestamp: int,
    is_key_needed: bool,
    oldest_ms: int,
    newest_ms: int,
    faults: Faults,
) -> int:
    """Walk `count` records that fill `records`; the largest timestamp, at least NO_TIMESTAMP.

    Records without a key where one is needed, and those whose timestamp is neither NO_TIMESTAMP nor
    in [oldest_ms, newest_ms], are added to `faults`, in order; the timestamp then means nothing.
    ProtocolFault if they aren't as they must be.
    """
    are_headers_right = False
    if native is not None:
        oldest = max(oldest_ms - base_timestamp, TIMESTAMP_MIN)
        newest = min(newest_ms - base_timestamp, TIMESTAMP_MAX)
        if oldest <= newest:
            _, latest, bad = native.walk(
                records, count, oldest, newest, is_key_needed, NATIVE_FAULTS_MAX
            )
            if not bad or _is_told(bad, records, count, base_timestamp, is_key_needed, faults):
                latest += base_timestamp
                return latest if latest > NO_TIMESTAMP else NO_TIMESTAMP
            are_headers_right = True
    arguments = count, base_timestamp, is_key_needed, oldest_ms, newest_ms, faults
    if count < VECTOR_RECORDS_MIN:
        return _walk(bytes(records), *arguments, are_headers_right)
    from shmbroker.records import record_walk  # numpy, for those who need it

    return record_walk.walk(records, *arguments, are_headers_right)


def _is_told(
    bad: list[tuple[int, int]],
    records: bytes | memoryview,
    count: int,
    base_timestamp: int,
    is_key_needed: bool,
    faults: Faults,
) -> bool:
    """Whether what the kernels have found says it all: then it is in `faults`.

    If not, records are well formed, and few enough to be walked once more for their timestamps.
    ProtocolFault for records that aren't as they must be.
    """
    assert native is not None
    kinds = {what for _, what in bad}
    if native.WALK_OFFSET in kinds or native.WALK_MALFORMED in kinds:
        for index, what in bad:
            if what == native.WALK_OFFSET:
                raise _fault(index, "another offset delta than its place in the batch")
            if what == native.WALK_MALFORMED:
                if index == count:
                    raise ProtocolFault("bytes are left over behind the last one")
                raise _fault(index, "fields that do not end where it does")
    if native.WALK_TIMESTAMP in kinds:
        if count <= DETAILED_RECORDS_MAX:
            return False
        none = NO_TIMESTAMP - base_timestamp
        if not native.walk(records, count, none, none, is_key_needed, 1)[2]:
            return True  # none of them has a timestamp: as good as one in range
    for index, what in bad:
        faults.add(index, None if what == native.WALK_NO_KEY else UNTOLD)
    faults.is_more = len(bad) == NATIVE_FAULTS_MAX
    return True


def wrapped(timestamp: int) -> int:
    """The sum of a base timestamp and a delta, as 64 bits hold it."""
    return (timestamp - TIMESTAMP_MIN & (1 << 64) - 1) + TIMESTAMP_MIN


def _walk(
    data: bytes,
    count: int,
    base_timestamp: int,
    is_key_needed: bool,
    oldest_ms: int,
    newest_ms: int,
    faults: Faults,
    are_headers_right: bool = False,
) -> int:
    """`walk`, in plain Python: a number of one byte, which nearly all are, is read in place."""
    max_timestamp = NO_TIMESTAMP
    at, end = 0, len(data)
    try:
        for index in range(count):
            number = data[at]  # length
            at += 1
            if number >= 0x80:
                number, at = uvarint(data, at - 1, 32)
            stop = at + (number >> 1)
            if number & 1 or stop > end:
                raise _fault(index, "a length that its batch has no room for")
            at += 1  # attributes
            number = data[at]  # timestamp delta
            at += 1
            if number >= 0x80:
                number, at = uvarint(data, at - 1, 64)
            timestamp = base_timestamp + (number >> 1 ^ -(number & 1))
            number = data[at]  # offset delta
            at += 1
            if number >= 0x80:
                number, at = uvarint(data, at - 1, 32)
            if number != index << 1:
                raise _fault(index, "another offset delta than its place in the batch")
            number = data[at]  # key
            at += 1
            if number >= 0x80:
                number, at = uvarint(data, at - 1, 32)
            is_without_key = number & 1
            if not is_without_key:
                at += number >> 1
            elif number != 1:
                raise _fault(index, "a key of negative length")
            number = data[at]  # value
            at += 1
            if number >= 0x80:
                number, at = uvarint(data, at - 1, 32)
            if not number & 1:
                at += number >> 1
            elif number != 1:
                raise _fault(index, "a value of negative length")
            number = data[at]  # header count
            at += 1
            if number and are_headers_right:
                at = stop
            elif number:
                if number >= 0x80:
                    number, at = uvarint(data, at - 1, 32)
                if number & 1 or number >> 1 > stop - at:
                    raise _fault(index, "more headers than it has room for")
                at = skip_headers(data, at, number >> 1, stop)
            if at != stop:
                raise _fault(index, "fields that do not end where it does")
            if is_without_key and is_key_needed:
                faults.add(index, None)
            elif not oldest_ms <= timestamp <= newest_ms:
                timestamp = wrapped(timestamp)
                if not oldest_ms <= timestamp <= newest_ms and timestamp != NO_TIMESTAMP:
                    faults.add(index, timestamp)
            if timestamp > max_timestamp:
                max_timestamp = timestamp
    except IndexError:
        raise ProtocolFault("they end inside of a record") from None
    if at != end:
        raise ProtocolFault("bytes are left over behind the last one")
    return max_timestamp


def uvarint(data: bytes, at: int, bits: int) -> tuple[int, int]:
    """An unsigned varint of at most `bits` (32 or 64) and where it ends; IndexError if `data` ends
    in it. Of 64 bits more are dropped, as Java does; of 32 they are a ProtocolFault."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= bits:
            raise ProtocolFault("a number has too many bytes")
    if value >> bits:
        if bits == 32:
            raise ProtocolFault("a number has too many bits")
        value &= (1 << 64) - 1
    return value, at


def skip_headers(data: bytes, at: int, count: int, stop: int) -> int:
    """Where `count` headers from `at` on end, at `stop` if all is well.

    IndexError if `data` ends in them.
    """
    for _ in range(count):
        number = data[at]
        at += 1
        if number >= 0x80:
            number, at = uvarint(data, at - 1, 32)
        if number & 1:
            raise ProtocolFault("a header has no key")
        at += number >> 1
        number = data[at]
        at += 1
        if number >= 0x80:
            number, at = uvarint(data, at - 1, 32)
        if not number & 1:
            at += number >> 1
        elif number != 1:
            raise ProtocolFault("a header has a value of negative length")
        if at > stop:
            break
    return at


def _fault(index: int, what: str) -> ProtocolFault:
    return ProtocolFault(f"record {index} has {what}")
