/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_memory.h: plain device memory for the cases of kit/case/attn_case.h, and what is known of device 0. The
 * kit's own checks have it from the table of its kind (kit/case/case_device.c). */
#ifndef ATTN_TESTS_GPU_MEMORY_H
#define ATTN_TESTS_GPU_MEMORY_H

#include "kit/case/attn_case.h"

#include <cuda_runtime_api.h>

static void *gpu_alloc(void *ctx, size_t bytes, size_t alignment) {
    (void)ctx, (void)alignment; /* cudaMalloc aligns to 256 */
    void *p = NULL;
    return cudaMalloc(&p, bytes ? bytes : 1) == cudaSuccess ? p : NULL;
}
static void gpu_free(void *ctx, void *p, size_t bytes) {
    (void)ctx, (void)bytes;
    cudaFree(p);
}
static int to_device(void *ctx, void *dst, const void *src, size_t bytes) {
    (void)ctx;
    return cudaMemcpy(dst, src, bytes, cudaMemcpyHostToDevice) != cudaSuccess;
}
static int from_device(void *ctx, void *dst, const void *src, size_t bytes) {
    (void)ctx;
    return cudaMemcpy(dst, src, bytes, cudaMemcpyDeviceToHost) != cudaSuccess;
}
static int gpu_sync(void *ctx) {
    (void)ctx;
    return cudaDeviceSynchronize() != cudaSuccess;
}
static kit_memory_t gpu = {.device_type = kDLCUDA,
                           .alloc = gpu_alloc,
                           .free = gpu_free,
                           .to_device = to_device,
                           .from_device = from_device,
                           .sync = gpu_sync};

/* Fills what is known of device 0; -1 where there is none. */
static int gpu_start(void) {
    int count = 0, major = 0, minor = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return -1;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    cudaDeviceGetAttribute(&gpu.num_sms, cudaDevAttrMultiProcessorCount, 0);
    gpu.compute_capability = major * 10 + minor;
    return 0;
}

#endif
