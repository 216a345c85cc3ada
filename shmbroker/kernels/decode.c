/* Records to Arrow buffers (layouts: `kernels.h`; a record: `encode.c`).
 *
 * One pass: a record is parsed and what is wanted of it copied at once. A row that does not fit
 * into what room there is left for its bytes is not begun; the next call goes on with it.
 */

#include "kernels.h"

#define TIMESTAMP_MS_MAX (INT64_MAX / 1000 - 1)
#define APPEND_TIME_BIT 8

static const char NOT_FILLED[] = "the records of the batch at %lld do not fill it";
static const char BEYOND[] = "a record of the batch at %lld goes beyond its end";

/* Short strings in steps of 32 bytes, where both sides have room for the excess. */
static inline void
copy(uint8_t *to, const uint8_t *from, int64_t size, int64_t to_room, int64_t from_room) {
    if (LIKELY(size <= 512 && to_room >= size + 32 && from_room >= size + 32)) {
        for (int64_t i = 0; i < size; i += 32)
            memcpy(to + i, from + i, 32);
    } else {
        memcpy(to, from, (size_t)size);
    }
}

/* Arrow's binary view: up to 12 bytes in itself, of more the first 4 and the place in `raw`. */
static inline void
put_view(uint8_t *to, const uint8_t *raw, const uint8_t *begin, int64_t length) {
    const int32_t size = (int32_t)length;
    memset(to, 0, 16);
    memcpy(to, &size, 4);
    if (length <= 12) {
        if (length > 0)
            memcpy(to + 4, begin, (size_t)length);
    } else {
        const int32_t place = (int32_t)(begin - raw);
        memcpy(to + 4, begin, 4);
        memcpy(to + 12, &place, 4);
    }
}

static inline void
clear_bit(uint8_t *bits, int64_t at) {
    bits[at >> 3] &= (uint8_t)~(1u << (at & 7));
}

/* The pointers of the outputs, and the room of those of any size. */
struct outputs {
    uint8_t *at[OUTPUTS];
    int64_t size[OUTPUTS];
};

struct rows {
    const uint8_t *raw;
    int64_t raw_size;
    const int64_t *table;
    int64_t batches, rows_max, start_offset, end_offset;
    int64_t *state;
};

static int64_t
decode(const struct rows *in, const struct outputs *out, struct flaw *flaw) {
    const uint8_t *const raw = in->raw, *const raw_end = raw + in->raw_size;
    const int64_t rows_max = in->rows_max;
    const int64_t start_offset = in->start_offset, end_offset = in->end_offset;
    int64_t *const offsets = (int64_t *)out->at[O_OFFSET];
    int64_t *const timestamps = (int64_t *)out->at[O_TIMESTAMP];
    int32_t *const types = (int32_t *)out->at[O_TYPE];
    int32_t *const key_ends = (int32_t *)out->at[O_KEY_OFFSETS];
    uint8_t *const key_bytes = out->at[O_KEY_BYTES], *const key_valid = out->at[O_KEY_VALID];
    uint8_t *const key_views = out->at[O_KEY_VIEWS];
    int32_t *const value_ends = (int32_t *)out->at[O_VALUE_OFFSETS];
    uint8_t *const value_bytes = out->at[O_VALUE_BYTES];
    uint8_t *const value_valid = out->at[O_VALUE_VALID], *const value_views = out->at[O_VALUE_VIEWS];
    int32_t *const list_ends = (int32_t *)out->at[O_LIST_OFFSETS];
    uint8_t *const list_valid = out->at[O_LIST_VALID];
    int32_t *const name_ends = (int32_t *)out->at[O_NAME_OFFSETS];
    uint8_t *const name_bytes = out->at[O_NAME_BYTES];
    int32_t *const content_ends = (int32_t *)out->at[O_CONTENT_OFFSETS];
    uint8_t *const content_bytes = out->at[O_CONTENT_BYTES];
    uint8_t *const content_valid = out->at[O_CONTENT_VALID];
    const int64_t key_room = out->size[O_KEY_BYTES], value_room = out->size[O_VALUE_BYTES];
    const int64_t pairs_room = out->size[O_CONTENT_VALID];
    const int64_t name_room = out->size[O_NAME_BYTES];
    const int64_t content_room = out->size[O_CONTENT_BYTES];
    const int wants_fields = key_valid || value_valid || list_ends;

    int64_t rows = 0, keys = 0, values = 0, key_nulls = 0, value_nulls = 0;
    int64_t pairs = 0, list_nulls = 0, names = 0, contents = 0, content_nulls = 0;
    int64_t batch = in->state[S_BATCH], done = in->state[S_DONE];
    const uint8_t *p = raw + in->state[S_POSITION];
    int64_t last = in->state[S_LAST];

    if (key_ends)
        key_ends[0] = 0;
    if (value_ends)
        value_ends[0] = 0;
    if (list_ends)
        list_ends[0] = name_ends[0] = content_ends[0] = 0;

    for (; batch < in->batches; batch++, done = 0) {
        const int64_t *const b = in->table + batch * BATCH_FIELDS;
        const int64_t low = b[B_LOW], high_at = b[B_HIGH], count = b[B_COUNT];
        if (low < 0 || high_at < low || high_at > in->raw_size || count < 0 ||
            (done && (p < raw + low || p > raw + high_at))) {
            FLAW(flaw, "row %lld of the batch table lies outside of %lld bytes", batch,
                 in->raw_size);
            return rows;
        }
        const uint8_t *const high = raw + high_at;
        const int64_t base_offset = b[B_BASE_OFFSET], last_delta = b[B_LAST_DELTA];
        const int is_append_time = (b[B_ATTRIBUTES] & APPEND_TIME_BIT) != 0;
        const uint64_t base_time =
            (uint64_t)(is_append_time ? b[B_MAX_TIMESTAMP] : b[B_BASE_TIMESTAMP]);
        if (!done) {
            p = raw + low;
            last = -1;
            if (count > (high - p) / 7) {
                FLAW(flaw, "the batch at %lld is too short for its record count", b[B_POSITION], 0);
                return rows;
            }
        }
        for (; done < count; done++) {
            if (UNLIKELY(rows == rows_max))
                goto full;
            const uint8_t *q = p;
            int64_t length, time_delta, delta;
            q = varint(q, high, 5, &length);
            if (UNLIKELY(!q || length < 6 || length > high - q)) {
                FLAW(flaw, NOT_FILLED, b[B_POSITION], 0);
                return rows;
            }
            const uint8_t *const end = q + length;
            q = varint(q + 1, end, 10, &time_delta);
            if (UNLIKELY(!q || !(q = varint(q, end, 5, &delta)))) {
                FLAW(flaw, BEYOND, b[B_POSITION], 0);
                return rows;
            }
            if (UNLIKELY(delta <= last || delta > last_delta)) {
                FLAW(flaw, "record offsets of the batch at %lld do not grow inside of it",
                     b[B_POSITION], 0);
                return rows;
            }
            const int64_t offset = base_offset + delta;
            if (UNLIKELY(offset >= end_offset)) {
                batch = in->batches;
                done = 0;
                goto full;
            }
            if (UNLIKELY(offset < start_offset)) {
                last = delta;
                p = end;
                continue;
            }
            if (wants_fields) {
                int64_t key_length, value_length, headers;
                const uint8_t *key, *value;
                key = varint(q, end, 5, &key_length);
                if (UNLIKELY(!key || key_length > end - key)) {
                    FLAW(flaw, BEYOND, b[B_POSITION], 0);
                    return rows;
                }
                q = key_length > 0 ? key + key_length : key;
                value = varint(q, end, 5, &value_length);
                if (UNLIKELY(!value || value_length > end - value)) {
                    FLAW(flaw, BEYOND, b[B_POSITION], 0);
                    return rows;
                }
                q = value_length > 0 ? value + value_length : value;
                q = varint(q, end, 5, &headers);
                if (UNLIKELY(!q || headers < 0 || headers > (end - q) / 2 ||
                             (!headers && q != end))) {
                    FLAW(flaw, "a record of the batch at %lld has fields that do not end with it",
                         b[B_POSITION], 0);
                    return rows;
                }
                /* what may not fit comes before anything is counted */
                if (key_ends && key_length > key_room - keys)
                    goto full;
                if (value_ends && value_length > value_room - values)
                    goto full;
                if (list_ends) {
                    int64_t pair = pairs, name_at = names, content_at = contents;
                    int64_t nulls = 0;
                    if (headers > pairs_room - pairs)
                        goto full;
                    for (; pair < pairs + headers; pair++) {
                        int64_t name_length, content_length;
                        const uint8_t *name = varint(q, end, 5, &name_length);
                        if (!name || name_length < 0 || name_length > end - name) {
                            FLAW(flaw, "a header in the batch at %lld goes beyond its record",
                                 b[B_POSITION], 0);
                            return rows;
                        }
                        const uint8_t *content =
                            varint(name + name_length, end, 5, &content_length);
                        if (!content || content_length > end - content) {
                            FLAW(flaw, "a header in the batch at %lld goes beyond its record",
                                 b[B_POSITION], 0);
                            return rows;
                        }
                        const int is_null = content_length < 0;
                        if (is_null)
                            content_length = 0;
                        q = content + content_length;
                        if (name_length > name_room - name_at ||
                            content_length > content_room - content_at)
                            goto full;
                        copy(name_bytes + name_at, name, name_length, name_room - name_at,
                             raw_end - name);
                        copy(content_bytes + content_at, content, content_length,
                             content_room - content_at, raw_end - content);
                        name_ends[pair + 1] = (int32_t)(name_at += name_length);
                        content_ends[pair + 1] = (int32_t)(content_at += content_length);
                        content_valid[pair >> 3] |= (uint8_t)(1u << (pair & 7));
                        if (is_null) {
                            clear_bit(content_valid, pair);
                            nulls++;
                        }
                    }
                    if (q != end) {
                        FLAW(flaw, "headers in the batch at %lld do not end with their record",
                             b[B_POSITION], 0);
                        return rows;
                    }
                    pairs = pair;
                    names = name_at;
                    contents = content_at;
                    content_nulls += nulls;
                    list_ends[rows + 1] = (int32_t)pairs;
                    if (!headers) {
                        clear_bit(list_valid, rows);
                        list_nulls++;
                    }
                }
                if (key_valid) {
                    if (UNLIKELY(key_length < 0)) {
                        key_length = 0;
                        clear_bit(key_valid, rows);
                        key_nulls++;
                    }
                    if (key_ends) {
                        copy(key_bytes + keys, key, key_length, key_room - keys, raw_end - key);
                        key_ends[rows + 1] = (int32_t)(keys += key_length);
                    } else {
                        put_view(key_views + 16 * rows, raw, key, key_length);
                    }
                }
                if (value_valid) {
                    if (UNLIKELY(value_length < 0)) {
                        value_length = 0;
                        clear_bit(value_valid, rows);
                        value_nulls++;
                    }
                    if (value_ends) {
                        copy(value_bytes + values, value, value_length, value_room - values,
                             raw_end - value);
                        value_ends[rows + 1] = (int32_t)(values += value_length);
                    } else {
                        put_view(value_views + 16 * rows, raw, value, value_length);
                    }
                }
            }
            if (offsets)
                offsets[rows] = offset;
            if (timestamps) {
                int64_t ms =
                    (int64_t)(is_append_time ? base_time : base_time + (uint64_t)time_delta);
                ms = ms > TIMESTAMP_MS_MAX ? TIMESTAMP_MS_MAX : ms;
                ms = ms < -TIMESTAMP_MS_MAX ? -TIMESTAMP_MS_MAX : ms;
                timestamps[rows] = ms * 1000;
            }
            if (types)
                types[rows] = is_append_time;
            rows++;
            last = delta;
            p = end;
        }
        if (p != high) {
            FLAW(flaw, NOT_FILLED, b[B_POSITION], 0);
            return rows;
        }
    }
full:
    in->state[S_BATCH] = batch;
    in->state[S_DONE] = done;
    in->state[S_POSITION] = done ? p - raw : 0;
    in->state[S_LAST] = done ? last : 0;
    in->state[S_KEY_BYTES] = keys;
    in->state[S_KEY_NULLS] = key_nulls;
    in->state[S_VALUE_BYTES] = values;
    in->state[S_VALUE_NULLS] = value_nulls;
    in->state[S_HEADERS] = pairs;
    in->state[S_HEADER_NULLS] = list_nulls;
    in->state[S_NAME_BYTES] = names;
    in->state[S_CONTENT_BYTES] = contents;
    in->state[S_CONTENT_NULLS] = content_nulls;
    return rows;
}

/* Bytes an output must have for `rows` rows, and what its items are aligned to. */
static int64_t
needed(int output, int64_t rows, int *item) {
    *item = 1;
    switch (output) {
    case O_OFFSET:
    case O_TIMESTAMP:
        *item = 8;
        return 8 * rows;
    case O_TYPE:
        *item = 4;
        return 4 * rows;
    case O_KEY_OFFSETS:
    case O_VALUE_OFFSETS:
    case O_LIST_OFFSETS:
        *item = 4;
        return 4 * (rows + 1);
    case O_NAME_OFFSETS:
    case O_CONTENT_OFFSETS:
        *item = 4;
        return 4;
    case O_KEY_VALID:
    case O_VALUE_VALID:
    case O_LIST_VALID:
        return (rows + 7) / 8;
    case O_KEY_VIEWS:
    case O_VALUE_VIEWS:
        return 16 * rows;
    default:
        return 0;
    }
}

/* Take the buffers of the outputs; how many were taken, to be released. An exception may be set. */
static int
take_outputs(PyObject *tuple, int64_t rows_max, Py_buffer *views, struct outputs *out) {
    int taken = 0;
    memset(out, 0, sizeof *out);
    if (PyTuple_Size(tuple) != OUTPUTS) {
        PyErr_Format(PyExc_ValueError, "there must be %d outputs", (int)OUTPUTS);
        return 0;
    }
    for (int i = 0; i < OUTPUTS; i++) {
        PyObject *object = PyTuple_GetItem(tuple, i);
        if (object == Py_None)
            continue;
        int item;
        const int64_t bytes = needed(i, rows_max, &item);
        if (get_buffer(object, &views[taken], 1, item, "an output") < 0)
            return taken;
        const Py_buffer *view = &views[taken++];
        if (view->len < bytes) {
            PyErr_Format(PyExc_ValueError, "output %d is too small for its rows", i);
            return taken;
        }
        /* an Arrow offset reaches no further */
        out->size[i] = view->len < INT32_MAX ? view->len : INT32_MAX;
        out->at[i] = view->buf;
    }
    uint8_t **at = out->at;
    const int keys = at[O_KEY_OFFSETS] != NULL, values = at[O_VALUE_OFFSETS] != NULL;
    const int headers = at[O_LIST_OFFSETS] != NULL;
    int are_whole = keys == (at[O_KEY_BYTES] != NULL) && values == (at[O_VALUE_BYTES] != NULL) &&
                    (keys ^ (at[O_KEY_VIEWS] != NULL)) == (at[O_KEY_VALID] != NULL) &&
                    (values ^ (at[O_VALUE_VIEWS] != NULL)) == (at[O_VALUE_VALID] != NULL);
    for (int i = O_LIST_OFFSETS; i < OUTPUTS; i++)
        are_whole = are_whole && headers == (at[i] != NULL);
    if (!are_whole || (keys && at[O_KEY_VIEWS]) || (values && at[O_VALUE_VIEWS])) {
        PyErr_SetString(PyExc_ValueError, "outputs of one column belong together");
        return taken;
    }
    if (headers) {
        /* from here on: how many pairs there is room for */
        int64_t pairs = out->size[O_CONTENT_VALID] * 8;
        const int64_t names = out->size[O_NAME_OFFSETS] / 4 - 1;
        const int64_t contents = out->size[O_CONTENT_OFFSETS] / 4 - 1;
        pairs = pairs < names ? pairs : names;
        out->size[O_CONTENT_VALID] = pairs < contents ? pairs : contents;
    }
    const int bits[] = {O_KEY_VALID, O_VALUE_VALID, O_LIST_VALID};
    for (int i = 0; i < 3; i++)
        if (at[bits[i]])
            memset(at[bits[i]], 0xff, (size_t)((rows_max + 7) / 8));
    return taken;
}

PyObject *
py_decode(PyObject *self, PyObject *args) {
    PyObject *raw_object, *table_object, *state_object, *tuple;
    long long batches, rows_max, start_offset, end_offset;
    if (!PyArg_ParseTuple(args, "OOLLLLOO!", &raw_object, &table_object, &batches, &rows_max,
                          &start_offset, &end_offset, &state_object, &PyTuple_Type, &tuple))
        return NULL;
    Py_buffer raw = {0}, table = {0}, state = {0}, views[OUTPUTS];
    struct outputs out;
    struct flaw flaw = {0};
    int64_t rows = 0;
    int taken = 0;
    if (get_buffer(raw_object, &raw, 0, 1, "raw") < 0 ||
        get_buffer(table_object, &table, 0, 8, "table") < 0 ||
        get_buffer(state_object, &state, 1, 8, "state") < 0)
        goto done;
    if (rows_max < 0 || rows_max > INT32_MAX) {
        FLAW(&flaw, "%lld rows are more than an Arrow batch can have", rows_max, 0);
        goto done;
    }
    if (batches < 0 || batches > table.len / (8 * BATCH_FIELDS)) {
        FLAW(&flaw, "there are no %lld batches in a table of %lld bytes", batches, table.len);
        goto done;
    }
    int64_t *place = state.buf;
    if (state.len < 8 * STATE_FIELDS || place[S_BATCH] < 0 || place[S_DONE] < 0 ||
        place[S_POSITION] < 0 || place[S_POSITION] > raw.len) {
        FLAW(&flaw, "this is no state of a decoder", 0, 0);
        goto done;
    }
    taken = take_outputs(tuple, rows_max, views, &out);
    if (PyErr_Occurred())
        goto done;
    if ((out.at[O_KEY_VIEWS] || out.at[O_VALUE_VIEWS]) && raw.len > INT32_MAX) {
        FLAW(&flaw, "views reach no further than 2 GiB, not %lld bytes", raw.len, 0);
        goto done;
    }
    const struct rows in = {raw.buf,      raw.len,    table.buf, batches, rows_max,
                            start_offset, end_offset, place};
    Py_BEGIN_ALLOW_THREADS
    rows = decode(&in, &out, &flaw);
    Py_END_ALLOW_THREADS
done:
    while (taken)
        PyBuffer_Release(&views[--taken]);
    if (raw.obj)
        PyBuffer_Release(&raw);
    if (table.obj)
        PyBuffer_Release(&table);
    if (state.obj)
        PyBuffer_Release(&state);
    if (PyErr_Occurred())
        return NULL;
    if (flaw.text)
        return raise_flaw(&flaw);
    return PyLong_FromLongLong(rows);
}
