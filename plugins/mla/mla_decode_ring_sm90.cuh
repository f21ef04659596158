/* SPDX-License-Identifier: Apache-2.0 */
/* Narrow decode tiles on Hopper: how shared memory is laid out, and who fills it. One warp brings keys as far ahead as a
 * ring of single slabs reaches; for caches of e4m3 it fills a ring of raw slabs, which a warpgroup widens into the other. */
#ifndef MLA_DECODE_RING_SM90_CUH
#define MLA_DECODE_RING_SM90_CUH

#include "../common/ptx_sm90.cuh"
#include "mla/wgmma_sm90.cuh"

#include "../common/mla_tile_sm90.cuh"
#include "mla_decode_sm90.h"
#include "mla_decode_wgmma_sm90.cuh"

namespace attn_cuda {

constexpr int MLA90_THREADS = 384;
constexpr int MLA90_SMEM = 3 * MLA90_TILE + MLA90_SLAB + 1024;

/* N rows (heads) of a tile. Shared memory: queries, P, raw slabs, slabs. Over e4m3 there are slabs
 * for two blocks, so that one is widened while the other is multiplied. */
template <int N, bool E4M3>
struct mla_narrow {
    static constexpr int QUERY_SLAB = N * 128, P_AT = MLA90_SLABS * QUERY_SLAB, RAW_AT = P_AT + QUERY_SLAB;
    static constexpr int RAW_SLAB = MLA90_SLAB / 2, RAW_SLOTS = E4M3 ? (N == 16 ? 15 : 9) : 0;
    static constexpr int RING_AT = RAW_AT + RAW_SLOTS * RAW_SLAB,
                         FIT = (MLA90_SMEM - 1024 - RING_AT) / MLA90_SLAB;
    static constexpr int SLOTS = E4M3 ? 2 * MLA90_SLABS : FIT;
    static_assert(SLOTS <= FIT && RAW_SLOTS % 3 == 0, "three slabs are widened at a time");
    static_assert(RING_AT % 1024 == 0 && SLOTS >= MLA90_SLABS, "a block of swizzled slabs must fit");
    struct shared {
        uint64_t full[SLOTS], empty[SLOTS], raw_full[RAW_SLOTS + 1], raw_empty[RAW_SLOTS + 1];
        float warp[4][N]; /* of a warp: maxima, at the end sums */
    };
    static ATTN_DEV void start(shared &sh) {
        for (int s = 0; s < SLOTS; s++)
            mbar_init(smem_addr(&sh.full[s]), E4M3 ? 4 : 1), mbar_init(smem_addr(&sh.empty[s]), 1);
        for (int s = 0; s < RAW_SLOTS; s++)
            mbar_init(smem_addr(&sh.raw_full[s]), 1), mbar_init(smem_addr(&sh.raw_empty[s]), 4);
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

/* One warp brings the keys of all items of the part, in boxes of 64 columns. The rope slab of a block comes first: it is
 * free again before the values are touched. */
template <int SLOTS, int SLAB>
ATTN_DEV void mla_narrow_produce(const mla_decode_sm90_params &P, uint64_t *full, uint64_t *empty,
                                 uint32_t ring, int rank_row, int item0, int item1) {
    const mla_attend_params &p = P.p;
    const int lane = threadIdx.x & 31, box = P.box_rows, boxes = MLA90_KEYS / box;
    const int bytes = box * (SLAB / MLA90_KEYS);
    int slot = 0, phase = 1;
    for (int i = item0; i < item1; i++) {
        const mla_item it = p.items[i];
        if (it.num_rows <= rank_row) continue;
        const int32_t *table = p.counts->block_table + it.request * p.counts->block_table_stride;
        mla_boxes now, next;
        now.locate(P, table, it.k_begin, it.k_end);
        for (int k0 = it.k_begin; k0 < it.k_end; k0 += MLA90_KEYS) {
            next.locate(P, table, k0 + MLA90_KEYS, it.k_end);
            const int count = min(boxes, (it.k_end - k0 + box - 1) / box);
            for (int j = 0; j < MLA90_SLABS; j++) {
                const int slab = j == 0 ? MLA90_VALUE_SLABS : j - 1;
                const uint32_t bar = smem_addr(full + slot), to = ring + slot * SLAB;
                mbar_wait(smem_addr(empty + slot), phase);
                if (lane == 0) mbar_expect(bar, count * bytes);
                for (int b = 0; b < count; b++) {
                    const int page = __shfl_sync(~0u, now.page, b), row = __shfl_sync(~0u, now.row, b);
                    if (lane == 0) tma_3d(to + b * bytes, &P.keys, slab * 64, row, page, bar);
                }
                if (++slot == SLOTS) slot = 0, phase ^= 1;
            }
            now = next;
        }
    }
}

/* One warpgroup turns raw slabs into slabs of float16, exactly (every e4m3 number is one): the scale goes into the softmax
 * and the result. Rows behind the list become zero. The readers fence, not the writers. */
template <class Shape>
ATTN_DEV void mla_narrow_widen(const mla_attend_params &p, typename Shape::shared &sh, uint32_t queries,
                               int rank_row, int item0, int item1) {
    const int tid = threadIdx.x & 127, lane = tid & 31, r = tid >> 2, chunk = tid & 3;
    const uint32_t from = queries + Shape::RAW_AT + r * 64 + chunk * 16, to = queries + Shape::RING_AT,
                   to0 = to + mla90_at(r, 2 * chunk), to1 = to + mla90_at(r, 2 * chunk + 1);
    int raw_slot = 0, raw_phase = 0, slot = 0, phase = 1;
    for (int i = item0; i < item1; i++) {
        const mla_item it = p.items[i];
        if (it.num_rows <= rank_row) continue;
        for (int k0 = it.k_begin; k0 < it.k_end; k0 += MLA90_KEYS)
#pragma unroll 1
            for (int j = 0; j < MLA90_SLABS; j += 3) {
                uint4 x[6]; /* two rows of three slabs */
#pragma unroll
                for (int u = 0; u < 6; u++) {
                    if (!(u & 1)) mbar_wait(smem_addr(&sh.raw_full[raw_slot + (u >> 1)]), raw_phase);
                    x[u] = ld_shared_v4(from + (raw_slot + (u >> 1)) * Shape::RAW_SLAB + (u & 1) * 2048);
                }
                if (k0 + MLA90_KEYS > it.k_end)
#pragma unroll
                    for (int u = 0; u < 6; u++)
                        if (k0 + r + 32 * (u & 1) >= it.k_end) x[u] = make_uint4(0, 0, 0, 0);
#pragma unroll
                for (int u = 0; u < 6; u++) {
                    const uint32_t at = (slot + (u >> 1)) * MLA90_SLAB + (u & 1) * (MLA90_SLAB / 2);
                    if (!(u & 1)) mbar_wait(smem_addr(&sh.empty[slot + (u >> 1)]), phase);
                    st_shared_v4(to0 + at,
                                 make_uint4(e4m3x2_to_f16x2<0>(x[u].x), e4m3x2_to_f16x2<1>(x[u].x),
                                            e4m3x2_to_f16x2<0>(x[u].y), e4m3x2_to_f16x2<1>(x[u].y)));
                    st_shared_v4(to1 + at,
                                 make_uint4(e4m3x2_to_f16x2<0>(x[u].z), e4m3x2_to_f16x2<1>(x[u].z),
                                            e4m3x2_to_f16x2<0>(x[u].w), e4m3x2_to_f16x2<1>(x[u].w)));
                    if (!(u & 1)) continue;
                    __syncwarp();
                    if (lane == 0) mbar_arrive(smem_addr(&sh.full[slot + (u >> 1)]));
                    if (lane == 0) mbar_arrive(smem_addr(&sh.raw_empty[raw_slot + (u >> 1)]));
                }
                if ((raw_slot += 3) == Shape::RAW_SLOTS) raw_slot = 0, raw_phase ^= 1;
                if ((slot += 3) == Shape::SLOTS) slot = 0, phase ^= 1;
            }
    }
}

/* By the math warpgroup: absorbed latents from the workspace, rope from the query; zeros below. For e4m3 keys in
 * float16, times `sign`. */
template <int DT, int N, bool E4M3>
ATTN_DEV void mla_narrow_load_queries(const mla_attend_params &p, int first_row, int rows, uint32_t to,
                                      float sign) {
    for (int i = threadIdx.x; i < N * 72; i += 128) {
        const int r = i / 72, c = i - r * 72;
        const bool inside = r < rows;
        const int row = first_row + (inside ? r : 0), token = row / p.num_heads;
        const uint16_t *src = c < 64
                                  ? (const uint16_t *)p.latent + (int64_t)(row - p.slice_row0) * 512 + c * 8
                                  : (const uint16_t *)p.query + token * p.q_token +
                                        (row - token * p.num_heads) * p.q_head + p.nope + (c - 64) * 8;
        const uint32_t dst = to + (c >> 3) * N * 128 + r * 128 + (((c & 7) ^ (r & 7)) << 4);
        if constexpr (E4M3) {
            const uint4 x = inside ? *(const uint4 *)src : make_uint4(0, 0, 0, 0);
            auto to_f16 = [&](uint32_t w) { /* saturates: float16 ends at 65504 */
                                            float2 f = unpack2<DT>(w);
                                            f.x *= sign, f.y *= sign;
                                            f.x = f.x > 65504.f ? 65504.f : f.x < -65504.f ? -65504.f : f.x;
                                            f.y = f.y > 65504.f ? 65504.f : f.y < -65504.f ? -65504.f : f.y;
                                            return pack2<DT_F16>(f.x, f.y);
            };
            st_shared_v4(dst, make_uint4(to_f16(x.x), to_f16(x.y), to_f16(x.z), to_f16(x.w)));
        } else
            cp_async_zfill<16>(dst, src, inside);
    }
    cp_async_commit();
    cp_async_wait<0>();
    fence_proxy_async();
}

} /* namespace attn_cuda */
#endif
