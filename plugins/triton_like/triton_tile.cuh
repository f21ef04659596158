/* SPDX-License-Identifier: Apache-2.0 */
/* What the 2D kernels share around their products: blocks of query rows, tiles of keys, scores and softmax
 * (triton_tile_rows.cuh, _keys, _scores), and here the rows of the result. */
#ifndef TRITON_TILE_CUH
#define TRITON_TILE_CUH

#include "triton_redo.cuh"
#include "triton_tile_scores.cuh"

namespace attn_cuda {
namespace prefill {

/* 16 rows of a warp, from `row` of the request on: division, LSE, and through shared memory into whole pieces
 * of rows. */
ATTN_DEV void store_rows(const triton_params_t &p, const block_view &b, uint8_t *out, int row0,
                         const float (&m)[2], const float (&l)[2], const float (&o)[DVP / 2],
                         const float (&down)[2]) {
    const int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    float factor = !K_SCALED && p.v_scale ? __ldg(p.v_scale + b.head * p.kv_scale_stride) : 1.f, f[2];
    factor *= VALUE_UNIT;
    if (TL_OUT == DT_E4M3 && p.out_scale) factor /= __ldg(p.out_scale);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float sum = l[e], mm = m[e], rescale = 1.f;
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        int row = row0 + g + 8 * e, tok = row / TL_GROUP, h = b.head * TL_GROUP + row % TL_GROUP;
        if (TL_SINKS && row < b.rows) { /* denominator only (semantics 2.10) */
            float sink = __ldg(p.sinks + h) * LOG2E, top = fmaxf(mm, sink);
            rescale = ex2(mm - top);
            sum = sum * rescale + ex2(sink - top);
            mm = top;
        }
        f[e] = (sum != 0.f ? rescale * factor / sum : 0.f) * down[e];
        if (p.lse && q == 0 && row < b.rows)
            p.lse[(int64_t)(b.sv.q0 + tok) * p.lse_token + (int64_t)h * p.lse_head] =
                sum != 0.f ? (mm + lg2(sum)) * LN2 : -INFINITY;
    }
    uint8_t *so = out + g * ORS + 2 * q * OB;
#pragma unroll
    for (int j = 0; j < DVP / 8; j++) {
        float x[4] = {o[4 * j], o[4 * j + 1], o[4 * j + 2], o[4 * j + 3]};
        if constexpr (TL_V_CHANNELS) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float by = channel_scale(p, b.head, min(8 * j + 2 * q + i, TL_DV - 1));
                x[i] *= by, x[2 + i] *= by;
            }
        }
        if constexpr (TL_OUT == DT_E4M3) {
            *(uint16_t *)(so + j * 8) = (uint16_t)f32x2_to_e4m3x2(x[0] * f[0], x[1] * f[0]);
            *(uint16_t *)(so + 8 * ORS + j * 8) = (uint16_t)f32x2_to_e4m3x2(x[2] * f[1], x[3] * f[1]);
        } else {
            *(uint32_t *)(so + j * 16) =
                pack2 < TL_OUT == DT_F32 ? DT_F16 : TL_OUT > (x[0] * f[0], x[1] * f[0]);
            *(uint32_t *)(so + 8 * ORS + j * 16) =
                pack2 < TL_OUT == DT_F32 ? DT_F16 : TL_OUT > (x[2] * f[1], x[3] * f[1]);
        }
    }
    __syncwarp();
    constexpr int PIECES = TL_DV * OB / TL_OVEC;
#pragma unroll 2
    for (int i = lane; i < 16 * PIECES; i += 32) {
        int r = i / PIECES, c = i % PIECES * TL_OVEC, row = row0 + r;
        if (row < b.rows)
            copy_piece<TL_OVEC>((uint8_t *)p.out +
                                    ((int64_t)(b.sv.q0 + row / TL_GROUP) * p.out_token +
                                     (int64_t)(b.head * TL_GROUP + row % TL_GROUP) * p.out_head) *
                                        OB +
                                    c,
                                out + r * ORS + c);
    }
}

} /* namespace prefill */
} /* namespace attn_cuda */

#if TL_OUT_GROUP
#include "triton_quantize.cuh"
#endif
#endif
