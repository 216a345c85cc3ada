/* Standing answers, given to many sockets in one call (`gateway/standing_ready.py`).
 *
 *   recv ─► whole frame? ─► known bytes? ─► value of the grant? ─► answer, next frame ─► send
 *              │ no            │ no             │ no
 *              └───────────────┴────────────────┴──► from there on the caller takes the frames
 *
 * What is known is the caller's dict: (broker, API key, version, bytes behind the correlation id)
 * to (words, word, value, head, tail). words[word] has the value as long as the grant stands, and
 * words[word + 1] gets the time. The answer is head, correlation id, tail.
 */

#include <sys/socket.h>

#include "kernels.h"

enum { SIZE_BYTES = 4, CORRELATION_ID = 8, BEHIND = 12, REQUEST_MAX = 1024, ANSWERS_BYTES = 16 << 10 };

/* What is answered in one call. words: whose buffer it is. */
struct repeats {
    PyObject *known, *words;
    Py_buffer of_words;
    int64_t now_ns, repeated, received, sent;
    Py_ssize_t filled;
    uint8_t out[ANSWERS_BYTES];
};

/* Put the answer that `found` has for a frame: 1; 0: it stands no more, or there is no room; -1
 * with an exception. */
static int
put_repeat(struct repeats *all, PyObject *found, const uint8_t *frame) {
    if (!PyTuple_Check(found) || PyTuple_Size(found) != 5) {
        PyErr_SetString(PyExc_ValueError, "a standing answer has 5 parts");
        return -1;
    }
    PyObject *words = PyTuple_GetItem(found, 0);
    const Py_ssize_t word = PyLong_AsSsize_t(PyTuple_GetItem(found, 1));
    const long long value = PyLong_AsLongLong(PyTuple_GetItem(found, 2));
    char *head, *tail;
    Py_ssize_t head_size, tail_size;
    if (PyErr_Occurred() ||
        PyBytes_AsStringAndSize(PyTuple_GetItem(found, 3), &head, &head_size) < 0 ||
        PyBytes_AsStringAndSize(PyTuple_GetItem(found, 4), &tail, &tail_size) < 0)
        return -1;
    if (words != all->words) {
        if (all->words != NULL)
            PyBuffer_Release(&all->of_words);
        all->words = NULL;
        if (get_buffer(words, &all->of_words, 1, 8, "the words") < 0)
            return -1;
        all->words = words;
    }
    if (word < 0 || word >= all->of_words.len / 8 - 1) {
        PyErr_SetString(PyExc_ValueError, "there is no such word");
        return -1;
    }
    int64_t *grant = (int64_t *)all->of_words.buf + word;
    if (__atomic_load_n(grant, __ATOMIC_ACQUIRE) != value ||
        head_size + 4 + tail_size > ANSWERS_BYTES - all->filled)
        return 0;
    __atomic_store_n(grant + 1, all->now_ns, __ATOMIC_RELEASE);
    uint8_t *to = all->out + all->filled;
    memcpy(to, head, (size_t)head_size);
    memcpy(to + head_size, frame + CORRELATION_ID, 4);
    memcpy(to + head_size + 4, tail, (size_t)tail_size);
    all->filled += head_size + 4 + tail_size;
    all->repeated++;
    return 1;
}

/* Answer the frame that begins data[:count], which is one for `broker`: its bytes; 0: it is left to
 * the caller; -1 with an exception. */
static Py_ssize_t
repeat_frame(struct repeats *all, PyObject *broker, const uint8_t *frame, Py_ssize_t count) {
    if (count < BEHIND)
        return 0;
    const int64_t size = (int32_t)load_be32(frame), whole = size + SIZE_BYTES;
    if (whole < BEHIND || whole > count || size > REQUEST_MAX)
        return 0;
    PyObject *key = Py_BuildValue("(Oiiy#)", broker, (int)(int16_t)load_be16(frame + 4),
                                  (int)(int16_t)load_be16(frame + 6), frame + BEHIND,
                                  (Py_ssize_t)whole - BEHIND);
    if (key == NULL)
        return -1;
    PyObject *found = PyDict_GetItemWithError(all->known, key);
    Py_DECREF(key);
    if (found == NULL)
        return PyErr_Occurred() ? -1 : 0;
    const int so = put_repeat(all, found, frame);
    return so > 0 ? (Py_ssize_t)whole : so;
}

/* Send what was put for a row; what its socket did not take goes to `unsent`. */
static int
send_row(struct repeats *all, int fd, Py_ssize_t number, PyObject *unsent) {
    ssize_t sent = all->filled ? send(fd, all->out, (size_t)all->filled, MSG_DONTWAIT | MSG_NOSIGNAL)
                               : 0;
    if (sent < 0)
        sent = 0; /* the caller tries again, and meets what is wrong */
    all->sent += sent;
    int failed = 0;
    if (sent < all->filled) {
        PyObject *left = Py_BuildValue("(ny#)", number, (const char *)all->out + sent,
                                       all->filled - (Py_ssize_t)sent);
        failed = left == NULL || PyList_Append(unsent, left) < 0;
        Py_XDECREF(left);
    }
    all->filled = 0;
    return failed ? -1 : 0;
}

/* Serve the rows from `number` on, up to the first that brings something else: which that is, in
 * data[*at:*end]. *end -1: nothing could be read of it. -1 with an exception. */
static Py_ssize_t
repeat_rows(struct repeats *all, PyObject *rows, Py_ssize_t number, const Py_buffer *buffer,
            PyObject *unsent, Py_ssize_t *at, Py_ssize_t *end) {
    const Py_ssize_t count = PyList_Size(rows);
    const uint8_t *data = buffer->buf;
    for (; number < count; number++) {
        PyObject *row = PyList_GetItem(rows, number);
        if (row == NULL || !PyTuple_Check(row) || PyTuple_Size(row) != 2) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "a row has 2 parts");
            return -1;
        }
        const int fd = (int)PyLong_AsLong(PyTuple_GetItem(row, 0));
        if (PyErr_Occurred())
            return -1;
        *at = 0;
        *end = recv(fd, buffer->buf, (size_t)buffer->len, MSG_DONTWAIT);
        if (*end <= 0) {
            *end = -1;
            return number;
        }
        all->received += *end;
        while (*at < *end) {
            const Py_ssize_t size =
                repeat_frame(all, PyTuple_GetItem(row, 1), data + *at, *end - *at);
            if (size < 0)
                return -1;
            if (size == 0)
                break;
            *at += size;
        }
        if (send_row(all, fd, number, unsent) < 0)
            return -1;
        if (*at < *end)
            return number;
    }
    *at = *end = 0;
    return number;
}

PyObject *
py_repeat_standing(PyObject *self, PyObject *args) {
    PyObject *rows, *data, *known;
    Py_ssize_t first, at = 0, end = 0;
    long long now_ns;
    if (!PyArg_ParseTuple(args, "O!nOO!L", &PyList_Type, &rows, &first, &data, &PyDict_Type, &known,
                          &now_ns))
        return NULL;
    if (first < 0) {
        PyErr_SetString(PyExc_ValueError, "there are no such rows");
        return NULL;
    }
    Py_buffer buffer;
    if (get_buffer(data, &buffer, 1, 1, "the buffer") < 0)
        return NULL;
    struct repeats all = {.known = known, .now_ns = now_ns};
    PyObject *answer = NULL, *unsent = PyList_New(0);
    if (unsent != NULL) {
        const Py_ssize_t next = repeat_rows(&all, rows, first, &buffer, unsent, &at, &end);
        if (next >= 0)
            answer = Py_BuildValue("(nnnLLLO)", next, at, end, (long long)all.repeated,
                                   (long long)all.received, (long long)all.sent, unsent);
    }
    Py_XDECREF(unsent);
    if (all.words != NULL)
        PyBuffer_Release(&all.of_words);
    PyBuffer_Release(&buffer);
    return answer;
}
