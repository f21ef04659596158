/* SPDX-License-Identifier: Apache-2.0 */
/* The row kernels of MLA prefill: gather of cached latents (semantics 3.11), the rope part of projected keys,
 * and the merge of passes (6.5). All move 16 bytes a thread. */
#include "../ptx/launch.cuh"
#include "../ptx/ptx_sm80.cuh"
#include "mla_prefill_params.h"

#include <cuda_runtime.h>

using namespace attn_cuda;

enum { GATHER_ROWS = 16, ROW_THREADS = 256 };

/* A row nobody wrote, because its page id lies outside the cache, becomes zeros: a NaN there would reach
 * every head. */
template <int DT, int KIND>
__global__ void __launch_bounds__(ROW_THREADS) gather_kernel(const __grid_constant__ mla_gather_params p) {
    __shared__ const char *source[GATHER_ROWS];
    const int row0 = blockIdx.x * GATHER_ROWS, units = (p.latent_rank + MLA_ROPE) / 8;
    const int here = min(GATHER_ROWS, p.num_rows - row0);
    if (blockIdx.x == 0 && threadIdx.x == 0) *p.ticket = 0;
    if ((int)threadIdx.x < here) {
        const int row = row0 + threadIdx.x;
        int lo = 0, hi = p.num_reqs - 1; /* the last request that begins at or before the row */
        while (lo < hi) {
            const int mid = (lo + hi + 1) / 2;
            if (__ldg(p.cu + mid) <= row)
                lo = mid;
            else
                hi = mid - 1;
        }
        const int token = __ldg(p.starts + lo) + row - __ldg(p.cu + lo), column = token / p.page_size;
        const int page = column < p.counts->block_table_width
                             ? __ldg(p.counts->block_table +
                                     (int64_t)(p.first_request + lo) * p.counts->block_table_stride + column)
                             : -1;
        source[threadIdx.x] = page >= 0 && page < p.num_pages
                                  ? (const char *)p.cache + page * p.cache_page +
                                        (int64_t)(token - column * p.page_size) * p.cache_row
                                  : nullptr;
    }
    __syncthreads();
    const float scale = KIND == MLA_CACHE_E4M3 && p.k_scale ? __ldg(p.k_scale) : 1.f;
    for (int i = threadIdx.x; i < here * units; i += ROW_THREADS) {
        const int r = i / units, c = i - r * units;
        const char *src = source[r];
        uint4 x = make_uint4(0, 0, 0, 0);
        if (src != nullptr && KIND == MLA_CACHE_16) x = __ldcs((const uint4 *)src + c);
        if (src != nullptr && KIND == MLA_CACHE_E4M3) {
            const uint2 y = __ldcs((const uint2 *)src + c);
            const uint32_t half[4] = {e4m3x2_to_f16x2<0>(y.x), e4m3x2_to_f16x2<1>(y.x),
                                      e4m3x2_to_f16x2<0>(y.y), e4m3x2_to_f16x2<1>(y.y)};
            uint32_t *w = &x.x;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float2 f = unpack2<DT_F16>(half[k]);
                w[k] = pack2<DT>(f.x * scale, f.y * scale);
            }
        }
        ((uint4 *)p.rows)[(int64_t)(row0 + r) * units + c] = x;
    }
}

extern "C" int mla_gather(const mla_gather_params *p, void *stream) {
    const unsigned rows = (unsigned)((p->num_rows + GATHER_ROWS - 1) / GATHER_ROWS), grid = rows ? rows : 1;
    cudaStream_t s = (cudaStream_t)stream;
    if (p->cache_kind == MLA_CACHE_16)
        return attn_cuda::launch_kernel(gather_kernel<DT_BF16, MLA_CACHE_16>, grid, ROW_THREADS, 0, s, *p);
    if (p->dtype == DT_BF16)
        return attn_cuda::launch_kernel(gather_kernel<DT_BF16, MLA_CACHE_E4M3>, grid, ROW_THREADS, 0, s, *p);
    return attn_cuda::launch_kernel(gather_kernel<DT_F16, MLA_CACHE_E4M3>, grid, ROW_THREADS, 0, s, *p);
}

__global__ void __launch_bounds__(ROW_THREADS) spread_kernel(const __grid_constant__ mla_spread_params p) {
    const int units = MLA_ROPE / 8;
    const int64_t n = (int64_t)p.num_rows * p.num_heads * units;
    for (int64_t i = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * ROW_THREADS) {
        const int c = (int)(i % units), h = (int)(i / units % p.num_heads);
        const int64_t row = i / units / p.num_heads;
        const uint4 x = __ldg(
            (const uint4 *)((const uint16_t *)p.rows + row * (p.latent_rank + MLA_ROPE) + p.latent_rank) + c);
        ((uint4 *)((uint16_t *)p.keys + row * p.key_row + h * p.key_head + p.nope))[c] = x;
    }
}

extern "C" int mla_spread_rope(const mla_spread_params *p, void *stream) {
    const int64_t blocks =
        ((int64_t)p->num_rows * p->num_heads * (MLA_ROPE / 8) + ROW_THREADS - 1) / ROW_THREADS;
    if (blocks == 0) return 0;
    return attn_cuda::launch_kernel(spread_kernel, (unsigned)(blocks < 65536 ? blocks : 65536), ROW_THREADS,
                                    0, stream, *p);
}

/* A state of weight 0 is not read: it may be what another step left there. +inf counts as -inf. */
template <int DT>
__global__ void __launch_bounds__(ROW_THREADS) merge_kernel(const __grid_constant__ mla_merge_params p) {
    const int units = p.value / 8;
    const int64_t n = (int64_t)p.num_tokens * p.num_heads * units;
    for (int64_t i = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * ROW_THREADS) {
        const int c = (int)(i % units), h = (int)(i / units % p.num_heads);
        const int64_t t = i / units / p.num_heads;
        float l1 = __ldg(p.lse + h * p.lse_head + t), l2 = __ldg(p.part_lse + h * p.part_lse_head + t);
        if (l1 == INFINITY) l1 = -INFINITY;
        if (l2 == INFINITY) l2 = -INFINITY;
        const float m = l1 > l2 ? l1 : l2; /* a NaN in l1 reaches both weights through the differences */
        const float base = m == -INFINITY ? 0.f : m;
        const float e1 = __expf(l1 - base), e2 = __expf(l2 - base), sum = e1 + e2;
        const float w1 = sum == 0.f ? 0.f : e1 / sum, w2 = sum == 0.f ? 0.f : e2 / sum;
        uint4 *out = (uint4 *)((uint16_t *)p.out + t * p.out_token + h * p.out_head) + c;
        uint4 a = make_uint4(0, 0, 0, 0), b = a;
        if (w1 != 0.f) a = *out;
        if (w2 != 0.f)
            b = __ldcs((const uint4 *)((const uint16_t *)p.part + (t * p.num_heads + h) * p.value) + c);
        uint32_t *x = &a.x;
        const uint32_t *y = &b.x;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float2 f = unpack2<DT>(x[k]), g = unpack2<DT>(y[k]);
            x[k] = pack2<DT>(f.x * w1 + g.x * w2, f.y * w1 + g.y * w2);
        }
        *out = a;
        if (c == 0 && p.lse_out)
            p.lse_out[h * p.lse_out_head + t * p.lse_out_token] = sum == 0.f ? -INFINITY : base + __logf(sum);
    }
}

extern "C" int mla_merge(const mla_merge_params *p, void *stream) {
    const int64_t blocks =
        ((int64_t)p->num_tokens * p->num_heads * (p->value / 8) + ROW_THREADS - 1) / ROW_THREADS;
    const unsigned grid = (unsigned)(blocks < 65536 ? blocks : 65536);
    if (grid == 0) return 0;
    if (p->dtype == DT_BF16)
        return attn_cuda::launch_kernel(merge_kernel<DT_BF16>, grid, ROW_THREADS, 0, stream, *p);
    return attn_cuda::launch_kernel(merge_kernel<DT_F16>, grid, ROW_THREADS, 0, stream, *p);
}
