"""Signatures of the compiled kernels (`*.c` beside this file).

Every buffer is contiguous; those that hold int32 or int64 items, or Arrow offsets, are aligned to
them. A buffer too small for what the numbers say, or bytes that are no valid batch, record or
frame, raise ValueError in one sentence; nothing outside of a buffer is ever touched.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import TypeAlias

from typing_extensions import Buffer

Meaning: TypeAlias = tuple[bytes, bytes, bytes, bytes, bytes, bool, bool]
"""What the known bytes of a Produce mean: `gateway.connection.Meaning`."""

BUILD: int
"""That of `kernels/__init__.py`, which goes up whenever a signature or a layout changes."""

CRC_METHODS: int
"""How many ways to a CRC-32C this processor knows, the fastest last: tables, the crc32 instruction,
folding 512 bits at once."""

BATCH_FIELDS: int
"""int64 items in a row of a batch table: see `kernels.h`."""

STATE_FIELDS: int
"""int64 items of a decoder's state: see `kernels.h`."""

SCATTER_FIELDS: int
"""int64 items of a batch that `scatter` fills: see `kernels.h`."""

SCATTER_MAX: int
"""Batches that `scatter` fills side by side, at most."""

Column: TypeAlias = tuple[Buffer | None, Buffer, Buffer | None, int]
"""An Arrow binary or string column, as `(*array.buffers(), array.offset)`: validity bits or None,
int32 offsets, bytes (None: none at all), and the place of row 0 in the first two."""

HeaderColumn: TypeAlias = tuple[Buffer | None, Buffer, int, Column, Column]
"""An Arrow list<struct<key: string, value: binary>>: validity bits or None, int32 offsets, place of
row 0, and the children key and value (of the struct's children; a null key is not allowed)."""

class Rings:
    """What `rings` answers: an opaque capsule, which keeps the memory of the rings."""

def rings(words: tuple[Buffer, ...], /) -> Rings:
    """Rings (`shm/ring_layout.py`) that are looked at together, by what begins with their words."""

def ready(rings: Rings, /) -> tuple[int, ...]:
    """Indexes of those that have entries that their readers have not released."""

def look(
    rings: Rings, for_ns: int, lost_ns: int, descriptor: int, between: int, /
) -> tuple[int, int, list[tuple[int, int]]]:
    """Look at rings for that long: what has come, the nanoseconds lost, and events.

    Gives the core away before each look. What has come: 1 where a ring has entries that its reader
    has not released, 2 where `descriptor`, an epoll's (-1: none), has events, which are taken,
    asked once in `between` looks; 0 after the time, or where a look took `lost_ns` or more, which
    is then the second number.
    """

def crc32c(data: Buffer, crc: int = 0, method: int = ..., /) -> int:
    """CRC-32C of `data`, going on from `crc`, by the fastest way or that with this number."""

def scan(
    data: Buffer,
    position: int,
    start_offset: int,
    end_offset: int,
    next_offset: int,
    bytes_max: int,
    records_max: int,
    checks_crc: bool,
    table: Buffer,
    /,
) -> tuple[int, int, int, bool]:
    """Step from batch header to batch header, checking everything that a header says.

    Fills `table` (int64[n][BATCH_FIELDS]) with the data batches that hold offsets in
    [start_offset, end_offset): control batches, empty ones and those before are left out. Stops
    when the table is full, after `bytes_max` bytes, before there are more than `records_max`
    records (one batch at least), at a batch of `end_offset` or later, or at the end. Answers
    (batches in the table, position behind, the offset that must come next at least, whether
    `end_offset` was met).
    """

def decode(
    raw: Buffer,
    table: Buffer,
    batches: int,
    rows_max: int,
    start_offset: int,
    end_offset: int,
    checks_crc: bool,
    state: Buffer,
    outputs: tuple[Buffer | None, ...],
    /,
) -> int:
    """Records of the batches in `table` into Arrow buffers: how many rows were written.

    With `checks_crc`, `raw` must hold the batches whole, and the CRC of each is compared just
    before its records are read: so they are fetched into the cache once only.

    Begins where `state` says and leaves there how far it has got; see `kernels.h` for it and the
    outputs, of which those that are None are left out. Stops when `rows_max` rows or one of the
    buffers of bytes is full (the row that does not fit is left for the next call; none at all:
    give more room), or at the end of the table.
    """

def lz4_decompress(source: Buffer, target: Buffer, position: int, /) -> int:
    """One LZ4 frame into `target` from `position` on: the position behind it; -1: no room."""

def walk(
    records: Buffer,
    count: int,
    timestamp_delta_min: int,
    timestamp_delta_max: int,
    needs_key: bool,
    faults_max: int,
    /,
) -> tuple[int, int, list[tuple[int, int]]]:
    """Look at every record of one (decompressed) batch, as a broker that validates does.

    Answers (records that could be walked, largest timestamp delta of them, faults): a fault is
    (index, WALK_…), at most `faults_max`. WALK_MALFORMED, if it is there, is the last one, and
    names the record that can't be walked, or `count` if bytes are left behind the last one.
    """

WALK_MALFORMED: int
WALK_OFFSET: int
"""The record's offset delta is not its index."""
WALK_NO_KEY: int
"""`needs_key`, and its key is null."""
WALK_TIMESTAMP: int
"""Its timestamp delta is not in [timestamp_delta_min, timestamp_delta_max]."""

def murmur2(column: Column, count: int, out: Buffer, /) -> None:
    """Kafka's murmur2 of the first `count` rows into `out` (int32[count], as Java's int).

    A null row gets the hash of no bytes: whoever cares looks at the validity.
    """

def encode(
    out: Buffer,
    position: int,
    end: int,
    delta: int,
    rows: Buffer | None,
    first: int,
    last: int,
    key: Column | None,
    value: Column | None,
    timestamps: Buffer | None,
    base_timestamp: int,
    headers: HeaderColumn | None,
    row_count: int,
    /,
) -> tuple[int, int, int]:
    """Records of one batch, from Arrow columns to the bytes behind the batch header.

    Written are the rows rows[first:last] (int32 row numbers; None: rows first to last themselves)
    with offset deltas from `delta` on, into out[position:end], until one does not fit. A column
    that is None is null in every row. `timestamps` (int64[row_count], ms) None: all are
    `base_timestamp`. The columns have `row_count` rows. Answers (rows written, position behind
    them, the largest timestamp).
    """

def scatter(
    outs: list[Buffer | None],
    states: Buffer,
    partitions: Buffer,
    first: int,
    last: int,
    key: Column | None,
    value: Column | None,
    timestamps: Buffer | None,
    now_ms: int,
    headers: HeaderColumn | None,
    row_count: int,
    /,
) -> int:
    """Records of several batches: rows first to last, each behind the last of its own batch.

    Row i goes into outs[partitions[i]] (int32), and that batch's state (int64[len(outs)]
    [SCATTER_FIELDS]) is moved on. Answers the first row that was not written, as its batch has no
    room or is None; `last`, if there is none. Columns as in `encode`; `timestamps` None: all are
    `now_ms`. If it raises because of a row, those before it are written.
    """

def find_batches(data: Buffer, columns: Buffer, /) -> tuple[int, int, int]:
    """Headers of whole batches into `columns` (int64[F_FIELDS][room], F_… in `kernels.h`).

    Answers (how many, position behind the last of them, bytes that the next one needs; 0: it is
    none). Nothing but their lengths is looked at.
    """

def check_crcs(raw: Buffer, at: Buffer, end: Buffer, /) -> int:
    """The first batch raw[at[i] : end[i]] (int64) whose CRC is not what its header says; or -1."""

def hash_keys(
    raw: Buffer,
    table: Buffer,
    draws: Buffer,
    keys_only: bool,
    from_offset: int,
    hashes: Buffer,
    offsets: Buffer,
    kinds: Buffer,
    /,
) -> tuple[int, int]:
    """Look at every record of the batches in `table`, and hash its key.

    Fills `hashes` (uint64[][2]), `offsets` (int64) and `kinds` (uint8, KIND_… in `kernels.h`), one
    row for each record; with `keys_only` only for those with a key, an offset of at least
    `from_offset` and a batch whose flag is set. `draws` is `KeyHash.draws`. Of a key that is too
    long to be hashed here, place and length stand in `hashes`. Answers (rows, keys too long).
    """

def map_put(slots: Buffer, hashes: Buffer, values: Buffer, /) -> int:
    """Store a value, not 0, at each hash in the map (`key_offsets`): how many hashes were new.

    ValueError if no slot is left: the map is never filled as far.
    """

def map_keep(
    slots: Buffer,
    table: Buffer,
    hashes: Buffer,
    offsets: Buffer,
    kinds: Buffer,
    keep: Buffer,
    kept: Buffer,
    tombstones: Buffer,
    /,
) -> None:
    """Which records stay: those with a key, at its last offset or behind it, tombstones only where
    the flag of their batch is not set.

    Fills `keep` (uint8, for each record), `kept` (int64, for each batch: how many) and `tombstones`
    (uint8, for each batch: whether one stays).
    """

def keep_records(
    raw: Buffer,
    plain: Buffer,
    table: Buffer,
    keep: Buffer,
    chosen: Buffer,
    horizon_ms: int,
    target: Buffer,
    ends: Buffer,
    newest: Buffer,
    /,
) -> int:
    """Batches again, of the records that `keep` says, for the rows of `table` that are chosen.

    chosen (uint8): 0 no; 1 yes; 2 with `horizon_ms` for delete horizon and base timestamp. Written
    one behind the other into `target`, as if they were not compressed: header, records, CRC. Fills
    `ends` (int64: where each ends in `target`) and `newest` (int64: its largest timestamp; only of
    those chosen). Answers the bytes used.
    """

def find_appends(data: Buffer, at: int, end: int, is_flexible: bool, places: Buffer, /) -> int:
    """Find the batches of a topic in a Produce request, from its first partition at data[at:end].

    Fills `places` (int32[n][3]: partition, position, bytes) with as many as it has rows, and
    answers the position behind them. -1: one of them is not plain, or there are fewer.
    """

def pack_appends(
    target: Buffer,
    to: int,
    data: Buffer,
    places: Buffer,
    first: int,
    count: int,
    topic_id: Buffer,
    /,
) -> int:
    """Put rows of an APPEND_MANY and their batches, `count` from `first` on, to target[to:]; the
    position behind them."""

def append_plain(
    reader: object,
    writer: object,
    partitions: dict[bytes, object],
    now_ms: int,
    entries_max: int,
    bytes_max: int,
    appended: set[object],
    waiting: list[tuple[int, object, int, int, int]],
    /,
) -> tuple[int, int]:
    """Take the APPENDs that come next in a ring, and append and answer them, up to the first that
    is to be looked at closer: (how many, bytes of their batches).

    reader, writer: a RingReader that was polled, and the RingWriter for the answers, whose places
    are moved; nothing is published or released. partitions: `replica.partition.Partition` by key.
    appended: gets the partitions. waiting: gets (token, partition, base offset, end offset, timeout
    in ms) of those with acks all where there are followers, which are not answered. ValueError: the
    ring is broken; what came before was appended.
    """

def serve_ready(
    rows: list[tuple[int, Meaning | None, Buffer, int]],
    first: int,
    buffer: Buffer,
    filled: int,
    partitions: dict[bytes, object],
    appended: set[object],
    now_ms: int,
    recall: Callable[[int, int], Meaning | None],
    answer_offsets: Callable[[int, int, bytes], bytes | None],
    watched: Mapping[Hashable, object],
    may_answer: bool,
    /,
) -> tuple[
    int, int, int, int, int, int, int, int, int, list[tuple[int, bytes]], list[int],
    list[tuple[int, int, Meaning, object, int, int]], int,
]:  # fmt: skip
    """Read sockets into `buffer`, and answer what is read, from row `first` on up to the first of
    which something else came: (which row that is, how much there is of it, where in `buffer` that
    begins, batches, their bytes, commits, fetches, bytes received, bytes sent, [(row, bytes that
    its socket did not take)], rows with large batches, [(row, correlation id, meaning, partition,
    base offset, end offset)] of the batches whose acks wait for the replicas, how many batches
    somebody waits for).

    Answered are Produce frames of known bytes whose batches `append_plain` would append, and
    requests for offsets. rows: (descriptor, meaning, marks, which) each: marks[which], an int64, is
    1 from before it is read until all is answered. filled: bytes of the first row that were read
    before. meaning: `gateway.produce_known.FastProduce.straight`. Where other bytes than those of
    its meaning come, `recall(row, where in buffer)` gives what they mean, or None where that is
    something else. Without a meaning it asks for offsets: `answer_offsets(api key, version, body)`
    gives the body of the answer, or None where that is something else; versions are those with
    tags. watched: the keys of partitions for whose records somebody waits: acks of small batches of
    these are not sent, but given as bytes that the socket did not take. may_answer: False: these
    rows have acks that wait, and nothing is served but batches whose acks do, too. As many as there
    are rows: all were served. -1 of it: there was nothing to be read, or it has ended or is broken.
    """

def repeat_standing(
    rows: list[tuple[int, int]],
    first: int,
    buffer: Buffer,
    known: Mapping[tuple[int, int, int, bytes], tuple[Buffer, int, int, bytes, bytes]],
    now_ns: int,
    /,
) -> tuple[int, int, int, int, int, int, list[tuple[int, bytes]]]:
    """Read sockets into `buffer`, and give standing answers to what is read, from row `first` on up
    to the first of which something else came: (which row that is, where in `buffer` that begins,
    where it ends, answers given, bytes received, bytes sent, [(row, bytes that its socket did not
    take)]).

    rows: (descriptor, broker) each. known: `gateway.standing.Standing` by its key, a dict. now_ns:
    when an answer is used. As many as there are rows: all were served. An end of -1: there was
    nothing to be read, or it has ended or is broken.
    """

def append_rows(
    data: Buffer,
    at: int,
    which: int,
    count: int,
    token: int,
    acks: int,
    flags: int,
    timeout_ms: int,
    partitions: dict[bytes, object],
    now_ms: int,
    appended: set[object],
    waiting: list[tuple[int, object, int, int, int]],
    /,
) -> tuple[int, int, bytes]:
    """As `append_plain`, for rows of an APPEND_MANY, from row `which` of `count` at data[at:] up to
    the first whose batch is to be looked at closer: (which that is, where it is, APPENDED_ROWs of
    those that wait for nobody)."""

def put_stored(results: Buffer, first: int, packed: Buffer, /) -> None:
    """Put the rows of an APPENDED_MANY, the first batch of which is `first`, into `results`
    (int64[n][3]: base offset, append time, log start offset)."""

def answer_appends(places: Buffer, results: Buffer, first: int, is_flexible: bool, /) -> bytes:
    """Rows of a Produce answer without errors, of `places` and as many results from `first` on."""
