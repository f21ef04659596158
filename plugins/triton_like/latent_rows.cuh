/* SPDX-License-Identifier: Apache-2.0 */
/* Around latent attention: the projections of each head, queries through W_UK (b [k][n]) and latents through
 * W_UV (b [n][k]), with kv_b_proj as checkpoints have it; the cache write; weights, rows and zeros. */
#include "latent_mma.cuh"
#include "mla_params.h"

namespace attn_cuda {

constexpr int R = TM_ROPE, PROJECT_THREADS = 128, STEP = 64, STEP_PITCH = STEP * 2 + 16;

/* TOKENS x 64 columns of one head. The four warps share 64 tokens, or the columns of 16. */
template <bool NK, int TOKENS>
ATTN_DEV void project(const mla_project_params &p) {
    constexpr bool MANY = TOKENS == 64;
    constexpr int WIDTH = MANY ? 64 : 16, A_LOADS = TOKENS * 8 / PROJECT_THREADS,
                  B_LOADS = 64 * 8 / PROJECT_THREADS;
    __shared__ __align__(128) unsigned char smem[(TOKENS + 64) * STEP_PITCH];
    const int h = blockIdx.z, n0 = blockIdx.x * 64, m0 = blockIdx.y * TOKENS;
    const int tokens = p.counts ? min(p.tokens, p.counts->num_tokens - p.token0) : p.tokens;
    if (m0 >= tokens) return;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int row0 = MANY ? warp * 16 : 0, col0 = MANY ? 0 : warp * 16;
    const uint16_t *a = (const uint16_t *)p.a + h * p.a_head, *b = (const uint16_t *)p.b + h * p.b_head;
    const uint32_t as = smem_addr(smem), bs = as + TOKENS * STEP_PITCH;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    uint4 x[A_LOADS], y[B_LOADS];
    auto load = [&](int k0) {
#pragma unroll
        for (int i = 0; i < A_LOADS; i++) {
            const int at = threadIdx.x + i * PROJECT_THREADS, r = at >> 3, c = k0 + (at & 7) * 8;
            x[i] = m0 + r < tokens && c < p.k ? *(const uint4 *)(a + (m0 + r) * p.a_token + c) : zero;
        }
#pragma unroll
        for (int i = 0; i < B_LOADS; i++) {
            const int at = threadIdx.x + i * PROJECT_THREADS;
            const int r = (NK ? n0 : k0) + (at >> 3), c = (NK ? k0 : n0) + (at & 7) * 8;
            const bool inside = NK ? r < p.n && c < p.k : r < p.k && c < p.n;
            y[i] = inside ? __ldg((const uint4 *)(b + r * p.b_row + c)) : zero;
        }
    };
    float acc[WIDTH / 8][4] = {};
    load(0);
    for (int k0 = 0; k0 < p.k; k0 += STEP) {
#pragma unroll
        for (int i = 0; i < A_LOADS; i++) {
            const int at = threadIdx.x + i * PROJECT_THREADS;
            st_shared_v4(as + (at >> 3) * STEP_PITCH + (at & 7) * 16, x[i]);
        }
#pragma unroll
        for (int i = 0; i < B_LOADS; i++) {
            const int at = threadIdx.x + i * PROJECT_THREADS;
            st_shared_v4(bs + (at >> 3) * STEP_PITCH + (at & 7) * 16, y[i]);
        }
        __syncthreads();
        if (k0 + STEP < p.k) load(k0 + STEP);
#pragma unroll
        for (int kk = 0; kk < STEP / 16; kk++) {
            uint32_t u[4], v[4];
            ldmatrix_x4(u, as + (row0 + (lane & 15)) * STEP_PITCH + kk * 32 + (lane >> 4) * 16);
#pragma unroll
            for (int n = 0; n < WIDTH / 16; n++) {
                if constexpr (NK)
                    ldmatrix_x4(v, bs + (col0 + n * 16 + (lane & 7) + ((lane >> 4) << 3)) * STEP_PITCH +
                                       kk * 32 + ((lane >> 3) & 1) * 16);
                else
                    ldmatrix_x4_trans(v, bs + (kk * 16 + (lane & 15)) * STEP_PITCH +
                                             (col0 / 8 + n * 2 + (lane >> 4)) * 16);
                mma_any<TM_TYPE>(acc[2 * n], u, v[0], v[1]);
                mma_any<TM_TYPE>(acc[2 * n + 1], u, v[2], v[3]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int t = m0 + row0 + (lane >> 2) + 8 * e;
        uint16_t *c = (uint16_t *)p.c + t * p.c_token + h * p.c_head + n0 + col0;
#pragma unroll
        for (int j = 0; j < WIDTH / 8; j++) {
            const int col = j * 8 + (lane & 3) * 2;
            if (t < tokens && n0 + col0 + col < p.n)
                *(uint32_t *)(c + col) = pack_pair<TM_TYPE>(acc[j][2 * e], acc[j][2 * e + 1]);
        }
    }
}

} /* namespace attn_cuda */

using namespace attn_cuda;

extern "C" __global__ void __launch_bounds__(128) tm_absorb(const __grid_constant__ mla_project_params p) {
    project<false, 64>(p);
}
extern "C" __global__ void __launch_bounds__(128)
    tm_absorb_few(const __grid_constant__ mla_project_params p) {
    project<false, 16>(p);
}
extern "C" __global__ void __launch_bounds__(128) tm_values(const __grid_constant__ mla_project_params p) {
    project<true, 64>(p);
}
extern "C" __global__ void __launch_bounds__(128)
    tm_values_few(const __grid_constant__ mla_project_params p) {
    project<true, 16>(p);
}

/* Eight values a thread (semantics 3.5, 3.11). */
extern "C" __global__ void __launch_bounds__(256) tm_write(const __grid_constant__ mla_write_params p) {
    constexpr int UNITS = (TM_LATENT + R) / 8;
    const int64_t n = p.num_tokens * UNITS, step = (int64_t)gridDim.x * 256;
    const float scale = TM_E4M3 && p.k_scale ? __ldg(p.k_scale) : 1.f;
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < n; i += step) {
        const int64_t t = i / UNITS, slot = __ldg(p.slots + t);
        const int c = (int)(i % UNITS) * 8;
        if (slot < 0 || slot >= p.num_slots_total) continue;
        const uint16_t *from = c < TM_LATENT ? (const uint16_t *)p.kv_c + t * p.kv_c_row + c
                                             : (const uint16_t *)p.k_pe + t * p.k_pe_row + c - TM_LATENT;
        char *to = (char *)p.cache + slot / TM_PAGE * p.cache_page + slot % TM_PAGE * p.cache_row;
        const uint4 x = *(const uint4 *)from;
        if constexpr (TM_E4M3) {
            const uint32_t w[4] = {x.x, x.y, x.z, x.w};
            uint32_t code[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float2 f = unpack2<TM_TYPE>(w[j]);
                code[j] = f32x2_to_e4m3x2(__fdiv_rn(f.x, scale), __fdiv_rn(f.y, scale));
            }
            *(uint2 *)(to + c) = make_uint2(code[0] | code[1] << 16, code[2] | code[3] << 16);
        } else
            *(uint4 *)(to + c * 2) = x;
    }
}

extern "C" __global__ void __launch_bounds__(256) tm_copy(const __grid_constant__ mla_copy_params p) {
    const int units = p.width / 8;
    const int64_t n = (int64_t)min(p.tokens, p.counts->num_tokens - p.token0) * p.num_heads * units,
                  step = (int64_t)gridDim.x * 256;
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < n; i += step) {
        const int64_t row = i / units, t = row / p.num_heads, h = row % p.num_heads, c = i % units * 8;
        *(uint4 *)((uint16_t *)p.to + t * p.to_token + h * p.to_head + c) =
            *(const uint4 *)((const uint16_t *)p.from + t * p.from_token + h * p.from_head + c);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    tm_weights(uint16_t *to, const void *from, int64_t rows, int64_t from_row, int is_e4m3,
               const float *scale, int64_t scale_row, int64_t scale_column) {
    const int64_t step = (int64_t)gridDim.x * 256;
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < rows * TM_LATENT; i += step) {
        const int64_t row = i / TM_LATENT, column = i % TM_LATENT, at = row * from_row + column;
        if (is_e4m3) {
            const float f = scale ? __ldg(scale + row / 128 * scale_row + column / 128 * scale_column) : 1.f;
            to[i] = (uint16_t)pack_pair<TM_TYPE>(
                unpack2<DT_F16>(e4m3x2_to_f16x2<0>(((const uint8_t *)from)[at])).x * f, 0.f);
        } else
            to[i] = ((const uint16_t *)from)[at];
    }
}

extern "C" __global__ void __launch_bounds__(256)
    tm_zero(uint16_t *out, int64_t rows, int heads, int size, int64_t token, int64_t head) {
    const int64_t n = rows * heads * size, step = (int64_t)gridDim.x * 256;
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < n; i += step) {
        const int64_t t = i / ((int64_t)heads * size), rest = i % ((int64_t)heads * size);
        out[t * token + rest / size * head + rest % size] = 0;
    }
}
