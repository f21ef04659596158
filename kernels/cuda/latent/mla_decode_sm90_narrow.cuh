/* SPDX-License-Identifier: Apache-2.0 */
/* Dense MLA on Hopper for tiles of at most N = 16 rows, which the read of the cache limits: scores and output
 * are made transposed, S^T = K Q^T and O^T = V^T P^T, so that keys and value columns fill the 64 rows of a
 * wgmma and the queries are its N columns. One warpgroup computes: two by turns were no faster. A slab goes
 * back to the ring as soon as its value columns are through. */
#ifndef MLA_DECODE_SM90_NARROW_CUH
#define MLA_DECODE_SM90_NARROW_CUH

#include "mla_decode_sm90_columns.cuh"
#include "mla_decode_sm90_ring.cuh"
#include "mla_decode_sm90_wgmma.cuh"
#include "mla_part_sm90.cuh"

namespace attn_cuda {

template <int DT, int N>
struct mla_narrow_math : mla_columns<DT, N> {
    using shape = mla_narrow<N>;
    using columns = mla_columns<DT, N>;
    using columns::C;
    using columns::group;
    using columns::o;
    using columns::sum;
    using columns::tid;
    using columns::top;
    using columns::warp;
    const mla_attend_params &p;
    typename shape::shared &sh;
    const uint32_t queries, ring;

    ATTN_DEV mla_narrow_math(const mla_attend_params &params, typename shape::shared &shared, uint32_t smem)
        : columns(shared.warp, smem + shape::P_AT, 1), p(params), sh(shared), queries(smem),
          ring(smem + shape::RING_AT) {}

    /* S^T of the block whose slabs are at[0 .. 8] of the ring, the first of them the rope. */
    ATTN_DEV void scores(float (&s)[N / 2], const int (&slots)[MLA90_SLABS], int first_slot,
                         int phase) const {
        const uint64_t qd = wgmma_desc(queries, 16, 1024), kd = wgmma_desc(ring, 16, 1024);
#pragma unroll
        for (int j = 0; j < MLA90_SLABS; j++) {
            mbar_wait(smem_addr(&sh.full[slots[j]]), phase ^ (slots[j] < first_slot ? 1 : 0));
            const uint64_t a = kd + (uint64_t)(slots[j] * (MLA90_SLAB >> 4)),
                           b = qd + (uint64_t)((j == 0 ? 8 : j - 1) * (shape::QUERY_SLAB >> 4));
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; k++) {
                if (j == 0 && k == 0)
                    wgmma_ssz<N, DT>::run(s, a, b);
                else
                    wgmma_ss<N, DT>::run(s, a + 2 * k, b + 2 * k);
            }
            wgmma_commit();
        }
        wgmma_wait<0>();
        wgmma_pin(s);
    }

    /* Rows of the block from `first` on become zero: 0 * NaN is NaN. */
    ATTN_DEV void clean(const int (&slots)[MLA90_SLABS], int first) const {
#pragma unroll
        for (int d = 0; d < 8; d++)
            for (int c = tid; c < (MLA90_KEYS - first) * 8; c += 128)
                st_shared_v4(ring + slots[d + 1] * MLA90_SLAB + mla90_at(first + (c >> 3), c & 7),
                             make_uint4(0, 0, 0, 0));
    }

    ATTN_DEV void release(int slot) const {
        if (tid == 0) mbar_arrive(smem_addr(&sh.empty[slot]));
    }
    ATTN_DEV void add_values(const int (&slots)[MLA90_SLABS]) {
        const uint64_t vd = wgmma_desc(ring, MLA90_SLAB, 1024),
                       pd = wgmma_desc(queries + shape::P_AT, 16, 1024);
#pragma unroll
        for (int d = 0; d < 8; d++)
            wgmma_pin(o[d]);
        wgmma_fence();
#pragma unroll
        for (int d = 0; d < 8; d++) {
            const uint64_t a = vd + (uint64_t)(slots[d + 1] * (MLA90_SLAB >> 4));
#pragma unroll
            for (int k = 0; k < 4; k++)
                wgmma_tss<N, DT>::run(o[d], a + k * 128, pd + 2 * k);
            wgmma_commit();
        }
        wgmma_wait<4>();
#pragma unroll
        for (int d = 1; d < 5; d++)
            release(slots[d]);
        wgmma_wait<0>();
#pragma unroll
        for (int d = 5; d < 9; d++)
            release(slots[d]);
#pragma unroll
        for (int d = 0; d < 8; d++)
            wgmma_pin(o[d]);
    }

    /* One block: keys k0 .. k0 + 64 of the item, the n-th that came through the ring. */
    ATTN_DEV void block(const mla_item &it, int first_row, int all, float scale, int k0, int n) {
        const int count = n * MLA90_SLABS, turns = count / shape::SLOTS, slot = count - turns * shape::SLOTS;
        int slots[MLA90_SLABS];
        float s[N / 2];
#pragma unroll
        for (int j = 0; j < MLA90_SLABS; j++)
            slots[j] = slot + j >= shape::SLOTS ? slot + j - shape::SLOTS : slot + j;
        scores(s, slots, slot, turns & 1);
        release(slots[0]);
        if (k0 + MLA90_KEYS > all) {
            const int k = k0 + warp * 16 + group;
#pragma unroll
            for (int t = 0; t < C; t++) {
                const int limit = min(it.k_end, it.base + (first_row + this->row_of(t)) / p.num_heads + 1);
                if (k >= limit) s[this->at(t)] = -INFINITY;
                if (k + 8 >= limit) s[this->at(t) + 2] = -INFINITY;
            }
        }
        this->softmax(s, scale);
        if (k0 + MLA90_KEYS > it.k_end) clean(slots, it.k_end - k0);
        fence_proxy_async();
        this->barrier();
        add_values(slots);
    }

    ATTN_DEV void store(const mla_item &it, int first_row, int rows) {
        this->add_up();
#pragma unroll
        for (int t = 0; t < C; t++) {
            const int r = this->row_of(t), row = first_row + r;
            const uint32_t power = it.slot >= 0 ? mla_part::power(this->template largest<0, 8>(t)) : 0;
            if (r >= rows) continue;
            const float inv = sum[t] == 0.f ? 0.f : 1.f / sum[t]; /* NaN stays NaN */
            const mla_part part(p, (int64_t)it.slot * p.tile_rows + r);
            const float lse = sum[t] == 0.f ? -INFINITY : top[t] + log2f(sum[t]);
            if (warp == 0 && group == 0) mla90_store_lse(p, it, row, lse);
            const int column = warp * 16 + group;
            uint16_t *out = it.slot >= 0
                                ? part.values + column
                                : (uint16_t *)p.latent + (int64_t)(row - p.slice_row0) * 512 + column;
            const float f = it.slot >= 0 ? mla_part::inverse(power) : inv;
            if (it.slot >= 0 && group < 2) part.set_mark(group * 4 + warp, inv * __uint_as_float(power), lse);
#pragma unroll
            for (int d = 0; d < 8; d++) {
                const float a = o[d][this->at(t)] * f, b = o[d][this->at(t) + 2] * f;
                const uint32_t x = it.slot >= 0 ? pack2<DT_F16>(a, b) : pack2<DT>(a, b);
                out[d * 64] = (uint16_t)x, out[d * 64 + 8] = (uint16_t)(x >> 16);
            }
        }
    }

    ATTN_DEV void run(int item0, int item1) {
        const float scale = p.scale * 1.4426950408889634f;
        int n = 0;
        for (int i = item0; i < item1; i++) {
            const mla_item it = mla_item_of(p, i);
            const int all =
                min(it.k_end, it.base + it.first_row / p.num_heads + 1); /* keys that every row sees */
            mla_narrow_load_queries<N>(p, it.first_row, it.num_rows, queries);
            this->start(it.num_rows);
            this->barrier();
#pragma unroll 1
            for (int k0 = it.k_begin; k0 < it.k_end; k0 += MLA90_KEYS, n++)
                block(it, it.first_row, all, scale, k0, n);
            store(it, it.first_row, it.num_rows);
        }
    }
};

} /* namespace attn_cuda */
#endif
