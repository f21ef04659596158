/* SPDX-License-Identifier: Apache-2.0 */
/* The copiers of triton_prefill_split_sm90.cuh for rows of fewer than 16 bits: they come to shared memory as
 * they are, a tile ahead, and are widened from there (raw_copier, by format). */
#ifndef TRITON_SPLIT_RAW_CUH
#define TRITON_SPLIT_RAW_CUH

#if TL_PACKED
#include "triton_split_packed.cuh"
#elif TL_FP4
#include "triton_split_fp4.cuh"
#else
#include "triton_split_rows.cuh"
#endif

namespace attn_cuda {
namespace prefill {

/* The barrier says that a tile's rows are there, and that all have done with those of the one before, whose
 * place the next ones take. */
ATTN_DEV void copy_tiles(const triton_params_t &p, const block_view &b, uint32_t base, float *scales,
                         tile_ring ring) {
    const key_walk &walk = b.walk;
    const key_source keys(p, b);
    raw_copier copier(p, b, base, scales, FACTOR_COPIED ? tile_rule(p, b.head).factor : 1.f);
    ring_place place;
    int k0 = walk.begin, next = walk.next<BN>(k0), next_page = keys.page(walk, next), raw = 0;
    copier.ask(0, k0, keys.page(walk, k0));
#pragma unroll 1
    for (; k0 < walk.hi; raw ^= 1) {
        cp_async_wait<0>();
        named_barrier(2, THREADS);
        if (next < walk.hi) copier.ask(raw ^ 1, next, next_page);
        const int now = k0;
        k0 = next, next = walk.next<BN>(k0), next_page = keys.page(walk, next);
        mbar_wait(ring.empty + 8 * place.stage, place.phase ^ 1);
        copier.widen(raw, place.stage, now);
        fence_proxy_async();
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbar_arrive(ring.full + 8 * place.stage);
        place.next();
    }
}

/* Columns of O in their order: places 2 q and 2 q + 1 of eight hold columns q and q + 4. */
template <int N>
ATTN_DEV void order_values(float (&o)[N]) {
    const int q = threadIdx.x & 3, from = (threadIdx.x & 28) | (2 * q & 3);
#if TL_PACKED
    const float by = packed::masked_factor(q);
#else
    const float by = 1.f;
#endif
#pragma unroll
    for (int i = 0; i < N; i += 2) {
        const float a = o[i] * by, d = o[i + 1] * by;
        const float a0 = __shfl_sync(~0u, a, from), d0 = __shfl_sync(~0u, d, from),
                    a1 = __shfl_sync(~0u, a, from + 1), d1 = __shfl_sync(~0u, d, from + 1);
        o[i] = q < 2 ? a0 : d0, o[i + 1] = q < 2 ? a1 : d1;
    }
}

} /* namespace prefill */
} /* namespace attn_cuda */
#endif
