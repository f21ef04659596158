/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_cuda.c: NVIDIA GPUs as a kind of device, through the driver's primary contexts, which the CUDA
 * runtime uses too. A call pushes the context of its device and pops it, so that the thread gets back what it
 * had, even if it was nothing.
 */
#include "device/cuda_driver.h"
#include "device/device_kind.h"

#include <stdatomic.h>
#include <stdio.h>

enum {
    /* CUdevice_attribute */
    MULTIPROCESSOR_COUNT = 16,
    CAPABILITY_MAJOR = 75,
    CAPABILITY_MINOR = 76,
    /* CUresult, flags and modes */
    OUT_OF_MEMORY = 2,
    NON_BLOCKING = 1,
    CAPTURE_GLOBAL = 0,
    CAPTURE_THREAD_LOCAL = 1
};

static int failed(int status, int32_t id, const char *what, attn_error_t *error) {
    if (status == 0) return ATTN_OK;
    return attn_fail(error, status == OUT_OF_MEMORY ? ATTN_E_NO_MEMORY : ATTN_E_DEVICE, "device",
                     "CUDA driver error %d while %s on cuda:%d", status, what, (int)id);
}

static attni_cuda_address_t address_of(const void *p) {
    return (attni_cuda_address_t)(uintptr_t)p;
}

/* --------------------------------------------------------------------- devices */

static int fill_device(const struct attni_cuda_driver *d, int32_t id, attn_device_t *device,
                       attn_error_t *error) {
    int handle, major = 0, minor = 0, sms = 0, status = d->device_get(&handle, id);
    size_t bytes = 0;
    char name[sizeof device->name] = "";
    if (status == 0) status = d->device_attribute(&major, CAPABILITY_MAJOR, handle);
    if (status == 0) status = d->device_attribute(&minor, CAPABILITY_MINOR, handle);
    if (status == 0) status = d->device_attribute(&sms, MULTIPROCESSOR_COUNT, handle);
    if (status == 0) status = d->device_memory(&bytes, handle);
    if (status == 0) status = d->device_name(name, (int)sizeof name, handle);
    if (status != 0)
        return attn_fail(error, ATTN_E_DEVICE, "device", "CUDA driver error %d about cuda:%d", status,
                         (int)id);
    ATTN_INIT(attn_device_t, found);
    found.type = kDLCUDA;
    found.id = id;
    found.compute_capability = major * 10 + minor;
    found.num_sms = sms;
    found.memory_bytes = bytes;
    snprintf(found.name, sizeof found.name, "%.*s", (int)sizeof name - 1, name);
    *device = found;
    return ATTN_OK;
}

static int cuda_describe(int32_t id, attn_device_t *device, int32_t *count, attn_error_t *error) {
    const struct attni_cuda_driver *d = attni_cuda_driver(error);
    int devices = 0;
    if (count != NULL) *count = 0;
    if (d == NULL) return ATTN_E_DEVICE;
    int status = d->init(0);
    if (status == 0) status = d->device_count(&devices);
    if (status != 0)
        return attn_fail(
            error, ATTN_E_DEVICE, "device",
            "the CUDA driver does not start (error %d); is there a GPU that this process may use?", status);
    if (count != NULL) *count = devices;
    if (id < 0 || id >= devices)
        return attn_fail(error, ATTN_E_DEVICE, "device",
                         "there is no cuda:%d; this machine has %d CUDA device%s", (int)id, devices,
                         devices == 1 ? "" : "s");
    return fill_device(d, id, device, error);
}

/* -------------------------------------------------------------------- contexts */

/* Pushes the context of a device. It is retained with the first call and kept, as the CUDA runtime does,
 * because making one is slow; a reset of the device by other code invalidates it, and it is retained
 * again. */
static int enter(const struct attni_cuda_driver **d, int32_t id, attn_error_t *error) {
    enum { MAX_DEVICES = 64 };
    static void *_Atomic kept[MAX_DEVICES];
    *d = attni_cuda_driver(error);
    if (*d == NULL) return ATTN_E_DEVICE;
    void *context = id >= 0 && id < MAX_DEVICES ? atomic_load(&kept[id]) : NULL;
    if (context != NULL && (*d)->context_push(context) == 0) return ATTN_OK;
    int handle, status = (*d)->init(0);
    if (status == 0) status = (*d)->device_get(&handle, id);
    if (status == 0) status = (*d)->context_retain(&context, handle);
    if (status == 0) status = (*d)->context_push(context);
    if (status == 0 && id < MAX_DEVICES) atomic_store(&kept[id], context);
    return failed(status, id, "making its context current", error);
}

static void leave(const struct attni_cuda_driver *d) {
    void *context;
    d->context_pop(&context);
}

/* Releases an object. */
static void give_back(int32_t id, void *p, int (*destroy)(const struct attni_cuda_driver *d, void *p)) {
    const struct attni_cuda_driver *d;
    if (p == NULL || enter(&d, id, NULL) != ATTN_OK) return;
    destroy(d, p);
    leave(d);
}

/* The caller's pair. */
static int cuda_enter(int32_t id, void **previous, attn_error_t *error) {
    const struct attni_cuda_driver *d;
    const int code = enter(&d, id, error);
    if (code == ATTN_OK) *previous = NULL; /* the driver's stack remembers it */
    return code;
}

static void cuda_leave(int32_t id, void *previous) {
    const struct attni_cuda_driver *d = attni_cuda_driver(NULL);
    (void)id, (void)previous;
    if (d != NULL) leave(d);
}

/* ---------------------------------------------------------------------- memory */

static int cuda_alloc(int32_t id, size_t bytes, void **address, attn_error_t *error) {
    const struct attni_cuda_driver *d;
    attni_cuda_address_t made = 0;
    int code = enter(&d, id, error);
    if (code != ATTN_OK) return code;
    code = failed(d->alloc(&made, bytes != 0 ? bytes : 1), id, "allocating memory", error);
    leave(d);
    if (code == ATTN_OK) *address = (void *)(uintptr_t)made;
    return code;
}

static int free_memory(const struct attni_cuda_driver *d, void *p) {
    return d->free(address_of(p));
}

static void cuda_free(int32_t id, void *address) {
    give_back(id, address, free_memory);
}

static int cuda_memory_info(int32_t id, uint64_t *free_bytes, uint64_t *total_bytes, attn_error_t *error) {
    const struct attni_cuda_driver *d;
    size_t left = 0, total = 0;
    int code = enter(&d, id, error);
    if (code != ATTN_OK) return code;
    const int status = d->memory_info(&left, &total);
    leave(d);
    if (status == 0) *free_bytes = left, *total_bytes = total;
    return failed(status, id, "querying free memory", error);
}

static int cuda_copy_to(int32_t id, void *to, const void *from, size_t bytes, void *stream,
                        attn_error_t *error) {
    const struct attni_cuda_driver *d;
    int code = bytes > 0 ? enter(&d, id, error) : ATTN_OK;
    if (code != ATTN_OK || bytes == 0) return code;
    const int status = d->copy_to(address_of(to), from, bytes, stream);
    leave(d);
    return failed(status, id, "writing memory", error);
}

static int cuda_copy_from(int32_t id, void *to, const void *from, size_t bytes, void *stream,
                          attn_error_t *error) {
    const struct attni_cuda_driver *d;
    int code = bytes > 0 ? enter(&d, id, error) : ATTN_OK;
    if (code != ATTN_OK || bytes == 0) return code;
    /* What the stream has to do first is waited for here: a copy to ordinary memory waits inside the driver,
     * where it keeps other threads' launches from a device that may need them to go on. */
    int status = d->stream_wait(stream);
    if (status == 0) status = d->copy_from(to, address_of(from), bytes, stream);
    if (status == 0) status = d->stream_wait(stream);
    leave(d);
    return failed(status, id, "reading memory", error);
}

static int cuda_copy_within(int32_t id, void *to, const void *from, size_t bytes, void *stream,
                            attn_error_t *error) {
    const struct attni_cuda_driver *d;
    int code = bytes > 0 ? enter(&d, id, error) : ATTN_OK;
    if (code != ATTN_OK || bytes == 0) return code;
    const int status = d->copy_within(address_of(to), address_of(from), bytes, stream);
    leave(d);
    return failed(status, id, "copying memory", error);
}

static int cuda_fill(int32_t id, void *to, uint8_t byte, size_t bytes, void *stream, attn_error_t *error) {
    const struct attni_cuda_driver *d;
    int code = bytes > 0 ? enter(&d, id, error) : ATTN_OK;
    if (code != ATTN_OK || bytes == 0) return code;
    const int status = d->fill(address_of(to), byte, bytes, stream);
    leave(d);
    return failed(status, id, "filling memory", error);
}

static int cuda_synchronize(int32_t id, attn_error_t *error) {
    const struct attni_cuda_driver *d;
    int code = enter(&d, id, error);
    if (code != ATTN_OK) return code;
    const int status = d->context_wait();
    leave(d);
    return failed(status, id, "waiting for its work", error);
}

/* ---------------------------------------------------------- streams and events */

static int cuda_stream_create(int32_t id, void **stream, attn_error_t *error) {
    const struct attni_cuda_driver *d;
    void *made = NULL;
    int code = enter(&d, id, error);
    if (code != ATTN_OK) return code;
    code = failed(d->stream_create(&made, NON_BLOCKING), id, "creating a stream", error);
    leave(d);
    if (code == ATTN_OK) *stream = made;
    return code;
}

static int cuda_stream_create_first(int32_t id, void **stream, attn_error_t *error) {
    const struct attni_cuda_driver *d;
    void *made = NULL;
    int least = 0, greatest = 0, code = enter(&d, id, error);
    if (code != ATTN_OK) return code;
    int status = d->priority_range(&least, &greatest);
    if (status == 0) status = d->stream_create_ranked(&made, NON_BLOCKING, greatest);
    code = failed(status, id, "creating a stream", error);
    leave(d);
    if (code == ATTN_OK) *stream = made;
    return code;
}

static int destroy_stream(const struct attni_cuda_driver *d, void *p) {
    return d->stream_destroy(p);
}

static void cuda_stream_destroy(int32_t id, void *stream) {
    give_back(id, stream, destroy_stream);
}

static int cuda_event_create(int32_t id, void **event, attn_error_t *error) {
    const struct attni_cuda_driver *d;
    void *made = NULL;
    int code = enter(&d, id, error);
    if (code != ATTN_OK) return code;
    code = failed(d->event_create(&made, 0), id, "creating an event", error);
    leave(d);
    if (code == ATTN_OK) *event = made;
    return code;
}

static int destroy_event(const struct attni_cuda_driver *d, void *p) {
    return d->event_destroy(p);
}

static void cuda_event_destroy(int32_t id, void *event) {
    give_back(id, event, destroy_event);
}

static int cuda_event_record(int32_t id, void *event, void *stream, attn_error_t *error) {
    const struct attni_cuda_driver *d;
    int code = enter(&d, id, error);
    if (code != ATTN_OK) return code;
    const int status = d->event_record(event, stream);
    leave(d);
    return failed(status, id, "recording an event", error);
}

static int cuda_stream_wait(int32_t id, void *stream, void *event, attn_error_t *error) {
    const struct attni_cuda_driver *d;
    int code = enter(&d, id, error);
    if (code != ATTN_OK) return code;
    const int status = d->stream_wait_event(stream, event, 0);
    leave(d);
    return failed(status, id, "waiting for an event", error);
}

static int cuda_event_seconds(int32_t id, void *first, void *last, double *seconds, attn_error_t *error) {
    const struct attni_cuda_driver *d;
    float milliseconds = 0;
    int code = enter(&d, id, error);
    if (code != ATTN_OK) return code;
    int status = d->event_wait(last);
    if (status == 0) status = d->event_time(&milliseconds, first, last);
    leave(d);
    if (status == 0) *seconds = (double)milliseconds * 1e-3;
    return failed(status, id, "reading a time", error);
}

/* ---------------------------------------------------------------------- graphs */

static int cuda_capture_begin(int32_t id, void *stream, uint32_t is_strict, attn_error_t *error) {
    const struct attni_cuda_driver *d;
    int code = enter(&d, id, error);
    if (code != ATTN_OK) return code;
    const int status = d->capture_begin(stream, is_strict ? CAPTURE_GLOBAL : CAPTURE_THREAD_LOCAL);
    leave(d);
    return failed(status, id, "beginning a capture", error);
}

static int cuda_capture_end(int32_t id, void *stream, void **graph, attn_error_t *error) {
    const struct attni_cuda_driver *d;
    void *recorded = NULL, *made = NULL;
    int code = enter(&d, id, error);
    if (code != ATTN_OK) return code;
    int status = d->capture_end(stream, &recorded);
    if (status == 0) status = d->graph_instantiate(&made, recorded, 0);
    if (recorded != NULL) d->graph_destroy(recorded);
    code = failed(status, id, "ending a capture", error);
    leave(d);
    if (code == ATTN_OK) *graph = made;
    return code;
}

static int cuda_graph_launch(int32_t id, void *graph, void *stream, attn_error_t *error) {
    const struct attni_cuda_driver *d;
    int code = enter(&d, id, error);
    if (code != ATTN_OK) return code;
    const int status = d->exec_launch(graph, stream);
    leave(d);
    return failed(status, id, "launching a graph", error);
}

static int destroy_exec(const struct attni_cuda_driver *d, void *p) {
    return d->exec_destroy(p);
}

static void cuda_graph_destroy(int32_t id, void *graph) {
    give_back(id, graph, destroy_exec);
}

/* The legacy default stream has an error in place of an answer while any other stream captures strictly: it
 * may not be waited for then either. A driver without the function is older than captures by others. */
static int cuda_is_capturing(int32_t id, void *stream, uint32_t *capturing, attn_error_t *error) {
    const struct attni_cuda_driver *d;
    int (*query)(void *stream, int *status);
    int state = 0, code = enter(&d, id, error);
    if (code != ATTN_OK) return code;
    void *symbol = attni_cuda_function("cuStreamIsCapturing");
    memcpy(&query, &symbol, sizeof query);
    const int status = query != NULL ? query(stream, &state) : 0;
    leave(d);
    *capturing = status != 0 || state != 0;
    return ATTN_OK;
}

const attn_device_kind_t attni_device_cuda = {.struct_size = sizeof(attn_device_kind_t),
                                              .type = kDLCUDA,
                                              .name = "cuda",
                                              .capability_prefix = "sm_",
                                              .describe = cuda_describe,
                                              .alloc = cuda_alloc,
                                              .free = cuda_free,
                                              .memory_info = cuda_memory_info,
                                              .copy_to = cuda_copy_to,
                                              .copy_from = cuda_copy_from,
                                              .copy_within = cuda_copy_within,
                                              .fill = cuda_fill,
                                              .synchronize = cuda_synchronize,
                                              .stream_create = cuda_stream_create,
                                              .stream_destroy = cuda_stream_destroy,
                                              .event_create = cuda_event_create,
                                              .event_destroy = cuda_event_destroy,
                                              .event_record = cuda_event_record,
                                              .event_seconds = cuda_event_seconds,
                                              .capture_begin = cuda_capture_begin,
                                              .capture_end = cuda_capture_end,
                                              .graph_launch = cuda_graph_launch,
                                              .graph_destroy = cuda_graph_destroy,
                                              .enter = cuda_enter,
                                              .leave = cuda_leave,
                                              .native_function = attni_cuda_function,
                                              .is_capturing = cuda_is_capturing,
                                              .stream_wait = cuda_stream_wait,
                                              .stream_create_first = cuda_stream_create_first};
