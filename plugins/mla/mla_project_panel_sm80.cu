/* SPDX-License-Identifier: Apache-2.0 */
/* Latents through W_UV for the usual sizes (latent 512, value 128) and few tokens: the weights are the traffic, so a CTA
 * asks for the whole panel of a head at once, before the kernel that makes the latents has ended. */
#include "mla_after.cuh"
#include "mla_launch.h"

#include <cuda_runtime.h>

using namespace attn_cuda;

enum { PANEL_ROWS = 64, PANEL_THREADS = 256, PANEL_K = 512 };

template <int PITCH>
ATTN_DEV uint32_t panel_at(int row, int chunk) {
    return (uint32_t)(row * PITCH + ((chunk ^ (row & 7)) << 4));
}

/* C columns of one head: eight warps as 2 (rows) x 4 (columns). */
template <int DT, int C>
__global__ void __launch_bounds__(PANEL_THREADS) panel_kernel(const __grid_constant__ mla_project_params p) {
    constexpr int PITCH = PANEL_K * 2, CHUNKS = PANEL_K / 8, N = C / 4;
    extern __shared__ __align__(128) unsigned char smem[];
    const uint32_t as = smem_addr(smem), bs = as + PANEL_ROWS * PITCH;
    const int h = blockIdx.y, n0 = blockIdx.x * C, warp = threadIdx.x >> 5, lane = threadIdx.x & 31,
              wm = warp & 1, wn = warp >> 1;
    const uint16_t *a = (const uint16_t *)p.a + h * p.a_head,
                   *b = (const uint16_t *)p.b + h * p.b_head + n0 * p.b_row;
    for (int i = threadIdx.x; i < C * CHUNKS; i += PANEL_THREADS)
        cp_async<16>(bs + panel_at<PITCH>(i / CHUNKS, i % CHUNKS), b + i / CHUNKS * p.b_row + i % CHUNKS * 8);
    pdl_wait(); /* the weights are old; the latents are from the kernel before this one */
    const int tokens = p.counts ? min(p.tokens, p.counts->num_tokens - p.token0) : p.tokens;
    for (int m0 = 0; m0 < tokens; m0 += PANEL_ROWS) {
        for (int i = threadIdx.x; i < PANEL_ROWS * CHUNKS; i += PANEL_THREADS) {
            const int r = i / CHUNKS, c = i % CHUNKS;
            const bool inside = m0 + r < tokens;
            cp_async_zfill<16>(as + panel_at<PITCH>(r, c), a + (inside ? m0 + r : 0) * p.a_token + c * 8,
                               inside);
        }
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        float acc[2][N / 8][4] = {};
#pragma unroll 4
        for (int kk = 0; kk < PANEL_K / 16; kk++) {
            uint32_t x[2][4], y[4];
#pragma unroll
            for (int m = 0; m < 2; m++)
                ldmatrix_x4(x[m], as + panel_at<PITCH>(wm * 32 + m * 16 + (lane & 15), kk * 2 + (lane >> 4)));
#pragma unroll
            for (int n = 0; n < N / 16; n++) {
                ldmatrix_x4(y, bs + panel_at<PITCH>(wn * N + n * 16 + (lane & 7) + ((lane >> 4) << 3),
                                                    kk * 2 + ((lane >> 3) & 1)));
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    mma_16816<DT>(acc[m][2 * n], x[m], y[0], y[1]);
                    mma_16816<DT>(acc[m][2 * n + 1], x[m], y[2], y[3]);
                }
            }
        }
        __syncthreads(); /* before the latents of the next round */
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int t = m0 + wm * 32 + m * 16 + (lane >> 2) + 8 * e;
                uint16_t *c = (uint16_t *)p.c + t * p.c_token + h * p.c_head + n0 + wn * N + (lane & 3) * 2;
#pragma unroll
                for (int j = 0; j < N / 8; j++)
                    if (t < tokens)
                        *(uint32_t *)(c + j * 8) = pack2<DT>(acc[m][j][2 * e], acc[m][j][2 * e + 1]);
            }
    }
}

template <int DT, int C>
static int run(const mla_project_params *p, cudaStream_t stream) {
    auto kernel = panel_kernel<DT, C>;
    constexpr int BYTES = (PANEL_ROWS + C) * PANEL_K * 2;
    if (p->tokens == 0)
        return (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    return launch_after(kernel, dim3((unsigned)(p->n / C), (unsigned)p->num_heads), PANEL_THREADS, BYTES,
                        stream, *p);
}

/* Where heads are few, two CTAs share one. */
template <int DT>
static int run(const mla_project_params *p, cudaStream_t stream) {
    return p->num_heads < 64 ? run<DT, 64>(p, stream) : run<DT, 128>(p, stream);
}

extern "C" int mla_project_panel(const mla_project_params *p, void *stream) {
    return p->dtype == DT_BF16 ? run<DT_BF16>(p, (cudaStream_t)stream) : run<DT_F16>(p, (cudaStream_t)stream);
}
