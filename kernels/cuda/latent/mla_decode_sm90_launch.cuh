/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of the Hopper decode kernels: clusters of CTAS, and a start while the kernel before is ending. */
#ifndef MLA_DECODE_SM90_LAUNCH_CUH
#define MLA_DECODE_SM90_LAUNCH_CUH

#include "mla_decode_sm90.h"

#include <cuda_runtime.h>

namespace attn_cuda {

/* Calls use(configuration); parts 0: the configuration of a query. is_early: it starts while the kernel
 * before is ending. */
template <class Use>
int mla_decode90_configure(int ctas, int cluster, int parts, int threads, int smem, int is_early,
                           cudaStream_t stream, Use use) {
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute a[2] = {};
    c.gridDim = dim3((unsigned)((parts > 0 ? parts : 1) * ctas)), c.blockDim = dim3((unsigned)threads);
    c.dynamicSmemBytes = (size_t)smem, c.stream = stream, c.attrs = a;
    if (cluster > 1) {
        a[c.numAttrs].id = cudaLaunchAttributeClusterDimension;
        a[c.numAttrs].val.clusterDim.x = (unsigned)cluster;
        a[c.numAttrs].val.clusterDim.y = a[c.numAttrs].val.clusterDim.z = 1;
        c.numAttrs++;
    }
    if (is_early) {
        a[c.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        a[c.numAttrs].val.programmaticStreamSerializationAllowed = 1;
        c.numAttrs++;
    }
    return (int)use(&c);
}

/* params NULL: prepares only. */
template <class Kernel>
int mla_decode90_start(Kernel kernel, const mla_decode_sm90_params *P, int ctas, int cluster, int parts,
                       int threads, int smem, void *stream) {
    if (!P) return (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    return mla_decode90_configure(
        ctas, cluster, parts, threads, smem, !P->p.in_order, (cudaStream_t)stream,
        [&](const cudaLaunchConfig_t *c) { return cudaLaunchKernelEx(c, kernel, *P); });
}

} /* namespace attn_cuda */
#endif
