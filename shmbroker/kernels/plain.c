/* The straight way of batches into the active segments of their partitions: entries of a ring in,
 * results of another out; or the rows of an APPEND_MANY (layouts: `shm/ring_layout.py`,
 * `ipc/operation_layout.py`). Small ones are stored in the map, large ones written.
 *
 * It does what `Appender.on_append` does where nothing is to be looked at closer, and stops before
 * the first entry where something is: that entry is then as it was, and the caller takes it. So
 * each rule is either here and there alike, or a reason to stop.
 *
 * Objects are asked and set by their attributes, each once for a run of entries of one partition;
 * what is seldom is a call of their methods. The lock is held: a run is some microseconds.
 */

#include <sys/uio.h>

#include "kernels.h"

enum {
    OPERATION_APPEND = 1, OPERATION_APPENDED = 17,
    ENTRY_HEAD = 8, APPEND_BYTES = 40, APPENDED_BYTES = 40,
    A_ACKS = 8, A_FLAGS = 10, A_TIMEOUT = 12, A_KEY = 16,
    FLAG_PARTS = 1, FLAG_NO_ZSTD = 4, FLAG_TRANSACTIONAL = 8, ACKS_ALL = -1
};

enum {
    N_HEAD, N_TAIL, N_LIMIT, N_DATA, N_IS_LEADER, N_PLAIN_BYTES_MAX, N_TIMESTAMP_AFTER,
    N_LEADER_EPOCH, N_WAITS_FOR, N_HIGH_WATERMARK, N_LOG, N_PRODUCERS, N_ENDED, N_ACTIVE,
    N_LOG_END, N_LOG_START, N_ROLL_AFTER, N_ROLL_OFFSET, N_LATEST_EPOCH, N_INDEX_AFTER,
    N_STORE_POSITION, N_MAP, N_SIZE, N_READY, N_NEWEST, N_NEWEST_OFFSET, N_BASE_OFFSET,
    N_SNAPSHOT_AFTER, N_INDEX, N_OPEN, N_REFUSED, N_BY_ID, N_EPOCH, N_NEXT_SEQUENCE, N_UPDATE,
    N_WRITE_LIMIT, N_WRITE_FD, NAMES
};

static const char *const words[NAMES] = {
    /* of a RingReader or RingWriter; a log has a _limit, too */
    [N_HEAD] = "_head", [N_TAIL] = "_tail", [N_LIMIT] = "_limit", [N_DATA] = "data",
    /* Partition */
    [N_IS_LEADER] = "is_leader", [N_PLAIN_BYTES_MAX] = "plain_bytes_max",
    [N_TIMESTAMP_AFTER] = "timestamp_after_max_ms", [N_LEADER_EPOCH] = "leader_epoch",
    [N_WAITS_FOR] = "waits_for", [N_HIGH_WATERMARK] = "high_watermark", [N_LOG] = "log",
    [N_PRODUCERS] = "producers",
    /* PartitionLog */
    [N_ACTIVE] = "active", [N_LOG_END] = "log_end_offset", [N_LOG_START] = "log_start_offset",
    [N_ROLL_AFTER] = "_roll_after", [N_ROLL_OFFSET] = "_roll_offset",
    [N_LATEST_EPOCH] = "_latest_epoch", [N_INDEX_AFTER] = "_index_after",
    [N_STORE_POSITION] = "_store_position", [N_SNAPSHOT_AFTER] = "_snapshot_after",
    [N_INDEX] = "_index", [N_WRITE_LIMIT] = "_write_limit",
    /* Segment */
    [N_WRITE_FD] = "write_fd", [N_MAP] = "map", [N_SIZE] = "size", [N_READY] = "ready_bytes",
    [N_NEWEST] = "max_timestamp_so_far", [N_NEWEST_OFFSET] = "max_timestamp_offset",
    [N_BASE_OFFSET] = "base_offset",
    /* ProducerState, ProducerEntry */
    [N_ENDED] = "ended", [N_OPEN] = "open", [N_REFUSED] = "_refused", [N_BY_ID] = "_producers",
    [N_UPDATE] = "update", [N_EPOCH] = "epoch", [N_NEXT_SEQUENCE] = "next_sequence"
};
static PyObject *names[NAMES];

int
plain_init(void) {
    for (int i = 0; i < NAMES; i++)
        if (names[i] == NULL && (names[i] = PyUnicode_InternFromString(words[i])) == NULL)
            return -1;
    return 0;
}

static int
get_number(PyObject *of, int name, int64_t *value) {
    PyObject *found = PyObject_GetAttr(of, names[name]);
    if (found == NULL)
        return -1;
    *value = PyLong_AsLongLong(found);
    Py_DECREF(found);
    return *value == -1 && PyErr_Occurred() ? -1 : 0;
}

static int
set_number(PyObject *of, int name, int64_t value) {
    PyObject *number = PyLong_FromLongLong(value);
    if (number == NULL)
        return -1;
    const int failed = PyObject_SetAttr(of, names[name], number);
    Py_DECREF(number);
    return failed;
}

/* Whether an attribute is true; -1 with an exception. */
static int
is_true(PyObject *of, int name) {
    PyObject *found = PyObject_GetAttr(of, names[name]);
    if (found == NULL)
        return -1;
    const int so = PyObject_IsTrue(found);
    Py_DECREF(found);
    return so;
}

/* How far the active segment takes batches as they are, and from where on one is indexed. */
static int
look_at_limits(struct place *at) {
    return get_number(at->log, N_LIMIT, &at->limit) < 0 ||
                   get_number(at->log, N_WRITE_LIMIT, &at->write_limit) < 0 ||
                   get_number(at->log, N_INDEX_AFTER, &at->index_after) < 0
               ? -1
               : 0;
}

/* What was appended, into the objects; -1 with an exception. */
static int
leave(struct place *at, PyObject *appended) {
    int failed = 0;
    if (at->is_changed) {
        PyObject *store = NULL;
        failed = set_number(at->segment, N_SIZE, at->size) < 0 ||
                 set_number(at->segment, N_READY, at->ready) < 0 ||
                 set_number(at->segment, N_NEWEST, at->newest) < 0 ||
                 set_number(at->segment, N_NEWEST_OFFSET, at->newest_offset) < 0 ||
                 set_number(at->log, N_LOG_END, at->end_offset) < 0 ||
                 (!at->is_replicated &&
                  set_number(at->partition, N_HIGH_WATERMARK, at->end_offset) < 0) ||
                 PySet_Add(appended, at->partition) < 0 ||
                 (store = PyObject_GetAttr(at->log, names[N_STORE_POSITION])) == NULL;
        if (store != NULL && store != Py_None) {
            PyObject *done = PyObject_CallFunction(store, "LLL", (long long)at->base_offset,
                                                   (long long)at->size, (long long)at->end_offset);
            failed |= done == NULL;
            Py_XDECREF(done);
        }
        Py_XDECREF(store);
    }
    if (at->map.obj != NULL)
        PyBuffer_Release(&at->map);
    Py_CLEAR(at->producers);
    Py_CLEAR(at->segment);
    Py_CLEAR(at->log);
    Py_CLEAR(at->partition);
    at->is_changed = 0;
    return failed ? -1 : 0;
}

/* Look at the partition of a key: 1: its batches may come; 0: they are looked at closer; -1 with an
 * exception, as the disk may fail. */
static int
enter(struct place *at, PyObject *partitions, const uint8_t *key) {
    PyObject *name = PyBytes_FromStringAndSize((const char *)key, KEY_BYTES);
    if (name == NULL)
        return -1;
    PyObject *partition = PyDict_GetItemWithError(partitions, name);
    Py_DECREF(name);
    if (partition == NULL)
        return PyErr_Occurred() ? -1 : 0;
    at->partition = Py_NewRef(partition);
    memcpy(at->key, key, KEY_BYTES);
    at->fd = at->is_watched = -1;
    int so = is_true(partition, N_IS_LEADER);
    if (so <= 0)
        return so;
    if (get_number(partition, N_PLAIN_BYTES_MAX, &at->bytes_max) < 0)
        return -1;
    if (at->bytes_max <= 0)
        return 0;
    at->is_replicated = is_true(partition, N_WAITS_FOR);
    if (at->is_replicated < 0)
        return -1;
    at->producers = PyObject_GetAttr(partition, names[N_PRODUCERS]);
    if (at->producers == NULL)
        return -1;
    so = is_true(at->producers, N_ENDED);
    if (so)
        return so < 0 ? -1 : 0;
    int64_t latest_epoch;
    at->log = PyObject_GetAttr(partition, names[N_LOG]);
    if (at->log == NULL)
        return -1;
    at->segment = PyObject_GetAttr(at->log, names[N_ACTIVE]);
    if (at->segment == NULL ||
        get_number(partition, N_TIMESTAMP_AFTER, &at->timestamp_after) < 0 ||
        get_number(partition, N_LEADER_EPOCH, &at->epoch) < 0 ||
        get_number(at->log, N_LOG_END, &at->end_offset) < 0 ||
        get_number(at->log, N_LOG_START, &at->start_offset) < 0 ||
        get_number(at->log, N_ROLL_AFTER, &at->roll_after) < 0 ||
        get_number(at->log, N_ROLL_OFFSET, &at->roll_offset) < 0 ||
        get_number(at->log, N_LATEST_EPOCH, &latest_epoch) < 0 ||
        get_number(at->segment, N_SIZE, &at->size) < 0 ||
        get_number(at->segment, N_READY, &at->ready) < 0 ||
        get_number(at->segment, N_NEWEST, &at->newest) < 0 ||
        get_number(at->segment, N_NEWEST_OFFSET, &at->newest_offset) < 0 ||
        get_number(at->segment, N_BASE_OFFSET, &at->base_offset) < 0)
        return -1;
    if (at->epoch != latest_epoch || at->size < 0 || at->end_offset < 0)
        return 0;
    PyObject *map = PyObject_GetAttr(at->segment, names[N_MAP]);
    if (map == NULL)
        return -1;
    if (map == Py_None) {
        Py_DECREF(map);
        return 0;
    }
    so = PyObject_GetBuffer(map, &at->map, PyBUF_WRITABLE);
    Py_DECREF(map);
    if (so < 0)
        return -1;
    if (at->ready > at->map.len)
        return 0;
    return look_at_limits(at) < 0 ? -1 : 1;
}

/* Whether the active segment takes so many bytes as it is. */
static int
has_room(const struct place *at, int64_t size) {
    const int64_t end = at->size + size;
    const int is_written =
        size >= WRITE_MIN || (size >= WRITTEN_NEXT_MIN && at->ready <= at->size && at->size);
    return end <= at->limit || (is_written && end <= at->write_limit);
}

/* Whether a batch is as `check_batch` wants it and nothing of it, but for its producer, is to be
 * looked at closer. */
static int
is_plain(const struct place *at, const uint8_t *batch, int64_t size, int64_t now_ms, int flags) {
    if (size < HEADER_SIZE || size > at->bytes_max || batch[AT_MAGIC] != MAGIC ||
        load_be64(batch) != 0 || (int32_t)load_be32(batch + AT_LENGTH) != size - LOG_OVERHEAD)
        return 0;
    const int attributes = load_be16(batch + AT_ATTRIBUTES), codec = attributes & CODEC_MASK;
    if (attributes & (APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT) || codec > ZSTD ||
        (codec == ZSTD && flags & FLAG_NO_ZSTD))
        return 0;
    const int64_t newest = (int64_t)load_be64(batch + AT_MAX_TIMESTAMP);
    const int64_t last_delta = (int32_t)load_be32(batch + AT_LAST_DELTA);
    const int64_t records = (int32_t)load_be32(batch + AT_COUNT);
    return records > 0 && records == last_delta + 1 &&
           (codec || records <= (size - HEADER_SIZE) / RECORD_SIZE_MIN) &&
           /* newest - now_ms, without an overflow */
           (newest <= now_ms ||
            (uint64_t)newest - (uint64_t)now_ms <= (uint64_t)at->timestamp_after) &&
           newest <= at->roll_after && has_room(at, size) &&
           at->end_offset + records <= at->roll_offset &&
           crc32c(0, batch + AT_ATTRIBUTES, (size_t)(size - AT_ATTRIBUTES)) ==
               load_be32(batch + AT_CRC);
}

/* Whether a batch is the next of its producer (KIP-98), which is known here and has no transaction
 * open; -1 with an exception. */
static int
is_next(const struct place *at, const uint8_t *batch) {
    int so;
    if ((so = is_true(at->producers, N_OPEN)) || (so = is_true(at->producers, N_REFUSED)))
        return so < 0 ? -1 : 0;
    PyObject *by_id = PyObject_GetAttr(at->producers, names[N_BY_ID]);
    PyObject *id = PyLong_FromLongLong((int64_t)load_be64(batch + AT_PRODUCER_ID));
    PyObject *entry = NULL;
    if (by_id != NULL && id != NULL)
        entry = PyDict_GetItemWithError(by_id, id);
    so = entry == NULL && PyErr_Occurred() ? -1 : 0;
    int64_t epoch, sequence;
    if (entry != NULL) {
        if (get_number(entry, N_EPOCH, &epoch) < 0 ||
            get_number(entry, N_NEXT_SEQUENCE, &sequence) < 0)
            so = -1;
        else
            so = epoch == (int16_t)load_be16(batch + AT_PRODUCER_EPOCH) &&
                 sequence == (int32_t)load_be32(batch + AT_SEQUENCE);
    }
    Py_XDECREF(id);
    Py_XDECREF(by_id);
    return so;
}

/* Have the producer of the last batch, which was appended, noted. */
static int
note_producer(const struct place *at, const uint8_t *batch) {
    PyObject *update = PyObject_GetAttr(at->producers, names[N_UPDATE]);
    if (update == NULL)
        return -1;
    PyObject *done = PyObject_CallFunction(
        update, "LiiiLL", (long long)load_be64(batch + AT_PRODUCER_ID),
        (int16_t)load_be16(batch + AT_PRODUCER_EPOCH), (int32_t)load_be32(batch + AT_SEQUENCE),
        (int32_t)load_be32(batch + AT_LAST_DELTA), (long long)at->last_offset,
        (long long)load_be64(batch + AT_MAX_TIMESTAMP));
    Py_DECREF(update);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Whether the next batch is to be indexed, with a snapshot of the producers. */
static int
is_snapshot_due(const struct place *at) {
    int64_t after;
    if (at->size <= at->index_after)
        return 0;
    return get_number(at->log, N_SNAPSHOT_AFTER, &after) < 0 ? -1 : after <= 1;
}

/* Index the batch that begins here, the last one. */
static int
index_last(struct place *at, int64_t position) {
    if (set_number(at->segment, N_NEWEST, at->newest) < 0 ||
        set_number(at->segment, N_NEWEST_OFFSET, at->newest_offset) < 0)
        return -1;
    PyObject *index = PyObject_GetAttr(at->log, names[N_INDEX]);
    if (index == NULL)
        return -1;
    PyObject *done = PyObject_CallFunction(index, "OLL", at->segment, (long long)position,
                                           (long long)at->end_offset - 1);
    Py_DECREF(index);
    if (done == NULL)
        return -1;
    Py_DECREF(done);
    return look_at_limits(at);
}

/* Write a batch, with its stamp, behind the last one: 1; 0: the disk refuses, and nothing
 * counts of it; -1 with an exception. */
static int
write_batch(struct place *at, const uint8_t *stamp, const uint8_t *batch, int64_t size) {
    if (at->fd < 0) {
        int64_t fd;
        if (get_number(at->segment, N_WRITE_FD, &fd) < 0) {
            PyErr_Clear(); /* the caller meets it, and says it */
            return 0;
        }
        at->fd = (int)fd;
    }
    struct iovec parts[2] = {{(void *)stamp, AT_MAGIC},
                             {(void *)(batch + AT_MAGIC), (size_t)(size - AT_MAGIC)}};
    if (pwritev(at->fd, parts, 2, (off_t)at->size) != (ssize_t)size)
        return 0;
    at->ready = at->size + size; /* so that nothing is populated behind it */
    return 1;
}

/* 1; 0: it is looked at closer, and nothing was done; -1 with an exception. */
static int
append(struct place *at, const uint8_t *batch, int64_t size) {
    const int64_t newest = (int64_t)load_be64(batch + AT_MAX_TIMESTAMP);
    uint8_t stamp[AT_MAGIC];
    store_be64(stamp, (uint64_t)at->end_offset);
    memcpy(stamp + AT_LENGTH, batch + AT_LENGTH, 4);
    store_be32(stamp + AT_EPOCH, (uint32_t)at->epoch);
    if (size >= WRITE_MIN || at->size + size > at->ready) {
        const int so = write_batch(at, stamp, batch, size);
        if (so <= 0)
            return so;
    } else {
        uint8_t *to = (uint8_t *)at->map.buf + at->size;
        memcpy(to + AT_MAGIC, batch + AT_MAGIC, (size_t)(size - AT_MAGIC));
        memcpy(to, stamp, AT_MAGIC);
    }
    at->size += size;
    at->last_offset = at->end_offset;
    at->end_offset += (int64_t)load_be32(batch + AT_COUNT);
    if (newest > at->newest) {
        at->newest = newest;
        at->newest_offset = at->end_offset - 1;
    }
    at->is_changed = 1;
    return 1;
}

/* Go to the partition of a key: 1: its batches may come; 0: they are looked at closer, and nothing
 * comes behind that until it is left; -1 with an exception. */
static int
go_to(struct place *at, PyObject *partitions, PyObject *appended, const uint8_t *key) {
    if (at->partition != NULL && !memcmp(at->key, key, KEY_BYTES))
        return 1;
    if (at->partition != NULL && leave(at, appended) < 0)
        return -1;
    if (enter(at, partitions, key) <= 0) {
        PyErr_Clear(); /* what can't be looked at here is met, and said, by the caller */
        return 0;
    }
    return 1;
}

/* The batch of a key, if it may come here: 1; 0: it is looked at closer; -1 with an exception. */
static int
take(struct place *at, PyObject *partitions, PyObject *appended, const uint8_t *key,
     const uint8_t *batch, int64_t size, int64_t now_ms, int flags) {
    const int so_far = go_to(at, partitions, appended, key);
    if (so_far <= 0)
        return so_far;
    if (!is_plain(at, batch, size, now_ms, flags))
        return 0;
    const int64_t position = at->size;
    const int has_producer = (int64_t)load_be64(batch + AT_PRODUCER_ID) >= 0;
    int so = has_producer ? is_next(at, batch) : 1;
    if (so <= 0)
        return so;
    so = is_snapshot_due(at);
    if (so)
        return so < 0 ? -1 : 0;
    so = append(at, batch, size);
    if (so <= 0)
        return so;
    if (position > at->index_after && index_last(at, position) < 0)
        return -1;
    return has_producer && note_producer(at, batch) < 0 ? -1 : 1;
}

/* Leave with what was appended, whatever went wrong meanwhile: that is what is told. */
int
plain_leave(struct place *at, PyObject *appended) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    const int failed = leave(at, appended);
    if (type != NULL) {
        if (failed)
            PyErr_Clear();
        PyErr_Restore(type, value, traceback);
    }
    return failed;
}

/* One that waits for the replicas, for the caller. */
static int
put_waiting(PyObject *waiting, const struct place *at, uint64_t token, uint32_t timeout) {
    PyObject *row = Py_BuildValue("(KOLLI)", (unsigned long long)token, at->partition,
                                  (long long)at->last_offset, (long long)at->end_offset, timeout);
    const int failed = row == NULL ? -1 : PyList_Append(waiting, row);
    Py_XDECREF(row);
    return failed;
}

/* Whether somebody waits for records of this partition; -1 with an exception. */
static int
somebody_waits(struct place *at, PyObject *watched) {
    if (at->is_watched < 0) {
        PyObject *name = PyBytes_FromStringAndSize((const char *)at->key, KEY_BYTES);
        at->is_watched = name == NULL ? -1 : PyDict_Contains(watched, name);
        Py_XDECREF(name);
    }
    return at->is_watched;
}

int
plain_append(struct place *at, struct plain *what, PyObject *partitions, PyObject *appended) {
    int so = go_to(at, partitions, appended, what->key);
    what->waits = at->is_replicated && what->acks == ACKS_ALL;
    if (so > 0 && !(what->waits ? what->may_wait : what->may_answer))
        so = 0;
    /* Of what others replicate, no consumer is told yet. */
    what->is_awaited = so > 0 && !at->is_replicated ? somebody_waits(at, what->watched) : 0;
    if (what->is_awaited < 0)
        so = -1;
    if (so > 0)
        so = take(at, partitions, appended, what->key, what->batch, what->size, what->now_ms,
                  what->flags);
    what->base_offset = at->last_offset;
    what->start_offset = at->start_offset;
    return so;
}

PyObject *
py_append_plain(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 8) {
        PyErr_SetString(PyExc_TypeError, "append_plain takes 8 arguments");
        return NULL;
    }
    PyObject *reader = args[0], *writer = args[1], *partitions = args[2], *appended = args[6],
             *waiting = args[7], *answer = NULL;
    const int64_t now_ms = PyLong_AsLongLong(args[3]);
    int64_t entries_left = PyLong_AsLongLong(args[4]), bytes_left = PyLong_AsLongLong(args[5]);
    int64_t head, tail, out, out_limit;
    if (PyErr_Occurred() || get_number(reader, N_HEAD, &head) < 0 ||
        get_number(reader, N_TAIL, &tail) < 0)
        return NULL;
    Py_buffer in = {0}, results = {0};
    struct place at = {0};
    int64_t entries = 0, bytes = 0;
    PyObject *data = PyObject_GetAttr(reader, names[N_DATA]);
    if (data == NULL || get_buffer(data, &in, 0, 8, "the ring") < 0)
        goto over;
    Py_CLEAR(data);
    const uint8_t *from = in.buf;
    const int64_t mask = in.len - 1;
    if (in.len & mask || head < 0 || tail < head || tail - head > in.len) {
        PyErr_SetString(PyExc_ValueError, "broken ring");
        goto over;
    }
    if (head == tail || load_le32(from + (head & mask) + 4) != OPERATION_APPEND)
        goto told;
    data = PyObject_GetAttr(writer, names[N_DATA]);
    if (data == NULL || get_buffer(data, &results, 1, 8, "the ring back") < 0 ||
        get_number(writer, N_TAIL, &out) < 0 || get_number(writer, N_LIMIT, &out_limit) < 0)
        goto over;
    Py_CLEAR(data);
    uint8_t *to = results.buf;
    const int64_t out_mask = results.len - 1;
    if (results.len & out_mask || out < 0) {
        PyErr_SetString(PyExc_ValueError, "broken ring");
        goto over;
    }
    while (entries_left > 0 && bytes_left > 0 && head < tail) {
        const int64_t index = head & mask;
        const uint8_t *entry = from + index + ENTRY_HEAD;
        const int64_t length = load_le32(from + index), size = length - APPEND_BYTES;
        const int64_t behind = head + ((length + 15) & ~7LL);
        uint16_t flags;
        int16_t acks;
        if (load_le32(from + index + 4) != OPERATION_APPEND)
            break;
        if (behind > tail || index + ENTRY_HEAD + length > in.len) {
            PyErr_SetString(PyExc_ValueError, "broken ring");
            break;
        }
        const int64_t place = out & out_mask;
        if (size < HEADER_SIZE || out + ENTRY_HEAD + APPENDED_BYTES > out_limit ||
            place + ENTRY_HEAD + APPENDED_BYTES > results.len)
            break;
        memcpy(&acks, entry + A_ACKS, 2);
        memcpy(&flags, entry + A_FLAGS, 2);
        if (flags & (FLAG_PARTS | FLAG_TRANSACTIONAL))
            break;
        if (take(&at, partitions, appended, entry + A_KEY, entry + APPEND_BYTES, size, now_ms,
                 flags) <= 0)
            break;
        if (at.is_replicated && acks == ACKS_ALL) {
            uint64_t token;
            uint32_t timeout;
            memcpy(&token, entry, 8);
            memcpy(&timeout, entry + A_TIMEOUT, 4);
            if (put_waiting(waiting, &at, token, timeout) < 0)
                break;
        } else {
            const uint64_t word = (uint64_t)OPERATION_APPENDED << 32 | APPENDED_BYTES;
            const int64_t numbers[3] = {at.last_offset, -1, at.start_offset};
            memcpy(to + place, &word, 8);
            memcpy(to + place + 8, entry, 8);
            memset(to + place + 16, 0, 8);
            memcpy(to + place + 24, numbers, 24);
            out += ENTRY_HEAD + APPENDED_BYTES;
        }
        head = behind;
        entries++;
        entries_left--;
        bytes += size;
        bytes_left -= size;
    }
    if (plain_leave(&at, appended) < 0 || PyErr_Occurred())
        goto over;
    if (set_number(reader, N_HEAD, head) < 0 || set_number(writer, N_TAIL, out) < 0)
        goto over;
told:
    answer = Py_BuildValue("(LL)", (long long)entries, (long long)bytes);
over:
    Py_XDECREF(data);
    if (in.obj != NULL)
        PyBuffer_Release(&in);
    if (results.obj != NULL)
        PyBuffer_Release(&results);
    return answer;
}

PyObject *
py_append_rows(PyObject *self, PyObject *args) {
    PyObject *data_object, *partitions, *appended, *waiting, *answer = NULL;
    long long from, first, count, now_ms;
    unsigned long long token;
    int acks, flags;
    unsigned int timeout;
    if (!PyArg_ParseTuple(args, "OLLLKiiIO!LOO!", &data_object, &from, &first, &count, &token,
                          &acks, &flags, &timeout, &PyDict_Type, &partitions, &now_ms, &appended,
                          &PyList_Type, &waiting))
        return NULL;
    Py_buffer data = {0};
    if (get_buffer(data_object, &data, 0, 1, "data") < 0)
        return NULL;
    struct place at = {0};
    uint8_t *stored = NULL;
    if (from < 0 || from > data.len || first < 0 || count < first ||
        count - first > (data.len - from) / ROW_BYTES) {
        PyErr_Format(PyExc_ValueError, "there are no %lld rows at %lld", count - first, from);
        goto over;
    }
    stored = PyMem_Malloc((size_t)(count - first) * STORED_BYTES + 1);
    if (stored == NULL) {
        PyErr_NoMemory();
        goto over;
    }
    uint8_t *to = stored;
    for (; first < count; first++) {
        const uint8_t *row = (const uint8_t *)data.buf + from;
        if (data.len - from < ROW_BYTES)
            break;
        const int64_t size = load_be32(row + KEY_BYTES);
        if (size > data.len - from - ROW_BYTES)
            break;
        if (take(&at, partitions, appended, row, row + ROW_BYTES, size, now_ms, flags) <= 0)
            break;
        if (at.is_replicated && acks == ACKS_ALL) {
            if (put_waiting(waiting, &at, token + (uint64_t)first, timeout) < 0)
                break;
        } else {
            const uint32_t which = (uint32_t)first;
            memcpy(to, &which, 4);
            memcpy(to + 4, &at.last_offset, 8);
            memcpy(to + 12, &at.start_offset, 8);
            to += STORED_BYTES;
        }
        from += ROW_BYTES + size;
    }
    if (plain_leave(&at, appended) == 0 && !PyErr_Occurred())
        answer = Py_BuildValue("(LLy#)", first, from, (const char *)stored,
                               (Py_ssize_t)(to - stored));
over:
    PyMem_Free(stored);
    PyBuffer_Release(&data);
    return answer;
}
