/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_cuda.c: questions to the CUDA driver without a CUDA toolkit: libcuda.so.1 is opened by name, and the few
 * functions and attribute numbers that are needed stand here (CUDA Driver API, stable since version 3).
 */
#include "device.h"

#include <attn/attn_plugin_util.h>
#include <dlfcn.h>
#include <pthread.h>

enum { MULTIPROCESSOR_COUNT = 16, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 }; /* CUdevice_attribute */

struct driver {
    int (*init)(unsigned flags);
    int (*get_count)(int *count);
    int (*get)(int *device, int ordinal);
    int (*get_attribute)(int *value, int attribute, int device);
    int (*total_mem)(size_t *bytes, int device);
    int (*get_name)(char *name, int size, int device);
};

/* symbols [count] receives the functions of those names. */
static int find_functions(const char *const *names, size_t count, void **symbols, attn_error_t *error) {
    /* Never closed: the driver does not survive that, and the process will want it again. */
    void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        return attn_fail(error, ATTN_E_DEVICE, "device",
                         "no CUDA driver: %s; install the NVIDIA driver or use the device cpu", dlerror());
    for (size_t i = 0; i < count; i++) {
        symbols[i] = dlsym(handle, names[i]);
        if (symbols[i] == NULL)
            return attn_fail(error, ATTN_E_DEVICE, "device",
                             "libcuda.so.1 has no function %s; it is no usable driver", names[i]);
    }
    return ATTN_OK;
}

static int open_driver(struct driver *d, attn_error_t *error) {
    static const char *const names[] = {
        "cuInit",         "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetAttribute", "cuDeviceTotalMem_v2",
        "cuDeviceGetName"};
    void *symbols[sizeof names / sizeof names[0]];
    int code = find_functions(names, sizeof names / sizeof names[0], symbols, error);
    if (code == ATTN_OK)
        memcpy(d, symbols,
               sizeof *d); /* POSIX lets dlsym's pointers be functions; C has no cast that says so */
    return code;
}

static int fill_device(const struct driver *d, int32_t ordinal, attn_device_t *device, attn_error_t *error) {
    int handle, major = 0, minor = 0, sms = 0, code = d->get(&handle, ordinal);
    size_t bytes = 0;
    char name[sizeof device->name] = "";
    if (code == 0) code = d->get_attribute(&major, CAPABILITY_MAJOR, handle);
    if (code == 0) code = d->get_attribute(&minor, CAPABILITY_MINOR, handle);
    if (code == 0) code = d->get_attribute(&sms, MULTIPROCESSOR_COUNT, handle);
    if (code == 0) code = d->total_mem(&bytes, handle);
    if (code == 0) code = d->get_name(name, (int)sizeof name, handle);
    if (code != 0)
        return attn_fail(error, ATTN_E_DEVICE, "device", "the CUDA driver says error %d about cuda:%d", code,
                         (int)ordinal);
    ATTN_INIT(attn_device_t, found);
    found.type = kDLCUDA;
    found.id = ordinal;
    found.compute_capability = major * 10 + minor;
    found.num_sms = sms;
    found.memory_bytes = bytes;
    snprintf(found.name, sizeof found.name, "%.*s", (int)sizeof name - 1, name);
    *device = found;
    return ATTN_OK;
}

int attni_cuda_device(int32_t ordinal, attn_device_t *device, int32_t *count, attn_error_t *error) {
    struct driver d = {0};
    int devices = 0, status;
    *count = 0;
    int code = open_driver(&d, error);
    if (code != ATTN_OK) return code;
    status = d.init(0);
    if (status == 0) status = d.get_count(&devices);
    if (status != 0)
        return attn_fail(
            error, ATTN_E_DEVICE, "device",
            "the CUDA driver does not start (error %d); is there a GPU that this process may use?", status);
    *count = devices;
    if (ordinal >= devices)
        return attn_fail(error, ATTN_E_DEVICE, "device",
                         "cuda:%d is not there; this machine has %d CUDA device%s", (int)ordinal, devices,
                         devices == 1 ? "" : "s");
    return fill_device(&d, ordinal, device, error);
}

struct copier {
    int (*get)(int *device, int ordinal);
    int (*retain)(void **context, int device); /* the primary context, which the CUDA runtime uses too */
    int (*release)(int device);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*wait)(void *stream);
    int (*to_host)(void *host, uintptr_t device, size_t bytes, void *stream);
    int (*to_device)(uintptr_t device, const void *host, size_t bytes, void *stream);
};

/* Looked up once, because every step with sink tokens copies. */
static pthread_once_t copier_once = PTHREAD_ONCE_INIT;
static struct copier copier;
static attn_error_t copier_error = {.struct_size = sizeof copier_error};

static void find_copier(void) {
    static const char *const names[] = {
        "cuDeviceGet",          "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2",
        "cuCtxPushCurrent_v2",  "cuCtxPopCurrent_v2",       "cuStreamSynchronize",
        "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"};
    void *symbols[sizeof names / sizeof names[0]];
    if (find_functions(names, sizeof names / sizeof names[0], symbols, &copier_error) == ATTN_OK)
        memcpy(&copier, symbols, sizeof copier);
}

/* to_host or from_host is NULL. */
static int copy(void *to_host, const void *from_host, uintptr_t device, size_t bytes, int32_t ordinal,
                int waits, void *stream, attn_error_t *error) {
    const struct copier *c = &copier;
    void *context = NULL;
    int handle;
    pthread_once(&copier_once, find_copier);
    if (c->get == NULL)
        return attn_fail(error, copier_error.code, copier_error.param, "%s", copier_error.text);
    int status = c->get(&handle, ordinal);
    if (status == 0) status = c->retain(&context, handle);
    if (status == 0) {
        status = c->push(context);
        if (status == 0) {
            status = to_host != NULL ? c->to_host(to_host, device, bytes, stream)
                                     : c->to_device(device, from_host, bytes, stream);
            if (status == 0 && waits) status = c->wait(stream);
            c->pop(&context);
        }
        c->release(handle);
    }
    return status == 0 ? ATTN_OK
                       : attn_fail(error, ATTN_E_DEVICE, "device",
                                   "the CUDA driver says error %d when memory of cuda:%d is %s", status,
                                   (int)ordinal, to_host != NULL ? "read" : "written");
}

int attni_cuda_read(void *host, const void *device, size_t bytes, int32_t ordinal, void *stream,
                    attn_error_t *error) {
    return copy(host, NULL, (uintptr_t)device, bytes, ordinal, 1, stream, error);
}

int attni_cuda_write(void *device, const void *host, size_t bytes, int32_t ordinal, void *stream,
                     attn_error_t *error) {
    return copy(NULL, host, (uintptr_t)device, bytes, ordinal, 1, stream, error);
}

int attni_cuda_send(void *device, const void *host, size_t bytes, int32_t ordinal, void *stream,
                    attn_error_t *error) {
    return copy(NULL, host, (uintptr_t)device, bytes, ordinal, 0, stream, error);
}
