/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_driver.c: opens libcuda.so.1 and looks its functions up, once in a process. */
#include "device/cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>

/* In the order of the struct. */
static const char *const names[] = {"cuInit",
                                    "cuDeviceGetCount",
                                    "cuDeviceGet",
                                    "cuDeviceGetAttribute",
                                    "cuDeviceTotalMem_v2",
                                    "cuDeviceGetName",
                                    "cuDevicePrimaryCtxRetain",
                                    "cuCtxPushCurrent_v2",
                                    "cuCtxPopCurrent_v2",
                                    "cuCtxSynchronize",
                                    "cuMemGetInfo_v2",
                                    "cuMemAlloc_v2",
                                    "cuMemFree_v2",
                                    "cuMemcpyHtoDAsync_v2",
                                    "cuMemcpyDtoHAsync_v2",
                                    "cuMemcpyDtoDAsync_v2",
                                    "cuMemsetD8Async",
                                    "cuStreamCreate",
                                    "cuStreamDestroy_v2",
                                    "cuStreamSynchronize",
                                    "cuEventCreate",
                                    "cuEventDestroy_v2",
                                    "cuEventRecord",
                                    "cuEventSynchronize",
                                    "cuEventElapsedTime",
                                    "cuStreamBeginCapture_v2",
                                    "cuStreamEndCapture",
                                    "cuGraphInstantiateWithFlags",
                                    "cuGraphDestroy",
                                    "cuGraphLaunch",
                                    "cuGraphExecDestroy",
                                    "cuStreamWaitEvent",
                                    "cuStreamCreateWithPriority",
                                    "cuCtxGetStreamPriorityRange"};
enum { NUM_NAMES = sizeof names / sizeof names[0] };
_Static_assert(sizeof(struct attni_cuda_driver) == NUM_NAMES * sizeof(void *), "a name for each function");

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void *library;
static struct attni_cuda_driver driver;
static attn_error_t failure = {.struct_size = sizeof failure};

static void open_driver(void) {
    void *symbols[NUM_NAMES];
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        attn_fail(&failure, ATTN_E_DEVICE, "device",
                  "no CUDA driver: %s; install the NVIDIA driver or use device cpu", dlerror());
        return;
    }
    for (size_t i = 0; i < NUM_NAMES; i++) {
        symbols[i] = dlsym(library, names[i]);
        if (symbols[i] != NULL) continue;
        attn_fail(&failure, ATTN_E_DEVICE, "device",
                  "unusable driver: libcuda.so.1 has no function %s; update the NVIDIA driver", names[i]);
        return;
    }
    /* POSIX lets dlsym's pointers be functions; C has no cast that says so. */
    memcpy(&driver, symbols, sizeof driver);
}

const struct attni_cuda_driver *attni_cuda_driver(attn_error_t *error) {
    pthread_once(&once, open_driver);
    if (failure.code == ATTN_OK) return &driver;
    attn_fail(error, failure.code, failure.param, "%s", failure.text);
    return NULL;
}

void *attni_cuda_function(const char *name) {
    pthread_once(&once, open_driver);
    return library != NULL ? dlsym(library, name) : NULL;
}
