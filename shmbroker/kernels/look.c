/* Looking at the rings of a process, once or until something has come: `shm/rings.py`, `ipc/core.py`.
 *
 * Where the rings lie is found once and kept in a capsule, which holds on to their memory. Each look
 * of a row gives the core to whoever else waits for it, then compares the positions of every ring
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

/* What the capsule holds: the buffers are released with it. */
struct rings {
    Py_ssize_t count;
    struct {
        Py_buffer view;
        Py_ssize_t ready; /* of the n-th: which ring was the n-th with entries */
    } of[];
};
static const char RINGS[] = "shmbroker.rings";

static int
has_entries(const struct rings *rings, Py_ssize_t i) {
    const uint8_t *ring = rings->of[i].view.buf;
    return position(ring, TAIL) != position(ring, HEAD);
}

static int
have_entries(const struct rings *rings) {
    for (Py_ssize_t i = 0; i < rings->count; i++)
        if (has_entries(rings, i))
            return 1;
    return 0;
}

static void
free_rings(struct rings *rings) {
    for (Py_ssize_t i = 0; i < rings->count; i++)
        PyBuffer_Release(&rings->of[i].view);
    PyMem_Free(rings);
}

static void
end_rings(PyObject *capsule) {
    free_rings(PyCapsule_GetPointer(capsule, RINGS));
}

PyObject *
py_rings(PyObject *self, PyObject *words) {
    if (!PyTuple_Check(words))
        return PyErr_Format(PyExc_TypeError, "rings are given in a tuple");
    const Py_ssize_t count = PyTuple_Size(words);
    struct rings *rings = PyMem_Malloc(sizeof *rings + (size_t)count * sizeof rings->of[0]);
    if (rings == NULL)
        return PyErr_NoMemory();
    for (rings->count = 0; rings->count < count; rings->count++) {
        Py_buffer *view = &rings->of[rings->count].view;
        if (get_buffer(PyTuple_GetItem(words, rings->count), view, 0, sizeof(int64_t), "a ring") <
            0)
            break;
        if (view->len < RING_HEAD_BYTES) {
            PyErr_Format(PyExc_ValueError, "%zd bytes are no ring", view->len);
            PyBuffer_Release(view);
            break;
        }
    }
    PyObject *capsule = NULL;
    if (rings->count == count)
        capsule = PyCapsule_New(rings, RINGS, end_rings);
    if (capsule == NULL)
        free_rings(rings);
    return capsule;
}

PyObject *
py_ready(PyObject *self, PyObject *capsule) {
    struct rings *rings = PyCapsule_GetPointer(capsule, RINGS);
    if (rings == NULL)
        return NULL;
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; i < rings->count; i++)
        if (has_entries(rings, i))
            rings->of[count++].ready = i;
    PyObject *ready = PyTuple_New(count);
    for (Py_ssize_t i = 0; ready != NULL && i < count; i++) {
        PyObject *index = PyLong_FromSsize_t(rings->of[i].ready);
        if (index == NULL || PyTuple_SetItem(ready, i, index) < 0)
            Py_CLEAR(ready);
    }
    return ready;
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
    PyObject *capsule;
    long long for_ns, lost_ns;
    int descriptor, between;
    if (!PyArg_ParseTuple(args, "OLLii", &capsule, &for_ns, &lost_ns, &descriptor, &between))
        return NULL;
    const struct rings *rings = PyCapsule_GetPointer(capsule, RINGS);
    if (rings == NULL)
        return NULL;
    if (between < 1)
        return PyErr_Format(PyExc_ValueError, "once in %d looks is not possible", between);
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
        else if (have_entries(rings))
            came = ENTRIES;
    }
    Py_END_ALLOW_THREADS
    return Py_BuildValue("iLN", came, (long long)lost,
                         list_of(events, event_count > 0 ? event_count : 0));
}
