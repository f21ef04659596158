/* SPDX-License-Identifier: Apache-2.0 */
/* Sparse latent attention on Hopper (semantics 9.2): persistent CTAs of two math and two gathering warpgroups
 * go through the items of a slice, 64 rows of one token each, 128 with a neighbour. What is less than 64 rows
 * is padded with zero queries. */
#ifndef SPARSE_ATTEND_SM90_CUH
#define SPARSE_ATTEND_SM90_CUH

#include "../ptx/launch_after.cuh"
#include "../ptx/launch.cuh"
#include "sparse_attend_sm90_gather.cuh"
#include "sparse_attend_sm90.h"
#include "sparse_attend_sm90_math.cuh"

#include <cuda_runtime.h>

namespace attn_cuda {

template <int DT, bool DS>
__global__ void __launch_bounds__(SPARSE_THREADS, 1)
    sparse90_kernel(const __grid_constant__ mla_attend_params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) /* empty where only other architectures were asked for */
    extern __shared__ __align__(1024) unsigned char raw[];
    const sparse_smem sm(raw);
    pdl_launch(); /* the merge; its CTAs find room as ours end */
    if (threadIdx.x == 0) {
        constexpr int WARPS = SPARSE_GATHER_THREADS / 32,
                      COPIES = sparse_gather<DT, DS>::ROPE_COPIES ? SPARSE_GATHER_THREADS : 0;
        for (int b = 0; b < 2; b++) {
            mbar_init(sm.full(b, 0), DS ? WARPS : SPARSE_GATHER_THREADS + WARPS);
            mbar_init(sm.full(b, 1), DS ? WARPS + COPIES : SPARSE_GATHER_THREADS);
            mbar_init(sm.empty(b, 0), 4);
            mbar_init(sm.empty(b, 1), 4);
        }
        mbar_init(sm.q_full(), SPARSE_GATHER_THREADS + 1);
        mbar_init(sm.q_empty(), 8);
        mbar_init_fence();
    }
    __syncthreads();
    /* 512 registers in all; widening takes many, and so has the right warpgroup multiply alone */
    const int group = threadIdx.x >> 7;
    if (group >= 2) {
        setmaxnreg_dec<DS ? 80 : 48>();
        sparse_gather<DT, DS>(p, sm).run();
    } else if (group == 0) {
        setmaxnreg_inc<DS ? 192 : 208>();
        sparse_math<DT, 0, !DS>(p, sm).run();
    } else {
        setmaxnreg_inc<DS ? 160 : 208>();
        sparse_math<DT, 1, !DS>(p, sm).run();
    }
#endif
}

template <int DT, bool DS>
int sparse90_run(const mla_attend_params *p, int num_items, int ctas, void *stream) {
    auto kernel = sparse90_kernel<DT, DS>;
    if (num_items == 0)
        return (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SPARSE_SMEM);
    /* beside the end of an absorption, while lists are packed and keys fetched */
    return p->in_order ? launch_kernel(kernel, (unsigned)ctas, SPARSE_THREADS, SPARSE_SMEM, stream, *p)
                       : launch_after(kernel, dim3((unsigned)ctas), SPARSE_THREADS, SPARSE_SMEM,
                                      (cudaStream_t)stream, *p, true);
}

} /* namespace attn_cuda */
#endif
