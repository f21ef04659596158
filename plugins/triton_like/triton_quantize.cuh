/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs with a scale per token and group of 64 or 128 fp8 values, or of 16 e2m1 values (semantics 7.7). A
 * group may span heads, so this is a pass of its own over what attention left in the workspace: eight values
 * a thread, and 2, 8 or 16 neighbours have a group. Grid: x = tokens, y = 256 threads of a row each. */
#ifndef TRITON_QUANTIZE_CUH
#define TRITON_QUANTIZE_CUH

#include "triton_codes.cuh"
#include "triton_rows.cuh"

namespace attn_cuda {

/* From the largest magnitude of a group to what its values are divided by; `stored` is what its place
 * holds. */
ATTN_DEV float scale_of_group(const triton_quantize_params_t &p, float top, float tensor, uint32_t &stored) {
    stored = __float_as_uint(fmaxf(top, 1e-10f) / 448.f);
    if (p.kind == TL_SCALE_NVFP4) {
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

/* Values 8 u to 8 u + 7 of a row that begins at a multiple of 16 bytes. */
ATTN_DEV void load_unit(const uint8_t *row, int u, float (&x)[8]) {
    if constexpr (TL_OUT == DT_F16 || TL_OUT == DT_BF16) {
        const uint4 w = __ldcs((const uint4 *)row + u);
        const float2 a = unpack2<TL_OUT>(w.x), b = unpack2<TL_OUT>(w.y), c = unpack2<TL_OUT>(w.z),
                     d = unpack2<TL_OUT>(w.w);
        x[0] = a.x, x[1] = a.y, x[2] = b.x, x[3] = b.y, x[4] = c.x, x[5] = c.y, x[6] = d.x, x[7] = d.y;
    } else
#pragma unroll
        for (int k = 0; k < 8; k++)
            x[k] = load_float<TL_OUT>(row, u * 8 + k);
}

/* BYTES that stand for eight values, from column `column` of a row on. Heads of other sizes than multiples of
 * eight share a unit, and an output may begin anywhere: then byte by byte. */
template <int BYTES>
ATTN_DEV void store_unit(const triton_quantize_params_t &p, int64_t token, int column, uint2 codes) {
    uint8_t *const row = (uint8_t *)p.to + token * p.to_token;
    if (TL_DV % 8 == 0 && ((uintptr_t)p.to | p.to_token | p.to_head) % BYTES == 0) {
        uint8_t *const at = row + column / TL_DV * p.to_head + column % TL_DV * BYTES / 8;
        if constexpr (BYTES == 8)
            *(uint2 *)at = codes;
        else
            *(uint32_t *)at = codes.x;
        return;
    }
#pragma unroll
    for (int i = 0; i < BYTES; i++) {
        const int c = column + i * 8 / BYTES;
        row[c / TL_DV * p.to_head + c % TL_DV * BYTES / 8] =
            (uint8_t)((i < 4 ? codes.x : codes.y) >> i % 4 * 8);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    tl_quantize(const __grid_constant__ triton_quantize_params_t p) {
    const int token = blockIdx.x, unit = blockIdx.y * 256 + threadIdx.x, lanes = p.group_size / 8;
    const bool inside = unit < p.num_groups * lanes, is_fp4 = p.kind == TL_SCALE_NVFP4;
    float x[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f}, top = 0.f, sum = 0.f;
    /* rows of all planned tokens are there; all three are asked for at once */
    const float tensor = is_fp4 && p.tensor ? __ldg(p.tensor) : 1.f;
    if (inside)
        load_unit((const uint8_t *)p.from + (int64_t)token * p.from_token * element_bytes(TL_OUT), unit, x);
    if (token >= p.counts->num_tokens) return;
#pragma unroll
    for (int k = 0; k < 8; k++)
        top = fmaxf(top, fabsf(x[k])), sum += x[k] - x[k]; /* NaN unless all are finite */
    for (int d = 1; d < lanes; d *= 2)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, d)), sum += __shfl_xor_sync(~0u, sum, d);
    if (!inside) return;
    uint32_t stored;
    const float scale =
        scale_of_group(p, is_fp4 && sum != 0.f ? __uint_as_float(0x7fffffffu) : top, tensor, stored);
    if ((unit & (lanes - 1)) == 0) store_scale(p, token, unit >> __popc(lanes - 1), stored);
    const quotient by(scale);
    if (is_fp4) {
        uint32_t codes = 0;
#pragma unroll
        for (int k = 0; k < 8; k++)
            codes |= e2m1_code(by.of(x[k])) << 4 * k;
        store_unit<4>(p, token, unit * 8, make_uint2(scale > 0.f ? codes : 0, 0));
    } else {
        uint32_t w[2];
#pragma unroll
        for (int k = 0; k < 2; k++)
            w[k] = f32x2_to_e4m3x2(by.of(x[4 * k]), by.of(x[4 * k + 1])) |
                   f32x2_to_e4m3x2(by.of(x[4 * k + 2]), by.of(x[4 * k + 3])) << 16;
        store_unit<8>(p, token, unit * 8, make_uint2(w[0], w[1]));
    }
}

} /* namespace attn_cuda */
#endif
