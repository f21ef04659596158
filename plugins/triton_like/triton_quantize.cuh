/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs with a scale per token and group of 64 or 128 fp8 values, or of 16 e2m1 values (semantics 7.7). A
 * group may span heads, so this is a pass of its own over what attention left in the workspace, a warp a
 * group. Grid: x = tokens, y = groups in fours. */
#ifndef TRITON_QUANTIZE_CUH
#define TRITON_QUANTIZE_CUH

#include "triton_codes.cuh"
#include "triton_rows.cuh"

namespace attn_cuda {

/* From the largest magnitude of a group to what its values are divided by; `stored` is what its place
 * holds. */
ATTN_DEV float scale_of_group(const triton_quantize_params_t &p, float top, uint32_t &stored) {
    stored = __float_as_uint(fmaxf(top, 1e-10f) / 448.f);
    if (p.kind == TL_SCALE_NVFP4) {
        const float tensor = p.tensor ? __ldg(p.tensor) : 1.f;
        stored = top == top ? f32x2_to_e4m3x2(top / 6.f / tensor, 0.f) & 0xff : 0x7f;
        return unpack2<DT_F16>(e4m3x2_to_f16x2<0>(stored)).x * tensor;
    }
    if (p.kind == TL_SCALE_FLOATS) return __uint_as_float(stored);
    const uint32_t power = min((stored + 0x7fffff) >> 23, 254u); /* upwards, to 2^127 at most */
    stored = p.kind == TL_SCALE_POWERS ? power << 23 : power;
    return __uint_as_float(power << 23);
}

ATTN_DEV void store_scale(const triton_quantize_params_t &p, int64_t token, int group, uint32_t stored) {
    char *at = (char *)p.scales + token / 128 * p.tile + token % 32 * p.row + token / 32 % 4 * p.part +
               group / 4 * p.four + group % 4 * p.one;
    if (p.kind == TL_SCALE_FLOATS || p.kind == TL_SCALE_POWERS) {
        *(uint32_t *)at = stored;
        return;
    }
    *(uint8_t *)at = (uint8_t)stored;
    for (int i = 0; group + 1 == p.num_groups && i < p.pads; i++)
        at += p.one, *(uint8_t *)at = 0;
}

extern "C" __global__ void __launch_bounds__(128)
    tl_quantize(const __grid_constant__ triton_quantize_params_t p) {
    const int token = blockIdx.x, group = blockIdx.y * 4 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (token >= p.counts->num_tokens || group >= p.num_groups) return;
    const int64_t first = (int64_t)group * p.group_size;
    const bool is_fp4 = p.kind == TL_SCALE_NVFP4;
    float x[4], top = 0.f, sum = 0.f; /* 128 values at most */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] = 32 * i + lane < p.group_size
                   ? load_float<TL_OUT>(p.from, (int64_t)token * p.from_token + first + 32 * i + lane)
                   : 0.f;
        top = fmaxf(top, fabsf(x[i])), sum += x[i] - x[i]; /* NaN unless all are finite */
    }
#pragma unroll
    for (int d = 16; d > 0; d >>= 1)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, d)), sum += __shfl_xor_sync(~0u, sum, d);
    uint32_t stored;
    const float scale = scale_of_group(p, is_fp4 && sum != 0.f ? __uint_as_float(0x7fffffffu) : top, stored);
    if (lane == 0) store_scale(p, token, group, stored);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int64_t column = first + 32 * i + lane;
        const int64_t at = token * p.to_token + column / TL_DV * p.to_head;
        if (is_fp4) { /* neighbours share a byte */
            const uint32_t code = scale > 0.f ? e2m1_code(x[i] / scale) : 0,
                           high = __shfl_down_sync(~0u, code, 1);
            if (32 * i + lane < p.group_size && lane % 2 == 0)
                ((uint8_t *)p.to)[at + column % TL_DV / 2] = (uint8_t)(code | high << 4);
        } else if (32 * i < p.group_size)
            store_float<DT_E4M3>(p.to, at + column % TL_DV, x[i] / scale);
    }
}

} /* namespace attn_cuda */
#endif
