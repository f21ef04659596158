/* SPDX-License-Identifier: Apache-2.0 */
/* Dense MLA on Hopper over caches of e4m3, transposed: S^T = K Q^T and O^T = V^T P^T, so that keys and value columns fill
 * the 64 rows of a wgmma and the query rows are its N columns. Keys and values are the operand from registers: a thread
 * reads raw bytes by ldmatrix and widens them to float16, in which every e4m3 number is exact, so nothing widened is ever
 * written. The scale goes into the softmax and the result. Two warpgroups compute, without meeting before the end of an
 * item: over up to 32 rows each takes every other block of keys for all of them, over up to 64 rows each takes all blocks
 * for 32 of them. A warp of the third brings keys. */
#ifndef MLA_DECODE_E4M3_SM90_CUH
#define MLA_DECODE_E4M3_SM90_CUH

#include "mla_decode_columns_sm90.cuh"
#include "mla_decode_e4m3_ring_sm90.cuh"
#include "mla_part_sm90.cuh"

namespace attn_cuda {

template <int DT, int N, int ROWS>
struct mla_e4m3_math : mla_columns<DT_F16, N> {
    using shape = mla_e4m3<N, ROWS>;
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

    /* Bytes of columns 16 c .. 16 c + 32 of the warp's 16 keys as A fragments of two steps. */
    static ATTN_DEV void widen_keys(uint32_t *a, const uint32_t (&x)[4]) {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            a[4 * k] = e4m3x2_to_f16x2<0>(x[2 * k]), a[4 * k + 1] = e4m3x2_to_f16x2<0>(x[2 * k + 1]);
            a[4 * k + 2] = e4m3x2_to_f16x2<1>(x[2 * k]), a[4 * k + 3] = e4m3x2_to_f16x2<1>(x[2 * k + 1]);
        }
    }
    /* Bytes of 32 keys in 16 value columns, which came transposed in pairs of columns: fragment row g is column 2g, row
     * g + 8 column 2g + 1. */
    static ATTN_DEV void widen_values(uint32_t *a, const uint32_t (&x)[4]) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t y = prmt(x[k], 0, 0x3120);
            a[2 * k] = e4m3x2_to_f16x2<0>(y), a[2 * k + 1] = e4m3x2_to_f16x2<1>(y);
        }
    }
    static ATTN_DEV void pin(uint32_t (&a)[16]) {
#pragma unroll
        for (int i = 0; i < 16; i++)
            asm volatile("" : "+r"(a[i])::"memory");
    }

    ATTN_DEV void scores(float (&s)[N / 2], uint32_t raw) const {
        const uint64_t qd = wgmma_desc(queries + (shape::BY_ROWS ? wg * N * 128 : 0), 16, 1024);
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
            if (j >= 2) wgmma_wait<1>(), pin(a[j & 1]);
            widen_keys(a[j & 1], x[0]), widen_keys(a[j & 1] + 8, x[1]);
            if (j + 1 < MLA90_SLABS) load(j + 1);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint64_t b = qd + (uint64_t)(j * (shape::QUERY_SLAB >> 4) + 2 * k);
                if (j == 0 && k == 0)
                    wgmma_rkz<N, DT_F16>::run(s, a[0], b);
                else
                    wgmma_rk<N, DT_F16>::run(s, a[j & 1] + 4 * k, b);
            }
            wgmma_commit();
        }
        wgmma_wait<0>();
        pin(a[0]), pin(a[1]);
        wgmma_pin(s);
    }

    /* Rows of the block from `first` on become zero: 0 * NaN is NaN. */
    ATTN_DEV void clean(uint32_t raw, int first) const {
        for (int i = tid; i < (MLA90_KEYS - first) * 32; i += 128)
            st_shared_v4(raw + mla90_raw_at(first + (i >> 5), i & 31), make_uint4(0, 0, 0, 0));
        fence_proxy_async();
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
            if (d >= 2) wgmma_wait<1>(), pin(a[d & 1]);
            widen_values(a[d & 1], x[0]), widen_values(a[d & 1] + 8, x[1]);
            if (d < 7)
                load(d + 1);
            else {
                __syncwarp();
                if (lane == 0) mbar_arrive(smem_addr(&sh.empty[stage]));
            }
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; k++)
                wgmma_rk<N, DT_F16>::run(o[d], a[d & 1] + 4 * k, pd + 2 * k);
            wgmma_commit();
        }
        wgmma_wait<0>();
        pin(a[0]), pin(a[1]);
#pragma unroll
        for (int d = 0; d < 8; d++)
            wgmma_pin(o[d]);
    }

    /* Keys k0 .. k0 + 64 of the item, in this stage of the ring. phases: bit i is that of stage i. */
    ATTN_DEV void block(const mla_item &it, int first_row, int all, float scale, int k0, int stage,
                        uint32_t &phases) {
        const uint32_t raw = ring + stage * MLA90_RAW;
        float s[N / 2];
        mbar_wait(smem_addr(&sh.full[shape::BY_ROWS ? 0 : wg][stage]), phases >> stage & 1);
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
        this->softmax(s, scale);
        if (k0 + MLA90_KEYS > it.k_end) clean(raw, it.k_end - k0);
        fence_proxy_async();
        this->barrier();
        add_values(raw, stage);
    }

    /* Both warpgroups had the same rows: each takes half of the value columns of both, WG 0 the first. The factors already
     * make them results. */
    ATTN_DEV void join(float (&f0)[C], float (&f1)[C]) {
        auto slot = [&](int d, int i) {
            return queries + (uint32_t)(((d & 3) * (N / 2) + i) * 512 + tid * 4);
        };
        auto put = [&](uint32_t at, float v) {
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
        };
        auto get = [&](uint32_t at) {
            float v;
            asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
            return v;
        };
        if (wg == 1)
#pragma unroll
            for (int d = 0; d < 4; d++)
#pragma unroll
                for (int i = 0; i < N / 2; i++)
                    put(slot(d, i), o[d][i]);
        both();
        if (wg == 0) {
#pragma unroll
            for (int d = 0; d < 4; d++)
#pragma unroll
                for (int i = 0; i < N / 2; i++) {
                    const int t = (i >> 2) * 2 + (i & 1);
                    const float other = get(slot(d, i));
                    put(slot(d, i), o[d + 4][i]);
                    o[d][i] = fmaf(f1[t], other, f0[t] * o[d][i]);
                }
        }
        both();
        if (wg == 1)
#pragma unroll
            for (int d = 4; d < 8; d++)
#pragma unroll
                for (int i = 0; i < N / 2; i++) {
                    const int t = (i >> 2) * 2 + (i & 1);
                    o[d][i] = fmaf(f1[t], o[d][i], f0[t] * get(slot(d, i)));
                }
    }

    template <int FROM, int TO>
    ATTN_DEV void store(const mla_item &it, int first_row, int rows, int64_t slot_row0) {
#pragma unroll
        for (int t = 0; t < C; t++) {
            const int r = this->row_of(t), column = warp * 16 + 2 * group;
            const uint32_t power =
                it.slot >= 0 ? mla_part::power(this->template largest<FROM, TO>(t)) : 127u << 23;
            const float f = mla_part::inverse(power);
            if (r >= rows) continue;
            const mla_part part(p, slot_row0 + r);
            uint16_t *out =
                it.slot >= 0 ? part.values + column
                             : (uint16_t *)p.latent + (int64_t)(first_row + r - p.slice_row0) * 512 + column;
            if (it.slot >= 0 && group == 0)
#pragma unroll
                for (int half = FROM / 4; half < TO / 4; half++)
                    part.powers()[4 * half + warp] = __uint_as_float(power);
#pragma unroll
            for (int d = FROM; d < TO; d++) {
                const float a = o[d][this->at(t)] * f, b = o[d][this->at(t) + 2] * f;
                *(uint32_t *)(out + d * 64) = it.slot >= 0 ? pack2<DT_F16>(a, b) : pack2<DT>(a, b);
            }
        }
    }

    ATTN_DEV void finish(const mla_item &it, int first_row, int rows, int rank_row, float k_scale) {
        this->add_up();
        float f0[C], f1[C], lse[C];
        if constexpr (!shape::BY_ROWS) {
            if (warp == 0 && group == 0)
#pragma unroll
                for (int t = 0; t < C; t++)
                    sh.top[wg][this->row_of(t)] = top[t], sh.sum[wg][this->row_of(t)] = sum[t];
            both(); /* nobody reads queries any more */
        }
#pragma unroll
        for (int t = 0; t < C; t++) {
            const int r = this->row_of(t);
            float most = top[t], all = sum[t], w0 = 1.f, w1 = 1.f;
            if constexpr (!shape::BY_ROWS) {
                most = fmaxf(sh.top[0][r], sh.top[1][r]);
                w0 = ex2(sh.top[0][r] - most), w1 = ex2(sh.top[1][r] - most);
                all = fmaf(w1, sh.sum[1][r], w0 * sh.sum[0][r]);
            }
            const float inv = all == 0.f ? 0.f : k_scale / all; /* NaN stays NaN */
            f0[t] = w0 * inv, f1[t] = w1 * inv;
            lse[t] = all == 0.f ? -INFINITY : most + log2f(all);
        }
        const int64_t slot_row0 = (int64_t)it.slot * p.tile_rows + rank_row;
        if (warp == 0 && group == 0 && (shape::BY_ROWS || wg == 0))
#pragma unroll
            for (int t = 0; t < C; t++) {
                const int r = this->row_of(t), row = first_row + r;
                if (r >= rows) continue;
                if (it.slot >= 0)
                    *mla_part(p, slot_row0 + r).lse() = lse[t];
                else if (p.lse)
                    p.lse[(row % p.num_heads) * p.lse_head + (row / p.num_heads) * p.lse_token] =
                        lse[t] * 0.6931471805599453f;
            }
        if constexpr (shape::BY_ROWS) {
#pragma unroll
            for (int d = 0; d < 8; d++)
#pragma unroll
                for (int i = 0; i < N / 2; i++)
                    o[d][i] *= f0[(i >> 2) * 2 + (i & 1)];
            store<0, 8>(it, first_row, rows, slot_row0);
        } else {
            join(f0, f1);
            if (wg == 0)
                store<0, 4>(it, first_row, rows, slot_row0);
            else
                store<4, 8>(it, first_row, rows, slot_row0);
        }
    }

    ATTN_DEV void run(int rank_row, int item0, int item1) {
        const float k_scale = p.k_scale ? __ldg(p.k_scale) : 1.f;
        const float scale = p.scale * 1.4426950408889634f * fmaxf(fabsf(k_scale), 1e-30f) *
                            (p.q_scale ? __ldg(p.q_scale) : 1.f);
        const int mine = shape::BY_ROWS ? wg * N : 0;
        int n = 0; /* blocks that came through the ring */
        uint32_t phases = 0;
        for (int i = item0; i < item1; i++) {
            const mla_item it = p.items[i];
            const int first_row = it.first_row + rank_row, rows = it.num_rows - rank_row;
            if (rows <= 0) continue;
            const int all =
                min(it.k_end, it.base + (first_row + mine) / p.num_heads + 1); /* keys that every row sees */
            if (i > item0) both(); /* what lies in place of the queries has been read */
            mla_e4m3_load_queries<DT, ROWS>(p, first_row, rows, queries, k_scale < 0.f ? -1.f : 1.f);
            this->start(rows - mine);
            both();
            const int blocks = (it.k_end - it.k_begin + MLA90_KEYS - 1) / MLA90_KEYS;
#pragma unroll 1
            for (int b = shape::BY_ROWS ? 0 : wg; b < blocks; b += shape::BY_ROWS ? 1 : 2)
                block(it, first_row + mine, all, scale, it.k_begin + b * MLA90_KEYS, (n + b) % shape::STAGES,
                      phases);
            n += blocks;
            finish(it, first_row + mine, rows - mine, rank_row + mine, k_scale);
        }
    }
};

/* The CTA has rows rank_row .. rank_row + ROWS of an item. */
template <int DT, int N, int ROWS>
ATTN_DEV void mla_e4m3_run(const mla_decode_sm90_params &P, typename mla_e4m3<N, ROWS>::shared &sh,
                           uint8_t *smem, int rank_row, int item0, int item1) {
    using shape = mla_e4m3<N, ROWS>;
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
        pdl_wait();
        mla_e4m3_math<DT, N, ROWS>(P.p, sh, queries, wg).run(rank_row, item0, item1);
    }
}

/* The P.ctas CTAs of a part have 64 rows each of its items. */
template <int DT>
__global__ void __launch_bounds__(MLA90_THREADS, 1)
    mla_decode90_e4m3_kernel(const __grid_constant__ mla_decode_sm90_params P) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) /* empty where only other architectures were asked for */
    extern __shared__ __align__(1024) uint8_t smem_raw[];
    __shared__ __align__(8) union {
        mla_e4m3<16, 16>::shared n16;
        mla_e4m3<32, 32>::shared n32;
        mla_e4m3<32, 64>::shared n64;
    } sh;
    uint8_t *smem = smem_raw + (-smem_addr(smem_raw) & 1023);
    const int part = blockIdx.x / P.ctas, rank = blockIdx.x - part * P.ctas;
    const int item0 = __ldg(P.p.parts + part), item1 = __ldg(P.p.parts + part + 1);
    const int most = __ldg(&P.p.slice->most_rows);
    if (most <= 16)
        mla_e4m3_run<DT, 16, 16>(P, sh.n16, smem, rank * MLA90_ROWS, item0, item1);
    else if (most <= 32)
        mla_e4m3_run<DT, 32, 32>(P, sh.n32, smem, rank * MLA90_ROWS, item0, item1);
    else
        mla_e4m3_run<DT, 32, 64>(P, sh.n64, smem, rank * MLA90_ROWS, item0, item1);
#endif
}

} /* namespace attn_cuda */
#endif
