/* SPDX-License-Identifier: Apache-2.0 */
/* layer_fake_driver.c: a CUDA driver with two devices of its own imagination, whose memory is the host's; $ATTN_FAKE_DRIVER
 * makes it fail, or keep memory for itself. */
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

EXPORT extern int fake_num_sent;
int fake_num_sent; /* copies to a device */
static int depth;  /* of the stack of contexts */

int cuDevicePrimaryCtxRetain(void **context, int device) {
    return (void)device, *context = &depth, 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    return (void)device, depth; /* what was pushed must have been popped */
}
int cuCtxPushCurrent_v2(void *context) {
    return context != &depth || depth++ != 0;
}
int cuCtxPopCurrent_v2(void **context) {
    return *context = &depth, --depth != 0;
}
int cuStreamSynchronize(void *stream) {
    return stream == NULL ? 0 : 900; /* any other stream is being captured */
}
int cuMemcpyDtoHAsync_v2(void *host, uintptr_t device, size_t bytes, void *stream) {
    return (void)stream, memcpy(host, (const void *)device, bytes), depth != 1;
}
int cuMemcpyHtoDAsync_v2(uintptr_t device, const void *host, size_t bytes, void *stream) {
    return (void)stream, fake_num_sent++, memcpy((void *)device, host, bytes), depth != 1;
}

/* For the conformance kit: managed memory, of which the driver keeps a little for itself, and graphs that do nothing. */
EXPORT int cuCtxSetCurrent(void *context);
EXPORT int cuMemAllocManaged(uintptr_t *address, size_t bytes, unsigned flags);
EXPORT int cuMemFree_v2(uintptr_t address);
EXPORT int cuCtxSynchronize(void);
EXPORT int cuStreamCreate(void **stream, unsigned flags);
EXPORT int cuStreamBeginCapture_v2(void *stream, int mode);
EXPORT int cuStreamEndCapture(void *stream, void **graph);
EXPORT int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags);
EXPORT int cuGraphLaunch(void *exec, void *stream);

int cuCtxSetCurrent(void *context) {
    return context != &depth;
}
int cuMemAllocManaged(uintptr_t *address, size_t bytes, unsigned flags) {
    static void *volatile kept;
    static int count;
    if (is("keeping") && ++count % 8 == 0) kept = malloc(16);
    void *p = aligned_alloc(256, (bytes + 255) / 256 * 256);
    *address = (uintptr_t)p;
    return (void)kept, p == NULL || flags != 1;
}
int cuMemFree_v2(uintptr_t address) {
    return free((void *)address), 0;
}
int cuCtxSynchronize(void) {
    return 0;
}
int cuStreamCreate(void **stream, unsigned flags) {
    return *stream = &depth, flags != 1;
}
int cuStreamBeginCapture_v2(void *stream, int mode) {
    return stream != &depth || mode != 0;
}
int cuStreamEndCapture(void *stream, void **graph) {
    return *graph = stream, 0;
}
int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) {
    return *exec = graph, flags != 0;
}
int cuGraphLaunch(void *exec, void *stream) {
    return exec != stream;
}
