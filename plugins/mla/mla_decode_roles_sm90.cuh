/* SPDX-License-Identifier: Apache-2.0 */
/* Narrow decode tiles on Hopper: which warpgroup does what, and the kernel for caches of e4m3. */
#ifndef MLA_DECODE_ROLES_SM90_CUH
#define MLA_DECODE_ROLES_SM90_CUH

#include "mla_decode_narrow_sm90.cuh"

namespace attn_cuda {

/* The whole kernel for narrow tiles; the CTA has rows rank_row .. rank_row + N of an item. Warpgroup 0 computes, 1 widens
 * e4m3, a warp of 2 brings keys. */
template <int DT, int N, bool E4M3>
ATTN_DEV void mla_narrow_run(const mla_decode_sm90_params &P, typename mla_narrow<N, E4M3>::shared &sh,
                             uint32_t queries, int wg, int rank_row, int item0, int item1) {
    using shape = mla_narrow<N, E4M3>;
    pdl_launch();
    if (threadIdx.x == 0) shape::start(sh);
    __syncthreads();
    if (wg == 2) {
        setmaxnreg_dec<40>();
        if (threadIdx.x >= MLA90_THREADS - 96) return;
        if constexpr (E4M3)
            mla_narrow_produce<shape::RAW_SLOTS, shape::RAW_SLAB>(
                P, sh.raw_full, sh.raw_empty, queries + shape::RAW_AT, rank_row, item0, item1);
        else
            mla_narrow_produce<shape::SLOTS, MLA90_SLAB>(P, sh.full, sh.empty, queries + shape::RING_AT,
                                                         rank_row, item0, item1);
    } else {
        setmaxnreg_inc<232>();
        pdl_wait();
        if (wg == 0)
            mla_narrow_math<DT, N, E4M3>(P.p, sh, queries).run(rank_row, item0, item1);
        else if constexpr (E4M3)
            mla_narrow_widen<shape>(P.p, sh, queries, rank_row, item0, item1);
    }
}

/* Caches of e4m3: narrow tiles alone; the P.ctas CTAs of a part have 32 rows each of its items. */
template <int DT>
__global__ void __launch_bounds__(MLA90_THREADS, 1)
    mla_decode90_e4m3_kernel(const __grid_constant__ mla_decode_sm90_params P) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) /* empty where only other architectures were asked for */
    extern __shared__ __align__(1024) uint8_t smem_raw[];
    __shared__ __align__(8) union {
        mla_narrow<16, true>::shared n16;
        mla_narrow<32, true>::shared n32;
    } sh;
    const uint32_t queries = (smem_addr(smem_raw) + 1023) & ~1023u;
    const int wg = __shfl_sync(~0u, (int)threadIdx.x >> 7, 0), part = blockIdx.x / P.ctas,
              rank = blockIdx.x - part * P.ctas;
    const int item0 = __ldg(P.p.parts + part), item1 = __ldg(P.p.parts + part + 1);
    if (__ldg(&P.p.slice->most_rows) <= 16)
        mla_narrow_run<DT, 16, true>(P, sh.n16, queries, wg, rank * 32, item0, item1);
    else
        mla_narrow_run<DT, 32, true>(P, sh.n32, queries, wg, rank * 32, item0, item1);
#endif
}

} /* namespace attn_cuda */
#endif
