/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the call as the cache writers take them: eight lanes a row, a lane the W values from W c on for c =
 * l, l + 8 and so on. Where rows are aligned, K and V and the slot are asked for together, as the words that
 * memory has, and become numbers when their turn comes; others are read then. */
#ifndef TRITON_WRITE_ROWS_CUH
#define TRITON_WRITE_ROWS_CUH

#include "triton_rows.cuh"

namespace attn_cuda {
namespace cache_write {

constexpr int SB = element_bytes(TL_Q2);

/* Ordinary loads: tl_rope has just written the row. */
template <int SIZE, int W>
struct row_words {
    static constexpr int N = (SIZE / W + 7) / 8 * W, BYTES = W * SB < 16 ? W * SB : 16; /* of a load */
    static constexpr bool AHEAD = SB == 2 && TL_SVEC >= BYTES, WIDE = SB == 4 && TL_SVEC >= 16;
    uint32_t y[AHEAD ? N / 2 : 1];
    const uint8_t *src;
    bool ok;

    static ATTN_DEV void load(uint32_t *to, const uint8_t *at, bool in) {
        if constexpr (BYTES == 16) {
            const uint4 w = in ? *(const uint4 *)at : make_uint4(0, 0, 0, 0);
            to[0] = w.x, to[1] = w.y, to[2] = w.z, to[3] = w.w;
        } else {
            const uint2 w = in ? *(const uint2 *)at : make_uint2(0, 0);
            to[0] = w.x, to[1] = w.y;
        }
    }
    ATTN_DEV void ask(const uint8_t *from, bool is_row, int l) {
        src = from, ok = is_row;
        if constexpr (AHEAD)
#pragma unroll
            for (int i = 0; i < N / W; i++)
#pragma unroll
                for (int b = 0; b < W * SB; b += BYTES)
                    load(y + (i * W * SB + b) / 4, src + (l + 8 * i) * W * SB + b,
                         ok && (l + 8 * i) * W < SIZE);
    }
    /* The greatest magnitude of this lane's values x; NaN if one is in it. */
    ATTN_DEV float absmax(const float (&x)[N]) const {
#if __CUDA_ARCH__ >= 860
        if constexpr (AHEAD && TL_Q2 != DT_F32) { /* signs of these maxima mean nothing */
            uint32_t top = y[0];
#pragma unroll
            for (int i = 1; i < N / 2; i++)
                if constexpr (TL_Q2 == DT_BF16)
                    asm("max.NaN.xorsign.abs.bf16x2 %0, %0, %1;" : "+r"(top) : "r"(y[i]));
                else
                    asm("max.NaN.xorsign.abs.f16x2 %0, %0, %1;" : "+r"(top) : "r"(y[i]));
            const float2 f = unpack2 < TL_Q2 == DT_F32 ? DT_F16 : TL_Q2 > (top);
            return -min_nan(-fabsf(f.x), -fabsf(f.y));
        }
#endif
        float top = 0.f;
#pragma unroll
        for (int k = 0; k < N; k++)
            top = min_nan(top, -fabsf(x[k]));
        return -top;
    }
    /* Zeros past the end, and where there is no row. */
    ATTN_DEV void values(float (&x)[N], int l) const {
#pragma unroll
        for (int i = 0; i < N / W; i++) {
            const int c = l + 8 * i;
            const bool in = ok && c * W < SIZE;
            if constexpr (AHEAD) {
#pragma unroll
                for (int j = 0; j < W; j += 2) {
                    const float2 f = unpack2 < TL_Q2 == DT_F32 ? DT_F16 : TL_Q2 > (y[(i * W + j) / 2]);
                    x[W * i + j] = f.x, x[W * i + j + 1] = f.y;
                }
            } else if constexpr (WIDE) {
#pragma unroll
                for (int j = 0; j < W; j += 4) {
                    const float4 f =
                        in ? *(const float4 *)(src + (c * W + j) * 4) : make_float4(0.f, 0.f, 0.f, 0.f);
                    x[W * i + j] = f.x, x[W * i + j + 1] = f.y, x[W * i + j + 2] = f.z,
                              x[W * i + j + 3] = f.w;
                }
            } else {
#pragma unroll
                for (int j = 0; j < W; j++)
                    x[W * i + j] = in ? load_float<TL_Q2>(src, W * c + j) : 0.f;
            }
        }
    }
};

} /* namespace cache_write */
} /* namespace attn_cuda */
#endif
