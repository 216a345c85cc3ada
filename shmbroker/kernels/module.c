/* The extension module `shmbroker.kernels._native`: its names and constants, and what all share. */

#include "kernels.h"

const uint8_t *
long_varint(const uint8_t *p, const uint8_t *end, int size_max, int64_t *value) {
    uint64_t raw = 0;
    for (int i = 0; i < size_max; i++) {
        if (p == end)
            return NULL;
        uint64_t byte = *p++;
        raw |= (byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            if (size_max == 5 && raw >> 32)
                return NULL;
            *value = (int64_t)(raw >> 1) ^ -(int64_t)(raw & 1);
            return p;
        }
    }
    return NULL;
}

int
get_buffer(PyObject *object, Py_buffer *view, int is_writable, int item, const char *name) {
    if (PyObject_GetBuffer(object, view, is_writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
        return -1;
    if (view->len && (uintptr_t)view->buf % (uintptr_t)item) {
        PyBuffer_Release(view);
        PyErr_Format(PyExc_ValueError, "%s is not aligned to its items of %d bytes", name, item);
        return -1;
    }
    return 0;
}

PyObject *
raise_flaw(const struct flaw *flaw) {
    return PyErr_Format(PyExc_ValueError, flaw->text, flaw->a, flaw->b);
}

static int crc_methods;

static PyObject *
py_crc32c(PyObject *self, PyObject *args) {
    Py_buffer data;
    unsigned int crc = 0;
    int method = crc_methods - 1;
    if (!PyArg_ParseTuple(args, "y*|Ii", &data, &crc, &method))
        return NULL;
    if (method < 0 || method >= crc_methods) {
        PyBuffer_Release(&data);
        return PyErr_Format(PyExc_ValueError, "there are %d methods, no %d", crc_methods, method);
    }
    const uint8_t *bytes = data.buf;
    if (data.len < 4096) {
        crc = crc32c_by(method, crc, bytes, (size_t)data.len);
    } else {
        Py_BEGIN_ALLOW_THREADS
        crc = crc32c_by(method, crc, bytes, (size_t)data.len);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}

static PyMethodDef methods[] = {
    {"crc32c", py_crc32c, METH_VARARGS, "CRC-32C"},
    {"scan", py_scan, METH_VARARGS, "batch headers into a table"},
    {"decode", py_decode, METH_VARARGS, "records into Arrow buffers"},
    {"lz4_decompress", py_lz4_decompress, METH_VARARGS, "one LZ4 frame"},
    {"walk", py_walk, METH_VARARGS, "look at every record of a batch"},
    {"murmur2", py_murmur2, METH_VARARGS, "Kafka's hash of keys"},
    {"encode", py_encode, METH_VARARGS, "Arrow columns into records"},
    {"scatter", py_scatter, METH_VARARGS, "Arrow columns into records of several partitions"},
    {"find_batches", py_find_batches, METH_VARARGS, "from batch header to batch header"},
    {"check_crcs", py_check_crcs, METH_VARARGS, "CRCs of whole batches"},
    {"find_appends", py_find_appends, METH_VARARGS, "batches of a Produce request"},
    {"pack_appends", py_pack_appends, METH_VARARGS, "batches onto a ring"},
    {"put_stored", py_put_stored, METH_VARARGS, "what came of batches"},
    {"answer_appends", py_answer_appends, METH_VARARGS, "rows of a Produce answer"},
    {"append_plain", (PyCFunction)(void (*)(void))py_append_plain, METH_FASTCALL,
     "small batches of a ring into their segments"},
    {"append_rows", py_append_rows, METH_VARARGS, "rows of an APPEND_MANY into their segments"},
    {"serve_ready", (PyCFunction)(void (*)(void))py_serve_ready, METH_FASTCALL,
     "what many sockets bring, appended and answered"},
    {"repeat_standing", py_repeat_standing, METH_VARARGS, "to what many sockets bring"},
    {"rings", py_rings, METH_O, "that are looked at together"},
    {"ready", py_ready, METH_O, "which of them have entries"},
    {"look", py_look, METH_VARARGS, "at them, until something has come"},
    {"hash_keys", py_hash_keys, METH_VARARGS, "keys of records, hashed"},
    {"map_put", py_map_put, METH_VARARGS, "offsets of keys into a map"},
    {"map_keep", py_map_keep, METH_VARARGS, "which records are the last of their key"},
    {"keep_records", py_keep_records, METH_VARARGS, "batches again, of some of their records"},
    {NULL, NULL, 0, NULL},
};

static int
execute(PyObject *module) {
    if (plain_init() < 0 || PyModule_AddIntConstant(module, "BUILD", BUILD) < 0 ||
        PyModule_AddIntConstant(module, "BATCH_FIELDS", BATCH_FIELDS) < 0 ||
        PyModule_AddIntConstant(module, "STATE_FIELDS", STATE_FIELDS) < 0 ||
        PyModule_AddIntConstant(module, "SCATTER_FIELDS", R_FIELDS) < 0 ||
        PyModule_AddIntConstant(module, "SCATTER_MAX", SCATTER_MAX) < 0 ||
        PyModule_AddIntConstant(module, "WALK_MALFORMED", WALK_MALFORMED) < 0 ||
        PyModule_AddIntConstant(module, "WALK_OFFSET", WALK_OFFSET) < 0 ||
        PyModule_AddIntConstant(module, "WALK_NO_KEY", WALK_NO_KEY) < 0 ||
        PyModule_AddIntConstant(module, "WALK_TIMESTAMP", WALK_TIMESTAMP) < 0)
        return -1;
    crc_methods = crc32c_init();
    return PyModule_AddIntConstant(module, "CRC_METHODS", crc_methods);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "Compiled kernels; see _native.pyi.", 0, methods, slots,
    NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__native(void) {
    return PyModuleDef_Init(&definition);
}
