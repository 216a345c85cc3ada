/* Small Produces of a guest, from its socket to their answers in one call (`processes/straight`).
 *
 *   recv ─► known bytes? ─► whole frame? ─► plain_append (`plain.c`) ─► answer, next frame ─► send
 *              │ no             │ no            │ no
 *              └────────────────┴───────────────┴──► from there on the caller takes the frames
 *
 * A frame, of which the dotted parts move from one request to the next (`gateway/produce.py`):
 *
 *   0    4       8      12                                    end
 *   +----+-------+......+--------+......+........+-----+
 *   |size| first | corr.| prefix | size | batch  | 000 |   000: flexible versions only
 *   +----+-------+......+--------+......+........+-----+
 *
 * The answer is `head` and `tail` around what moves: size, correlation id, error code 0, base
 * offset, append time -1, and, from version 5 on, the log's start offset.
 */

#include <sys/socket.h>

#include "kernels.h"

enum { SIZE_BYTES = 4, FIRST_BYTES = 4, PREFIX_AT = 12, END_BYTES = 3, ANSWER_MAX = 1024,
       ANSWERS_BYTES = 16 << 10 };

/* Where APPEND_CONSTANT has them (`ipc/operation_layout.py`). */
enum { C_ACKS = 0, C_FLAGS = 2, C_KEY = 8, C_BYTES = C_KEY + KEY_BYTES };

struct bytes {
    const uint8_t *at;
    Py_ssize_t size;
};

/* What the known bytes mean, as `FastProduce.straight` has it. */
struct meaning {
    struct bytes first, prefix, constant, head, tail;
    int is_flexible, has_start;
};

static int
get_bytes(PyObject *tuple, Py_ssize_t which, struct bytes *found) {
    char *at;
    if (PyBytes_AsStringAndSize(PyTuple_GetItem(tuple, which), &at, &found->size) < 0)
        return -1;
    found->at = (const uint8_t *)at;
    return 0;
}

static int
get_meaning(PyObject *of, struct meaning *found) {
    if (!PyTuple_Check(of) || PyTuple_Size(of) != 7) {
        PyErr_SetString(PyExc_ValueError, "a meaning has 7 parts");
        return -1;
    }
    if (get_bytes(of, 0, &found->first) < 0 || get_bytes(of, 1, &found->prefix) < 0 ||
        get_bytes(of, 2, &found->constant) < 0 || get_bytes(of, 3, &found->head) < 0 ||
        get_bytes(of, 4, &found->tail) < 0)
        return -1;
    found->is_flexible = PyObject_IsTrue(PyTuple_GetItem(of, 5));
    found->has_start = PyObject_IsTrue(PyTuple_GetItem(of, 6));
    if (found->first.size != FIRST_BYTES || found->constant.size < C_BYTES ||
        found->head.size + found->tail.size > ANSWER_MAX - 64) {
        PyErr_SetString(PyExc_ValueError, "parts of a meaning have other sizes");
        return -1;
    }
    return 0;
}

/* The batch, if a whole frame of that meaning begins here, and where the frame ends; NULL else. */
static const uint8_t *
find_batch(const struct meaning *of, const uint8_t *frame, Py_ssize_t count, int64_t *size,
           Py_ssize_t *frame_end) {
    Py_ssize_t at = PREFIX_AT + of->prefix.size;
    if (count < at + SIZE_BYTES)
        return NULL;
    const int64_t whole = (int64_t)(int32_t)load_be32(frame) + SIZE_BYTES;
    if (whole > count || whole < at + SIZE_BYTES ||
        memcmp(frame + SIZE_BYTES, of->first.at, FIRST_BYTES) ||
        memcmp(frame + PREFIX_AT, of->prefix.at, (size_t)of->prefix.size))
        return NULL;
    Py_ssize_t end = *frame_end = (Py_ssize_t)whole;
    if (of->is_flexible) {
        uint64_t length = 0;
        for (int shift = 0;; shift += 7) {
            if (at == end || shift > 28)
                return NULL;
            length |= (uint64_t)(frame[at] & 0x7f) << shift;
            if (frame[at++] < 0x80)
                break;
        }
        *size = (int64_t)length - 1;
        end -= END_BYTES;
        if (end < at || frame[end] | frame[end + 1] | frame[end + 2])
            return NULL;
    } else {
        *size = (int32_t)load_be32(frame + at);
        at += SIZE_BYTES;
    }
    return *size == end - at ? frame + at : NULL;
}

static Py_ssize_t
put_answer(const struct meaning *of, const uint8_t *frame, const struct plain *what, uint8_t *to) {
    uint8_t *at = to + SIZE_BYTES;
    memcpy(at, frame + SIZE_BYTES + FIRST_BYTES, 4); /* the correlation id */
    memcpy(at += 4, of->head.at, (size_t)of->head.size);
    at += of->head.size;
    memset(at, 0, 2);
    store_be64(at += 2, (uint64_t)what->base_offset);
    store_be64(at += 8, UINT64_MAX);
    at += 8;
    if (of->has_start) {
        store_be64(at, (uint64_t)what->start_offset);
        at += 8;
    }
    memcpy(at, of->tail.at, (size_t)of->tail.size);
    at += of->tail.size;
    store_be32(to, (uint32_t)(at - to - SIZE_BYTES));
    return at - to;
}

/* Answer the frames in data[*at:end], as long as they are what is served here; their answers to
 * `out`: how many bytes that are. -1 with an exception. */
static Py_ssize_t
serve(const struct meaning *meaning, const uint8_t *data, Py_ssize_t *at, Py_ssize_t end,
      PyObject *partitions, PyObject *appended, int64_t now_ms, uint8_t *out, int64_t *batches,
      int64_t *bytes) {
    struct plain what = {.now_ms = now_ms, .key = meaning->constant.at + C_KEY};
    int16_t acks;
    uint16_t flags;
    memcpy(&acks, meaning->constant.at + C_ACKS, 2);
    memcpy(&flags, meaning->constant.at + C_FLAGS, 2);
    what.acks = acks;
    what.flags = flags;
    Py_ssize_t filled = 0, frame_end;
    while (*at < end && filled <= ANSWERS_BYTES - ANSWER_MAX) {
        const uint8_t *frame = data + *at;
        what.batch = find_batch(meaning, frame, end - *at, &what.size, &frame_end);
        if (what.batch == NULL)
            break;
        const int so = plain_append(&what, partitions, appended);
        if (so < 0)
            return -1;
        if (so == 0)
            break;
        filled += put_answer(meaning, frame, &what, out + filled);
        *at += frame_end;
        *batches += 1;
        *bytes += what.size;
    }
    return filled;
}

PyObject *
py_serve_plain(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 8) {
        PyErr_SetString(PyExc_TypeError, "serve_plain takes 8 arguments");
        return NULL;
    }
    const int fd = (int)PyLong_AsLong(args[0]);
    Py_ssize_t at = PyLong_AsSsize_t(args[2]), end = PyLong_AsSsize_t(args[3]);
    const int64_t now_ms = PyLong_AsLongLong(args[7]);
    struct meaning meaning;
    Py_buffer buffer;
    if (PyErr_Occurred() || get_meaning(args[4], &meaning) < 0 ||
        get_buffer(args[1], &buffer, 1, 1, "the buffer") < 0)
        return NULL;
    PyObject *answer = NULL;
    if (at < 0 || at > buffer.len || end > buffer.len || (end >= 0 && at > end)) {
        PyErr_SetString(PyExc_ValueError, "there are no such frames");
        goto over;
    }
    if (end < 0) {
        const ssize_t received =
            recv(fd, (uint8_t *)buffer.buf + at, (size_t)(buffer.len - at), MSG_DONTWAIT);
        if (received < 0) {
            PyErr_SetFromErrno(PyExc_OSError);
            goto over;
        }
        end = at + received;
        at = received ? 0 : end;
    }
    uint8_t out[ANSWERS_BYTES];
    int64_t batches = 0, bytes = 0;
    const Py_ssize_t size = serve(&meaning, buffer.buf, &at, end, args[5], args[6], now_ms, out,
                                  &batches, &bytes);
    if (size < 0)
        goto over;
    ssize_t sent = 0;
    if (size) {
        Py_BEGIN_ALLOW_THREADS
        sent = send(fd, out, (size_t)size, MSG_DONTWAIT | MSG_NOSIGNAL);
        Py_END_ALLOW_THREADS
        if (sent < 0)
            sent = 0; /* the caller tries again, and meets what is wrong */
    }
    answer = Py_BuildValue("(nnLLny#)", end, at, (long long)batches, (long long)bytes,
                           (Py_ssize_t)sent, (const char *)out + sent, size - (Py_ssize_t)sent);
over:
    PyBuffer_Release(&buffer);
    return answer;
}
