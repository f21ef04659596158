/* SPDX-License-Identifier: Apache-2.0 */
/* Decode over e4m3 caches on Hopper: raw bytes that ldmatrix has read become A fragments of wgmma in float16,
 * in which every e4m3 number is exact. */
#ifndef MLA_DECODE_SM90_E4M3_WIDEN_CUH
#define MLA_DECODE_SM90_E4M3_WIDEN_CUH

#include "mla_decode_sm90_e4m3_ring.cuh"

namespace attn_cuda {

/* Bytes of columns 16 c .. 16 c + 32 of the warp's 16 keys as A fragments of two steps. */
ATTN_DEV void mla90_widen_keys(uint32_t *a, const uint32_t (&x)[4]) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
        a[4 * k] = e4m3x2_to_f16x2<0>(x[2 * k]), a[4 * k + 1] = e4m3x2_to_f16x2<0>(x[2 * k + 1]);
        a[4 * k + 2] = e4m3x2_to_f16x2<1>(x[2 * k]), a[4 * k + 3] = e4m3x2_to_f16x2<1>(x[2 * k + 1]);
    }
}
/* Bytes of 32 keys in 16 value columns, which came transposed in pairs of columns: fragment row g is column
 * 2g, row g + 8 column 2g + 1. */
ATTN_DEV void mla90_widen_values(uint32_t *a, const uint32_t (&x)[4]) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint32_t y = prmt(x[k], 0, 0x3120);
        a[2 * k] = e4m3x2_to_f16x2<0>(y), a[2 * k + 1] = e4m3x2_to_f16x2<1>(y);
    }
}
/* The fragments of a product that is over: they are not written before this point. */
ATTN_DEV void mla90_pin(uint32_t (&a)[16]) {
#pragma unroll
    for (int i = 0; i < 16; i++)
        asm volatile("" : "+r"(a[i])::"memory");
}

/* D += A B of 64 rows of B's slab, A in four fragments of 16; `fresh`: D = A B. Committed as one group. */
template <int N>
ATTN_DEV void mla90_multiply_raw(float (&d)[N / 2], const uint32_t (&a)[16], uint64_t b, bool fresh = false) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (fresh && k == 0)
            wgmma_rkz<N, DT_F16>::run(d, a, b);
        else
            wgmma_rk<N, DT_F16>::run(d, a + 4 * k, b + 2 * k);
    wgmma_commit();
}

/* By one warpgroup: value rows of a raw block from `first` on become zero: 0 * NaN is NaN. Each warp takes
 * the 16 rows whose scores it has made; another may still be reading its own. */
ATTN_DEV void mla90_clean_raw(uint32_t raw, int first) {
    const int own = (threadIdx.x >> 5 & 3) * 16, from = first > own ? first : own;
    for (int i = threadIdx.x & 31; i < (own + 16 - from) * 32; i += 32)
        st_shared_v4(raw + mla90_raw_at(from + (i >> 5), i & 31), make_uint4(0, 0, 0, 0));
    fence_proxy_async();
}

} /* namespace attn_cuda */
#endif
