/* SPDX-License-Identifier: Apache-2.0 */
/* Dense MLA on Hopper over caches of e4m3, tiles of 33 to 64 rows; transposed as the narrower ones. Two
 * warpgroups work on two blocks of 64 keys at a time, all rows as the 64 columns of a wgmma, so that keys and
 * values are widened once for all of them: each makes the scores and P of one block, and adds both blocks to
 * its own half of the value columns. They meet once for two blocks, when both P are there: P is made with the
 * tops that were, and made again where a score has passed its top by too much. What runs once for an item is
 * short, because it is fetched while it runs. */
#ifndef MLA_DECODE_SM90_E4M3_TALL_CUH
#define MLA_DECODE_SM90_E4M3_TALL_CUH

#include "mla_decode_sm90_columns.cuh"
#include "mla_decode_sm90_e4m3_store.cuh"
#include "mla_decode_sm90_e4m3_tall_ring.cuh"
#include "mla_decode_sm90_e4m3_widen.cuh"

namespace attn_cuda {

template <int DT>
struct mla_e4m3_tall_math {
    using shape = mla_e4m3_tall;
    static constexpr int N = MLA90_ROWS, C = N / 4, COLUMNS = 4; /* of 64 values: half of them */
    const mla_attend_params &p;
    typename shape::shared &sh;
    const uint32_t smem;
    const int wg, tid, warp, lane, group;
    float o[COLUMNS][N / 2], sum[C];
    uint32_t x[2][4], raw; /* what was read last, and from where */
    bool deep;             /* a row is: its blocks go the way of those that raise a top */

    ATTN_DEV mla_e4m3_tall_math(const mla_attend_params &params, typename shape::shared &shared,
                                uint32_t smem_, int warpgroup)
        : p(params), sh(shared), smem(smem_), wg(warpgroup), tid(threadIdx.x & 127), warp(tid >> 5),
          lane(tid & 31), group(lane >> 2) {}
    static ATTN_DEV void both() { named_barrier(1, 256); }
    ATTN_DEV int row_of(int t) const { return (t >> 1) * 8 + (lane & 3) * 2 + (t & 1); }
    static ATTN_DEV constexpr int at(int t) { return 4 * (t >> 1) + (t & 1); }

    /* A number of each row from each of the 8 warps, where P lies between two pairs of blocks. */
    ATTN_DEV uint32_t exchange(int of_warp, int row) const {
        return smem + shape::P_AT + (uint32_t)((of_warp * N + row) * 4);
    }

    /* Columns 64 j .. 64 j + 64 of the keys that enter_keys began with; block n came through the ring as the
     * n-th. */
    ATTN_DEV void load_keys(int j, uint32_t rope) {
#pragma unroll
        for (int u = 0; u < 2; u++)
            ldmatrix_x4(x[u],
                        j < 8 ? (raw ^ ((j & 1) * 64 + u * 32)) + (j >> 1) * MLA90_RAW_BOX : rope ^ (u * 32));
    }
    ATTN_DEV void enter_keys(int n) {
        const int stage = n % shape::STAGES;
        mbar_wait(smem_addr(&sh.full[stage]), n / shape::STAGES & 1);
        raw =
            smem + shape::RING_AT + stage * shape::VALUES + mla90_raw_at(warp * 16 + (lane & 15), lane >> 4);
        load_keys(0, 0);
    }
    /* Columns 64 d .. 64 d + 64 of this warpgroup's half of the values, likewise. */
    ATTN_DEV void load_values(int d) {
#pragma unroll
        for (int u = 0; u < 2; u++)
            ldmatrix_x4_trans(x[u], (raw ^ ((d & 1) * 64)) + (d >> 1) * MLA90_RAW_BOX + u * 32 * 128);
    }
    ATTN_DEV void enter_values(int n, bool wait) {
        const int stage = n % shape::STAGES;
        if (wait) mbar_wait(smem_addr(&sh.full[stage]), n / shape::STAGES & 1);
        raw =
            smem + shape::RING_AT + stage * shape::VALUES + wg * 2 * MLA90_RAW_BOX + mla90_raw_at(lane, warp);
        load_values(0);
    }

    /* S^T of block n, of which the first keys have been read. */
    ATTN_DEV void scores(float (&s)[N / 2], int n) {
        const int slot = n % shape::ROPES;
        const uint64_t qd = wgmma_desc(smem, 16, 1024);
        const uint32_t rope =
            smem + shape::ROPE_AT + slot * shape::ROPE + mla90_rope_at(warp * 16 + (lane & 15), lane >> 4);
        uint32_t a[2][16];
#pragma unroll
        for (int j = 0; j < MLA90_SLABS; j++) {
            if (j >= 2) wgmma_wait<1>(), mla90_pin(a[j & 1]);
            mla90_widen_keys(a[j & 1], x[0]), mla90_widen_keys(a[j & 1] + 8, x[1]);
            if (j == 7) mbar_wait(smem_addr(&sh.rope_full[slot]), n / shape::ROPES & 1);
            if (j < 8)
                load_keys(j + 1, rope);
            else {
                __syncwarp();
                if (lane == 0) mbar_arrive(smem_addr(&sh.rope_empty[slot]));
            }
            mla90_multiply_raw<N>(s, a[j & 1], qd + (uint64_t)(j * (shape::QUERY_SLAB >> 4)), j == 0);
        }
        wgmma_wait<0>();
        mla90_pin(a[0]), mla90_pin(a[1]);
        wgmma_pin(s);
    }

    /* Keys that rows do not see. */
    ATTN_DEV void mask(float (&s)[N / 2], int k0) const {
        const int k = k0 + warp * 16 + group;
#pragma unroll
        for (int t = 0; t < C; t++) {
            const int limit = sh.limit[row_of(t)];
            if (k >= limit) s[at(t)] = -INFINITY;
            if (k + 8 >= limit) s[at(t) + 2] = -INFINITY;
        }
    }

    /* A score passed its top by more than 8 (log2 units): new tops, and everything before on their scale. */
    ATTN_DEV void raise(const float (&s)[N / 2], float scale) {
#pragma unroll
        for (int t = 0; t < C; t++) {
            float most = fmaxf(s[at(t)], s[at(t) + 2]);
#pragma unroll
            for (int d = 4; d < 32; d *= 2)
                most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
            if (group == 0) st_shared_f32(exchange(wg * 4 + warp, row_of(t)), most);
        }
        both();
        if (wg == 0 && tid < N) {
            float most = -INFINITY;
#pragma unroll
            for (int w = 0; w < 8; w++)
                most = fmaxf(most, ld_shared_f32(exchange(w, tid)));
            most = __fmul_rn(most, scale);
            const float top = sh.top[tid], to = most - top > 8.f ? most : top;
            sh.top[tid] = to, sh.factor[tid] = ex2(top - to);
        }
        both();
        deep = false;
#pragma unroll
        for (int t = 0; t < C; t++)
            deep |= is_deep(sh.top[row_of(t)]);
        multiply<true>();
    }
    /* By the factors of the rows. */
    template <bool SUMS>
    ATTN_DEV void multiply() {
#pragma unroll
        for (int t = 0; t < C; t += 2) {
            const float2 f = *(const float2 *)&sh.factor[row_of(t)];
            if (SUMS) sum[t] *= f.x, sum[t + 1] *= f.y;
#pragma unroll
            for (int d = 0; d < COLUMNS; d++) {
                o[d][at(t)] *= f.x, o[d][at(t) + 2] *= f.x;
                o[d][at(t + 1)] *= f.y, o[d][at(t + 1) + 2] *= f.y;
            }
        }
    }

    /* P of this warpgroup's block into shared memory, [row][key]; adds up what it holds. Says whether a score
     * passed its top by more than 8 (log2 units), so that P is of no use. */
    template <class F>
    ATTN_DEV bool make_p(const float (&s)[N / 2], float (&part)[C], F exponent) const {
        const int matrix = lane >> 3, r = (matrix >> 1) * 8 + (lane & 7), chunk = warp * 2 + (matrix & 1);
        const uint32_t to = smem + shape::P_AT + wg * shape::P_SLAB + r * 128 + ((chunk ^ (r & 7)) << 4);
        float most = 0.f;
#pragma unroll
        for (int j = 0; j < N / 16; j++) {
            uint32_t packed[4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int t = 4 * j + 2 * i;
                const float2 top = *(const float2 *)&sh.top[row_of(t)];
                const float a = exponent(s[at(t)], top.x), b = exponent(s[at(t + 1)], top.y),
                            c = exponent(s[at(t) + 2], top.x), d = exponent(s[at(t + 1) + 2], top.y);
                most = fmaxf(fmaxf(most, fmaxf(a, b)), fmaxf(c, d));
                const float ea = ex2(a), eb = ex2(b), ec = ex2(c), ed = ex2(d);
                part[t] = ea + ec, part[t + 1] = eb + ed;
                packed[2 * i] = pack2<DT_F16>(ea, eb), packed[2 * i + 1] = pack2<DT_F16>(ec, ed);
            }
            stmatrix_x4_trans(to + j * 2048, packed[0], packed[1], packed[2], packed[3]);
        }
        return most > 8.f;
    }

    /* Blocks n and n + 1, or the last one, times their P. more: there is another block for this warpgroup. */
    template <int BLOCKS>
    ATTN_DEV void add_values(int n, bool more) {
        uint32_t a[2][16];
#pragma unroll
        for (int d = 0; d < COLUMNS; d++)
            wgmma_pin(o[d]);
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            const uint64_t pd = wgmma_desc(smem + shape::P_AT + b * shape::P_SLAB, 16, 1024);
#pragma unroll
            for (int d = 0; d < COLUMNS; d++) {
                if (b > 0 || d >= 2) wgmma_wait<1>(), mla90_pin(a[d & 1]);
                mla90_widen_values(a[d & 1], x[0]), mla90_widen_values(a[d & 1] + 8, x[1]);
                if (d < COLUMNS - 1)
                    load_values(d + 1);
                else {
                    __syncwarp();
                    if (lane == 0) mbar_arrive(smem_addr(&sh.empty[(n + b) % shape::STAGES]));
                    if (b + 1 < BLOCKS) enter_values(n + b + 1, false);
                }
                mla90_multiply_raw<N>(o[d], a[d & 1], pd);
            }
        }
        if (more) enter_keys(n + 2 + wg);
        wgmma_wait<0>();
        mla90_pin(a[0]), mla90_pin(a[1]);
#pragma unroll
        for (int d = 0; d < COLUMNS; d++)
            wgmma_pin(o[d]);
        __syncwarp();
        if (lane == 0) mbar_arrive(smem_addr(&sh.read));
    }

    /* Keys k0 .. k0 + 128 of the item, blocks n and n + 1; `turn` pairs came before. */
    ATTN_DEV void pair(const mla_item &it, int all, float scale, int k0, int n, int turn) {
        const int mine = k0 + wg * MLA90_KEYS;
        float s[N / 2], part[C];
        if (mine < it.k_end) {
            scores(s, n + wg);
            if (mine + MLA90_KEYS > all) mask(s, mine);
        } else
#pragma unroll
            for (int i = 0; i < N / 2; i++)
                s[i] = -INFINITY;
        mbar_wait(smem_addr(&sh.read), (turn & 1) ^ 1);
        const bool whole = k0 + 2 * MLA90_KEYS <= it.k_end; /* nothing to clean, so values can be read */
        if (whole) enter_values(n, true);
        const bool risen = make_p(s, part, [&](float x, float top) { return fmaf(x, scale, -top); }) || deep;
        if (__any_sync(~0u, risen) && lane == 0) sh.risen = turn;
        if (mine < it.k_end && mine + MLA90_KEYS > it.k_end)
            mla90_clean_raw(smem + shape::RING_AT + (n + wg) % shape::STAGES * shape::VALUES,
                            it.k_end - mine);
        fence_proxy_async();
        both();
        if (sh.risen == turn) {
            raise(s, scale);
            make_p(s, part, [&](float x, float top) { return __fmul_rn(x, scale) - top; });
            fence_proxy_async();
            both();
        }
        if (!whole) enter_values(n, true);
#pragma unroll
        for (int t = 0; t < C; t++)
            sum[t] += part[t];
        const bool more = k0 + (2 + wg) * MLA90_KEYS < it.k_end;
        if (k0 + MLA90_KEYS < it.k_end)
            add_values<2>(n, more);
        else
            add_values<1>(n, more);
    }

    ATTN_DEV void finish(const mla_item &it, int first_row, int rows, int rank_row, float k_scale) {
        const int64_t slot_row0 = (int64_t)it.slot * p.tile_rows + rank_row;
        both(); /* nobody reads P any more */
#pragma unroll
        for (int t = 0; t < C; t++) {
#pragma unroll
            for (int d = 4; d < 32; d *= 2)
                sum[t] += __shfl_xor_sync(~0u, sum[t], d);
            if (group == 0) st_shared_f32(exchange(wg * 4 + warp, row_of(t)), sum[t]);
        }
        both();
        if (wg == 0 && tid < N) {
            float all = 0.f;
#pragma unroll
            for (int w = 0; w < 8; w++)
                all += ld_shared_f32(exchange(w, tid));
            sh.factor[tid] = all == 0.f ? 0.f : k_scale / all; /* NaN stays NaN */
            const float lse = all == 0.f ? -INFINITY : sh.top[tid] + log2f(all);
            sh.top[tid] = lse;
            if (tid < rows) mla90_store_lse(p, it, first_row + tid, lse);
        }
        both();
        multiply<false>();
        mla90_store_item<DT, N>(p, it, o, wg, first_row, rows, slot_row0, sh.top);
    }

    ATTN_DEV void run(int rank_row, int item0, int item1) {
        const mla_e4m3_queries<N> tile(smem);
        mla_item it = {};
        if (item0 < item1) it = mla_item_of(p, item0);
        pdl_wait();
        int n = 0, turn = 0; /* blocks that came through the ring, and pairs */
        for (int i = item0; i < item1; i++) {
            if (i > item0) it = mla_item_of(p, i);
            const int first_row = it.first_row + rank_row, rows = it.num_rows - rank_row;
            if (rows <= 0) continue;
            const int all =
                min(it.k_end, it.base + first_row / p.num_heads + 1); /* keys that every row sees */
            if (i > item0) both(); /* queries, tops and sums of the item before have been read */
            tile.fetch(p, first_row, rows);
            const float k_scale = p.k_scale ? __ldg(p.k_scale) : 1.f;
            const float scale = p.scale * 1.4426950408889634f * fmaxf(fabsf(k_scale), 1e-30f) *
                                (p.q_scale ? __ldg(p.q_scale) : 1.f);
            if (wg == 0 && tid < N) {
                sh.top[tid] = tid < rows ? MLA90_NO_MAX : MLA90_NO_ROW; /* rows that do not exist get P = 0 */
                sh.limit[tid] = min(it.k_end, it.base + (first_row + tid) / p.num_heads + 1);
            }
            deep = false;
#pragma unroll
            for (int t = 0; t < C; t++)
                sum[t] = 0.f;
#pragma unroll
            for (int d = 0; d < COLUMNS; d++)
#pragma unroll
                for (int j = 0; j < N / 2; j++)
                    o[d][j] = 0.f;
            tile.template convert<DT>(k_scale < 0.f);
            both();
            if (it.k_begin + wg * MLA90_KEYS < it.k_end) enter_keys(n + wg);
#pragma unroll 1
            for (int k0 = it.k_begin; k0 < it.k_end; k0 += 2 * MLA90_KEYS, n += 2)
                pair(it, all, scale, k0, n, turn++);
            n -= (it.k_end - it.k_begin + MLA90_KEYS - 1) / MLA90_KEYS % 2; /* the last pair was one */
            finish(it, first_row, rows, rank_row, k_scale);
        }
    }
};

template <int DT>
ATTN_DEV void mla_e4m3_tall_run(const mla_decode_sm90_params &P, mla_e4m3_tall::shared &sh, uint8_t *smem_raw,
                                int rank_row, int item0, int item1) {
    using shape = mla_e4m3_tall;
    const uint32_t smem = smem_addr(smem_raw);
    const int wg = __shfl_sync(~0u, (int)threadIdx.x >> 7, 0);
    pdl_launch();
    if (threadIdx.x == 0) shape::start(sh);
    __syncthreads();
    if (wg == 2) {
        setmaxnreg_dec<24>();
        const int warp = __shfl_sync(~0u, (int)threadIdx.x >> 5 & 3, 0);
        if (warp == 0)
            mla_e4m3_tall_produce<false>(P, sh.full, sh.empty, smem + shape::RING_AT, rank_row, item0, item1);
        else if (warp == 1)
            mla_e4m3_tall_produce<true>(P, sh.rope_full, sh.rope_empty, smem + shape::ROPE_AT, rank_row,
                                        item0, item1);
    } else {
        setmaxnreg_inc<240>();
        mla_e4m3_tall_math<DT>(P.p, sh, smem, wg).run(rank_row, item0, item1);
    }
}

} /* namespace attn_cuda */
#endif
