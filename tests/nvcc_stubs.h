/* SPDX-License-Identifier: Apache-2.0 */
/* What the stubs that nvcc writes call, for programs in which something else than CUDA's runtime answers:
 * binaries are not looked at. Where this is included, the others are defined. */
#ifndef TESTS_NVCC_STUBS_H
#define TESTS_NVCC_STUBS_H

#include <cuda_runtime_api.h>

void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit,
                            void *a, void *b, void *c, void *d, int *e);
cudaError_t __cudaGetKernel(const void **kernel, const void *host);
cudaError_t __cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **args, size_t shared,
                               void *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream);

void **__cudaRegisterFatBinary(void *binary) {
    static void *handle;
    return handle = binary, &handle;
}
void __cudaRegisterFatBinaryEnd(void **handle) {
    (void)handle;
}
void __cudaUnregisterFatBinary(void **handle) {
    (void)handle;
}
cudaError_t __cudaGetKernel(const void **kernel, const void *host) {
    return *kernel = host, cudaSuccess;
}
cudaError_t __cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **args, size_t shared,
                               void *stream) {
    return cudaLaunchKernel(kernel, grid, block, args, shared, (cudaStream_t)stream);
}

#endif
