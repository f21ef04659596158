/* SPDX-License-Identifier: Apache-2.0 */
/* Launch of a kernel that may start while the one before it ends (programmatic dependent launch): all its
 * blocks call pdl_wait() before they touch what that one reads or writes. Devices before Hopper, where
 * pdl_wait() is nothing, start it as any other: who opened a problem knows which it is on. */
#ifndef CUDA_LAUNCH_AFTER_CUH
#define CUDA_LAUNCH_AFTER_CUH

#include "ptx_sm80.cuh"

#include <cuda_runtime.h>

namespace attn_cuda {

/* Whether the current device can, for calls that belong to no opened problem: two queries of the runtime. */
inline bool can_start_early() {
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           major >= 9;
}

template <class Params>
int launch_after(void (*kernel)(Params), dim3 grid, int threads, size_t smem, void *stream,
                 const Params &params, bool is_early) {
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute a = {};
    c.gridDim = grid, c.blockDim = dim3((unsigned)threads), c.dynamicSmemBytes = smem;
    c.stream = (cudaStream_t)stream;
    if (is_early) {
        a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        a.val.programmaticStreamSerializationAllowed = 1;
        c.attrs = &a, c.numAttrs = 1;
    }
    return (int)cudaLaunchKernelEx(&c, kernel, params);
}

} /* namespace attn_cuda */
#endif
