/* Compaction: keys of records, the map from them to offsets, and what stays of a batch
 * (`log/compaction/by_kernels.py`; the hash and the map are those of `log/compaction/key_offsets.py`).
 *
 *   find_batches   from header to header, and what they say, column by column: F_...
 *   check_crcs     of whole batches
 *   hash_keys      every record looked at, its key hashed
 *   map_put        offsets of keys into the map
 *   map_keep       which records are the last of their key
 *   keep_records   batches again, of the records that stay
 *
 * A table of data batches has int64 items, column by column: K_..., in `kernels.h`. The records of the batches stand
 * behind each other in the arrays that the functions hand on.
 */

#include "kernels.h"

enum { VARINT_MAX = 10 };
enum { LANES = 4, KEY_WORDS = 32, LONG_KEY_BYTES = 8 * KEY_WORDS, SLOT_WORDS = 3 };

#define PREFETCH_ROWS 16 /* slots asked for so many rows before they are looked at */

static const char MISFIT[] = "a record does not fit its batch";
static const char NO_ROOM[] = "%lld records of %lld batches do not fit the arrays";

/* A record's fields, as far as the value. */
struct record {
    const uint8_t *body, *end, *timestamp_end, *key;
    int64_t timestamp_delta, offset_delta, key_length, value_length;
};

/* The record at p, which must end at or before `high`: where it ends; NULL if it can't be. */
static inline const uint8_t *
read_record(const uint8_t *p, const uint8_t *high, struct record *r) {
    int64_t length;
    const uint8_t *const start = p;
    if (UNLIKELY(!(p = varint(p, high, 5, &length)) || length < 0 || length > high - p))
        return NULL;
    r->body = p;
    const uint8_t *const end = r->end = p + length;
    if (UNLIKELY(end - start < RECORD_SIZE_MIN))
        return NULL;
    if (UNLIKELY(!(p = varint(p + 1, end, 10, &r->timestamp_delta))))
        return NULL;
    r->timestamp_end = p;
    if (UNLIKELY(!(p = varint(p, end, 5, &r->offset_delta)) || r->offset_delta < 0 ||
                 !(p = varint(p, end, 5, &r->key_length)) || r->key_length < -1 ||
                 r->key_length >= end - p))
        return NULL;
    r->key = p;
    if (r->key_length > 0)
        p += r->key_length;
    if (UNLIKELY(!(p = varint(p, end, 5, &r->value_length)) || r->value_length < -1 ||
                 (r->value_length > 0 ? r->value_length : 0) >= end - p))
        return NULL;
    return end;
}

/* A table of batches, column by column. */
struct table {
    const int64_t *at, *low, *high, *base_offset, *last_delta, *count, *flag;
    int64_t batches;
};

static struct table
table_of(const Py_buffer *view) {
    const int64_t *const cells = view->buf, n = view->len / (8 * K_FIELDS);
    const struct table t = {cells + K_AT * n,          cells + K_LOW * n,
                            cells + K_HIGH * n,        cells + K_BASE_OFFSET * n,
                            cells + K_LAST_DELTA * n,  cells + K_COUNT * n,
                            cells + K_FLAG * n,        n};
    return t;
}

/* Whether all batches of a table lie in their bytes, and how many records they have together. */
static int64_t
check_table(const struct table *t, int64_t raw_size, struct flaw *flaw) {
    int64_t rows = 0;
    for (int64_t i = 0; i < t->batches; i++) {
        const int64_t low = t->low[i], high = t->high[i], count = t->count[i];
        if (low < 0 || high < low || high > raw_size || count < 1) {
            FLAW(flaw, "row %lld of the table lies outside of %lld bytes", i, raw_size);
            return -1;
        }
        if (count > (high - low) / RECORD_SIZE_MIN) {
            FLAW(flaw, "a batch is too short for its record count", 0, 0);
            return -1;
        }
        rows += count;
    }
    return rows;
}

/* Buffers of a call, released together. */
struct buffers {
    Py_buffer view[10];
    int taken;
};

static Py_buffer *
take(struct buffers *b, PyObject *object, int is_writable, int item, const char *name) {
    if (PyErr_Occurred())
        return NULL;
    Py_buffer *view = &b->view[b->taken];
    if (get_buffer(object, view, is_writable, item, name) < 0)
        return NULL;
    b->taken++;
    return view;
}

static void
release(struct buffers *b) {
    while (b->taken)
        PyBuffer_Release(&b->view[--b->taken]);
}

/* --- batches ---------------------------------------------------------------------------------- */

PyObject *
py_find_batches(PyObject *self, PyObject *args) {
    PyObject *data_object, *columns_object;
    if (!PyArg_ParseTuple(args, "OO", &data_object, &columns_object))
        return NULL;
    struct buffers all = {.taken = 0};
    Py_buffer *data = take(&all, data_object, 0, 1, "data");
    Py_buffer *columns = take(&all, columns_object, 1, 8, "columns");
    if (PyErr_Occurred()) {
        release(&all);
        return NULL;
    }
    const uint8_t *const bytes = data->buf;
    const int64_t end = data->len, room = columns->len / (8 * F_FIELDS);
    int64_t *column[F_FIELDS];
    for (int i = 0; i < F_FIELDS; i++)
        column[i] = (int64_t *)columns->buf + i * room;
    int64_t position = 0, found = 0, need = HEADER_SIZE;
    Py_BEGIN_ALLOW_THREADS
    while (end - position >= HEADER_SIZE && found < room) {
        const uint8_t *const p = bytes + position;
        const int64_t length = (int32_t)load_be32(p + AT_LENGTH);
        if (length < HEADER_SIZE - LOG_OVERHEAD) {
            need = 0;
            break;
        }
        if (length + LOG_OVERHEAD > end - position) {
            need = length + LOG_OVERHEAD;
            break;
        }
        column[F_AT][found] = position;
        position += length + LOG_OVERHEAD;
        column[F_END][found] = position;
        column[F_BASE_OFFSET][found] = (int64_t)load_be64(p);
        column[F_MAGIC][found] = (int8_t)p[AT_MAGIC];
        column[F_CRC][found] = load_be32(p + AT_CRC);
        column[F_ATTRIBUTES][found] = (int16_t)load_be16(p + AT_ATTRIBUTES);
        column[F_LAST_DELTA][found] = (int32_t)load_be32(p + AT_LAST_DELTA);
        column[F_BASE_TIMESTAMP][found] = (int64_t)load_be64(p + AT_BASE_TIMESTAMP);
        column[F_MAX_TIMESTAMP][found] = (int64_t)load_be64(p + AT_MAX_TIMESTAMP);
        column[F_PRODUCER_ID][found] = (int64_t)load_be64(p + AT_PRODUCER_ID);
        column[F_COUNT][found++] = (int32_t)load_be32(p + AT_COUNT);
    }
    Py_END_ALLOW_THREADS
    release(&all);
    return Py_BuildValue("LLL", (long long)found, (long long)position, (long long)need);
}

PyObject *
py_check_crcs(PyObject *self, PyObject *args) {
    PyObject *raw_object, *at_object, *end_object;
    if (!PyArg_ParseTuple(args, "OOO", &raw_object, &at_object, &end_object))
        return NULL;
    struct buffers all = {.taken = 0};
    struct flaw flaw = {0};
    int64_t number = 0, count = 0;
    Py_buffer *raw = take(&all, raw_object, 0, 1, "raw");
    Py_buffer *at = take(&all, at_object, 0, 8, "at");
    Py_buffer *end = take(&all, end_object, 0, 8, "end");
    if (PyErr_Occurred())
        goto done;
    const uint8_t *const bytes = raw->buf;
    const int64_t *const begins = at->buf, *const ends = end->buf;
    count = at->len < end->len ? at->len / 8 : end->len / 8;
    Py_BEGIN_ALLOW_THREADS
    for (; number < count; number++) {
        const int64_t low = begins[number], high = ends[number];
        if (low < 0 || high > raw->len || high - low < HEADER_SIZE) {
            FLAW(&flaw, "batch %lld lies outside of %lld bytes", number, raw->len);
            break;
        }
        const uint8_t *const p = bytes + low;
        const size_t size = (size_t)(high - low - AT_ATTRIBUTES);
        if (crc32c(0, p + AT_ATTRIBUTES, size) != load_be32(p + AT_CRC))
            break;
    }
    Py_END_ALLOW_THREADS
done:
    release(&all);
    if (PyErr_Occurred())
        return NULL;
    if (flaw.text)
        return raise_flaw(&flaw);
    return PyLong_FromLongLong(number < count ? number : -1);
}

/* --- keys ------------------------------------------------------------------------------------- */

/* What a hash function is made of; the words of one key word stand together. */
struct draws {
    uint32_t add_low[KEY_WORDS][LANES], add_high[KEY_WORDS][LANES];
    uint64_t length_add[LANES], length_multiply[LANES], mix[LANES];
};

static inline uint64_t
key_word(const uint8_t *p, int64_t left, const uint8_t *raw_end) {
    uint64_t word = 0;
    if (LIKELY(raw_end - p >= 8)) {
        memcpy(&word, p, 8);
        return left < 8 ? word & (((uint64_t)1 << 8 * left) - 1) : word;
    }
    memcpy(&word, p, (size_t)(left < 8 ? left : 8));
    return word;
}

static inline void
hash_key(const struct draws *d, const uint8_t *key, int64_t length, const uint8_t *raw_end,
         uint64_t *hash) {
    uint64_t lane[LANES];
    for (int i = 0; i < LANES; i++)
        lane[i] = (uint64_t)((uint32_t)length + (uint32_t)d->length_add[i]) * d->length_multiply[i];
    for (int64_t done = 0, number = 0; done < length; done += 8, number++) {
        const uint64_t word = key_word(key + done, length - done, raw_end);
        const uint32_t low = (uint32_t)word, high = (uint32_t)(word >> 32);
        for (int i = 0; i < LANES; i++)
            lane[i] += (uint64_t)(uint32_t)(low + d->add_low[number][i]) *
                       (uint32_t)(high + d->add_high[number][i]);
    }
    for (int i = 0; i < LANES; i++)
        lane[i] = lane[i] * d->mix[i] >> 32;
    hash[0] = lane[0] << 32 | lane[1];
    hash[1] = lane[2] << 32 | lane[3];
}

PyObject *
py_hash_keys(PyObject *self, PyObject *args) {
    PyObject *raw_object, *table_object, *draws_object, *objects[3];
    long long from_offset;
    int keys_only;
    if (!PyArg_ParseTuple(args, "OOOpLOOO", &raw_object, &table_object, &draws_object, &keys_only,
                          &from_offset, &objects[0], &objects[1], &objects[2]))
        return NULL;
    struct buffers all = {.taken = 0};
    struct flaw flaw = {0};
    int64_t row = 0, long_keys = 0;
    Py_buffer *raw = take(&all, raw_object, 0, 1, "raw");
    Py_buffer *table = take(&all, table_object, 0, 8, "table");
    Py_buffer *draws = take(&all, draws_object, 0, 8, "draws");
    Py_buffer *hashes_view = take(&all, objects[0], 1, 8, "hashes");
    Py_buffer *offsets_view = take(&all, objects[1], 1, 8, "offsets");
    Py_buffer *kinds_view = take(&all, objects[2], 1, 1, "kinds");
    if (PyErr_Occurred())
        goto done;
    if (draws->len != sizeof(struct draws)) {
        FLAW(&flaw, "a hash function has %lld bytes, not %lld", sizeof(struct draws), draws->len);
        goto done;
    }
    const struct table t = table_of(table);
    const int64_t rows = check_table(&t, raw->len, &flaw);
    if (rows < 0)
        goto done;
    if (rows > hashes_view->len / 16 || rows > offsets_view->len / 8 || rows > kinds_view->len) {
        FLAW(&flaw, NO_ROOM, rows, t.batches);
        goto done;
    }
    const uint8_t *const bytes = raw->buf, *const raw_end = bytes + raw->len;
    const struct draws *const d = draws->buf;
    uint64_t *hash = hashes_view->buf;
    int64_t *const offsets = offsets_view->buf;
    uint8_t *const kinds = kinds_view->buf;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t i = 0; i < t.batches && !flaw.text; i++) {
        const uint8_t *p = bytes + t.low[i], *const high = bytes + t.high[i];
        const int64_t last_delta = t.last_delta[i], base_offset = t.base_offset[i];
        const int is_left_out = keys_only && !t.flag[i];
        int64_t count = t.count[i];
        for (; count; count--) {
            struct record r;
            __builtin_prefetch(p + 512);
            if (UNLIKELY(!(p = read_record(p, high, &r)) || r.offset_delta > last_delta))
                break;
            const int64_t offset = base_offset + r.offset_delta;
            if (keys_only && (r.key_length < 0 || is_left_out || offset < from_offset))
                continue;
            uint8_t kind = r.value_length < 0 ? KIND_TOMBSTONE : 0;
            if (LIKELY(r.key_length >= 0)) {
                kind |= KIND_KEY;
                if (LIKELY(r.key_length <= LONG_KEY_BYTES)) {
                    hash_key(d, r.key, r.key_length, raw_end, hash);
                } else {
                    kind |= KIND_LONG;
                    hash[0] = (uint64_t)(r.key - bytes);
                    hash[1] = (uint64_t)r.key_length;
                    long_keys++;
                }
            }
            kinds[row] = kind;
            offsets[row++] = offset;
            hash += 2;
        }
        if (UNLIKELY(count || p != high))
            FLAW(&flaw, MISFIT, 0, 0);
    }
    Py_END_ALLOW_THREADS
done:
    release(&all);
    if (PyErr_Occurred())
        return NULL;
    if (flaw.text)
        return raise_flaw(&flaw);
    return Py_BuildValue("LL", (long long)row, (long long)long_keys);
}

/* --- the map ---------------------------------------------------------------------------------- */

static inline uint64_t *
first_slot(uint64_t *slots, uint64_t count, uint64_t hash) {
    return slots + ((hash >> 32) * count >> 32) * SLOT_WORDS;
}

/* The slot of a hash or the free one that it would get; NULL: neither. */
static inline uint64_t *
find_slot(uint64_t *slots, uint64_t count, const uint64_t *hash) {
    uint64_t *slot = first_slot(slots, count, hash[0]), *const end = slots + count * SLOT_WORDS;
    for (uint64_t left = count; left; left--) {
        if (!slot[2] || (slot[0] == hash[0] && slot[1] == hash[1]))
            return slot;
        if ((slot += SLOT_WORDS) == end)
            slot = slots;
    }
    return NULL;
}

PyObject *
py_map_put(PyObject *self, PyObject *args) {
    PyObject *slots_object, *hashes_object, *values_object;
    if (!PyArg_ParseTuple(args, "OOO", &slots_object, &hashes_object, &values_object))
        return NULL;
    struct buffers all = {.taken = 0};
    struct flaw flaw = {0};
    int64_t added = 0;
    Py_buffer *slots_view = take(&all, slots_object, 1, 8, "slots");
    Py_buffer *hashes_view = take(&all, hashes_object, 0, 8, "hashes");
    Py_buffer *values_view = take(&all, values_object, 0, 8, "values");
    if (PyErr_Occurred())
        goto done;
    const int64_t count = slots_view->len / (8 * SLOT_WORDS), rows = values_view->len / 8;
    if (rows > hashes_view->len / 16 || count > UINT32_MAX) {
        FLAW(&flaw, NO_ROOM, rows, 0);
        goto done;
    }
    uint64_t *const slots = slots_view->buf;
    const uint64_t *const hashes = hashes_view->buf;
    const uint64_t *const values = values_view->buf;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t row = 0; row < rows; row++) {
        if (row + PREFETCH_ROWS < rows) {
            const uint64_t *ahead =
                first_slot(slots, (uint64_t)count, hashes[2 * (row + PREFETCH_ROWS)]);
            __builtin_prefetch(ahead, 1);
            __builtin_prefetch(ahead + 2, 1);
        }
        uint64_t *const slot = find_slot(slots, (uint64_t)count, hashes + 2 * row);
        if (UNLIKELY(!slot)) {
            FLAW(&flaw, "no slot is free among %lld", count, 0);
            break;
        }
        if (!slot[2]) {
            slot[0] = hashes[2 * row];
            slot[1] = hashes[2 * row + 1];
            added++;
        }
        slot[2] = values[row];
    }
    Py_END_ALLOW_THREADS
done:
    release(&all);
    if (PyErr_Occurred())
        return NULL;
    if (flaw.text)
        return raise_flaw(&flaw);
    return PyLong_FromLongLong(added);
}

PyObject *
py_map_keep(PyObject *self, PyObject *args) {
    PyObject *slots_object, *table_object, *in[3], *out[3];
    if (!PyArg_ParseTuple(args, "OOOOOOOO", &slots_object, &table_object, &in[0], &in[1], &in[2],
                          &out[0], &out[1], &out[2]))
        return NULL;
    struct buffers all = {.taken = 0};
    struct flaw flaw = {0};
    Py_buffer *slots_view = take(&all, slots_object, 0, 8, "slots");
    Py_buffer *table = take(&all, table_object, 0, 8, "table");
    Py_buffer *hashes_view = take(&all, in[0], 0, 8, "hashes");
    Py_buffer *offsets_view = take(&all, in[1], 0, 8, "offsets");
    Py_buffer *kinds_view = take(&all, in[2], 0, 1, "kinds");
    Py_buffer *keep_view = take(&all, out[0], 1, 1, "keep");
    Py_buffer *kept_view = take(&all, out[1], 1, 8, "kept");
    Py_buffer *tombstones_view = take(&all, out[2], 1, 1, "tombstones");
    if (PyErr_Occurred())
        goto done;
    const uint64_t count = (uint64_t)slots_view->len / (8 * SLOT_WORDS);
    const struct table t = table_of(table);
    const int64_t rows = kinds_view->len;
    if (rows > hashes_view->len / 16 || rows > offsets_view->len / 8 || rows > keep_view->len ||
        t.batches > kept_view->len / 8 || t.batches > tombstones_view->len || count > UINT32_MAX) {
        FLAW(&flaw, NO_ROOM, rows, t.batches);
        goto done;
    }
    uint64_t *const slots = slots_view->buf;
    const uint64_t *const hashes = hashes_view->buf;
    const int64_t *const offsets = offsets_view->buf;
    const uint8_t *const kinds = kinds_view->buf;
    uint8_t *const keep = keep_view->buf, *const tombstones = tombstones_view->buf;
    int64_t *const kept = kept_view->buf, row = 0;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t i = 0; i < t.batches; i++) {
        const int are_tombstones_over = t.flag[i] != 0;
        int64_t left = t.count[i], staying = 0;
        if (left < 0 || left > rows - row) {
            FLAW(&flaw, NO_ROOM, rows, t.batches);
            break;
        }
        int has_tombstone = 0;
        for (; left; left--, row++) {
            if (row + PREFETCH_ROWS < rows) {
                const uint64_t *ahead =
                    first_slot(slots, count, hashes[2 * (row + PREFETCH_ROWS)]);
                __builtin_prefetch(ahead);
                __builtin_prefetch(ahead + 2);
            }
            const uint8_t kind = kinds[row];
            const int is_tombstone = kind & KIND_TOMBSTONE;
            int stays = 0;
            if (LIKELY(kind & KIND_KEY) && !(is_tombstone && are_tombstones_over)) {
                const uint64_t *const slot = find_slot(slots, count, hashes + 2 * row);
                /* a free slot holds 0: offset -1 */
                stays = !slot || offsets[row] >= (int64_t)(slot[2] - 1);
            }
            keep[row] = (uint8_t)stays;
            staying += stays;
            has_tombstone |= stays && is_tombstone;
        }
        kept[i] = staying;
        tombstones[i] = (uint8_t)has_tombstone;
    }
    Py_END_ALLOW_THREADS
done:
    release(&all);
    if (PyErr_Occurred())
        return NULL;
    if (flaw.text)
        return raise_flaw(&flaw);
    Py_RETURN_NONE;
}

/* --- what stays ------------------------------------------------------------------------------- */

static uint8_t *
put_varint(uint8_t *to, int64_t value) {
    uint64_t left = (uint64_t)value << 1 ^ (uint64_t)(value >> 63);
    for (; left >= 0x80; left >>= 7)
        *to++ = (uint8_t)(left | 0x80);
    *to++ = (uint8_t)left;
    return to;
}

static int
varint_size(int64_t value) {
    uint8_t scratch[VARINT_MAX];
    return (int)(put_varint(scratch, value) - scratch);
}

/* One batch of the records that `keep` says to `to`, where there is room: the place behind it, or
 * NULL. A batch that `gets_horizon` is told the time from there. */
static uint8_t *
keep_batch(const uint8_t *header, const uint8_t *p, const uint8_t *high, int64_t count,
           const uint8_t *keep, int gets_horizon, int64_t horizon_ms, uint8_t *to,
           int64_t *largest) {
    const uint16_t attributes = load_be16(header + AT_ATTRIBUTES);
    const int64_t base = (int64_t)load_be64(header + AT_BASE_TIMESTAMP);
    const int64_t append_time = (int64_t)load_be64(header + AT_MAX_TIMESTAMP);
    const int is_append_time = attributes & APPEND_TIME_BIT;
    uint8_t *const out = to;
    int64_t newest = -1, kept = 0;
    memcpy(out, header, HEADER_SIZE);
    to += HEADER_SIZE;
    const uint8_t *run = NULL;
    for (int64_t row = 0; row < count; row++) {
        struct record r;
        const uint8_t *const start = p;
        if (UNLIKELY(!(p = read_record(p, high, &r))))
            return NULL;
        if (!keep[row] || gets_horizon) {
            if (run)
                memcpy(to, run, (size_t)(start - run)), to += start - run;
            run = NULL;
        } else if (!run) {
            run = start;
        }
        if (!keep[row])
            continue;
        kept++;
        const int64_t timestamp = base + r.timestamp_delta;
        if (timestamp > newest)
            newest = timestamp;
        if (gets_horizon) {
            const int64_t delta = (is_append_time ? append_time : timestamp) - horizon_ms;
            const int64_t rest = r.end - r.timestamp_end;
            to = put_varint(to, rest + 1 + varint_size(delta));
            *to++ = *r.body;
            to = put_varint(to, delta);
            memcpy(to, r.timestamp_end, (size_t)rest);
            to += rest;
        }
    }
    if (p != high)
        return NULL;
    if (run)
        memcpy(to, run, (size_t)(p - run)), to += p - run;
    *largest = is_append_time ? append_time : newest;
    if (gets_horizon) {
        out[AT_ATTRIBUTES + 1] |= DELETE_HORIZON_BIT;
        store_be64(out + AT_BASE_TIMESTAMP, (uint64_t)horizon_ms);
    }
    store_be64(out + AT_MAX_TIMESTAMP, (uint64_t)*largest);
    store_be32(out + AT_COUNT, (uint32_t)kept);
    store_be32(out + AT_LENGTH, (uint32_t)(to - out - LOG_OVERHEAD));
    store_be32(out + AT_CRC, crc32c(0, out + AT_ATTRIBUTES, (size_t)(to - out - AT_ATTRIBUTES)));
    return to;
}

PyObject *
py_keep_records(PyObject *self, PyObject *args) {
    PyObject *raw_object, *plain_object, *table_object, *keep_object, *chosen_object, *out[3];
    long long horizon_ms;
    if (!PyArg_ParseTuple(args, "OOOOOLOOO", &raw_object, &plain_object, &table_object,
                          &keep_object, &chosen_object, &horizon_ms, &out[0], &out[1], &out[2]))
        return NULL;
    struct buffers all = {.taken = 0};
    struct flaw flaw = {0};
    int64_t position = 0;
    Py_buffer *raw = take(&all, raw_object, 0, 1, "raw");
    Py_buffer *plain = take(&all, plain_object, 0, 1, "plain");
    Py_buffer *table = take(&all, table_object, 0, 8, "table");
    Py_buffer *keep_view = take(&all, keep_object, 0, 1, "keep");
    Py_buffer *chosen = take(&all, chosen_object, 0, 1, "chosen");
    Py_buffer *target = take(&all, out[0], 1, 1, "target");
    Py_buffer *ends_view = take(&all, out[1], 1, 8, "ends");
    Py_buffer *newest_view = take(&all, out[2], 1, 8, "newest");
    if (PyErr_Occurred())
        goto done;
    const struct table t = table_of(table);
    const int64_t rows = check_table(&t, plain->len, &flaw);
    if (rows < 0)
        goto done;
    if (rows > keep_view->len || t.batches > chosen->len || t.batches > ends_view->len / 8 ||
        t.batches > newest_view->len / 8) {
        FLAW(&flaw, NO_ROOM, rows, t.batches);
        goto done;
    }
    const uint8_t *keep = keep_view->buf, *const wanted = chosen->buf, *const records = plain->buf;
    uint8_t *const to = target->buf;
    int64_t *const ends = ends_view->buf, *const newest = newest_view->buf;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t i = 0; i < t.batches; keep += t.count[i++]) {
        if (wanted[i]) {
            const int gets_horizon = wanted[i] == KEEP_HORIZON;
            const int64_t at = t.at[i];
            /* a new timestamp delta may make a record longer by itself and by its length */
            const int64_t room = HEADER_SIZE + t.high[i] - t.low[i] +
                                 (gets_horizon ? t.count[i] * (VARINT_MAX + 5) : 0);
            if (at < 0 || at > raw->len - HEADER_SIZE || room > target->len - position) {
                FLAW(&flaw, "no room for batch %lld behind %lld", i, position);
                break;
            }
            uint8_t *const end =
                keep_batch((const uint8_t *)raw->buf + at, records + t.low[i], records + t.high[i],
                           t.count[i], keep, gets_horizon, horizon_ms, to + position, &newest[i]);
            if (!end) {
                FLAW(&flaw, MISFIT, 0, 0);
                break;
            }
            position = end - to;
        }
        ends[i] = position;
    }
    Py_END_ALLOW_THREADS
done:
    release(&all);
    if (PyErr_Occurred())
        return NULL;
    if (flaw.text)
        return raise_flaw(&flaw);
    return PyLong_FromLongLong(position);
}
