/* SPDX-License-Identifier: Apache-2.0 */
/* fp8 output with a scale per token and group of 64 or 128 values (semantics 7.7): scale = max(|x|, 1e-10) /
 * 448. A group may span heads, so this is a pass of its own over what attention left in the workspace, a warp
 *      a group. Grid: x = tokens, y = groups in fours. */
#ifndef TRITON_QUANTIZE_CUH
#define TRITON_QUANTIZE_CUH

#include "triton_rows.cuh"

namespace attn_cuda {

extern "C" __global__ void __launch_bounds__(128)
    tl_quantize(const __grid_constant__ triton_quantize_params_t p) {
    const int token = blockIdx.x, group = blockIdx.y * 4 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (token >= p.counts->num_tokens || group >= p.num_groups) return;
    const int64_t first = (int64_t)group * p.group_size;
    float x[4], top = 1e-10f; /* 128 values at most */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] = 32 * i < p.group_size
                   ? load_float<TL_OUT>(p.from, (int64_t)token * p.from_token + first + 32 * i + lane)
                   : 0.f;
        top = fmaxf(top, fabsf(x[i]));
    }
#pragma unroll
    for (int d = 16; d > 0; d >>= 1)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    const float scale = top / 448.f;
    if (lane == 0) p.scales[token * p.scale_token + group * p.scale_group] = scale;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int64_t column = first + 32 * i + lane;
        if (32 * i < p.group_size)
            store_float<DT_E4M3>(p.to, token * p.to_token + column / TL_DV * p.to_head + column % TL_DV,
                                 x[i] / scale);
    }
}

} /* namespace attn_cuda */
#endif
