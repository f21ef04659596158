/* SPDX-License-Identifier: Apache-2.0 */
/* Opening on a CUDA device: checks and the current device. */
#include "gpu_device.h"

#include "gpu_arch.h"

#include "kernels/library.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

/* What to do about the errors of an installation; "": nothing that is known. */
static const char *remedy_of(int code) {
    switch (code) {
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
        return "; the plugin was built for other GPUs: configure libattn with --with-cuda-arch naming "
               "this one";
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorInsufficientDriver:
        return "; the driver is older than the CUDA toolkit of the build: update it";
    default:
        return "";
    }
}

int gpu_fail(attn_error_t *error, int code, const char *what) {
    cudaGetLastError();
    return attn_fail(error, code == (int)cudaErrorMemoryAllocation ? ATTN_E_NO_MEMORY : ATTN_E_DEVICE,
                     "device", "%s failed: %s%s", what, cudaGetErrorString((cudaError_t)code),
                     remedy_of(code));
}

/* The driver's stack of contexts, which the runtime obeys. cudaSetDevice cannot put back that a thread had no
 * context: it would make one, on device 0, of half a gigabyte. */
static struct {
    int (*device_get)(int *device, int ordinal);
    int (*retain)(void **context, int device);
    int (*push)(void *context);
    int (*pop)(void **context);
} contexts;
static const char *missing_function;
static pthread_once_t contexts_once = PTHREAD_ONCE_INIT;

static void find_contexts(void) {
    static const char *const names[] = {"libcuda.so.1", NULL};
    const library_function wanted[] = {{"cuDeviceGet", &contexts.device_get},
                                       {"cuDevicePrimaryCtxRetain", &contexts.retain},
                                       {"cuCtxPushCurrent_v2", &contexts.push},
                                       {"cuCtxPopCurrent_v2", &contexts.pop}};
    void *library = library_open(names);
    missing_function =
        library == NULL ? "libcuda.so.1" : library_symbols(library, wanted, sizeof wanted / sizeof wanted[0]);
}

/* Pushes a device's primary context. It is retained once and for all, as the runtime does; a reset of the
 * device by other code invalidates it, and it is retained again. */
static int push_context(int device_id) {
    enum { MAX_DEVICES = 64 };
    static void *kept[MAX_DEVICES];
    void *context = device_id < MAX_DEVICES ? __atomic_load_n(&kept[device_id], __ATOMIC_ACQUIRE) : NULL;
    if (context != NULL && contexts.push(context) == 0) return 0;
    int device, code = contexts.device_get(&device, device_id);
    if (code == 0) code = contexts.retain(&context, device);
    if (code == 0) code = contexts.push(context);
    if (code == 0 && device_id < MAX_DEVICES) __atomic_store_n(&kept[device_id], context, __ATOMIC_RELEASE);
    return code;
}

int gpu_enter(int device_id, gpu_device_guard *guard, attn_error_t *error) {
    int current, code;
    guard->is_pushed = 0;
    const cudaError_t e = cudaGetDevice(&current);
    if (e != cudaSuccess) return gpu_fail(error, (int)e, "querying the current device");
    if (current == device_id) return ATTN_OK;
    pthread_once(&contexts_once, find_contexts);
    if (missing_function != NULL)
        return attn_fail(error, ATTN_E_DEVICE, "device", "the CUDA driver has no %s; update it",
                         missing_function);
    if ((code = push_context(device_id)) != 0)
        return attn_fail(error, ATTN_E_DEVICE, "device", "selecting cuda:%d failed: CUDA driver error %d",
                         device_id, code);
    guard->is_pushed = 1;
    return ATTN_OK;
}

void gpu_leave(const gpu_device_guard *guard) {
    void *ours;
    if (guard->is_pushed) contexts.pop(&ours);
}

int gpu_copy_to_device(int device_id, void *to, const void *from, size_t bytes, void *stream,
                       attn_error_t *error) {
    gpu_device_guard guard;
    int status = gpu_enter(device_id, &guard, error);
    if (status != ATTN_OK) return status;
    cudaError_t e = cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, (cudaStream_t)stream);
    gpu_leave(&guard);
    return e == cudaSuccess ? ATTN_OK : gpu_fail(error, (int)e, "copying the metadata");
}

int gpu_find_device(const attn_device_t *device, const char *backend, gpu_device *found,
                    attn_error_t *error) {
    if (device == NULL || device->type != (int)kDLCUDA)
        return attn_fail(error, ATTN_E_DEVICE, "device",
                         "%s runs on CUDA devices (type %d); type %d was given", backend, (int)kDLCUDA,
                         device != NULL ? (int)device->type : 0);
    int count = 0;
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e != cudaSuccess) {
        cudaGetLastError();
        return attn_fail(error, ATTN_E_DEVICE, "device",
                         "no usable CUDA driver or device (%s); install the driver or select another backend",
                         cudaGetErrorString(e));
    }
    if (device->id < 0 || device->id >= count)
        return attn_fail(error, ATTN_E_DEVICE, "device", "CUDA device %d is not present; there are %d",
                         (int)device->id, count);
    found->id = device->id;
    const struct {
        int *value;
        enum cudaDeviceAttr attribute;
    } wanted[] = {{&found->major, cudaDevAttrComputeCapabilityMajor},
                  {&found->minor, cudaDevAttrComputeCapabilityMinor},
                  {&found->num_sms, cudaDevAttrMultiProcessorCount},
                  {&found->smem_optin, cudaDevAttrMaxSharedMemoryPerBlockOptin},
                  {&found->smem_per_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        e = cudaDeviceGetAttribute(wanted[i].value, wanted[i].attribute, found->id);
        if (e != cudaSuccess) return gpu_fail(error, (int)e, "querying a device attribute");
    }
    /* A caller may leave some to others. */
    if (device->num_sms > 0 && device->num_sms < found->num_sms) found->num_sms = device->num_sms;
    found->has_sm90a = found->major == 9 && found->minor == 0 && gpu_arch_names(gpu_archs(), "90a");
    return ATTN_OK;
}
