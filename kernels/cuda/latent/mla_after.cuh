/* SPDX-License-Identifier: Apache-2.0 */
/* Launch of a kernel that may start while the one before it ends (programmatic dependent launch): it calls
 * pdl_wait() before it touches what that one reads or writes. */
#ifndef MLA_AFTER_CUH
#define MLA_AFTER_CUH

#include "../ptx/ptx_sm80.cuh"

#include <cuda_runtime.h>

namespace attn_cuda {

template <class Params>
int launch_after(void (*kernel)(Params), dim3 grid, int threads, size_t smem, cudaStream_t stream,
                 const Params &params) {
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute a = {};
    c.gridDim = grid, c.blockDim = dim3((unsigned)threads), c.dynamicSmemBytes = smem, c.stream = stream;
    a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a.val.programmaticStreamSerializationAllowed = 1;
    c.attrs = &a, c.numAttrs = 1;
    return (int)cudaLaunchKernelEx(&c, kernel, params);
}

} /* namespace attn_cuda */
#endif
