/* What guests ask, from their sockets to the answers in one call (`guests/straight`).
 *
 *   recv ─► known bytes? ─► whole frame? ─► plain_append (`plain.c`) ─► answer, next frame ─► send
 *              │ no             │ no            │ no
 *              └────────────────┴───────────────┴──► from there on the caller takes the frames
 *
 * Of many sockets, some are read and their batches appended before the first answer is sent: what
 * an append means is looked up, and said, once for all of them. Requests for offsets are answered
 * by a function of the caller, which is asked about their bytes. Batches whose acks wait for the
 * replicas are told to the caller, who answers them. Where somebody waits for the records of a
 * small batch, the caller sends its ack, too: behind what it tells who waits.
 *
 * A Produce, whose dotted parts move from one request to the next (`gateway/produce_known.py`):
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

enum {
    SIZE_BYTES = 4, FIRST_BYTES = 4, PREFIX_AT = 12, END_BYTES = 3, ANSWER_MAX = 1024,
    OFFSETS_ANSWER_MAX = 4096 + 16, ANSWERS_BYTES = 32 << 10,
    OFFSET_COMMIT = 8, OFFSET_FETCH = 9, OFFSETS_FROM = 8, CLIENT_ID_AT = 12,
    TOLD_LATER_MIN = 4 << 10, /* BYTES_MIN of `guests/straight_appends.py` */
    AT_ONCE = 8, /* so many sockets are read before the first answer is sent */
    WAITING_MAX = 128 /* so many batches of one row wait for the replicas, of what one call reads */
};

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

/* What is served in one call. */
struct serving {
    struct place place;
    PyObject *partitions, *appended, *watched, *answer_offsets, *waiting;
    int may_answer;
    int64_t now_ms, batches, bytes, large, awaited, commits, fetches;
    uint8_t *out; /* of ANSWERS_BYTES */
    Py_ssize_t filled;
};

/* A row of `serve_ready`, and its answers that are to be sent: out[from : from + size]. */
struct row {
    Py_ssize_t number, from, size;
    ssize_t sent;
    PyObject *known; /* what its bytes mean */
    int fd, is_over; /* is_over: all that was read of it is served */
    int waiting;     /* its batches whose acks wait for the replicas */
    int is_held;     /* its answers go out behind what others are told */
    int64_t *mark;
};

/* Tell the caller of the last batch, whose ack waits. */
static int
put_waiting(struct serving *all, struct row *row, const uint8_t *frame) {
    const struct place *at = &all->place;
    PyObject *one = Py_BuildValue("(niOOLL)", row->number,
                                  (int)(int32_t)load_be32(frame + SIZE_BYTES + FIRST_BYTES),
                                  row->known, at->partition, (long long)at->last_offset,
                                  (long long)at->end_offset);
    const int failed = one == NULL ? -1 : PyList_Append(all->waiting, one);
    Py_XDECREF(one);
    row->waiting++;
    return failed;
}

/* Serve the frames in data[*at:end], as long as they are what is served here and there is room for
 * the answers. 1: the next one is of other bytes, or not whole; -1 with an exception. */
static int
serve(struct serving *all, struct row *row, const struct meaning *meaning, const uint8_t *data,
      Py_ssize_t *at, Py_ssize_t end) {
    struct plain what = {.now_ms = all->now_ms,
                         .key = meaning->constant.at + C_KEY,
                         .watched = all->watched};
    int16_t acks;
    uint16_t flags;
    memcpy(&acks, meaning->constant.at + C_ACKS, 2);
    memcpy(&flags, meaning->constant.at + C_FLAGS, 2);
    what.acks = acks;
    what.flags = flags;
    Py_ssize_t frame_end;
    while (*at < end && all->filled <= ANSWERS_BYTES - ANSWER_MAX) {
        const uint8_t *frame = data + *at;
        what.batch = find_batch(meaning, frame, end - *at, &what.size, &frame_end);
        if (what.batch == NULL)
            return 1;
        what.may_answer = all->may_answer && !row->waiting; /* acks go out in order */
        what.may_wait = row->waiting < WAITING_MAX;
        const int so = plain_append(&all->place, &what, all->partitions, all->appended);
        if (so < 0)
            return -1;
        if (so == 0)
            break;
        if (!what.waits)
            all->filled += put_answer(meaning, frame, &what, all->out + all->filled);
        else if (put_waiting(all, row, frame) < 0)
            return -1;
        *at += frame_end;
        all->batches += 1;
        all->bytes += what.size;
        all->large += what.size >= WRITE_MIN;
        all->awaited += what.is_awaited;
        row->is_held |= what.is_awaited && what.size < TOLD_LATER_MIN;
    }
    return 0;
}

/* Whether a whole request for offsets is in frame[:count]; where its body begins, and it ends. */
static int
find_offsets(const uint8_t *frame, Py_ssize_t count, Py_ssize_t *body, Py_ssize_t *frame_end) {
    if (count < CLIENT_ID_AT + 3)
        return 0;
    const int64_t whole = (int64_t)(int32_t)load_be32(frame) + SIZE_BYTES;
    const int api_key = (int16_t)load_be16(frame + 4), version = (int16_t)load_be16(frame + 6);
    const int64_t client_id = (int16_t)load_be16(frame + CLIENT_ID_AT);
    const int64_t tags = CLIENT_ID_AT + 2 + (client_id < 0 ? 0 : client_id);
    if (whole > count || whole <= tags || frame[tags] != 0 || version < OFFSETS_FROM ||
        (api_key != OFFSET_COMMIT && api_key != OFFSET_FETCH))
        return 0;
    *body = (Py_ssize_t)tags + 1;
    *frame_end = (Py_ssize_t)whole;
    return 1;
}

/* As `serve`, for requests for offsets. */
static int
serve_offsets(struct serving *all, const uint8_t *data, Py_ssize_t *at, Py_ssize_t end) {
    Py_ssize_t body, frame_end;
    while (*at < end && all->filled <= ANSWERS_BYTES - OFFSETS_ANSWER_MAX) {
        const uint8_t *frame = data + *at;
        if (!find_offsets(frame, end - *at, &body, &frame_end))
            break;
        const int api_key = load_be16(frame + 4);
        if (plain_leave(&all->place, all->appended) < 0)
            return -1;
        PyObject *answer = PyObject_CallFunction(
            all->answer_offsets, "iiy#", api_key, (int)load_be16(frame + 6), frame + body,
            frame_end - body);
        if (answer == NULL)
            return -1;
        char *found = NULL;
        Py_ssize_t size = 0;
        const int is_answered = answer != Py_None;
        if (is_answered && (PyBytes_AsStringAndSize(answer, &found, &size) < 0 ||
                            size > OFFSETS_ANSWER_MAX - 16)) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "an answer is too large");
            Py_DECREF(answer);
            return -1;
        }
        if (is_answered) {
            uint8_t *to = all->out + all->filled;
            store_be32(to, (uint32_t)size + 5);
            memcpy(to + 4, frame + 8, 4); /* the correlation id */
            to[8] = 0;                    /* no tags */
            memcpy(to + 9, found, (size_t)size);
            all->filled += size + 9;
            *at += frame_end;
            *(api_key == OFFSET_COMMIT ? &all->commits : &all->fetches) += 1;
        }
        Py_DECREF(answer);
        if (!is_answered)
            break;
    }
    return 0;
}

/* All of the rows of one call. */
struct ready {
    struct serving all;
    struct meaning meaning;
    PyObject *rows, *recall, *unsent, *large;
    PyObject *known, *marks; /* whose meaning and marks these are */
    PyObject *recalled;      /* what `recall` gave last */
    Py_buffer of_marks;
    struct row waiting[AT_ONCE];
    int count; /* of those that wait to be sent */
    int64_t received, sent;
};

/* What one row says. -1 with an exception. */
static int
look_at_row(struct ready *ready, Py_ssize_t number, struct row *row, int *is_produce) {
    PyObject *tuple = PyList_GetItem(ready->rows, number);
    if (tuple == NULL || !PyTuple_Check(tuple) || PyTuple_Size(tuple) != 4) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "a row has 4 parts");
        return -1;
    }
    PyObject *meaning = PyTuple_GetItem(tuple, 1), *marks = PyTuple_GetItem(tuple, 2);
    const Py_ssize_t which = PyLong_AsSsize_t(PyTuple_GetItem(tuple, 3));
    *row = (struct row){.number = number, .fd = (int)PyLong_AsLong(PyTuple_GetItem(tuple, 0))};
    if (PyErr_Occurred())
        return -1;
    *is_produce = meaning != Py_None;
    if (*is_produce && meaning != ready->known) {
        if (get_meaning(meaning, &ready->meaning) < 0)
            return -1;
        ready->known = meaning;
    }
    if (marks != ready->marks) {
        if (ready->marks != NULL)
            PyBuffer_Release(&ready->of_marks);
        ready->marks = NULL;
        if (get_buffer(marks, &ready->of_marks, 1, 8, "the marks") < 0)
            return -1;
        ready->marks = marks;
    }
    if (which < 0 || which >= ready->of_marks.len / 8) {
        PyErr_SetString(PyExc_ValueError, "there is no such mark");
        return -1;
    }
    row->mark = (int64_t *)ready->of_marks.buf + which;
    return 0;
}

/* Other bytes that the caller knows, in the frame at `at` of what a row's socket brought: 1; 0: it
 * knows none; -1 with an exception. */
static int
recall(struct ready *ready, Py_ssize_t number, Py_ssize_t at) {
    PyObject *meaning = PyObject_CallFunction(ready->recall, "nn", number, at);
    if (meaning == NULL)
        return -1;
    if (meaning == Py_None || meaning == ready->known) {
        Py_DECREF(meaning);
        return 0;
    }
    Py_XDECREF(ready->recalled);
    ready->recalled = meaning;
    ready->known = meaning;
    return get_meaning(meaning, &ready->meaning) < 0 ? -1 : 1;
}

static int
add_number(PyObject *list, Py_ssize_t number) {
    PyObject *found = PyLong_FromSsize_t(number);
    const int failed = found == NULL ? -1 : PyList_Append(list, found);
    Py_XDECREF(found);
    return failed;
}

/* Keep answers that are to be sent: with those before them, where these are of the same row. */
static void
add_waiting(struct ready *ready, const struct row *row) {
    struct row *last = ready->count ? &ready->waiting[ready->count - 1] : NULL;
    if (last != NULL && last->number == row->number) {
        last->size += row->size;
        last->is_over = row->is_over;
        last->waiting = row->waiting;
        last->is_held |= row->is_held;
    } else {
        ready->waiting[ready->count++] = *row;
    }
}

/* Say what was appended, then send what waits, and unmark who has all. -1 with an exception. */
static int
send_waiting(struct ready *ready) {
    struct serving *all = &ready->all;
    if (plain_leave(&all->place, all->appended) < 0)
        return -1;
    if (all->filled) {
        Py_BEGIN_ALLOW_THREADS
        for (int i = 0; i < ready->count; i++) {
            struct row *row = &ready->waiting[i];
            if (row->size && !row->is_held)
                row->sent = send(row->fd, all->out + row->from, (size_t)row->size,
                                 MSG_DONTWAIT | MSG_NOSIGNAL);
            if (row->sent < 0)
                row->sent = 0; /* the caller tries again, and meets what is wrong */
            if (row->is_over && !row->waiting && row->sent == row->size)
                __atomic_store_n(row->mark, 0, __ATOMIC_RELEASE);
        }
        Py_END_ALLOW_THREADS
    }
    int failed = 0;
    for (int i = 0; i < ready->count && !failed; i++) {
        const struct row *row = &ready->waiting[i];
        ready->sent += row->sent;
        if (row->sent < row->size) {
            PyObject *left = Py_BuildValue(
                "(ny#)", row->number, (const char *)all->out + row->from + row->sent,
                row->size - (Py_ssize_t)row->sent);
            failed = left == NULL || PyList_Append(ready->unsent, left) < 0;
            Py_XDECREF(left);
        }
    }
    ready->count = 0;
    all->filled = 0;
    return failed ? -1 : 0;
}

/* Whether more has come of the frame that begins at data[at:*end], which is of that meaning and not
 * whole: it is read behind what is there. */
static int
read_more(const struct meaning *of, const struct row *row, const Py_buffer *buffer, Py_ssize_t at,
          Py_ssize_t *end, int64_t *received) {
    const uint8_t *frame = (const uint8_t *)buffer->buf + at;
    const Py_ssize_t there = *end - at;
    if (there < PREFIX_AT || memcmp(frame + SIZE_BYTES, of->first.at, FIRST_BYTES))
        return 0;
    const int64_t whole = (int64_t)(int32_t)load_be32(frame) + SIZE_BYTES;
    if (whole <= there || whole > buffer->len - at)
        return 0;
    const ssize_t more =
        recv(row->fd, (uint8_t *)buffer->buf + *end, (size_t)(buffer->len - *end), MSG_DONTWAIT);
    if (more <= 0)
        return 0; /* the caller reads again, and meets its end */
    *end += more;
    *received += more;
    return 1;
}

/* Serve the rows from `number` on, of whose first there are *end bytes already, up to the first of
 * which something else was read: which that is, in data[at:end]. end -1: nothing could be read of
 * it. -1 with an exception. */
static Py_ssize_t
serve_rows(struct ready *ready, Py_ssize_t number, const Py_buffer *buffer, Py_ssize_t *at,
           Py_ssize_t *end) {
    struct serving *all = &ready->all;
    const Py_ssize_t count = PyList_Size(ready->rows);
    for (; number < count; number++, *end = 0) {
        struct row row;
        int is_produce;
        if (look_at_row(ready, number, &row, &is_produce) < 0)
            return -1;
        __atomic_store_n(row.mark, 1, __ATOMIC_SEQ_CST); /* before it is read */
        const ssize_t received = recv(row.fd, (uint8_t *)buffer->buf + *end,
                                      (size_t)(buffer->len - *end), MSG_DONTWAIT);
        *at = 0;
        if (received <= 0) {
            *end = -1;
            return send_waiting(ready) < 0 ? -1 : number;
        }
        *end += received;
        ready->received += received;
        int is_recalled = 0;
        for (;;) {
            const Py_ssize_t before = *at;
            const int64_t large = all->large;
            row.from = all->filled;
            row.known = ready->known;
            const int so = is_produce ? serve(all, &row, &ready->meaning, buffer->buf, at, *end)
                                      : serve_offsets(all, buffer->buf, at, *end);
            row.size = all->filled - row.from;
            row.is_over = *at == *end;
            add_waiting(ready, &row);
            if (so < 0 || (all->large > large && add_number(ready->large, number) < 0))
                return -1;
            if (row.is_over)
                break;
            if (so && is_produce &&
                read_more(&ready->meaning, &row, buffer, *at, end, &ready->received))
                continue;
            if (so && (*at > before || !is_recalled)) {
                is_recalled = recall(ready, number, *at);
                if (is_recalled < 0)
                    return -1;
                if (is_recalled)
                    continue;
            }
            const int was_full = all->filled > ANSWERS_BYTES - OFFSETS_ANSWER_MAX;
            const Py_ssize_t unsent = PyList_Size(ready->unsent);
            if (send_waiting(ready) < 0)
                return -1;
            /* There was no room for more answers, and there is now; or it is something else. */
            if (!was_full || (row.from == 0 && *at == before) ||
                PyList_Size(ready->unsent) != unsent)
                return number;
        }
        if ((ready->count == AT_ONCE || all->filled > ANSWERS_BYTES - OFFSETS_ANSWER_MAX) &&
            send_waiting(ready) < 0)
            return -1;
    }
    *at = *end = 0;
    return send_waiting(ready) < 0 ? -1 : number;
}

PyObject *
py_serve_ready(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 11 || !PyDict_Check(args[9])) {
        PyErr_SetString(PyExc_TypeError, "serve_ready takes 11 arguments, a dict the tenth");
        return NULL;
    }
    uint8_t out[ANSWERS_BYTES];
    struct ready ready = {.rows = args[0], .all.out = out};
    struct serving *all = &ready.all;
    const Py_ssize_t first = PyLong_AsSsize_t(args[1]);
    const Py_ssize_t start = PyLong_AsSsize_t(args[3]);
    all->partitions = args[4];
    all->appended = args[5];
    all->now_ms = PyLong_AsLongLong(args[6]);
    ready.recall = args[7];
    all->answer_offsets = args[8];
    all->watched = args[9];
    all->may_answer = PyObject_IsTrue(args[10]);
    Py_buffer buffer;
    if (PyErr_Occurred())
        return NULL;
    if (!PyList_Check(ready.rows) || first < 0) {
        PyErr_SetString(PyExc_ValueError, "there are no such rows");
        return NULL;
    }
    if (get_buffer(args[2], &buffer, 1, 1, "the buffer") < 0)
        return NULL;
    PyObject *answer = NULL;
    Py_ssize_t at = 0, end = start, next = -1;
    if (start < 0 || start >= buffer.len) {
        PyErr_SetString(PyExc_ValueError, "there is no room in the buffer");
        PyBuffer_Release(&buffer);
        return NULL;
    }
    ready.large = PyList_New(0);
    all->waiting = PyList_New(0);
    if ((ready.unsent = PyList_New(0)) != NULL && ready.large != NULL && all->waiting != NULL)
        next = serve_rows(&ready, first, &buffer, &at, &end);
    if (plain_leave(&all->place, all->appended) == 0 && next >= 0)
        answer = Py_BuildValue("(nnnLLLLLLOOOL)", next, end, at, (long long)all->batches,
                               (long long)all->bytes, (long long)all->commits,
                               (long long)all->fetches, (long long)ready.received,
                               (long long)ready.sent, ready.unsent, ready.large, all->waiting,
                               (long long)all->awaited);
    Py_XDECREF(ready.unsent);
    Py_XDECREF(ready.large);
    Py_XDECREF(all->waiting);
    Py_XDECREF(ready.recalled);
    if (ready.marks != NULL)
        PyBuffer_Release(&ready.of_marks);
    PyBuffer_Release(&buffer);
    return answer;
}
