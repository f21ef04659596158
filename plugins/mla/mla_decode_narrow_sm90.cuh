/* SPDX-License-Identifier: Apache-2.0 */
/* Dense MLA on Hopper for tiles of at most N = 16 or 32 rows, which the read of the cache limits: scores and output are
 * made transposed, S^T = K Q^T and O^T = V^T P^T, so that keys and value columns fill the 64 rows of a wgmma and the
 * queries are its N columns. One warpgroup computes: two by turns were no faster. A slab goes back to the ring as soon as
 * its value columns are through. */
#ifndef MLA_DECODE_NARROW_SM90_CUH
#define MLA_DECODE_NARROW_SM90_CUH

#include "mla_decode_ring_sm90.cuh"

namespace attn_cuda {

ATTN_DEV void stmatrix_x4_trans(uint32_t addr, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(addr), "r"(a),
                 "r"(b), "r"(c), "r"(d)
                 : "memory");
}
/* Whether any of the threads says so; a barrier as well. */
ATTN_DEV bool named_any(int id, int threads, bool mine) {
    int any;
    asm volatile("{.reg .pred p, q;\nsetp.ne.s32 p, %1, 0;\nbarrier.cta.red.or.pred q, %2, %3, p;\n"
                 "selp.s32 %0, 1, 0, q;}"
                 : "=r"(any)
                 : "r"((int)mine), "r"(id), "r"(threads)
                 : "memory");
    return any != 0;
}

/* What the warpgroup holds. Column t of a thread is row row_of(t) of the tile; element at(t) of a fragment
 * holds it for key, or value column, warp * 16 + lane / 4, the element two further for the one eight more. */
template <int DT, int N, bool E4M3>
struct mla_narrow_math {
    using shape = mla_narrow<N, E4M3>;
    static constexpr int C = N / 4, MT = E4M3 ? DT_F16 : DT; /* what is multiplied */
    const mla_attend_params &p;
    typename shape::shared &sh;
    const uint32_t queries, ring;
    const int tid, warp, lane, group;
    float o[8][N / 2], top[C], sum[C];

    ATTN_DEV mla_narrow_math(const mla_attend_params &params, typename shape::shared &shared, uint32_t smem)
        : p(params), sh(shared), queries(smem), ring(smem + shape::RING_AT), tid(threadIdx.x & 127),
          warp(tid >> 5), lane(tid & 31), group(lane >> 2) {}
    ATTN_DEV int row_of(int t) const { return (t >> 1) * 8 + (lane & 3) * 2 + (t & 1); }
    static ATTN_DEV constexpr int at(int t) { return 4 * (t >> 1) + (t & 1); }
    static ATTN_DEV void barrier() { named_barrier(1, 128); }

    ATTN_DEV void start(int rows) {
#pragma unroll
        for (int t = 0; t < C; t++) {
            top[t] = row_of(t) < rows ? MLA90_NO_MAX : -MLA90_NO_MAX; /* rows that do not exist get P = 0 */
            sum[t] = 0.f;
        }
#pragma unroll
        for (int d = 0; d < 8; d++)
#pragma unroll
            for (int j = 0; j < N / 2; j++)
                o[d][j] = 0.f;
    }

    /* S^T of the block whose slabs are at[0 .. 8] of the ring, the first of them the rope. */
    ATTN_DEV void scores(float (&s)[N / 2], const int (&slots)[MLA90_SLABS], int first_slot,
                         int phase) const {
        const uint64_t qd = wgmma_desc(queries, 16, 1024), kd = wgmma_desc(ring, 16, 1024);
#pragma unroll
        for (int j = 0; j < MLA90_SLABS; j++) {
            mbar_wait(smem_addr(&sh.full[slots[j]]), phase ^ (slots[j] < first_slot ? 1 : 0));
            const uint64_t a = kd + (uint64_t)(slots[j] * (MLA90_SLAB >> 4)),
                           b = qd + (uint64_t)((j == 0 ? 8 : j - 1) * (shape::QUERY_SLAB >> 4));
            if constexpr (E4M3) fence_proxy_async(); /* for the writes of those who widened */
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; k++) {
                if (j == 0 && k == 0)
                    wgmma_ssz<N, MT>::run(s, a, b);
                else
                    wgmma_ss<N, MT>::run(s, a + 2 * k, b + 2 * k);
            }
            wgmma_commit();
        }
        wgmma_wait<0>();
        wgmma_pin(s);
    }

    /* A score passed its top by more than 8 (log2 units): new tops, and everything before on their scale. */
    ATTN_DEV void raise(const float (&s)[N / 2], float scale) {
#pragma unroll
        for (int t = 0; t < C; t++) {
            float most = fmaxf(s[at(t)], s[at(t) + 2]);
#pragma unroll
            for (int d = 4; d < 32; d *= 2)
                most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
            if (group == 0) sh.warp[warp][row_of(t)] = most;
        }
        barrier();
#pragma unroll
        for (int t = 0; t < C; t++) {
            const int r = row_of(t);
            const float most =
                fmaxf(fmaxf(sh.warp[0][r], sh.warp[1][r]), fmaxf(sh.warp[2][r], sh.warp[3][r])) * scale;
            const float to = most > top[t] + 8.f ? most : top[t], f = ex2(top[t] - to);
            top[t] = to, sum[t] *= f;
#pragma unroll
            for (int d = 0; d < 8; d++)
                o[d][at(t)] *= f, o[d][at(t) + 2] *= f;
        }
    }

    /* P of a block into shared memory, [row][key]. */
    ATTN_DEV void softmax(float (&s)[N / 2], float scale) {
        bool rises = false;
#pragma unroll
        for (int t = 0; t < C; t++)
            rises |= fmaxf(s[at(t)], s[at(t) + 2]) * scale > top[t] + 8.f;
        if (named_any(2, 128, rises)) raise(s, scale);
#pragma unroll
        for (int t = 0; t < C; t++) {
            float &a = s[at(t)], &b = s[at(t) + 2];
            a = ex2(fmaf(a, scale, -top[t])), b = ex2(fmaf(b, scale, -top[t]));
            sum[t] += a + b;
        }
        const int matrix = lane >> 3, r = (matrix >> 1) * 8 + (lane & 7), chunk = warp * 2 + (matrix & 1);
        const uint32_t to = queries + shape::P_AT + r * 128 + ((chunk ^ (r & 7)) << 4);
#pragma unroll
        for (int j = 0; j < N / 16; j++) {
            const float *x = s + 8 * j;
            stmatrix_x4_trans(to + j * 2048, pack2<MT>(x[0], x[1]), pack2<MT>(x[2], x[3]),
                              pack2<MT>(x[4], x[5]), pack2<MT>(x[6], x[7]));
        }
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
                wgmma_tss<N, MT>::run(o[d], a + k * 128, pd + 2 * k);
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
                const int limit = min(it.k_end, it.base + (first_row + row_of(t)) / p.num_heads + 1);
                if (k >= limit) s[at(t)] = -INFINITY;
                if (k + 8 >= limit) s[at(t) + 2] = -INFINITY;
            }
        }
        softmax(s, scale);
        if (!E4M3 && k0 + MLA90_KEYS > it.k_end) clean(slots, it.k_end - k0);
        fence_proxy_async();
        barrier();
        add_values(slots);
    }

    ATTN_DEV void store(const mla_item &it, int first_row, int rows, int rank_row, float k_scale) {
#pragma unroll
        for (int t = 0; t < C; t++) {
#pragma unroll
            for (int d = 4; d < 32; d *= 2)
                sum[t] += __shfl_xor_sync(~0u, sum[t], d);
            if (group == 0) sh.warp[warp][row_of(t)] = sum[t];
        }
        barrier();
#pragma unroll
        for (int t = 0; t < C; t++) {
            const int r = row_of(t), row = first_row + r;
            if (r >= rows) continue;
            const float all = (sh.warp[0][r] + sh.warp[1][r]) + (sh.warp[2][r] + sh.warp[3][r]);
            const float inv = all == 0.f ? 0.f : k_scale / all; /* NaN stays NaN */
            const int64_t slot_row = (int64_t)it.slot * p.tile_rows + rank_row + r;
            if (warp == 0 && group == 0) {
                const float lse = all == 0.f ? -INFINITY : top[t] + log2f(all);
                if (it.slot >= 0)
                    p.part_lse[slot_row] = lse;
                else if (p.lse)
                    p.lse[(row % p.num_heads) * p.lse_head + (row / p.num_heads) * p.lse_token] =
                        lse * 0.6931471805599453f;
            }
            const int column = warp * 16 + group;
            float *part = p.part_out + slot_row * 512 + column;
            uint16_t *out = (uint16_t *)p.latent + (int64_t)(row - p.slice_row0) * 512 + column;
#pragma unroll
            for (int d = 0; d < 8; d++) {
                const float a = o[d][at(t)] * inv, b = o[d][at(t) + 2] * inv;
                if (it.slot >= 0)
                    part[d * 64] = a, part[d * 64 + 8] = b;
                else {
                    const uint32_t x = pack2<DT>(a, b);
                    out[d * 64] = (uint16_t)x, out[d * 64 + 8] = (uint16_t)(x >> 16);
                }
            }
        }
    }

    ATTN_DEV void run(int rank_row, int item0, int item1) {
        const float k_scale = E4M3 && p.k_scale ? __ldg(p.k_scale) : 1.f;
        const float q_scale = E4M3 && p.q_scale ? __ldg(p.q_scale) : 1.f;
        const float scale = p.scale * 1.4426950408889634f * fmaxf(fabsf(k_scale), 1e-30f) * q_scale;
        int n = 0;
        for (int i = item0; i < item1; i++) {
            const mla_item it = p.items[i];
            const int first_row = it.first_row + rank_row, rows = it.num_rows - rank_row;
            if (rows <= 0) continue;
            const int all =
                min(it.k_end, it.base + first_row / p.num_heads + 1); /* keys that every row sees */
            mla_narrow_load_queries<DT, N, E4M3>(p, first_row, rows, queries, k_scale < 0.f ? -1.f : 1.f);
            start(rows);
            barrier();
#pragma unroll 1
            for (int k0 = it.k_begin; k0 < it.k_end; k0 += MLA90_KEYS, n++)
                block(it, first_row, all, scale, k0, n);
            store(it, first_row, rows, rank_row, k_scale);
        }
    }
};

} /* namespace attn_cuda */
#endif
