/* SPDX-License-Identifier: Apache-2.0 */
/* Query rows of a decode CTA as the fragments of Q^T that mma.sync.m16n8k16 takes, where a thread holds a
 * part of row g = lane / 4 of each tile of 8: in registers, or, of many rows, in shared memory, where each
 * warp puts its share and reads all of them for each block of keys. Over an e4m3 cache they become f16, and
 * the k order is its permutation (decode_sm80.cuh). */
#ifndef DECODE_SM80_QUERY_CUH
#define DECODE_SM80_QUERY_CUH

#include "decode_sm80_merge.cuh"

namespace attn_cuda {

/* Four words of a row: its part of columns 32 j to 32 j + 31, two steps of 16, as in memory; q: lane % 4. */
struct query_quad {
    uint32_t x[4];
};

/* at: of the row, in elements. */
template <int KV>
ATTN_DEV query_quad load_query(const flash_params &p, int64_t at, bool is_there, int j, int q) {
    const int d = 32 * j + (KV == DT_E4M3 ? 4 : 2) * q;
    query_quad r = {};
    if (KV == DT_E4M3 && p.q_dtype == DT_E4M3) { /* each word is four columns, two words of f16 */
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (is_there && d + 16 * i < p.head_size)
                r.x[2 * i] = *(const uint32_t *)((const uint8_t *)p.q + at + d + 16 * i);
        return r;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int c = d + (KV == DT_E4M3 ? 16 * (i >> 1) + 2 * (i & 1) : 8 * i);
        if (is_there && c < p.head_size) r.x[i] = *(const uint32_t *)((const uint16_t *)p.q + at + c);
    }
    return r;
}

/* Over e4m3 keys: bf16 and e4m3 become f16. */
template <int KV>
ATTN_DEV void widen_query(const flash_params &p, query_quad &r) {
    if constexpr (KV == DT_E4M3) {
        if (p.q_dtype == DT_F16) return;
#pragma unroll
        for (int i = 0; i < 4; i += 2)
            if (p.q_dtype == DT_E4M3) {
                const uint32_t x = r.x[i];
                r.x[i] = e4m3x2_to_f16x2<0>(x), r.x[i + 1] = e4m3x2_to_f16x2<1>(x);
            } else {
                r.x[i] = pack2_limited(unpack2<DT_BF16>(r.x[i]));
                r.x[i + 1] = pack2_limited(unpack2<DT_BF16>(r.x[i + 1]));
            }
    }
}

/* In registers. */
template <int KV, int NT, int STEPS>
struct held_query {
    uint32_t f[NT][2 * STEPS];
    /* at(n): the thread's row of tile n, there(n): whether it is one. */
    template <class AT, class THERE>
    ATTN_DEV void load(const flash_params &p, AT at, THERE there, int q) {
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int j = 0; j < STEPS / 2; j++) {
                const query_quad r = load_query<KV>(p, at(n), there(n), j, q);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    f[n][4 * j + i] = r.x[i];
            }
    }
    ATTN_DEV void widen(const flash_params &p) {
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int j = 0; j < STEPS / 2; j++) {
                query_quad r = {f[n][4 * j], f[n][4 * j + 1], f[n][4 * j + 2], f[n][4 * j + 3]};
                widen_query<KV>(p, r);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    f[n][4 * j + i] = r.x[i];
            }
    }
    ATTN_DEV query_quad at(int n, int j) const {
        return {f[n][4 * j], f[n][4 * j + 1], f[n][4 * j + 2], f[n][4 * j + 3]};
    }
};

/* In shared memory, [NT][STEPS / 2][32 lanes] quads. */
template <int KV, int NT, int STEPS>
struct shared_query {
    static constexpr int QUADS = NT * STEPS / 2, OWN = (QUADS + 3) / 4; /* of a warp of four */
    query_quad own[OWN];
    uint32_t base; /* of this lane's */
    template <class AT, class THERE>
    ATTN_DEV void load(const flash_params &p, AT at, THERE there, int q, int first, int step) {
#pragma unroll
        for (int u = 0; u < OWN; u++) {
            const int i = first + u * step, n = i / (STEPS / 2);
            if (i < QUADS) own[u] = load_query<KV>(p, at(n), there(n), i % (STEPS / 2), q);
        }
    }
    ATTN_DEV void store(const flash_params &p, int first, int step) {
#pragma unroll
        for (int u = 0; u < OWN; u++) {
            const int i = first + u * step;
            if (i >= QUADS) continue;
            widen_query<KV>(p, own[u]);
            st_shared_v4(base + i * 512, make_uint4(own[u].x[0], own[u].x[1], own[u].x[2], own[u].x[3]));
        }
    }
    ATTN_DEV query_quad at(int n, int j) const {
        const uint4 x = ld_shared_v4(base + (n * (STEPS / 2) + j) * 512);
        return {x.x, x.y, x.z, x.w};
    }
};

} /* namespace attn_cuda */
#endif
