/* Compiled loops over record bytes: what the files beside this one share.
 *
 *   module.c   the extension module: names, constants
 *   crc32c.c   CRC-32C, in hardware where there is any
 *   batches.c  scan: batch headers; walk: the records of one batch, looked at
 *   decode.c   decode: records to Arrow buffers
 *   lz4.c      lz4_decompress: one frame
 *   encode.c   murmur2, encode, scatter: Arrow columns to records
 *   appends.c  Produce requests of several batches: found, put on a ring, answered
 *   plain.c    batches from a ring into their segments
 *   straight.c Produces of a socket, appended and answered
 *   standing.c standing answers, from sockets to sockets
 *   look.c     at rings, until something has come
 *   compact.c  keys of records, the map from them to offsets, batches again of what stays
 *
 * Rules
 *   Bytes are not believed. Every varint, length and count is compared with the end of what holds
 *     it before anything behind it is read or written.
 *   Sizes of buffers are checked once, on entry, against the numbers that come with them.
 *   The interpreter lock is released for the loop; a loop touches no Python object, but for those
 *     of plain.c, straight.c and standing.c. What is wrong is kept in a `struct flaw` and raised
 *     when the lock is back.
 *   Only the limited API of CPython 3.11: one build serves every later version.
 *
 * A row of a batch table, int64 items:
 *
 *   B_LOW          where its records begin in `raw` ...
 *   B_HIGH         ... and end; another buffer's places if it was decompressed
 *   B_BASE_OFFSET, B_LAST_DELTA, B_COUNT, B_BASE_TIMESTAMP, B_MAX_TIMESTAMP, B_ATTRIBUTES,
 *   B_PRODUCER_ID  fields of its header, widened
 *   B_POSITION     where the batch begins in the log bytes, for messages
 *
 * The state of a decoder, int64 items; zeros to begin with. The first four are its place, the
 * others what the last call wrote:
 *
 *   S_BATCH            row of the table that comes next ...
 *   S_DONE             ... how many of its records were read
 *   S_POSITION         ... where the next one begins; only if S_DONE > 0
 *   S_LAST             ... offset delta of the one before; only if S_DONE > 0
 *   S_KEY_BYTES, S_KEY_NULLS, S_VALUE_BYTES, S_VALUE_NULLS
 *   S_HEADERS          pairs in the headers column
 *   S_HEADER_NULLS     rows without headers: null in the column
 *   S_NAME_BYTES, S_CONTENT_BYTES, S_CONTENT_NULLS   of header keys and header values
 *
 * The outputs of a decoder, each None or a buffer with room for rows_max rows (or as said):
 *
 *   O_OFFSET           int64     offsets
 *   O_TIMESTAMP        int64     microseconds
 *   O_TYPE             int32     0: create time, 1: log append time
 *   O_KEY_OFFSETS      int32     Arrow offsets, one more than rows  \
 *   O_KEY_BYTES        bytes, any size                               }  all three or none
 *   O_KEY_VALID        bits                                         /
 *   O_VALUE_OFFSETS, O_VALUE_BYTES, O_VALUE_VALID   alike
 *   O_KEY_VIEWS, O_VALUE_VIEWS   16 bytes: Arrow's binary view of `raw` (its buffer 0), instead of
 *                      offsets and bytes; with the same validity bits
 *   O_LIST_OFFSETS     int32     Arrow offsets of the headers, one more than rows
 *   O_LIST_VALID       bits
 *   O_NAME_OFFSETS     int32, any size: room for the pairs and one more
 *   O_NAME_BYTES       bytes, any size
 *   O_CONTENT_OFFSETS  as O_NAME_OFFSETS
 *   O_CONTENT_BYTES    bytes, any size
 *   O_CONTENT_VALID    bits for as many pairs
 *
 * A batch that scatter puts records into, int64 items; it moves all but R_END, R_BASE_TIMESTAMP:
 *
 *   R_POSITION         where the next record begins in its buffer
 *   R_END              how far there may be records
 *   R_COUNT            records that it has
 *   R_BASE_TIMESTAMP, R_NEWEST   ms; the largest timestamp that it has
 */

#ifndef SHMBROKER_KERNELS_H
#define SHMBROKER_KERNELS_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030b0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define BUILD 18 /* and in __init__.py: up whenever a signature or a layout changes */

/* A record batch (magic 2), and how an APPEND_MANY and its answer name one. */
enum {
    AT_LENGTH = 8, AT_EPOCH = 12, AT_MAGIC = 16, AT_CRC = 17, AT_ATTRIBUTES = 21,
    AT_ATTRIBUTES_LOW = 22, AT_LAST_DELTA = 23, AT_BASE_TIMESTAMP = 27, AT_MAX_TIMESTAMP = 35,
    AT_PRODUCER_ID = 43, AT_PRODUCER_EPOCH = 51, AT_SEQUENCE = 53, AT_COUNT = 57,
    HEADER_SIZE = 61, LOG_OVERHEAD = 12, MAGIC = 2, RECORD_SIZE_MIN = 7,
    CODEC_MASK = 0x07, ZSTD = 4, APPEND_TIME_BIT = 0x08, TRANSACTIONAL_BIT = 0x10,
    CONTROL_BIT = 0x20, DELETE_HORIZON_BIT = 0x40
};
enum { KEY_BYTES = 20, ROW_BYTES = 24, STORED_BYTES = 20 };

enum {
    B_LOW, B_HIGH, B_BASE_OFFSET, B_LAST_DELTA, B_COUNT, B_BASE_TIMESTAMP, B_MAX_TIMESTAMP,
    B_ATTRIBUTES, B_PRODUCER_ID, B_POSITION, BATCH_FIELDS
};

enum {
    S_BATCH, S_DONE, S_POSITION, S_LAST,
    S_KEY_BYTES, S_KEY_NULLS, S_VALUE_BYTES, S_VALUE_NULLS,
    S_HEADERS, S_HEADER_NULLS, S_NAME_BYTES, S_CONTENT_BYTES, S_CONTENT_NULLS, STATE_FIELDS
};

enum {
    O_OFFSET, O_TIMESTAMP, O_TYPE,
    O_KEY_OFFSETS, O_KEY_BYTES, O_KEY_VALID, O_VALUE_OFFSETS, O_VALUE_BYTES, O_VALUE_VALID,
    O_KEY_VIEWS, O_VALUE_VIEWS,
    O_LIST_OFFSETS, O_LIST_VALID, O_NAME_OFFSETS, O_NAME_BYTES,
    O_CONTENT_OFFSETS, O_CONTENT_BYTES, O_CONTENT_VALID, OUTPUTS
};

enum { R_POSITION, R_END, R_COUNT, R_BASE_TIMESTAMP, R_NEWEST, R_FIELDS };
#define SCATTER_MAX 64 /* batches side by side */

/* Columns of batch headers, widened to int64, and where the batches begin and end. */
enum {
    F_AT, F_END, F_BASE_OFFSET, F_MAGIC, F_CRC, F_ATTRIBUTES, F_LAST_DELTA, F_BASE_TIMESTAMP,
    F_MAX_TIMESTAMP, F_PRODUCER_ID, F_COUNT, F_FIELDS
};

/* Columns of a table of batches to compact, and how a record of one is told by a byte. */
enum {
    K_AT,   /* where its header begins in the log bytes */
    K_LOW,  /* where its records begin and end, as they are plain */
    K_HIGH,
    K_BASE_OFFSET, K_LAST_DELTA, K_COUNT,
    K_FLAG, /* its keys count; or: its tombstones are over */
    K_FIELDS
};
enum { KIND_KEY = 1, KIND_TOMBSTONE = 2, KIND_LONG = 4 };
enum { KEEP_RECORDS = 1, KEEP_HORIZON = 2 };

/* What was found wrong: a sentence with two numbers for its %lld; NULL: nothing. */
struct flaw {
    const char *text;
    long long a, b;
};

#define FLAW(flaw, words, x, y) \
    ((flaw)->text = (words), (flaw)->a = (long long)(x), (flaw)->b = (long long)(y))

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

static inline uint16_t load_be16(const uint8_t *p) {
    uint16_t x; memcpy(&x, p, 2); return __builtin_bswap16(x);
}
static inline uint32_t load_be32(const uint8_t *p) {
    uint32_t x; memcpy(&x, p, 4); return __builtin_bswap32(x);
}
static inline uint64_t load_be64(const uint8_t *p) {
    uint64_t x; memcpy(&x, p, 8); return __builtin_bswap64(x);
}
static inline void store_be32(uint8_t *p, uint32_t x) {
    x = __builtin_bswap32(x); memcpy(p, &x, 4);
}
static inline void store_be64(uint8_t *p, uint64_t x) {
    x = __builtin_bswap64(x); memcpy(p, &x, 8);
}
static inline uint32_t load_le32(const uint8_t *p) {
    uint32_t x; memcpy(&x, p, 4); return x;
}

/* So many bytes at any address, by vector loads and stores (of a memcpy of 64 bytes gcc makes a slow
 * `rep movs`); where there is no AVX, 32 are two times 16. */
typedef uint8_t sixteen __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint8_t thirty_two __attribute__((vector_size(32), aligned(1), may_alias));

#define COPY16(to, from) (*(sixteen *)(to) = *(const sixteen *)(from))
#define COPY32(to, from) (*(thirty_two *)(to) = *(const thirty_two *)(from))

/* For loops that gain by AVX2: compiled twice, chosen when they are called. */
#if defined(__x86_64__)
#define WITH_AVX2 __attribute__((target("avx2,bmi,bmi2")))
#define HAS_AVX2() __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2")
#else
#define WITH_AVX2
#define HAS_AVX2() 0
#endif

/* A zigzag varint of at most 5 or 10 bytes from p, which must end at or before `end`: the place
 * behind it, or NULL. */
const uint8_t *long_varint(const uint8_t *p, const uint8_t *end, int size_max, int64_t *value);

static inline const uint8_t *
varint(const uint8_t *p, const uint8_t *end, int size_max, int64_t *value) {
    if (LIKELY(p < end)) {
        uint32_t low = p[0];
        if (LIKELY(low < 0x80)) {
            *value = (int64_t)(low >> 1) ^ -(int64_t)(low & 1);
            return p + 1;
        }
        if (LIKELY(end - p >= 2 && p[1] < 0x80)) {
            uint32_t both = (low & 0x7f) | (uint32_t)p[1] << 7;
            *value = (int64_t)(both >> 1) ^ -(int64_t)(both & 1);
            return p + 2;
        }
    }
    /* not `value` itself: it shall live in a register */
    int64_t slow = 0;
    p = long_varint(p, end, size_max, &slow);
    *value = slow;
    return p;
}

/* The raw bits of a varint of one or two bytes, both of which can be read: where there would be a
 * third one, the top bit of *longer is set. Without a branch, for lengths, or with one, for what is
 * nearly always alike. */
static inline const uint8_t *
quick_length(const uint8_t *p, uint32_t *raw, uint32_t *longer) {
    const uint32_t low = p[0], high = p[1], two = low >> 7;
    *raw = (low & 0x7f) | (high << 7 & (0u - two));
    *longer |= high & (0u - two);
    return p + 1 + two;
}

static inline const uint8_t *
quick_varint(const uint8_t *p, uint32_t *raw, uint32_t *longer) {
    const uint32_t low = *p++;
    *raw = low;
    if (low >= 0x80) {
        const uint32_t high = *p++;
        *longer |= high;
        *raw = (low & 0x7f) | high << 7;
    }
    return p;
}

uint32_t crc32c(uint32_t crc, const uint8_t *data, size_t size);
uint32_t crc32c_by(int method, uint32_t crc, const uint8_t *data, size_t size);
int crc32c_init(void); /* how many methods there are, the fastest last */

/* A Python buffer, checked: -1 with an exception if it is none, or not aligned to `item`. */
int get_buffer(PyObject *object, Py_buffer *view, int is_writable, int item, const char *name);
PyObject *raise_flaw(const struct flaw *flaw);

/* WRITE_BYTES_MIN and WRITTEN_NEXT_BYTES_MIN of `log/segment_space.py`. */
enum { WRITE_MIN = 32 << 10, WRITTEN_NEXT_MIN = 8 << 10 };

/* A partition, as long as entries of one follow each other. */
struct place {
    PyObject *partition, *log, *segment, *producers;
    Py_buffer map;
    uint8_t key[KEY_BYTES];
    int is_replicated, is_changed, is_watched;
    int fd; /* the file of the segment, to write; -1: it was not asked for yet */
    int64_t bytes_max, timestamp_after, epoch, end_offset, start_offset, limit, write_limit,
        roll_after, roll_offset, index_after, ready, size, newest, newest_offset, base_offset;
    int64_t last_offset; /* where the last batch begins */
};

/* A batch that may be plain; where it is appended, the last three are set. */
struct plain {
    const uint8_t *key, *batch;
    int64_t size, now_ms;
    int flags, acks;
    PyObject *watched;        /* the keys for whose records somebody waits */
    int may_answer, may_wait; /* whether its ack may be given at once, and may wait for replicas */
    int waits, is_awaited;    /* whether its ack waits for replicas, or somebody for its records */
    int64_t base_offset, start_offset;
};
/* Append it where nothing of it is to be looked at closer, and its ack may go out as it has to: 1;
 * 0: nothing was done; -1 with an exception. After these two the place has to be left. */
int plain_append(struct place *at, struct plain *what, PyObject *partitions, PyObject *appended);
/* Leave with what was appended, whatever went wrong meanwhile: that is what is told. Nothing of it
 * may be answered before. -1 with an exception. */
int plain_leave(struct place *at, PyObject *appended);

PyObject *py_scan(PyObject *self, PyObject *args);
PyObject *py_walk(PyObject *self, PyObject *args);
PyObject *py_decode(PyObject *self, PyObject *args);
PyObject *py_lz4_decompress(PyObject *self, PyObject *args);
PyObject *py_murmur2(PyObject *self, PyObject *args);
PyObject *py_encode(PyObject *self, PyObject *args);
PyObject *py_scatter(PyObject *self, PyObject *args);
PyObject *py_find_batches(PyObject *self, PyObject *args);
PyObject *py_check_crcs(PyObject *self, PyObject *args);
PyObject *py_hash_keys(PyObject *self, PyObject *args);
PyObject *py_rings(PyObject *self, PyObject *words);
PyObject *py_ready(PyObject *self, PyObject *capsule);
PyObject *py_look(PyObject *self, PyObject *args);
PyObject *py_find_appends(PyObject *self, PyObject *args);
PyObject *py_pack_appends(PyObject *self, PyObject *args);
PyObject *py_put_stored(PyObject *self, PyObject *args);
PyObject *py_answer_appends(PyObject *self, PyObject *args);
PyObject *py_append_plain(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *py_append_rows(PyObject *self, PyObject *args);
PyObject *py_serve_ready(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *py_repeat_standing(PyObject *self, PyObject *args);
int plain_init(void);
PyObject *py_map_put(PyObject *self, PyObject *args);
PyObject *py_map_keep(PyObject *self, PyObject *args);
PyObject *py_keep_records(PyObject *self, PyObject *args);

enum { WALK_MALFORMED = 1, WALK_OFFSET, WALK_NO_KEY, WALK_TIMESTAMP };

#endif
