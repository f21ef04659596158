/* SPDX-License-Identifier: Apache-2.0 */
/* Puts the segments of one request together (semantics 6.6): weights 2^(lse_i - max), the sink once, 0 where no segment
 * saw a key. Four warps a row, each knows all weights; grid: x = splits, y = rows. */
#ifndef TRITON_REDUCE_CUH
#define TRITON_REDUCE_CUH

#include "triton_rows.cuh"

namespace attn_cuda {

extern "C" __global__ void __launch_bounds__(128) tl_reduce(const __grid_constant__ triton_params_t p) {
    __shared__ float weights[4][TL_MAX_PIECES];
    if ((int)blockIdx.x >= p.counts->num_splits)
        return;
    const int4 split = *(const int4 *)(p.splits + blockIdx.x);
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = blockIdx.y;
    const int num_heads = p.num_kv_heads * TL_GROUP, seq = split.x, first = split.y, count = split.z;
    const int q0 = __ldg(p.q_start + seq), rows = (__ldg(p.q_start + seq + 1) - q0) * num_heads;
    if (row >= rows)
        return;
    const int t = row / num_heads, h = row % num_heads;
    const float sink = TL_SINKS ? __ldg(p.sinks + h) * LOG2E : -INFINITY;
    float top = fmaxf(NO_MAX, sink), sum = 0.f;
    for (int i = lane; i < count; i += 32)
        top = fmaxf(top, p.part_lse[(int64_t)(first + i) * p.max_rows + row]);
#pragma unroll
    for (int d = 16; d > 0; d >>= 1)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    for (int i = lane; i < count; i += 32) {
        float w = exp2f(p.part_lse[(int64_t)(first + i) * p.max_rows + row] - top);
        weights[warp][i] = w;
        sum += w;
    }
#pragma unroll
    for (int d = 16; d > 0; d >>= 1)
        sum += __shfl_xor_sync(~0u, sum, d);
    sum += exp2f(sink - top);
    __syncwarp();
    if (p.lse && threadIdx.x == 0)
        p.lse[(int64_t)(q0 + t) * p.lse_token + (int64_t)h * p.lse_head] =
            sum != 0.f ? (top + log2f(sum)) * LN2 : -INFINITY;
    float factor = sum != 0.f ? 1.f / sum : 0.f;
    if (TL_OUT == DT_E4M3 && p.out_scale)
        factor /= __ldg(p.out_scale);
    const int64_t out = (int64_t)(q0 + t) * p.out_token + (int64_t)h * p.out_head;
    for (int d = threadIdx.x; d < TL_DV; d += 128) {
        float x = 0.f;
#pragma unroll 16
        for (int i = 0; i < count; i++)
            x = fmaf(weights[warp][i], p.part_out[((int64_t)(first + i) * p.max_rows + row) * TL_DV + d], x);
        store_float<TL_OUT>(p.out, out + d, x * factor);
    }
}

} /* namespace attn_cuda */
#endif
