"""What the entries of a ring hold: operations one way, results the other.

A ring entry is an operation number and a payload (`shm.ring`). All payloads are little-endian and
packed; both ends are of one build, so there is no version. The first field is always the
`token`, a number that the asking side made up and finds again in the result.

APPEND (network worker to I/O worker): one record batch for one partition

    at  size  field          meaning
     0     8  token
     8     2  acks           -1, 0 or 1; anything else has been answered before
    10     2  flags          APPEND_FLAG_*
    12     4  timeout_ms     how long acks=-1 may wait
    16    20  partition_key  topic id and partition (`ids.PARTITION_KEY`, big-endian)
    36     4  record_bytes   all bytes of the batch; more than what follows if it comes in parts
    40     …  batch          as the client sent it; with APPEND_FLAG_TRANSACTIONAL behind the
                             transactional id, which has its length before it (NAME_LENGTH)

APPEND_MANY (network worker to I/O worker): small batches for several partitions

     0     8  token          of the first batch; each behind it has the next number
     8     2  acks           } as in APPEND, for all of them
    10     2  flags          } neither PARTS nor TRANSACTIONAL
    12     4  timeout_ms     }
    16     4  count
    20     4  (zero)
    24     …  for each batch APPEND_ROW, then the batch

APPEND_ROW

     0    20  partition_key
    20     4  record_bytes   big-endian

A batch over the ring's largest entry comes as APPEND_PARTs (token, then bytes), each a piece in
order, ended by an APPEND with the last piece.

APPENDED (back)

     0     8  token
     8     2  error_code
    10     2  detail_bytes   bytes of `detail` behind the fixed part
    12     4  error_count    records at fault, named behind the detail
    16     8  base_offset    -1 on error
    24     8  log_append_time_ms   -1 unless the topic stamps LogAppendTime
    32     8  log_start_offset
    40     …  detail         utf-8, why it was refused
     …     4  index          in the batch; for each record at fault
     …     2  text_bytes
     …     …  text           utf-8, what is wrong with it

APPENDED_MANY (back): those of an APPEND_MANY that were stored, without an append time, and wait for
nobody. Each other one has an APPENDED of its own.

     0     8  token          of the first batch of the APPEND_MANY
     8     4  count
    12     4  (zero)
    16     …  APPENDED_ROW each

APPENDED_ROW

     0     4  which          place among the batches, from 0
     4     8  base_offset
    12     8  log_start_offset

READ (network worker to I/O worker): one fetch; the partitions follow, READ_PARTITION each

     0     8  token
     8     4  max_wait_ms
    12     4  min_bytes
    16     4  max_bytes
    20     2  isolation_level
    22     2  flags          READ_FLAG_*
    24     4  count
    28     4  session        number of the session with READ_FLAG_SESSION, else zero

READ_PARTITION

     0    20  partition_key
    20     4  max_bytes
    24     4  current_leader_epoch   -1 if the client named none
    28     4  last_fetched_epoch     -1 if the client named none
    32     8  fetch_offset
    40     8  known_high_watermark     } as the client knows them, -1 if it does not: a partition
    48     8  known_log_start_offset   } with nothing else to tell is left out of the READ_DONE

A fetch session of many partitions is kept by the I/O worker, too (READ_FLAG_SESSION): READ_FLAG_NEW
names all its partitions, other READs those that have changed. A slice's `which` is the place in the
READ that named all; what a READ_DONE has told counts as known. A count of UNKNOWN_SESSION asks for
all; a new session of no partitions ends it, and is not answered.

A follower (READ_FLAG_FOLLOWER; an I/O worker to the one that leads) reads in a session: the
partitions that it names are those whose state has changed since its last READ, all others are as
they were. READ_FLAG_NEW begins a session. Of the fields of READ_PARTITION, `max_bytes` is the
number by which the slices name the partition (`which`), and fetch_offset -1 ends following it. Its
READ is answered as soon as there is something to say about any partition of the session.

READ_DONE (back): token, count, then a READ_SLICE for each partition that there is something to
tell about, in the order asked, then for read_committed readers the aborted transactions in those
slices, READ_ABORTED each, then the bytes of those slices that are too small to be worth a file
(file id 0)

     0     8  token
     8     4  count
    12     4  aborted_count

READ_SLICE

     0     2  error_code
     2     2  which              place among the partitions asked, from 0
     4     4  length             bytes of the slice, 0 if there is nothing
     8     8  high_watermark
    16     8  last_stable_offset
    24     8  log_start_offset
    32     8  file_id            0 if length is 0, or if the bytes are in this entry
    40     8  position           in that file, or behind the last READ_ABORTED of this entry
    48     4  diverging_epoch    -1 if none
    52     4  current_leader_epoch
    56     8  diverging_end_offset

READ_ABORTED

     0     4  which              as in its READ_SLICE
     4     8  producer_id
    12     8  first_offset

READ_AHEAD (back, perhaps, behind the READ_DONE of a READ_FLAG_AHEAD): what reads of the offsets
that follow would be answered with, READ_AHEAD_ROW each, until `ahead_ends` of this worker changes

     0     8  token              of that READ
     8     8  ahead_ends         as in the worker's slot of `shm.counters`
    16     8  file_id            of all rows
    24     8  high_watermark
    32     8  last_stable_offset
    40     8  log_start_offset

READ_AHEAD_ROW

     0     8  fetch_offset
     8     8  position           in that file
    16     4  length
    20     4  zero

EXECUTE (to an I/O worker or a controller): a request that is not hot, as the client sent it

     0     8  token
     8     2  api_key
    10     2  api_version
    12     2  client_id_bytes
    14     2  flags          EXECUTE_FLAG_*
    16     4  identity_bytes none if no client asks, but a process of the family
    20     …  client id, IDENTITY, then the request body

IDENTITY (in an EXECUTE): who asks, as the network worker found him to be. The client did not write
a byte of it, so it may be trusted where the body may not.

     0     1  flags          IDENTITY_FLAG_*
     1     1  host_bytes     of the client's address, without its port
     2     2  listener_bytes of the name of the listener that he came by
     4     4  principal_bytes
     8     …  address, listener, principal

What is over the ring's largest entry comes as EXECUTE_PARTs (token, then bytes), each a piece in
order, ended by an EXECUTE with the last piece.

EXECUTED (back): token, then the response body; EXECUTED_PART is a piece that more follow. An
EXECUTED with the flag CLOSE has the reason for its body: the request did not parse. With the flag
STANDING the body begins with STANDING_GRANT: the word of the grant in `shm.standing`, its value.
With NOT_EXECUTED there is no body: nothing was done, as somebody else is the active controller.

     0     8  token
     8     4  flags
    12     4  (zero)
    16     …  body

CANCEL (token): nobody waits for that read any more. NEED_FILE (token = file id): pass the
descriptor of that file again. DROP_FILE (back; token = file id): the file is deleted, close it.
"""

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct

from shmbroker.security.identity import OF_FAMILY, Identity

APPEND = 1
APPEND_PART = 2
READ = 3
EXECUTE = 4
CANCEL = 5
NEED_FILE = 6
EXECUTE_PART = 7
APPEND_MANY = 8

APPENDED = 17
READ_DONE = 18
EXECUTED = 19
EXECUTED_PART = 20
DROP_FILE = 21
APPENDED_MANY = 22
READ_AHEAD = 23

ACKS_ALL = -1
READ_COMMITTED = 1
"""The isolation level that bounds a READ by the last stable offset."""

TOKEN = Struct("<Q")
APPEND_HEAD = Struct("<QhhI20sI")
APPEND_CONSTANT = Struct("<hhI20sI")
"""The head without its token: the same for every request that a connection sends to a partition."""
APPEND_BATCH_AT = 40
NAME_LENGTH = Struct("<H")
APPENDED_HEAD = Struct("<Qhhiqqq")
APPEND_MANY_HEAD = Struct("<QhhIII")
APPEND_ROW = Struct(">20sI")
APPEND_ROW_PARTS = Struct(">16siI")
"""APPEND_ROW with its key taken apart: topic id, partition, length."""
APPENDED_MANY_HEAD = Struct("<QII")
APPENDED_ROW = Struct("<Iqq")
_RECORD_ERROR = Struct("<IH")
RECORD_ERROR_BYTES_MAX = 512
READ_HEAD = Struct("<QiiihhiI")
READ_PARTITION = Struct("<20siiiqqq")
READ_DONE_HEAD = Struct("<Qii")
READ_SLICE = Struct("<hhiqqqQqiiq")
READ_ABORTED = Struct("<iqq")
READ_AHEAD_HEAD = Struct("<QQQqqq")
READ_AHEAD_ROW = Struct("<qqii")
EXECUTE_HEAD = Struct("<QhhhHI")
IDENTITY = Struct("<BBHI")
EXECUTED_HEAD = Struct("<QiI")

APPEND_FLAG_PARTS = 1
"""Pieces of this batch came before."""
APPEND_FLAG_ADMIN_CLIENT = 2
"""The client id is `__admin_client`: it may write to internal topics."""
APPEND_FLAG_NO_ZSTD = 4
"""Produce below version 7, which does not know zstd."""
APPEND_FLAG_TRANSACTIONAL = 8
"""The request named a transactional id: it stands before the batch."""
APPEND_FLAG_ADDS = 16
"""Produce from version 12 on: it adds its partitions to the transaction (KIP-890)."""
APPEND_FLAG_NO_ABORTABLE = 32
"""Produce below version 11, which does not know TRANSACTION_ABORTABLE."""

READ_FLAGS_AT = 22
"""The byte of READ_HEAD that has all flags: who takes the entry by them unpacks the head once."""
READ_FLAG_FOLLOWER = 1
"""The asker is a follower: up to the log end offset, in a session."""
READ_FLAG_NEW = 2
"""The session begins: nothing of an earlier one counts."""
READ_FLAG_SESSION = 4
"""Set on a READ of a client's session, of which the I/O worker keeps what it asks for."""
READ_FLAG_AHEAD = 8
"""Set on a READ of one partition, by a client that reads on: it is told what follows, too."""
UNKNOWN_SESSION = -1
"""The count of a READ_DONE: the session is not kept here, and is to be named whole."""

EXECUTE_FLAG_PARTS = 1
"""Pieces of this request came before."""
EXECUTE_FLAG_BY_USE = 2
"""No client has sent this request: a network worker asks, as its client uses what is not there."""

IDENTITY_FLAG_BY_TOKEN = 1
"""Set where a delegation token showed who the client is."""
_IDENTITIES_MAX = 1024
"""Kept packed, and unpacked: a client sends many requests."""

EXECUTED_FLAG_CLOSE = 1
EXECUTED_FLAG_STANDING = 2
EXECUTED_FLAG_NOT_EXECUTED = 4
"""Nothing was done: this process is not the active controller. It may be asked of another."""
STANDING_GRANT = Struct("<IQ")


def pack_record_errors(errors: Sequence[tuple[int, str]], bytes_max: int) -> tuple[int, bytes]:
    """(how many, packed) of (index, text): as many as there is room for."""
    parts: list[bytes] = []
    for index, text in errors:
        encoded = text.encode()[:RECORD_ERROR_BYTES_MAX]
        bytes_max -= _RECORD_ERROR.size + len(encoded)
        if bytes_max < 0:
            break
        parts.append(_RECORD_ERROR.pack(index, len(encoded)) + encoded)
    return len(parts), b"".join(parts)


@lru_cache(_IDENTITIES_MAX)
def pack_identity(identity: Identity) -> bytes:
    """What an EXECUTE says of who asks."""
    host, listener, principal = (
        text.encode() for text in (identity.host, identity.listener, identity.principal)
    )
    flags = IDENTITY_FLAG_BY_TOKEN if identity.is_by_token else 0
    head = IDENTITY.pack(flags, len(host), len(listener), len(principal))
    return head + host + listener + principal


@lru_cache(_IDENTITIES_MAX)
def unpack_identity(packed: bytes) -> Identity:
    """The reverse; of nothing it is the family."""
    if not packed:
        return OF_FAMILY
    flags, host_bytes, listener_bytes, _ = IDENTITY.unpack_from(packed)
    listener_at = IDENTITY.size + host_bytes
    principal_at = listener_at + listener_bytes
    return Identity(
        packed[principal_at:].decode(),
        packed[IDENTITY.size : listener_at].decode(),
        packed[listener_at:principal_at].decode(),
        bool(flags & IDENTITY_FLAG_BY_TOKEN),
    )


def unpack_detail(
    data: memoryview, index: int, detail_bytes: int, error_count: int
) -> tuple[str | None, list[tuple[int, str]]]:
    """What is behind the fixed part of an APPENDED: why, and the records at fault."""
    index += APPENDED_HEAD.size
    at = index + detail_bytes
    text = bytes(data[index:at]).decode(errors="replace") if detail_bytes else None
    errors = []
    for _ in range(error_count):
        record_index, size = _RECORD_ERROR.unpack_from(data, at)
        at += _RECORD_ERROR.size
        errors.append((record_index, bytes(data[at : at + size]).decode(errors="replace")))
        at += size
    return text, errors


assert APPEND_HEAD.size == APPEND_BATCH_AT
assert APPENDED_HEAD.size == 40
assert APPEND_MANY_HEAD.size == 24
assert APPEND_ROW.size == APPEND_ROW_PARTS.size == 24
assert APPENDED_MANY_HEAD.size == 16
assert APPENDED_ROW.size == 20
assert READ_HEAD.size == 32
assert Struct("<Qiiih").size == READ_FLAGS_AT
assert READ_PARTITION.size == 56
assert READ_SLICE.size == 64
assert READ_ABORTED.size == 20
assert READ_AHEAD_HEAD.size == 48
assert READ_AHEAD_ROW.size == 24
assert EXECUTE_HEAD.size == 20
assert IDENTITY.size == 8
assert EXECUTED_HEAD.size == 16
