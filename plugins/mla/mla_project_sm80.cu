/* SPDX-License-Identifier: Apache-2.0 */
/* The per-head projections of MLA by mma.sync: queries through W_UK (b [k][n], transposed on the way out of shared
 * memory) and latents through W_UV (b [n][k]); both are rows of kv_b_proj as checkpoints have it, so that the absorbed
 * weights need no copy of another shape. A CTA makes 64 tokens x 64 columns of one head. */
#include "../common/ptx_sm80.cuh"
#include "mla_launch.h"

#include <cuda_runtime.h>

using namespace attn_cuda;

enum { TM = 64, TN = 64, TK = 64, PROJECT_THREADS = 128, MOST_PANEL_TOKENS = 64 };

ATTN_DEV uint32_t tile_at(int row, int chunk) {
    return (uint32_t)(row * 128 + ((chunk ^ (row & 7)) << 4));
}

template <int DT, bool NK>
__global__ void __launch_bounds__(PROJECT_THREADS)
    project_kernel(const __grid_constant__ mla_project_params p) {
    __shared__ __align__(128) unsigned char smem[2][2][TM * 128];
    const int h = blockIdx.z, n0 = blockIdx.x * TN, m0 = blockIdx.y * TM;
    const int tokens = p.counts ? min(p.tokens, p.counts->num_tokens - p.token0) : p.tokens;
    if (m0 >= tokens) return;
    pdl_launch(); /* who attends brings keys while queries are still absorbed */
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const uint16_t *a = (const uint16_t *)p.a + h * p.a_head, *b = (const uint16_t *)p.b + h * p.b_head;
    auto load = [&](int buf, int k0) {
        uint32_t as = smem_addr(smem[buf][0]), bs = smem_addr(smem[buf][1]);
#pragma unroll
        for (int i = threadIdx.x; i < TM * 8; i += PROJECT_THREADS) {
            int r = i >> 3, c = i & 7;
            bool inside = m0 + r < tokens && k0 + c * 8 < p.k;
            cp_async_zfill<16>(as + tile_at(r, c), inside ? a + (m0 + r) * p.a_token + k0 + c * 8 : a,
                               inside);
            int br = (NK ? n0 : k0) + r, bc = (NK ? k0 : n0) + c * 8;
            inside = NK ? br < p.n && bc < p.k : br < p.k && bc < p.n;
            cp_async_zfill<16>(bs + tile_at(r, c), inside ? b + br * p.b_row + bc : b, inside);
        }
        cp_async_commit();
    };
    float acc[TN / 8][4] = {};
    const int steps = (p.k + TK - 1) / TK;
    load(0, 0);
    for (int s = 0; s < steps; s++) {
        if (s + 1 < steps) {
            load((s + 1) & 1, (s + 1) * TK);
            cp_async_wait<1>();
        } else
            cp_async_wait<0>();
        __syncthreads();
        uint32_t as = smem_addr(smem[s & 1][0]), bs = smem_addr(smem[s & 1][1]);
#pragma unroll
        for (int kk = 0; kk < TK / 16; kk++) {
            uint32_t x[4], y[4];
            ldmatrix_x4(x, as + tile_at(warp * 16 + (lane & 15), kk * 2 + (lane >> 4)));
#pragma unroll
            for (int n = 0; n < TN / 16; n++) {
                if constexpr (NK)
                    ldmatrix_x4(y, bs + tile_at(n * 16 + (lane & 7) + ((lane >> 4) << 3),
                                                kk * 2 + ((lane >> 3) & 1)));
                else
                    ldmatrix_x4_trans(y, bs + tile_at(kk * 16 + (lane & 15), n * 2 + (lane >> 4)));
                mma_16816<DT>(acc[2 * n], x, y[0], y[1]);
                mma_16816<DT>(acc[2 * n + 1], x, y[2], y[3]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        int t = m0 + warp * 16 + (lane >> 2) + 8 * e;
        if (t >= tokens) continue;
        uint16_t *c = (uint16_t *)p.c + t * p.c_token + h * p.c_head;
#pragma unroll
        for (int j = 0; j < TN / 8; j++) {
            int col = n0 + j * 8 + (lane & 3) * 2;
            if (col < p.n) *(uint32_t *)(c + col) = pack2<DT>(acc[j][2 * e], acc[j][2 * e + 1]);
        }
    }
}

extern "C" int mla_project(const mla_project_params *p, void *stream) {
    if (p->panel && p->b_is_nk && p->tokens <= MOST_PANEL_TOKENS) return mla_project_panel(p, stream);
    dim3 grid((p->n + TN - 1) / TN, (p->tokens + TM - 1) / TM, p->num_heads);
    cudaStream_t s = (cudaStream_t)stream;
    if (p->dtype == DT_BF16) {
        if (p->b_is_nk)
            project_kernel<DT_BF16, true><<<grid, PROJECT_THREADS, 0, s>>>(*p);
        else
            project_kernel<DT_BF16, false><<<grid, PROJECT_THREADS, 0, s>>>(*p);
    } else {
        if (p->b_is_nk)
            project_kernel<DT_F16, true><<<grid, PROJECT_THREADS, 0, s>>>(*p);
        else
            project_kernel<DT_F16, false><<<grid, PROJECT_THREADS, 0, s>>>(*p);
    }
    return (int)cudaGetLastError();
}
