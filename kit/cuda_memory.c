/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_memory.c: GPU memory for the kit, through the CUDA driver found at run time. It is managed memory, which the
 * kit's checks can read and write on the host while no kernel runs. Also what the capture check needs of graphs.
 */
#include "check_cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* The driver calls that are used, with the driver's signatures (CUdevice is int, CUdeviceptr 64 bits). */
static struct {
    int (*init)(unsigned flags);
    int (*device_get)(int *device, int ordinal);
    int (*attribute)(int *value, int attribute, int device);
    int (*context_retain)(void **context, int device);
    int (*context_set)(void *context);
    int (*alloc)(unsigned long long *address, size_t bytes, unsigned flags);
    int (*free)(unsigned long long address);
    int (*sync)(void);
    int (*stream_create)(void **stream, unsigned flags);
    int (*begin_capture)(void *stream, int mode);
    int (*end_capture)(void *stream, void **graph);
    int (*instantiate)(void **exec, void *graph, unsigned long long flags);
    int (*launch)(void *exec, void *stream);
} cuda;
static const char *const driver_names[] = {"cuInit",
                                           "cuDeviceGet",
                                           "cuDeviceGetAttribute",
                                           "cuDevicePrimaryCtxRetain",
                                           "cuCtxSetCurrent",
                                           "cuMemAllocManaged",
                                           "cuMemFree_v2",
                                           "cuCtxSynchronize",
                                           "cuStreamCreate",
                                           "cuStreamBeginCapture_v2",
                                           "cuStreamEndCapture",
                                           "cuGraphInstantiateWithFlags",
                                           "cuGraphLaunch"};
enum { MANAGED_GLOBAL = 1, ATTRIBUTE_SMS = 16, ATTRIBUTE_MAJOR = 75, ATTRIBUTE_MINOR = 76 };

static void *context;
static int is_capturing;

static void *managed_alloc(void *ctx, size_t bytes, size_t alignment) {
    (void)ctx, (void)alignment; /* the driver aligns to 256 at least */
    unsigned long long address = 0;
    cuda.context_set(context);
    return cuda.alloc(&address, bytes != 0 ? bytes : 1, MANAGED_GLOBAL) == 0 ? (void *)(uintptr_t)address
                                                                             : NULL;
}
static void managed_free(void *ctx, void *p, size_t bytes) {
    (void)ctx, (void)bytes;
    cuda.context_set(context);
    if (p != NULL) cuda.free((unsigned long long)(uintptr_t)p);
}
static int managed_sync(void *ctx) {
    (void)ctx;
    if (is_capturing) return 0;
    cuda.context_set(context);
    return cuda.sync();
}
static int managed_copy(void *ctx, void *dst, const void *src, size_t bytes) {
    int status = managed_sync(ctx);
    if (bytes > 0) memcpy(dst, src, bytes);
    return status;
}

int cuda_memory_start(kit_memory_t *memory, int ordinal) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void **slots = (void **)&cuda; /* POSIX: a function pointer fits and is had from dlsym this way */
    if (library == NULL) return -1;
    for (size_t i = 0; i < sizeof driver_names / sizeof driver_names[0]; i++)
        if ((slots[i] = dlsym(library, driver_names[i])) == NULL) return -1;
    int device, major, minor, sms;
    if (cuda.init(0) != 0 || cuda.device_get(&device, ordinal) != 0 ||
        cuda.context_retain(&context, device) != 0 || cuda.context_set(context) != 0 ||
        cuda.attribute(&major, ATTRIBUTE_MAJOR, device) != 0 ||
        cuda.attribute(&minor, ATTRIBUTE_MINOR, device) != 0 ||
        cuda.attribute(&sms, ATTRIBUTE_SMS, device) != 0)
        return -1;
    *memory = (kit_memory_t){.device_type = kDLCUDA,
                             .device_id = ordinal,
                             .compute_capability = major * 10 + minor,
                             .num_sms = sms,
                             .alloc = managed_alloc,
                             .free = managed_free,
                             .to_device = managed_copy,
                             .from_device = managed_copy,
                             .sync = managed_sync};
    return 0;
}

/* In a child, because a process that has used the driver cannot fork checks that use it again. */
int cuda_memory_probe(kit_memory_t *memory, int ordinal) {
    int ends[2], status;
    struct {
        int32_t is_there, compute_capability, num_sms;
    } answer = {0, 0, 0};
    if (pipe(ends) != 0) return -1;
    pid_t child = fork();
    if (child == 0) {
        kit_memory_t m;
        if (cuda_memory_start(&m, ordinal) == 0)
            answer.is_there = 1, answer.compute_capability = m.compute_capability, answer.num_sms = m.num_sms;
        _exit(write(ends[1], &answer, sizeof answer) != sizeof answer);
    }
    close(ends[1]);
    ssize_t n = child > 0 ? read(ends[0], &answer, sizeof answer) : 0;
    close(ends[0]);
    if (child > 0) waitpid(child, &status, 0);
    if (n != sizeof answer || !answer.is_there) return -1;
    *memory = (kit_memory_t){.device_type = kDLCUDA,
                             .device_id = ordinal,
                             .compute_capability = answer.compute_capability,
                             .num_sms = answer.num_sms};
    return 0;
}

int cuda_stream(void **stream) {
    return cuda.stream_create(stream, 1);
} /* 1: does not wait for the default stream */

int cuda_record(void *stream, int (*work)(void *arg), void *arg, void **exec) {
    void *graph = NULL;
    int code = cuda.sync();
    if (code == 0)
        code = cuda.begin_capture(stream, 0); /* 0: global, every unsafe call of the process is an error */
    if (code != 0) return code;
    is_capturing = 1;
    int status = work(arg);
    is_capturing = 0;
    code = cuda.end_capture(stream, &graph);
    if (status != 0) return status;
    return code != 0 ? code : cuda.instantiate(exec, graph, 0);
}

int cuda_replay(void *exec, void *stream) {
    int code = cuda.launch(exec, stream);
    return code != 0 ? code : cuda.sync();
}
