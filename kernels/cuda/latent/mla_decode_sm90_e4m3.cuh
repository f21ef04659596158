/* SPDX-License-Identifier: Apache-2.0 */
/* Dense MLA on Hopper over caches of e4m3, transposed: S^T = K Q^T and O^T = V^T P^T, so that keys and value
 * columns fill the 64 rows of a wgmma and the query rows are its N columns. Keys and values are the operand
 * from registers: a thread reads raw bytes by ldmatrix and widens them to float16, in which every e4m3 number
 * is exact, so nothing widened is ever written. The scale goes into the softmax and the result. Tiles of up
 * to 32 rows: two warpgroups compute, without meeting before the end of an item, each every other block of
 * keys. A warp of the third brings keys. */
#ifndef MLA_DECODE_SM90_E4M3_CUH
#define MLA_DECODE_SM90_E4M3_CUH

#include "mla_decode_sm90_columns.cuh"
#include "mla_decode_sm90_e4m3_store.cuh"
#include "mla_decode_sm90_e4m3_tall.cuh"
#include "mla_decode_sm90_e4m3_widen.cuh"
#include "mla_far_rows.cuh"

namespace attn_cuda {

template <int DT, int N>
struct mla_e4m3_math : mla_columns<DT_F16, N> {
    using shape = mla_e4m3<N>;
    using columns = mla_columns<DT_F16, N>;
    using columns::C;
    using columns::group;
    using columns::lane;
    using columns::o;
    using columns::sum;
    using columns::tid;
    using columns::top;
    using columns::warp;
    const mla_attend_params &p;
    typename shape::shared &sh;
    const uint32_t queries, ring;
    const int wg;
    const uint32_t key_row, value_row; /* this lane's address in ldmatrix, without the chunk */

    ATTN_DEV mla_e4m3_math(const mla_attend_params &params, typename shape::shared &shared, uint32_t smem,
                           int warpgroup)
        : columns(shared.warp[warpgroup], smem + shape::P_AT + warpgroup * shape::P_SLAB, 2 + 2 * warpgroup),
          p(params), sh(shared), queries(smem), ring(smem + shape::RING_AT), wg(warpgroup),
          key_row(warp * 16 + (lane & 15)), value_row(lane) {}
    static ATTN_DEV void both() { named_barrier(1, 256); }

    ATTN_DEV void scores(float (&s)[N / 2], uint32_t raw) const {
        const uint64_t qd = wgmma_desc(queries, 16, 1024);
        const int high = lane >> 4; /* the second of two chunks */
        uint32_t at[4], rope[2], a[2][16], x[2][4];
#pragma unroll
        for (int c = 0; c < 4; c++)
            at[c] = raw + mla90_raw_at(key_row, 2 * c + high);
#pragma unroll
        for (int c = 0; c < 2; c++)
            rope[c] = raw + mla90_raw_at(key_row, 32 + 2 * c + high);
        auto load = [&](int j) {
#pragma unroll
            for (int u = 0; u < 2; u++)
                ldmatrix_x4(x[u], j < 8 ? at[(j & 1) * 2 + u] + (j >> 1) * MLA90_RAW_BOX : rope[u]);
        };
        load(0);
#pragma unroll
        for (int j = 0; j < MLA90_SLABS; j++) {
            if (j >= 2) wgmma_wait<1>(), mla90_pin(a[j & 1]);
            mla90_widen_keys(a[j & 1], x[0]), mla90_widen_keys(a[j & 1] + 8, x[1]);
            if (j + 1 < MLA90_SLABS) load(j + 1);
            mla90_multiply_raw<N>(s, a[j & 1], qd + (uint64_t)(j * (shape::QUERY_SLAB >> 4)), j == 0);
        }
        wgmma_wait<0>();
        mla90_pin(a[0]), mla90_pin(a[1]);
        wgmma_pin(s);
    }

    ATTN_DEV void add_values(uint32_t raw, int stage) {
        const uint64_t pd = wgmma_desc(this->p_slab, 16, 1024);
        uint32_t at[2], a[2][16], x[2][4];
#pragma unroll
        for (int d = 0; d < 2; d++)
            at[d] = raw + mla90_raw_at(value_row, 4 * d + warp);
        auto load = [&](int d) {
#pragma unroll
            for (int u = 0; u < 2; u++)
                ldmatrix_x4_trans(x[u], at[d & 1] + (d >> 1) * MLA90_RAW_BOX + u * 32 * 128);
        };
        load(0);
#pragma unroll
        for (int d = 0; d < 8; d++)
            wgmma_pin(o[d]);
#pragma unroll
        for (int d = 0; d < 8; d++) {
            if (d >= 2) wgmma_wait<1>(), mla90_pin(a[d & 1]);
            mla90_widen_values(a[d & 1], x[0]), mla90_widen_values(a[d & 1] + 8, x[1]);
            if (d < 7)
                load(d + 1);
            else {
                __syncwarp();
                if (lane == 0) mbar_arrive(smem_addr(&sh.empty[stage]));
            }
            mla90_multiply_raw<N>(o[d], a[d & 1], pd);
        }
        wgmma_wait<0>();
        mla90_pin(a[0]), mla90_pin(a[1]);
#pragma unroll
        for (int d = 0; d < 8; d++)
            wgmma_pin(o[d]);
    }

    /* P of a block into shared memory, [row][key]. It is made before it is known whether a score passed its
     * top by more than 8 (log2 units), and made again where one did. */
    ATTN_DEV void weigh(const float (&s)[N / 2], float scale, int k0) {
        uint32_t packed[N / 4];
        float part[C];
        auto make = [&]() {
            float most = 0.f;
#pragma unroll
            for (int i = 0; i < N / 8; i++) {
                const float *x = s + 4 * i;
                const float a = fmaf(x[0], scale, -top[2 * i]), b = fmaf(x[1], scale, -top[2 * i + 1]),
                            c = fmaf(x[2], scale, -top[2 * i]), d = fmaf(x[3], scale, -top[2 * i + 1]);
                most = fmaxf(fmaxf(most, fmaxf(a, b)), fmaxf(c, d));
                const float ea = ex2(a), eb = ex2(b), ec = ex2(c), ed = ex2(d);
                part[2 * i] = ea + ec, part[2 * i + 1] = eb + ed;
                packed[2 * i] = pack2<DT_F16>(ea, eb), packed[2 * i + 1] = pack2<DT_F16>(ec, ed);
            }
            return most > 8.f;
        };
        if (__any_sync(~0u, make()) && lane == 0) sh.risen[wg] = k0;
        this->barrier(); /* and nobody reads the P before */
        if (sh.risen[wg] == k0) this->raise(s, scale), make();
        const int matrix = lane >> 3, r = (matrix >> 1) * 8 + (lane & 7), chunk = warp * 2 + (matrix & 1);
        const uint32_t to = this->p_slab + r * 128 + ((chunk ^ (r & 7)) << 4);
#pragma unroll
        for (int j = 0; j < N / 16; j++)
            stmatrix_x4_trans(to + j * 2048, packed[4 * j], packed[4 * j + 1], packed[4 * j + 2],
                              packed[4 * j + 3]);
#pragma unroll
        for (int t = 0; t < C; t++)
            sum[t] += part[t];
    }

    /* Keys k0 .. k0 + 64 of the item, in this stage of the ring. phases: bit i is that of stage i. */
    ATTN_DEV void block(const mla_item &it, int first_row, int all, float scale, int k0, int stage,
                        uint32_t &phases) {
        const uint32_t raw = ring + stage * MLA90_RAW;
        float s[N / 2];
        mbar_wait(smem_addr(&sh.full[wg][stage]), phases >> stage & 1);
        phases ^= 1u << stage;
        scores(s, raw);
        if (k0 + MLA90_KEYS > all) {
            const int k = k0 + warp * 16 + group;
#pragma unroll
            for (int t = 0; t < C; t++) {
                const int limit = min(it.k_end, it.base + (first_row + this->row_of(t)) / p.num_heads + 1);
                if (k >= limit) s[this->at(t)] = -INFINITY;
                if (k + 8 >= limit) s[this->at(t) + 2] = -INFINITY;
            }
        }
        weigh(s, scale, k0);
        if (k0 + MLA90_KEYS > it.k_end) mla90_clean_raw(raw, it.k_end - k0);
        fence_proxy_async();
        this->barrier();
        add_values(raw, stage);
    }

    /* Both warpgroups had the same rows: each takes half of the value columns of both, WG 0 the first, and
     * ends with it in o[0 .. 3]. The factors already make them results. */
    ATTN_DEV void join(float (&f0)[C], float (&f1)[C]) {
        auto slot = [&](int d, int i) { return queries + (uint32_t)((d * (N / 2) + i) * 512 + tid * 4); };
        if (wg == 1)
#pragma unroll
            for (int d = 0; d < 4; d++)
#pragma unroll
                for (int i = 0; i < N / 2; i++)
                    st_shared_f32(slot(d, i), o[d][i]);
        both();
        if (wg == 0) {
#pragma unroll
            for (int d = 0; d < 4; d++)
#pragma unroll
                for (int i = 0; i < N / 2; i++) {
                    const int t = (i >> 2) * 2 + (i & 1);
                    const float other = ld_shared_f32(slot(d, i));
                    st_shared_f32(slot(d, i), o[d + 4][i]);
                    o[d][i] = fmaf(f1[t], other, f0[t] * o[d][i]);
                }
        }
        both();
        if (wg == 1)
#pragma unroll
            for (int d = 0; d < 4; d++)
#pragma unroll
                for (int i = 0; i < N / 2; i++) {
                    const int t = (i >> 2) * 2 + (i & 1);
                    o[d][i] = fmaf(f1[t], o[d + 4][i], f0[t] * ld_shared_f32(slot(d, i)));
                }
    }

    ATTN_DEV void finish(const mla_item &it, int index, int first_row, int rows, int rank_row,
                         float k_scale) {
        const int64_t slot_row0 = (int64_t)it.slot * p.tile_rows + rank_row;
#pragma unroll
        for (int t = 0; t < C; t++) {
            sum[t] = fmaf(o[0][this->at(t)], 0.f, sum[t]); /* P ends at 65504: mla_far_rows.cuh */
#pragma unroll
            for (int d = 4; d < 32; d *= 2)
                sum[t] += __shfl_xor_sync(~0u, sum[t], d);
            if (group == 0) sh.warp[wg][warp][this->row_of(t)] = sum[t];
            if (group == 0 && warp == 0) sh.top[wg][this->row_of(t)] = top[t];
        }
        both(); /* nobody reads queries any more */
        if (wg == 0 && tid < N) {
            const float top0 = sh.top[0][tid], top1 = sh.top[1][tid], most = fmaxf(top0, top1);
            float all = 0.f;
            for (int w = 0; w < 4; w++)
                all += sh.warp[0][w][tid] * ex2(top0 - most) + sh.warp[1][w][tid] * ex2(top1 - most);
            const float inv = all == 0.f ? 0.f : k_scale / all; /* NaN stays NaN */
            sh.top[0][tid] = ex2(top0 - most) * inv, sh.top[1][tid] = ex2(top1 - most) * inv;
            sh.warp[0][0][tid] = tid < rows && mla_is_far(most, all) ? 1.f : 0.f;
            const float lse = all == 0.f ? -INFINITY : most + log2f(all);
            sh.warp[0][1][tid] = lse;
            if (tid < rows) mla90_store_lse(p, it, first_row + tid, lse);
        }
        both();
        const uint32_t far = __ballot_sync(~0u, lane < N && sh.warp[0][0][lane] != 0.f);
        float f0[C], f1[C];
#pragma unroll
        for (int t = 0; t < C; t++)
            f0[t] = sh.top[0][this->row_of(t)], f1[t] = sh.top[1][this->row_of(t)];
        join(f0, f1);
        mla90_store_item<DT, N>(p, it, o, wg, first_row, rows, slot_row0, sh.warp[0][1], far);
        if (far) { /* read anew: nothing more is kept for it in registers */
            const mla_item again = mla_item_of(p, index);
            const int w = __shfl_sync(~0u, wg * 4 + warp, 0);
#pragma unroll 1
            for (int r = w; r < N; r += 8)
                if (__any_sync(~0u, far >> r & 1))
                    mla_far_row<DT>(p, again, again.first_row + rank_row + r,
                                    (int64_t)again.slot * p.tile_rows + rank_row + r);
        }
    }

    ATTN_DEV void run(int rank_row, int item0, int item1) {
        const mla_e4m3_queries<N> tile(queries);
        mla_item it = {};
        if (item0 < item1) it = mla_item_of(p, item0);
        pdl_wait();
        int n = 0; /* blocks that came through the ring */
        uint32_t phases = 0;
        for (int i = item0; i < item1; i++) {
            if (i > item0) it = mla_item_of(p, i);
            const int first_row = it.first_row + rank_row, rows = it.num_rows - rank_row;
            if (rows <= 0) continue;
            const int all =
                min(it.k_end, it.base + first_row / p.num_heads + 1); /* keys that every row sees */
            if (i > item0) both(); /* what lies in place of the queries has been read */
            tile.fetch(p, first_row, rows);
            const float k_scale = p.k_scale ? __ldg(p.k_scale) : 1.f;
            const float scale = p.scale * 1.4426950408889634f * fmaxf(fabsf(k_scale), 1e-30f) *
                                (p.q_scale ? __ldg(p.q_scale) : 1.f);
            this->start(rows);
            if (tid == 0) sh.risen[wg] = -1;
            tile.template convert<DT>(k_scale < 0.f);
            both();
            const int blocks = (it.k_end - it.k_begin + MLA90_KEYS - 1) / MLA90_KEYS;
#pragma unroll 1
            for (int b = wg; b < blocks; b += 2)
                block(it, first_row, all, scale, it.k_begin + b * MLA90_KEYS, (n + b) % shape::STAGES,
                      phases);
            n += blocks;
            finish(it, i, first_row, rows, rank_row, k_scale);
        }
    }
};

/* The CTA has rows rank_row .. rank_row + N of an item. */
template <int DT, int N>
ATTN_DEV void mla_e4m3_run(const mla_decode_sm90_params &P, typename mla_e4m3<N>::shared &sh, uint8_t *smem,
                           int rank_row, int item0, int item1) {
    using shape = mla_e4m3<N>;
    const uint32_t queries = smem_addr(smem);
    const int wg = __shfl_sync(~0u, (int)threadIdx.x >> 7, 0);
    pdl_launch();
    if (threadIdx.x == 0) shape::start(sh);
    __syncthreads();
    if (wg == 2) {
        setmaxnreg_dec<40>();
        if (threadIdx.x < MLA90_THREADS - 96)
            mla_e4m3_produce<shape>(P, sh, queries + shape::RING_AT, rank_row, item0, item1);
    } else {
        setmaxnreg_inc<232>();
        mla_e4m3_math<DT, N>(P.p, sh, queries, wg).run(rank_row, item0, item1);
    }
}

/* The P.ctas CTAs of a part have 64 rows each of its items. */
template <int DT>
__global__ void __launch_bounds__(MLA90_THREADS, 1)
    mla_decode90_e4m3_kernel(const __grid_constant__ mla_decode_sm90_params P) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) /* empty where only other architectures were asked for */
    extern __shared__ __align__(1024) uint8_t smem_raw[];
    __shared__ __align__(8) union {
        mla_e4m3<16>::shared n16;
        mla_e4m3<32>::shared n32;
        mla_e4m3_tall::shared tall;
    } sh;
    uint8_t *smem = smem_raw + (-smem_addr(smem_raw) & 1023);
    const int part = blockIdx.x / P.ctas, rank = blockIdx.x - part * P.ctas;
    const int item0 = __ldg(P.p.parts + part), item1 = __ldg(P.p.parts + part + 1);
    const int most = __ldg(&P.p.slice->most_rows);
    if (most <= 16)
        mla_e4m3_run<DT, 16>(P, sh.n16, smem, rank * MLA90_ROWS, item0, item1);
    else if (most <= 32)
        mla_e4m3_run<DT, 32>(P, sh.n32, smem, rank * MLA90_ROWS, item0, item1);
    else
        mla_e4m3_tall_run<DT>(P, sh.tall, smem, rank * MLA90_ROWS, item0, item1);
#endif
}

} /* namespace attn_cuda */
#endif
