/* SPDX-License-Identifier: Apache-2.0 */
/* Opening on a CUDA device: checks and the current device. */
#include "gpu_device.h"

#include "gpu_arch.h"

#include <cuda_runtime_api.h>

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

int gpu_enter(int device_id, gpu_device_guard *guard, attn_error_t *error) {
    guard->changed = 0;
    cudaError_t e = cudaGetDevice(&guard->previous);
    if (e == cudaSuccess && guard->previous != device_id) {
        e = cudaSetDevice(device_id);
        guard->changed = e == cudaSuccess;
    }
    return e == cudaSuccess ? ATTN_OK : gpu_fail(error, (int)e, "selecting the device");
}

void gpu_leave(const gpu_device_guard *guard) {
    if (guard->changed) cudaSetDevice(guard->previous);
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
        if (e != cudaSuccess) return gpu_fail(error, (int)e, "asking for a device attribute");
    }
    found->has_sm90a = found->major == 9 && found->minor == 0 && gpu_arch_names(gpu_archs(), "90a");
    return ATTN_OK;
}
