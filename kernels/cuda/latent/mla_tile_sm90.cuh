/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of Hopper's latent attention (head size 576, value 512) that every source of keys shares: one tile
 * is 64 query rows against 64 keys, held by two warpgroups of which each owns half of the value columns.
 *
 * Shared memory is in slabs of 64 columns: [64 rows][128 bytes], 128-byte swizzle, 8 KiB. Queries and keys
 * have nine (eight of the latent, one of the rope), P has one. Values are the first eight slabs of the keys,
 * read MN-major. */
#ifndef MLA_TILE_SM90_CUH
#define MLA_TILE_SM90_CUH

#include "../ptx/ptx_sm90.cuh"

/* The includer brings wgmma_sm90.cuh of gen_wgmma.sh before this file. */
namespace attn_cuda {

constexpr int MLA90_SLAB = 64 * 128, MLA90_SLABS = 9, MLA90_VALUE_SLABS = 8;
constexpr int MLA90_ROWS = 64, MLA90_KEYS = 64, MLA90_TILE = MLA90_SLAB * MLA90_SLABS;
constexpr float MLA90_NO_MAX = LOWEST;    /* finite, so that no inf - inf appears */
constexpr float MLA90_NO_ROW = 8388608.f; /* a row that does not exist: P = 0, and it is not deep */

/* Byte offset of 16-byte chunk `chunk` (0..71) of row `row` in a tile of slabs. */
ATTN_DEV uint32_t mla90_at(int row, int chunk) {
    return (uint32_t)((chunk >> 3) * MLA90_SLAB + row * 128 + (((chunk & 7) ^ (row & 7)) << 4));
}

/* S (+)= Q K^T over slabs FROM <= i < TO; FROM = 0 starts afresh. Committed as one group. */
template <int DT, int FROM, int TO>
ATTN_DEV void mla90_scores(float (&s)[32], uint32_t queries, uint32_t keys) {
    const uint64_t qd = wgmma_desc(queries, 16, 1024), kd = wgmma_desc(keys, 16, 1024);
    wgmma_fence();
#pragma unroll
    for (int i = FROM * 4; i < TO * 4; i++) {
        const uint64_t at = (uint64_t)((i >> 2) * (MLA90_SLAB >> 4) + (i & 3) * 2);
        if (i == 0)
            wgmma_ssz<64, DT>::run(s, qd, kd);
        else
            wgmma_ss<64, DT>::run(s, qd + at, kd + at);
    }
    wgmma_commit();
}

ATTN_DEV uint64_t mla90_values(uint32_t keys, int half) {
    return wgmma_desc(keys + half * 4 * MLA90_SLAB, MLA90_SLAB, 1024);
}
/* O half += P V half, P in registers (A fragments of mla90_softmax). Committed as one group. N: columns of an
 * instruction; 256 does not assemble in kernels of 512 threads, whose register cap at launch is 128. */
template <int DT, int N = 256>
ATTN_DEV void mla90_add_own(float (&o)[128], const uint32_t (&p)[16], uint32_t keys, int half) {
    const uint64_t vd = mla90_values(keys, half);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int n = 0; n < 256; n += N)
            wgmma_rs<N, DT>::run(reinterpret_cast<float(&)[N / 2]>(o[n / 2]), p + 4 * k,
                                 vd + k * 128 + n / 64 * (MLA90_SLAB >> 4));
    wgmma_commit();
}
/* The same with the other warpgroup's P, from shared memory. */
template <int DT, int N = 256>
ATTN_DEV void mla90_add_other(float (&o)[128], uint32_t probabilities, uint32_t keys, int half) {
    const uint64_t vd = mla90_values(keys, half), pd = wgmma_desc(probabilities, 16, 1024);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int n = 0; n < 256; n += N)
            wgmma_sst<N, DT>::run(reinterpret_cast<float(&)[N / 2]>(o[n / 2]), pd + k * 2,
                                  vd + k * 128 + n / 64 * (MLA90_SLAB >> 4));
    wgmma_commit();
}

/* Running state of the two rows of a thread (lane / 4, and 8 further down). `top` is in log2 units and lags
 * up to 8 behind the true maximum (lazy rescale): both warpgroups agree on it through shared memory. */
struct mla90_state {
    float top[2], sum[2];
    bool deep; /* a row is: its blocks go the way of those that raise a top */
};

/* One block of scores: chooses the tops, makes 2^(s * scale - top) as A fragments, adds up; returns the
 * factors of what was added before. Scores of keys that are not seen are -inf. scale > 0 holds log2(e). A
 * row's four threads compare their maxima only where one of the warp moves a top: shuffles wait behind the
 * gathering warps' copies. */
template <int DT>
ATTN_DEV float2 mla90_softmax(float (&s)[32], mla90_state &st, float scale, uint32_t (&p)[16]) {
    float a[4] = {fmaxf(s[0], s[1]), fmaxf(s[2], s[3]), fmaxf(s[4], s[5]), fmaxf(s[6], s[7])};
#pragma unroll
    for (int i = 4; i < 16; i++)
        a[i & 3] = fmaxf(a[i & 3], fmaxf(s[2 * i], s[2 * i + 1]));
    float a0 = fmaxf(a[0], a[2]), a1 = fmaxf(a[1], a[3]);
    float2 f = make_float2(1.f, 1.f);
    float top0 = st.top[0], top1 = st.top[1];
    if (__any_sync(~0u, st.deep || a0 * scale > top0 + 8.f || a1 * scale > top1 + 8.f)) {
        a0 = fmaxf(a0, __shfl_xor_sync(~0u, a0, 1));
        a1 = fmaxf(a1, __shfl_xor_sync(~0u, a1, 1));
        a0 = __fmul_rn(fmaxf(a0, __shfl_xor_sync(~0u, a0, 2)), scale);
        a1 = __fmul_rn(fmaxf(a1, __shfl_xor_sync(~0u, a1, 2)), scale);
        a0 = a0 - st.top[0] > 8.f ? a0 : st.top[0];
        a1 = a1 - st.top[1] > 8.f ? a1 : st.top[1];
        f = make_float2(ex2(st.top[0] - a0), ex2(st.top[1] - a1));
        st.top[0] = a0, st.top[1] = a1;
        top0 = a0, top1 = a1;
        st.deep = is_deep(a0) || is_deep(a1);
        if (__any_sync(~0u, st.deep)) {
            const float inverse = 1.f / scale;
#pragma unroll
            for (int i = 0; i < 32; i++)
                s[i] = (__fmul_rn(s[i], scale) - (i & 2 ? a1 : a0)) * inverse;
            top0 = top1 = 0.f;
        }
    }
    float t0 = 0.f, t1 = 0.f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float e0 = ex2(fmaf(s[4 * i], scale, -top0)), e1 = ex2(fmaf(s[4 * i + 1], scale, -top0)),
                    e2 = ex2(fmaf(s[4 * i + 2], scale, -top1)), e3 = ex2(fmaf(s[4 * i + 3], scale, -top1));
        t0 += e0, t1 += e2;
        t0 += e1, t1 += e3;
        p[2 * i] = pack2<DT>(e0, e1);
        p[2 * i + 1] = pack2<DT>(e2, e3);
    }
    st.sum[0] = st.sum[0] * f.x + t0;
    st.sum[1] = st.sum[1] * f.y + t1;
    return f;
}

/* Takes the tops that the other warpgroup chose; returns the factors. */
ATTN_DEV float2 mla90_follow(mla90_state &st, float top0, float top1) {
    const float2 f = make_float2(ex2(st.top[0] - top0), ex2(st.top[1] - top1));
    st.top[0] = top0, st.top[1] = top1;
    st.sum[0] *= f.x, st.sum[1] *= f.y;
    return f;
}

/* Rarely needed once a few blocks are through; no product may be in flight on o. */
ATTN_DEV void mla90_rescale(float (&o)[128], mla90_state &st, float2 f) {
    if (!__any_sync(~0u, f.x != 1.f || f.y != 1.f)) return;
    st.deep = is_deep(st.top[0]) || is_deep(st.top[1]); /* tops have moved, maybe the other side's */
#pragma unroll
    for (int i = 0; i < 32; i++)
        o[4 * i] *= f.x, o[4 * i + 1] *= f.x, o[4 * i + 2] *= f.y, o[4 * i + 3] *= f.y;
}

/* P into its slab; the reader's barrier follows after fence_proxy_async. */
ATTN_DEV void mla90_store_p(uint32_t slab, const uint32_t (&p)[16]) {
    const int lane = threadIdx.x & 31, row = ((threadIdx.x >> 5) & 3) * 16 + (lane & 15);
#pragma unroll
    for (int k = 0; k < 4; k++)
        stmatrix_x4(slab + mla90_at(row, 2 * k + (lane >> 4)), p[4 * k], p[4 * k + 1], p[4 * k + 2],
                    p[4 * k + 3]);
}

/* Value rows from `first` on become zero, by one warpgroup: 0 * NaN is NaN, and what lies behind a sequence
 * can hold anything. fence_proxy_async follows. */
ATTN_DEV void mla90_clean(uint32_t keys, int first) {
    for (int i = threadIdx.x & 127; i < (MLA90_KEYS - first) * 64; i += 128)
        st_shared_v4(keys + mla90_at(first + (i >> 6), i & 63), make_uint4(0, 0, 0, 0));
}

} /* namespace attn_cuda */
#endif
