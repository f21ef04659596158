/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libattn._fast: the two steps of every call where ctypes costs more than the call itself. Describes a tensor
 * as a DLTensor (through the C exchange API of DLPack 1.2, which torch has, and through the buffer protocol),
 * and makes the calls of every step with the GIL released. The package works without this module, slower.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <attn/attn_types.h>
#include <stdint.h>
#include <string.h>

enum { MAX_DIMS = 8 };

/* What a TensorView of tensors.py keeps: the tensor, its sizes, its strides. */
struct block {
    DLTensor tensor;
    int64_t shape[MAX_DIMS];
    int64_t strides[MAX_DIMS];
};

/* DLPackExchangeAPI of DLPack 1.2, as far as it is read here; older headers lack it. */
struct exchange_header {
    uint32_t major, minor;
    struct exchange_header *older;
};
struct exchange_api {
    struct exchange_header header;
    void *unused[3]; /* allocator, managed from and to an object */
    int (*tensor_from_object)(void *object, DLTensor *tensor);
    int (*current_stream)(int device_type, int32_t device_id, void **stream);
};

/* What is known of a type of tensors. */
struct known_type {
    PyObject *type; /* held */
    const struct exchange_api *api;
    int has_gradients; /* torch: objects have requires_grad */
    int has_buffer;    /* memory stays as long as the object */
};
static struct known_type known[8];
static unsigned next_known;
static PyObject *requires_grad_name;

static const struct exchange_api *find_api(PyObject *type) {
    PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
    const struct exchange_header *header = NULL;
    if (capsule) header = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    PyErr_Clear();
    Py_XDECREF(capsule); /* it lives as long as its type */
    while (header && header->major > 1)
        header = header->older;
    if (!header || header->major != 1) return NULL;
    const struct exchange_api *api = (const struct exchange_api *)(const void *)header;
    return api->tensor_from_object ? api : NULL;
}

static const struct known_type *know(PyObject *type) {
    for (unsigned i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].type == type) return &known[i];
    struct known_type *one = &known[next_known++ % (sizeof known / sizeof *known)];
    PyObject *old = one->type;
    one->api = find_api(type);
    one->has_gradients = PyObject_HasAttrString(type, "requires_grad");
    one->has_buffer =
        type == (PyObject *)&PyMemoryView_Type || PyObject_HasAttrString(type, "__array_interface__");
    one->type = Py_NewRef(type);
    Py_XDECREF(old);
    return one;
}

static void fill_contiguous(struct block *block) {
    int64_t n = 1;
    for (int i = block->tensor.ndim - 1; i >= 0; i--) {
        block->strides[i] = n;
        n *= block->shape[i];
    }
}

/* 1: the block describes the tensor of a framework; 0: it does not and another way is to be tried. */
static int set_exchanged(struct block *block, const struct exchange_api *api, PyObject *source) {
    DLTensor t;
    memset(&t, 0, sizeof t);
    if (api->tensor_from_object(source, &t) != 0) {
        PyErr_Clear();
        return 0;
    }
    if (t.ndim < 0 || t.ndim > MAX_DIMS || t.dtype.lanes != 1) return 0;
    if (t.dtype.code == 6 && t.dtype.bits == 8) t.dtype.code = kDLUInt; /* DLPack's bool */
    size_t bytes = (size_t)t.ndim * sizeof(int64_t);
    block->tensor = t;
    if (bytes) memcpy(block->shape, t.shape, bytes);
    if (bytes && t.strides) memcpy(block->strides, t.strides, bytes);
    if (!t.strides) fill_contiguous(block);
    return 1;
}

static int buffer_type(const char *format, Py_ssize_t size, DLDataType *type) {
    if (!format) format = "B";
    if (*format == '@' || *format == '=' || *format == '<') format++;
    if (!format[0] || format[1]) return 0;
    type->lanes = 1;
    type->bits = (uint8_t)(8 * size);
    if (strchr("fde", *format))
        type->code = kDLFloat;
    else if (strchr("biql", *format))
        type->code = kDLInt;
    else if (strchr("Bc?", *format))
        type->code = kDLUInt;
    else
        return 0;
    return 1;
}

static int set_buffer(struct block *block, PyObject *source, int is_writable) {
    Py_buffer view;
    if (PyObject_GetBuffer(source, &view, is_writable ? PyBUF_RECORDS : PyBUF_RECORDS_RO) != 0) {
        PyErr_Clear();
        return 0;
    }
    DLDataType type;
    int is_good = view.ndim <= MAX_DIMS && buffer_type(view.format, view.itemsize, &type);
    for (int i = 0; is_good && i < view.ndim; i++) {
        if (view.strides[i] % view.itemsize) is_good = 0;
        block->shape[i] = view.shape[i];
        block->strides[i] = view.strides[i] / view.itemsize;
    }
    if (is_good) {
        DLTensor t = {.data = view.buf, .device = {kDLCPU, 0}, .ndim = view.ndim, .dtype = type};
        block->tensor = t;
    }
    PyBuffer_Release(&view); /* the object keeps the memory, see has_buffer */
    return is_good;
}

/* 1: the block describes the source; 0: Python code has to look. */
static int set_block(struct block *block, PyObject *source, int is_writable) {
    const struct known_type *type = know((PyObject *)Py_TYPE(source));
    int is_set = 0;
    if (type->has_gradients) {
        PyObject *requires_grad = PyObject_GetAttr(source, requires_grad_name);
        PyErr_Clear();
        Py_XDECREF(requires_grad);
        if (requires_grad != Py_False) return 0;
    }
    if (type->api)
        is_set = set_exchanged(block, type->api, source);
    else if (type->has_buffer)
        is_set = set_buffer(block, source, is_writable);
    if (is_set) {
        block->tensor.shape = block->shape;
        block->tensor.strides = block->strides;
    }
    return is_set;
}

/* The pointers of a METH_FASTCALL function's integers; None and 0 are NULL. */
static int pointers(PyObject *const *arguments, Py_ssize_t count, Py_ssize_t wanted, void **p) {
    if (count != wanted) {
        PyErr_Format(PyExc_TypeError, "expected %zd arguments, not %zd", wanted, count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        p[i] = arguments[i] == Py_None ? NULL : PyLong_AsVoidPtr(arguments[i]);
        if (!p[i] && PyErr_Occurred()) return -1;
    }
    return 0;
}

PyDoc_STRVAR(set_doc,
             "set(address, source, is_writable) -> bool\n\n"
             "Describes a tensor in the block at an address; False: not a tensor that this module knows,\n"
             "or one that needs a look by Python code.");
static PyObject *fast_set(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    (void)module;
    void *block;
    if (pointers(arguments, count == 3 ? 1 : 0, 1, &block) != 0) return NULL;
    if (!block) return PyErr_Format(PyExc_ValueError, "the address of a block is 0");
    return PyBool_FromLong(set_block(block, arguments[1], arguments[2] == Py_True));
}

/* What Group.calls of group.py keeps; the fields are those of Calls there. */
struct group_calls {
    int32_t is_busy; /* a thread is in a call of the group; read and written with the GIL held */
    int32_t device_type, device_id;
    int32_t reserved;
    void *handle; /* NULL: closed */
    void *error;
    int (*build_metadata)(void *group, const void *batch, const void *space, void *stream, void *error);
    int (*update_block_table)(void *group, const void *batch, const void *space, void *stream, void *error);
    int (*update_kv_cache)(void *layer, const attn_kv_update_t *args, void *stream, void *error);
    int (*forward)(void *layer, const attn_forward_t *args, const void *space, void *stream, void *error);
};

/* Of Layer; the fields are those of Calls in layer.py. */
struct layer_calls {
    struct group_calls *group;
    void *handle; /* NULL: destroyed */
    attn_kv_update_t *update_args;
    attn_forward_t *forward_args;
    struct block *query, *key, *value, *output, *lse, *slots, *kv_cache;
};

static PyObject *in_use(void) {
    return PyErr_Format(PyExc_BlockingIOError, "another thread is in a call of this group");
}

/* The stream to use where the caller gave none. 1: found; 0: Python code has to ask. */
static int stream_of(const struct group_calls *group, PyObject *source, void **stream) {
    if (*stream || group->device_type == kDLCPU) return 1;
    const struct exchange_api *api = know((PyObject *)Py_TYPE(source))->api;
    if (api && api->current_stream && api->current_stream(group->device_type, group->device_id, stream) == 0)
        return 1;
    PyErr_Clear();
    return 0;
}

PyDoc_STRVAR(enter_doc,
             "enter(group_calls): takes the group for this thread; BlockingIOError: another one has it.");
static PyObject *fast_enter(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    (void)module;
    void *p;
    if (pointers(arguments, count, 1, &p) != 0) return NULL;
    struct group_calls *group = p;
    if (group->is_busy) return in_use();
    group->is_busy = 1;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(leave_doc, "leave(group_calls): gives the group back.");
static PyObject *fast_leave(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    (void)module;
    void *p;
    if (pointers(arguments, count, 1, &p) != 0) return NULL;
    ((struct group_calls *)p)->is_busy = 0;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(build_doc, "build(group_calls, batch, space, stream, is_table) -> code\n\n"
                        "build_metadata, or update_block_table, with the GIL released.");
static PyObject *fast_build(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    (void)module;
    void *p[5];
    if (pointers(arguments, count, 5, p) != 0) return NULL;
    struct group_calls *group = p[0];
    if (group->is_busy) return in_use();
    group->is_busy = 1;
    int code;
    PyThreadState *state = PyEval_SaveThread();
    code = (p[4] ? group->update_block_table : group->build_metadata)(group->handle, p[1], p[2], p[3],
                                                                      group->error);
    PyEval_RestoreThread(state);
    group->is_busy = 0;
    return PyLong_FromLong(code);
}

PyDoc_STRVAR(update_doc,
             "update(layer_calls, key, value, slot_mapping, slots, kv_cache, stream) -> code or None\n\n"
             "update_kv_cache; slots: the address of a DLTensor, where slot_mapping is None. None: an\n"
             "argument needs a look by Python code, and nothing was done.");
static PyObject *fast_update(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    (void)module;
    if (count != 7) return PyErr_Format(PyExc_TypeError, "update takes 7 arguments");
    void *p, *slots, *stream;
    if (pointers(arguments, 1, 1, &p) != 0 || pointers(arguments + 4, 1, 1, &slots) != 0 ||
        pointers(arguments + 6, 1, 1, &stream) != 0)
        return NULL;
    struct layer_calls *layer = p;
    struct group_calls *group = layer->group;
    if (group->is_busy) return in_use();
    if (!layer->handle || !stream_of(group, arguments[1], &stream)) Py_RETURN_NONE;
    if (!set_block(layer->key, arguments[1], 0) || !set_block(layer->value, arguments[2], 0)) Py_RETURN_NONE;
    if (arguments[3] != Py_None) {
        if (!set_block(layer->slots, arguments[3], 0)) Py_RETURN_NONE;
        slots = layer->slots;
    }
    attn_kv_update_t *args = layer->update_args;
    const DLTensor *bound = args->kv_cache;
    if (arguments[5] != Py_None) {
        if (!set_block(layer->kv_cache, arguments[5], 1)) Py_RETURN_NONE;
        args->kv_cache = &layer->kv_cache->tensor;
    }
    args->key = &layer->key->tensor;
    args->value = &layer->value->tensor;
    args->slot_mapping = slots;
    group->is_busy = 1;
    int code;
    PyThreadState *state = PyEval_SaveThread();
    code = group->update_kv_cache(layer->handle, args, stream, group->error);
    PyEval_RestoreThread(state);
    args->kv_cache = bound;
    group->is_busy = 0;
    return PyLong_FromLong(code);
}

PyDoc_STRVAR(
    forward_doc,
    "forward(layer_calls, query, key, value, output, lse, kv_cache, space, stream) -> code or None\n\n"
    "None: an argument needs a look by Python code, and nothing was done.");
static PyObject *fast_forward(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    (void)module;
    if (count != 9) return PyErr_Format(PyExc_TypeError, "forward takes 9 arguments");
    void *p, *last[2];
    if (pointers(arguments, 1, 1, &p) != 0 || pointers(arguments + 7, 2, 2, last) != 0) return NULL;
    struct layer_calls *layer = p;
    struct group_calls *group = layer->group;
    if (group->is_busy) return in_use();
    if (!layer->handle || !stream_of(group, arguments[1], &last[1])) Py_RETURN_NONE;
    struct block *blocks[6] = {layer->query,  layer->key, layer->value,
                               layer->output, layer->lse, layer->kv_cache};
    for (int i = 0; i < 6; i++) {
        if (arguments[i + 1] == Py_None)
            blocks[i] = NULL;
        else if (!set_block(blocks[i], arguments[i + 1], i > 2))
            Py_RETURN_NONE;
    }
    attn_forward_t *args = layer->forward_args;
    args->query = (const DLTensor *)(const void *)blocks[0];
    args->key = (const DLTensor *)(const void *)blocks[1];
    args->value = (const DLTensor *)(const void *)blocks[2];
    args->output = (const DLTensor *)(const void *)blocks[3];
    args->lse = (const DLTensor *)(const void *)blocks[4];
    const DLTensor *bound = args->kv_cache;
    if (blocks[5]) args->kv_cache = &blocks[5]->tensor;
    group->is_busy = 1;
    int code;
    PyThreadState *state = PyEval_SaveThread();
    code = group->forward(layer->handle, args, last[0], last[1], group->error);
    PyEval_RestoreThread(state);
    args->kv_cache = bound;
    group->is_busy = 0;
    return PyLong_FromLong(code);
}

#define FAST(name, function, doc)                                                                            \
    { name, (PyCFunction)(void (*)(void))function, METH_FASTCALL, doc }

static PyMethodDef methods[] = {
    FAST("set", fast_set, set_doc),
    FAST("enter", fast_enter, enter_doc),
    FAST("leave", fast_leave, leave_doc),
    FAST("build", fast_build, build_doc),
    FAST("update", fast_update, update_doc),
    FAST("forward", fast_forward, forward_doc),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "libattn._fast",
                                        .m_doc = "The hot path of libattn.", .m_size = -1,
                                        .m_methods = methods};

PyMODINIT_FUNC PyInit__fast(void) {
    requires_grad_name = PyUnicode_InternFromString("requires_grad");
    return requires_grad_name ? PyModule_Create(&definition) : NULL;
}
