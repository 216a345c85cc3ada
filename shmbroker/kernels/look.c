/* Looking at the rings of a process until something has come: `ipc/core.py`.
 *
 * Each look gives the core to whoever else waits for it, then compares the positions of every ring
 * (`shm/ring_layout.py`) and, once in so many looks, asks an epoll for its events. A row of looks
 * ends after its time, and with a look that took so long that somebody else computes on this core.
 */

#include <sched.h>
#include <sys/epoll.h>
#include <time.h>

#include "kernels.h"

enum { NOTHING, ENTRIES, EVENTS };

/* So many events are taken at once; the others are there the next time. */
enum { EVENTS_MAX = 64 };

/* What a look takes of its row's time: the rest went to somebody who had waited for the core, and
 * who may be just the one who is waited for. */
enum { OWN_NS_MAX = 1500 };

/* Of a ring, in bytes: its two positions, and what lies before its data. */
enum { TAIL = 0x80, HEAD = 0x100, RING_HEAD_BYTES = 0x1000 };

static int64_t
now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t
position(const uint8_t *ring, int of) {
    return __atomic_load_n((const int64_t *)(ring + of), __ATOMIC_ACQUIRE);
}

static int
has_entries(const uint8_t *const *rings, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++)
        if (position(rings[i], TAIL) != position(rings[i], HEAD))
            return 1;
    return 0;
}

/* Where the rings lie: their memory belongs to the tuple, which the caller holds. */
static Py_ssize_t
find_rings(PyObject *of, const uint8_t **rings) {
    const Py_ssize_t count = PyTuple_Size(of);
    if (count > LOOK_RINGS) {
        PyErr_Format(PyExc_ValueError, "%zd rings are more than %d", count, LOOK_RINGS);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_buffer view;
        if (get_buffer(PyTuple_GetItem(of, i), &view, 0, sizeof(int64_t), "a ring") < 0)
            return -1;
        rings[i] = view.buf;
        const Py_ssize_t bytes = view.len;
        PyBuffer_Release(&view);
        if (bytes < RING_HEAD_BYTES) {
            PyErr_Format(PyExc_ValueError, "%zd bytes are no ring", bytes);
            return -1;
        }
    }
    return count;
}

/* As `select.epoll.poll` gives them. */
static PyObject *
list_of(const struct epoll_event *events, int count) {
    PyObject *list = PyList_New(count);
    for (int i = 0; list != NULL && i < count; i++) {
        PyObject *event = Py_BuildValue("(iI)", events[i].data.fd, events[i].events);
        if (event == NULL || PyList_SetItem(list, i, event) < 0)
            Py_CLEAR(list);
    }
    return list;
}

PyObject *
py_look(PyObject *self, PyObject *args) {
    PyObject *of;
    long long for_ns, lost_ns;
    int descriptor, between;
    if (!PyArg_ParseTuple(args, "O!LLii", &PyTuple_Type, &of, &for_ns, &lost_ns, &descriptor,
                          &between))
        return NULL;
    if (between < 1)
        return PyErr_Format(PyExc_ValueError, "once in %d looks is not possible", between);
    const uint8_t *rings[LOOK_RINGS];
    const Py_ssize_t count = find_rings(of, rings);
    if (count < 0)
        return NULL;
    int came = NOTHING, event_count = 0;
    int64_t lost = 0;
    struct epoll_event events[EVENTS_MAX];
    Py_BEGIN_ALLOW_THREADS
    int64_t last = now_ns(), own_ns = 0;
    for (int look = 0; came == NOTHING && own_ns < for_ns; look++) {
        sched_yield();
        const int64_t now = now_ns(), took_ns = now - last;
        if (took_ns >= lost_ns) {
            lost = took_ns;
            break;
        }
        last = now;
        own_ns += took_ns < OWN_NS_MAX ? took_ns : OWN_NS_MAX;
        if (descriptor >= 0 && look % between == 0)
            event_count = epoll_wait(descriptor, events, EVENTS_MAX, 0);
        if (event_count > 0)
            came = EVENTS;
        else if (has_entries(rings, count))
            came = ENTRIES;
    }
    Py_END_ALLOW_THREADS
    return Py_BuildValue("iLN", came, (long long)lost,
                         list_of(events, event_count > 0 ? event_count : 0));
}
