/* SPDX-License-Identifier: Apache-2.0 */
/* Merge of the pieces of cut tiles (semantics 6.5): out = sum of 2^(lse_i - max) out_i over sum of 2^(lse_i - max). One row
 * a CTA at a time; a warp takes 128 columns and every so-manieth piece, in an order that depends on nothing else, so that
 * the loads of a long list run side by side. */
#include "../common/ptx_sm80.cuh"
#include "mla_launch.h"

#include <cuda_runtime.h>

using namespace attn_cuda;

enum { COMBINE_WARPS = 16, COMBINE_CTAS = 1024 };

ATTN_DEV float nan_max(float a, float b) { /* NaN wins */
    return a <= b ? b : a;
}

template <int DT>
__global__ void __launch_bounds__(COMBINE_WARPS * 32)
    combine_kernel(const __grid_constant__ mla_attend_params p) {
    __shared__ float4 partial[COMBINE_WARPS][32];
    pdl_wait();
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int chunks = p.latent_rank / 128, groups = COMBINE_WARPS / chunks, chunk = warp % chunks,
              group = warp / chunks;
    const int units = p.slice->num_splits * p.tile_rows;
    for (int u = blockIdx.x; u < units; u += gridDim.x) {
        const mla_split s = p.splits[p.slice->first_split + u / p.tile_rows];
        const int r = u % p.tile_rows, row = s.first_row + r;
        if (r >= s.num_rows) continue;
        const int64_t at = (int64_t)s.slot * p.tile_rows + r, step = p.tile_rows;
        const float *lse = p.part_lse + at;
        const float *src = p.part_out + at * p.latent_rank + chunk * 128 + lane * 4;
        float top = -INFINITY, sum = 0.f;
        for (int i = lane; i < s.pieces; i += 32)
            top = nan_max(top, lse[i * step]);
        for (int d = 16; d; d >>= 1)
            top = nan_max(top, __shfl_xor_sync(~0u, top, d));
        const float base = top == -INFINITY ? 0.f : top;
        for (int i = lane; i < s.pieces; i += 32)
            sum += exp2f(lse[i * step] - base);
        for (int d = 16; d; d >>= 1)
            sum += __shfl_xor_sync(~0u, sum, d);
        const float inv = sum == 0.f ? 0.f : 1.f / sum;
        float4 acc = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 8
        for (int i = group; i < s.pieces; i += groups) {
            const float w = exp2f(lse[i * step] - base) * inv;
            const float4 x = __ldcs((const float4 *)(src + i * step * p.latent_rank));
            acc.x += w * x.x, acc.y += w * x.y, acc.z += w * x.z, acc.w += w * x.w;
        }
        partial[warp][lane] = acc;
        __syncthreads();
        if (group == 0) {
            for (int i = 1; i < groups; i++) {
                const float4 x = partial[i * chunks + chunk][lane];
                acc.x += x.x, acc.y += x.y, acc.z += x.z, acc.w += x.w;
            }
            *(uint2 *)((uint16_t *)p.latent + (int64_t)(row - p.slice_row0) * p.latent_rank + chunk * 128 +
                       lane * 4) = make_uint2(pack2<DT>(acc.x, acc.y), pack2<DT>(acc.z, acc.w));
        }
        if (threadIdx.x == 0 && p.lse)
            p.lse[(row % p.num_heads) * p.lse_head + (row / p.num_heads) * p.lse_token] =
                sum == 0.f ? -INFINITY : (base + log2f(sum)) * 0.6931471805599453f;
        __syncthreads();
    }
}

extern "C" int mla_combine(const mla_attend_params *p, int num_splits, void *stream) {
    const int64_t units = (int64_t)num_splits * p->tile_rows;
    const unsigned grid = (unsigned)(units < COMBINE_CTAS ? units : COMBINE_CTAS);
    cudaStream_t s = (cudaStream_t)stream;
    if (p->dtype == DT_BF16)
        combine_kernel<DT_BF16><<<grid, COMBINE_WARPS * 32, 0, s>>>(*p);
    else
        combine_kernel<DT_F16><<<grid, COMBINE_WARPS * 32, 0, s>>>(*p);
    return (int)cudaGetLastError();
}
