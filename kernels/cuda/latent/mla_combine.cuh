/* SPDX-License-Identifier: Apache-2.0 */
/* Merge of the pieces of cut tiles (semantics 6.5): out = sum of 2^(lse_i - max) out_i over sum of 2^(lse_i -
 * max). A CTA takes one row at a time, a warp 128 of its columns. Pieces are added up as four sums, of every
 * fourth piece; where rows are few, GROUPS = 4 sets of warps make one each. The order is the same either way,
 * and so are the bits. PART says how a piece lies in memory. */
#ifndef MLA_COMBINE_CUH
#define MLA_COMBINE_CUH

#include "../ptx/launch_after.cuh"
#include "mla_live.cuh"

#include <cuda_runtime.h>

namespace attn_cuda {

enum { COMBINE_SUMS = 4, COMBINE_CTAS = 2048 };

ATTN_DEV float nan_max(float a, float b) { /* NaN wins */
    return a <= b ? b : a;
}

template <int DT, class PART, int GROUPS>
__global__ void __launch_bounds__(GROUPS * 128, GROUPS > 1 ? 1 : 8)
    combine_kernel(const __grid_constant__ mla_attend_params p) {
    constexpr int AHEAD =
        GROUPS > 1 ? 8 : 4; /* pieces whose loads are in flight before the weights are known */
    __shared__ float4 partial[GROUPS][4][32];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int chunks = p.latent_rank / 128, group = warp / chunks, chunk = warp - group * chunks;
    const int units = p.slice->num_splits * p.tile_rows;
    pdl_launch();
    pdl_wait();
    for (int u = blockIdx.x; u < units; u += gridDim.x) {
        const int n = p.slice->num_splits, r = u / n; /* rows that few tiles have come last */
        const mla_split s = mla_split_of(p, p.slice->first_split + u - r * n);
        const int row = s.first_row + r;
        if (r >= s.num_rows) continue;
        const int64_t at = (int64_t)s.slot * p.tile_rows + r, step = p.tile_rows;
        const PART part(p, at, chunk * 32 + lane);
        typename PART::raw x[AHEAD];
        float l[AHEAD];
        auto load = [&](int i0) {
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                const int i = i0 + j * GROUPS;
                if (i >= s.pieces) break;
                x[j] = part.load(i * step);
                l[j] = part.lse(i * step);
            }
        };
        load(group);
        float top = -INFINITY, sum = 0.f;
        for (int i = lane; i < s.pieces; i += 32)
            top = nan_max(top, part.lse(i * step));
        for (int d = 16; d; d >>= 1)
            top = nan_max(top, __shfl_xor_sync(~0u, top, d));
        const float base = top == -INFINITY ? 0.f : top;
        for (int i = lane; i < s.pieces; i += 32)
            sum += exp2f(part.lse(i * step) - base);
        for (int d = 16; d; d >>= 1)
            sum += __shfl_xor_sync(~0u, sum, d);
        const float inv = sum == 0.f ? 0.f : 1.f / sum;
        constexpr int SUMS = COMBINE_SUMS / GROUPS;
        float4 acc[SUMS] = {};
        for (int i0 = group; i0 < s.pieces; i0 += AHEAD * GROUPS) {
            if (i0 != group) load(i0);
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                if (i0 + j * GROUPS >= s.pieces) break;
                const float w = exp2f(l[j] - base) * inv;
                float4 &a = acc[j % SUMS];
                const float4 v = PART::widen(x[j]);
                a.x += w * v.x, a.y += w * v.y, a.z += w * v.z, a.w += w * v.w;
            }
        }
        if constexpr (GROUPS > 1) {
            partial[group][chunk][lane] = acc[0];
            __syncthreads();
        }
        float4 all = acc[0];
#pragma unroll
        for (int i = 1; i < COMBINE_SUMS; i++) {
            const float4 y = GROUPS > 1 ? partial[i % GROUPS][chunk][lane] : acc[i % SUMS];
            all.x += y.x, all.y += y.y, all.z += y.z, all.w += y.w;
        }
        if constexpr (GROUPS > 1) __syncthreads();
        if (group == 0)
            *(uint2 *)((uint16_t *)p.latent + (int64_t)(row - p.slice_row0) * p.latent_rank + chunk * 128 +
                       lane * 4) = make_uint2(pack2<DT>(all.x, all.y), pack2<DT>(all.z, all.w));
        if (threadIdx.x == 0 && p.lse)
            p.lse[(row % p.num_heads) * p.lse_head + (row / p.num_heads) * p.lse_token] =
                sum == 0.f ? -INFINITY : (base + log2f(sum)) * 0.6931471805599453f;
    }
}

template <int DT, class PART>
int combine(const mla_attend_params *p, int num_splits, bool is_early, cudaStream_t stream) {
    const int64_t units = (int64_t)num_splits * p->tile_rows;
    const int warps = p->latent_rank / 128; /* of a group */
    if (units <= 512)
        return launch_after(combine_kernel<DT, PART, COMBINE_SUMS>, dim3((unsigned)units),
                            COMBINE_SUMS * warps * 32, 0, stream, *p, is_early);
    return launch_after(combine_kernel<DT, PART, 1>,
                        dim3((unsigned)(units < COMBINE_CTAS ? units : COMBINE_CTAS)), warps * 32, 0, stream,
                        *p, is_early);
}

} /* namespace attn_cuda */
#endif
