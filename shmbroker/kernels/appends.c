/* Produce requests of several batches (layouts: `gateway/produce_many.py`, `ipc/operation_layout.py`):
 * their partitions found, put on a ring, and answered.
 *
 *   places    int32 of each batch: partition, position, bytes
 *   results   int64 of each batch: base offset, append time, log start offset
 */

#include "kernels.h"

enum { TOPIC_ID_BYTES = 16, PLACE = 3, RESULT = 3 };

PyObject *
py_find_appends(PyObject *self, PyObject *args) {
    PyObject *data_object, *places_object;
    long long at, end;
    int is_flexible;
    if (!PyArg_ParseTuple(args, "OLLpO", &data_object, &at, &end, &is_flexible, &places_object))
        return NULL;
    Py_buffer data = {0}, places = {0};
    if (get_buffer(data_object, &data, 0, 1, "data") < 0)
        return NULL;
    if (get_buffer(places_object, &places, 1, 4, "places") < 0) {
        PyBuffer_Release(&data);
        return NULL;
    }
    const uint8_t *bytes = data.buf;
    int32_t *place = places.buf;
    const Py_ssize_t rows = places.len / (4 * PLACE);
    if (at < 0 || end > data.len || end > INT32_MAX)
        at = -1;
    for (Py_ssize_t row = 0; row < rows && at >= 0; row++, place += PLACE) {
        if (end - at < (is_flexible ? 5 : 8)) {
            at = -1;
            break;
        }
        int64_t size;
        place[0] = (int32_t)load_be32(bytes + at);
        at += 4;
        if (is_flexible) {
            size = 0;
            int shift = 0;
            for (;; shift += 7) {
                if (at == end || shift > 28) {
                    at = -1;
                    break;
                }
                size |= (int64_t)(bytes[at] & 0x7f) << shift;
                if (bytes[at++] < 0x80)
                    break;
            }
            size--;
        } else {
            size = (int32_t)load_be32(bytes + at);
            at += 4;
        }
        const uint8_t *batch = bytes + at;
        if (at < 0 || size < HEADER_SIZE || size > end - at || batch[AT_MAGIC] != MAGIC ||
            (int32_t)load_be32(batch + AT_LENGTH) != size - LOG_OVERHEAD ||
            batch[AT_ATTRIBUTES_LOW] & TRANSACTIONAL_BIT) {
            at = -1;
            break;
        }
        place[1] = (int32_t)at;
        place[2] = (int32_t)size;
        at += size;
        if (is_flexible && (at == end || bytes[at++]))
            at = -1;
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&places);
    return PyLong_FromLongLong(at);
}

PyObject *
py_pack_appends(PyObject *self, PyObject *args) {
    PyObject *target_object, *data_object, *places_object, *id_object;
    long long to, first, count;
    if (!PyArg_ParseTuple(args, "OLOOLLO", &target_object, &to, &data_object, &places_object,
                          &first, &count, &id_object))
        return NULL;
    Py_buffer target = {0}, data = {0}, places = {0}, id = {0};
    struct flaw flaw = {0};
    if (get_buffer(target_object, &target, 1, 1, "target") < 0 ||
        get_buffer(data_object, &data, 0, 1, "data") < 0 ||
        get_buffer(places_object, &places, 0, 4, "places") < 0 ||
        get_buffer(id_object, &id, 0, 1, "topic id") < 0)
        goto released;
    const long long rows = places.len / (4 * PLACE);
    if (to < 0 || to > target.len || first < 0 || count < 0 || first > rows - count ||
        id.len != TOPIC_ID_BYTES) {
        FLAW(&flaw, "there are no %lld batches from %lld on, or no room", count, first);
        goto released;
    }
    const int32_t *place = (const int32_t *)places.buf + PLACE * first;
    uint8_t *out = target.buf;
    for (long long row = 0; row < count; row++, place += PLACE) {
        const long long position = place[1], size = place[2];
        if (position < 0 || size < 0 || position > data.len - size ||
            size + ROW_BYTES > target.len - to) {
            FLAW(&flaw, "a batch of %lld bytes at %lld does not fit", size, position);
            break;
        }
        memcpy(out + to, id.buf, TOPIC_ID_BYTES);
        store_be32(out + to + 16, (uint32_t)place[0]);
        store_be32(out + to + 20, (uint32_t)size);
        memcpy(out + to + ROW_BYTES, (const uint8_t *)data.buf + position, (size_t)size);
        to += ROW_BYTES + size;
    }
released:
    if (target.obj)
        PyBuffer_Release(&target);
    if (data.obj)
        PyBuffer_Release(&data);
    if (places.obj)
        PyBuffer_Release(&places);
    if (id.obj)
        PyBuffer_Release(&id);
    if (flaw.text)
        return raise_flaw(&flaw);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(to);
}

PyObject *
py_put_stored(PyObject *self, PyObject *args) {
    PyObject *results_object, *packed_object;
    long long first;
    if (!PyArg_ParseTuple(args, "OLO", &results_object, &first, &packed_object))
        return NULL;
    Py_buffer results = {0}, packed = {0};
    struct flaw flaw = {0};
    if (get_buffer(results_object, &results, 1, 8, "results") < 0)
        return NULL;
    if (get_buffer(packed_object, &packed, 0, 1, "packed") < 0) {
        PyBuffer_Release(&results);
        return NULL;
    }
    const long long rows = results.len / (8 * RESULT);
    const uint8_t *from = packed.buf;
    for (Py_ssize_t at = 0; at + STORED_BYTES <= packed.len; at += STORED_BYTES) {
        uint32_t which;
        memcpy(&which, from + at, 4);
        if (first < 0 || first >= rows || which >= rows - first) {
            FLAW(&flaw, "there is no batch %lld behind %lld", which, first);
            break;
        }
        int64_t *result = (int64_t *)results.buf + RESULT * (first + which);
        memcpy(&result[0], from + at + 4, 8);
        result[1] = -1;
        memcpy(&result[2], from + at + 12, 8);
    }
    PyBuffer_Release(&results);
    PyBuffer_Release(&packed);
    if (flaw.text)
        return raise_flaw(&flaw);
    Py_RETURN_NONE;
}

PyObject *
py_answer_appends(PyObject *self, PyObject *args) {
    PyObject *places_object, *results_object;
    long long first;
    int is_flexible;
    if (!PyArg_ParseTuple(args, "OOLp", &places_object, &results_object, &first, &is_flexible))
        return NULL;
    Py_buffer places = {0}, results = {0};
    if (get_buffer(places_object, &places, 0, 4, "places") < 0)
        return NULL;
    if (get_buffer(results_object, &results, 0, 8, "results") < 0) {
        PyBuffer_Release(&places);
        return NULL;
    }
    PyObject *answer = NULL;
    const long long rows = places.len / (4 * PLACE), known = results.len / (8 * RESULT);
    if (first < 0 || first > known - rows) {
        PyErr_Format(PyExc_ValueError, "there are no %lld results from %lld on", rows, first);
        goto released;
    }
    /* Partition, error, base offset, append time, log start; no errors of records, no message, no
     * tags. */
    static const uint8_t tails[2][6] = {{0, 0, 0, 0, 0xff, 0xff}, {1, 0, 0}};
    const size_t tail = is_flexible ? 3 : 6, row_bytes = 4 + 2 + 24 + tail;
    answer = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(rows * (long long)row_bytes));
    if (answer == NULL)
        goto released;
    uint8_t *to = (uint8_t *)PyBytes_AsString(answer);
    const int32_t *place = places.buf;
    const int64_t *result = (const int64_t *)results.buf + RESULT * first;
    for (long long row = 0; row < rows; row++, place += PLACE, result += RESULT, to += row_bytes) {
        store_be32(to, (uint32_t)place[0]);
        to[4] = to[5] = 0;
        for (int n = 0; n < RESULT; n++)
            store_be64(to + 6 + 8 * n, (uint64_t)result[n]);
        memcpy(to + 30, tails[is_flexible], tail);
    }
released:
    PyBuffer_Release(&places);
    PyBuffer_Release(&results);
    return answer;
}
