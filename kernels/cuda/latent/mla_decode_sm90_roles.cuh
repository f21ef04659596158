/* SPDX-License-Identifier: Apache-2.0 */
/* Narrow decode tiles on Hopper: which warpgroup does what. */
#ifndef MLA_DECODE_SM90_ROLES_CUH
#define MLA_DECODE_SM90_ROLES_CUH

#include "mla_decode_sm90_narrow.cuh"

namespace attn_cuda {

/* The whole kernel for tiles of at most N rows: warpgroup 0 computes, a warp of 2 brings keys. smem: what
 * `queries` is the address of. */
template <int DT, int N>
ATTN_DEV void mla_narrow_run(const mla_decode_sm90_params &P, typename mla_narrow<N>::shared &sh,
                             uint8_t *smem, int wg, int item0, int item1) {
    using shape = mla_narrow<N>;
    const uint32_t queries = smem_addr(smem);
    pdl_launch();
    if (threadIdx.x == 0) shape::start(sh);
    __syncthreads();
    if (wg == 2) {
        setmaxnreg_dec<40>();
        if (threadIdx.x < MLA90_THREADS - 96)
            mla_narrow_produce<shape::SLOTS>(P, sh.full, sh.empty, queries + shape::RING_AT, item0, item1);
    } else if (wg == 0) {
        setmaxnreg_inc<232>();
        pdl_wait();
        mla_narrow_math<DT, N>(P.p, sh, queries).run(item0, item1);
    }
}

} /* namespace attn_cuda */
#endif
