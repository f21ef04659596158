/* SPDX-License-Identifier: Apache-2.0 */
/* Puts the segments of one request together (semantics 6.6): weights 2^(lse_i - max), the sink once, 0 where no segment saw
 * a key. In the order of the segments, so that the same call gives the same bits. */
#ifndef TRITON_REDUCE_CUH
#define TRITON_REDUCE_CUH

#include "triton_rows.cuh"

namespace attn_cuda {

/* One row by one warp; row = token * heads + head, q0: the request's first token. weights: [TL_MAX_PIECES] of this warp.
 * What other CTAs of this launch wrote is read past the first-level cache. */
ATTN_DEV void merge_row(const triton_params_t &p, int q0, int first, int count, int row, float *weights) {
    const int lane = threadIdx.x & 31, num_heads = p.num_kv_heads * TL_GROUP, t = row / num_heads, h = row % num_heads;
    const float sink = TL_SINKS ? __ldg(p.sinks + h) * LOG2E : -INFINITY;
    const int64_t part = (int64_t)first * p.max_rows + row;
    float top = fmaxf(NO_MAX, sink), sum = 0.f;
    for (int i = lane; i < count; i += 32) {
        const float x = __ldcg(p.part_lse + part + (int64_t)i * p.max_rows);
        weights[i] = x;
        top = fmaxf(top, x);
    }
#pragma unroll
    for (int d = 16; d > 0; d >>= 1)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    for (int i = lane; i < count; i += 32) {
        const float w = exp2f(weights[i] - top);
        weights[i] = w;
        sum += w;
    }
#pragma unroll
    for (int d = 16; d > 0; d >>= 1)
        sum += __shfl_xor_sync(~0u, sum, d);
    sum += exp2f(sink - top);
    __syncwarp();
    if (p.lse && lane == 0)
        p.lse[(int64_t)(q0 + t) * p.lse_token + (int64_t)h * p.lse_head] = sum != 0.f ? (top + log2f(sum)) * LN2 : -INFINITY;
    float factor = sum != 0.f ? 1.f / sum : 0.f;
    if (TL_OUT == DT_E4M3 && p.out_scale)
        factor /= __ldg(p.out_scale);
    const int64_t out = (int64_t)(q0 + t) * p.out_token + (int64_t)h * p.out_head;
    constexpr int WIDE = TL_DV % 4 == 0 ? 4 : 1;
    for (int d = lane * WIDE; d < TL_DV; d += 32 * WIDE) {
        float x[WIDE];
#pragma unroll
        for (int j = 0; j < WIDE; j++)
            x[j] = 0.f;
#pragma unroll 8
        for (int i = 0; i < count; i++) {
            const float *from = p.part_out + (part + (int64_t)i * p.max_rows) * TL_DV + d, w = weights[i];
            if constexpr (WIDE == 4) {
                const float4 y = __ldcg((const float4 *)from);
                x[0] = fmaf(w, y.x, x[0]), x[1] = fmaf(w, y.y, x[1]), x[2] = fmaf(w, y.z, x[2]), x[3] = fmaf(w, y.w, x[3]);
            } else
                x[0] = fmaf(w, __ldcg(from), x[0]);
        }
#pragma unroll
        for (int j = 0; j < WIDE; j++)
            store_float<TL_OUT>(p.out, out + d + j, x[j] * factor);
    }
    __syncwarp();
}

} /* namespace attn_cuda */
#endif
