/* SPDX-License-Identifier: Apache-2.0 */
/* A launch whose result is that of the launch. kernel<<<..>>>() returns nothing, and cudaGetLastError() after
 * it would report, and clear, an error that the engine has left pending for itself. */
#ifndef CUDA_LAUNCH_CUH
#define CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

namespace attn_cuda {

/* cudaSuccess or why the launch failed. Arguments convert to the kernel's parameters as in a call. */
template <class... Params, class... Args>
int launch_kernel(void (*kernel)(Params...), dim3 grid, dim3 block, size_t smem, void *stream,
                  const Args &...args) {
    cudaLaunchConfig_t c = {};
    c.gridDim = grid, c.blockDim = block, c.dynamicSmemBytes = smem, c.stream = (cudaStream_t)stream;
    return (int)cudaLaunchKernelEx(&c, kernel, args...);
}

} /* namespace attn_cuda */
#endif
