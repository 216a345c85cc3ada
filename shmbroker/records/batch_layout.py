"""The header of a record batch (magic 2), the unit of append, replication, CRC and compression.

Integers are big-endian, as everywhere in Kafka (source: Kafka `DefaultRecordBatch`).

   at  size  field                   meaning
    0     8  base_offset             offset of the first record; stamped by the leader
    8     4  batch_length            bytes after this field (total size - 12)
   12     4  partition_leader_epoch  stamped by the leader
   16     1  magic                   2
   17     4  crc                     CRC-32C from `attributes` to the end of the batch
   21     2  attributes              see below
   23     4  last_offset_delta       last offset - base offset
   27     8  base_timestamp          ms; records store differences from it
   35     8  max_timestamp           ms; the append time where attributes bit 3 is set
   43     8  producer_id             -1: not idempotent
   51     2  producer_epoch
   53     4  base_sequence           sequence of the first record; wraps from 2^31-1 to 0
   57     4  count                   records
   61     …  records                 compressed as one block, except in control batches

base_offset and partition_leader_epoch lie before `crc`, so that a leader stamps them without
touching the checksum.

Attributes
   bits 0-2  compression: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd
   bit 3     timestamp type: 0 create time, 1 log append time
   bit 4     is transactional
   bit 5     is control batch: a marker, not data
   bit 6     has delete horizon: base_timestamp is the delete horizon (compaction)

Example: one record, value b"hi", offset 7, leader epoch 3, timestamp 1000, no producer
   0000: 00 00 00 00 00 00 00 07   base_offset 7
   0008: 00 00 00 3a               batch_length 58: 70 bytes in all
   000c: 00 00 00 03  02           leader epoch 3, magic 2
   0011: 23 3d ad 44  00 00        crc, attributes
   0017: 00 00 00 00               last_offset_delta 0
   001b: 00 00 00 00 00 00 03 e8   base_timestamp 1000
   0023: 00 00 00 00 00 00 03 e8   max_timestamp 1000
   002b: ff ff ff ff ff ff ff ff   producer_id -1
   0033: ff ff  ff ff ff ff        producer_epoch -1, base_sequence -1
   0039: 00 00 00 01               count 1
   003d: 10  00  00  00            length 8, attributes 0, timestamp delta 0, offset delta 0
   0041: 01  04 68 69  00          key -1 (null), value of 2 bytes, no headers
"""

from struct import Struct

BASE_OFFSET_POSITION = 0
LENGTH_POSITION = 8
LEADER_EPOCH_POSITION = 12
MAGIC_POSITION = 16
CRC_POSITION = 17
ATTRIBUTES_POSITION = 21
LAST_OFFSET_DELTA_POSITION = 23
BASE_TIMESTAMP_POSITION = 27
MAX_TIMESTAMP_POSITION = 35
PRODUCER_ID_POSITION = 43
PRODUCER_EPOCH_POSITION = 51
BASE_SEQUENCE_POSITION = 53
COUNT_POSITION = 57
RECORDS_POSITION = 61

BATCH_HEADER = Struct(">qiibIhiqqqhii")
HEADER_SIZE = BATCH_HEADER.size
"""61: one unpack of it all (0.14 µs) is cheaper than a view for each field."""

AFTER_CRC = Struct(">hiqqqhii")
"""The fields of the header that the CRC is over, from the attributes on."""

LOG_OVERHEAD = 12
"""base_offset and batch_length: what stands before the bytes that batch_length counts."""

LENGTH_MIN = 14
"""The smallest length any magic ever had (`LegacyRecord.RECORD_OVERHEAD_V0`); less is garbage."""

MAGIC = 2

STAMP = Struct(">qii")
"""base_offset, batch_length, partition_leader_epoch: what an appending leader stores."""

STAMP_SIZE = STAMP.size

RECORD_SIZE_MIN = 7
"""A record of nothing: length, attributes, two deltas, two lengths, a header count."""

SEQUENCES = 2**31
"""base_sequence counts the records of a producer modulo this."""

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

NONE = 0
GZIP = 1
SNAPPY = 2
LZ4 = 3
ZSTD = 4

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1

# Types of control records: the second int16 of their key (Kafka `ControlRecordType`).
CONTROL_ABORT = 0
CONTROL_COMMIT = 1
CONTROL_LEADER_CHANGE = 2
CONTROL_SNAPSHOT_HEADER = 3
CONTROL_SNAPSHOT_FOOTER = 4
CONTROL_KRAFT_VERSION = 5
CONTROL_KRAFT_VOTERS = 6

# Places of the fields in the tuple that BATCH_HEADER.unpack gives.
H_BASE_OFFSET = 0
H_LENGTH = 1
H_LEADER_EPOCH = 2
H_MAGIC = 3
H_CRC = 4
H_ATTRIBUTES = 5
H_LAST_OFFSET_DELTA = 6
H_BASE_TIMESTAMP = 7
H_MAX_TIMESTAMP = 8
H_PRODUCER_ID = 9
H_PRODUCER_EPOCH = 10
H_BASE_SEQUENCE = 11
H_COUNT = 12
