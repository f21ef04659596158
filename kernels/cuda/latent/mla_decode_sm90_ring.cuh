/* SPDX-License-Identifier: Apache-2.0 */
/* Narrow decode tiles on Hopper: how shared memory is laid out, and who fills it. One warp brings keys as far
 * ahead as a ring of single slabs reaches. */
#ifndef MLA_DECODE_SM90_RING_CUH
#define MLA_DECODE_SM90_RING_CUH

#include "../ptx/ptx_sm90.cuh"
#include "kernels/cuda/ptx/wgmma_sm90.cuh"

#include "mla_tile_sm90.cuh"
#include "mla_decode_sm90.h"
#include "mla_live.cuh"
#include "mla_decode_sm90_wgmma.cuh"

namespace attn_cuda {

constexpr int MLA90_THREADS = 384;
constexpr int MLA90_SMEM = 3 * MLA90_TILE + MLA90_SLAB + 1024;

/* N rows (heads) of a tile. Shared memory: queries, P, slabs. */
template <int N>
struct mla_narrow {
    static constexpr int QUERY_SLAB = N * 128, P_AT = MLA90_SLABS * QUERY_SLAB, RING_AT = P_AT + QUERY_SLAB,
                         SLOTS = (MLA90_SMEM - 1024 - RING_AT) / MLA90_SLAB;
    static_assert(RING_AT % 1024 == 0 && SLOTS >= MLA90_SLABS, "a block of swizzled slabs must fit");
    struct shared {
        uint64_t full[SLOTS], empty[SLOTS];
        float warp[4][N]; /* of a warp: maxima, at the end sums */
    };
    static ATTN_DEV void start(shared &sh) {
        for (int s = 0; s < SLOTS; s++)
            mbar_init(smem_addr(&sh.full[s]), 1), mbar_init(smem_addr(&sh.empty[s]), 1);
        mbar_init_fence();
    }
};

/* Where the boxes of a block of keys lie: lane j knows the j-th. */
struct mla_boxes {
    int page, row;
    ATTN_DEV void locate(const mla_decode_sm90_params &P, const int32_t *table, int k0, int k_end) {
        const int lane = threadIdx.x & 31, k = k0 + lane * P.box_rows;
        page = row = 0;
        if (lane < MLA90_KEYS / P.box_rows && k < k_end) {
            const int at = k / P.p.page_size;
            page = __ldg(table + at), row = k - at * P.p.page_size;
        }
    }
};

/* One warp brings the keys of all items of the part, in boxes of 64 columns. The rope slab of a block comes
 * first: it is free again before the values are touched. */
template <int SLOTS>
ATTN_DEV void mla_narrow_produce(const mla_decode_sm90_params &P, uint64_t *full, uint64_t *empty,
                                 uint32_t ring, int item0, int item1) {
    const mla_attend_params &p = P.p;
    const uint64_t policy = read_once_policy();
    const int lane = threadIdx.x & 31, box = P.box_rows, boxes = MLA90_KEYS / box;
    const int bytes = box * 128;
    int slot = 0, phase = 1;
    for (int i = item0; i < item1; i++) {
        const mla_item it = mla_item_of(p, i);
        const int32_t *table = p.counts->block_table + it.request * p.counts->block_table_stride;
        mla_boxes now, next;
        now.locate(P, table, it.k_begin, it.k_end);
        for (int k0 = it.k_begin; k0 < it.k_end; k0 += MLA90_KEYS) {
            next.locate(P, table, k0 + MLA90_KEYS, it.k_end);
            const int count = min(boxes, (it.k_end - k0 + box - 1) / box);
            for (int j = 0; j < MLA90_SLABS; j++) {
                const int slab = j == 0 ? MLA90_VALUE_SLABS : j - 1;
                const uint32_t bar = smem_addr(full + slot), to = ring + slot * MLA90_SLAB;
                mbar_wait(smem_addr(empty + slot), phase);
                if (lane == 0) mbar_expect(bar, count * bytes);
                for (int b = 0; b < count; b++) {
                    const int page = __shfl_sync(~0u, now.page, b), row = __shfl_sync(~0u, now.row, b);
                    if (lane == 0) tma_3d_by(policy, to + b * bytes, &P.keys, slab * 64, row, page, bar);
                }
                if (++slot == SLOTS) slot = 0, phase ^= 1;
            }
            now = next;
        }
    }
}

/* By the math warpgroup: absorbed latents, and the rope from the query; zeros below. */
template <int N>
ATTN_DEV void mla_narrow_load_queries(const mla_attend_params &p, int first_row, int rows, uint32_t to) {
    for (int i = threadIdx.x; i < N * 72; i += 128) {
        const int r = i / 72, c = i - r * 72;
        const bool inside = r < rows;
        const int row = first_row + (inside ? r : 0), token = row / p.num_heads;
        const uint16_t *src =
            c < 64 ? (const uint16_t *)p.absorbed + (row - p.slice_row0) * p.absorbed_row + c * 8
                   : (const uint16_t *)p.query + token * p.q_token + (row - token * p.num_heads) * p.q_head +
                         p.nope + (c - 64) * 8;
        cp_async_zfill<16>(to + (c >> 3) * N * 128 + r * 128 + (((c & 7) ^ (r & 7)) << 4), src, inside);
    }
    cp_async_commit();
    cp_async_wait<0>();
    fence_proxy_async();
}

} /* namespace attn_cuda */
#endif
