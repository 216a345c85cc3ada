/* Arrow columns to Kafka: murmur2 of keys, records of a batch.
 *
 * A record, behind its length (all numbers zigzag varints; Kafka `DefaultRecord`):
 *
 *   attributes 0 | timestamp delta | offset delta | key length, key | value length, value |
 *   header count | header key length, key, value length, value | ...
 *
 * A null has the length -1 and no bytes. Columns are given as in `_native.pyi`: validity bits, int32
 * offsets, bytes, the place of row 0; their offsets are checked against the bytes row by row.
 */

#include "kernels.h"

struct column {
    Py_buffer valid, offsets, bytes;
    const uint8_t *bits;    /* NULL: no row is null */
    const int32_t *at;      /* of row 0 */
    const uint8_t *content; /* may be NULL if it is empty */
    int64_t size, first;
};

static void
release(struct column *c) {
    if (c->valid.obj)
        PyBuffer_Release(&c->valid);
    if (c->offsets.obj)
        PyBuffer_Release(&c->offsets);
    if (c->bytes.obj)
        PyBuffer_Release(&c->bytes);
}

/* Take validity and offsets of `rows` rows from the first items of a tuple. */
static int
take_layout(struct column *c, PyObject *valid, PyObject *offsets, Py_ssize_t first, int64_t rows,
            const char *name) {
    if (first < 0 || rows < 0 || first > (int64_t)1 << 40 || rows > (int64_t)1 << 40) {
        PyErr_Format(PyExc_ValueError, "the %s column has no such rows", name);
        return -1;
    }
    if (get_buffer(offsets, &c->offsets, 0, 4, name) < 0)
        return -1;
    if (c->offsets.len / 4 < first + rows + 1 && rows) {
        PyErr_Format(PyExc_ValueError, "the %s column has fewer rows than it should", name);
        return -1;
    }
    c->at = (const int32_t *)c->offsets.buf + first;
    c->first = first;
    c->bits = NULL;
    if (valid != Py_None) {
        if (get_buffer(valid, &c->valid, 0, 1, name) < 0)
            return -1;
        if (c->valid.len < (first + rows + 7) / 8) {
            PyErr_Format(PyExc_ValueError, "the %s column has too few validity bits", name);
            return -1;
        }
        c->bits = c->valid.buf;
    }
    return 0;
}

/* Take a binary column; -1 with an exception if it is none. Release it in any case. */
static int
take_column(struct column *c, PyObject *tuple, int64_t rows, const char *name) {
    PyObject *valid, *offsets, *bytes;
    Py_ssize_t first;
    if (!PyArg_ParseTuple(tuple, "OOOn", &valid, &offsets, &bytes, &first) ||
        take_layout(c, valid, offsets, first, rows, name) < 0)
        return -1;
    c->content = NULL;
    c->size = 0;
    if (bytes != Py_None) {
        if (get_buffer(bytes, &c->bytes, 0, 1, name) < 0)
            return -1;
        c->content = c->bytes.buf;
        c->size = c->bytes.len;
    }
    return 0;
}

static inline int
is_null(const struct column *c, int64_t row) {
    int64_t bit = c->first + row;
    return c->bits && !(c->bits[bit >> 3] >> (bit & 7) & 1);
}

/* Begin and length of a row that is not null; false if its offsets lie outside of the bytes. */
static inline int
content_of(const struct column *c, int64_t row, const uint8_t **begin, int64_t *length) {
    int64_t low = c->at[row], high = c->at[row + 1];
    if (UNLIKELY(low < 0 || high < low || high > c->size))
        return 0;
    *begin = c->content + low;
    *length = high - low;
    return 1;
}

/* --- murmur2 ---------------------------------------------------------------------------------- */

/* Kafka's `Utils.murmur2`: MurmurHash2 of 32 bits with its own seed. */
static inline uint32_t
murmur2(const uint8_t *p, int64_t size) {
    const uint32_t m = 0x5bd1e995;
    uint32_t h = 0x9747b28c ^ (uint32_t)size;
    for (; size >= 4; p += 4, size -= 4) {
        uint32_t k = load_le32(p) * m;
        k ^= k >> 24;
        h = h * m ^ k * m;
    }
    switch (size) {
    case 3:
        h ^= (uint32_t)p[2] << 16; /* fall through */
    case 2:
        h ^= (uint32_t)p[1] << 8; /* fall through */
    case 1:
        h = (h ^ p[0]) * m;
    }
    h = (h ^ h >> 13) * m;
    return h ^ h >> 15;
}

PyObject *
py_murmur2(PyObject *self, PyObject *args) {
    PyObject *tuple, *target;
    Py_ssize_t count;
    struct column keys = {0};
    Py_buffer out = {0};
    struct flaw flaw = {0};
    if (!PyArg_ParseTuple(args, "O!nO", &PyTuple_Type, &tuple, &count, &target))
        return NULL;
    if (take_column(&keys, tuple, count, "key") < 0 || get_buffer(target, &out, 1, 4, "out") < 0)
        goto done;
    if (out.len / 4 < count) {
        FLAW(&flaw, "there is room for %lld hashes, not for %lld", out.len / 4, count);
        goto done;
    }
    uint32_t *hashes = out.buf;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t row = 0; row < count; row++) {
        const uint8_t *begin = NULL;
        int64_t length = 0;
        if (!is_null(&keys, row) && !content_of(&keys, row, &begin, &length)) {
            FLAW(&flaw, "key %lld of %lld lies outside of the column's bytes", row, count);
            break;
        }
        hashes[row] = murmur2(begin, length);
    }
    Py_END_ALLOW_THREADS
done:
    release(&keys);
    if (out.obj)
        PyBuffer_Release(&out);
    if (PyErr_Occurred())
        return NULL;
    if (flaw.text)
        return raise_flaw(&flaw);
    Py_RETURN_NONE;
}

/* --- records ---------------------------------------------------------------------------------- */

static inline uint64_t
zigzag(int64_t value) {
    return (uint64_t)value << 1 ^ (uint64_t)(value >> 63);
}

static inline int
varint_size(uint64_t raw) {
    return (63 - __builtin_clzll(raw | 1)) / 7 + 1;
}

static inline uint8_t *
put_varint(uint8_t *p, uint64_t raw) {
    for (; raw >= 0x80; raw >>= 7)
        *p++ = (uint8_t)(raw | 0x80);
    *p++ = (uint8_t)raw;
    return p;
}

/* A key, value, or what a header has of them; length -1: null. */
struct content {
    const uint8_t *begin;
    int64_t length;
};

static inline int
take_content(const struct column *c, int64_t row, struct content *found) {
    found->begin = NULL;
    found->length = -1;
    if (!c || is_null(c, row))
        return 1;
    return content_of(c, row, &found->begin, &found->length);
}

static inline int64_t
size_of(const struct content *c) {
    return varint_size(zigzag(c->length)) + (c->length > 0 ? c->length : 0);
}

static inline uint8_t *
put_content(uint8_t *p, const struct content *c) {
    p = put_varint(p, zigzag(c->length));
    if (c->length > 0) {
        memcpy(p, c->begin, (size_t)c->length);
        p += c->length;
    }
    return p;
}

struct headers {
    struct column list, name, content;
    int64_t pairs; /* that both children have */
};

/* Sizes of a row's headers behind the count; -1: they are not what they must be. */
static int64_t
headers_size(const struct headers *h, int64_t row, int64_t *low, int64_t *high) {
    *low = *high = 0;
    if (is_null(&h->list, row))
        return 0;
    *low = h->list.at[row];
    *high = h->list.at[row + 1];
    if (*low < 0 || *high < *low || *high > h->pairs)
        return -1;
    int64_t size = 0;
    for (int64_t pair = *low; pair < *high; pair++) {
        struct content name, content;
        if (!take_content(&h->name, pair, &name) || name.length < 0 ||
            !take_content(&h->content, pair, &content))
            return -1;
        size += size_of(&name) + size_of(&content);
    }
    return size;
}

static int64_t
pairs_of(const struct column *c) {
    return c->offsets.len / 4 - c->first - 1;
}

static int
take_headers(struct headers *h, PyObject *tuple, int64_t rows) {
    PyObject *valid, *offsets, *name, *content;
    Py_ssize_t first;
    if (!PyArg_ParseTuple(tuple, "OOnO!O!", &valid, &offsets, &first, &PyTuple_Type, &name,
                          &PyTuple_Type, &content) ||
        take_layout(&h->list, valid, offsets, first, rows, "headers") < 0 ||
        take_column(&h->name, name, 0, "header key") < 0 ||
        take_column(&h->content, content, 0, "header value") < 0)
        return -1;
    int64_t names = pairs_of(&h->name), contents = pairs_of(&h->content);
    h->pairs = names < contents ? names : contents;
    for (struct column *c = &h->name; c; c = c == &h->name ? &h->content : NULL)
        if (c->bits && c->valid.len * 8 - c->first < h->pairs)
            h->pairs = c->valid.len * 8 - c->first;
    return 0;
}

/* The columns of a call. */
struct source {
    struct column keys, values;
    struct headers headers;
    Py_buffer time;
    int has_keys, has_values, has_headers;
    const int64_t *times;
    int64_t rows;
};

static void
release_source(struct source *s) {
    release(&s->keys);
    release(&s->values);
    release(&s->headers.list);
    release(&s->headers.name);
    release(&s->headers.content);
    if (s->time.obj)
        PyBuffer_Release(&s->time);
}

/* -1 with an exception if a column is none. Release it in any case. */
static int
take_source(struct source *s, PyObject *key, PyObject *value, PyObject *time, PyObject *headers,
            Py_ssize_t rows) {
    if ((key != Py_None && take_column(&s->keys, key, rows, "key") < 0) ||
        (value != Py_None && take_column(&s->values, value, rows, "value") < 0) ||
        (time != Py_None && get_buffer(time, &s->time, 0, 8, "timestamps") < 0) ||
        (headers != Py_None && take_headers(&s->headers, headers, rows) < 0))
        return -1;
    if (s->time.obj && s->time.len / 8 < rows) {
        PyErr_Format(PyExc_ValueError, "there are %zd timestamps for %zd rows", s->time.len / 8,
                     rows);
        return -1;
    }
    s->has_keys = s->keys.offsets.obj != NULL;
    s->has_values = s->values.offsets.obj != NULL;
    s->has_headers = s->headers.list.offsets.obj != NULL;
    s->times = s->time.buf;
    s->rows = rows;
    return 0;
}

/* A batch that takes records. */
struct batch {
    uint8_t *p;
    const uint8_t *stop;
    int64_t count, base_timestamp, newest;
};

/* One row behind those of a batch; false if it has no room, or with a flaw. */
static inline int
put_row(const struct source *s, int64_t row, int64_t now, struct batch *b, struct flaw *flaw) {
    int64_t timestamp = s->times ? s->times[row] : now;
    uint64_t time_delta = zigzag((int64_t)((uint64_t)timestamp - (uint64_t)b->base_timestamp));
    uint64_t offset_delta = (uint64_t)b->count << 1;
    struct content key, value;
    int64_t low = 0, high = 0, size = 0;
    if (UNLIKELY(!take_content(s->has_keys ? &s->keys : NULL, row, &key) ||
                 !take_content(s->has_values ? &s->values : NULL, row, &value))) {
        FLAW(flaw, "row %lld of %lld lies outside of its column's bytes", row, s->rows);
        return 0;
    }
    if (s->has_headers && (size = headers_size(&s->headers, row, &low, &high)) < 0) {
        FLAW(flaw, "the headers of row %lld of %lld are null keys, or outside of their bytes", row,
             s->rows);
        return 0;
    }
    size += 1 + varint_size(time_delta) + varint_size(offset_delta) + size_of(&key) +
            size_of(&value) + varint_size(zigzag(high - low));
    if (size > INT32_MAX || b->stop - b->p < size + varint_size(zigzag(size)))
        return 0;
    uint8_t *p = put_varint(b->p, zigzag(size));
    *p++ = 0;
    p = put_varint(p, time_delta);
    p = put_varint(p, offset_delta);
    p = put_content(p, &key);
    p = put_content(p, &value);
    p = put_varint(p, zigzag(high - low));
    for (int64_t pair = low; pair < high; pair++) {
        struct content name, content;
        take_content(&s->headers.name, pair, &name);
        take_content(&s->headers.content, pair, &content);
        p = put_content(p, &name);
        p = put_content(p, &content);
    }
    b->p = p;
    if (timestamp > b->newest)
        b->newest = timestamp;
    b->count++;
    return 1;
}

PyObject *
py_encode(PyObject *self, PyObject *args) {
    PyObject *target, *index_object, *key_object, *value_object, *time_object, *header_object;
    Py_ssize_t position, end, first_delta, first, last, rows;
    long long base_timestamp;
    if (!PyArg_ParseTuple(args, "OnnnOnnOOOLOn", &target, &position, &end, &first_delta,
                          &index_object, &first, &last, &key_object, &value_object, &time_object,
                          &base_timestamp, &header_object, &rows))
        return NULL;
    Py_buffer out = {0}, index = {0};
    struct source source;
    memset(&source, 0, sizeof source);
    struct batch batch = {0};
    struct flaw flaw = {0};
    Py_ssize_t done = 0;
    batch.newest = base_timestamp;
    if (get_buffer(target, &out, 1, 1, "out") < 0 ||
        (index_object != Py_None && get_buffer(index_object, &index, 0, 4, "rows") < 0) ||
        take_source(&source, key_object, value_object, time_object, header_object, rows) < 0)
        goto done;
    if (position < 0 || end < position || end > out.len) {
        FLAW(&flaw, "out has no bytes %lld to %lld", position, end);
        goto done;
    }
    if (first < 0 || last < first || last - first > INT32_MAX ||
        last > (index.obj ? index.len / 4 : rows)) {
        FLAW(&flaw, "there are no rows %lld to %lld", first, last);
        goto done;
    }
    if (first_delta < 0 || first_delta > INT32_MAX - (last - first)) {
        FLAW(&flaw, "offset deltas from %lld on are too many for %lld rows", first_delta,
             last - first);
        goto done;
    }
    const int32_t *index_of = index.buf;
    uint8_t *base = out.buf;
    batch = (struct batch){base + position, base + end, first_delta, base_timestamp, INT64_MIN};
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = first; i < last; i++) {
        int64_t row = index.obj ? index_of[i] : i;
        if (UNLIKELY(row < 0 || row >= rows)) {
            FLAW(&flaw, "there is no row %lld among %lld", row, rows);
            break;
        }
        if (!put_row(&source, row, base_timestamp, &batch, &flaw))
            break;
        done++;
    }
    Py_END_ALLOW_THREADS
    position = batch.p - base;
    if (!done)
        batch.newest = base_timestamp;
done:
    release_source(&source);
    if (out.obj)
        PyBuffer_Release(&out);
    if (index.obj)
        PyBuffer_Release(&index);
    if (PyErr_Occurred())
        return NULL;
    if (flaw.text)
        return raise_flaw(&flaw);
    return Py_BuildValue("nnL", done, position, (long long)batch.newest);
}

/* --- rows of several partitions ---------------------------------------------------------------- */

PyObject *
py_scatter(PyObject *self, PyObject *args) {
    PyObject *outs, *state_object, *place_object, *key_object, *value_object, *time_object;
    PyObject *header_object;
    Py_ssize_t first, last, rows;
    long long now;
    if (!PyArg_ParseTuple(args, "O!OOnnOOOLOn", &PyList_Type, &outs, &state_object, &place_object,
                          &first, &last, &key_object, &value_object, &time_object, &now,
                          &header_object, &rows))
        return NULL;
    Py_buffer state = {0}, place = {0}, buffers[SCATTER_MAX];
    struct batch batches[SCATTER_MAX];
    struct source source;
    memset(&source, 0, sizeof source);
    memset(buffers, 0, sizeof buffers);
    memset(batches, 0, sizeof batches);
    struct flaw flaw = {0};
    Py_ssize_t count = PyList_Size(outs), i = first;
    if (get_buffer(state_object, &state, 1, 8, "states") < 0 ||
        get_buffer(place_object, &place, 0, 4, "partitions") < 0 ||
        take_source(&source, key_object, value_object, time_object, header_object, rows) < 0)
        goto done;
    if (count > SCATTER_MAX || state.len / 8 < count * R_FIELDS) {
        FLAW(&flaw, "there are %lld batches, of %lld states", count, state.len / 8 / R_FIELDS);
        goto done;
    }
    if (first < 0 || last < first || last > rows || last > place.len / 4 || last > INT32_MAX) {
        FLAW(&flaw, "there are no rows %lld to %lld", first, last);
        goto done;
    }
    int64_t *fields = state.buf;
    for (Py_ssize_t each = 0; each < count; each++) {
        int64_t *f = fields + each * R_FIELDS;
        PyObject *out = PyList_GetItem(outs, each);
        if (out == Py_None)
            continue;
        if (get_buffer(out, &buffers[each], 1, 1, "out") < 0)
            goto done;
        if (f[R_POSITION] < 0 || f[R_END] < f[R_POSITION] || f[R_END] > buffers[each].len ||
            f[R_COUNT] < 0 || f[R_COUNT] > INT32_MAX - (last - first)) {
            FLAW(&flaw, "batch %lld of %lld has no such bytes or records", each, count);
            goto done;
        }
        uint8_t *base = buffers[each].buf;
        batches[each] = (struct batch){base + f[R_POSITION], base + f[R_END], f[R_COUNT],
                                       f[R_BASE_TIMESTAMP], f[R_NEWEST]};
    }
    const int32_t *partitions = place.buf;
    Py_BEGIN_ALLOW_THREADS
    for (; i < last; i++) {
        int32_t partition = partitions[i];
        if (UNLIKELY(partition < 0 || partition >= count)) {
            FLAW(&flaw, "there is no partition %lld among %lld", partition, count);
            break;
        }
        /* Where there is no batch there is no room either. */
        if (!put_row(&source, i, now, &batches[partition], &flaw))
            break;
    }
    Py_END_ALLOW_THREADS
    for (Py_ssize_t each = 0; each < count; each++) {
        if (!buffers[each].obj)
            continue;
        int64_t *f = fields + each * R_FIELDS;
        f[R_POSITION] = batches[each].p - (uint8_t *)buffers[each].buf;
        f[R_COUNT] = batches[each].count;
        f[R_NEWEST] = batches[each].newest;
    }
done:
    release_source(&source);
    for (Py_ssize_t each = 0; each < SCATTER_MAX; each++)
        if (buffers[each].obj)
            PyBuffer_Release(&buffers[each]);
    if (state.obj)
        PyBuffer_Release(&state);
    if (place.obj)
        PyBuffer_Release(&place);
    if (PyErr_Occurred())
        return NULL;
    if (flaw.text)
        return raise_flaw(&flaw);
    return PyLong_FromSsize_t(i);
}
