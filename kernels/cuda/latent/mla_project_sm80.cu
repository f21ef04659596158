/* SPDX-License-Identifier: Apache-2.0 */
/* The per-head projections of MLA by mma.sync: queries through W_UK (b [k][n], transposed on the way out of
 * shared memory) and latents through W_UV (b [n][k]); both are rows of kv_b_proj as checkpoints have it, so
 * that the absorbed weights need no copy of another shape. A CTA makes 64 or 16 tokens x 64 columns of one
 * head. Up to 64 tokens are a matter of reading the weights: then a CTA asks for many steps at once; the
 * values' starts beside the end of the merge with its weights, and absorptions of many heads have 128 columns
 * a CTA, so that all run at once. An fp8 query (semantics 7.4) is
 * rounded to e4m3 on the way out, its rope columns by CTAs of their own, and kept in 16 bits, which hold
 * every e4m3 number: the attention kernels read it like any other. */
#include "../ptx/launch.cuh"
#include "../ptx/launch_after.cuh"
#include "../ptx/quad_sm80.cuh"
#include "mla_launch.h"
#include "mla_live.cuh"

#include <cuda_runtime.h>

using namespace attn_cuda;

enum { MANY = 64, FEW = 16, TK = 64, PROJECT_THREADS = 128 }; /* tokens and depth of a tile */

/* A tile: TM tokens, TN columns, so many steps of TK in flight; CTAS of a multiprocessor, for registers.
 * EARLY: may be launched while the kernel before ends (params->early). */
template <int TM_, int TN_, int STAGES_, int CTAS_, bool EARLY_ = false>
struct project_tile {
    static constexpr int TM = TM_, TN = TN_, STAGES = STAGES_, CTAS = CTAS_, STAGE = (TM_ + TN_) * 128,
                         SMEM = STAGES_ * STAGE;
    static constexpr bool EARLY = EARLY_;
};

ATTN_DEV uint32_t tile_at(int row, int chunk) {
    return (uint32_t)(row * 128 + ((chunk ^ (row & 7)) << 4));
}

/* Two values as e4m3 numbers. */
template <int DT>
ATTN_DEV uint32_t round_to_e4m3(float a, float b) {
    const uint32_t x = e4m3x2_to_f16x2<0>(f32x2_to_e4m3x2(a, b));
    if constexpr (DT == DT_F16) return x;
    const float2 f = unpack2<DT_F16>(x);
    return pack2<DT>(f.x, f.y);
}

ATTN_DEV float q_scale_of(const mla_project_params &p) {
    return p.q_scale ? __ldg(p.q_scale) : 1.f;
}
/* What is no positive normal number cannot be refused here: it makes NaN of every value. */
ATTN_DEV float checked(float scale) {
    return scale >= 1.175494351e-38f && scale <= 3.402823466e38f ? scale : __int_as_float(0x7fffffff);
}

/* The rope columns of TM tokens of a head; all of a thread are asked for before the first is divided. */
template <int DT, int TM>
ATTN_DEV void round_rope(const mla_project_params &p, const uint16_t *a, int h, int m0, int tokens) {
    constexpr int CHUNKS = MLA_ROPE / 8, EACH = TM * CHUNKS / PROJECT_THREADS,
                  STEP = PROJECT_THREADS / CHUNKS;
    const int t0 = m0 + threadIdx.x / CHUNKS, c = threadIdx.x % CHUNKS * 8;
    uint4 x[EACH] = {};
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (t0 + i * STEP < tokens) x[i] = *(const uint4 *)(a + (t0 + i * STEP) * p.a_token + p.k + c);
    const float scale = checked(q_scale_of(p));
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int t = t0 + i * STEP;
        if (t >= tokens) break;
        uint32_t *w = &x[i].x;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float2 f = unpack2<DT>(w[j]);
            w[j] = round_to_e4m3<DT>(__fdiv_rn(f.x, scale), __fdiv_rn(f.y, scale));
        }
        *(uint4 *)((uint16_t *)p.rope + ((int64_t)t * p.num_heads + h) * MLA_ROPE + c) = x[i];
    }
}

/* FP8: an fp8 query is absorbed. The four warps share 64 tokens, or the columns of 16. */
template <int DT, bool NK, bool FP8, class T>
__global__ void __launch_bounds__(PROJECT_THREADS, T::CTAS)
    project_kernel(const __grid_constant__ mla_project_params p) {
    constexpr int TM = T::TM, TN = T::TN, STAGES = T::STAGES;
    constexpr int WARP_N = TM == MANY ? TN : TN / 4; /* columns of a warp */
    extern __shared__ __align__(128) unsigned char smem[];
    const int h = blockIdx.z, n0 = blockIdx.x * TN, m0 = blockIdx.y * TM;
    const int tokens = p.counts ? min(p.tokens, mla_num_tokens(p.counts) - p.token0) : p.tokens;
    if (m0 >= tokens) {
        if (T::EARLY) pdl_wait(); /* nothing ends before what it follows */
        return;
    }
    pdl_launch(); /* who attends brings keys while queries are still absorbed */
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int row0 = TM == MANY ? warp * 16 : 0, col0 = TM == MANY ? 0 : warp * WARP_N;
    const uint16_t *a = (const uint16_t *)p.a + h * p.a_head, *b = (const uint16_t *)p.b + h * p.b_head;
    if (FP8 && n0 >= p.n) return round_rope<DT, TM>(p, a, h, m0, tokens);
    const int steps = (p.k + TK - 1) / TK;
    auto stage = [&](int s) { return smem_addr(smem) + s % STAGES * T::STAGE; };
    auto load_rows = [&](int s) {
        const uint32_t as = stage(s);
#pragma unroll
        for (int i = threadIdx.x; i < TM * 8; i += PROJECT_THREADS) {
            const int r = i >> 3, k = s * TK + (i & 7) * 8;
            const bool inside = m0 + r < tokens && k < p.k;
            cp_async_zfill<16>(as + tile_at(r, i & 7), inside ? a + (m0 + r) * p.a_token + k : a, inside);
        }
    };
    /* [column][64 of the depth], or blocks of 64 columns: [64 of the depth][64 columns] */
    auto load_weights = [&](int s) {
        const uint32_t bs = stage(s) + TM * 128;
#pragma unroll
        for (int i = threadIdx.x; i < TN * 8; i += PROJECT_THREADS) {
            const int r = i >> 3, c = i & 7, br = NK ? n0 + r : s * TK + (r & 63),
                      bc = NK ? s * TK + c * 8 : n0 + (r >> 6) * 64 + c * 8;
            const bool inside = NK ? br < p.n && bc < p.k : br < p.k && bc < p.n;
            cp_async_zfill<16>(bs + tile_at(r, c), inside ? b + br * p.b_row + bc : b, inside);
        }
    };
    float acc[WARP_N / 8][4] = {};
    if constexpr (T::EARLY) {
        for (int s = 0; s < STAGES - 1 && s < steps; s++)
            load_weights(s);
        pdl_wait();
    }
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < steps) {
            load_rows(s);
            if (!T::EARLY) load_weights(s);
        }
        cp_async_commit();
    }
    float scale = FP8 ? q_scale_of(p) : 1.f;          /* behind the copies, which take as long */
    const bool is_whole = T::EARLY && steps < STAGES; /* all steps are on their way: one wait is enough */
    if (is_whole) {
        cp_async_wait<0>();
        __syncthreads();
    }
    for (int s = 0; s < steps; s++) {
        if (!is_whole) {
            if (s + STAGES - 1 < steps) {
                load_rows(s + STAGES - 1);
                load_weights(s + STAGES - 1);
            }
            cp_async_commit();
            cp_async_wait<STAGES - 1>();
            __syncthreads();
        }
        const uint32_t as = stage(s), bs = as + TM * 128;
#pragma unroll
        for (int kk = 0; kk < TK / 16; kk++) {
            uint32_t x[4], y[4];
            ldmatrix_x4(x, as + tile_at(row0 + (lane & 15), kk * 2 + (lane >> 4)));
#pragma unroll
            for (int n = 0; n < WARP_N / 16; n++) {
                if constexpr (NK)
                    ldmatrix_x4(y, bs + tile_at(col0 + n * 16 + (lane & 7) + ((lane >> 4) << 3),
                                                kk * 2 + ((lane >> 3) & 1)));
                else {
                    const int unit = col0 / 8 + n * 2 + (lane >> 4); /* of 8 columns */
                    ldmatrix_x4_trans(y, bs + tile_at((unit >> 3) * 64 + kk * 16 + (lane & 15), unit & 7));
                }
                mma_16816<DT>(acc[2 * n], x, y[0], y[1]);
                mma_16816<DT>(acc[2 * n + 1], x, y[2], y[3]);
            }
        }
        if (!is_whole) __syncthreads();
    }
    /* sums are rounded already: a product with the reciprocal is as good as a division, for half the time */
    if (FP8) scale = __frcp_rn(checked(scale));
    auto packed = [&](int j, int e) {
        const float x = acc[j][2 * e], y = acc[j][2 * e + 1];
        return FP8 ? round_to_e4m3<DT>(x * scale, y * scale) : pack2<DT>(x, y);
    };
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int t = m0 + row0 + (lane >> 2) + 8 * e, first = n0 + col0;
        uint16_t *c = (uint16_t *)p.c + t * p.c_token + h * p.c_head + first;
        if constexpr (TM == MANY) {
#pragma unroll
            for (int j = 0; j < WARP_N / 8; j += 4) {
                const uint4 w =
                    quad_columns(packed(j, e), packed(j + 1, e), packed(j + 2, e), packed(j + 3, e));
                const int col = (j + (lane & 3)) * 8;
                if (t < tokens && first + col < p.n) *(uint4 *)(c + col) = w;
            }
        } else
#pragma unroll
            for (int j = 0; j < WARP_N / 8; j++) {
                const int col = j * 8 + (lane & 3) * 2;
                if (t < tokens && first + col < p.n) *(uint32_t *)(c + col) = packed(j, e);
            }
    }
}

template <int DT, bool NK, bool FP8, class T>
static int run(const mla_project_params *p, cudaStream_t s) {
    const auto kernel = project_kernel<DT, NK, FP8, T>;
    if (p == nullptr)
        return (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, T::SMEM);
    const dim3 grid((p->n + T::TN - 1) / T::TN + FP8, (p->tokens + T::TM - 1) / T::TM, p->num_heads);
    return T::EARLY && p->early ? launch_after(kernel, grid, PROJECT_THREADS, T::SMEM, s, *p, true)
                                : attn_cuda::launch_kernel(kernel, grid, PROJECT_THREADS, T::SMEM, s, *p);
}

/* As many as a multiprocessor holds beside each other of whole waves of 132, and of the values' two. */
using many_tokens = project_tile<MANY, 64, 2, 7>;
using some_tokens = project_tile<MANY, 64, 6, 2, true>;
using some_wide = project_tile<MANY, 128, 2, 4>;
using few_tokens = project_tile<FEW, 64, 2, 8>;
using few_values = project_tile<FEW, 64, 9, 2, true>; /* 512 columns of a latent at once */

template <int DT>
static int project(const mla_project_params *p, cudaStream_t s) {
    if (p == nullptr) { /* what takes more than 48 KiB */
        const int e = run<DT, true, false, some_tokens>(p, s);
        return e ? e : run<DT, true, false, few_values>(p, s);
    }
    const int is_wide = (int64_t)p->num_heads * p->n > 900 * 64;
    if (p->b_is_nk)
        return p->tokens <= FEW    ? run<DT, true, false, few_values>(p, s)
               : p->tokens <= MANY ? run<DT, true, false, some_tokens>(p, s)
                                   : run<DT, true, false, many_tokens>(p, s);
    if (p->tokens <= FEW)
        return p->rope ? run<DT, false, true, few_tokens>(p, s) : run<DT, false, false, few_tokens>(p, s);
    if (p->tokens <= MANY && is_wide)
        return p->rope ? run<DT, false, true, some_wide>(p, s) : run<DT, false, false, some_wide>(p, s);
    return p->rope ? run<DT, false, true, many_tokens>(p, s) : run<DT, false, false, many_tokens>(p, s);
}

extern "C" int mla_project(const mla_project_params *p, void *stream) {
    const cudaStream_t s = (cudaStream_t)stream;
    if (p == nullptr) {
        const int e = project<DT_F16>(p, s);
        return e ? e : project<DT_BF16>(p, s);
    }
    return p->dtype == DT_BF16 ? project<DT_BF16>(p, s) : project<DT_F16>(p, s);
}
