/* Batch headers, and the records of one batch looked at (layout: `records/batch_layout.py`). */

#include "kernels.h"

static int64_t
load_int64(const uint8_t *p) {
    return (int64_t)load_be64(p);
}

static int64_t
load_int32(const uint8_t *p) {
    return (int32_t)load_be32(p);
}

PyObject *
py_scan(PyObject *self, PyObject *args) {
    PyObject *data_object, *table_object;
    long long position, start_offset, end_offset, next_offset, bytes_max, records_max;
    int checks_crc;
    if (!PyArg_ParseTuple(args, "OLLLLLLpO", &data_object, &position, &start_offset, &end_offset,
                          &next_offset, &bytes_max, &records_max, &checks_crc, &table_object))
        return NULL;
    Py_buffer data = {0}, table = {0};
    struct flaw flaw = {0};
    Py_ssize_t found = 0;
    int is_over = 0;
    if (get_buffer(data_object, &data, 0, 1, "data") < 0)
        return NULL;
    if (get_buffer(table_object, &table, 1, 8, "table") < 0) {
        PyBuffer_Release(&data);
        return NULL;
    }
    const uint8_t *bytes = data.buf;
    const long long size = data.len;
    const Py_ssize_t rows = table.len / (8 * BATCH_FIELDS);
    int64_t *row = table.buf;
    if (position < 0 || position > size || bytes_max < 0) {
        FLAW(&flaw, "there is no position %lld in %lld bytes", position, size);
        goto done;
    }
    const long long stop = bytes_max < size - position ? position + bytes_max : size;
    Py_BEGIN_ALLOW_THREADS
    while (position < stop && found < rows) {
        const uint8_t *p = bytes + position;
        if (size - position < LOG_OVERHEAD) {
            FLAW(&flaw, "a batch header is cut off at %lld", position, 0);
            break;
        }
        const int64_t base_offset = load_int64(p), length = load_int32(p + AT_LENGTH);
        if (base_offset >= end_offset) {
            is_over = 1;
            break;
        }
        if (length < HEADER_SIZE - LOG_OVERHEAD) {
            FLAW(&flaw, "no batch of magic 2 at %lld", position, 0);
            break;
        }
        if (length > size - position - LOG_OVERHEAD) {
            FLAW(&flaw, "the batch at %lld is cut off", position, 0);
            break;
        }
        if (p[AT_MAGIC] != MAGIC) {
            FLAW(&flaw, "the batch at %lld has another magic than 2", position, 0);
            break;
        }
        const int64_t last_delta = load_int32(p + AT_LAST_DELTA), count = load_int32(p + AT_COUNT);
        int64_t following;
        if (last_delta < 0 || base_offset < next_offset ||
            __builtin_add_overflow(base_offset, last_delta + 1, &following)) {
            FLAW(&flaw, "the batch at %lld has offsets out of order", position, 0);
            break;
        }
        if (count < 0 || count > last_delta + 1) {
            FLAW(&flaw, "the batch at %lld can't have as many records as it says", position, 0);
            break;
        }
        const int64_t attributes = load_be16(p + AT_ATTRIBUTES);
        if (following > start_offset && !(attributes & CONTROL_BIT) && count) {
            if (found && count > records_max)
                break;
            records_max -= count;
            const size_t sealed = (size_t)(length + LOG_OVERHEAD - AT_ATTRIBUTES);
            if (checks_crc && crc32c(0, p + AT_ATTRIBUTES, sealed) != load_be32(p + AT_CRC)) {
                FLAW(&flaw, "the CRC of the batch at %lld is wrong", position, 0);
                break;
            }
            row[B_LOW] = position + HEADER_SIZE;
            row[B_HIGH] = position + LOG_OVERHEAD + length;
            row[B_BASE_OFFSET] = base_offset;
            row[B_LAST_DELTA] = last_delta;
            row[B_COUNT] = count;
            row[B_BASE_TIMESTAMP] = load_int64(p + AT_BASE_TIMESTAMP);
            row[B_MAX_TIMESTAMP] = load_int64(p + AT_MAX_TIMESTAMP);
            row[B_ATTRIBUTES] = attributes;
            row[B_PRODUCER_ID] = load_int64(p + AT_PRODUCER_ID);
            row[B_POSITION] = position;
            row += BATCH_FIELDS;
            found++;
        }
        next_offset = following;
        position += LOG_OVERHEAD + length;
    }
    Py_END_ALLOW_THREADS
done:
    PyBuffer_Release(&data);
    PyBuffer_Release(&table);
    if (flaw.text)
        return raise_flaw(&flaw);
    return Py_BuildValue("nLLN", found, position, next_offset, PyBool_FromLong(is_over));
}

/* --- walk ------------------------------------------------------------------------------------- */

enum { FAULTS_MAX = 1024 };

struct walked {
    long long records, faults_max;
    int64_t newest;
    int faults;
    struct {
        int64_t index;
        int what;
    } fault[FAULTS_MAX];
};

static void
note(struct walked *w, int64_t index, int what) {
    /* what can't be walked is told even where there is no more room */
    int at = w->faults < w->faults_max ? w->faults++ : what == WALK_MALFORMED ? w->faults - 1 : -1;
    if (at >= 0) {
        w->fault[at].index = index;
        w->fault[at].what = what;
    }
}

/* Behind `length` bytes from p, none if it is -1 (null); NULL if they go beyond the end. */
static const uint8_t *
behind(const uint8_t *p, const uint8_t *end, int64_t length) {
    if (length <= 0)
        return length >= -1 ? p : NULL;
    return length <= end - p ? p + length : NULL;
}

/* Behind the headers of a record that ends at `end`, or NULL. */
static const uint8_t *
walk_headers(const uint8_t *p, const uint8_t *end, int64_t count) {
    if (count < 0 || count > (end - p) / 2)
        return NULL;
    for (int64_t length; count; count--)
        if (!(p = varint(p, end, 5, &length)) || length < 0 || !(p = behind(p, end, length)) ||
            !(p = varint(p, end, 5, &length)) || !(p = behind(p, end, length)))
            return NULL;
    return p;
}

static void
walk(struct walked *w, const uint8_t *p, const uint8_t *high, int64_t count, int64_t oldest,
     int64_t newest, int needs_key) {
    for (int64_t index = 0; index < count; index++) {
        int64_t length, time_delta, offset_delta, key_length, value_length, headers;
        if (!(p = varint(p, high, 5, &length)) || length < 1 || length > high - p) {
            note(w, index, WALK_MALFORMED);
            return;
        }
        const uint8_t *end = p + length;
        if (!(p = varint(p + 1, end, 10, &time_delta)) ||
            !(p = varint(p, end, 5, &offset_delta)) || !(p = varint(p, end, 5, &key_length)) ||
            !(p = behind(p, end, key_length)) || !(p = varint(p, end, 5, &value_length)) ||
            !(p = behind(p, end, value_length)) || !(p = varint(p, end, 5, &headers)) ||
            !(p = walk_headers(p, end, headers)) || p != end) {
            note(w, index, WALK_MALFORMED);
            return;
        }
        if (UNLIKELY(offset_delta != index))
            note(w, index, WALK_OFFSET);
        else if (UNLIKELY(needs_key && key_length < 0))
            note(w, index, WALK_NO_KEY);
        else if (UNLIKELY(time_delta < oldest || time_delta > newest))
            note(w, index, WALK_TIMESTAMP);
        if (!index || time_delta > w->newest)
            w->newest = time_delta;
        w->records++;
    }
    if (p != high)
        note(w, count, WALK_MALFORMED);
}

PyObject *
py_walk(PyObject *self, PyObject *args) {
    Py_buffer records;
    long long count, oldest, newest;
    int needs_key, faults_max;
    if (!PyArg_ParseTuple(args, "y*LLLpi", &records, &count, &oldest, &newest, &needs_key,
                          &faults_max))
        return NULL;
    struct walked w;
    w.records = w.newest = w.faults = 0;
    w.faults_max = faults_max < 1 ? 1 : faults_max > FAULTS_MAX ? FAULTS_MAX : faults_max;
    const uint8_t *low = records.buf;
    if (records.len < 4096) {
        walk(&w, low, low + records.len, count, oldest, newest, needs_key);
    } else {
        Py_BEGIN_ALLOW_THREADS
        walk(&w, low, low + records.len, count, oldest, newest, needs_key);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&records);
    PyObject *faults = PyList_New(w.faults);
    if (!faults)
        return NULL;
    for (int i = 0; i < w.faults; i++) {
        PyObject *pair = Py_BuildValue("Li", (long long)w.fault[i].index, w.fault[i].what);
        if (!pair) {
            Py_DECREF(faults);
            return NULL;
        }
        PyList_SetItem(faults, i, pair);
    }
    return Py_BuildValue("LLN", w.records, (long long)w.newest, faults);
}
