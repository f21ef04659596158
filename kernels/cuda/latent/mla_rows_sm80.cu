/* SPDX-License-Identifier: Apache-2.0 */
/* The small kernels of MLA, by rows: weights, zeros, copies. */
#include "../ptx/launch.cuh"
#include "../ptx/ptx_sm80.cuh"
#include "mla_launch.h"
#include "mla_live.cuh"

#include <cuda_runtime.h>

using namespace attn_cuda;

/* Element by element: it runs once, after loading. */
template <int DT>
__global__ void weights_kernel(uint16_t *dst, const void *src, int64_t rows, int width, int64_t src_row,
                               int is_e4m3, mla_weight_scale scale) {
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < rows * width;
         i += (int64_t)gridDim.x * 256) {
        const int64_t row = i / width, column = i % width, at = row * src_row + column;
        if (is_e4m3) {
            const float f =
                scale.at ? __ldg(scale.at + row / 128 * scale.row + column / 128 * scale.column) : 1.f;
            float x = unpack2<DT_F16>(e4m3x2_to_f16x2<0>(((const uint8_t *)src)[at])).x * f;
            dst[i] = (uint16_t)pack2<DT>(x, 0.f);
        } else
            dst[i] = ((const uint16_t *)src)[at];
    }
}

extern "C" int mla_copy_weights(void *dst, const void *src, int64_t rows, int width, int64_t src_row,
                                int dtype, int is_e4m3, mla_weight_scale scale, void *stream) {
    if (dtype == DT_BF16)
        return attn_cuda::launch_kernel(weights_kernel<DT_BF16>, 2048, 256, 0, stream, (uint16_t *)dst, src,
                                        rows, width, src_row, is_e4m3, scale);
    return attn_cuda::launch_kernel(weights_kernel<DT_F16>, 2048, 256, 0, stream, (uint16_t *)dst, src, rows,
                                    width, src_row, is_e4m3, scale);
}

__global__ void zero_kernel(uint16_t *out, int64_t rows, int heads, int size, int64_t token, int64_t head) {
    int64_t n = rows * heads * size;
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < n; i += (int64_t)gridDim.x * 256) {
        int64_t t = i / (heads * size);
        int rest = (int)(i - t * heads * size);
        out[t * token + rest / size * head + rest % size] = 0;
    }
}

extern "C" int mla_zero_rows(void *out, int64_t rows, int heads, int size, int64_t token, int64_t head,
                             void *stream) {
    return attn_cuda::launch_kernel(zero_kernel, 1024, 256, 0, stream, (uint16_t *)out, rows, heads, size,
                                    token, head);
}

/* 16 elements a thread. */
template <int DT>
__global__ void __launch_bounds__(256) copy_rows_kernel(const __grid_constant__ mla_copy_params p) {
    const int units = p.width / 16;
    const int64_t n = (int64_t)min(p.tokens, mla_num_tokens(p.counts) - p.token0) * p.num_heads * units;
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < n; i += (int64_t)gridDim.x * 256) {
        const int64_t row = i / units, t = row / p.num_heads, h = row - t * p.num_heads,
                      column = (i - row * units) * 16;
        const int64_t from = t * p.from_token + h * p.from_head + column;
        uint4 *to = (uint4 *)((uint16_t *)p.to + t * p.to_token + h * p.to_head + column);
        uint4 x[2];
        if (p.is_e4m3) {
            const uint4 raw = __ldcs((const uint4 *)((const uint8_t *)p.from + from));
            const uint32_t *w = &raw.x;
            uint32_t *o = &x[0].x;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                o[2 * k] = e4m3x2_to_f16x2<0>(w[k]), o[2 * k + 1] = e4m3x2_to_f16x2<1>(w[k]);
                if constexpr (DT == DT_BF16)
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        const float2 f = unpack2<DT_F16>(o[2 * k + j]);
                        o[2 * k + j] = pack2<DT>(f.x, f.y);
                    }
            }
        } else {
            const uint4 *w = (const uint4 *)((const uint16_t *)p.from + from);
            x[0] = __ldcs(w), x[1] = __ldcs(w + 1);
        }
        to[0] = x[0], to[1] = x[1];
    }
}

extern "C" int mla_copy_rows(const mla_copy_params *p, void *stream) {
    const int64_t blocks = ((int64_t)p->tokens * p->num_heads * (p->width / 16) + 255) / 256;
    const unsigned grid = (unsigned)(blocks < 8192 ? blocks : 8192);
    if (grid == 0) return 0;
    if (p->dtype == DT_BF16)
        return attn_cuda::launch_kernel(copy_rows_kernel<DT_BF16>, grid, 256, 0, stream, *p);
    return attn_cuda::launch_kernel(copy_rows_kernel<DT_F16>, grid, 256, 0, stream, *p);
}

/* Queries, `stages` tiles of keys, P. */
extern "C" size_t mla_attend_smem(int latent_rank, int stages) {
    return (size_t)(1 + stages) * MLA_TILE_ROWS * (size_t)(latent_rank + MLA_ROPE) * 2 + MLA_TILE_ROWS * 128;
}
