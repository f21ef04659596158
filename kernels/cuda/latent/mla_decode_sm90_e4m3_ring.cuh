/* SPDX-License-Identifier: Apache-2.0 */
/* Decode over e4m3 caches on Hopper: how shared memory is laid out, who brings raw keys, and in what order
 * queries lie. */
#ifndef MLA_DECODE_SM90_E4M3_RING_CUH
#define MLA_DECODE_SM90_E4M3_RING_CUH

#include "mla_decode_sm90_ring.cuh"

namespace attn_cuda {

/* A block of 64 raw keys: four boxes of 128 columns (128-byte swizzle), one of the 64 rope columns (64-byte
 * swizzle). */
constexpr int MLA90_RAW_BOX = MLA90_KEYS * 128, MLA90_RAW = MLA90_KEYS * 576;

/* Tiles of up to N rows. Shared memory: queries, P of each warpgroup, blocks of raw keys. */
template <int N>
struct mla_e4m3 {
    static constexpr int QUERY_SLAB = N * 128, P_AT = MLA90_SLABS * QUERY_SLAB, P_SLAB = N * 128,
                         RING_AT = P_AT + 2 * P_SLAB;
    static constexpr int STAGES = (MLA90_SMEM - 1024 - RING_AT) / MLA90_RAW;
    static_assert(RING_AT % 1024 == 0 && STAGES >= 3, "swizzled blocks must fit");
    static_assert(4 * N * 64 * 4 <= P_AT, "half an output goes over where the queries were");
    struct shared { /* the warpgroups take turns: each has barriers of its own, and skips no phase */
        uint64_t full[2][STAGES], empty[STAGES];
        float warp[2][4][N], top[2][N];
        int risen[2]; /* the last block of each warpgroup that moved a top */
    };
    static ATTN_DEV void start(shared &sh) {
        for (int s = 0; s < STAGES; s++) {
            for (int r = 0; r < 2; r++)
                mbar_init(smem_addr(&sh.full[r][s]), 1);
            mbar_init(smem_addr(&sh.empty[s]), 4);
        }
        mbar_init_fence();
    }
};

/* Byte offset of a 16-byte chunk (0..3) of a row in a box of rope. */
ATTN_DEV uint32_t mla90_rope_at(int row, int chunk) {
    return (uint32_t)(row * 64 + ((chunk ^ (row >> 1 & 3)) << 4));
}
/* Byte offset of a 16-byte chunk (0..35) of a row in a raw block. */
ATTN_DEV uint32_t mla90_raw_at(int row, int chunk) {
    return chunk < 32
               ? (uint32_t)((chunk >> 3) * MLA90_RAW_BOX + row * 128 + (((chunk & 7) ^ (row & 7)) << 4))
               : 4 * MLA90_RAW_BOX + mla90_rope_at(row, chunk - 32);
}

/* One warp brings the keys of all items of the part. */
template <class Shape>
ATTN_DEV void mla_e4m3_produce(const mla_decode_sm90_params &P, typename Shape::shared &sh, uint32_t ring,
                               int rank_row, int item0, int item1) {
    const mla_attend_params &p = P.p;
    const uint64_t policy = read_once_policy();
    const int lane = threadIdx.x & 31, box = P.box_rows, boxes = MLA90_KEYS / box;
    int stage = 0, phase = 1;
    for (int i = item0; i < item1; i++) {
        const mla_item it = mla_item_of(p, i);
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
                    tma_3d_by(policy, to + lane * MLA90_RAW_BOX + b * box * 128, &P.keys, lane * 128, row,
                              page, bar);
                else if (lane == 4)
                    tma_3d_by(policy, to + 4 * MLA90_RAW_BOX + b * box * 64, &P.rope, 512, row, page, bar);
            }
            at.locate(P, table, k0 + MLA90_KEYS, it.k_end);
            if (++stage == Shape::STAGES) stage = 0, phase ^= 1;
            reader ^= 1;
        }
    }
}

/* A tile's queries, by both warpgroups: absorbed latents, and the rope from the query. A thread
 * brings 16 columns of every eighth row, where it converts them later, and those of one row's rope; it asks
 * for everything at once. */
template <int ROWS>
struct mla_e4m3_queries {
    static constexpr int SLAB = ROWS * 128;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, rope_row = threadIdx.x >> 2,
              chunk = threadIdx.x & 3;
    const uint32_t latent, rope; /* the first 8 columns; the other 8 lie 16 bytes off, either way */

    ATTN_DEV explicit mla_e4m3_queries(uint32_t to)
        : latent(to + (lane >> 2) * SLAB + warp * 128 + (((2 * (lane & 3)) ^ warp) << 4)),
          rope(to + 8 * SLAB + rope_row * 128 + (((2 * chunk) ^ (rope_row & 7)) << 4)) {}

    /* Rows from `rows` on become zero. */
    ATTN_DEV void fetch(const mla_attend_params &p, int first_row, int rows) const {
        const uint16_t *src =
            (const uint16_t *)p.absorbed + (first_row - p.slice_row0) * p.absorbed_row + lane * 16;
#pragma unroll
        for (int r = warp; r < ROWS; r += 8) {
            const uint16_t *x = src + (r < rows ? r * p.absorbed_row : 0);
            const uint32_t at = latent + (r - warp) * 128;
            cp_async_zfill<16>(at, x, r < rows), cp_async_zfill<16>(at ^ 16, x + 8, r < rows);
        }
        if (threadIdx.x < ROWS * 4) {
            const bool inside = rope_row < rows;
            const int row = first_row + (inside ? rope_row : 0), token = row / p.num_heads;
            const uint16_t *x = (const uint16_t *)p.query + token * p.q_token +
                                (row - token * p.num_heads) * p.q_head + p.nope + chunk * 16;
            cp_async_zfill<16>(rope, x, inside), cp_async_zfill<16>(rope ^ 16, x + 8, inside);
        }
        cp_async_commit();
    }

    /* To float16 (saturated: it ends at 65504), negated where the scale of the keys is negative. A thread of
     * the products reads bytes 4q .. 4q + 3 of 16 keys' columns as what fragments call columns 2q, 2q + 1, 2q
     * + 8, 2q + 9: queries are put into that order. */
    template <int DT>
    ATTN_DEV void convert(bool negate) const {
        const uint32_t sign = negate ? 0x80008000u : 0u;
        auto clamp = [](float x) { /* NaN stays NaN */
                                   asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(65504.f));
                                   asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(-65504.f));
                                   return x;
        };
        auto widen = [&](uint32_t w) {
            const float2 f = unpack2<DT>(w ^ sign);
            return pack2<DT_F16>(clamp(f.x), clamp(f.y));
        };
        auto turn = [&](uint32_t at) {
            const uint4 x = ld_shared_v4(at), y = ld_shared_v4(at ^ 16);
            st_shared_v4(at, make_uint4(widen(x.x), widen(x.z), widen(y.x), widen(y.z)));
            st_shared_v4(at ^ 16, make_uint4(widen(x.y), widen(x.w), widen(y.y), widen(y.w)));
        };
        cp_async_wait<0>();
#pragma unroll 2 /* code that runs once is fetched while it runs */
        for (int r = 0; r < ROWS; r += 8)
            turn(latent + r * 128);
        if (threadIdx.x < ROWS * 4) turn(rope);
        fence_proxy_async();
    }
};

} /* namespace attn_cuda */
#endif
