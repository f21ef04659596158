/* SPDX-License-Identifier: Apache-2.0 */
/* Decode over e4m3 caches on Hopper: how shared memory is laid out, who brings raw keys, and in what order queries lie. */
#ifndef MLA_DECODE_E4M3_RING_SM90_CUH
#define MLA_DECODE_E4M3_RING_SM90_CUH

#include "mla_decode_ring_sm90.cuh"

namespace attn_cuda {

/* A block of 64 raw keys: four boxes of 128 columns (128-byte swizzle), one of the 64 rope columns (64-byte swizzle). */
constexpr int MLA90_RAW_BOX = MLA90_KEYS * 128, MLA90_RAW = MLA90_KEYS * 576;

/* ROWS of a CTA, N of a warpgroup. Shared memory: queries, P of each warpgroup, blocks of raw keys. */
template <int N, int ROWS>
struct mla_e4m3 {
    static constexpr bool BY_ROWS = ROWS > N;
    static constexpr int QUERY_SLAB = ROWS * 128, P_AT = MLA90_SLABS * QUERY_SLAB, P_SLAB = N * 128,
                         RING_AT = P_AT + 2 * P_SLAB;
    static constexpr int STAGES = (MLA90_SMEM - 1024 - RING_AT) / MLA90_RAW;
    static_assert(RING_AT % 1024 == 0 && STAGES >= 3, "swizzled blocks must fit");
    static_assert(BY_ROWS || 4 * N * 64 * 4 <= P_AT, "half an output goes over where the queries were");
    static constexpr int READERS =
        BY_ROWS ? 1 : 2; /* who take turns: each has barriers of its own, and skips no phase */
    struct shared {
        uint64_t full[READERS][STAGES], empty[STAGES];
        float warp[2][4][N], top[2][N], sum[2][N];
    };
    static ATTN_DEV void start(shared &sh) {
        for (int s = 0; s < STAGES; s++) {
            for (int r = 0; r < READERS; r++)
                mbar_init(smem_addr(&sh.full[r][s]), 1);
            mbar_init(smem_addr(&sh.empty[s]), BY_ROWS ? 8 : 4);
        }
        mbar_init_fence();
    }
};

/* Byte offset of a 16-byte chunk (0..35) of a row in a raw block. */
ATTN_DEV uint32_t mla90_raw_at(int row, int chunk) {
    return chunk < 32
               ? (uint32_t)((chunk >> 3) * MLA90_RAW_BOX + row * 128 + (((chunk & 7) ^ (row & 7)) << 4))
               : (uint32_t)(4 * MLA90_RAW_BOX + row * 64 + (((chunk & 3) ^ (row >> 1 & 3)) << 4));
}

/* One warp brings the keys of all items of the part. */
template <class Shape>
ATTN_DEV void mla_e4m3_produce(const mla_decode_sm90_params &P, typename Shape::shared &sh, uint32_t ring,
                               int rank_row, int item0, int item1) {
    const mla_attend_params &p = P.p;
    const int lane = threadIdx.x & 31, box = P.box_rows, boxes = MLA90_KEYS / box;
    int stage = 0, phase = 1;
    for (int i = item0; i < item1; i++) {
        const mla_item it = p.items[i];
        if (it.num_rows <= rank_row) continue;
        const int32_t *table = p.counts->block_table + it.request * p.counts->block_table_stride;
        mla_boxes at;
        at.locate(P, table, it.k_begin, it.k_end);
        int reader = 0;
        for (int k0 = it.k_begin; k0 < it.k_end; k0 += MLA90_KEYS) {
            const int count = min(boxes, (it.k_end - k0 + box - 1) / box);
            const uint32_t bar = smem_addr(&sh.full[reader][stage]), to = ring + stage * MLA90_RAW;
            mbar_wait(smem_addr(&sh.empty[stage]), phase);
            if (lane == 0) mbar_expect(bar, count * box * 576);
            __syncwarp();
            for (int b = 0; b < count; b++) {
                const int page = __shfl_sync(~0u, at.page, b), row = __shfl_sync(~0u, at.row, b);
                if (lane < 4)
                    tma_3d(to + lane * MLA90_RAW_BOX + b * box * 128, &P.keys, lane * 128, row, page, bar);
                else if (lane == 4)
                    tma_3d(to + 4 * MLA90_RAW_BOX + b * box * 64, &P.rope, 512, row, page, bar);
            }
            at.locate(P, table, k0 + MLA90_KEYS, it.k_end);
            if (++stage == Shape::STAGES) stage = 0, phase ^= 1;
            if constexpr (Shape::READERS == 2) reader ^= 1;
        }
    }
}

/* By both warpgroups: absorbed latents from the workspace, rope from the query, in float16 (saturated: it ends at 65504)
 * times `sign`; zeros below. A thread reads bytes 4q .. 4q + 3 of 16 keys' columns as what fragments call columns 2q, 2q + 1,
 * 2q + 8, 2q + 9: queries are stored in that order. */
template <int DT, int ROWS>
ATTN_DEV void mla_e4m3_load_queries(const mla_attend_params &p, int first_row, int rows, uint32_t to,
                                    float sign) {
    auto widen = [&](uint32_t w) {
        float2 f = unpack2<DT>(w);
        f.x *= sign, f.y *= sign;
        f.x = f.x > 65504.f ? 65504.f : f.x < -65504.f ? -65504.f : f.x;
        f.y = f.y > 65504.f ? 65504.f : f.y < -65504.f ? -65504.f : f.y;
        return pack2<DT_F16>(f.x, f.y);
    };
#pragma unroll 3
    for (int i = threadIdx.x; i < ROWS * 36; i += 256) {
        const int r = i / 36, c = i - r * 36; /* 16 columns */
        const bool inside = r < rows;
        const int row = first_row + (inside ? r : 0), token = row / p.num_heads;
        const uint16_t *src = c < 32
                                  ? (const uint16_t *)p.latent + (int64_t)(row - p.slice_row0) * 512 + c * 16
                                  : (const uint16_t *)p.query + token * p.q_token +
                                        (row - token * p.num_heads) * p.q_head + p.nope + (c - 32) * 16;
        const uint4 zero = make_uint4(0, 0, 0, 0), x = inside ? ((const uint4 *)src)[0] : zero,
                    y = inside ? ((const uint4 *)src)[1] : zero;
        const uint32_t slab = to + (c >> 2) * ROWS * 128 + r * 128, chunk = 2 * (c & 3);
        st_shared_v4(slab + ((chunk ^ (r & 7)) << 4),
                     make_uint4(widen(x.x), widen(x.z), widen(y.x), widen(y.z)));
        st_shared_v4(slab + (((chunk + 1) ^ (r & 7)) << 4),
                     make_uint4(widen(x.y), widen(x.w), widen(y.y), widen(y.w)));
    }
    fence_proxy_async();
}

} /* namespace attn_cuda */
#endif
