/* SPDX-License-Identifier: Apache-2.0 */
/* Units of P times the scales of V, for 16 rows of a warp of the 2D kernels (TL_TOKEN_HEAD). All have one,
 * which follows what the keys of a tile have (packed rows) or is 1 (rows of 8 bits); where rows do not see
 * the same keys, or scales of 8 bits are not of usual size, a row has a factor on top, and tiles go the long
 * way. */
#ifndef TRITON_TILE_UNITS_CUH
#define TRITON_TILE_UNITS_CUH

#include "triton_tile_rows.cuh"

namespace attn_cuda {
namespace prefill {

struct tile_units {
    float unit, limit, more[2];
    ATTN_DEV tile_units() : unit(TL_PACKED ? MOST_UNIT : 1.f), limit(0.f) {
        more[0] = more[1] = MOST_UNIT / unit;
    }
    static ATTN_DEV float own_of(float scale) {
        return !TL_PACKED && scale >= V_LEAST && scale <= V_MOST ? 1.f : unit_of(scale);
    }
    /* Before P of a tile, s, is packed: O is put into the units, and where it must be, s. */
    ATTN_DEV void raise(float (&s)[BN / 2], const float *v_scales, float (&o)[DVP / 2]) {
        float top = 0.f;
#pragma unroll
        for (int i = 0; i < BN; i += 32)
            if (BN % 32 == 0 || i + (threadIdx.x & 31) < BN)
                top = fmaxf(top, v_scales[i + (threadIdx.x & 31)]);
        if (!__any_sync(~0u, top > limit)) return;
        const float old = unit;
        if constexpr (TL_PACKED) {
#pragma unroll
            for (int d = 1; d < 32; d <<= 1)
                top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
            unit = fminf(unit, unit_of(top));
        }
        float seen[2] = {0.f, 0.f}, ratio[2];
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
            const float2 v = *(const float2 *)(v_scales + j * 8 + 2 * (threadIdx.x & 3));
#pragma unroll
            for (int e = 0; e < 2; e++)
                seen[e] = fmaxf(seen[e], fmaxf(s[4 * j + 2 * e] > 0.f ? v.x : 0.f,
                                               s[4 * j + 2 * e + 1] > 0.f ? v.y : 0.f));
        }
#pragma unroll
        for (int e = 0; e < 2; e++) {
            seen[e] = fmaxf(seen[e], __shfl_xor_sync(~0u, seen[e], 1));
            seen[e] = fmaxf(seen[e], __shfl_xor_sync(~0u, seen[e], 2));
            /* a row's own unit is unit * more, which never grows; P times `more` stays a number */
            const float before = old * more[e], mine = fminf(before, own_of(seen[e]));
            more[e] = unit_ratio(mine, unit);
            ratio[e] = unit_ratio(unit * more[e], before);
        }
#pragma unroll
        for (int i = 0; i < DVP / 2; i++)
            o[i] *= ratio[i >> 1 & 1];
        const bool is_one = __all_sync(~0u, more[0] == 1.f && more[1] == 1.f);
        limit = !is_one ? -1.f : TL_PACKED ? unit_limit(unit) : V_MOST;
        if (is_one) return;
#pragma unroll
        for (int i = 0; i < BN / 2; i++)
            s[i] *= more[i >> 1 & 1];
    }
    /* What takes O of a row back. */
    ATTN_DEV float down(int e) const {
        return TL_TOKEN_HEAD ? unit_inverse(unit) * unit_inverse(more[e]) / V_SHIFT : 1.f;
    }
};

} /* namespace prefill */
} /* namespace attn_cuda */
#endif
