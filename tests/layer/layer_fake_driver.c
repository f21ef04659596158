/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_fake_driver.c: a CUDA driver with two devices of its own imagination, whose memory is the host's;
 * $ATTN_FAKE_DRIVER makes it fail, or keep memory for itself.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static int is(const char *kind) {
    const char *have = getenv("ATTN_FAKE_DRIVER");
    return have != NULL && strcmp(have, kind) == 0;
}

EXPORT int cuInit(unsigned flags);
EXPORT int cuDeviceGetCount(int *count);
EXPORT int cuDeviceGet(int *device, int ordinal);
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device);
EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device);
EXPORT int cuDeviceGetName(char *name, int size, int device);

int cuInit(unsigned flags) {
    return flags != 0 ? 1 : is("stopped") ? 100 : 0;
}
int cuDeviceGetCount(int *count) {
    return *count = 2, 0;
}
int cuDeviceGet(int *device, int ordinal) {
    return *device = ordinal, 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    if (is("failing")) return 201;
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 16 ? 132 : -1;
    return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    return (void)device, *bytes = (size_t)141 << 30, 0;
}
int cuDeviceGetName(char *name, int size, int device) {
    return snprintf(name, (size_t)size, "Fake GPU %d", device) < 0;
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device);
EXPORT int cuDevicePrimaryCtxRelease_v2(int device);
EXPORT int cuCtxPushCurrent_v2(void *context);
EXPORT int cuCtxPopCurrent_v2(void **context);
EXPORT int cuStreamSynchronize(void *stream);
EXPORT int cuMemcpyDtoHAsync_v2(void *host, uintptr_t device, size_t bytes, void *stream);
EXPORT int cuMemcpyHtoDAsync_v2(uintptr_t device, const void *host, size_t bytes, void *stream);

EXPORT extern int fake_num_sent, fake_num_contexts[2];
int fake_num_sent;              /* copies to a device */
int fake_num_contexts[2];       /* retained now, of each device */
static _Thread_local int depth; /* of the calling thread's stack of contexts */
static char thing;              /* what all handles point to */

EXPORT int fake_depth(void);
int fake_depth(void) {
    return depth;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    return fake_num_contexts[device]++, *context = &thing, 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    return --fake_num_contexts[device] < 0;
}
int cuCtxPushCurrent_v2(void *context) {
    return depth++, context != &thing;
}
int cuCtxPopCurrent_v2(void **context) {
    return *context = &thing, --depth < 0;
}
int cuStreamSynchronize(void *stream) {
    return stream == NULL ? 0 : 900; /* any other stream is being captured */
}
int cuMemcpyDtoHAsync_v2(void *host, uintptr_t device, size_t bytes, void *stream) {
    return (void)stream, memcpy(host, (const void *)device, bytes), depth < 1;
}
int cuMemcpyHtoDAsync_v2(uintptr_t device, const void *host, size_t bytes, void *stream) {
    return (void)stream, fake_num_sent++, memcpy((void *)device, host, bytes), depth < 1;
}

/*
 * The rest of what libattn looks up: memory that is the host's, of which the driver keeps a little for
 * itself, events that take no time and graphs that do nothing.
 */
EXPORT int cuCtxSynchronize(void);
EXPORT int cuMemGetInfo_v2(size_t *left, size_t *total);
EXPORT int cuMemAlloc_v2(uintptr_t *address, size_t bytes);
EXPORT int cuMemFree_v2(uintptr_t address);
EXPORT int cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t bytes, void *stream);
EXPORT int cuMemsetD8Async(uintptr_t to, unsigned char byte, size_t bytes, void *stream);
EXPORT int cuStreamCreate(void **stream, unsigned flags);
EXPORT int cuStreamDestroy_v2(void *stream);
EXPORT int cuEventCreate(void **event, unsigned flags);
EXPORT int cuEventDestroy_v2(void *event);
EXPORT int cuEventRecord(void *event, void *stream);
EXPORT int cuEventSynchronize(void *event);
EXPORT int cuEventElapsedTime(float *milliseconds, void *first, void *last);
EXPORT int cuStreamBeginCapture_v2(void *stream, int mode);
EXPORT int cuStreamEndCapture(void *stream, void **graph);
EXPORT int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags);
EXPORT int cuGraphDestroy(void *graph);
EXPORT int cuGraphLaunch(void *exec, void *stream);
EXPORT int cuGraphExecDestroy(void *exec);
EXPORT int cuStreamWaitEvent(void *stream, void *event, unsigned flags);
EXPORT int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority);
EXPORT int cuCtxGetStreamPriorityRange(int *least, int *greatest);

int cuCtxSynchronize(void) {
    return depth < 1;
}
int cuMemGetInfo_v2(size_t *left, size_t *total) {
    return *left = (size_t)1 << 30, *total = (size_t)141 << 30, depth < 1;
}
int cuMemAlloc_v2(uintptr_t *address, size_t bytes) {
    static void *volatile kept;
    static int count;
    if (is("keeping") && ++count % 8 == 0) kept = malloc(16);
    void *p = aligned_alloc(256, (bytes + 255) / 256 * 256);
    *address = (uintptr_t)p;
    return (void)kept, p == NULL || depth < 1;
}
int cuMemFree_v2(uintptr_t address) {
    return free((void *)address), depth < 1;
}
int cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t bytes, void *stream) {
    return (void)stream, memcpy((void *)to, (const void *)from, bytes), depth < 1;
}
int cuMemsetD8Async(uintptr_t to, unsigned char byte, size_t bytes, void *stream) {
    return (void)stream, memset((void *)to, byte, bytes), depth < 1;
}
int cuStreamCreate(void **stream, unsigned flags) {
    return *stream = &thing, flags != 1;
}
int cuStreamDestroy_v2(void *stream) {
    return stream != &thing;
}
int cuEventCreate(void **event, unsigned flags) {
    return *event = &thing, flags != 0;
}
int cuEventDestroy_v2(void *event) {
    return event != &thing;
}
int cuEventRecord(void *event, void *stream) {
    return (void)stream, event != &thing;
}
int cuEventSynchronize(void *event) {
    return event != &thing;
}
int cuEventElapsedTime(float *milliseconds, void *first, void *last) {
    return *milliseconds = 0, first != last;
}
int cuStreamBeginCapture_v2(void *stream, int mode) {
    return stream != &thing || mode > 1;
}
int cuStreamEndCapture(void *stream, void **graph) {
    return *graph = stream, 0;
}
int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) {
    return *exec = graph, flags != 0;
}
int cuGraphDestroy(void *graph) {
    return graph != &thing;
}
int cuGraphLaunch(void *exec, void *stream) {
    return exec != stream;
}
int cuGraphExecDestroy(void *exec) {
    return exec != &thing;
}
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    return stream != &thing || event != &thing || flags != 0 || depth < 1;
}
int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    return *least = 0, *greatest = -5, depth < 1;
}
int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    return *stream = &thing, flags != 1 || priority != -5;
}
